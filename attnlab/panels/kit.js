// A live panel: dials, pictures, numbers. A mechanism brings `panel`; everything around it is here.
//
//     panel = { computer(spec) -> (state, data) -> views,
//               figures: [{ id, kind: "heatmap" or "chart", wide, option, picture(context) }],
//               summary(context), idle(state, words, spec), controls: { curve } }
//     context = { state, data, views, spec, words, at }, `at` the coordinates in focus: { query: 3, key: 5 }
//
// The summary is what a screen reader hears when a dial is let go; without one, the headlines of the figures. `idle` names
// the dials that mean nothing beside the others, each { why, instead }: the value in force. Both may be left out.
//
// A move of a dial changes the state and asks for one frame; the frame computes and paints what the state is by then,
// so the last value wins.
import { createBadge } from "./badge.js";
import { control, h } from "./dom.js";
import { createFigure } from "./figure.js";
import { awaited, missing, offered, overridden } from "./inputs.js";
import { fragment, fromFragment } from "./link.js";
import { step } from "./numbers.js";
import { createNumbers, createReadout, spoken } from "./readout.js";
import { createSharing } from "./sharing.js";
import { checked, defaults } from "./state.js";
import { cividisGradient, isDark, themes, watchTheme } from "./theme.js";
import { style } from "./style.js";

const PAPER_DOTS = 3; // paper is finer than a screen
const SETTLED_MS = 100; // from letting go to telling Python: a key that is held sends one state, not thirty a second
const elements = (parts) => parts.map(({ element }) => element);
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const sorted = (place) => place && Object.entries(place).sort(); // a place is the same in whatever order its axes stand

// Show a panel inside `element`. Options: { panel, spec, languages, template } from the bundle, `source` its text, and
// { state, data, still, host = { python, save(state, link), verify(state), address() } } from whoever shows it; `python`
// says that a kernel listens. Returns { show(state), open(link), give(data), report(report), fail(message), remove() }.
export function mount(element, options) {
  let report = null;
  let failure = "";
  // another language is another set of words, so the panel is built anew
  const anew = (given) => {
    inner.remove();
    inner = build(element, { ...options, ...given }, anew);
    inner.report(report);
    inner.fail(failure);
  };
  let inner = build(element, options, anew);
  return {
    show: (state) => inner.show(state),
    open: (link) => inner.open(link),
    give: (data) => inner.give(data),
    report: (next) => inner.report((report = next)),
    fail: (message) => inner.fail((failure = message)),
    remove: () => inner.remove(),
  };
}

