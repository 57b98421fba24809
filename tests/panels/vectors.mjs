// What Python wrote for a panel, `spec` and cases { dials, data, views, ... }, and the two tests that every panel has to
// pass on it: the numbers of view.py, computed afresh and after another setting.
import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";

const bytesOf = (text) => Uint8Array.from(Buffer.from(text, "base64"));

export const read = (mechanism) => JSON.parse(fs.readFileSync(`${process.env.VECTORS}/${mechanism}.json`));
const BYTES = ["q", "k", "v", "query_codes", "key_codes"]; // of a real head, where they are there
export function given(data) {
  const sent = BYTES.filter((name) => data?.[name] !== undefined);
  return data && { ...data, ...Object.fromEntries(sent.map((name) => [name, bytesOf(data[name])])) };
}

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

function compare(compute, { dials, data, views }) {
  const shown = compute({ dials }, given(data));
  assert.deepEqual(Object.keys(shown).sort(), Object.keys(views).sort());
  for (const [name, { shape, bytes }] of Object.entries(views)) {
    const want = new Float64Array(bytesOf(bytes).buffer);
    assert.deepEqual(shown[name].shape, shape, name);
    assert.equal(shown[name].length, want.length, name);
    const far = apart(shown[name], want);
    assert.ok(far <= 1e-9, `${name} is off by ${far} for ${JSON.stringify(dials)}`);
  }
}

export function equalsViewPy(panel, { spec, cases }) {
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
}
