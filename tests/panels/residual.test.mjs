import assert from "node:assert/strict";
import test from "node:test";
import { words as kit } from "../../attnlab/panels/labels.en.js";
import { stroke } from "../../attnlab/panels/curve.js";
import { cellTable, nextCell, nextPoint, pointTable, pointUnder, readCell } from "../../attnlab/panels/paint.js";
import { words as en } from "../../attnlab/residual/labels.en.js";
import { panel } from "../../attnlab/residual/panel.js";
import { equalsViewPy, given, read } from "./vectors.mjs";

const { spec, cases } = read("residual");
const words = { ...en, kit };
const [first] = cases;
const real = cases.find(({ data }) => data);
const compute = panel.computer(spec);

equalsViewPy(panel, { spec, cases });

function pictureOf(id, { dials = {}, data = null, at = {}, pin = null, weights = "errors" }) {
  const state = { dials: { ...first.dials, ...dials }, selection: { view: id, pin, weights } };
  const views = compute(state, given(data));
  const { picture } = panel.figures.find((figure) => figure.id === id);
  return { views, ...picture({ state, data, views, spec, words, at }) };
}

const numbersIn = (sentence) => sentence.match(/-?\d+(\.\d+)?(e-?\d+)?/g).map(Number);
const near = (got, want, name) => assert.ok(Math.abs(got - want) <= 2e-3 * Math.abs(want) + 1e-12, `${name}: ${got}, ${want}`); // four digits are shown

test("every figure is in the spec, says where it comes from, and has a table", () => {
  assert.deepEqual(panel.figures.map(({ id }) => id), spec.views);
  for (const { id, kind } of panel.figures) {
    for (const each of [{}, { dials: { rule: "linear" } }, { dials: { tokens: 4 } }, real]) {
      const picture = pictureOf(id, each);
      assert.match(picture.source, /this project|pp?\. \d/, id);
      assert.equal(words[id].title, picture.title);
      const table = (kind === "chart" ? pointTable : cellTable)(picture, {});
      assert.ok(table.rows > 0 && (table.columns === 0 ? id === "gates" : Number.isFinite(table.value(0, 0))), id);
      assert.ok(spec.axes.includes(kind === "chart" ? picture.walk.axis : picture.axes.row), id);
    }
  }
});

test("the memories are those after the token in focus, else after the pinned one, else after the last", () => {
  const [T, K, V] = [24, 16, 12];
  for (const [at, pin, t] of [[{}, null, 23], [{ query: 3, key: 1 }, { query: 7 }, 3], [{}, { query: 7 }, 7], [{ query: T }, null, 23]]) {
    const picture = pictureOf("memories", { at, pin });
    assert.deepEqual(picture.tiles.map(({ offset }) => offset), [t * K * V, (T + t) * K * V]);
    const cell = readCell(picture, { query: t, memory: 1, channel: 2, entry: 5 });
    assert.equal(cell.value, picture.views.memories[((T + t) * K + 2) * V + 5]);
    assert.equal(cell.label, `R after token ${t + 1}, key channel 3, value channel 6`);
  }
  assert.equal(pictureOf("memories", { dials: { rule: "gdn" } }).tiles.length, 1);
  const walked = nextCell(pictureOf("memories", { at: { query: 3 } }), { query: 3, memory: 0, channel: 1, entry: 1 }, "PageDown");
  assert.deepEqual(walked, { query: 3, memory: 1, channel: 1, entry: 1 }); // the token stays
});

test("a cell of a memory is what was left of it and what the token wrote", () => {
  for (const rule of ["rla", "rdn", "gdn", "retnet"]) {
    for (const fitting of [true, false]) {
      const picture = pictureOf("memories", { dials: { rule, fitting, retention: [1, 0.5, 1, 0, 1, 1, 0.3, 1] } });
      for (let memory = 0; memory < picture.tiles.length; memory++) {
        const { value, sum } = readCell(picture, { query: 23, memory, channel: 4, entry: 2 });
        const [left, added] = numbersIn(sum);
        near(left + added, value, `${rule} ${memory}`);
        assert.ok(fitting || memory === 0 || left === 0);
      }
    }
  }
});

