import assert from "node:assert/strict";
import test from "node:test";
import { words as kit } from "../../attnlab/panels/labels.en.js";
import { missing, tokenNames } from "../../attnlab/panels/inputs.js";
import { words as en } from "../../attnlab/race/labels.en.js";
import { panel } from "../../attnlab/race/panel.js";
import { equalsViewPy, given, read } from "./vectors.mjs";

const { spec, cases } = read("race");

equalsViewPy(panel, { spec, cases });

test("the tokens have the names that params.py gives them", () => {
  for (const { dials, data, tokens } of cases) assert.deepEqual(tokenNames({ dials }, data, spec), tokens);
});

test("the error chart draws Theorem 2's rate where the theorem speaks, and always names its conditions", () => {
  const { picture } = panel.figures.find(({ id }) => id === "error");
  const compute = panel.computer(spec);
  const seen = new Set();
  for (const { dials, data } of cases) {
    const state = { dials };
    const views = compute(state, given(data));
    const { layers, caption, source, y } = picture({ state, data, views, spec, words: en });
    const speaks = !dials.causal && (dials.normalize || dials.input === "toy");
    assert.equal(layers.filter(({ dash }) => dash).length, speaks ? 1 : 0);
    assert.equal(layers.filter(({ label }) => label?.includes("rate")).length, speaks ? 1 : 0);
    const all = [...views.error_output, ...(speaks ? views.error_rate : [])];
    assert.ok(y.domain[1] < 10 * Math.max(...all) * (1 + 1e-12)); // no decade for a line that is not drawn
    for (const word of ["mask", "unit", "*s*ₘᵢₙ ≥ *C*₁*N*", "‖*E*‖₂ ≤ *s*ₘᵢₙ/2", "*L* ≥ log(2*N*/*δ*)"])
      assert.ok(caption.includes(word), `${word} in ${caption}`);
    assert.equal(source, "Theorem 2, p. 8; conditions pp. 17, 26–27");
    assert.equal(caption.includes("No rate"), !speaks);
    seen.add(caption);
  }
  assert.equal(seen.size, 3);
});

test("every view names its place in the paper, its sums, and a table", () => {
  for (const id of spec.views) {
    const { source, columns, sum } = pictureOf(id, panel.computer(spec), cases[0]);
    assert.match(source, /pp?\. \d/, id);
    assert.ok(columns || sum, id);
    assert.equal(typeof (en.views[id] ?? en[id].title), "string", id);
  }
  assert.deepEqual(spec.views, panel.figures.map(({ id }) => id));
});

// What a reading says about the fraction or the product that it came from, worked out again.
const numbersIn = (sentence) => sentence.match(/-?\d+(\.\d+)?(e-?\d+)?/g).map(Number);
const near = (got, want, name) => assert.ok(Math.abs(got / want - 1) < 3e-3, `${name}: ${got}, ${want}`); // four digits are shown

test("the sum of a number gives the number back", () => {
  for (const each of [cases[0], cases.find(({ dials }) => dials.causal && dials.tokens > 9), cases.find(({ data }) => data)]) {
    const compute = panel.computer(spec);
    const at = { query: Math.min(6, each.dials.tokens - 1), key: 2, table: 0, bucket: 1 };
    const value = ({ array, rows, columns, step, tiles, axes }) => array[tiles[0].offset + at[axes.row] * step.row + at[axes.column] * step.column];
    const weight = (id) => [pictureOf(id, compute, each), id];
    for (const [picture, id] of [weight("softmax"), weight("angular"), weight("race")]) {
      const numbers = numbersIn(picture.sum(at).split(";")[0].replace("κ^", ""));
      const keys = numbers.at(-1);
      assert.equal(keys, each.dials.causal ? at.query + 1 : each.dials.tokens);
      const total = numbers.at(-2);
      const part = id === "softmax" ? Math.exp(numbers[0] - numbersIn(picture.sum(at).split("−")[1])[0]) : numbers.at(-3);
      if (id !== "softmax" || Math.abs(numbers[0]) < 20) near(part / total, value(picture), `${id} ${JSON.stringify(each.dials)}`);
    }
    const race = pictureOf("race", compute, each).sum(at);
    const terms = numbersIn(race.slice(race.indexOf("("), race.indexOf(")")));
    assert.equal(terms.length, each.dials.tables);
    const buckets = pictureOf("buckets", compute, each);
    const product = numbersIn(buckets.sum(at)).reduce((x, y) => x * y, 1);
    near(product, value(buckets), "share");
  }
});

const pictureOf = (id, compute, { dials, data }) => {
  const state = { dials, selection: { features: "keys", pin: null } };
  const views = compute(state, given(data));
  const words = { ...en, kit };
  return panel.figures.find((figure) => figure.id === id).picture({ state, data, views, spec, words });
};

test("the error with the dial's own tables can be walked to, read, and stands in the table", () => {
  for (const tables of [4, 13]) {
    const compute = panel.computer(spec);
    const { marks: [mark], walk, read, columns } = pictureOf("error", compute, { dials: { ...cases[0].dials, tables }, data: null });
    const here = compute({ dials: { ...cases[0].dials, tables } }, null).error_here[0];
    assert.deepEqual([walk.size, mark.x.at(-1), mark.y.at(-1), mark.find({ tables: 7 }), mark.find({ tables: 8 })], [8, tables, here, [7], []]);
    assert.deepEqual([read({ tables: 7 }).value, read({ tables: 7 }).label], [here, `output error with ${tables} tables`]);
    assert.deepEqual([read({ tables: 0 }).label, read({ tables: 8 })], ["output error with 1 table", null]);
    const [own, measured, rate] = columns.map(({ array }) => array);
    assert.deepEqual([own.length, own.at(-1), measured.at(-1), rate.length], [8, `${tables} (dial)`, here, 8]);
  }
});

