// One figure: title and number, canvas, scale, caption. It paints what it is given and tells what the reader points at.
import { choices, h, ownKeys, setRich } from "./dom.js";
import { short } from "./numbers.js";
import { cellTable, cellUnder, chart, heatmaps, nextCell, nextPoint, pointTable, pointUnder, readCell } from "./paint.js";
import { isSigned } from "./paint.js";
import { instead } from "./readout.js";
import { signedGradient } from "./theme.js";

const kinds = {
  heatmap: { paint: heatmaps, under: cellUnder, next: nextCell, read: readCell, table: cellTable },
  chart: { paint: chart, under: pointUnder, next: nextPoint, read: (picture, at) => picture.read(at), table: pointTable },
};

// A picture's `captions`, where it has them, are all that its caption may say: room is kept for the longest.
// hear = { at(), look(at or null, figure), move(at, figure), pin(), choose(option, name) }
// Returns { id, element, canvas, resize(width, height), paint(context, at, theme, font, ratio), read(at), table(at),
// headline(), choose(selection), remove() }.
export function createFigure({ id, kind, wide, option, picture }, spec, words, hear) {
  const { paint, under, next, read, table } = kinds[kind];
  const canvas = ownKeys(h("canvas", { tabIndex: 0, role: "application" }));
  const title = h("b", { role: "heading", "aria-level": 2 });
  const value = h("span");
  const said = h("span");
  const caption = h("span", { className: "al-caption" }, said);
  const source = h("span", { className: "al-source" });
  const [low, bar, high, how] = ["span", "b", "span", "span"].map((tag) => h(tag));
  const scale = h("span", { className: "al-scale" }, low, bar, high, how);
  const head = h("div", { className: "al-head" }, title, value);
  const pick = option && choices(words.options[option], spec.options[option], (name) => hear.choose(option, name));
  if (pick) head.append(pick.element);
  const className = `al-${kind} ${wide ? "al-wide" : "al-third"}`;
  const element = h("figure", { className, "data-figure": id }, head, canvas, h("figcaption", {}, scale, caption, source));
  let shown = null; // the picture on the canvas
  let geometry = null;
  let size = null;
  let spare = {}; // what painting keeps from one frame to the next

  // The ends of the scale, and between them its part of all colours.
  function measure({ min = 0, max, root, above, below, ...more }) {
    const [least, most] = [min, max].map((end) => short(end, 3));
    low.textContent = below ? words.kit.andBelow(least) : least;
    high.textContent = above ? words.kit.andAbove(most) : most;
    how.textContent = root ? words.kit.squareRoot : "";
    const whole = (200 * Math.max(max, -min)) / (max - min || 1);
    const part = `${max < -min ? "left" : "right"} / ${whole}% 100% ${signedGradient}`;
    bar.style.background = isSigned({ min, ...more }) ? part : "";
  }

  const figure = {
    id,
    element,
    canvas,
    choose: (selection) => pick?.set(selection[option]),
    resize(width, height) {
      size = width > 0 && height > 0 ? { width, height } : null;
    },
    read: (at) => (shown ? read(shown, at) : null),
    table: (at) => (shown ? table(shown, at) : null),
    headline: () => (shown?.headline ? `${title.textContent}: ${shown.headline}` : ""),
    paint(context, at, theme, font, ratio = globalThis.devicePixelRatio || 1) {
      if (!size) return;
      shown = picture({ ...context, at });
      const [across, down] = [size.width, size.height].map((side) => Math.round(side * ratio));
      if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
      const ctx = canvas.getContext("2d");
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.clearRect(0, 0, size.width, size.height);
      ctx.font = font;
      geometry = paint(ctx, { ...size, ratio, theme, spare }, shown, at, context.state.selection.pin);
      const reading = read(shown, at);
      setRich(title, shown.title);
      const none = reading && instead(reading, words);
      setRich(value, none ? "–" : reading?.value === undefined ? (shown.headline ?? "") : short(reading.value));
      setRich(said, shown.caption);
      (shown.captions ?? []).forEach((words, n) => {
        setRich(caption.children[n + 1] ?? caption.appendChild(h("span", { className: "al-spare" })), words);
      });
      setRich(source, shown.source);
      caption.classList.toggle("al-alarm", shown.alarm === true);
      scale.hidden = !shown.scale;
      if (shown.scale) measure(shown.scale);
      canvas.setAttribute("aria-label", words.kit[kind](title.textContent, shown.tiles?.length));
    },
    // give back what is large, though someone may keep the panel's handle
    remove() {
      spare = {};
      shown = null;
      canvas.width = canvas.height = 0;
    },
  };

  const point = (event) => {
    if (!geometry) return;
    const zoom = canvas.getBoundingClientRect().width / size.width; // of the page, as slides do
    hear.look(under(geometry, shown, event.offsetX / zoom, event.offsetY / zoom), figure);
  };
  let touched = false; // a click does not say in every browser what clicked
  canvas.addEventListener("pointerdown", ({ pointerType }) => (touched = pointerType === "touch"));
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerleave", () => hear.look(null, figure));
  canvas.addEventListener("blur", () => hear.look(null, figure));
  canvas.addEventListener("click", (event) => {
    point(event);
    hear.pin();
    if (touched) hear.look(null, figure); // a finger does not hover
  });
  canvas.addEventListener("keydown", (event) => {
    const target = shown && next(shown, hear.at(), event.key);
    if (target) hear.move(target, figure);
    else if (event.key === "Enter" || event.key === " ") hear.pin();
    else return;
    event.preventDefault();
  });
  return figure;
}
