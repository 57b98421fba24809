// Painting on a canvas: heatmaps as small multiples, and charts. Nothing here computes; a picture is data (see
// pictures.js). Painting returns where things lie, so that the number under the pointer can be told. `at` holds
// coordinates by axis, such as { query: 3, key: 5 }: what is in focus; `pin` the same or null: what is pinned. `spare`
// is an object of the figure's own, in which one frame leaves a canvas and an array to the next.
import { cividis, signed } from "./theme.js";

function write(ctx, words, x, y, colour, align = "left", base = "alphabetic") {
  ctx.fillStyle = colour;
  ctx.textAlign = align;
  ctx.textBaseline = base;
  ctx.fillText(words, x, y);
}

// -- heatmaps -------------------------------------------------------------------------------------------------------

const EDGE = { left: 20, bottom: 19, top: 2, right: 2 };
const STRIP = 3; // pixels beside the cells that show a part of each token
const TILE = { gap: 12, title: 15, foot: 3, bars: 34 };

// How many tiles stand side by side: the choice that leaves the largest tiles of about three to two.
function abreast(count, width, height) {
  const size = (n) => Math.min(width / n / 1.5, height / Math.ceil(count / n));
  let best = 1;
  for (let n = 2; n <= count; n++) if (size(n) > size(best)) best = n;
  return best;
}

// Where the cells of each tile lie: { x, y, width, height, bar, tile }.
function arrange({ tiles, square, bars }, width, height) {
  if (square) {
    const side = Math.min(width - EDGE.left - EDGE.right, height - EDGE.top - EDGE.bottom);
    return [{ x: EDGE.left, y: EDGE.top, width: side, height: side, bar: 0, tile: tiles[0] }];
  }
  const n = abreast(tiles.length, width, height);
  const wide = (width - EDGE.left - TILE.gap * (n - 1)) / n;
  const high = (height - EDGE.bottom) / Math.ceil(tiles.length / n);
  const bar = bars ? Math.min(TILE.bars, wide / 4) : 0;
  return tiles.map((tile, i) => ({
    x: EDGE.left + (i % n) * (wide + TILE.gap),
    y: Math.floor(i / n) * high + TILE.title,
    width: wide - bar,
    height: high - TILE.title - TILE.foot,
    bar,
    tile,
  }));
}

// A small canvas that is drawn onto the large one: cells as pixels, or a cloud of points.
function stampOf(spare, width, height) {
  const canvas = (spare.canvas ??= document.createElement("canvas"));
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  return canvas.getContext("2d", { willReadFrequently: true });
}

export const isSigned = ({ min = 0, diverging = min < 0 }) => diverging;

// The numbers' colours as words of an ImageData; 0 for NaN, which has none.
function colour(pixels, numbers, scale) {
  const { min = 0, max, root } = scale;
  const far = isSigned(scale);
  const [colours, zero, low] = far ? [signed, 255, 0] : [cividis, 0, min];
  const gain = 1 / ((far ? Math.max(max, -min) : max - min) || 1);
  const foot = far ? -1 : 0;
  for (let i = 0; i < numbers.length; i++) {
    const part = Math.max(Math.min((numbers[i] - low) * gain, 1), foot);
    const bent = root ? Math.sign(part) * Math.sqrt(Math.abs(part)) : part;
    pixels[i] = part === part ? colours[(zero + 255 * bent + 0.5) | 0] : 0;
  }
}

// The numbers of a tile at most `wide` across and `high` down: of those that share a pixel the largest, or of both
// signs the farthest from zero; blended, one large number among small ones would be lost. NaN only where all are.
function thinned({ array, rows, columns, step, scale }, offset, wide, high) {
  const kept = new Float64Array(wide * high).fill(NaN);
  const best = new Float64Array(wide * high).fill(-Infinity);
  const far = isSigned(scale);
  const along = (size, fit, by, step) => {
    return { size, step, places: Int32Array.from({ length: size }, (_, n) => by * Math.floor((n * fit) / size)) };
  };
  const axes = [along(rows, high, wide, step.row), along(columns, wide, 1, step.column)];
  const [outer, inner] = axes.sort((a, b) => b.step - a.step); // as the numbers lie in memory
  const { size, places } = inner;
  for (let o = 0; o < outer.size; o++) {
    const start = outer.places[o];
    for (let i = 0, from = offset + o * outer.step; i < size; i++, from += inner.step) {
      const number = array[from];
      const weight = far ? Math.abs(number) : number;
      const at = start + places[i];
      if (!(weight > best[at])) continue;
      best[at] = weight;
      kept[at] = number;
    }
  }
  return kept;
}

