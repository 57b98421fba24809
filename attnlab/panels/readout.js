// Numbers to read off. The readout: what is pinned, what is pointed at, and the sum each comes from, in three lines that
// never change their height. Below the pictures, opened on demand: the same number with all its digits, and a table of
// the chosen view for a screen reader, a spreadsheet or a doubt.
//
//     reading = { label, value, masked, sum, dtype }, of which a token alone has only the label
import { copy, h, ownKeys } from "./dom.js";
import { short } from "./numbers.js";

const plain = (words) => words.replaceAll("*", "");

// What stands where a number would, if there is none.
export const instead = ({ masked, value }, { kit }) => masked ?? (Number.isNaN(value) ? kit.notNumber : undefined);

function shortly(reading, words) {
  return instead(reading, words) ?? (reading.value === undefined ? "" : `= ${short(reading.value)}`);
}

// A reading with all its digits, as it is spoken and copied.
export function spoken(reading, words) {
  if (!reading) return "";
  const { label, value, sum, dtype = words.kit.dtype } = reading;
  const none = instead(reading, words);
  if (none) return `${label}: ${none}`;
  if (value === undefined) return label;
  return `${label} = ${value} (${dtype})${sum ? `; ${plain(sum)}` : ""}`;
}

export function createReadout(words, release) {
  const mark = ownKeys(h("button", { type: "button", hidden: true }, words.kit.pinned));
  mark.addEventListener("click", release);
  const line = (...marks) => {
    const [label, value] = [h("span"), h("b")];
    const element = h("p", {}, label, value, ...marks);
    return (text, number = "", title = "") => {
      if (label.textContent !== text) label.textContent = text;
      if (value.textContent !== number) value.textContent = number;
      element.title = title;
      return element;
    };
  };
  const [first, from, second] = [line(mark), line(), line()];
  const read = (write, reading) => write(reading.label, shortly(reading, words), spoken(reading, words));
  return {
    element: h("div", { className: "al-readout" }, first(""), from(""), second("")),
    show({ waiting, pinned, pointed }) {
      const top = pinned ?? pointed;
      mark.hidden = !pinned;
      if (waiting) first(waiting);
      else if (top) read(first, top);
      else first(`${words.kit.hint} ${words.kit.hintPin}`);
      from(waiting || !top?.sum ? "" : plain(top.sum), "", top?.sum ? plain(top.sum) : "");
      if (waiting || !top) second("");
      else if (!pinned) second(words.kit.hintPin);
      else if (pointed) read(second, pointed);
      else second(words.kit.hintPinned);
    },
  };
}

const MOST = 32; // rows and columns of a table that is read cell by cell; the rest is copied

// The part of `size` numbers that is shown, around the one in focus.
function part(size, focus = 0, most = MOST) {
  const from = Math.max(0, Math.min(Math.min(focus, size - 1) - MOST / 2, size - most));
  return { from, to: Math.min(from + most, size) };
}

// figure.table(at) = { rows, columns, beside, corner, row(r), column(c), value(r, c), focus: { row, column } }, the last
// `beside` columns being numbers beside the rows
export function createNumbers(words, spec, figures, choose, opened) {
  const { kit } = words;
  const option = ({ id }) => h("option", { value: id }, plain(words.views?.[id] ?? words[id].title));
  const pick = ownKeys(h("select", { "aria-label": kit.tableOf }, ...figures.map(option)));
  const exact = h("p", { className: "al-exact" });
  const copyNumber = ownKeys(h("button", { type: "button", disabled: true }, kit.copyNumber));
  const copyTable = ownKeys(h("button", { type: "button", disabled: true }, kit.copyTable));
  const done = h("span", { className: "al-note", role: "status" });
  const box = ownKeys(h("div", { className: "al-table", tabIndex: 0, role: "region", "aria-label": kit.table }));
  const bar = h("div", { className: "al-bar" }, pick, copyNumber, copyTable, done);
  const element = h("details", { className: "al-numbers" }, ownKeys(h("summary", {}, kit.numbers)), exact, bar, box);
  pick.addEventListener("change", () => choose(pick.value));
  element.addEventListener("toggle", opened);
  let place = {}; // the coordinates in focus
  let number = null; // the reading there
  let waiting = 0;
  // of the view that is chosen now, also where the table on the page has yet to follow
  const table = () => figures.find(({ id }) => id === pick.value).table(place);
  copyNumber.addEventListener("click", () => copy(spoken(number, words), done, words));
  copyTable.addEventListener("click", () => copy(text(table()), done, words));

  function text({ rows, columns, corner, row, column, value }) {
    const across = Array.from({ length: columns }, (_, c) => c);
    const lines = [[corner, ...across.map(column)]];
    for (let r = 0; r < rows; r++) lines.push([row(r), ...across.map((c) => value(r, c))]);
    return lines.map((line) => line.map((cell) => String(cell).replace(/\s+/g, " ")).join("\t")).join("\n");
  }

  function build({ rows, columns, beside = 0, corner, row, column, value, focus, title }) {
    const [down, right] = [part(rows, focus.row), part(columns, focus.column, MOST + beside)];
    const across = Array.from({ length: right.to - right.from }, (_, n) => right.from + n);
    const head = h("tr", {}, h("th", { scope: "col" }, corner), ...across.map((c) => h("th", { scope: "col" }, column(c))));
    const body = Array.from({ length: down.to - down.from }, (_, n) => {
      const r = down.from + n;
      const cells = across.map((c) => {
        const here = r === focus.row && (columns === 1 || c === focus.column);
        const number = value(r, c);
        const full = Number.isNaN(number) ? kit.notNumber : String(number);
        const shown = Number.isFinite(number) ? short(number, 6) : full;
        const marks = here && { className: "al-here", ariaCurrent: "true" };
        return h("td", { title: full, ...(shown !== full && { "aria-label": full }), ...marks }, shown);
      });
      return h("tr", {}, h("th", { scope: "row" }, row(r)), ...cells);
    });
    const all = rows <= MOST && columns <= MOST + beside;
    const caption = all ? title : kit.partOf(title, [down.from + 1, down.to, rows], [right.from + 1, right.to, columns]);
    return h("table", {}, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, ...body));
  }

  // Scroll the table, and not the page, until the number in focus stands clear of the headings.
  function seek(cell) {
    if (!cell) return;
    const parts = [box, cell, box.querySelector("thead"), cell.parentElement.firstChild];
    const [frame, place, above, beside] = parts.map((part) => part.getBoundingClientRect());
    const past = (from, to, low, high) => Math.min(from - low, 0) + Math.max(to - high, 0);
    box.scrollLeft += past(place.left, place.right, frame.left + beside.width, frame.left + box.clientWidth);
    box.scrollTop += past(place.top, place.bottom, frame.top + above.height, frame.top + box.clientHeight);
  }

  return {
    element,
    // Costs nothing while closed; while a dial moves the table follows when the hand rests.
    show(figure, at, reading) {
      pick.value = figure.id;
      [place, number] = [at, reading];
      [copyNumber.disabled, copyTable.disabled] = [!number, !table()];
      if (!element.open) return;
      exact.textContent = spoken(number, words) || kit.hint;
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        const whole = table();
        if (whole) box.replaceChildren(build(whole));
        seek(box.querySelector(".al-here"));
      }, 60);
    },
    remove: () => clearTimeout(waiting),
  };
}
