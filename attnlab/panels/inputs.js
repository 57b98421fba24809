// The twin of attnlab/inputs.py: toy tokens in clusters, or the window of a real head that Python sent. T tokens, K the
// width of q, k and v; spec.inputs says what the toy is drawn from.
import { normal } from "./draws.js";
import { halves, step, unit } from "./numbers.js";

const cluster = (t, T, { clusters }) => Math.floor((t * clusters) / T);

export const count = (n) => Array.from({ length: n }, (_, i) => i);

// The first K numbers of the given rows of `width` numbers.
export function cut(x, rows, width, K) {
  const out = new Float64Array(rows.length * K);
  rows.forEach((row, n) => out.set(x.subarray(row * width, row * width + K), n * K));
  return out;
}

export const highest = ({ dials }, wanted) => dials.find(({ name }) => name === wanted).high;

// Everything that a seed draws, at the dials' largest sizes: smaller ones are the beginnings of rows and columns, so
// only a new seed draws anew.
function drawAll(seed, spec) {
  const width = highest(spec, "head_width");
  const { clusters, streams } = spec.inputs;
  const T = highest(spec, "tokens");
  const rows = { centres: clusters, "value centres": clusters, queries: T, keys: T, values: T };
  const drawn = Object.entries(rows).map(([name, size]) => [name, normal(seed, streams[name], size, width)]);
  return { width, ...Object.fromEntries(drawn) };
}

// Tokens in clusters, in order: q and k unit vectors around one centre, v noise around another.
function toy(T, K, drawn, about) {
  const own = count(T).map((t) => cluster(t, T, about));
  const take = (name, rows) => cut(drawn[name], rows, drawn.width, K);
  const around = (centres, noise, spread) => {
    const x = take(noise, count(T));
    for (let at = 0; at < x.length; at++) x[at] = centres[at] + spread * x[at];
    return x;
  };
  const centres = unit(take("centres", own), K);
  const near = about.spread / Math.sqrt(K);
  const [q, k] = ["queries", "keys"].map((name) => unit(around(centres, name, near), K));
  return { q, k, v: around(take("value centres", own), "values", about.spread) };
}

// The beginning of the window of a real head that Python sent.
function real(T, data) {
  const [q, k, v] = [data.q, data.k, data.v].map((bytes) => halves(bytes, T * data.width));
  return { q, k, v };
}

export const isToy = ({ dials }, { inputs }) => dials.input === inputs.toy;

// A function (state, data) -> { q, k, v, T, K }, the same object as long as nothing it depends on has changed.
export function inputsOf(spec) {
  const [draws, given] = [step(), step()];
  return (state, data) => {
    const { tokens: T, head_width, seed } = state.dials;
    const drawn = isToy(state, spec);
    const K = drawn ? head_width : spec.inputs.real_width;
    const source = drawn ? draws([seed], () => drawAll(seed, spec)) : data;
    return given([T, K, source], () => ({ ...(drawn ? toy(T, K, source, spec.inputs) : real(T, source)), T, K }));
  };
}

// The names of the tokens, as inputs.py gives them.
export function tokenNames(state, data, spec) {
  const T = state.dials.tokens;
  if (!isToy(state, spec)) return data.tokens.slice(0, T);
  const seen = new Array(spec.inputs.clusters).fill(0);
  return count(T).map((t) => {
    const c = cluster(t, T, spec.inputs);
    return "abcd"[c] + ++seen[c];
  });
}

// Whether the state asks for tokens of a real head that have not come yet.
export function missing(state, data, spec) {
  if (!spec.inputs || isToy(state, spec)) return false;
  return data?.input !== state.dials.input || data.tokens.length < state.dials.tokens;
}

// What is said meanwhile.
export function awaited({ kit }, { dials }, data, python) {
  if (python) return kit.waiting(dials.input);
  return data?.input === dials.input ? kit.tooFew(data.tokens.length, dials.input) : kit.needsKernel(dials.input);
}

// What a state needs of the data at hand: of a real head the shortest window that holds all tokens, as in inputs.py.
export function needed({ dials }, data, { inputs }) {
  if (!inputs || dials.input === inputs.toy) return null;
  let size = inputs.shortest_window;
  while (size < dials.tokens) size *= 2;
  const rows = ({ buffer, byteOffset }) => new Uint8Array(buffer, byteOffset, 2 * size * data.width);
  return { ...data, tokens: data.tokens.slice(0, size), q: rows(data.q), k: rows(data.k), v: rows(data.v) };
}

// The dials that mean nothing beside a real head: why, and the value in force.
export function overridden(state, words, spec) {
  if (!spec.inputs || isToy(state, spec)) return {};
  return { head_width: { why: words.kit.realWidth, instead: spec.inputs.real_width } };
}

// Whether an input can be had without Python.
export const offered = (name, data, { inputs }) => name === inputs.toy || name === data?.input;
