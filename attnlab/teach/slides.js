// The deck: one slide at a time, its scenes by the keyboard, its panel live. It stands behind the panel's module, whose
// `mount` it uses, and in a block of its own. On a small screen the slides stay one under another.
const KEYS = [
  ["Right, Space, Page Down", "next scene, then next slide"],
  ["Left, Page Up", "back"],
  ["Home, End", "first and last slide"],
  ["a number, Enter", "go to that slide"],
  ["n", "speaker's window: notes, what comes next, time"],
  ["w", "the whole panel, or what the slide is about"],
  ["Tab, Esc", "into the panel, and back to the slides"],
  ["b", "blank the screen"],
  ["f", "full screen"],
  ["t", "light or dark"],
  ["l", "all slides one under another"],
  ["p", "print"],
  ["Shift+N", "notes under the slides, also on paper"],
  ["?", "these keys"],
];
const LEAST = 165; // pixels of a picture's width, below which words become smaller instead
const SIZES = [0.62, 0.56, 0.5, 0.44]; // of a panel's words, in those of the slides
const LETTERS = [1.2, 1.1, 1, 0.9, 0.8, 0.7]; // of a slide of words
const WIDE = 184; // pixels of a wide picture's height in the panel
const WORDS = 14; // pixels of a panel's words
const GAP = 18; // between two pictures

const revived = (_, value) =>
  value?.base64 === undefined ? value : Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
const { slides: given, data, dials } = JSON.parse(document.querySelector("#attnlab-given").textContent, revived);
const root = document.documentElement;
const roomy = matchMedia("(min-width: 700px) and (min-height: 420px)");
const dark = matchMedia("(prefers-color-scheme: dark)");

function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Words of the page in another place of it, or of the speaker's window: elements lend their contents, texts stand as they are.
const copy = (target, ...parts) =>
  target.replaceChildren(...parts.flatMap((part) =>
    typeof part === "string" ? [part] : [...part.childNodes].map((node) => target.ownerDocument.importNode(node, true))));
const sentence = ({ section }, k) => section.querySelectorAll(".scenes > li")[k];

// -- a slide ----------------------------------------------------------------------------------------------------------

const slides = [...document.querySelectorAll("main > section")].map((section, n) => {
  const { scenes = [], dials: named = [], figures = [] } = given[n];
  const slide = { section, scenes, named, figures, n, scene: 0, view: null, fitted: "" };
  if (!scenes.length) return slide;
  slide.host = section.querySelector(".panel");
  slide.sentence = h("p", { "aria-live": "polite" });
  slide.steps = scenes.map((_, k) =>
    h("button", { type: "button", onclick: () => show(slide, k), "aria-label": `Scene ${k + 1} of ${scenes.length}` }, `${k + 1}`));
  const whole = h("button", { type: "button", "aria-pressed": "false", onclick: () => widen(slide) }, "whole panel");
  slide.whole = whole;
  const steps = h("div", { className: "steps", role: "group", "aria-label": "Scenes" }, ...(scenes.length > 1 ? slide.steps : []), whole);
  section.querySelector(".said").append(h("div", { className: "telling" }, slide.sentence, steps));
  slide.host.addEventListener("focusin", () => (escape.hidden = !decked()));
  slide.host.addEventListener("focusout", () => (escape.hidden = true));
  // a panel lets go of its pin first; what Escape is left with then gives the keys back
  slide.host.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && decked()) setTimeout(() => event.defaultPrevented || section.focus({ preventScroll: true }));
  }, true);
  return slide;
});

