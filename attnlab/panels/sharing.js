// The ways out of a panel: a link that restores its state, a call that rebuilds it in Python, a page of its own.
import { copy, h, ownKeys } from "./dom.js";
import { awaited, missing, needed } from "./inputs.js";
import { call, fragment } from "./link.js";

// Bytes of a DataView or typed array as base64, in parts that a call's arguments can hold.
function base64({ buffer, byteOffset, byteLength }) {
  const bytes = new Uint8Array(buffer, byteOffset, byteLength);
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

// The panel as one HTML file: attnlab/panels/export.py writes the same one.
export function page({ text, template }, { state, data }, spec) {
  const plain = (_, value) => (ArrayBuffer.isView(value) ? { base64: base64(value) } : value);
  const given = { link: fragment(state, spec), data: needed(state, data, spec) };
  const parts = {
    language: state.language,
    title: spec.title.replace(/[&<>]/g, (letter) => ENTITIES[letter]),
    given: JSON.stringify(given, plain).replaceAll("<", "\\u003c"),
    module: text.trimEnd(),
  };
  return template.replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);
}

// now() -> { state, data }; source = { text, template }, or null where a page cannot be made; address() of this page, or
// "" in a notebook, where a link is only what follows an address.
export function createSharing({ words, spec, languages, source, now, address, speak }) {
  const { kit } = words;
  const note = h("span", { className: "al-note", role: "status" });
  const button = (label, title, act) => {
    const made = ownKeys(h("button", { type: "button", title }, label));
    made.addEventListener("click", act);
    return made;
  };
  function say(told) {
    note.textContent = told;
    setTimeout(() => note.textContent === told && (note.textContent = ""), 6000);
  }
  function save() {
    const { state, data } = now();
    if (missing(state, data, spec)) return say(awaited(words, state, data, false));
    const url = URL.createObjectURL(new Blob([page(source, { state, data }, spec)], { type: "text/html" }));
    h("a", { href: url, download: `${spec.mechanism}.html` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    say(kit.saved(`${spec.mechanism}.html`));
  }
  const here = address();
  const buttons = [
    button(kit.copyLink, here ? kit.linkAbout : kit.linkAboutNotebook, () =>
      copy(here + fragment(now().state, spec), note, words, here ? kit.copied : kit.copiedFragment)),
    button(kit.copyPython, kit.pythonAbout, () => copy(call(now().state, spec), note, words)),
  ];
  if (source) buttons.push(button(kit.savePage, kit.saveAbout, save));
  const codes = Object.keys(languages);
  if (codes.length > 1) {
    const options = codes.map((code) => h("option", { value: code, lang: code }, languages[code].kit.language));
    const pick = ownKeys(h("select", { "aria-label": kit.languages }, ...options));
    pick.value = now().state.language;
    pick.addEventListener("change", () => speak(pick.value));
    buttons.push(pick);
  }
  return { element: h("div", { className: "al-bar al-sharing" }, note, ...buttons) };
}