test("a weight of an additive rule is the product that it names", () => {
  const curves = { retention: [1, 0.9, 0.8, 0.9, 1, 0.7, 0.9, 1], write: [0.3, 0.5, 0.7, 0.9, 0.8, 0.6, 0.4, 0.2], correction: 0.6 };
  const drawn = { ...curves, correction: [0.9, 0.5, 0.8, 0.9, 0.4, 0.6, 0.4, 0.9] };
  let read = 0;
  for (const rule of ["rla", "sgla", "linear", "retnet"]) {
    for (const read_gates of [true, false]) {
      for (const weights of ["errors", "values"]) {
        const picture = pictureOf("weights", { dials: { rule, read_gates, ...drawn }, weights });
        for (const at of [{ query: 9, key: 9 }, { query: 12, key: 3 }, { query: 23, key: 0 }]) {
          const { value, sum, label } = readCell(picture, at);
          const named = rule === "rla" ? weights.slice(0, -1) : "value";
          assert.equal(label, `weight of the ${named} at key ${at.key + 1} for query ${at.query + 1}`);
          if (rule === "rla" && weights === "values" && at.key === at.query) {
            assert.deepEqual([value, sum], [0, en.weights.newest]);
            continue;
          }
          near(numbersIn(sum.split(":")[0]).reduce((x, y) => x * y, 1), value, `${rule} ${weights} ${JSON.stringify(at)}`);
          read++;
        }
      }
    }
  }
  assert.equal(read, 4 * 4 * 3 - 2);
});

test("a weight of a delta rule says that later keys have changed it, and a later key has none", () => {
  const picture = pictureOf("weights", { dials: { rule: "rdn" } });
  const { sum, value } = readCell(picture, { query: 9, key: 4 });
  near(numbersIn(sum)[0], picture.views.key_query[9 * 24 + 4], "k·q");
  assert.ok(Math.abs(value - 0.36 * numbersIn(sum)[0]) > 1e-3);
  assert.equal(readCell(picture, { query: 4, key: 9 }).masked, kit.masked);
  const alone = pictureOf("weights", { dials: { fitting: false } });
  assert.deepEqual([readCell(alone, { query: 9, key: 4 }).value, readCell(alone, { query: 9, key: 4 }).sum], [0, en.weights.gone]);
});

test("recall by age is read by key: the newest on the right, the mean in the headline", () => {
  const picture = pictureOf("recall", { at: { query: 9 } });
  const { views, marks: [mark], columns, headline } = picture;
  const own = (all) => Array.from(all.subarray(9 * 24, 9 * 24 + 10));
  assert.deepEqual([Array.from(mark.y), Array.from(columns[0].array)], [own(views.recall_both), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]);
  assert.deepEqual([mark.at(2), mark.find({ key: 2 }), mark.find({ key: 10 })], [{ query: 9, key: 2 }, [2], []]);
  const rms = (errors) => Math.sqrt(errors.reduce((sum, x) => sum + x * x, 0) / errors.length);
  numbersIn(headline).forEach((shown, side) => near(shown, rms(own([views.recall_base, views.recall_both][side])), "mean"));
  const { value, sum, label } = picture.read({ query: 20, key: 3 }); // a pin of another token
  assert.deepEqual([value, label], [views.recall_both[20 * 24 + 3], "recall error of the value at key 4 after token 21, S and R"]);
  near(numbersIn(sum)[0], views.recall_base[20 * 24 + 3], "S alone");
  assert.equal(picture.read({ query: 3, key: 4 }), null);
  const alone = pictureOf("recall", { dials: { rule: "gdn" } });
  assert.deepEqual([numbersIn(alone.headline).length, alone.read({ key: 3 }).sum, alone.columns.length], [1, undefined, 2]);
});

test("the dial's own similarity can be walked to, read, and stands in the table", () => {
  const picture = pictureOf("similarity", { dials: { similarity: 0.33 } });
  const { walk, read, columns, views } = picture;
  assert.equal(walk.size, 10);
  assert.deepEqual([read({ similarity: 9 }).value, read({ similarity: 10 })], [views.recall_here[1], null]);
  assert.match(read({ similarity: 9 }).label, /similarity 0\.33/);
  assert.deepEqual(columns.map(({ array }) => array.at(-1)), ["0.33 (dial)", ...views.recall_here]);
  near(numbersIn(read({ similarity: 4 }).sum)[0], views.similar_base[4], "S alone");
  const { x, y } = picture.layers.find(({ type }) => type === "dot");
  assert.deepEqual([x, y], [0.33, views.recall_here[1]]);
});

test("the share beyond the clip is counted, and a rule without R has nothing to show", () => {
  const { headline, views, marks: [mark], read } = pictureOf("clip", { dials: { clip: 0.5 } });
  const share = (100 * views.error.filter((x) => Math.abs(x) > 0.5).length) / views.error.length;
  assert.equal(numbersIn(headline)[0], Number(share.toPrecision(2)));
  assert.ok(views.kept.every((x) => Math.abs(x) <= 0.5) && views.error.some((x) => Math.abs(x) > 0.5));
  assert.deepEqual([mark.at(30), mark.find({ query: 2, entry: 6 })], [{ query: 2, entry: 6 }, [30]]);
  assert.equal(read({ query: 2, entry: 6 }).value, views.kept[30]);
  near(numbersIn(read({ query: 2, entry: 6 }).sum)[0], views.error[30], "before");
  assert.equal(pictureOf("clip", { dials: { target: "none" } }).headline, undefined);
  const none = pictureOf("clip", { dials: { rule: "deltanet" } });
  assert.deepEqual([none.caption, none.layers, none.read({ entry: 0 })], [en.clip.none, [], null]);
});