// The panel in this scene's state; it is made when it is first seen.
function show(slide, k) {
  slide.scene = k;
  const { host, scenes } = slide;
  const { link, view, data: place } = scenes[k];
  copy(slide.sentence, sentence(slide, k));
  slide.steps.forEach((step, at) => step.setAttribute("aria-current", String(at === k)));
  if (!slide.view) {
    slide.place = scenes.find((scene) => scene.data !== null)?.data ?? null;
    slide.view = mount(host, slide.place === null ? {} : { data: data[slide.place] });
    spare(host.querySelectorAll(".al-dials > *"), slide.named, dials);
    const pictures = [...host.querySelectorAll("figure")];
    spare(pictures, slide.figures, pictures.map((figure) => figure.dataset.figure));
    host.classList.toggle("several", slide.figures.length > 1);
  }
  for (const figure of host.querySelectorAll("figure")) figure.classList.toggle("meant", figure.dataset.figure === view);
  if (place !== null && slide.place !== place) slide.view.give(data[(slide.place = place)]);
  slide.view.open(link);
  settle(slide);
  tell();
}

// What a slide is not about stands aside, until the whole panel is asked for.
function spare(parts, about, names) {
  const meant = about.filter((name) => names.includes(name));
  parts.forEach((part, at) => part.classList.toggle("spare", meant.length > 0 && !meant.includes(names[at])));
}

function widen(slide) {
  const wide = slide.host.classList.toggle("whole");
  slide.whole.setAttribute("aria-pressed", String(wide));
  settle(slide);
}

// Once the panel is painted its captions stand, and its size can be seen. Another scene's may be longer.
function settle(slide) {
  const { host } = slide;
  const titled = (figure) => !figure.offsetParent || figure.querySelector(".al-head b").textContent;
  const painted = () => [...host.querySelectorAll("figure")].every(titled);
  const soon = () =>
    requestAnimationFrame(() => {
      if (!decked() || slide !== now) return;
      if (!painted()) return soon();
      fit(slide);
      host.classList.add("fitted");
    });
  soon();
}

// Panels paint as many dots as the screen has for a pixel of theirs, which here is enlarged.
const real = Object.getOwnPropertyDescriptor(globalThis, "devicePixelRatio").get;
const zoomed = () => Number(now?.host?.querySelector(".attnlab")?.style.getPropertyValue("--zoom")) || 1;
Object.defineProperty(globalThis, "devicePixelRatio", { configurable: true, get: () => real.call(globalThis) * (decked() ? zoomed() : 1) });

// As large as the room allows: the words of a panel have a size, the pictures fill what is left, beside the text or
// under it. Where even the smallest words leave pictures too small, the panel scrolls.
function fit(slide) {
  const { host, section } = slide;
  const key = [innerWidth, innerHeight, host.classList.contains("whole")].join();
  if (slide.fitted === key && host.scrollHeight <= host.clientHeight + 1) return;
  slide.fitted = key;
  const rem = parseFloat(getComputedStyle(root).fontSize);
  const panel = host.querySelector(".attnlab");
  const grid = host.querySelector(".al-figures");
  const thirds = [...host.querySelectorAll("figure.al-third")].filter((figure) => figure.offsetParent);
  const choices = new Set([1, 2, 3].map((rows) => Math.ceil(thirds.length / rows)));
  let best = null;
  const wide = [...host.querySelectorAll("figure.al-wide")].filter((figure) => figure.offsetParent);
  panel.style.removeProperty("--wide");
  const put = ({ zoom, beside, columns, width }) => {
    section.classList.toggle("beside", beside);
    panel.style.setProperty("--zoom", zoom);
    lay(grid, thirds, columns, width);
  };
  host.classList.remove("scrolls");
  for (const size of SIZES) {
    const zoom = (size * rem) / WORDS;
    for (const beside of [false, true]) {
      put({ zoom, beside, columns: 1, width: LEAST });
      if (beside && crowded(section)) continue;
      for (const columns of choices) {
        put({ zoom, beside, columns, width: LEAST });
        const width = widest(host, panel, grid, thirds, columns, zoom);
        const seen = width * zoom;
        if (width && !(seen <= best?.seen)) best = { seen, zoom, beside, columns, width };
      }
    }
    if (best) break;
  }
  host.classList.toggle("scrolls", !best);
  put(best ?? { zoom: (SIZES.at(-1) * rem) / WORDS, beside: false, columns: Math.max(...choices), width: LEAST });
  if (!best || thirds.length || !wide.length) return;
  const more = (host.clientHeight / best.zoom - 4 - panel.offsetHeight) / wide.length;
  panel.style.setProperty("--wide", `${Math.min(WIDE + more, 2.4 * WIDE)}px`);
}

