import assert from "node:assert/strict";
import test from "node:test";
import { cellTable, cellUnder, heatmaps, nextCell, nextPoint, pointTable, pointUnder, readCell } from "../../attnlab/panels/paint.js";
import { cividis, signed, themes } from "../../attnlab/panels/theme.js";

// two tables of 2 buckets (down) by 3 keys (across), stored key by key
const picture = {
  array: Float64Array.from({ length: 12 }, (_, i) => i),
  tiles: [{ offset: 0, at: { table: 0 } }, { offset: 6, at: { table: 1 } }],
  rows: 2,
  columns: 3,
  step: { row: 1, column: 2 },
  axes: { row: "bucket", column: "key" },
  title: "*Shares*",
  names: { row: "bucket", column: "key" },
  word: (axis, index) => `${axis} ${index}`,
  label: ({ table, bucket, key }) => `${table} ${bucket} ${key}`,
  sum: ({ key }) => `of ${key} terms`,
};
const frames = picture.tiles.map((tile, n) => ({ x: 100 * n, y: 10, width: 60, height: 40, bar: 20, tile }));

test("the number of a cell is found by its coordinates", () => {
  assert.deepEqual(readCell(picture, { table: 1, bucket: 1, key: 2 }), { label: "1 1 2", value: 11, sum: "of 2 terms" });
  assert.deepEqual(readCell(picture, { table: 0, bucket: 0, key: 2 }), { label: "0 0 2", value: 4, sum: "of 2 terms" });
  for (const at of [{}, { bucket: 1, key: 2 }, { table: 0, bucket: 2, key: 0 }, { table: 0, bucket: 0, key: 3 }]) assert.equal(readCell(picture, at), null);
});

test("a number that is no float64 says what it is", () => {
  assert.equal(readCell({ ...picture, dtype: "int64" }, { table: 1, bucket: 1, key: 2 }).dtype, "int64");
});

test("a masked cell keeps its number and says what it is", () => {
  const masked = ({ key }) => key > 1 && "masked";
  assert.deepEqual(readCell({ ...picture, masked }, { table: 1, bucket: 1, key: 2 }), { label: "1 1 2", value: 11, masked: "masked" });
  assert.deepEqual(readCell({ ...picture, masked }, { table: 1, bucket: 1, key: 1 }), { label: "1 1 1", value: 9, sum: "of 1 terms" });
});

test("a row or a column alone has a name, and a row with a bar the bar's number", () => {
  assert.deepEqual(readCell(picture, { key: 2 }), { label: "key 2" });
  assert.deepEqual(readCell(picture, { table: 1, bucket: 1 }), { label: "bucket 1" });
  const bars = { array: Float64Array.of(0, 1, 2, 3), label: ({ table, bucket }) => `mass ${table} ${bucket}`, sum: () => "all keys" };
  const tiles = picture.tiles.map((tile, n) => ({ ...tile, bars: 2 * n }));
  const read = (at) => readCell({ ...picture, tiles, bars }, at);
  assert.deepEqual(read({ table: 1, bucket: 1 }), { label: "mass 1 1", value: 3, sum: "all keys" });
  assert.equal(read({ table: 1, bucket: 2 }), null);
  assert.equal(read({ key: 3 }), null);
});

test("a table holds the tile in focus, masked cells as words", () => {
  const masked = ({ key }) => key > 1 && "masked";
  const table = cellTable({ ...picture, masked }, { table: 1, bucket: 1, key: 0 });
  assert.deepEqual([table.title, table.rows, table.columns, table.corner], ["Shares", 2, 3, "bucket \\ key"]);
  assert.deepEqual([table.row(1), table.column(2), table.focus], ["bucket 1", "key 2", { row: 1, column: 0 }]);
  const cells = [0, 1].map((r) => [0, 1, 2].map((c) => table.value(r, c)));
  assert.deepEqual(cells, [[6, 8, "masked"], [7, 9, "masked"]]);
  assert.equal(cellTable(picture, {}).value(0, 0), 0); // the first tile where none is in focus
  const own = ({ table, key }) => table === 1 && key > 1 && "masked"; // a tile may have a mask of its own
  assert.equal(cellTable({ ...picture, masked: own }, { table: 0, bucket: 0, key: 0 }).value(0, 2), 4);
  assert.equal(cellTable({ ...picture, masked: own }, { table: 1, bucket: 0, key: 0 }).value(0, 2), "masked");
});

