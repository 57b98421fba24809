// A live panel: dials, pictures, numbers. A mechanism brings `panel`; everything around it is here.
//
//     panel = { languages, computer(spec) -> (state, data) -> views, missing(state, data, spec),
//               disabled(state, words, spec), summary(context),
//               figures: [{ id, kind: "heatmap" or "chart", wide, option, picture(context) }] }
//     context = { state, data, views, spec, words }
//
// A move of a dial changes the state and asks for one frame; the frame computes and paints what the state is by then,
// so the last value wins.
import { createBadge } from "./badge.js";
import { control, h } from "./dom.js";
import { createFigure, short } from "./figure.js";
import { checked, defaults } from "./state.js";
import { cividisGradient, isDark, themes, watchTheme } from "./theme.js";
import { en } from "./labels.en.js";
import { style } from "./style.js";

const languages = { en };
const inWords = ({ value, masked }, digits) => masked ?? `= ${digits(value)}`;
const elements = (parts) => parts.map(({ element }) => element);

// Show `panel` inside `element`; host = { save(state), verify(state) } where Python listens.
// Returns { show(state), give(data), report(report), fail(message), remove() }.
export function mount(element, panel, { spec, state: wanted, data = null, host = {} }) {
  const spoken = Object.keys(languages).filter((code) => panel.languages[code]);
  let state = defaults(spec);
  let refusal = "";
  try {
    if (wanted !== undefined) state = checked(wanted, spec, spoken);
  } catch (error) {
    refusal = error.message;
  }
  const words = { kit: languages[state.language], ...panel.languages[state.language] };
  const compute = panel.computer(spec);

  let shown = null; // the context of the last computation: what the pictures show
  let stale = true; // the state has moved on since
  let pointer = null; // coordinates under the pointer or the keyboard's cursor
  let active = null; // the figure they were read in
  let pinnedIn = null; // the figure that the pin was read in
  let frame = 0;
  let announcing = false; // the next numbers are to be spoken
  let theme, font;

  // -- elements -----------------------------------------------------------------------------------------------------

  const dials = spec.dials.map((dial) => {
    const label = words.dialLabels?.[dial.name] ?? dial.label;
    return { name: dial.name, ...control(dial, label, words, (value) => turn(dial.name, value), release) };
  });
  const hear = {
    at: () => pointer ?? state.selection.pin ?? {},
    look(at, figure) {
      if (at === null && active !== figure) return;
      pointer = at;
      active = figure;
      schedule();
    },
    move(at, figure) {
      hear.look(at, figure);
      const reading = figure.read(at);
      if (reading) live.textContent = `${reading.label} ${inWords(reading, String)}`;
    },
    pin() {
      const again = JSON.stringify(pointer) === JSON.stringify(state.selection.pin);
      pinnedIn = active;
      select({ pin: again ? null : pointer });
    },
    choose: (option, name) => select({ [option]: name }),
  };
  const figures = panel.figures.map((figure) => createFigure(figure, spec, words, hear));
  const badge = createBadge(words, () => {
    complain("python", "");
    if (!host.verify) return words.kit.verifyNeedsKernel;
    try {
      host.verify(state);
      return "";
    } catch (error) {
      return words.kit.unsent(error.message);
    }
  });
  const mark = h("em", {}, words.kit.pinned);
  const first = createReadout(mark); // the pinned number, else the one that is pointed at
  const second = createReadout(); // what is pointed at beside a pin
  const live = h("div", { className: "al-unseen", "aria-live": "polite" });
  const strip = h("div", { className: "al-error", role: "alert", hidden: true });
  const root = h("div", { className: "attnlab", lang: state.language },
    h("style", {}, style),
    h("div", { className: "al-body" },
      h("div", { className: "al-title" }, h("b", {}, words.title), h("span", {}, words.subtitle)),
      h("div", { className: "al-column" },
        h("fieldset", { className: "al-dials", "aria-label": words.kit.dials }, ...elements(dials)),
        badge.element),
      h("div", { className: "al-figures", role: "group", "aria-label": words.kit.pictures },
        h("div", { className: "al-readout" }, first.element, second.element), ...elements(figures))),
    strip, live);

  // -- the state ----------------------------------------------------------------------------------------------------

  function turn(name, value) {
    state = { ...state, dials: { ...state.dials, [name]: value } };
    refresh();
  }

  function select(part) {
    state = { ...state, selection: { ...state.selection, ...part } };
    refresh();
    host.save?.(state);
  }

  // A dial was let go: Python hears of it, and so does a screen reader.
  function release() {
    host.save?.(state);
    announcing = true;
    schedule();
  }

  // The controls follow the state, and a frame is asked for.
  function refresh() {
    const off = panel.disabled(state, words, spec);
    for (const dial of dials) {
      dial.set(state.dials[dial.name]);
      dial.disable(off[dial.name]);
    }
    for (const figure of figures) figure.choose(state.selection);
    badge.follow(state.dials);
    stale = true;
    schedule();
  }

  // -- a frame ------------------------------------------------------------------------------------------------------

  function schedule() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      try {
        if (stale && !panel.missing(state, data, spec)) {
          shown = { state, data, views: compute(state, data), spec, words };
          stale = false;
        }
        paint();
        if (announcing && !stale) live.textContent = panel.summary(shown);
        announcing &&= stale;
        complain("here", "");
      } catch (error) {
        complain("here", words.kit.error(error.message));
        console.error(error);
      }
    });
  }

  function paint() {
    const at = hear.at();
    if (shown) for (const figure of figures) figure.paint(shown, at, theme, font);
    const reading = (place, figure) => place && [figure, ...figures].map((each) => each?.read(place)).find(Boolean);
    const waiting = stale && (host.save ? words.kit.waiting : words.kit.needsKernel)(state.dials.input);
    const pin = state.selection.pin;
    const pointed = reading(pointer, active);
    first.show(waiting || (pin ? reading(pin, pinnedIn) : pointed) || words.kit.hint);
    second.show((pin && !waiting && pointed) || (pin ? words.kit.hintPinned : words.kit.hintPin));
    mark.hidden = !pin;
    root.dataset.frames = String(Number(root.dataset.frames ?? 0) + 1);
  }

  // Errors of this page, of a state that came, and of Python, each until it is over.
  const complaints = {};
  function complain(side, message) {
    complaints[side] = message;
    const all = Object.values(complaints).filter(Boolean).join("\n");
    if (strip.textContent !== all) strip.textContent = all;
    strip.hidden = !all;
  }

  // -- the page around ----------------------------------------------------------------------------------------------

  function recolour() {
    const name = isDark(element) ? "dark" : "light";
    theme = themes[name];
    root.dataset.theme = name;
    root.style.colorScheme = name;
    root.style.setProperty("--al-cividis", cividisGradient);
    for (const [part, colour] of Object.entries(theme)) root.style.setProperty(`--al-${part}`, colour);
    font = `11px ${getComputedStyle(root).fontFamily || "sans-serif"}`;
    schedule();
  }
  const sizes = new ResizeObserver((entries) => {
    for (const { target, contentRect: { width, height } } of entries) {
      figures.find((figure) => figure.canvas === target).resize(width, height);
    }
    recolour(); // the element may only now stand in its page
  });
  // a pin is let go from anywhere in the panel, also from a control that keeps its keys to itself
  root.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Escape" || !state.selection.pin) return;
      event.preventDefault();
      select({ pin: null });
    },
    true,
  );
  element.append(root);
  for (const { canvas } of figures) sizes.observe(canvas);
  const unwatch = watchTheme(recolour);
  recolour();
  refresh();
  if (refusal) complain("state", words.kit.refused(refusal));

  return {
    show(next) {
      try {
        checked(next, spec, spoken);
        complain("state", "");
      } catch (error) {
        complain("state", words.kit.refused(error.message));
        return;
      }
      if (JSON.stringify(next) === JSON.stringify(state)) return;
      state = next;
      refresh();
    },
    give(next) {
      data = next;
      refresh();
    },
    report(next) {
      badge.show(next);
      badge.follow(state.dials);
    },
    fail(message) {
      if (message) badge.release();
      complain("python", message && words.kit.error(message));
    },
    remove() {
      cancelAnimationFrame(frame);
      badge.cancel();
      sizes.disconnect();
      unwatch();
      root.remove();
    },
  };
}

// A line of the readout: { element, show(reading or a sentence) }. Four digits are shown; all of them are its title.
function createReadout(...marks) {
  const label = h("span");
  const value = h("b");
  const element = h("p", {}, label, value, ...marks);
  return {
    element,
    show(reading) {
      const number = typeof reading === "object";
      label.textContent = number ? reading.label : reading;
      value.textContent = number ? inWords(reading, short) : "";
      element.title = number ? `${reading.label} ${inWords(reading, String)}` : "";
    },
  };
}
