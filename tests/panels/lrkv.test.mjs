import assert from "node:assert/strict";
import test from "node:test";
import { words as en } from "../../attnlab/lrkv/labels.en.js";
import { panel } from "../../attnlab/lrkv/panel.js";
import { handle, projection } from "../../attnlab/lrkv/view3d.js";
import { words as kit } from "../../attnlab/panels/labels.en.js";
import { cellTable, nextPoint, pointTable, readCell } from "../../attnlab/panels/paint.js";
import { equalsViewPy, read } from "./vectors.mjs";

const { spec, cases } = read("lrkv");
const words = { ...en, kit };
const dialsOf = Object.fromEntries(spec.dials.map((dial) => [dial.name, dial.default]));
const compute = panel.computer(spec);

equalsViewPy(panel, { spec, cases });

function pictureOf(id, { dials = {}, at = {}, pin = null, shown = "error" } = {}) {
  const state = { dials: { ...dialsOf, ...dials }, selection: { view: id, pin, shown } };
  const views = compute(state);
  const { picture } = panel.figures.find((figure) => figure.id === id);
  return { views, ...picture({ state, data: null, views, spec, words, at }) };
}

const numbersIn = (sentence) => sentence.match(/-?\d+(\.\d+)?(e-?\d+)?/g).map(Number);
const near = (got, want, name) => assert.ok(Math.abs(got - want) <= 2e-3 * Math.abs(want) + 1e-12, `${name}: ${got}, ${want}`); // four digits are shown
const ofColour = ({ layers }, colour, type = "line") => layers.filter((layer) => layer.type === type && layer.colour === colour);

test("every figure is in the spec, says where it comes from, and has a table", () => {
  assert.deepEqual(panel.figures.map(({ id }) => id), spec.views);
  for (const { id, kind } of panel.figures) {
    for (const dials of [{}, { rank: 0 }, { tokens: 2, position: 0, heads: 1 }, { position: 64, option: "none", latent_width: 0 }]) {
      const picture = pictureOf(id, { dials });
      assert.match(picture.source, /this project|pp?\. \d/, id);
      assert.ok((kind === "chart" ? pointTable : cellTable)(picture, {})[kind === "chart" ? "rows" : "columns"] > 0, id);
      assert.ok(spec.axes.includes(kind === "chart" ? picture.walk.axis : picture.axes.row), id);
    }
  }
});

test("an exact repair is out by rounding and says so, a wrong one says by how much", () => {
  for (const option of spec.dials[0].choices) {
    const { headline, caption } = pictureOf("repair", { dials: { option } });
    const exact = spec.exact.includes(option);
    assert.equal(Number(headline) < 1e-14, exact, `${option}: ${headline}`);
    assert.equal(caption.startsWith("Exact. Rank "), exact);
    assert.equal(caption.startsWith("Not exact. Rank "), !exact);
  }
});

test("an error is the factored logit without the wanted one, and later keys have none", () => {
  const n = dialsOf.tokens;
  for (const shown of ["error", "factored"]) {
    const { views, ...picture } = pictureOf("repair", { shown });
    for (const [query, key] of [[0, 0], [7, 3], [23, 23], [23, 0]]) {
      const { value, sum, label } = readCell(picture, { query, key });
      const [factored, wanted] = [views.factored, views.wanted].map((array) => array[query * n + key]);
      assert.equal(value, shown === "error" ? factored - wanted : factored);
      numbersIn(sum).forEach((number, side) => near(number, [factored, wanted][side], sum));
      assert.equal(label, `${en.options.shown[shown]} of key ${key + 1} for query ${query + 1}`);
    }
    assert.equal(readCell(picture, { query: 3, key: 4 }).masked, kit.masked);
    assert.ok(Number.isNaN(picture.array[3 * n + 4]));
  }
});