test("a pin of a bucket that these dials do not have points nowhere", () => {
  const { word } = pictureOf("buckets", panel.computer(spec), cases[0]);
  assert.deepEqual([word("bucket", 2 ** cases[0].dials.planes - 1), word("bucket", 200)], ["bucket 7", ""]);
});

test("an angular weight of nothing says what it is over", () => {
  const picture = panel.figures.find(({ id }) => id === "angular").picture;
  const pair_angle = Object.assign(Float64Array.of(Math.PI, 0, Math.PI / 2, 0), { shape: [2, 2] });
  const angular = Object.assign(Float64Array.of(0, 1, 0.2, 0.8), { shape: [2, 2] });
  const state = { dials: { ...cases[0].dials, planes: 2, tokens: 2, input: "toy", causal: false }, selection: {} };
  const { sum } = picture({ state, data: null, views: { pair_angle, angular, softmax: angular }, spec, words: { ...en, kit } });
  assert.equal(sum({ query: 0, key: 0 }), "κ^2 = (1 − 3.1416/π)^2 = 0, over 1, the sum over 2 keys");
});

test("what a screen reader hears counts one table as one", () => {
  const context = (tables) => {
    const state = { dials: { ...cases[0].dials, tables } };
    return { state, spec, views: panel.computer(spec)(state, null), words: { ...en, kit } };
  };
  assert.match(panel.summary(context(1)), / with 1 table\. /);
  assert.match(panel.summary(context(2)), / with 2 tables\. /);
});

test("bucket shares are coloured from 0 to 1, whatever the largest is", () => {
  for (const sharpness of [1 / 32, 1, 32]) {
    const dials = { ...cases[0].dials, sharpness };
    assert.deepEqual(pictureOf("buckets", panel.computer(spec), { dials, data: null }).scale, { max: 1 });
  }
});

test("the three matrices share a scale that neither sharpness nor tables nor the estimate move", () => {
  const compute = panel.computer(spec);
  const ids = ["softmax", "angular", "race"];
  let above = 0;
  for (const each of cases.filter(({ dials }) => dials.tokens > 4)) {
    const moved = [{}, { sharpness: 1 / 32 }, { sharpness: 32 }, { tables: 1 }, { tables: 16 }];
    const tops = new Set();
    for (const dials of moved.map((part) => ({ ...each.dials, ...part }))) {
      for (const id of ids) {
        const { array, scale } = pictureOf(id, compute, { ...each, dials });
        tops.add(scale.max);
        assert.equal(scale.root, true);
        assert.equal(scale.above, array.some((weight) => weight > scale.max));
        above += scale.above && !dials.causal;
      }
    }
    assert.equal(tops.size, 1);
  }
  assert.ok(above > 0); // without a mask only RACE's own weights can lie above
});

test("where causal, the first query's weight of 1 does not end the scale, and later keys are masked", () => {
  const dials = { ...cases[0].dials, causal: true };
  const { array, scale, masked, rows } = pictureOf("softmax", panel.computer(spec), { dials, data: null });
  const { array: angular } = pictureOf("angular", panel.computer(spec), { dials, data: null });
  assert.equal(array[0], 1);
  assert.equal(scale.max, Math.max(...array.slice(rows), ...angular.slice(rows)));
  assert.ok(scale.max < 1 && scale.above);
  assert.equal(masked({ query: 4, key: 5 }), "masked (later key)");
  assert.ok(!masked({ query: 5, key: 5 }) && !masked({ query: 5, key: 4 }));
  const open = pictureOf("softmax", panel.computer(spec), { dials: { ...dials, causal: false }, data: null });
  assert.ok(!open.masked({ query: 4, key: 5 }));
});

test("Lemma 10's regions are named above the rows that the dial's dot can reach", () => {
  const { layers } = pictureOf("lemma", panel.computer(spec), cases[0]);
  const most = spec.dials.find(({ name }) => name === "planes").high;
  const named = layers.filter(({ type }) => type === "label");
  assert.deepEqual(named.map(({ label }) => label), ["fails for every draw", "fails with many tables"]);
  for (const { at } of named) assert.ok(at[1] > most + 0.5);
});

test("the shortfall at angle 0 has its name where it is drawn, and only there", () => {
  for (const [sharpness, drawn] of [[1 / 32, 1], [32, 0]]) {
    const { layers } = pictureOf("band", panel.computer(spec), { dials: { ...cases[0].dials, sharpness }, data: null });
    assert.equal(layers.filter(({ colour }) => colour === "error").length, drawn);
    assert.equal(layers.filter(({ label }) => label === "shortfall at angle 0").length, drawn);
  }
});

test("a real head that has not come is missing, toy tokens never are", () => {
  const [toy, real] = [cases.find(({ data }) => !data), cases.find(({ data }) => data)];
  assert.equal(missing(toy, null, spec), false);
  assert.equal(missing(real, null, spec), true);
  assert.equal(missing(real, { input: "layer 99, head 0" }, spec), true);
  assert.equal(missing(real, real.data, spec), false);
});