test("a chart's table has a row for each number of its first column", () => {
  const columns = [{ name: "L", array: [1, 2] }, { name: "error", array: [0.5, 0.25] }, { name: "rate", array: [1, 0.7] }];
  const table = pointTable({ title: "*Error*", columns, walk: { axis: "tables" } }, { tables: 1 });
  assert.deepEqual([table.title, table.rows, table.columns, table.corner], ["Error", 2, 2, "L"]);
  assert.deepEqual([table.row(1), table.column(0), table.value(1, 0), table.value(1, 1)], ["2", "error", 0.25, 0.7]);
  assert.deepEqual(table.focus, { row: 1 });
});

test("the cell under the pointer, the bar beside it, and nothing between", () => {
  assert.deepEqual(cellUnder({ frames }, picture, 145, 35), { table: 1, bucket: 1, key: 2 });
  assert.deepEqual(cellUnder({ frames }, picture, 70, 12), { table: 0, bucket: 0 });
  assert.equal(cellUnder({ frames: frames.slice(0, 1) }, picture, 90, 20), null);
  assert.equal(cellUnder({ frames }, picture, 30, 75), null);
});

test("the words along an axis stand for a whole row or column", () => {
  assert.deepEqual(cellUnder({ frames }, picture, 30, 55), { key: 1 });
  assert.deepEqual(cellUnder({ frames }, picture, 90, 20), { table: 1, bucket: 0 });
});

test("keys walk from the first cell and stop at the edges", () => {
  assert.deepEqual(nextCell(picture, {}, "ArrowRight"), { table: 0, bucket: 0, key: 0 });
  assert.deepEqual(nextCell(picture, { table: 0, bucket: 0, key: 0 }, "ArrowRight"), { table: 0, bucket: 0, key: 1 });
  assert.deepEqual(nextCell(picture, { table: 0, bucket: 0, key: 0 }, "ArrowUp"), { table: 0, bucket: 0, key: 0 });
  assert.deepEqual(nextCell(picture, { table: 0, bucket: 1, key: 2 }, "PageDown"), { table: 1, bucket: 1, key: 2 });
  assert.deepEqual(nextCell(picture, { table: 1, bucket: 1, key: 2 }, "ArrowRight"), { table: 1, bucket: 1, key: 2 });
  assert.equal(nextCell(picture, {}, "b"), null);
});

test("keys reach a token alone: before the first column that of a row, below the last row that of a column", () => {
  const pairs = { ...picture, tiles: [{ offset: 0, at: {} }], axes: { row: "query", column: "key" } };
  assert.deepEqual(nextCell(pairs, { query: 1, key: 0 }, "ArrowLeft"), { query: 1 });
  assert.deepEqual(nextCell(pairs, { query: 1 }, "ArrowLeft"), { query: 1 });
  assert.deepEqual(nextCell(pairs, { query: 1 }, "ArrowUp"), { query: 0 });
  assert.deepEqual(nextCell(pairs, { query: 1 }, "ArrowRight"), { query: 1, key: 0 });
  assert.deepEqual(nextCell(pairs, { query: 1, key: 2 }, "ArrowDown"), { key: 2 });
  assert.deepEqual(nextCell(pairs, { key: 2 }, "ArrowDown"), { key: 2 });
  assert.deepEqual(nextCell(pairs, { key: 2 }, "ArrowLeft"), { key: 1 });
  assert.deepEqual(nextCell(pairs, { key: 0 }, "ArrowLeft"), { key: 0 });
  assert.deepEqual(nextCell(pairs, { key: 2 }, "ArrowUp"), { query: 1, key: 2 });
  assert.deepEqual(nextCell(barred, { table: 1, bucket: 1, key: 2 }, "ArrowDown"), { key: 2 });
  assert.deepEqual(nextCell(barred, { table: 1, bucket: 1 }, "ArrowDown"), { table: 1, bucket: 1 });
  assert.deepEqual(nextCell(barred, { table: 1, bucket: 1, key: 0 }, "ArrowLeft"), { table: 1, bucket: 1, key: 0 });
});

const barred = {
  ...picture,
  tiles: picture.tiles.map((tile, n) => ({ ...tile, bars: 2 * n })),
  bars: { array: Float64Array.of(0.5, 1.5, 2.5, 3.5), max: 3.5, name: "mass", label: ({ bucket }) => `mass ${bucket}`, sum: () => "" },
};

test("keys walk on from the last cell to the bar, along the bars, and back", () => {
  const bar = { table: 0, bucket: 1 };
  const last = { ...bar, key: 2 };
  assert.deepEqual(nextCell(barred, last, "ArrowRight"), bar);
  assert.deepEqual(nextCell(barred, bar, "ArrowRight"), bar);
  assert.deepEqual(nextCell(barred, bar, "ArrowLeft"), last);
  assert.deepEqual(nextCell(barred, bar, "ArrowUp"), { table: 0, bucket: 0 });
  assert.deepEqual(nextCell(barred, bar, "PageDown"), { table: 1, bucket: 1 });
  assert.deepEqual(nextCell(barred, {}, "ArrowRight"), { table: 0, bucket: 0, key: 0 });
  assert.deepEqual(nextCell(picture, last, "ArrowRight"), last); // no bars, no place for them
});

