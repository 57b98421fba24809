import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { distance, dot, halves, logitsOf, mix, norm, rows, shaped, softmax, step, unit } from "../../attnlab/panels/numbers.js";
import { steps } from "../../attnlab/panels/dom.js";
import { words as kit } from "../../attnlab/panels/labels.en.js";
import { instead, spoken } from "../../attnlab/panels/readout.js";
import { pairMatrix, softmaxSum } from "../../attnlab/panels/pictures.js";
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

test("every place of a slider is a short number within the dial, and is found again", () => {
  for (const dial of [
    { kind: "number", low: 0.1, high: 1 },
    { kind: "number", low: -1, high: 2.3 },
    { kind: "number", low: 1 / 3, high: 2 / 3 },
    { kind: "whole", low: 4, high: 256 },
    { kind: "number", low: 1 / 32, high: 32, scale: "log" },
  ]) {
    const { count, value, place } = steps(dial);
    assert.deepEqual([value(0), value(count)], [dial.low, dial.high]);
    for (let step = 0; step <= count; step++) {
      assert.ok(value(step) >= dial.low && value(step) <= dial.high, `${value(step)}`);
      assert.ok(step % count === 0 || String(value(step)).length < 16, `${value(step)}`);
      assert.equal(place(value(step)), step);
    }
  }
  assert.equal(steps({ kind: "number", low: 0.1, high: 1 }).value(1), 0.109);
});

test("a number is spoken with its own dtype, and none as not a number", () => {
  const words = { kit };
  assert.equal(spoken({ label: "x", value: 0.25, sum: "1 / *4*" }, words), "x = 0.25 (float64); 1 / 4");
  assert.equal(spoken({ label: "x", value: 3, dtype: "int64" }, words), "x = 3 (int64)");
  assert.equal(spoken({ label: "x", value: NaN, sum: "0 / 0" }, words), "x: not a number");
  assert.equal(instead({ value: 0 }, words), undefined);
  assert.equal(instead({ value: NaN, masked: "later" }, words), "later");
});

test("a softmax weight says what it comes from, with a negative largest logit in brackets", () => {
  const logits = shaped([2, 2], Float64Array.of(1, 2, -3, -2));
  const words = { kit };
  assert.equal(softmaxSum(logits, { query: 0, key: 0 }, false, words), "exp(1 − 2), over 1.368, the sum over 2 keys");
  assert.equal(softmaxSum(logits, { query: 1, key: 0 }, false, words), "exp(-3 − (-2)), over 1.368, the sum over 2 keys");
});

test("a matrix of both signs may have its own low end and no square root", () => {
  const given = { array: shaped([2, 2], Float64Array.of(1, -4, 2, 3)), named: { ends: [] }, words: { kit } };
  const { scale } = pairMatrix({ ...given, min: -3, max: 2, root: false });
  assert.deepEqual(scale, { min: -3, max: 2, root: false, above: true, below: true });
  assert.deepEqual(pairMatrix({ ...given, min: -4 }).scale, { min: -4, max: 3, root: true, above: false, below: false });
});
