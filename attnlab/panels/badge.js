// The verify button and what it found: one entry for every implementation, also for those that did not run.
import { h, ownKeys } from "./dom.js";
import { short } from "./numbers.js";

const small = (number) =>
  number === 0 || typeof number !== "number" ? String(number) : number.toExponential(1).replace("-", "−");

const PATIENCE_MS = 30_000; // a first run may compile; a kernel that is gone never says so
const INTERPRETING_MS = 90_000; // Python gives up before

// `ask()` sends the question and returns "", or the sentence why nobody hears it; `about()` is what stands there at rest.
export function createBadge(words, ask, about) {
  const button = ownKeys(h("button", { type: "button" }, words.kit.verify));
  const note = h("div", { className: "al-note", role: "status" }, about());
  const list = h("div", { role: "list", hidden: true });
  const element = h("div", { className: "al-verify" }, h("div", {}, button), note, list);
  let report = null;
  let patience = 0;

  function wait(time) {
    clearTimeout(patience);
    button.disabled = true;
    note.textContent = words.kit.verifying;
    patience = setTimeout(release, time, words.kit.noAnswer);
  }
  function release(why = about()) {
    clearTimeout(patience);
    button.disabled = false;
    note.textContent = why;
  }
  button.addEventListener("click", () => {
    const unheard = ask();
    if (unheard) release(unheard);
    else wait(PATIENCE_MS);
  });

  function entry(row) {
    const [mark, className, lines] = verdict(row);
    const head = h("div", { className: "al-impl" }, h("b", {}, row.impl), h("span", { className }, mark));
    const table = row.table?.length ? [compiled(row.table)] : [];
    return h("div", { role: "listitem" }, head, ...lines.map((line) => h("div", {}, line)), ...table);
  }

  // What the kernels compile to, a column for each GPU: Python's numbers under the kit's words.
  function compiled(targets) {
    const lines = Object.entries(words.kit.compiled).map(([name, title], r) => {
      const cells = targets.map((target) => (r ? h("td", {}, target[name]) : h("th", { scope: "col" }, target[name])));
      return h("tr", {}, h("th", { scope: "row" }, title), ...cells);
    });
    return h("details", {}, ownKeys(h("summary", {}, words.kit.compileTable)), h("table", {}, ...lines));
  }

  function verdict(row) {
    if (row.ran === null) return [words.kit.interpreting, "", []];
    if (row.ran !== true) return [`– ${words.kit.notRun}`, "", [row.why_not]];
    if (row.max_rel === null) return [`✗ ${words.kit.failed}`, "al-no", [row.reason]]; // it ran into an exception
    const against = row.max_rel <= row.tolerance ? "≤" : ">";
    const lines = [
      words.kit.maxError(small(row.max_abs)),
      words.kit.relative(`${small(row.max_rel)} ${against} ${small(row.tolerance)}`),
      row.evidence || words.kit.took(short(row.time_ms, 3), row.device),
    ];
    return row.ok === true
      ? [`✓ ${words.kit.agrees}`, "al-yes", lines]
      : [`✗ ${words.kit.differs}`, "al-no", [row.reason, ...lines]];
  }

  return {
    element,
    release,
    cancel: () => clearTimeout(patience),
    // A report holds for the dials it was made for; with others on the screen it is marked as old.
    follow(dials) {
      const current = !report || Object.entries(dials).every(([name, value]) => String(report.dials[name]) === String(value));
      element.classList.toggle("al-stale", !current);
      if (!button.disabled) note.textContent = current ? about() : words.kit.stale;
    },
    show(next) {
      report = next;
      if (report?.rows.some(({ ran }) => ran === null)) wait(INTERPRETING_MS);
      else if (report) release();
      list.replaceChildren(...(report?.rows ?? []).map(entry));
      list.hidden = !list.children.length;
    },
  };
}
