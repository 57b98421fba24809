import assert from "node:assert/strict";
import test from "node:test";
import { words as kit } from "../../attnlab/panels/labels.en.js";
import { missing, overridden } from "../../attnlab/panels/inputs.js";
import { nextPoint, pointTable, pointUnder, readCell } from "../../attnlab/panels/paint.js";
import { words as en } from "../../attnlab/dense/labels.en.js";
import { panel } from "../../attnlab/dense/panel.js";
import { equalsViewPy, given, read } from "./vectors.mjs";

const { spec, cases } = read("dense");
const words = { ...en, kit };

equalsViewPy(panel, { spec, cases });

const causal = cases.find(({ dials }) => dials.causal && dials.tokens > 9);
const real = cases.find(({ data }) => data);

function pictureOf(id, { dials, data }, at = {}) {
  const state = { dials, selection: { view: id, pin: null } };
  const views = panel.computer(spec)(state, given(data));
  const figure = panel.figures.find((each) => each.id === id);
  return { views, ...figure.picture({ state, data, views, spec, words, at }) };
}

test("every figure is in the spec, has a name and a table, and says where it comes from", () => {
  assert.deepEqual(panel.figures.map(({ id }) => id), spec.views);
  for (const { id, kind } of panel.figures) {
    const picture = pictureOf(id, cases[0]);
    assert.match(picture.source, /Eq\. 1, p\. 4/);
    assert.equal(words[id].title, picture.title);
    if (kind === "chart") assert.equal(pointTable(picture, {}).rows, cases[0].dials.tokens);
    assert.ok(picture.axes ? spec.axes.includes(picture.axes.row) : spec.axes.includes(picture.walk.axis));
  }
});

const numbersIn = (sentence) => sentence.match(/-?\d+(\.\d+)?(e-?\d+)?/g).map(Number);
const near = (got, want, name) => assert.ok(Math.abs(got / want - 1) < 3e-3, `${name}: ${got}, ${want}`); // four digits are shown

test("the sum of a number gives the number back", () => {
  for (const each of [cases[0], causal, real]) {
    const T = each.dials.tokens;
    const at = { query: Math.min(6, T - 1), key: 2, kept: 3 };
    const seen = each.dials.causal ? at.query + 1 : T;
    const weight = readCell(pictureOf("weights", each), at);
    const [logit, top] = [weight.sum.split("−")[0], weight.sum.slice(weight.sum.indexOf("− ") + 2)].map((part) => numbersIn(part)[0]);
    const [total, keys] = numbersIn(weight.sum.slice(weight.sum.indexOf("over")));
    assert.equal(keys, seen);
    if (Math.abs(logit - top) < 5) near(Math.exp(logit - top) / total, weight.value, "weight");
    const spread = pictureOf("spread", each).read(at);
    assert.equal(numbersIn(spread.sum)[1], seen);
    near(Math.exp(numbersIn(spread.sum)[0]), spread.value, "keys in effect");
    const { read, views } = pictureOf("kept", each);
    assert.deepEqual([read(at).value, numbersIn(read(at).sum)[0]], [views.kept[3], T]);
    near(numbersIn(read(at).sum)[1], views.kept_even[3], "kept by all alike");
  }
});

test("the chart of one query follows the focus, and shows the last query where none is", () => {
  for (const each of [cases[0], causal, real]) {
    const T = each.dials.tokens;
    for (const [at, query] of [[{}, T - 1], [{ key: 1 }, T - 1], [{ query: 2, key: 1 }, 2], [{ query: T }, T - 1]]) {
      const { columns, views, y } = pictureOf("row", each, at);
      const [, own, alike] = columns.map(({ array }) => Array.from(array));
      assert.deepEqual(own, Array.from(views.weights.subarray(query * T, (query + 1) * T)));
      const seen = each.dials.causal ? query + 1 : T;
      assert.deepEqual(alike, Array.from({ length: T }, (_, key) => (key < seen ? 1 / seen : 0)));
      assert.ok(Math.max(...own, 1 / seen) <= y.domain[1] * (1 + 1e-8) && y.domain[1] < 2.01 * Math.max(...own, 1 / seen));
    }
  }
});

test("the chart of one query reads a pin of another query, and a later key as masked", () => {
  const { read, views } = pictureOf("row", causal, { query: 3, key: 1 });
  const T = causal.dials.tokens;
  const pinned = read({ query: 7, key: 2 });
  assert.equal(pinned.value, views.weights[7 * T + 2]);
  assert.match(pinned.label, /^weight of key 3 .* for query 8 /);
  assert.equal(read({ query: 3, key: 5 }).masked, kit.masked);
  assert.equal(read({ key: 0 }).value, views.weights[3 * T]); // without a query, of the one that is shown
});

test("a walk along the keys and a point in a column keep the query that is shown", () => {
  const picture = pictureOf("row", causal, { query: 3, key: 1 });
  assert.deepEqual(nextPoint(picture, { query: 3, key: 1 }, "ArrowRight"), { query: 3, key: 2 });
  const scale = { along: (x) => 100 * x, up: (y) => 1000 * y };
  assert.deepEqual(pointUnder(scale, picture, 540, 0), { query: 3, key: 4 });
  assert.deepEqual(pointUnder(scale, pictureOf("spread", causal), 540, 0), { query: 4 });
});

test("the numbers named in a headline are those of the chart", () => {
  for (const each of [cases[0], causal, real]) {
    const { headline, views } = pictureOf("kept", each);
    const [, keys] = numbersIn(headline);
    assert.ok(views.kept[keys - 1] >= 0.9 && (keys === 1 || views.kept[keys - 2] < 0.9));
    const mean = views.effective.reduce((sum, x) => sum + x, 0) / each.dials.tokens;
    assert.ok(Math.abs(numbersIn(pictureOf("spread", each).headline)[0] / mean - 1) < 6e-3); // three digits are shown
  }
});

test("every tick of a chart lies on its axis, once", () => {
  for (const each of cases) {
    assert.deepEqual(pictureOf("kept", each).y.domain, [0, 1]); // also where the last sum has rounded to more than 1
    for (const id of ["spread", "kept", "row"]) {
      for (const { domain: [low, high], ticks, log } of ["x", "y"].map((name) => pictureOf(id, each)[name])) {
        const places = ticks.map(([value]) => value);
        assert.deepEqual(places, [...new Set(places)].sort((a, b) => a - b), id);
        assert.ok(places.every((value) => value >= low && value <= high && (!log || value > 0)), id);
        for (const [value, word] of ticks) assert.equal(word.includes("/") ? 1 / word.slice(2) : Number(word), value);
      }
    }
  }
});

test("a mechanism with the shared inputs need not say what a real head needs and overrides", () => {
  assert.equal(missing(cases[0], null, spec), false);
  assert.equal(missing(real, null, spec), true);
  assert.equal(missing(real, real.data, spec), false);
  assert.deepEqual(overridden(cases[0], words, spec), {});
  assert.deepEqual(overridden(real, words, spec), { head_width: { why: kit.realWidth, instead: 64 } });
  assert.equal(missing(cases[0], null, {}), false); // nor one without them
  assert.deepEqual(overridden(cases[0], words, {}), {});
});
