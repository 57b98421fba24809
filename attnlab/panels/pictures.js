// Pictures that several mechanisms show. A picture is data for paint.js: a heatmap's cells or a chart's layers, the
// words around them, and what a number in it is called.

import { tokenNames } from "./inputs.js";
import { largest, least, short } from "./numbers.js";

const visible = (word) => word.replaceAll("\n", "⏎").trim() || "␣";

// The words for positions of one sequence: name("query", 3) -> query 4 “the”.
export function naming(tokens, words) {
  const name = (kind, t) => words.kit.token(words.kit[kind], t + 1, visible(tokens[t]));
  return {
    name,
    ends: [visible(tokens[0]), visible(tokens.at(-1))],
    known: (axis, index) => (index < tokens.length ? name(axis, index) : ""),
  };
}

export const nameTokens = ({ state, data, spec, words }) => naming(tokenNames(state, data, spec), words);

// A matrix over (query, key). `max` is shared by all matrices on one scale, and the highest weight of this one where it
// is not given; numbers of both signs have a `min` too. The square root lets small weights show beside large ones.
// Where causal, a later key has no weight to read. about(query, key) names a number, sum({ query, key }) says what it was
// added up from, edges(at) who belongs to what is in focus elsewhere.
export function pairMatrix({ title, caption, source, array, causal, sum, edges, named, words, ...given }) {
  const { min = 0, max = highestWeight(array, causal), root = true, about = words.kit.weight } = given;
  const [T] = array.shape;
  return {
    title,
    caption,
    source,
    array,
    sum,
    edges,
    rows: T,
    columns: T,
    step: { row: T, column: 1 },
    tiles: [{ offset: 0, at: {} }],
    square: true,
    axes: { row: "query", column: "key" },
    names: { row: words.kit.query, column: words.kit.key },
    ends: { row: named.ends, column: named.ends },
    colours: { row: "queryText", column: "keyText" },
    scale: { min, max, root, above: largest(array) > max, below: least(array) < min },
    word: named.known,
    masked: ({ query, key }) => causal && key > query && words.kit.masked,
    label: (at) => about(named.name("query", at.query), named.name("key", at.key)),
  };
}

// The largest weight that says something: where causal, the first query has one key, and its weight is 1.
const highestWeight = (weights, causal) => largest(causal ? weights.subarray(weights.shape[1]) : weights);

// What a softmax weight comes from, in words. logits [T, T]
export function softmaxSum(logits, { query, key }, causal, words) {
  const [T] = logits.shape;
  const row = logits.subarray(query * T, query * T + (causal ? query + 1 : T));
  const top = Math.max(...row);
  const total = row.reduce((sum, logit) => sum + Math.exp(logit - top), 0);
  return words.kit.softmax(short(row[key]), short(top), short(total), row.length);
}

// An axis of a chart; ticks are [value, word].
export const axis = (name, domain, ticks, log = false) => ({ name, domain, ticks, log });

// An index that lies in a list of this size, as a list of its own; a pinned one may be from other dials.
export const found = (index, size) => (index < size ? [index] : []);

// A chart of one number at each place 1, 2, ... (a token, a count), and dashed the numbers that it is held against.
// words = { title, caption, source, x, y, against }. `along` is the name that a pin gives to a place (a colour too where
// none is given), `keep` what stays in focus while one walks along; label(i) names a number, sum(i) says where it comes
// from. Whatever else is given replaces that part of the picture.
export function series(words, given) {
  const { along, keep, array, against, colour = along, bars, logX, logY, y = words.y, label, sum, ...more } = given;
  const size = array.length;
  const places = Array.from(array, (_, i) => i + 1);
  const highest = Math.max(largest(array), largest(against));
  const top = logY ? highest : 2 ** Math.ceil(Math.log2(highest) - 1e-9); // a sum of 1 may have rounded to more
  const quadrupled = (last) => [1, 4, 16, 64].filter((n) => n < last / 2).concat(last);
  const up = logY ? quadrupled(top) : [0, top / 2, top];
  const right = logX ? quadrupled(size) : [1, Math.round(size / 2), size];
  const ticks = (values) => values.map((n) => [n, n > 0 && n < 1 ? `1/${1 / n}` : String(n)]);
  const bar = (i) => ({ type: "box", x: [i + 0.6, i + 1.4], y: [0, array[i]], colour, alpha: 1 });
  const line = { type: "line", x: places, y: array, colour, width: 2, dots: size > 64 ? 0 : 2 };
  return {
    title: words.title,
    caption: words.caption,
    source: words.source,
    x: axis(words.x, logX ? [1, size] : [0.5, size + 0.5], ticks(right), logX),
    y: axis(y, [up[0], top], ticks(up), logY),
    layers: [
      ...(bars ? Array.from(array, (_, i) => bar(i)) : [line]),
      { type: "line", x: places, y: against, colour: "ink", width: 1.2, dash: [4, 3] },
    ],
    marks: [
      { x: places, y: array, column: true, at: (i) => ({ ...keep, [along]: i }), find: (at) => found(at[along], size) },
    ],
    walk: { axis: along, size, keep },
    columns: [
      { name: words.x, array: places },
      { name: y, array },
      { name: words.against, array: against },
    ],
    read({ [along]: i }) {
      return i < size ? { label: label(i), value: array[i], sum: sum(i) } : null;
    },
    ...more,
  };
}

// The places in a [T, T] array of a pair, of all pairs of a query or a key, or of none.
export function pairsOf({ query, key }, T) {
  const [hasQuery, hasKey] = [query < T, key < T];
  if (hasQuery && hasKey) return [query * T + key];
  if (hasQuery && key === undefined) return Array.from({ length: T }, (_, j) => query * T + j);
  if (hasKey && query === undefined) return Array.from({ length: T }, (_, i) => i * T + key);
  return [];
}

// The sum of one row of weights or scores over the keys that its query sees, and how many they are.
export function rowTotal(array, query, causal) {
  const [, T] = array.shape;
  const seen = causal ? query + 1 : T;
  return [array.subarray(query * T, query * T + seen).reduce((sum, x) => sum + x, 0), seen];
}

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
