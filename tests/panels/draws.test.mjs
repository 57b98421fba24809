import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { bits, normal, uniform } from "../../attnlab/panels/draws.js";

const vectors = JSON.parse(fs.readFileSync(`${process.env.VECTORS}/draws.json`));
const doubles = (text) => new Float64Array(Uint8Array.from(Buffer.from(text, "base64")).buffer);

// Random123's kat_vectors, threefry2x32 with 20 rounds: counter (row, column), key (seed, stream)
const known = [
  [[0, 0], [0, 0], [0x6b200159, 0x99ba4efe]],
  [[0xffffffff, 0xffffffff], [0xffffffff, 0xffffffff], [0x1cb996fc, 0xbb002be7]],
  [[0x243f6a88, 0x85a308d3], [0x13198a2e, 0x03707344], [0xc4923a9c, 0x483df7a0]],
];

test("the words are those published with Random123", () => {
  for (const [[row, column], key, words] of known) assert.deepEqual([...bits(...key, [row], [column])], words);
});

test("integers and uniforms equal Python's bit for bit, normals to 1e-12", () => {
  for (const { call, ...expected } of vectors) {
    assert.deepEqual([...bits(...call)], expected.bits);
    assert.deepEqual(uniform(...call), doubles(expected.uniform));
    const z = normal(...call);
    doubles(expected.normal).forEach((want, i) => assert.ok(Math.abs(z[i] - want) <= 1e-12 * Math.max(1, Math.abs(want))));
    assert.equal(z.length, call[2] * call[3]);
  }
});