function build(element, { panel, spec, languages, template, source, still, state: wanted, data = null, host = {} }, anew) {
  let state = defaults(spec);
  let refusal = "";
  try {
    if (wanted !== undefined) state = checked(wanted, spec);
  } catch (error) {
    refusal = error.message;
  }
  let agreed = state; // what the host knows
  const words = languages[state.language];
  const compute = panel.computer(spec);
  const kept = step(); // the views stay the same objects until a dial or the data change

  let shown = null; // the context of the last computation: what the pictures show
  let stale = true; // the state has moved on since
  let pointer = null; // coordinates under the pointer or the keyboard's cursor
  let active = null; // the figure they were read in
  let frame = 0;
  let unsaved = 0; // the timer of a state that Python has not heard of
  let announcing = false; // the next numbers are to be spoken
  let theme, font;
  let dots; // pixels of a canvas on one of the page, where they are not the screen's

  // -- elements -----------------------------------------------------------------------------------------------------

  const dials = spec.dials.map((dial) => {
    const label = words.dialLabels?.[dial.name] ?? dial.label;
    return { name: dial.name, ...control(dial, label, words, (value) => turn(dial.name, value), release, panel.controls) };
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
      live.textContent = spoken(figure.read(at), words);
    },
    pin() {
      const { pin, view } = state.selection;
      const again = same(sorted(pointer), sorted(pin)) && active.id === view;
      select(again || !pointer ? { pin: null } : { pin: pointer, view: active.id });
    },
    choose: (option, name) => select({ [option]: name }),
  };
  const figures = panel.figures.map((figure) => createFigure(figure, spec, words, hear));
  const about = () =>
    host.python ? words.kit.verifyAbout : host.verify ? words.kit.unsent : words.kit.verifyNeedsKernel;
  const ask = () => {
    complain("python", "");
    if (!host.verify) return about();
    try {
      save(); // so that `params` are what was verified, also where no slider was let go
      host.verify(state);
      return "";
    } catch {
      return words.kit.unsent;
    }
  };
  const badge = createBadge(words, ask, about);
  const sharing = createSharing({
    words,
    spec,
    languages,
    source: source && template ? { text: source, template } : null,
    now: () => ({ state, data }),
    address: () => host.address?.() ?? "",
    speak: (language) => take({ ...state, language }),
  });
  const readout = createReadout(words, () => select({ pin: null }));
  const numbers = createNumbers(words, spec, figures, (view) => select({ view }), schedule);
  const live = h("div", { className: "al-unseen", "aria-live": "polite" });
  const strip = h("div", { className: "al-error", role: "alert", hidden: true });
  const root = h("div", { className: "attnlab", lang: state.language, role: "region", "aria-label": words.title },
    h("style", {}, style + (still ? `.attnlab-still-${still} { display: none; }` : "")),
    h("div", { className: "al-body" },
      h("div", { className: "al-title" },
        h("b", { role: "heading", "aria-level": 1 }, words.title), h("span", {}, words.subtitle), sharing.element),
      h("div", { className: "al-column" },
        h("fieldset", { className: "al-dials", "aria-label": words.kit.dials }, ...elements(dials)),
        badge.element),
      h("div", { className: "al-figures", role: "group", "aria-label": words.kit.pictures },
        readout.element, ...elements(figures), numbers.element)),
    strip, live);

  // -- the state ----------------------------------------------------------------------------------------------------

  function turn(name, value) {
    state = { ...state, dials: { ...state.dials, [name]: value } };
    refresh();
    if (host.python && missing(state, data, spec)) saveLater(); // what Python has to send is asked for on the way
  }

  function select(part) {
    state = { ...state, selection: { ...state.selection, ...part } };
    if (part.pin) live.textContent = words.kit.nowPinned(spoken(active.read(part.pin), words));
    else if (part.pin === null) live.textContent = words.kit.released;
    refresh();
    saveLater();
  }

  // A dial was let go: Python hears of it, and so does a screen reader.
  function release() {
    saveLater();
    announcing = true;
    schedule();
  }

  function saveLater() {
    clearTimeout(unsaved);
    unsaved = setTimeout(save, SETTLED_MS);
  }

  function save() {
    clearTimeout(unsaved);
    unsaved = 0;
    try {
      agreed = state;
      host.save?.(state, fragment(state, spec));
      complain("unsaved", "");
    } catch {
      complain("unsaved", words.kit.unsaved);
    }
  }

  // The controls follow the state, and a frame is asked for.
  function refresh() {
    const off = { ...overridden(state, words, spec), ...panel.idle?.(state, words, spec) };
    for (const dial of dials) {
      dial.set(state.dials[dial.name]);
      dial.disable(off[dial.name]);
      if (dial.name === "input") dial.offer((choice) => host.python || offered(choice, data, spec));
    }
    for (const figure of figures) figure.choose(state.selection);
    badge.follow(state.dials);
    stale = true;
    schedule();
  }

  // A state from the host, which may not have heard yet of what the reader has set meanwhile: that stays.
  function show(next) {
    if (!whole(next)) return;
    const ours = (now, before, theirs) =>
      Object.fromEntries(Object.keys(theirs).map((name) => [name, (same(now[name], before[name]) ? theirs : now)[name]]));
    const [dials, selection] = ["dials", "selection"].map((part) => ours(state[part], agreed[part], next[part]));
    agreed = next;
    take({ ...next, dials, selection });
  }

  // A state is taken whole, or not at all.
  function whole(next) {
    try {
      checked(next, spec);
      complain("state", "");
      return true;
    } catch (error) {
      complain("state", words.kit.refused(error.message));
      return false;
    }
  }

  function take(next) {
    if (same(next, state)) return;
    const rebuilt = next.language !== state.language;
    state = next;
    if (rebuilt) save();
    if (rebuilt) anew({ state, data });
    else refresh();
  }

  // -- a frame ------------------------------------------------------------------------------------------------------

  function schedule() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  }

  function draw() {
    try {
      if (stale && !missing(state, data, spec)) {
        shown = { state, data, views: kept([state.dials, data], () => compute(state, data)), spec, words };
        stale = false;
      }
      if (shown) shown.state = { ...shown.state, selection: state.selection }; // a pin moves while data are awaited
      root.classList.toggle("al-waiting", stale);
      paint();
      if (announcing && !stale) live.textContent = panel.summary?.(shown) ?? headlines();
      announcing &&= stale;
      complain("here", "");
    } catch (error) {
      complain("here", words.kit.error(error.message));
      console.error(error);
    }
  }

  function paint() {
    const at = hear.at();
    if (shown) for (const figure of figures) figure.paint(shown, at, theme, font, dots);
    const { pin, view } = state.selection;
    const chosen = figures.find(({ id }) => id === view);
    const reading = (place, first) => place && [first, ...figures].map((each) => each?.read(place)).find(Boolean);
    readout.show({
      waiting: stale && awaited(words, state, data, host.python),
      pinned: reading(pin, chosen),
      pointed: reading(pointer, active),
    });
    if (shown) numbers.show(chosen, at, reading(pointer ?? pin, pointer ? active : chosen));
    root.dataset.frames = String(Number(root.dataset.frames ?? 0) + 1);
  }

  const headlines = () => figures.map((figure) => figure.headline()).filter(Boolean).join(". ");

  // Errors of this page, of a state that came, of one that nobody took, and of Python, each until it is over.
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
    if (name !== root.dataset.theme) dress(name);
    font = `11px ${getComputedStyle(root).fontFamily || "sans-serif"}`;
    schedule();
  }

  function dress(name) {
    theme = themes[name];
    root.dataset.theme = name;
    root.style.colorScheme = name;
    root.style.setProperty("--al-cividis", cividisGradient);
    for (const [part, colour] of Object.entries(theme)) root.style.setProperty(`--al-${part}`, colour);
  }

  // Paper is white whatever the screen is; a canvas has to be painted for it before the page is taken.
  function onPaper() {
    dots = PAPER_DOTS;
    dress("light");
    draw();
  }

  function onScreen() {
    dots = undefined;
    recolour();
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
      if (event.key !== "Escape" || !state.selection.pin || event.target.matches("textarea")) return;
      event.preventDefault();
      select({ pin: null });
    },
    true,
  );
  element.append(root);
  for (const { canvas } of figures) sizes.observe(canvas);
  const unwatch = watchTheme(recolour);
  addEventListener("beforeprint", onPaper);
  addEventListener("afterprint", onScreen);
  recolour();
  refresh();
  if (refusal) complain("state", words.kit.refused(refusal));

  return {
    show,
    open(link) {
      try {
        take(fromFragment(link, spec));
        complain("state", "");
      } catch (error) {
        complain("state", words.kit.refusedLink(error.message));
      }
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
      root.remove(); // first: a field that is edited or a slider that is held tells only as it goes that it has changed
      if (unsaved) save();
      badge.cancel();
      sizes.disconnect();
      unwatch();
      removeEventListener("beforeprint", onPaper);
      removeEventListener("afterprint", onScreen);
      cancelAnimationFrame(frame); // a control that loses the focus as it goes may have asked for one more
      frame = -1; // and the table tells only later that it was opened: no more frames
      for (const part of [numbers, ...figures]) part.remove();
    },
  };
}
