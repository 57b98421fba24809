import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";
import { steps } from "../../attnlab/panels/dom.js";
import { checked, defaults } from "../../attnlab/panels/state.js";

const read = (name) => JSON.parse(fs.readFileSync(`${process.env.VECTORS}/${name}.json`));
const spec = read("spec");

test("the defaults are a good state", () => {
  const state = defaults(spec);
  assert.equal(checked(state, spec), state);
});

test("every state that Python refuses is refused here, by name", () => {
  for (const [path, value, name] of read("damaged")) {
    const state = structuredClone(defaults(spec));
    const last = path.at(-1);
    const place = path.slice(0, -1).reduce((record, key) => record[key], state);
    if (value === "<delete>") delete place[last];
    else place[last] = value;
    assert.throws(() => checked(state, spec), (error) => error.message.includes(name), `${path}: ${JSON.stringify(value)}`);
  }
});

test("every curve that Python refuses is refused here, by name and point", () => {
  const spec = read("curves");
  for (const [value, sentence] of read("damaged_curves")) {
    const state = structuredClone(defaults(spec));
    state.dials.write = value;
    assert.throws(() => checked(state, spec), (error) => error.message.includes(sentence), JSON.stringify(value));
  }
  const state = defaults(spec);
  state.dials.write = [0, 1, 0.5, 0.25, 0, 1, 1, 0];
  assert.equal(checked(state, spec), state);
});

test("what is no record is refused, and so is NaN", () => {
  for (const state of [null, [], "state", 3]) assert.throws(() => checked(state, spec), /state must be a record/);
  const state = defaults(spec);
  state.dials.sharpness = NaN;
  assert.throws(() => checked(state, spec), /sharpness must be a number in .* got NaN/);
});

test("each step of each slider is a value that its dial takes, and leads back to the step", () => {
  for (const dial of spec.dials.filter(({ kind }) => kind === "whole" || kind === "number")) {
    const { count, value, place } = steps(dial);
    assert.equal(value(0), dial.low);
    assert.equal(value(count), dial.high);
    for (let step = 0; step <= count; step++) {
      const state = defaults(spec);
      state.dials[dial.name] = value(step);
      checked(state, spec);
      assert.equal(place(value(step)), step);
    }
    const state = defaults(spec);
    assert.equal(value(place(state.dials[dial.name])), state.dials[dial.name]);
  }
});