test("a table has the bars as its last column", () => {
  const table = cellTable(barred, { table: 1, bucket: 1 });
  assert.deepEqual([table.columns, table.beside, table.column(2), table.column(3)], [4, 1, "key 2", "mass"]);
  assert.deepEqual([0, 1].map((r) => [2, 3].map((c) => table.value(r, c))), [[10, 2.5], [11, 3.5]]);
  assert.deepEqual(table.focus, { row: 1, column: 3 });
  assert.deepEqual(cellTable(barred, { table: 1, bucket: 1, key: 0 }).focus, { row: 1, column: 0 });
  assert.deepEqual(cellTable(barred, {}).focus, { row: undefined, column: undefined });
});

// A canvas that keeps the cells drawn onto it, its rectangles, and the lines of its hatching.
function painted(given, { width = 342, height = 321, ratio = 1 } = {}) {
  const kept = { stamps: [], rects: [], lines: 0 };
  const spare = {};
  globalThis.document = {
    createElement: () => ({
      getContext() {
        return {
          canvas: this,
          createImageData: (wide, high) => ({ width: wide, height: high, data: new Uint8ClampedArray(4 * wide * high) }),
          putImageData: (image) => kept.stamps.push({ ...image, words: new Uint32Array(image.data.buffer) }),
        };
      },
    }),
  };
  const own = { measureText: () => ({ width: 9 }), rect: (...box) => kept.rects.push(box), lineTo: () => kept.lines++ };
  const ctx = new Proxy(own, { get: (all, name) => all[name] ?? (() => {}) });
  const ends = { row: ["", ""], column: ["", ""] };
  heatmaps(ctx, { width, height, ratio, theme: themes.light, spare }, { ends, colours: {}, ...given }, {}, null);
  delete globalThis.document;
  return { ...kept, spare };
}

const matrix = (rows, columns, numbers, scale) => ({
  ...picture,
  array: Float64Array.from(numbers),
  tiles: [{ offset: 0, at: {} }],
  rows,
  columns,
  step: { row: columns, column: 1 },
  square: true,
  scale,
});

