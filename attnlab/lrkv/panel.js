// The live view of the RoPE subspace: what is shown of the numbers in mathematics.js, and where.
import { largest, least, short } from "../panels/numbers.js";
import { axis, found, label, pairMatrix } from "../panels/pictures.js";
import { computer, elements, pair, placesOf, shares, sizes } from "./mathematics.js";
import { REACH, grip, handle, projection } from "./view3d.js";

const DISC = Array.from({ length: 33 }, (_, n) => (Math.PI * n) / 32); // half of a circle
const [BESIDE, STEP] = [1.12, 0.075]; // where Table 3 stands to the right of the curves
const DASHED = { width: 1, dash: [4, 3] };
const BY = 0.07; // from a dot to its name
const LONG = 1.12; // of an axis, where a column of B has length 1
const RINGS = {
  7: [{ colour: "key", size: 4.5 }],
  8: [{ colour: "muted", size: 3 }],
  12: [{ colour: "error", size: 5.5 }, { colour: "paper", size: 3 }],
}; // the dots of a table
const OFF = 0.0501; // percent: a printed number that is farther off is no rounding

const degrees = (sine) => (180 * Math.asin(Math.min(sine, 1))) / Math.PI;
const line = (x, y, colour, more = {}) => ({ type: "line", x, y, colour, ...more });

// -- planes i and j -------------------------------------------------------------------------------------------------

// A disc that two directions of the page span, as layers: filled, and its rim.
function disc([a, b], [c, d], colour, alpha) {
  const start = Math.atan2(c, a); // where it reaches farthest to the right
  const along = (s) => {
    const [one, two] = [Math.cos(start + s), Math.sin(start + s)];
    return [one * a + two * c, one * b + two * d];
  };
  const [up, down] = [DISC.map(along), DISC.map((s) => along(-s))];
  const rim = [...up, ...[...down].reverse()];
  return [
    { type: "band", x: up.map(([x]) => x), high: up.map(([, y]) => y), low: down.map(([, y]) => y), colour, alpha },
    line(rim.map(([x]) => x), rim.map(([, y]) => y), colour, { width: 1 }),
  ];
}

// The factor, what a rotation makes of it, and what leaves, in three of the four coordinates.
function subspace(context) {
  const { views, state, spec, words } = context;
  const { angle, position } = state.dials;
  const says = words.subspace;
  const onPage = projection(state.dials);
  const row = (array, n) => onPage(array.subarray(4 * n, 4 * n + 3));
  const places = placesOf(spec);
  const now = spec.places[1] * position;
  const trail = Array.from({ length: now + 1 }, (_, p) => row(views.trail, p));
  const [x, y] = [0, 1].map((side) => trail.map((point) => point[side]));
  const segment = (from, to, colour, more) => line([from[0], to[0]], [from[1], to[1]], colour, { width: 1, ...more });
  const names = says.axes(...pair(state.dials).map((plane) => plane + 1));
  const ends = [[LONG, 0, 0], [0, LONG, 0], [0, 0, LONG]];
  const tip = onPage(handle(angle));
  const moved = row(views.turned, 0);
  return {
    ...says,
    headline: `${short(degrees(views.overlap[3]))}°`,
    x: axis("", [-REACH.x, REACH.x], []),
    y: axis("", [-REACH.y, REACH.y], []),
    layers: [
      // without the edges of a chart
      { type: "box", x: [-2, -REACH.x], y: [-2, 2], colour: "paper", alpha: 1 },
      { type: "box", x: [-2, 2], y: [-2, 0.01 - REACH.y], colour: "paper", alpha: 1 },
      ...ends.flatMap((end, n) => {
        const [to, from] = [onPage(end), onPage(end.map((x) => -x / LONG))];
        return [segment(from, to, "edge"), label(names[n], to, "muted", to[0] < 0 ? "right" : "left")];
      }),
      ...disc(onPage([1, 0, 0]), onPage([0, 1, 0]), "muted", 0.1),
      ...disc(row(views.basis, 0), row(views.basis, 1), "key", 0.25),
      ...disc(moved, row(views.turned, 1), "ink", 0.12),
      line(x, y, "ink"),
      segment(row(views.within, 0), moved, "error", { width: 2.5 }),
      segment([0, 0], tip, "key"),
      segment([0, 0], moved, "ink"),
      { type: "dot", x: moved[0], y: moved[1], colour: "ink", size: 3 },
      { type: "dot", x: tip[0], y: tip[1], colour: "key", size: 6 },
      label("B", [tip[0] + BY, tip[1] - BY], "keyText"),
      label("PₜB", [moved[0] - BY, moved[1] - BY], "ink", "right"),
    ],
    marks: [
      { x, y, at: (place) => ({ place }), find: ({ place }) => found(place, now + 1) },
    ],
    walk: { axis: "place", size: places.length },
    columns: [
      { name: words.law.x, array: places },
      ...names.map((name, n) => {
        return { name, array: places.map((_, p) => views.trail[4 * p + n]) };
      }),
    ],
    read: ({ place }) => whatLeaves(context, place),
  };
}