test("what leaves is told alike in the picture and on the curve", () => {
  for (const dials of [{}, { opposite: true, angle: 45 }]) {
    const [picture, curve] = ["subspace", "law"].map((id) => pictureOf(id, { dials }));
    assert.deepEqual(picture.read({ place: 9 }), curve.read({ place: 9 }));
    const { value, sum, label } = curve.read({ place: 9 });
    const [angle, closed, missed] = numbersIn(sum);
    assert.equal(label, "what leaves span(B) at t = 2.25");
    near(Math.sin((angle * Math.PI) / 180), value, "angle");
    near(closed, value, "closed form");
    near(missed, curve.views.law[3 * 257 + 9], "the repair's keys");
    assert.equal(curve.read({ place: 257 }), null);
    near(Math.sin((parseFloat(picture.headline) * Math.PI) / 180), Number(curve.headline), "here");
    assert.deepEqual(curve.columns.map(({ array }) => array[9]), [2.25, value, curve.views.law[257 + 9], curve.views.law[3 * 257 + 9]]);
    assert.match(curve.caption, dials.opposite ? /θᵢ \+ θⱼ/ : /θᵢ − θⱼ/);
  }
  assert.deepEqual(nextPoint(pictureOf("law"), { place: 256 }, "ArrowRight"), { place: 256 });
});

test("the picture draws the factor, its turned copy, the trail up to t and what leaves, from where one looks", () => {
  for (const dials of [{ turn: 0, tilt: 0 }, { turn: -120, tilt: 60, angle: 10, position: 11 }]) {
    const { views, ...picture } = pictureOf("subspace", { dials });
    const { position, angle, ...view } = { ...dialsOf, ...dials };
    const onPage = projection(view);
    const [[tip], [moved]] = [ofColour(picture, "key", "dot"), ofColour(picture, "ink", "dot")];
    const close = ({ x, y }, point) => [x, y].forEach((side, n) => assert.ok(Math.abs(side - point[n]) < 1e-12));
    close(tip, onPage(handle(angle)));
    close(tip, onPage(views.basis.subarray(0, 3)));
    close(moved, onPage(views.turned.subarray(0, 3)));
    const [left] = ofColour(picture, "error");
    close({ x: left.x[0], y: left.y[0] }, onPage(views.within.subarray(0, 3)));
    close({ x: left.x[1], y: left.y[1] }, [moved.x, moved.y]);
    const [{ x, y, find, at }] = picture.marks;
    assert.equal(x.length, 4 * position + 1);
    close({ x: x.at(-1), y: y.at(-1) }, [moved.x, moved.y]);
    assert.deepEqual([find(at(3)), find({ place: 4 * position + 1 })], [[3], []]);
    assert.deepEqual(picture.columns.map(({ array }) => array[6]), [1.5, ...views.trail.subarray(24, 28)]);
  }
});

test("a disc reaches as far as the two directions that span it", () => {
  const { views, ...picture } = pictureOf("subspace", { dials: { turn: 30, tilt: 40 } });
  const onPage = projection({ turn: 30, tilt: 40 });
  const [one, two] = [0, 4].map((at) => onPage(views.basis.subarray(at, at + 3)));
  const [{ x, low, high }] = ofColour(picture, "key", "band");
  const most = Math.hypot(one[0], two[0]);
  assert.ok(Math.abs(Math.max(...x) - most) < 1e-12 && Math.abs(Math.min(...x) + most) < 1e-12);
  assert.ok(Math.abs(Math.max(...low, ...high) - Math.hypot(one[1], two[1])) < 5e-3); // 32 steps of half a circle
});

test("looking along an axis shows the two others, and a view that is turned keeps lengths", () => {
  const side = projection({ turn: 0, tilt: 0 })([1, 2, 3]);
  const top = projection({ turn: 0, tilt: 90 })([1, 2, 3]);
  assert.deepEqual([side, top].map((point) => point.map((x) => Math.round(x * 1e12) / 1e12)), [[1, 3], [1, 2]]);
  const turned = projection({ turn: 90, tilt: 90 })([1, 0, 0]);
  assert.ok(Math.abs(turned[0]) < 1e-12 && Math.abs(turned[1] - 1) < 1e-12);
});