// Where there is no number the page shows through, hatched.
function hatch(ctx, { x, y, width, height }, theme) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, width, height);
  ctx.clip();
  ctx.beginPath();
  for (let d = -height; d < width; d += 5) {
    ctx.moveTo(x + d, y + height);
    ctx.lineTo(x + d + height, y);
  }
  ctx.lineWidth = 1;
  ctx.strokeStyle = theme.edge;
  ctx.stroke();
  ctx.restore();
}

function paintCells(ctx, frame, picture, { ratio, theme, spare }) {
  const fit = (cells, length) => Math.max(Math.min(cells, Math.floor(length * ratio)), 1);
  const [wide, high] = [fit(picture.columns, frame.width), fit(picture.rows, frame.height)];
  const numbers = thinned(picture, frame.tile.offset, wide, high);
  const pen = stampOf(spare, wide, high);
  const image = pen.createImageData(wide, high);
  const pixels = new Uint32Array(image.data.buffer);
  colour(pixels, numbers, picture.scale);
  pen.putImageData(image, 0, 0);
  if (pixels.includes(0)) hatch(ctx, frame, theme);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(pen.canvas, frame.x, frame.y, frame.width, frame.height);
}

// One bar a row to the right of the cells, from zero on; none where there is no number.
function paintBars(ctx, frame, { rows, bars }, theme) {
  const { array, min = 0, max } = bars;
  const left = frame.x + frame.width + 3;
  const place = (number) => left + ((number - min) / (max - min || 1)) * (frame.bar - 6);
  const zero = place(0);
  const high = frame.height / rows;
  const gap = high > 3 ? 1 : 0;
  ctx.fillStyle = theme[bars.colour];
  ctx.beginPath();
  for (let r = 0; r < rows; r++) {
    const end = place(array[frame.tile.bars + r]);
    const long = Math.max(Math.abs(end - zero), 0.5);
    ctx.rect(end < zero ? zero - long : zero, frame.y + r * high + gap / 2, long, Math.max(high - gap, 0.5));
  }
  ctx.fill(); // as one path: there may be thousands of bars
  ctx.fillStyle = theme.line;
  ctx.fillRect(zero - 1, frame.y, 0.75, frame.height);
}

// Beside the cells: how much of each row's and each column's token lies in what is in focus elsewhere.
function paintEdges(ctx, frame, { rows, columns, colours, edges }, at, theme) {
  const parts = edges?.(at);
  if (!parts) return;
  const [high, wide] = [frame.height / rows, frame.width / columns];
  ctx.fillStyle = theme[colours.row.replace("Text", "")];
  for (let r = 0; r < rows; r++) {
    ctx.globalAlpha = parts.row(r);
    ctx.fillRect(frame.x - STRIP - 1, frame.y + r * high, STRIP, high);
  }
  ctx.fillStyle = theme[colours.column.replace("Text", "")];
  for (let c = 0; c < columns; c++) {
    ctx.globalAlpha = parts.column(c);
    ctx.fillRect(frame.x + c * wide, frame.y + frame.height + 1, wide, STRIP);
  }
  ctx.globalAlpha = 1;
}

const belongs = (tile, at) => Object.entries(tile.at).every(([axis, index]) => (at[axis] ?? index) === index);