function whatLeaves({ views, spec, words }, place) {
  const [size] = views.trail.shape;
  if (!(place < size)) return null;
  const [share, closed, , missed] = [0, 1, 2, 3].map((n) => views.law[n * size + place]);
  const sum = words.law.sum(...[degrees(share), closed, missed].map((x) => short(x)));
  return { label: words.law.at(placesOf(spec)[place]), value: share, sum };
}

// What leaves span(B) over t, the closed form traced on it, and what a repair makes of its own factor.
function law(context) {
  const { views, state, spec, words } = context;
  const { position, opposite } = state.dials;
  const says = words.law;
  const places = placesOf(spec);
  const size = places.length;
  const [escape, closed, , missed] = [0, 1, 2, 3].map((n) => views.law.subarray(n * size, n * size + size));
  const now = spec.places[1] * position;
  const top = Math.max(1, Math.ceil(largest(missed)));
  return {
    ...says,
    caption: says.caption(opposite ? "+" : "−"),
    headline: short(escape[now]),
    x: axis(says.x, [0, places[size - 1]], [0, 32, 64].map((t) => [t, String(t)])),
    y: axis(says.y, [0, top], [0, top / 2, top].map((y) => [y, y === 0.5 ? "½" : String(y)])),
    layers: [
      line([position, position], [0, top], "edge", { width: 1 }),
      line(places, missed, "key"),
      line(places, escape, "error", { width: 3 }),
      line(places, closed, "ink", DASHED),
      { type: "dot", x: position, y: escape[now], colour: "error", size: 5 },
    ],
    marks: [
      { x: places, y: escape, column: true, at: (place) => ({ place }), find: ({ place }) => found(place, size) },
    ],
    walk: { axis: "place", size },
    columns: [
      { name: says.x, array: places },
      ...[escape, closed, missed].map((array, n) => ({ name: says.columns[n], array })),
    ],
    read: ({ place }) => whatLeaves(context, place),
  };
}

// -- the repair -----------------------------------------------------------------------------------------------------

// The first head's logits: how far they are out, or both sides of it, on one scale.
function repair(context) {
  const { views, state, spec, words } = context;
  const { option, tokens: n } = state.dials;
  const { shown } = state.selection;
  const { K, r } = sizes(state.dials);
  const says = words.repair;
  const { factored, wanted, here } = views;
  const top = Math.max(largest(wanted), -least(wanted));
  const later = (at) => at % n > at / n;
  const array = factored.map((x, at) => (later(at) ? NaN : shown === "error" ? x - wanted[at] : x));
  const name = (kind, t) => says.token(words.kit[kind], t);
  return {
    ...pairMatrix({
      ...says,
      caption: says.caption(spec.exact.includes(option), r, K),
      array: Object.assign(array, { shape: [n, n] }),
      causal: true,
      min: -top,
      max: top,
      about: (query, key) => says.of(words.options.shown[shown], query, key),
      named: { name, ends: ["1", String(n)], known: (kind, t) => (t < n ? name(kind, t) : "") },
      sum: ({ query, key }) => says.sum(short(factored[query * n + key]), short(wanted[query * n + key])),
      words,
    }),
    headline: short(here[0] / here[1], 3),
  };
}

