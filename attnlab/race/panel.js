// The live view of RACE: what is shown of the numbers in mathematics.js, and where.
import { dot, largest, short, total } from "../panels/numbers.js";
import { axis, decades, found, label, nameTokens, pairMatrix, pairsOf, power } from "../panels/pictures.js";
import { rowTotal, softmaxSum } from "../panels/pictures.js";
import { computer } from "./mathematics.js";

const GAP = 0.05; // between a curve and its name, as a part of the axis
const LINE = 0.12; // the height of a line of words, as a part of the axis
const ROW = 0.42; // half the height of a bar in the map of Lemma 10, where rows are 1 apart

// One tile a table: buckets down, tokens across, and beside it the mass of each bucket.
function buckets(context) {
  const { views, state, words } = context;
  const named = nameTokens(context);
  const side = state.selection.features === "keys" ? "key" : "query";
  const array = side === "key" ? views.phi_k : views.phi_q;
  const [L, T, R] = array.shape;
  return {
    title: words.buckets.title,
    caption: words.buckets.caption,
    source: words.buckets.source,
    array,
    rows: R,
    columns: T,
    step: { row: 1, column: R },
    tiles: Array.from({ length: L }, (_, l) => {
      return { offset: l * T * R, bars: l * R, title: words.table(l), at: { table: l } };
    }),
    axes: { row: "bucket", column: side },
    names: { row: words.bucket, column: words.kit[side] },
    ends: { row: ["0", String(R - 1)], column: named.ends },
    colours: { column: `${side}Text` },
    scale: { max: 1 }, // shares: where each bucket holds 1/R, the picture is as dark as that is thin
    bars: {
      array: views.mass,
      max: largest(views.mass),
      colour: "key",
      name: words.buckets.bars,
      label: ({ table, bucket }) => words.buckets.mass(words.table(table), words.corner(bucket, state.dials.planes)),
      sum: () => words.buckets.massSum(T),
    },
    word(axis, index) {
      if (axis !== "bucket") return named.known(axis, index);
      return index < R ? `${words.bucket} ${index}` : ""; // a pin may be from other dials
    },
    sum: (at) => chances(array, at, at[side]).map((chance) => short(chance)).join(" · ") + words.buckets.chances,
    label(at) {
      const corner = words.corner(at.bucket, state.dials.planes);
      return words.buckets.share(named.name(side, at[side]), words.table(at.table), corner);
    },
  };
}

// The chance of each plane's bit in a bucket, for one token: its shares in all buckets that have this bit.
function chances(phi, { table, bucket }, token) {
  const [, T, R] = phi.shape;
  const shares = phi.subarray((table * T + token) * R, (table * T + token + 1) * R);
  const planes = Array.from({ length: Math.log2(R) }, (_, p) => 1 << p);
  return planes.map((bit) => shares.reduce((sum, share, r) => sum + ((r & bit) === (bucket & bit) ? share : 0), 0));
}

// phi(q).phi(k) of each table, of which S_hat is the mean.
function agreements({ phi_q, phi_k }, query, key) {
  const [L, T, R] = phi_q.shape;
  const tables = Array.from({ length: L }, (_, l) => l * T);
  return tables.map((from) => dot(phi_q, (from + query) * R, phi_k, (from + key) * R, R));
}

const average = (terms) => `(${terms.map((term) => short(term)).join(" + ")}) / ${terms.length}`;

// Where each weight comes from: what stands above and below its fraction.
const sums = {
  softmax: ({ views, state, words }, at) => softmaxSum(views.logits, at, state.dials.causal, words),
  angular({ views, state, words }, { query, key }) {
    const { causal, planes, tokens: T } = state.dials;
    const angles = views.pair_angle.subarray(query * T, query * T + (causal ? query + 1 : T));
    const powers = angles.map((angle) => (1 - angle / Math.PI) ** planes);
    return words.angular.sum(angles[key].toFixed(4), planes, short(powers[key]), short(total(powers)), angles.length);
  },
  race({ views, state, words }, { query, key }) {
    const [total, seen] = rowTotal(views.pair_score, query, state.dials.causal);
    const score = views.pair_score[query * state.dials.tokens + key];
    return words.race.sum(short(score), average(agreements(views, query, key)), short(total), seen);
  },
};

// While a bucket is in focus: how much of each query and each key lies in it.
function membership(views, { table, bucket }) {
  const { phi_k } = views;
  const [L, T, R] = phi_k.shape;
  if (!(table < L && bucket < R)) return null;
  const { phi_q } = views; // computed only now
  const share = (phi) => (t) => phi[(table * T + t) * R + bucket];
  return { row: share(phi_q), column: share(phi_k) };
}

