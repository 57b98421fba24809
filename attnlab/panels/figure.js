// One figure: title and number, canvas, scale, caption. It paints what it is given and tells what the reader points at.
import { choices, h, ownKeys, setRich } from "./dom.js";
import { short } from "./numbers.js";
import { cellTable, cellUnder, chart, heatmaps, nextCell, nextPoint, pointTable, pointUnder, readCell } from "./paint.js";

const kinds = {
  heatmap: { paint: heatmaps, under: cellUnder, next: nextCell, read: readCell, table: cellTable },
  chart: { paint: chart, under: pointUnder, next: nextPoint, read: (picture, at) => picture.read(at), table: pointTable },
};

// A picture's `captions`, where it has them, are all that its caption may say: room is kept for the longest.
// hear = { at(), look(at or null, figure), move(at, figure), pin(), choose(option, name) }
// Returns { id, element, canvas, resize(width, height), paint(context, at, theme, font, ratio), read(at), table(at),
// headline(), choose(selection) }.
export function createFigure({ id, kind, wide, option, picture }, spec, words, hear) {
  const { paint, under, next, read, table } = kinds[kind];
  const canvas = ownKeys(h("canvas", { tabIndex: 0, role: "application" }));
  const title = h("b", { role: "heading", "aria-level": 2 });
  const value = h("span");
  const said = h("span");
  const caption = h("span", { className: "al-caption" }, said);
  const source = h("span", { className: "al-source" });
  const [low, high, how] = [h("span", {}, "0"), h("span"), h("span")];
  const scale = h("span", { className: "al-scale" }, low, h("b"), high, how);
  const head = h("div", { className: "al-head" }, title, value);
  const pick = option && choices(words.options[option], spec.options[option], (name) => hear.choose(option, name));
  if (pick) head.append(pick.element);
  const className = `al-${kind} ${wide ? "al-wide" : "al-third"}`;
  const element = h("figure", { className, "data-figure": id }, head, canvas, h("figcaption", {}, scale, caption, source));
  let shown = null; // the picture on the canvas
  let geometry = null;
  let size = null;

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
      geometry = paint(ctx, { ...size, ratio, theme }, shown, at, context.state.selection.pin);
      const reading = read(shown, at);
      setRich(title, shown.title);
      setRich(value, reading?.masked ? "–" : reading?.value === undefined ? (shown.headline ?? "") : short(reading.value));
      setRich(said, shown.caption);
      (shown.captions ?? []).forEach((words, n) => {
        setRich(caption.children[n + 1] ?? caption.appendChild(h("span", { className: "al-spare" })), words);
      });
      setRich(source, shown.source);
      caption.classList.toggle("al-alarm", shown.alarm === true);
      scale.hidden = !shown.scale;
      if (shown.scale) {
        const most = short(shown.scale.max, 3);
        high.textContent = shown.scale.above ? words.kit.andAbove(most) : most;
        how.textContent = shown.scale.root ? words.kit.squareRoot : "";
      }
      canvas.setAttribute("aria-label", words.kit[kind](title.textContent));
    },
  };

  const point = (event) => {
    if (!geometry) return;
    const box = canvas.getBoundingClientRect();
    hear.look(under(geometry, shown, event.clientX - box.left, event.clientY - box.top), figure);
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerleave", () => hear.look(null, figure));
  canvas.addEventListener("blur", () => hear.look(null, figure));
  canvas.addEventListener("click", (event) => {
    point(event);
    hear.pin();
    if (event.pointerType === "touch") hear.look(null, figure); // a finger does not hover
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
