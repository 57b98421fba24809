// The control of a curve: drawn with a pointer, or set point by point with the arrow keys. A panel with such a dial hands
// it to the kit as `controls: { curve }`, so that the others do not carry it.
import { h, ownKeys } from "./dom.js";

const STEPS = 100; // from the lowest height to the highest

// A point is a slider of which only a dot is seen: track and thumb have the dot's colour.
const style = `
@container (max-width: 519px) { .al-curve { grid-column: 1 / -1; } }
.al-board { grid-column: 1 / -1; flex: 0 1 110px; height: 56px; margin-top: 2px; padding: 6px; cursor: crosshair; touch-action: none; border: solid var(--al-line); border-width: 0 0 1px 1px; }
.al-off .al-board { cursor: not-allowed; }
.al-plot { position: relative; height: 100%; }
.al-line { position: absolute; inset: 0; background: var(--al-ink); forced-color-adjust: none; }
.attnlab .al-plot input[type=range] { position: absolute; width: 9px; height: 9px; margin: -4.5px; border-radius: 50%; overflow: hidden; --al-edge: var(--al-ink); background: var(--al-ink); forced-color-adjust: none; pointer-events: none; }
@media print { .attnlab .al-board { height: 20px; padding: 2px 6px; } }
`;

// Percent from the top left corner of the plot.
const across = (n, points) => (100 * n) / (points - 1);

// The line through the points as a clip of a filled box, so that it takes the colours of its surroundings.
function outline(parts) {
  const edge = (px) => parts.map((part, n) => `${across(n, parts.length)}% calc(${100 - 100 * part}% + ${px}px)`);
  return `polygon(${[...edge(-1.25), ...edge(1.25).reverse()].join(", ")})`;
}

// The points that a stroke passes from one place to another, each { n, part }: a place is a part of the width, and a
// part of the height. Both ends belong to it.
export function stroke([fromX, fromY], [toX, toY], points) {
  const nearest = (x) => Math.round(Math.min(Math.max(x, 0), 1) * (points - 1));
  const [first, last] = [nearest(fromX), nearest(toX)];
  const way = Math.sign(last - first);
  return Array.from({ length: Math.abs(last - first) + 1 }, (_, passed) => {
    const part = way ? passed / Math.abs(last - first) : 1;
    return { n: first + way * passed, part: Math.min(Math.max(fromY + (toY - fromY) * part, 0), 1) };
  });
}

export function curve({ dial: { low, high, points, paper }, label, words, move, release }) {
  let heights = [];
  let last = null; // where the pointer was while it draws
  const part = (height) => (height - low) / (high - low);
  const stepped = (part) => Number((low + ((high - low) * Math.round(STEPS * part)) / STEPS).toPrecision(12));
  const named = (n) => words.kit.point(label, n + 1, points);
  const inputs = Array.from({ length: points }, (_, n) => {
    const given = { type: "range", min: 0, max: STEPS, step: 1, tabIndex: n ? -1 : 0, "aria-label": named(n) };
    const input = ownKeys(h("input", given));
    input.addEventListener("input", () => put([{ n, part: input.value / STEPS }]));
    input.addEventListener("change", release);
    input.addEventListener("focus", tell);
    input.addEventListener("blur", tell);
    input.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way) return;
      event.preventDefault(); // else it would be one more key for up and down
      const next = inputs[n + way];
      if (!next) return;
      [input.tabIndex, next.tabIndex] = [-1, 0];
      next.focus();
    });
    return input;
  });
  const line = h("div", { className: "al-line" });
  const plot = h("div", { className: "al-plot" }, line, ...inputs);
  const board = h("div", { className: "al-board", title: words.kit.drawAbout }, plot);
  const shown = h("output");
  const name = h("span", {}, label, ...(paper ? [" ", h("i", {}, paper)] : []));
  const given = { className: "al-dial al-curve", role: "group", "aria-label": `${label} ${paper}`.trim() };
  const element = h("div", given, h("style", {}, style), name, shown, board);

  // The height in focus, or the lowest and the highest.
  function tell() {
    const n = inputs.indexOf(element.getRootNode().activeElement);
    const [least, most] = [Math.min(...heights), Math.max(...heights)];
    shown.value = n >= 0 ? `${n + 1}: ${heights[n]}` : least === most ? String(most) : `${least} – ${most}`;
  }

  function put(passed) {
    const next = [...heights];
    for (const { n, part } of passed) next[n] = stepped(part);
    move(next);
  }

  function draw({ clientX, clientY }) {
    const { left, top, width, height } = plot.getBoundingClientRect();
    const here = [(clientX - left) / width, 1 - (clientY - top) / height];
    put(stroke(last ?? here, here, points));
    last = here;
  }
  board.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || inputs[0].disabled) return;
    event.preventDefault(); // no text is selected
    board.setPointerCapture(event.pointerId);
    draw(event);
  });
  board.addEventListener("pointermove", (event) => {
    if (last) draw(event);
  });
  board.addEventListener("lostpointercapture", () => {
    if (last) release();
    last = null;
  });

  return {
    element,
    set(next) {
      heights = next;
      const parts = next.map(part);
      inputs.forEach((input, n) => {
        input.value = Math.round(STEPS * parts[n]);
        input.setAttribute("aria-valuetext", String(next[n]));
        Object.assign(input.style, { left: `${across(n, points)}%`, top: `${100 - 100 * parts[n]}%` });
      });
      line.style.clipPath = outline(parts);
      tell();
    },
    disable(off) {
      for (const input of inputs) input.disabled = off !== undefined;
      element.title = off?.why ?? "";
      board.title = off?.why ?? words.kit.drawAbout;
      element.classList.toggle("al-off", off !== undefined);
      if (off?.instead !== undefined) this.set(off.instead); // the curve in force
    },
  };
}
