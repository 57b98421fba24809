import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { tokenNames } from "../../attnlab/race/mathematics.js";
import { panel } from "../../attnlab/race/panel.js";

const { spec, cases } = JSON.parse(fs.readFileSync(`${process.env.VECTORS}/race.json`));
const bytesOf = (text) => Uint8Array.from(Buffer.from(text, "base64"));
const given = (data) => data && { ...data, q: bytesOf(data.q), k: bytesOf(data.k), v: bytesOf(data.v) };

// The largest difference, as a part of the largest number; NaN counts as infinitely far.
function apart(got, want) {
  let size = 0;
  let far = 0;
  for (let i = 0; i < want.length; i++) {
    const difference = Math.abs(got[i] - want[i]);
    size = Math.max(size, Math.abs(want[i]));
    far = Math.max(far, Number.isNaN(difference) ? Infinity : difference);
  }
  return far === 0 ? 0 : far / size;
}

function compare(compute, { dials, data, views, tokens }) {
  const state = { dials };
  const shown = compute(state, given(data));
  assert.deepEqual(Object.keys(shown).sort(), Object.keys(views).sort());
  for (const [name, { shape, bytes }] of Object.entries(views)) {
    const want = new Float64Array(bytesOf(bytes).buffer);
    assert.deepEqual(shown[name].shape, shape, name);
    assert.equal(shown[name].length, want.length, name);
    const far = apart(shown[name], want);
    assert.ok(far <= 1e-9, `${name} is off by ${far} for ${JSON.stringify(dials)}`);
  }
  assert.deepEqual(tokenNames(state, data, spec), tokens);
}

test(`a fresh computation equals view.py for ${cases.length} settings of the dials`, () => {
  assert.ok(cases.length >= 25);
  for (const each of cases) compare(panel.computer(spec), each);
});

test("a computation that remembers the last setting equals view.py too", () => {
  const compute = panel.computer(spec);
  for (const each of cases) {
    compare(compute, cases[0]);
    compare(compute, each);
  }
});

test("the error chart draws Theorem 2's rate where the theorem speaks, and always names its conditions", () => {
  const { picture } = panel.figures.find(({ id }) => id === "error");
  const compute = panel.computer(spec);
  const seen = new Set();
  for (const { dials, data } of cases) {
    const state = { dials };
    const views = compute(state, given(data));
    const { layers, caption, y } = picture({ state, data, views, spec, words: panel.languages.en });
    const speaks = !dials.causal && (dials.normalize || dials.input === "toy");
    assert.equal(layers.filter(({ dash }) => dash).length, speaks ? 1 : 0);
    assert.equal(layers.filter(({ label }) => label?.includes("rate")).length, speaks ? 1 : 0);
    const all = [...views.error_output, ...(speaks ? views.error_rate : [])];
    assert.ok(y.domain[1] < 10 * Math.max(...all) * (1 + 1e-12)); // no decade for a line that is not drawn
    for (const word of ["mask", "unit", "*s*ₘᵢₙ ≥ *C*₁*N*", "‖*E*‖₂ ≤ *s*ₘᵢₙ/2", "*L* ≥ log(2*N*/*δ*)", "p. 8", "pp. 17, 26–27"])
      assert.ok(caption.includes(word), `${word} in ${caption}`);
    assert.equal(caption.includes("No rate"), !speaks);
    seen.add(caption);
  }
  assert.equal(seen.size, 3);
});

test("a real head that has not come is missing, toy tokens never are", () => {
  const [toy, real] = [cases.find(({ data }) => !data), cases.find(({ data }) => data)];
  assert.equal(panel.missing(toy, null, spec), false);
  assert.equal(panel.missing(real, null, spec), true);
  assert.equal(panel.missing(real, { input: "layer 99, head 0" }, spec), true);
  assert.equal(panel.missing(real, real.data, spec), false);
});
