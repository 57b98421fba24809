import assert from "node:assert/strict";
import test from "node:test";
import { cellTable, cellUnder, nextCell, nextPoint, pointTable, pointUnder, readCell } from "../../attnlab/panels/paint.js";

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
  assert.deepEqual(nextCell(picture, { table: 1, bucket: 1, key: 2 }, "ArrowDown"), { table: 1, bucket: 1, key: 2 });
  assert.equal(nextCell(picture, {}, "b"), null);
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
