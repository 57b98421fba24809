// Pictures that several mechanisms show. A picture is data for paint.js: a heatmap's cells or a chart's layers, the
// words around them, and what a number in it is called.

import { largest } from "./numbers.js";

const visible = (word) => word.replaceAll("\n", "⏎").trim() || "␣";

// The words for positions of one sequence: name("query", 3) -> query 4 “the”.
export function naming(tokens, words) {
  const name = (kind, t) => words.token(words[kind], t + 1, visible(tokens[t]));
  return {
    name,
    ends: [visible(tokens[0]), visible(tokens.at(-1))],
    known: (axis, index) => (index < tokens.length ? name(axis, index) : ""),
  };
}

// A matrix over (query, key). `max` is shared by all matrices on one scale; the square root lets small weights show
// beside large ones. Where causal, a later key has no weight to read.
export function pairMatrix({ title, caption, array, max, causal, about, named, words }) {
  const [T] = array.shape;
  return {
    title,
    caption,
    array,
    rows: T,
    columns: T,
    step: { row: T, column: 1 },
    tiles: [{ offset: 0, at: {} }],
    square: true,
    axes: { row: "query", column: "key" },
    names: { row: words.query, column: words.key },
    ends: { row: named.ends, column: named.ends },
    colours: { row: "queryText", column: "keyText" },
    scale: { max, root: true, above: largest(array) > max },
    word: named.known,
    masked: ({ query, key }) => causal && key > query && words.kit.masked,
    label: (at) => about(named.name("query", at.query), named.name("key", at.key)),
  };
}

// An axis of a chart; ticks are [value, word].
export const axis = (name, domain, ticks, log = false) => ({ name, domain, ticks, log });

// An index that lies in a list of this size, or null; a pinned one may be from other dials.
export const inside = (index, size) => (index < size ? index : null);

// A layer of words that starts at [x, y], or ends there with align = "right".
export const label = (words, at, colour, align = "left") => ({ type: "label", label: words, at, colour, align });

const raised = (number) => [...String(number)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");

export const power = (letter, exponent) => letter + raised(exponent);

// A logarithmic axis over whole decades around the numbers; zero and what is below 1e-16 stand at its foot.
export function decades(numbers, name) {
  const exponents = numbers.map((number) => Math.log10(Math.max(number, 1e-16)));
  const low = Math.floor(Math.min(...exponents));
  const high = Math.max(Math.ceil(Math.max(...exponents)), low + 1);
  const ticks = Array.from({ length: high - low + 1 }, (_, n) => [10 ** (low + n), power("10", low + n)]);
  return axis(name, [10 ** low, 10 ** high], ticks, true);
}
