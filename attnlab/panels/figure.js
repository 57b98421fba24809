// One figure: title and number, canvas, scale, caption. It paints what it is given and tells what the reader points at.
import { choices, h, ownKeys, setRich } from "./dom.js";
import { cellUnder, chart, heatmaps, nextCell, nextPoint, pointUnder, readCell } from "./paint.js";

const kinds = {
  heatmap: { paint: heatmaps, under: cellUnder, next: nextCell, read: readCell },
  chart: { paint: chart, under: pointUnder, next: nextPoint, read: (picture, at) => picture.read(at) },
};

export const short = (number, digits = 4) => String(Number(number.toPrecision(digits)));

// hear = { at(), look(at or null, figure), move(at, figure), pin(), choose(option, name) }
// Returns { element, canvas, resize(width, height), paint(context, at, theme, font), read(at), choose(selection) }.
export function createFigure({ id, kind, wide, option, picture }, spec, words, hear) {
  const { paint, under, next, read } = kinds[kind];
  const canvas = ownKeys(h("canvas", { tabIndex: 0, role: "application" }));
  const title = h("b");
  const value = h("span");
  const caption = h("span");
  const [low, high, how] = [h("span", {}, "0"), h("span"), h("span")];
  const scale = h("span", { className: "al-scale" }, low, h("b"), high, how);
  const head = h("div", { className: "al-head" }, title, value);
  const pick = option && choices(words.options[option], spec.options[option], (name) => hear.choose(option, name));
  if (pick) head.append(pick.element);
  const className = `al-${kind} ${wide ? "al-wide" : "al-third"}`;
  const element = h("figure", { className, "data-figure": id }, head, canvas, h("figcaption", {}, scale, caption));
  let shown = null; // the picture on the canvas
  let geometry = null;
  let size = null;

  const figure = {
    element,
    canvas,
    choose: (selection) => pick?.set(selection[option]),
    resize(width, height) {
      size = width > 0 && height > 0 ? { width, height } : null;
    },
    read: (at) => (shown ? read(shown, at) : null),
    paint(context, at, theme, font) {
      if (!size) return;
      shown = picture(context);
      const ratio = globalThis.devicePixelRatio || 1;
      const [across, down] = [size.width, size.height].map((side) => Math.round(side * ratio));
      if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
      const ctx = canvas.getContext("2d");
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.clearRect(0, 0, size.width, size.height);
      ctx.font = font;
      geometry = paint(ctx, { ...size, ratio, theme }, shown, at, context.state.selection.pin);
      const reading = read(shown, at);
      setRich(title, shown.title);
      setRich(value, reading ? (reading.masked ? "–" : short(reading.value)) : (shown.headline ?? ""));
      setRich(caption, shown.caption);
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