// Outline the cell in focus, or its row or column where only one coordinate is known.
function paintFocus(ctx, frame, { rows, columns, axes }, at) {
  const row = at[axes.row] < rows ? at[axes.row] : null;
  const column = at[axes.column] < columns ? at[axes.column] : null;
  if (row === null && column === null) return;
  const w = frame.width / columns;
  const h = frame.height / rows;
  const box = [
    frame.x + (column ?? 0) * w,
    frame.y + (row ?? 0) * h,
    column === null ? frame.width : w,
    row === null ? frame.height : h,
  ];
  for (const [width, colour] of [
    [3, "rgba(0,0,0,.75)"],
    [1.5, "#ffffff"],
  ]) {
    ctx.lineWidth = width;
    ctx.strokeStyle = colour;
    ctx.strokeRect(...box);
  }
}

// Words along an axis: the names of its first and last index where there is room, between them its own name or the one
// in focus.
function paintAxis(ctx, { middle, ends, colour, muted }, x, y, length) {
  const room = (length - ctx.measureText(middle).width) / 2 - 6;
  if (ends.every((end) => ctx.measureText(end).width < room)) {
    write(ctx, ends[0], x, y, muted);
    write(ctx, ends[1], x + length, y, muted, "right");
  }
  write(ctx, middle, x + length / 2, y, colour, "center");
}

// picture: { title, caption, source,
//   array, tiles: [{ offset, at, title, bars }], rows, columns, step: { row, column }: cell (r, c) of a tile is
//     array[offset + r step.row + c step.column], its coordinates are those of `at` and of axes = { row, column }
//   scale: { min = 0, max, root, above, below, diverging = min < 0 }: what lies outside takes the colour of the end, as
//     above and below say where it happens. Diverging, 0 stands in the middle, and equal distances from it are equally
//     dark; NaN has no colour, and is read as not a number
//   bars: { array, min = 0, max, colour, name, label(at), sum(at) }: a number beside each row, from tile.bars on
//   square: one tile of equal sides; names, ends, colours: of both axes; dtype: of the array where it is not float64
//   word(axis, index), label(at), sum(at): an index, a number, and what it was added up from, in words
//   masked(at): what a cell says that holds no number
//   edges(at) -> { row(r), column(c) }: parts in [0, 1] of each row and column that belong to what is in focus }
export function heatmaps(ctx, { width, height, ratio, theme, spare }, picture, at, pin) {
  const frames = arrange(picture, width, height);
  for (const frame of frames) {
    paintCells(ctx, frame, picture, { ratio, theme, spare });
    if (frame.tile.title) write(ctx, frame.tile.title, frame.x, frame.y - 4, theme.muted);
    if (picture.bars) paintBars(ctx, frame, picture, theme);
    paintEdges(ctx, frame, picture, { ...pin, ...at }, theme);
    for (const place of [pin ?? {}, at]) if (belongs(frame.tile, place)) paintFocus(ctx, frame, picture, place);
  }
  const axis = (which, named) => ({
    middle:
      (at[picture.axes[which]] !== undefined && picture.word(picture.axes[which], at[picture.axes[which]])) ||
      (named ? picture.names[which] : ""),
    ends: picture.ends[which],
    colour: theme[picture.colours[which]] ?? theme.muted,
    muted: theme.muted,
  });
  const last = frames.at(-1);
  for (const frame of frames) {
    if (frame.y === last.y)
      paintAxis(ctx, axis("column", frame === last), frame.x, frame.y + frame.height + 15, frame.width);
  }
  const down = axis("row", true);
  ctx.save();
  ctx.translate(EDGE.left - 8, frames[0].y + frames[0].height);
  ctx.rotate(-Math.PI / 2);
  paintAxis(ctx, { ...down, ends: [down.ends[1], down.ends[0]] }, 0, 0, frames[0].height);
  ctx.restore();
  return { frames };
}

