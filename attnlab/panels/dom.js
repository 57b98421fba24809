// Elements and controls.

// An element with properties (data-*, aria-* and role as attributes) and children.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Put text on the clipboard and say so in `note`; where the page may not, show the text selected, to be copied by hand.
export async function copy(text, note, { kit }, done = kit.copied) {
  const asker = note.getRootNode().activeElement;
  const forget = (told) => setTimeout(() => note.textContent === told && (note.textContent = ""), 6000);
  try {
    await navigator.clipboard.writeText(text);
    forget((note.textContent = done));
  } catch {
    const field = ownKeys(h("textarea", { readOnly: true, value: text, className: "al-byhand", "aria-label": kit.byHand }));
    note.textContent = kit.byHand;
    note.parentElement.append(field);
    field.select();
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      field.blur();
      asker?.focus();
    });
    field.addEventListener("blur", () => {
      field.remove();
      note.textContent = "";
    });
  }
}

// Fill an element with words, *letters* in italics; data never becomes markup. Untouched where the words are the same.
export function setRich(element, words) {
  if (element.dataset.words === words) return;
  element.dataset.words = words;
  const kept = words.replace(/\b(pp?|Figs?|Eqs?|Sec)\. /g, "$1.\u00a0"); // a page stays with its number
  element.replaceChildren(...kept.split("*").map((part, n) => (n % 2 ? h("i", {}, part) : part)));
}

// JupyterLab takes keys from all but text fields ("b" on a slider adds a cell). Its shortcuts listen at the document
// before the control does, and spare only a focused element that carries this attribute itself; hosts that listen later
// are stopped here.
export function ownKeys(control) {
  const keep = (own) => control.toggleAttribute("data-lm-suppress-shortcuts", own);
  const together = ({ ctrlKey, metaKey }) => ctrlKey || metaKey; // Ctrl+S is the host's, whatever has the focus
  control.addEventListener("keydown", (event) => {
    keep(!together(event));
    if (!together(event)) event.stopPropagation();
  });
  for (const type of ["keyup", "focus", "blur"]) control.addEventListener(type, (event) => keep(!together(event)));
  keep(true);
  return control;
}

const FINEST = 999; // whole numbers that a hand can still find on a slider

// One control for a dial: { element, set(value), disable({ why, instead } or undefined) }. `move(value)` is called on
// every step, `release()` when the reader lets go. `more` are makers of kinds that a panel brings itself.
export function control(dial, label, words, move, release, more) {
  const id = `attnlab-${Math.random().toString(36).slice(2)}`;
  const name = h("label", { htmlFor: id }, label, ...(dial.paper ? [" ", h("i", {}, dial.paper)] : []));
  const kind = dial.kind === "whole" && dial.high - dial.low > FINEST ? "field" : dial.kind;
  return (more?.[kind] ?? makers[kind] ?? slider)({ dial, id, label, name, words, move, release });
}

function slider({ dial, id, name, move, release }) {
  const scale = steps(dial);
  const input = ownKeys(h("input", { type: "range", id, min: 0, max: scale.count, step: 1 }));
  const shown = h("output", { htmlFor: id });
  const element = h("div", { className: "al-dial" }, name, shown, input);
  input.addEventListener("input", () => move(scale.value(Number(input.value))));
  input.addEventListener("change", release);
  return {
    element,
    set(value) {
      input.value = scale.place(value);
      shown.value = String(value);
      input.setAttribute("aria-valuetext", String(value));
      element.style.setProperty("--al-at", `${(100 * input.value) / scale.count}%`);
    },
    input,
    disable,
  };
}

// Of any control: it cannot be set while it means nothing, and shows the value in force, where there is one.
function disable(off) {
  const { element, input } = this;
  input.disabled = off !== undefined;
  element.title = input.title = off?.why ?? "";
  element.classList.toggle("al-off", input.disabled);
  if (off?.instead !== undefined) this.set(off.instead);
}

// A slider counts steps. Whole numbers: one each; a logarithmic dial: eight from each number to its double, in three
// digits; any other: a hundred, without the last digits of a sum of doubles. Both ends are the dial's own numbers.
export function steps({ kind, low, high, scale }) {
  const ends = (count, between) => (step) => (step <= 0 ? low : step >= count ? high : between(step));
  if (scale === "log") {
    const count = Math.round(8 * Math.log2(high / low));
    const value = ends(count, (step) => Number((low * 2 ** (step / 8)).toPrecision(3)));
    return { count, value, place: (number) => Math.round(8 * Math.log2(number / low)) };
  }
  const size = kind === "whole" ? 1 : (high - low) / 100;
  const count = Math.round((high - low) / size);
  const value = ends(count, (step) => Number((low + step * size).toPrecision(12)));
  return { count, value, place: (number) => Math.round((number - low) / size) };
}

const nameOf = (choice, words) => words.choices?.[choice] ?? words.kit.choices[choice] ?? choice;

const makers = {
  field({ dial: { low, high }, id, label, name, words, move, release }) {
    const input = ownKeys(h("input", { type: "number", id, min: low, max: high, step: 1 }));
    const note = h("div", { className: "al-note", role: "status" });
    const good = (value) => Number.isInteger(value) && value >= low && value <= high;
    let current = low;
    input.addEventListener("input", () => {
      note.textContent = "";
      if (input.value !== "" && good(input.valueAsNumber)) move(input.valueAsNumber);
    });
    input.addEventListener("change", () => {
      const typed = input.valueAsNumber; // NaN where it is no number
      if (!good(typed)) {
        const used = Number.isNaN(typed) ? current : Math.round(Math.min(Math.max(typed, low), high));
        move(used);
        input.value = used; // also where the state has not moved
        note.textContent = words.kit.outside(label, low, high, Number.isNaN(typed) ? words.kit.nothing : typed, used);
      }
      release();
    });
    return {
      element: h("div", { className: "al-dial" }, name, input, note),
      input,
      set(value) {
        if (value !== current) note.textContent = "";
        current = value;
        if (input.valueAsNumber !== value) input.value = value;
      },
      disable,
    };
  },
  switch({ id, name, move, release }) {
    const input = ownKeys(h("input", { type: "checkbox", id }));
    input.addEventListener("change", () => {
      move(input.checked);
      release();
    });
    const element = h("div", { className: "al-switch" }, input, name);
    return { element, input, set: (value) => (input.checked = value), disable };
  },
  choice({ dial, id, name, words, move, release }) {
    const options = dial.choices.map((choice) => h("option", { value: choice }, nameOf(choice, words)));
    const input = ownKeys(h("select", { id }, ...options));
    input.addEventListener("change", () => {
      move(input.value);
      release();
    });
    const note = h("div", { className: "al-note" });
    return {
      element: h("div", { className: "al-dial" }, name, input, note),
      input,
      set: (value) => (input.value = value),
      disable,
      offer(can) {
        for (const option of options) option.disabled = !can(option.value);
        note.textContent = options.some((option) => option.disabled) ? words.kit.notOffered : "";
      },
    };
  },
};

// Buttons of which one is pressed: { element, set(option) }.
export function choices(words, options, choose) {
  const buttons = options.map((option) => ownKeys(h("button", { type: "button" }, words[option])));
  buttons.forEach((button, n) => button.addEventListener("click", () => choose(options[n])));
  return {
    element: h("span", { className: "al-choices", role: "group", "aria-label": words.label }, ...buttons),
    set: (option) => buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(options[n] === option))),
  };
}