test("the gates shown are those that the rule has", () => {
  for (const [rule, letters] of Object.entries({ rla: "αβγ", linear: "", retnet: "α", sgla: "αβ", deltanet: "β" })) {
    const picture = pictureOf("gates", { dials: { rule, tied: true } });
    assert.equal(picture.columns.slice(1).map(({ name }) => name).join(""), letters);
    const reading = picture.read({ query: 3 });
    assert.equal(reading?.value, { α: picture.views.alpha[3], β: picture.views.beta[3] }[letters[0]]);
    if (rule === "rla") assert.equal(reading.sum, "β = 0.7, γ = 0.7"); // tied
  }
});

test("every rule stands once at the same budget, and a whole row of it can be pointed at", () => {
  const picture = pictureOf("budget", {});
  assert.match(picture.caption, /with 384 numbers/); // 2 x 16 x 12
  const names = Object.keys(spec.rules);
  const scale = { along: (x) => 200 * x, up: (y) => 200 - 25 * y };
  names.forEach((name, n) => {
    for (const x of [0.2, 0.9]) assert.deepEqual(pointUnder(scale, picture, 200 * x, 200 - 25 * (7 - n) + 4), { rule: n });
    const { value, sum, label } = picture.read({ rule: n });
    assert.equal(value, picture.views.budget_wide[n]);
    near(numbersIn(sum)[0], picture.views.budget_narrow[n], name);
    assert.ok(label.includes(`of ${en.rules[name]} with 384`));
  });
  assert.deepEqual(nextPoint(picture, { rule: 2 }, "ArrowRight"), { rule: 3 });
  assert.equal(picture.views.budget_wide[0], picture.views.recall_here[1]); // the rule on the screen
});

test("at the same budget a single memory has keys of twice the width, and as many numbers as two", () => {
  for (const [rule, same_budget, K] of [["rdn", true, 16], ["rdn", false, 16], ["gdn", true, 32], ["gdn", false, 16]]) {
    const { rows, tiles, views } = pictureOf("memories", { dials: { rule, same_budget } });
    assert.deepEqual([rows, tiles.length], [K, rule === "rdn" ? 2 : 1]);
    assert.match(pictureOf("budget", { dials: { rule, same_budget } }).caption, /with 384 numbers/);
    const among = views[same_budget ? "budget_wide" : "budget_narrow"][Object.keys(spec.rules).indexOf(rule)];
    near(among, views.recall_here[1], rule);
  }
});

test("dials that mean nothing beside the others say why, and show what is in force", () => {
  const idle = (dials) => panel.idle({ dials: { ...first.dials, ...dials } }, words, spec);
  assert.deepEqual(idle({}), {});
  assert.deepEqual(idle({ tied: true }), { correction: { why: en.tied, instead: first.dials.write } });
  assert.deepEqual(idle({ target: "log_cosh" }), { clip: { why: en.whole } });
  assert.deepEqual(idle({ input: real.dials.input }), { value_width: { why: kit.realWidth, instead: 64 } });
});

test("toy tokens have numbers, those of a real head words", () => {
  assert.equal(pictureOf("weights", {}).label({ query: 1, key: 0 }), "weight of the error at key 1 for query 2");
  assert.match(pictureOf("weights", real).label({ query: 1, key: 0 }), /at key 1 “.*” for query 2 “.*”$/);
});

test("a stroke sets every point that it passes, along a straight line, within the board", () => {
  assert.deepEqual(stroke([0.5, 0.2], [0.5, 0.2], 8), [{ n: 4, part: 0.2 }]);
  assert.deepEqual(stroke([0, 0], [1, 1], 5), [0, 1, 2, 3, 4].map((n) => ({ n, part: n / 4 })));
  assert.deepEqual(stroke([1, 0], [0.5, 1], 5), [{ n: 4, part: 0 }, { n: 3, part: 0.5 }, { n: 2, part: 1 }]);
  assert.deepEqual(stroke([0.24, 0.5], [0.26, -3], 5), [{ n: 1, part: 0 }]);
  assert.deepEqual(stroke([-2, 0.5], [9, 2], 3), [{ n: 0, part: 0.5 }, { n: 1, part: 1 }, { n: 2, part: 1 }]);
});