// -- a cache --------------------------------------------------------------------------------------------------------

// Bytes in the largest unit that leaves a number above 1.
function inUnits(bytes, { units }) {
  const n = bytes < 1 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1);
  return `${short(bytes / 2 ** (10 * n), 3)} ${units[n]}`;
}

// What every scheme keeps of a token, and what one program a head would read of it.
function meter(context) {
  const { views, state, spec, words } = context;
  const says = words.meter;
  const size = spec.metered.length;
  const [token, whole] = [0, 1].map((n) => views.meter.subarray(n * size, n * size + size));
  const numbers = elements(state.dials);
  const rows = Float64Array.from(token, (_, n) => size - n);
  const top = 1.02 * largest(token);
  const percent = (n) => short((100 * token[n]) / token[0], 3);
  const own = spec.metered.indexOf("lrkv");
  const colours = { lrkv: "key", scaled: "key", apart: "error" };
  return {
    ...says,
    caption: says.caption(state.dials.layers, inUnits(whole[own], says)),
    headline: `${percent(own)}%`,
    x: axis(says.x, [0, top], [0, token[0]].map((bytes) => [bytes, inUnits(bytes, says)])),
    y: axis("", [0.4, size + 0.6], []),
    layers: [
      ...spec.metered.flatMap((name, n) => {
        const y = [rows[n] - 0.4, rows[n] + 0.4];
        return [
          { type: "box", x: [0, token[n]], y, colour: colours[name] ?? "muted", alpha: name === "lrkv" ? 0.5 : 0.28 },
          label(says.bar(name, percent(n)), [0.03 * top, rows[n] - 0.15], "ink"),
        ];
      }),
      line([token[0], token[0]], [0.4, size + 0.6], "ink", DASHED),
    ],
    marks: [1, 0.75, 0.5, 0.25, 0].map((part) => {
      const find = (at) => (part === 1 ? found(at.scheme, size) : []);
      return { x: token.map((bytes) => part * bytes), y: rows, at: (scheme) => ({ scheme }), find };
    }),
    walk: { axis: "scheme", size },
    columns: [
      { name: says.columns[0], array: spec.metered, word: (name) => words.schemes[name] },
      { name: says.x, array: token },
      { name: says.columns[1], array: whole },
    ],
    read({ scheme: n }) {
      if (!(n < size)) return null;
      const sum = says.sum(numbers[n], percent(n), inUnits(whole[n], says));
      return { label: says.at(spec.metered[n]), value: token[n], sum };
    },
  };
}

// The paper's percentages against what its own sizes, or its megabytes, say.
function prints(context) {
  const { views, spec, words } = context;
  const says = words.prints;
  const all = spec.prints;
  const [label, y, x] = [1, 2, 3].map((side) => all.map((row) => row[side]));
  const far = x.filter((recomputed, n) => Math.abs(y[n] - recomputed) > OFF).length;
  const mine = (100 * views.meter[spec.metered.indexOf("lrkv")]) / views.meter[0];
  const dots = all.flatMap(([table, , y, x]) => RINGS[table].map((ring) => ({ type: "dot", x, y, ...ring })));
  const ticks = [0, 50, 100].map((percent) => [percent, String(percent)]);
  return {
    ...says,
    headline: says.off(far),
    x: axis(says.x, [0, 125], ticks),
    y: axis(says.y, [0, 125], ticks),
    layers: [
      line([0, 125], [0, 125], "edge", { width: 1 }),
      line([mine, mine], [0, 125], "key", DASHED),
      ...dots,
    ],
    marks: [{ x, y, at: (print) => ({ print }), find: ({ print }) => found(print, all.length) }],
    walk: { axis: "print", size: all.length },
    columns: [
      { name: says.row, array: label },
      { name: says.x, array: x },
      { name: says.y, array: y },
    ],
    read({ print: n }) {
      if (!(n < all.length)) return null;
      return { label: says.at(label[n]), value: y[n], sum: says.sum(short(x[n])) };
    },
  };
}