// The coordinates of the cell at a point of the canvas, or null; on a bar those of its row, on the words along an axis
// those of a row or a column alone.
export function cellUnder({ frames }, { rows, columns, axes }, x, y) {
  for (const frame of frames) {
    const column = Math.floor(((x - frame.x) / frame.width) * columns);
    const row = Math.floor(((y - frame.y) / frame.height) * rows);
    const [down, right] = [row >= 0 && row < rows, column >= 0 && column < columns];
    if (down && right) return { ...frame.tile.at, [axes.row]: row, [axes.column]: column };
    const bar = column >= columns && x < frame.x + frame.width + frame.bar;
    if (down && (bar || (column < 0 && x > frame.x - EDGE.left))) return { ...frame.tile.at, [axes.row]: row };
    if (right && row >= rows && y < frame.y + frame.height + EDGE.bottom) return { [axes.column]: column };
  }
  return null;
}

const tileOf = ({ tiles }, at) =>
  tiles.findIndex((tile) => Object.entries(tile.at).every(([axis, index]) => at[axis] === index));

const within = (number, size) => Math.min(Math.max(number, 0), size - 1);
const cellOf = ({ array, step }, tile, row, column) => array[tile.offset + row * step.row + column * step.column];

// { label, value, sum, dtype } of the cell at these coordinates, of the bar of a row, or the name of a row or column
// alone; null where they do not name one.
export function readCell(picture, at) {
  const { tiles, rows, columns, axes, label, masked, bars, word, dtype } = picture;
  const tile = tiles[tileOf(picture, at)];
  const [row, column] = [at[axes.row], at[axes.column]];
  const [down, right] = [row < rows, column < columns];
  if (tile && down && right) {
    const reading = { label: label(at), value: cellOf(picture, tile, row, column), ...(dtype && { dtype }) };
    const instead = masked?.(at);
    return instead ? { ...reading, masked: instead } : { ...reading, sum: picture.sum?.(at) };
  }
  if (down && column === undefined) {
    if (tile && bars) return { label: bars.label(at), value: bars.array[tile.bars + row], sum: bars.sum(at) };
    return { label: word(axes.row, row) };
  }
  return right && row === undefined ? { label: word(axes.column, column) } : null;
}

// The bars stand as one more column: the column in which these coordinates lie.
const columnOf = ({ axes, bars, columns }, at) =>
  at[axes.column] ?? (bars && at[axes.row] !== undefined ? columns : undefined);

// The numbers of the tile in focus, for a table.
export function cellTable(picture, at) {
  const { tiles, rows, columns, axes, names, masked, bars, word, title } = picture;
  const tile = tiles[Math.max(tileOf(picture, at), 0)];
  const cell = (r, c) => masked?.({ ...tile.at, [axes.row]: r, [axes.column]: c }) || cellOf(picture, tile, r, c);
  return {
    title: [title, tile.title].filter(Boolean).join(", ").replaceAll("*", ""),
    rows,
    columns: columns + (bars ? 1 : 0),
    beside: bars ? 1 : 0,
    corner: `${names.row} \\ ${names.column}`,
    row: (r) => word(axes.row, r),
    column: (c) => (c < columns ? word(axes.column, c) : bars.name),
    value: (r, c) => (c < columns ? cell(r, c) : bars.array[tile.bars + r]),
    focus: { row: at[axes.row], column: columnOf(picture, at) },
  };
}

const MOVES = {
  ArrowUp: [-1, 0, 0],
  ArrowDown: [1, 0, 0],
  ArrowLeft: [0, -1, 0],
  ArrowRight: [0, 1, 0],
  PageUp: [0, 0, -1],
  PageDown: [0, 0, 1],
};

// The cell, bar or token that a key moves to, from the first cell where none is in focus; null for a key that moves
// nothing. Before the first column stands the token of a row alone (but where rows have bars, they are no tokens), below
// the last row that of a column.
export function nextCell(picture, at, key) {
  const { tiles, rows, columns, axes, bars } = picture;
  if (!MOVES[key]) return null;
  const fresh = readCell(picture, at) === null;
  const [down, right, tile] = fresh ? [0, 0, 0] : MOVES[key];
  const before = bars ? 0 : -1;
  const across = (columnOf(picture, at) ?? (fresh ? 0 : before)) + right;
  const column = Math.max(Math.min(across, bars ? columns : columns - 1), before);
  const row = within((at[axes.row] ?? (fresh ? 0 : rows)) + down, column < columns ? rows + 1 : rows);
  if (row === rows) return { [axes.column]: Math.max(column, 0) };
  const place = { ...tiles[within(Math.max(tileOf(picture, at), 0) + tile, tiles.length)].at, [axes.row]: row };
  return column >= 0 && column < columns ? { ...place, [axes.column]: column } : place;
}