// Softmax, angular and RACE weights of the same tokens on one scale, which the estimate does not move: it ends at the
// largest weight that RACE is held against. Where causal, the first query has one key, and a weight of 1 says nothing.
const matrix = (which) => (context) => {
  const { views, state, words } = context;
  const { causal, planes } = state.dials;
  const telling = (weights) => (causal ? weights.subarray(weights.shape[1]) : weights);
  return pairMatrix({
    title: words[which].title(power("*κ*", planes)),
    caption: words[which].caption,
    source: words[which].source,
    array: views[which],
    max: Math.max(...[views.softmax, views.angular].map((weights) => largest(telling(weights)))),
    causal,
    about: (query, key) => words.weight(which, query, key),
    sum: (at) => sums[which](context, at),
    edges: (at) => membership(views, at),
    named: nameTokens(context),
    words,
  });
};

// S_hat of every pair against its angle, on the exact band of unit vectors. Where Lemma 10 fails, the shortfall at
// angle 0 is marked.
function band(context) {
  const { views, state, words } = context;
  const { band_angle: angle, band_mean: mean, band_sd: sd, band_target: target, pair_angle, pair_score } = views;
  const [T] = pair_angle.shape;
  const named = nameTokens(context);
  const [low, high] = [-1, 1].map((side) => mean.map((m, i) => m + side * sd[i]));
  const place = (part) => Math.round(part * (angle.length - 1)); // the index at this part of the axis
  const [over, beside] = [place(5 / 8), place(1 / 8)]; // where the band and the line of kappa^P are named
  const layers = [
    { type: "band", x: angle, low, high, colour: "muted", alpha: 0.25 },
    { type: "points", x: pair_angle, y: pair_score, colour: "ink", alpha: 0.22 },
    { type: "line", x: angle, y: mean, colour: "muted", width: 1.2, dash: [4, 3] },
    { type: "line", x: angle, y: target, colour: "ink" },
    label(words.band.mean, [angle[over], high[over] + GAP], "muted"),
    label(words.band.target, [angle[beside] + GAP * Math.PI, target[beside]], "ink"),
  ];
  const shortfall = { type: "line", x: [0, 0], y: [mean[0], 1], colour: "error", width: 4 };
  const word = label(words.band.shortfall, [GAP * Math.PI, 1 - GAP], "errorText");
  if (views.lemma10_large_tables[0]) layers.push(shortfall, word);
  return {
    title: words.band.title,
    caption: words.band.caption,
    source: words.band.source,
    x: axis(words.band.x, [0, Math.PI], [[0, "0"], [Math.PI / 2, "π/2"], [Math.PI, "π"]]),
    y: axis(words.band.y, [0, 1], [[0, "0"], [0.5, "½"], [1, "1"]]),
    layers,
    marks: [
      { x: pair_angle, y: pair_score, at: (i) => ({ query: Math.floor(i / T), key: i % T }), find: (at) => pairsOf(at, T) },
      { x: angle, y: mean, at: (i) => ({ angle: i }), find: (at) => found(at.angle, angle.length) },
    ],
    walk: { axis: "angle", size: angle.length },
    columns: [
      { name: words.band.x, array: angle, word: (value) => value.toFixed(4) },
      { name: words.band.columns.mean, array: mean },
      { name: words.band.columns.sd, array: sd },
      { name: words.band.target, array: target },
    ],
    read(at) {
      if (at.query < T && at.key < T) {
        const pair = at.query * T + at.key;
        const [query, key] = [named.name("query", at.query), named.name("key", at.key)];
        const sum = average(agreements(views, at.query, at.key)) + words.band.sum;
        return { label: words.band.pair(query, key, pair_angle[pair].toFixed(3)), value: pair_score[pair], sum };
      }
      if (!(at.angle < angle.length)) return null;
      const P = state.dials.planes;
      const sum = words.band.meanSum(short(mean[at.angle] ** (1 / P)), P);
      return { label: words.band.angle(angle[at.angle].toFixed(3)), value: mean[at.angle], sum };
    },
  };
}

