import assert from "node:assert/strict";
import test from "node:test";
import { words as en } from "../../attnlab/hashattention/labels.en.js";
import { names } from "../../attnlab/hashattention/mathematics.js";
import { panel } from "../../attnlab/hashattention/panel.js";
import { words as kit } from "../../attnlab/panels/labels.en.js";
import { cellTable, nextCell, nextPoint, pointTable, readCell } from "../../attnlab/panels/paint.js";
import { equalsViewPy, given, read } from "./vectors.mjs";

const { spec, cases } = read("hashattention");
const words = { ...en, kit };
const [first] = cases;
const T = first.dials.tokens;
const learned = cases.find(({ data, dials }) => data?.key_codes && dials.codes === "learned");
const compute = panel.computer(spec);

equalsViewPy(panel, { spec, cases });

function pictureOf(id, { dials = {}, data = null, at = {}, pin = null, grid = "differences" }) {
  const state = { dials: { ...first.dials, ...dials }, selection: { view: id, pin, grid } };
  const views = compute(state, given(data));
  const { picture } = panel.figures.find((figure) => figure.id === id);
  return { views, ...picture({ state, data, views, spec, words, at }) };
}

const numbersIn = (sentence) => sentence.match(/-?\d+(\.\d+)?(e-?\d+)?/g).map(Number);
const near = (got, want, name) => assert.ok(Math.abs(got - want) <= 2e-3 * Math.abs(want) + 1e-12, `${name}: ${got}, ${want}`); // four digits are shown
const places = (views, name, t) => Array.from(views[name].subarray(t * T, t * T + T));

// The keys that query t may choose among by their place, worked out anew.
const ranked = (views, name, t) => places(views, name, t).map((place, key) => [place, key]).filter(([place]) => place > 0).sort((a, b) => a[0] - b[0]).map(([, key]) => key);

test("every figure is in the spec, says where it comes from, and has a table", () => {
  assert.deepEqual(panel.figures.map(({ id }) => id), spec.views);
  for (const { id, kind } of panel.figures) {
    for (const each of [{}, { dials: { selector: "quest", budget: 0 } }, { dials: { tokens: 8 } }, { dials: { sinks: 64 } }, learned]) {
      const picture = pictureOf(id, each);
      assert.match(picture.source, /this project|pp?\. \d/, id);
      const none = picture.views.code_place.every((place) => place <= 0) && ["codes", "orders"].includes(id);
      assert.ok((kind === "chart" ? pointTable : cellTable)(picture, {})[kind === "chart" ? "rows" : "columns"] > 0 || none, id);
      assert.ok(spec.axes.includes(kind === "chart" ? picture.walk.axis : picture.axes.row), id);
    }
  }
});

test("where all keys are read in any case the panel says that none is left to choose", () => {
  const { columns, caption } = pictureOf("codes", { dials: { tokens: 12 } });
  assert.deepEqual([columns, caption.startsWith(en.codes.all)], [0, true]);
  assert.deepEqual([pictureOf("orders", { dials: { tokens: 12 } }).headline, pictureOf("histogram", { dials: { tokens: 12 } }).headline], ["0 of 0 found", undefined]);
});

test("a key's column holds its bits, or where they differ from the query's, and whether it is a true top and read", () => {
  for (const grid of ["codes", "differences"]) {
    const { views, rows, columns, ...picture } = pictureOf("codes", { grid, at: { query: 40, rank: 3 } });
    const order = ranked(views, "code_place", 40);
    const b = first.dials.bits;
    assert.deepEqual([rows, columns], [b + 3, order.length]);
    order.forEach((key, rank) => {
      const value = (bit) => readCell({ ...picture, rows, columns }, { query: 40, bit, rank }).value;
      const bits = Array.from({ length: b }, (_, i) => value(i));
      const own = Array.from(views.key_bits.subarray(key * b, key * b + b));
      const query = views.query_bits.subarray(40 * b, 41 * b);
      assert.deepEqual(bits, grid === "codes" ? own : own.map((x, i) => Number(x !== query[i])));
      const distance = bits.reduce((sum, x) => sum + x, 0);
      if (grid === "differences") assert.equal(distance, views.distance[40 * T + key]);
      const top = views.true_place[40 * T + key];
      assert.deepEqual([value(b + 1), value(b + 2)], [Number(top <= first.dials.top), Number(rank < first.dials.budget)]);
    });
    const { row, column } = picture.edges({});
    assert.deepEqual(Array.from({ length: b }, (_, r) => row(r)), Array.from(views.query_bits.subarray(40 * b, 41 * b)));
    assert.deepEqual([column(3), column(4), row(b)], [1, 0, 0]); // the key in focus is marked, wherever it was found
  }
});