// -- heads ----------------------------------------------------------------------------------------------------------

// Effective rank as heads share more and more, and beside it what the paper prints for six and eighteen heads.
function diversity(context) {
  const { views, state, spec, words } = context;
  const { heads: H, shared } = state.dials;
  const says = words.diversity;
  const last = shares.length;
  const size = last + 1;
  const [before, after] = [0, 1].map((n) => views.diversity.subarray(n * size, n * size + size));
  const [high, low] = [before, after].map((ranks) => ranks.map((rank) => (100 * rank) / H));
  const ceiling = (heads) => (100 * (heads - 1)) / heads;
  const x = [...shares, shared];
  const dashed = (from, to, heads) => line([from, to], [ceiling(heads), ceiling(heads)], "ink", DASHED);
  const tables = [6, 18].map((heads, n) => {
    return { heads, left: BESIDE + 5 * n * STEP, numbers: spec.table3.map((row) => row[n + 1]) };
  });
  const printed = tables.flatMap(({ heads, left, numbers }) =>
    numbers.map((y, n) => ({ x: left + n * STEP, y, heads, scheme: spec.table3[n][0] })),
  );
  const own = (y, colour) => ({ type: "dot", x: shared, y: y[last], colour, size: 5 });
  return {
    ...says,
    headline: `${short(before[last], 3)} → ${short(after[last], 3)}`,
    x: axis(says.x, [0, BESIDE + 9 * STEP], [[0, "0"], [0.5, "½"], [1, "1"]]),
    y: axis(says.y, [0, 104], [0, 50, 100].map((y) => [y, String(y)])),
    layers: [
      line(shares, high, "ink"),
      line(shares, low, "query", { width: 2 }),
      dashed(0, 1, H),
      label(says.before, [0.03, 12], "ink"),
      label(says.after, [0.03, 2], "queryText"),
      ...tables.flatMap(({ heads, left }, n) => [
        dashed(left - 0.03, left + 3 * STEP + 0.03, heads),
        label(`H = ${heads}`, [left + 4 * STEP, 62 - 10 * n], "muted", "right"),
      ]),
      ...printed.map(({ x, y }) => ({ type: "dot", x, y, colour: "query", size: 3.5 })),
      own(high, "ink"),
      own(low, "query"),
    ],
    marks: [
      { x, y: low, at: (share) => ({ share }), find: ({ share }) => found(share, size) },
      { x, y: high, at: (share) => ({ share }), find: ({ share }) => found(share, size) },
      {
        x: printed.map(({ x }) => x),
        y: printed.map(({ y }) => y),
        at: (n) => ({ share: size + n }),
        find: ({ share }) => found(share - size, printed.length).filter((n) => n >= 0),
      },
    ],
    walk: { axis: "share", size: size + printed.length },
    columns: [
      { name: says.x, array: [...shares, says.own(shared)] },
      { name: says.before, array: before },
      { name: says.after, array: after },
    ],
    read({ share: n }) {
      if (n < size) {
        return { label: says.at(x[n]), value: after[n], sum: says.sum(short(before[n]), H - 1) };
      }
      const row = printed[n - size];
      if (!row) return null;
      const sum = says.ceiling(short(ceiling(row.heads)));
      return { label: says.printed(row.scheme, row.heads), value: row.y, sum };
    },
  };
}

export const panel = {
  computer,
  controls: { whole: grip },
  figures: [
    { id: "repair", kind: "heatmap", option: "shown", picture: repair },
    { id: "subspace", kind: "chart", picture: subspace },
    { id: "law", kind: "chart", picture: law },
    { id: "meter", kind: "chart", picture: meter },
    { id: "prints", kind: "chart", picture: prints },
    { id: "diversity", kind: "chart", picture: diversity },
  ],
  // what a screen reader hears when a dial is released
  summary({ views, state, words }) {
    const [error, size] = views.here;
    return words.summary(state.dials.option, short(views.overlap[3], 3), short(error / size, 3));
  },
};