// -- charts ---------------------------------------------------------------------------------------------------------

const PLOT = { left: 34, right: 12, top: 16, bottom: 32 };

function scaleOf({ domain: [low, high], log }, from, to) {
  const f = log ? Math.log : (v) => v;
  return (value) => from + ((to - from) * (f(value) - f(low))) / (f(high) - f(low));
}

const layers = {
  // Tens of thousands of points cost too much one by one: they are counted pixel by pixel, and each pixel is as dark as
  // that many points laid over each other.
  points(ctx, { x, y, colour, alpha }, along, up, theme, { ratio, spare }) {
    const { width, height } = ctx.canvas;
    if (spare.counts?.length !== width * height) spare.counts = new Uint16Array(width * height);
    const counts = spare.counts.fill(0);
    const size = Math.max(Math.round(2 * ratio), 1);
    for (let i = 0; i < x.length; i++) {
      const [left, top] = [Math.round((along(x[i]) - 1) * ratio), Math.round((up(y[i]) - 1) * ratio)];
      for (let r = Math.max(top, 0); r < Math.min(top + size, height); r++) {
        for (let c = Math.max(left, 0); c < Math.min(left + size, width); c++) counts[r * width + c]++;
      }
    }
    const shades = Uint8Array.from({ length: 256 }, (_, n) => Math.round(255 * (1 - (1 - alpha) ** n)));
    const [red, green, blue] = [1, 3, 5].map((n) => parseInt(theme[colour].slice(n, n + 2), 16));
    const paper = stampOf(spare, width, height);
    const image = paper.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const ink = (blue << 16) | (green << 8) | red;
    for (let at = 0; at < counts.length; at++) {
      if (counts[at]) pixels[at] = ((shades[Math.min(counts[at], 255)] << 24) | ink) >>> 0;
    }
    paper.putImageData(image, 0, 0);
    ctx.drawImage(paper.canvas, 0, 0, width / ratio, height / ratio);
  },
  band(ctx, { x, low, high, colour, alpha }, along, up, theme) {
    ctx.globalAlpha = alpha;
    ctx.fillStyle = theme[colour];
    ctx.beginPath();
    for (let i = 0; i < x.length; i++) ctx.lineTo(along(x[i]), up(high[i]));
    for (let i = x.length - 1; i >= 0; i--) ctx.lineTo(along(x[i]), up(low[i]));
    ctx.fill();
  },
  line(ctx, { x, y, colour, width = 1.5, dash = [], dots = 0 }, along, up, theme) {
    ctx.strokeStyle = theme[colour];
    ctx.lineWidth = width;
    ctx.setLineDash(dash);
    ctx.beginPath();
    for (let i = 0; i < x.length; i++) ctx.lineTo(along(x[i]), up(y[i]));
    ctx.stroke();
    if (dots)
      for (let i = 0; i < x.length; i++) layers.dot(ctx, { x: x[i], y: y[i], colour, size: dots }, along, up, theme);
  },
  dot(ctx, { x, y, colour, size }, along, up, theme) {
    ctx.fillStyle = theme[colour];
    ctx.beginPath();
    ctx.arc(along(x), up(y), size, 0, 2 * Math.PI);
    ctx.fill();
  },
  box(ctx, { x, y, colour, alpha }, along, up, theme) {
    ctx.globalAlpha = alpha;
    ctx.fillStyle = theme[colour];
    ctx.fillRect(along(x[0]), up(y[1]), along(x[1]) - along(x[0]), up(y[0]) - up(y[1]));
  },
  label(ctx, { label, at: [x, y], align, colour }, along, up, theme) {
    write(ctx, label, along(x), up(y), theme[colour], align);
  },
};