// The error for nested numbers of tables of one draw, the dial's own number of tables on it, and Theorem 2's rate where
// the theorem says something.
function error({ views, state, words }) {
  const { error_tables: tables, error_output: measured, error_rate: rate } = views;
  const last = tables.length - 1;
  const here = views.error_here[0];
  const own = state.dials.tables; // the dial's, which stands as one more number behind the nested ones
  const speaks = views.theorem2_speaks[0] > 0;
  const y = decades([...measured, ...(speaks ? rate : [])], words.error.y);
  const [foot, top] = y.domain;
  const shifted = (number, part) => Math.max(number * (top / foot) ** part, foot); // by a part of the axis, up or down
  const under = Math.floor(last / 3); // its name, which ends at the right edge, begins about here, over the falling line
  const bound = [
    { type: "line", x: tables, y: rate, colour: "ink", width: 1.2, dash: [5, 4] },
    label(words.error.rate, [tables[last], shifted(rate[under], GAP)], "ink", "right"),
  ];
  return {
    title: words.error.title,
    caption: words.error.caption(speaks ? "drawn" : state.dials.causal ? "masked" : "lengths"),
    captions: ["drawn", "masked", "lengths"].map(words.error.caption),
    source: words.error.source,
    headline: here.toPrecision(3),
    x: axis(words.error.x, [tables[0], tables[last]], Array.from(tables, (L) => [L, String(L)]), true),
    y,
    layers: [
      ...(speaks ? bound : []),
      { type: "line", x: tables, y: measured.map((e) => Math.max(e, foot)), colour: "error", width: 2, dots: 3 },
      { type: "dot", x: own, y: Math.max(here, foot), colour: "error", size: 5 },
      label(words.error.measured, [tables[last], shifted(measured[last], -LINE)], "errorText", "right"),
    ],
    marks: [
      {
        x: [...tables, own],
        y: [...measured, here],
        at: (i) => ({ tables: i }),
        find: (at) => found(at.tables, tables.length + 1),
      },
    ],
    walk: { axis: "tables", size: tables.length + 1 },
    columns: [
      { name: words.error.x, array: [...tables, words.error.own(own)] },
      { name: words.error.measured, array: [...measured, here] },
      ...(speaks ? [{ name: words.error.rate, array: [...rate, "–"] }] : []),
    ],
    read({ tables: n }) {
      if (!(n <= tables.length)) return null;
      return { label: words.error.at(tables[n] ?? own), value: measured[n] ?? here, sum: words.error.sum };
    },
  };
}

const verdict = ({ views, words }) => {
  if (views.lemma10_every_draw[0]) return words.lemma.everyDraw;
  return views.lemma10_large_tables[0] ? words.lemma.manyTables : words.lemma.neither;
};

// The map of all dials (sharpness, planes): where the lemma fails, and where the reader stands.
function lemma(context) {
  const { views, state, spec, words } = context;
  const { every_draw: every, large_tables: many } = spec.lemma10;
  const { low, high } = spec.dials.find(({ name }) => name === "sharpness");
  const most = every.length;
  const borders = [...every, ...many];
  const seen = borders.map((border) => Math.max(border, low));
  const planes = borders.map((_, n) => (n % most) + 1);
  const bars = seen.map((border, n) => {
    return { type: "box", x: [low, border], y: [planes[n] - ROW, planes[n] + ROW], colour: "error", alpha: 0.24 };
  });
  const edges = seen.map((border, n) => {
    return { type: "line", x: [border, border], y: bars[n].y, colour: "error", width: 1.5 };
  });
  const ticks = [[low, `1/${1 / low}`], [0.25, "¼"], [1, "1"], [4, "4"], [high, String(high)]];
  const light = Math.sqrt(every[most - 1] * many[most - 1]); // where only many tables fail, in the uppermost row
  const fails = views.lemma10_large_tables[0] > 0; // the other region lies inside
  return {
    title: words.lemma.title,
    caption: verdict(context),
    captions: [words.lemma.everyDraw, words.lemma.manyTables, words.lemma.neither],
    source: words.lemma.source,
    alarm: fails,
    x: axis(words.lemma.x, [low, high], ticks, true),
    y: axis(words.lemma.y, [0.5, most + 2.5], every.map((_, n) => [n + 1, String(n + 1)])),
    layers: [
      ...bars,
      ...edges,
      { type: "dot", x: state.dials.sharpness, y: state.dials.planes, colour: fails ? "error" : "ink", size: 5 },
      { type: "line", x: [light, light], y: [most + ROW, most + 1.6], colour: "error", width: 1 },
      label(words.lemma.every, [low, most + 0.75], "errorText"),
      label(words.lemma.many, [high, most + 1.75], "errorText", "right"),
    ],
    marks: [{ x: seen, y: planes, at: (n) => ({ border: n }), find: (at) => found(at.border, borders.length) }],
    walk: { axis: "border", size: borders.length },
    columns: [
      { name: words.lemma.y, array: every.map((_, n) => n + 1) },
      { name: words.lemma.every, array: every },
      { name: words.lemma.many, array: many },
    ],
    read({ border: n }) {
      if (!(n < borders.length)) return null;
      const [region, sum] = n < most ? [words.lemma.every, words.lemma.everySum] : [words.lemma.many, words.lemma.manySum];
      return { label: words.lemma.border(region, planes[n]), value: borders[n], sum: sum(planes[n]) };
    },
  };
}

export const panel = {
  computer,
  figures: [
    { id: "buckets", kind: "heatmap", wide: true, option: "features", picture: buckets },
    { id: "softmax", kind: "heatmap", picture: matrix("softmax") },
    { id: "angular", kind: "heatmap", picture: matrix("angular") },
    { id: "race", kind: "heatmap", picture: matrix("race") },
    { id: "band", kind: "chart", picture: band },
    { id: "error", kind: "chart", picture: error },
    { id: "lemma", kind: "chart", picture: lemma },
  ],
  // what a screen reader hears when a dial is released
  summary(context) {
    const { views, state, words } = context;
    return words.summary(views.error_here[0].toPrecision(3), state.dials.tables, verdict(context));
  },
};