// Does the text overflow its column?
function crowded(section) {
  const parts = [section.querySelector(".said"), ...section.querySelectorAll(".body .math, .body .wide")];
  return parts.some((part) => part.scrollWidth > part.clientWidth + 1 && part.clientWidth) || parts[0].scrollHeight > parts[0].clientHeight + 1;
}

// A slide of words has the largest letters with which it fits.
function enlarge({ section }) {
  const [body, stage] = [section.querySelector(".body"), section.querySelector(".stage")];
  const wide = [...section.querySelectorAll(".math.block, .wide")];
  for (const size of LETTERS) {
    body.style.fontSize = `${size}rem`;
    if (stage.scrollHeight <= stage.clientHeight + 1 && wide.every((part) => part.scrollWidth <= part.clientWidth + 1)) return;
  }
}

function lay(grid, thirds, columns, width) {
  grid.style.gridTemplateColumns = thirds.length ? `repeat(${columns}, minmax(0, ${Math.floor(width)}px)) minmax(0, 1fr)` : "";
  thirds.forEach((figure, n) => (figure.style.gridColumn = (n % columns) + 1));
}

// The largest width of a picture, LEAST at least, with which so many columns fit into the host; 0 where none does.
function widest(host, panel, grid, thirds, columns, zoom) {
  const room = host.clientHeight / zoom - 2;
  if (panel.offsetHeight > room) return 0;
  if (!thirds.length) return panel.offsetWidth;
  const most = (grid.clientWidth - GAP * columns) / columns;
  if (most < LEAST) return 0;
  const fits = (width) => {
    lay(grid, thirds, columns, width);
    return panel.offsetHeight <= room;
  };
  if (fits(most)) return most;
  let [low, high] = [LEAST, most];
  for (let step = 0; step < 6; step++) {
    const middle = (low + high) / 2;
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}

// -- where we are -----------------------------------------------------------------------------------------------------

let now = slides[0];
const decked = () => root.classList.contains("deck");

function go(n, scene = 0) {
  const next = slides[Math.min(Math.max(n, 0), slides.length - 1)];
  const moved = next !== now;
  now = next;
  for (const { section } of slides) section.classList.toggle("now", section === now.section);
  try {
    if (moved || location.hash) history.replaceState(null, "", `#${now.section.id}`);
  } catch {
    // a browser that counts such calls
  }
  if (now.scenes.length) show(now, scene < 0 ? now.scenes.length - 1 : scene);
  else if (decked()) enlarge(now);
  if (!decked()) now.section.scrollIntoView();
  else if (moved) now.section.focus({ preventScroll: true });
  counter.textContent = `${now.n + 1} / ${slides.length}`;
  tell();
}

function forward() {
  if (now.scene + 1 < now.scenes.length) show(now, now.scene + 1);
  else if (now.n + 1 < slides.length) go(now.n + 1);
}

function back() {
  if (now.scene > 0) show(now, now.scene - 1);
  else if (now.n > 0) go(now.n - 1, -1);
}

// A slide by its own name, or by its number.
function follow() {
  const name = location.hash.slice(1); // names here need no decoding
  const number = /^slide-(\d+)$/.exec(name)?.[1];
  const at = number ? Number(number) - 1 : slides.findIndex(({ section }) => section.id === name);
  if (at >= 0) go(at);
}

function arrange() {
  const deck = roomy.matches && !listed;
  root.classList.toggle("deck", deck);
  for (const { section } of slides) section.classList.toggle("now", section === now.section);
  if (deck && now.view) settle(now);
  else if (deck) enlarge(now);
  else for (const { host, section } of slides) plain(host, section);
  if (deck) scrollTo(0, 0);
  else for (const { section, scenes } of slides) if (scenes.length) near.observe(section);
}

// A panel among slides one under another has its own arrangement.
function plain(host, section) {
  section.querySelector(".body").style.fontSize = "";
  if (!host?.querySelector(".attnlab")) return;
  host.querySelector(".al-figures").style.gridTemplateColumns = "";
  for (const figure of host.querySelectorAll("figure")) figure.style.gridColumn = "";
}

const near = new IntersectionObserver((entries) => {
  if (decked()) return;
  for (const { target, isIntersecting } of entries) {
    const slide = slides.find(({ section }) => section === target);
    if (isIntersecting && !slide.view) show(slide, 0);
  }
}, { rootMargin: "300px" });

// -- keys and fingers -------------------------------------------------------------------------------------------------

let listed = false;
let typed = "";

function theme() {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
}

function say(words) {
  told.textContent = words;
  setTimeout(() => told.textContent === words && (told.textContent = ""), 5000);
}

function fullScreen() {
  if (document.fullscreenElement) document.exitFullscreen();
  else root.requestFullscreen?.().catch(() => say("This browser does not allow full screen here."));
}

const acts = {
  ArrowRight: forward,
  PageDown: forward,
  " ": forward,
  ArrowLeft: back,
  PageUp: back,
  Home: () => go(0),
  End: () => go(slides.length - 1),
  b: () => (blank.hidden = false),
  f: fullScreen,
  n: () => speaker(),
  N: () => root.classList.toggle("with-notes"),
  p: () => print(),
  t: theme,
  w: () => now.view && widen(now),
  l() {
    listed = !listed;
    arrange();
    if (!decked()) now.section.scrollIntoView();
  },
  "?": () => help.showModal(),
};

function pressed(event) {
  const { key, target } = event;
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (!blank.hidden) {
    blank.hidden = true;
    return event.preventDefault();
  }
  if (target.closest?.(".panel, input, select, textarea")) return;
  if (key === "Enter" && typed) {
    const number = Number(typed);
    typed = "";
    go(number - 1);
    return event.preventDefault();
  }
  if (/^\d$/.test(key)) {
    typed = (typed + key).slice(-3);
    counter.textContent = `go to ${typed}`;
    return event.preventDefault();
  }
  if (typed) {
    typed = "";
    counter.textContent = `${now.n + 1} / ${slides.length}`;
  }
  if (key === " " && target.closest?.("button, a, summary")) return;
  const scrolls = !decked() && [" ", "PageDown", "PageUp", "Home", "End"].includes(key);
  const act = Object.hasOwn(acts, key) && !scrolls ? acts[key] : null;
  if (!act) return;
  event.preventDefault();
  if (key === " " && event.shiftKey) back();
  else act();
}

let finger = null;
function touched({ changedTouches: [{ clientX, clientY }], target }) {
  finger = target.closest(".panel, .wide, button, a") ? null : { clientX, clientY };
}
function lifted({ changedTouches: [{ clientX, clientY }] }) {
  if (!finger || !decked()) return;
  const [across, down] = [clientX - finger.clientX, clientY - finger.clientY];
  if (Math.abs(across) > 60 && Math.abs(down) < Math.abs(across) / 2) (across < 0 ? forward : back)();
}

// -- the speaker's window ---------------------------------------------------------------------------------------------

const NOTES = `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Speaker's notes</title><style>
:root { color-scheme: light dark; }
body { margin: 0; padding: 18px 22px; font: 18px/1.5 system-ui, sans-serif; background: Canvas; color: CanvasText; }
header { display: flex; gap: 20px; align-items: baseline; font-variant-numeric: tabular-nums; }
#time { font-size: 2em; font-weight: 600; }
h1 { margin: 12px 0 4px; font-size: 1.25em; }
#say { margin: 8px 0; padding-left: 12px; border-left: 4px solid #0072b2; font-weight: 600; }
#next { margin: 16px 0; padding-top: 10px; border-top: 1px solid GrayText; }
button { font: inherit; padding: 2px 14px; }
</style></head><body><header><span id="time">0:00</span><span id="place"></span><button id="back">Back</button><button id="on">Next</button>
<button id="zero">Time to zero</button></header><h1 id="title"></h1><p id="say"></p><div id="notes"></div><div id="next"><p id="scene"></p><p id="slide"></p></div></body></html>`;
let notes = null;
let began = Date.now();

function speaker() {
  if (notes && !notes.closed) return notes.focus();
  notes = window.open("", "attnlab-notes", "width=900,height=700");
  if (!notes) return say("The browser blocked the second window: allow pop-ups for this page, then press n again.");
  notes.document.open();
  notes.document.write(NOTES);
  notes.document.close();
  const part = (id) => notes.document.getElementById(id);
  part("back").onclick = back;
  part("on").onclick = forward;
  part("zero").onclick = () => (began = Date.now());
  notes.document.addEventListener("keydown", (event) => {
    if (["b", "t", "w", "l", "p", "f", "n", "?"].includes(event.key)) return; // these belong to the screen
    pressed(event);
  });
  tell();
}

function tell() {
  if (!notes || notes.closed) return;
  const part = (id) => notes.document.getElementById(id);
  const title = ({ section }) => section.querySelector("h1, h2");
  const { scenes, scene, section, n } = now;
  part("place").textContent = `slide ${n + 1} of ${slides.length}${scenes.length > 1 ? `, scene ${scene + 1} of ${scenes.length}` : ""}`;
  copy(part("title"), title(now));
  copy(part("say"), ...(scenes.length ? [sentence(now, scene)] : []));
  part("say").hidden = !scenes.length;
  copy(part("notes"), section.querySelector(".notes"));
  copy(part("scene"), ...(scene + 1 < scenes.length ? ["Next scene: ", sentence(now, scene + 1)] : []));
  copy(part("slide"), ...(n + 1 < slides.length ? ["Next slide: ", title(slides[n + 1])] : ["The last slide"]));
}

setInterval(() => {
  if (!notes || notes.closed) return;
  const seconds = Math.floor((Date.now() - began) / 1000);
  notes.document.getElementById("time").textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}, 500);

// -- the page ---------------------------------------------------------------------------------------------------------

const button = (label, says, onclick) => h("button", { type: "button", "aria-label": says, title: says, onclick }, label);
const counter = h("output", { "aria-label": "Slide" });
const bar = h("nav", { className: "bar", "aria-label": "Slides" },
  button("Notes", "Speaker's window (n)", () => speaker()),
  button("Keys", "Keys (?)", () => help.showModal()),
  button("‹", "Back", back), counter, button("›", "Next", forward));
bar.addEventListener("pointerdown", (event) => event.target.closest("button") && event.preventDefault()); // Space stays the deck's
const blank = h("div", { className: "blank", hidden: true, onclick: () => (blank.hidden = true) });
const told = h("div", { className: "told", role: "status" });
const escape = h("div", { className: "escape", hidden: true }, "Esc gives the keys back to the slides");
const help = h("dialog", { "aria-label": "Keys" },
  h("dl", {}, ...KEYS.flatMap(([key, says]) => [h("dt", {}, key), h("dd", {}, says)])),
  h("form", { method: "dialog" }, h("button", {}, "Close")));
document.body.append(bar, blank, told, escape, help);

root.classList.add("live");
if (/[?&]notes\b/.test(location.search)) root.classList.add("with-notes");
root.dataset.theme = dark.matches ? "dark" : "light";
dark.addEventListener("change", () => (root.dataset.theme = dark.matches ? "dark" : "light"));
roomy.addEventListener("change", arrange);
addEventListener("resize", () => (now.view ? settle(now) : decked() && enlarge(now)));
addEventListener("hashchange", follow);
addEventListener("keydown", pressed);
addEventListener("touchstart", touched, { passive: true });
addEventListener("touchend", lifted, { passive: true });
addEventListener("pagehide", () => notes?.close());
arrange();
if (location.hash.length > 1) follow();
else if (decked()) go(0);
counter.textContent = `${now.n + 1} / ${slides.length}`;