function paintAxes(ctx, x, y, frame, along, up, theme) {
  const foot = frame.y + frame.height;
  ctx.fillStyle = theme.line;
  ctx.fillRect(frame.x - 1, foot, frame.width + 1, 1);
  ctx.fillRect(frame.x - 1, frame.y, 1, frame.height);
  for (const [value] of x.ticks) ctx.fillRect(along(value) - 0.5, foot, 1, 4);
  for (const [value] of y.ticks) ctx.fillRect(frame.x - 5, up(value) - 0.5, 4, 1);
  for (const [value, word] of x.ticks) write(ctx, word, along(value), foot + 15, theme.muted, "center");
  for (const [value, word] of y.ticks) write(ctx, word, frame.x - 7, up(value), theme.muted, "right", "middle");
  write(ctx, x.name, frame.x + frame.width / 2, foot + 28, theme.muted, "center");
  write(ctx, y.name, frame.x + 4, 10, theme.muted);
}

// picture: { x: { domain, log, ticks: [[value, word]], name }, y: the same, layers: [{ type, ... }],
//            marks: [{ x, y, column, at(i), find(at) -> [i] }], walk: { axis, size, keep }, read(at),
//            columns: [{ name, array, word(value) }] }; marks are what can be pointed at (by column: whatever
// the height), columns what a table shows, keep the coordinates that a walk along the axis leaves as they are
export function chart(ctx, { width, height, ratio, theme, spare }, picture, at, pin) {
  const frame = {
    x: PLOT.left,
    y: PLOT.top,
    width: width - PLOT.left - PLOT.right,
    height: height - PLOT.top - PLOT.bottom,
  };
  const along = scaleOf(picture.x, frame.x, frame.x + frame.width);
  const up = scaleOf(picture.y, frame.y + frame.height, frame.y);
  paintAxes(ctx, picture.x, picture.y, frame, along, up, theme);
  ctx.save();
  ctx.beginPath();
  ctx.rect(frame.x - 1, frame.y - 6, frame.width + 7, frame.height + 12);
  ctx.clip();
  for (const layer of picture.layers) {
    ctx.save();
    layers[layer.type](ctx, layer, along, up, theme, { ratio, spare });
    ctx.restore();
  }
  for (const place of [pin ?? {}, at]) {
    for (const { x, y, find } of picture.marks) {
      const found = find(place);
      ctx.strokeStyle = theme.ink;
      ctx.lineWidth = 1.5;
      for (const i of found) {
        ctx.beginPath();
        ctx.arc(along(x[i]), up(y[i]), found.length > 1 ? 2.5 : 6, 0, 2 * Math.PI); // one number, or all of a token's
        ctx.stroke();
      }
    }
  }
  ctx.restore();
  return { along, up };
}

// The coordinates of the nearest number within 12 pixels of a point of the canvas, or in its column; or null.
export function pointUnder({ along, up }, { marks }, x, y) {
  let best = null;
  let nearest = Infinity;
  for (const mark of marks) {
    for (let i = 0; i < mark.x.length; i++) {
      const apart = (along(mark.x[i]) - x) ** 2 + (mark.column ? 0 : (up(mark.y[i]) - y) ** 2);
      if (apart < nearest && (mark.column || apart < 12 ** 2)) [best, nearest] = [mark.at(i), apart];
    }
  }
  return best;
}

// The numbers of a chart, for a table.
export function pointTable({ title, columns, walk }, at) {
  const [first, ...others] = columns;
  return {
    title: title.replaceAll("*", ""),
    rows: first.array.length,
    columns: others.length,
    corner: first.name,
    row: (r) => first.word?.(first.array[r]) ?? String(first.array[r]),
    column: (c) => others[c].name,
    value: (r, c) => others[c].array[r],
    focus: { row: at[walk.axis] },
  };
}

// The number that a key moves to along the chart's line of numbers, or null.
export function nextPoint({ walk: { axis, size, keep } }, at, key) {
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1 }[key];
  if (!move) return null;
  return { ...keep, [axis]: at[axis] === undefined ? 0 : within(at[axis] + move, size) };
}