test("each scheme's bytes are its numbers in all layers, and the last bar reads more than MHA", () => {
  const { views, ...picture } = pictureOf("meter", { dials: { heads: 6, head_width: 128, rank: 46, groups: 4, stored: "float32", layers: 3 } });
  spec.metered.forEach((name, n) => {
    const { label, value, sum } = picture.read({ scheme: n });
    assert.deepEqual([value, label], [views.meter[n], `bytes a token, ${en.schemes[name]}`]);
    const [numbers, percent] = numbersIn(sum);
    assert.equal(numbers * 4 * 3, value);
    near(percent, (100 * value) / views.meter[0], name);
    assert.equal(picture.columns[2].array[n], views.meter[spec.metered.length + n]);
  });
  assert.equal(picture.headline, "52.6%");
  assert.equal(picture.read({ scheme: 1 }).value, 2 * 3 * 128 * 4 * 3); // three groups: four do not divide six heads
  assert.ok(picture.read({ scheme: 6 }).value > picture.read({ scheme: 0 }).value);
  assert.match(picture.read({ scheme: 4 }).sum, /context \d+(\.\d+)? MiB$/);
  assert.equal(picture.read({ scheme: 7 }), null);
});

test("the paper's percentages that its own numbers contradict are counted, and no rounding is", () => {
  const picture = pictureOf("prints");
  assert.equal(picture.headline, "5 off");
  const { label, value, sum } = picture.read({ print: 14 });
  assert.deepEqual([label, value, numbersIn(sum)], ["printed, 2.5B, Table 12", 48.4, [55.56]]);
  const [{ x, y }] = picture.marks;
  const far = spec.prints.filter((_, n) => Math.abs(x[n] - y[n]) > 0.0501).map(([table]) => table);
  assert.deepEqual(far, [7, 7, 12, 12, 12]);
  const [mine] = ofColour(picture, "key");
  near(mine.x[0], 100 * (1 / 6 + 12 / 32), "yours");
  assert.equal(picture.read({ print: 99 }), null);
});

test("heads lose their shared part to centring, and Table 3 is read with its ceiling", () => {
  const { views, ...picture } = pictureOf("diversity", { dials: { heads: 6, shared: 0.5 } });
  const { value, sum } = picture.read({ share: 33 });
  assert.equal(value, views.diversity[34 + 33]);
  near(value, 5, "after centring");
  near(numbersIn(sum)[0], views.diversity[33], "before");
  assert.equal(numbersIn(sum)[1], 5);
  const printed = picture.read({ share: 34 + 5 });
  assert.deepEqual([printed.label, printed.value, numbersIn(printed.sum)], ["printed % of 18 heads, LRKV", 93.5, [94.44]]);
  for (let n = 0; n < 8; n++) {
    const { value, sum } = picture.read({ share: 34 + n });
    assert.ok(value <= numbersIn(sum)[0]);
  }
  const [after, before, table] = picture.marks;
  assert.deepEqual([after.find({ share: 33 }), before.find({ share: 33 }), table.find({ share: 33 })], [[33], [33], []]);
  assert.deepEqual([after.find({ share: 34 }), table.find({ share: 34 }), table.find(table.at(7))], [[], [0], [7]]);
  assert.equal(picture.read({ share: 42 }), null);
});

test("a reader who hears hears the repair and its two numbers", () => {
  const state = { dials: { ...dialsOf, option: "best_latent_map" } };
  const views = compute(state);
  const heard = panel.summary({ views, state, spec, words });
  assert.ok(heard.startsWith("wrong: best map: "));
  [views.overlap[3], views.here[0] / views.here[1]].forEach((want, n) => near(numbersIn(heard)[n], want, heard));
});
