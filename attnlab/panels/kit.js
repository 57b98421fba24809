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
import { createFigure } from "./figure.js";
import { checked, defaults } from "./state.js";
import { cividisGradient, isDark, themes, watchTheme } from "./theme.js";
import { en } from "./labels.en.js";
import { style } from "./style.js";

const languages = { en };
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
      if (reading) live.textContent = `${reading.label} = ${reading.value}`;
    },
    pin: () => select({ pin: JSON.stringify(pointer) === JSON.stringify(state.selection.pin) ? null : pointer }),
    unpin: () => select({ pin: null }),
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
  const label = h("span");
  const value = h("b");
  const live = h("div", { className: "al-unseen", "aria-live": "polite" });
  const strip = h("div", { className: "al-error", role: "alert", hidden: true });
  const root = h("div", { className: "attnlab", lang: state.language },
    h("style", {}, style),
    h("div", { className: "al-body" },
      h("div", { className: "al-title" }, h("b", {}, words.title), h("span", {}, words.subtitle)),
      h("fieldset", { className: "al-side al-dials", "aria-label": words.kit.dials }, ...elements(dials)),
      h("div", { className: "al-figures", role: "group", "aria-label": words.kit.pictures },
        h("div", { className: "al-readout" }, label, value), ...elements(figures)),
      badge.element),
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
    const reading = [active, ...figures].map((figure) => figure?.read(at)).find(Boolean);
    const waiting = stale && (host.save ? words.kit.waiting : words.kit.needsKernel)(state.dials.input);
    label.textContent = waiting || reading?.label || words.kit.hint;
    value.textContent = reading && !waiting ? `= ${reading.value}` : "";
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