const channels = (word) => [word & 255, (word >> 8) & 255, (word >> 16) & 255];
const luminance = (word) => {
  const [r, g, b] = channels(word).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

test("colours of both signs are lightest at zero, darker with every step from it, and alike in grey", () => {
  assert.equal(signed.length, 511);
  const light = (word) => 116 * Math.cbrt(luminance(word)) - 16; // CIE lightness
  for (let n = 1; n <= 255; n++) {
    const [below, above] = [light(signed[255 - n]), light(signed[255 + n])];
    assert.ok(Math.abs(below - above) < 1.5, `${n}: ${below}, ${above}`);
    assert.ok(below < light(signed[256 - n]) + 1e-9 && above < light(signed[254 + n]) + 1e-9, `${n}`);
    if (n > 60) {
      const [[r, , b], [red, , blue]] = [channels(signed[255 - n]), channels(signed[255 + n])];
      assert.ok(b - r > 50 && red - blue > 50, `${n}`); // blue and orange: apart for all who see few colours
    }
  }
  const [r, g, b] = channels(signed[255]);
  assert.ok(r === g && g === b);
  assert.ok(light(signed[0]) > 30 && light(signed[510]) > 30); // above a dark page
});

test("numbers of both signs are coloured from the middle, by the farther end", () => {
  const numbers = [0, -0.5, 0.5, -2, 2, -0.125, 1, -1, 0.125];
  for (const scale of [{ min: -1, max: 1 }, { min: -1, max: 0.25 }, { min: -0.25, max: 1 }, { max: 1, diverging: true }]) {
    const [{ words }] = painted(matrix(3, 3, numbers, scale)).stamps;
    assert.deepEqual([...words], [0, -0.5, 0.5, -1, 1, -0.125, 1, -1, 0.125].map((part) => signed[255 + Math.round(255 * part)]));
  }
  const [{ words }] = painted(matrix(1, 3, [-0.25, 0.25, 0], { min: -1, max: 1, root: true })).stamps;
  assert.deepEqual([...words], [-0.5, 0.5, 0].map((part) => signed[Math.round(255 + 255 * part)]));
});

test("numbers of one sign are coloured from the low end to the high one", () => {
  const from = (numbers, scale) => [...painted(matrix(1, numbers.length, numbers, scale)).stamps[0].words];
  const parts = (...all) => all.map((part) => cividis[Math.round(255 * part)]);
  assert.deepEqual(from([0, 0.5, 1, 7, -3], { max: 1 }), parts(0, 0.5, 1, 1, 0));
  assert.deepEqual(from([0.25, 1], { max: 1, root: true }), parts(0.5, 1));
  assert.deepEqual(from([3, 4, 5], { min: 3, max: 5 }), parts(0, 0.5, 1));
  assert.deepEqual(from([-1, 0, 1], { min: -1, max: 1, diverging: false }), parts(0, 0.5, 1));
  assert.deepEqual(from([0, 0], { max: 0 }), parts(0, 0));
});

test("where there is no number there is no colour but a hatching", () => {
  for (const scale of [{ max: 1 }, { min: -1, max: 1 }, { max: 1, root: true }]) {
    const { stamps, lines } = painted(matrix(1, 3, [NaN, 0, 1], scale));
    assert.deepEqual([...stamps[0].words].map(Boolean), [false, true, true]);
    assert.ok(lines > 10);
    assert.equal(painted(matrix(1, 3, [0, 0, 1], scale)).lines, 0);
  }
});

test("of cells that share a pixel the one farthest from zero is seen", () => {
  for (const [step, at] of [[{ row: 1000, column: 1 }, 617 * 1000 + 333], [{ row: 1, column: 1000 }, 333 * 1000 + 617]]) {
    for (const [value, scale] of [[1, { max: 1 }], [-1, { min: -1, max: 1 }], [1, { min: -1, max: 1 }]]) {
      const given = matrix(1000, 1000, new Float64Array(1e6).fill(NaN), scale);
      given.array.fill(0.25, 0, 9e5);
      given.array[at] = value;
      const [{ width, height, words }] = painted({ ...given, step }, { width: 122.7, height: 121.3, ratio: 2 }).stamps;
      assert.deepEqual([width, height], [200, 200]); // never more than the screen has, or one would be left out
      const seen = words[Math.floor(617 / 5) * 200 + Math.floor(333 / 5)];
      assert.equal(seen, scale.min ? signed[255 + 255 * value] : cividis[255]);
      const quarter = scale.min ? signed[255 + 64] : cividis[64];
      const share = (word) => words.filter((other) => other === word).length;
      assert.deepEqual([share(seen), share(quarter), share(0)], [1, 36e3 - 1, 4e3]);
    }
  }
});

test("bars of both signs start at a line of zero, and what is no number has none", () => {
  const bars = { ...barred.bars, array: Float64Array.of(2, -1, 0, NaN), min: -1, max: 2 };
  const given = { ...matrix(4, 1, [0, 0, 0, 0], { max: 1 }), square: false, tiles: [{ offset: 0, bars: 0, at: {} }], bars };
  const [up, down, none, nan] = painted(given).rects;
  const left = 342 - 34 + 3;
  const near = (got, want) => assert.ok(Math.abs(got - want) < 1e-9, `${got}, ${want}`);
  near(up[0], left + 28 / 3);
  near(up[2], 56 / 3);
  near(down[0], left);
  near(down[0] + down[2], up[0]);
  assert.deepEqual([none[0], none[2]], [up[0], 0.5]);
  assert.ok(Number.isNaN(nan[0] + nan[2])); // a rectangle that a canvas leaves out
  const [from] = painted({ ...given, bars: { ...bars, array: Float64Array.of(1, 1, 1, 1), min: undefined } }).rects;
  near(from[0], left);
  near(from[2], 14);
});

test("what painting keeps belongs to the figure, and the next frame finds it", () => {
  const { spare } = painted(matrix(2, 2, [0, 0, 0, 1], { max: 1 }));
  assert.deepEqual([spare.canvas.width, spare.canvas.height], [2, 2]);
});

test("the nearest number of a chart within reach, and the next one", () => {
  const chart = { marks: [{ x: [0, 1, 2], y: [0, 0, 0], at: (i) => ({ tables: i }) }], walk: { axis: "tables", size: 3 } };
  const geometry = { along: (x) => 100 * x, up: (y) => 50 - y };
  assert.deepEqual(pointUnder(geometry, chart, 104, 45), { tables: 1 });
  assert.equal(pointUnder(geometry, chart, 150, 50), null);
  assert.deepEqual(nextPoint(chart, {}, "ArrowRight"), { tables: 0 });
  assert.deepEqual(nextPoint(chart, { tables: 2 }, "ArrowRight"), { tables: 2 });
  assert.deepEqual(nextPoint(chart, { tables: 2 }, "ArrowLeft"), { tables: 1 });
  assert.equal(nextPoint(chart, { tables: 2 }, "Enter"), null);
});