test("a key is told by its text, its code and its place in both orders", () => {
  const { views, ...picture } = pictureOf("codes", { at: { query: 63 } });
  const key = ranked(views, "code_place", 63)[5];
  const { label, sum, dtype } = readCell(picture, { query: 63, rank: 5, bit: 2 });
  const name = names({ dials: first.dials }, null, spec)[key];
  assert.deepEqual([label, dtype], [`bit 3 of key ${key + 1} “${name}”`, "bit"]);
  const [code, distance, place, true_place] = sum.match(/^([01 ]+) · distance (\d+), place (\d+) of 52 · by logit place (\d+)$/).slice(1);
  assert.equal(code.replaceAll(" ", ""), views.key_bits.subarray(key * 32, key * 32 + 32).join(""));
  assert.deepEqual([distance, place, true_place].map(Number), [views.distance[63 * T + key], 6, views.true_place[63 * T + key]]);
  assert.equal(readCell(picture, { query: 63, rank: 5 }).label, `key ${key + 1} “${name}”, distance ${distance}`);
  assert.deepEqual(nextCell(picture, { query: 63, rank: 5, bit: 2 }, "ArrowRight"), { query: 63, rank: 6, bit: 2 });
});

test("the query shown is the one in focus, else the pinned one, else the dial's, and never past the last", () => {
  for (const [at, pin, dial, t] of [[{}, null, 64, 63], [{}, null, 9, 8], [{}, null, 200, 63], [{ query: 5 }, { query: 7 }, 9, 5], [{}, { query: 7 }, 9, 7], [{ query: T }, null, 9, 8]]) {
    assert.equal(pictureOf("codes", { at, pin, dials: { query: dial } }).tiles[0].at.query, t);
  }
});

test("the distances are counted, and the cut is that of the last key read", () => {
  const { views, ...picture } = pictureOf("histogram", { at: { query: 63, rank: 0 } });
  const order = ranked(views, "code_place", 63);
  const distances = order.map((key) => views.distance[63 * T + key]);
  const [, keys, top, read] = picture.columns.map(({ array }) => Array.from(array));
  for (let d = 0; d <= 32; d++) {
    const there = order.filter((_, n) => distances[n] === d);
    const { value, sum } = picture.read({ query: 63, distance: d });
    assert.deepEqual([value, keys[d]], [there.length, there.length]);
    const of = [there.filter((key) => views.true_place[63 * T + key] <= 8).length, there.filter((key) => order.indexOf(key) < 8).length];
    assert.deepEqual([numbersIn(sum), [top[d], read[d]]], [of, of]);
  }
  assert.equal(picture.headline, `cut at ${distances[7]}`);
  assert.deepEqual(picture.marks[0].find({ query: 63, key: order[4] }), [distances[4]]); // a key stands on its bar
  assert.equal(picture.read({ query: 5, distance: 3 }), null);
  assert.equal(pictureOf("histogram", { dials: { budget: 0 } }).headline, undefined);
});

test("true top keys are found or missed by the selector that is chosen", () => {
  for (const selector of ["hash", "key_norm", "exact"]) {
    const { views, ...picture } = pictureOf("orders", { dials: { selector } });
    const found = places(views, "true_place", 63).filter((place, key) => place > 0 && place <= 8 && views.place[63 * T + key] <= 8).length;
    assert.equal(picture.headline, `${found} of 8 found`);
    const dots = picture.layers.filter(({ type }) => type === "dot");
    assert.equal(dots.filter(({ colour }) => colour === "key").length, found);
    assert.deepEqual(dots.filter(({ colour }) => colour === "error").length, 8 - found);
    assert.ok(dots.every(({ x, colour }) => (colour === "key") === x <= 8));
    const key = ranked(views, "code_place", 63)[3];
    const [{ x, y, find, at }] = picture.marks;
    assert.deepEqual([x[3], y[3], find(at(3)), find({ query: 63, key })], [views.place[63 * T + key], views.true_place[63 * T + key], [3], [3]]);
    assert.deepEqual(picture.read({ rank: 3 }).value, views.logits[63 * T + key]);
    assert.deepEqual([find({ query: 3, rank: 3 }), picture.read({ query: 3, rank: 3 }), picture.read({ rank: 99 })], [[], null, null]);
  }
  assert.equal(pictureOf("orders", { dials: { selector: "exact" } }).headline, "8 of 8 found");
});

