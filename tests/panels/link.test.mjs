import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { LIMIT, call, fragment, fromFragment } from "../../attnlab/panels/link.js";
import { defaults } from "../../attnlab/panels/state.js";

const { cases, race, wide, hostile, damaged, limit } = JSON.parse(fs.readFileSync(`${process.env.VECTORS}/link.json`));
const good = fragment(defaults(race), race);

test("links and calls are Python's, letter by letter", () => {
  for (const { spec, state, ...texts } of cases)
    assert.deepEqual({ fragment: fragment(state, spec), call: call(state, spec) }, texts);
});

test("a link gives back exactly its state, with signs of zero and the order of a pin's axes", () => {
  for (const { spec, state, fragment: text } of cases) {
    for (const back of [fromFragment(text, spec), fromFragment(`file:///race.html?version=9${text}`, spec)]) {
      assert.deepEqual(back, state);
      assert.equal(JSON.stringify(back.selection.pin), JSON.stringify(state.selection.pin));
    }
  }
});

test("every link that Python refuses is refused here, in one sentence that names the part", () => {
  for (const [text, name] of hostile) {
    assert.throws(() => fromFragment(text, race), (error) => {
      assert.equal(error.constructor, Error, `${text}: ${error.stack}`);
      assert.match(error.message, /^.+ must .+$/);
      assert.ok(error.message.includes(name), `${text}: ${error.message}`);
      return true;
    }, text);
  }
  assert.equal({}.polluted, undefined);
});

test("links damaged at random are taken for the same state as in Python, or refused as there", () => {
  for (const [text, state] of damaged) {
    if (state) assert.deepEqual(fromFragment(text, wide), state, text);
    else assert.throws(() => fromFragment(text, wide), (error) => error.constructor === Error, text);
  }
});

test("what is no text is refused", () => {
  for (const text of [null, undefined, 3, ["#race"], { toString: () => good }, Symbol("#race")])
    assert.throws(() => fromFragment(text, race), /^Error: a link must be text, got/);
});

test("a link is at most so long, and a long value is shown shortened", () => {
  assert.equal(LIMIT, limit);
  const full = good.replace("sharpness=4&", `sharpness=4.${"0".repeat(LIMIT - good.length)}&`);
  assert.equal(full.length, LIMIT + 1);
  assert.deepEqual(fromFragment(full, race), defaults(race));
  const longer = full.replace("4.0", "4.00");
  assert.throws(() => fromFragment(longer, race), /at most 4096 characters after its #, got 4097$/);
  for (const part of ["input=toy", "planes=3", "view=buckets", "pin=", "language=en", "causal=false"]) {
    const text = good.replace(part, `${part.split("=")[0]}=${"x".repeat(3000)}`);
    assert.throws(() => fromFragment(text, race), (error) => error.message.endsWith(`got "${"x".repeat(80)}…"`));
  }
});

test("only a whole state in range is written", () => {
  const broken = [
    [{ dials: { ...defaults(race).dials, sharpness: NaN } }, /sharpness/],
    [{ selection: { ...defaults(race).selection, pin: {} } }, /pin/],
    [{ selection: { ...defaults(race).selection, pin: { query: 2 ** 53 } } }, /pin\.query .* 9007199254740991/],
    [{ language: "xx" }, /language/],
  ];
  for (const [part, name] of broken)
    for (const write of [fragment, call]) assert.throws(() => write({ ...defaults(race), ...part }, race), name);
});
