// The kit's own words, `words.kit` beside the words of a mechanism. Another language is another file of these keys, and
// one more entry in kit.js.
export const en = {
  hint: "Point at a number, or focus a picture and walk with the arrow keys; click or Enter pins it.",
  waiting: (input) => `Waiting for ${input} from Python …`,
  needsKernel: (input) => `Python sends ${input}: open this panel in a notebook, or choose toy input.`,
  verify: "Verify",
  verifying: "Verifying …",
  verifyAbout: "These dials, every implementation, against the float64 reference.",
  verifyNeedsKernel: "Verifying needs a kernel: open this panel in a notebook.",
  stale: "Checked for other dials. Verify again.",
  notRun: "not run here",
  agrees: "agrees",
  differs: "differs",
  maxError: (number) => `max error ${number}`,
  relative: (numbers) => `relative ${numbers}`,
  took: (time_ms, device) => `${time_ms} ms, ${device}`,
  error: (message) => `Something went wrong: ${message}`,
  refused: (message) => `This state was refused: ${message}.`,
  dials: "Dials",
  pictures: "Pictures",
  heatmap: (title) => `${title}, heatmap. Arrow keys walk over cells, Page Up and Page Down over tables, Enter pins.`,
  chart: (title) => `${title}, chart. Left and right arrow keys move between numbers, Enter pins.`,
};