test("a weight over what is read is the softmax that it names, and what is not read has none", () => {
  const { views, ...picture } = pictureOf("reads", { dials: { selector: "past_mean" } });
  const read = places(views, "place", 50).map((place) => place >= 0 && place <= 8);
  assert.equal(read.filter(Boolean).length, 4 + 8 + 8);
  read.forEach((is, key) => {
    const { value, masked, sum } = readCell(picture, { query: 50, key });
    if (!is) return assert.equal(masked, key > 50 ? kit.masked : en.reads.unread);
    const [logit, top, total, keys] = numbersIn(sum);
    assert.equal(keys, 20);
    near(Math.exp(logit - top) / total, value, `key ${key}`);
  });
  const [row, column] = [picture.edges({}).row, pictureOf("reads", { at: { query: 50, key: 2 } }).edges({}).column];
  assert.deepEqual([row(63), row(50), column(2), column(3)], [1, 0, 1, 0]);
});

test("every selector has a curve, the dial's own budget is its last point, and names stand by their numbers there", () => {
  for (const [n, which] of ["recall", "mass", "error"].entries()) {
    const { views, ...picture } = pictureOf(which, { dials: { selector: "quest", budget: 11 } });
    const here = views.here.subarray(7 * n, 7 * n + 7);
    const [budgets, ...lines] = picture.columns;
    assert.deepEqual(budgets.array, [1, 2, 4, 8, 16, 32, "11 (dial)"]);
    spec.curves.forEach((name, s) => {
      assert.equal(lines[s].name, en.selectors[name]);
      assert.deepEqual(lines[s].array, [...views[which].subarray(8 * s, 8 * s + 6), here[s]]);
      const { label, value } = picture.read({ selector: s, budget: 3 });
      assert.deepEqual([value, label], [lines[s].array[3], `${en[which].title}, ${en.selectors[name]}, budget 8`]);
      const { x, at, find } = picture.marks[s];
      assert.deepEqual([x[6], at(6), find({ selector: s, budget: 6 }), find({ selector: s + 1, budget: 6 })], [11, { selector: s, budget: 6 }, [6], []]);
    });
    const legend = picture.layers.filter(({ type }) => type === "label");
    const standing = Object.entries(en.selectors).sort(([a], [b]) => here[spec.curves.indexOf(b)] - here[spec.curves.indexOf(a)]);
    assert.deepEqual(legend.map(({ label }) => here[Object.values(en.selectors).indexOf(label) < 0 ? NaN : spec.curves.findIndex((name) => en.selectors[name] === label)]), standing.map(([name]) => here[spec.curves.indexOf(name)]));
    near(Number(picture.headline), here[4], "the selector's own");
    assert.deepEqual(nextPoint(picture, { selector: 4, budget: 5 }, "ArrowRight"), { selector: 4, budget: 6 });
    assert.equal(picture.read({ budget: 7 }), null);
  }
});

test("where no maps were learned the panel says so in a sentence and shows random codes", () => {
  const caption = (each) => pictureOf("codes", each).caption;
  assert.match(caption({ dials: { codes: "learned" } }), /^No maps were learned for this input\. 32 bits, random/);
  assert.match(caption({ dials: { codes: "random" } }), /^32 bits, random projections\./);
  assert.match(caption({ data: learned.data, dials: { ...learned.dials, bits: 64 } }), /^32 bits, learned\./); // as many as there are
  const without = { ...learned.data, key_codes: undefined, query_codes: undefined };
  assert.match(caption({ data: without, dials: { ...learned.dials, bits: 9 } }), /^No maps .* 9 bits, random projections, keys centred/);
});

test("tokens have the names that Python gives them", () => {
  for (const { dials, data, tokens } of cases) assert.deepEqual(names({ dials }, data, spec), tokens);
});

test("a reader who hears hears the selector and its three numbers", () => {
  const views = compute({ dials: first.dials }, null);
  const heard = panel.summary({ views, state: { dials: first.dials }, spec, words });
  [0, 1, 2].forEach((n) => near(numbersIn(heard)[n], views.here[7 * n], "summary"));
  assert.ok(heard.startsWith("codes:"));
});
