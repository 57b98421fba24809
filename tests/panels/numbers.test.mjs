import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { distance, dot, halves, logitsOf, mix, norm, rows, shaped, softmax, step, unit } from "../../attnlab/panels/numbers.js";
import { decades, naming, pairsOf, power, rowTotal } from "../../attnlab/panels/pictures.js";

const bytesOf = (text) => Uint8Array.from(Buffer.from(text, "base64"));

test("float16 bytes become exactly their doubles, from every kind of buffer", () => {
  const { bytes, doubles } = JSON.parse(fs.readFileSync(`${process.env.VECTORS}/halves.json`));
  const want = new Float64Array(bytesOf(doubles).buffer);
  const raw = bytesOf(bytes);
  const shifted = new Uint8Array(raw.length + 3);
  shifted.set(raw, 3);
  for (const source of [raw, raw.buffer, new DataView(raw.buffer), shifted.subarray(3)]) assert.deepEqual(halves(source, want.length), want);
});

test("weights by hand: rows divided by their sums, the future left out where causal", () => {
  const scores = Float64Array.of(1, 3, 2, 2);
  assert.deepEqual([...rows(scores, 2, false)], [0.25, 0.75, 0.5, 0.5]);
  assert.deepEqual([...rows(scores, 2, true)], [1, 0, 0.5, 0.5]);
});

test("softmax of equal logits is uniform, and a large logit does not overflow", () => {
  assert.deepEqual([...softmax(Float64Array.of(5, 5, 7, 7), 2, false)], [0.5, 0.5, 0.5, 0.5]);
  assert.deepEqual([...softmax(Float64Array.of(1e6, 2e6, 0, 0), 2, false)], [0, 1, 0.5, 0.5]);
});

test("logits are scaled inner products", () => {
  assert.deepEqual([...logitsOf(Float64Array.of(1, 2, 3, 4), Float64Array.of(5, 6, 7, 8), 2, 2, 0.5)], [8.5, 11.5, 19.5, 26.5]);
  assert.deepEqual([...logitsOf(Float64Array.of(1, 1, 1, 1), Float64Array.of(2, 2, 2, 2), 1, 4)], [4]);
});

test("pairs of a pair, of a query, of a key, of neither, and of one that other dials left behind", () => {
  assert.deepEqual(pairsOf({ query: 1, key: 2 }, 3), [5]);
  assert.deepEqual(pairsOf({ query: 1 }, 3), [3, 4, 5]);
  assert.deepEqual(pairsOf({ key: 1, bucket: 7 }, 3), [1, 4, 7]);
  for (const at of [{}, { table: 1 }, { query: 3, key: 0 }, { query: 3 }]) assert.deepEqual(pairsOf(at, 3), []);
});

test("a row's total counts the keys that its query sees", () => {
  const array = shaped([2, 2], Float64Array.of(1, 2, 3, 4));
  assert.deepEqual([rowTotal(array, 0, true), rowTotal(array, 1, true), rowTotal(array, 0, false)], [[1, 1], [7, 2], [3, 2]]);
});

test("an inner product takes all its numbers and no other, whatever their count", () => {
  const x = Float64Array.from({ length: 16 }, (_, i) => i + 1);
  for (let K = 0; K <= 9; K++) {
    let sum = 0;
    for (let i = 0; i < K; i++) sum += x[2 + i] * x[5 + i];
    assert.equal(dot(x, 2, x, 5, K), sum);
  }
});

test("a mixture of values by hand", () => {
  assert.deepEqual([...mix(Float64Array.of(0.25, 0.75, 1, 0), Float64Array.of(4, 8, 0, 16), 2, 2)], [1, 14, 4, 8]);
  assert.deepEqual([...mix(Float64Array.of(0.25, 0.75, 1, 0), Float64Array.of(4, 8, 1, 0, 16, 2), 2, 3)], [1, 14, 1.75, 4, 8, 1]);
});

test("unit vectors; a zero row stays zero", () => {
  assert.deepEqual([...unit(Float64Array.of(3, 4, 0, 0), 2)], [0.6, 0.8, 0, 0]);
  assert.equal(norm(Float64Array.of(3, 4)), 5);
  assert.equal(distance(Float64Array.of(1, 1), Float64Array.of(4, 5)), 5);
});

test("a step computes again only where its key has changed", () => {
  const kept = step();
  let calls = 0;
  const make = () => ++calls;
  assert.deepEqual([kept([1, "a"], make), kept([1, "a"], make), kept([1, "b"], make), kept([1, "a"], make)], [1, 1, 2, 3]);
});

test("a shape is carried by the array", () => {
  assert.deepEqual(shaped([2, 3]).shape, [2, 3]);
  assert.equal(shaped([2, 3]).length, 6);
});

test("decades hold all numbers and one whole decade at least", () => {
  assert.deepEqual(decades([0.02, 0.5], "y").domain.map(Math.log10), [-2, 0]);
  assert.deepEqual(decades([0.3, 0.3], "y").domain.map(Math.log10), [-1, 0]);
  assert.deepEqual(decades([1], "y").domain.map(Math.log10), [0, 1]);
  assert.equal(decades([0], "y").domain[0], 1e-16);
  assert.equal(power("10", -12), "10⁻¹²");
});

test("tokens without a letter get a sign that can be seen", () => {
  const words = { kit: { query: "query", token: (kind, number, word) => `${kind} ${number} “${word}”` } };
  const { name, ends } = naming([" the", "\n", " "], words);
  assert.equal(name("query", 0), "query 1 “the”");
  assert.equal(name("query", 1), "query 2 “⏎”");
  assert.deepEqual(ends, ["the", "␣"]);
});
