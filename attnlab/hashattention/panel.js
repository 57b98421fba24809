// The live view of Hamming recall: what is shown of the numbers in mathematics.js, and where.
import { largest, list, short } from "../panels/numbers.js";
import { axis, found, label, naming, pairMatrix } from "../panels/pictures.js";
import { computer, isRead, kind, names } from "./mathematics.js";

const GRID_FOOT = 3; // rows below the bits: a gap, the true top, what is read
const LEGEND = 1.8; // the budgets' axis is so many times as long as the curves, in logarithms: names stand behind them
const DASHES = [[14, 3], [6, 3], [2, 2], [9, 3, 2, 3], [9, 3, 2, 3, 2, 3], [], [1, 4]]; // in the order of spec.curves

// The keys that a query may choose among, by their place.
function ranking(place, t) {
  const [T] = place.shape;
  const order = [];
  for (let i = 0; i <= t; i++) if (place[t * T + i] > 0) order[place[t * T + i] - 1] = i;
  return order;
}

// The query in focus, or pinned, or the dial's; its keys by distance; and the key that coordinates name, as itself or
// by its rank among these.
function focus({ views, state, data, spec, words, at = {} }) {
  const { budget, query, top } = state.dials;
  const [T] = views.sparse.shape;
  const t = [at.query, state.selection.pin?.query].find((t) => t < T) ?? Math.min(query, T) - 1;
  const order = ranking(views.code_place, t);
  const cell = (name, key) => views[name][t * T + key];
  const named = naming(names(state, data, spec), words);
  const keyOf = ({ query = t, key, rank }) => (query === t ? (key ?? order[rank]) : undefined);
  return {
    ...{ T, t, order, cell, named },
    queryName: named.name("query", t),
    keyName: (key) => named.name("key", key),
    keyOf,
    rankOf: (at) => [order.indexOf(keyOf(at))].filter((rank) => rank >= 0),
    isTop: (key) => cell("true_place", key) > 0 && cell("true_place", key) <= top,
    isRead: (key, by = "code_place") => isRead(cell(by, key), budget),
  };
}

// What is known of a key, in words.
function about({ order, cell }, key, { views, words }) {
  const [distance, place, true_place] = ["distance", "code_place", "true_place"].map((name) => cell(name, key));
  const b = views.key_bits.shape[1];
  const code = views.key_bits.subarray(key * b, key * b + b).join("").replace(/.{8}(?=.)/g, "$& ");
  return words.about({ code, distance, place, true_place, keys: order.length });
}

// The codes of the keys, bit by bit, or where they differ from the query's; beside them the query's own.
function codes(context) {
  const { views, state, data, spec, words, at } = context;
  const own = focus(context);
  const { t, order, cell } = own;
  const b = views.key_bits.shape[1];
  const n = order.length;
  const differences = state.selection.grid === "differences";
  const bit = (r) => views.query_bits[t * b + r];
  const array = new Float64Array((b + GRID_FOOT) * n).fill(NaN);
  order.forEach((key, c) => {
    for (let r = 0; r < b; r++) array[r * n + c] = views.key_bits[key * b + r] ^ (differences && bit(r));
    array[(b + 1) * n + c] = own.isTop(key);
    array[(b + 2) * n + c] = own.isRead(key);
  });
  const says = words.codes;
  const rowName = (r) => (r < b ? says.bit(r) : (says.foot[r - b] ?? ""));
  const keyName = (c) => (c < n ? says.key(own.keyName(order[c]), cell("distance", order[c])) : "");
  const force = kind(state, data, spec);
  const caption = (more) => more + says.caption(b, force);
  const ends = n ? [order[0], order[n - 1]].map((key) => says.apart(cell("distance", key))) : ["", ""];
  const inFocus = own.keyOf(at);
  return {
    title: says.title,
    caption: caption(n ? (force === state.dials.codes ? "" : says.none) : says.all),
    captions: ["", says.none, says.all].map(caption),
    source: says.source,
    array,
    dtype: "bit",
    rows: b + GRID_FOOT,
    columns: n,
    step: { row: n, column: 1 },
    tiles: [{ offset: 0, at: { query: t }, title: says.tile(own.queryName) }],
    axes: { row: "bit", column: "rank" },
    names: { row: says.bits, column: says.keys },
    ends: { row: ["1", ""], column: ends },
    colours: { row: "queryText", column: "keyText" },
    scale: { max: 1 },
    word: (axis, i) => (axis === "bit" ? rowName(i) : keyName(i)),
    masked: ({ bit }) => bit === b && says.foot[0],
    label: ({ bit, rank }) => says.of(rowName(bit), own.keyName(order[rank])),
    sum: ({ rank }) => about(own, order[rank], context),
    edges: () => ({ row: (r) => Number(r < b && bit(r)), column: (c) => Number(order[c] === inFocus) }),
  };
}

// The attention of every query over the keys that the selector has it read.
function reads(context) {
  const { views, state, words, at } = context;
  const { T, t, named, keyOf } = focus(context);
  const { sparse, place, logits } = views;
  const read = (at) => isRead(place[at], state.dials.budget);
  const inFocus = keyOf(at);
  const matrix = pairMatrix({
    ...words.reads,
    array: Object.assign(sparse.map((weight, at) => (read(at) ? weight : NaN)), { shape: [T, T] }),
    causal: true,
    named,
    words,
    sum({ query, key }) {
      const own = logits.subarray(query * T, query * T + query + 1).filter((_, i) => read(query * T + i));
      const top = Math.max(...own);
      const total = own.reduce((sum, logit) => sum + Math.exp(logit - top), 0);
      return words.kit.softmax(short(logits[query * T + key]), short(top), short(total), own.length);
    },
    edges: () => ({ row: (r) => Number(r === t), column: (c) => Number(c === inFocus) }),
  });
  return {
    ...matrix,
    masked: (at) => matrix.masked(at) || (!read(at.query * T + at.key) && words.reads.unread),
  };
}

// How many keys stand at each distance, and where the budget ends.
function histogram(context) {
  const { views, state, words } = context;
  const own = focus(context);
  const { t, order, cell } = own;
  const b = views.key_bits.shape[1];
  const [keys, top, read] = [() => true, own.isTop, own.isRead].map((counts) => {
    const at = list(b + 1, () => 0);
    for (const key of order) at[cell("distance", key)] += Number(counts(key));
    return at;
  });
  const last = order[Math.min(state.dials.budget, order.length) - 1];
  const cut = last === undefined ? undefined : cell("distance", last);
  const high = largest(keys) || 1;
  const says = words.histogram;
  const places = list(b + 1, (d) => d);
  const bars = (array, colour, alpha) =>
    Array.from(array, (y, d) => ({ type: "box", x: [d - 0.4, d + 0.4], y: [0, y], colour, alpha }));
  const line = { type: "line", x: [cut + 0.5, cut + 0.5], y: [0, high], colour: "ink", dash: [4, 3] };
  return {
    ...says,
    headline: cut === undefined ? undefined : says.cut(cut),
    x: axis(says.x, [-0.5, b + 0.5], [0, Math.round(b / 2), b].map((d) => [d, String(d)])),
    y: axis(says.y, [0, high], [0, high].map((n) => [n, String(n)])),
    layers: [...bars(keys, "muted", 0.45), ...bars(top, "key", 1), ...(cut === undefined ? [] : [line])],
    marks: [
      {
        x: places,
        y: keys,
        column: true,
        at: (distance) => ({ query: t, distance }),
        find: (at) => [...found(at.distance, b + 1), ...own.rankOf(at).map((rank) => cell("distance", order[rank]))],
      },
    ],
    walk: { axis: "distance", size: b + 1, keep: { query: t } },
    columns: [
      { name: says.x, array: places },
      { name: says.y, array: keys },
      { name: says.columns.top, array: top },
      { name: says.columns.read, array: read },
    ],
    read({ query = t, distance: d }) {
      if (query !== t || !(d <= b)) return null;
      return { label: says.at(d, own.queryName), value: keys[d], sum: says.sum(top[d], read[d]) };
    },
  };
}

// Every key's place in the selector's order against its place in the true one.
function orders(context) {
  const { state, words } = context;
  const { budget, selector, top } = state.dials;
  const own = focus(context);
  const { t, order, cell } = own;
  const n = order.length;
  const [x, y] = ["place", "true_place"].map((name) => list(n, (i) => cell(name, order[i])));
  const says = words.orders;
  const end = Math.max(n, 2) * 1.1;
  const ticks = [1, 4, 16, 64, 256].filter((place) => place < end).map((place) => [place, String(place)]);
  const [cut, line] = [budget, top].map((place) => Math.min(place + 0.5, end));
  const best = order.filter(own.isTop);
  const isFound = (key) => own.isRead(key, "place");
  const dots = best.flatMap((key) => {
    const dot = { type: "dot", x: cell("place", key), y: cell("true_place", key), size: 5 };
    if (isFound(key)) return [{ ...dot, colour: "key" }];
    return [{ ...dot, colour: "error" }, { ...dot, colour: "paper", size: 2.5 }];
  });
  const dashed = { type: "line", colour: "ink", width: 1, dash: [4, 3] };
  return {
    ...says,
    headline: says.found(best.filter(isFound).length, best.length),
    x: axis(says.x(words.selectors[selector]), [0.8, end], ticks, true),
    y: axis(says.y, [0.8, end], ticks, true),
    layers: [
      ...(budget ? [{ type: "box", x: [0.8, cut], y: [0.8, end], colour: "muted", alpha: 0.14 }] : []),
      { type: "points", x, y, colour: "ink", alpha: 0.5 },
      { ...dashed, x: [0.8, end], y: [line, line] },
      ...(budget ? [{ ...dashed, x: [cut, cut], y: [0.8, end] }, label(says.read, [0.85, end / 1.5], "muted")] : []),
      ...dots,
    ],
    marks: [{ x, y, at: (rank) => ({ query: t, rank }), find: own.rankOf }],
    walk: { axis: "rank", size: n, keep: { query: t } },
    columns: [
      { name: says.columns.key, array: order, word: own.keyName },
      { name: says.columns.distance, array: list(n, (i) => cell("distance", order[i])) },
      { name: says.x(words.selectors[selector]), array: x },
      { name: says.y, array: y },
      { name: says.columns.logit, array: list(n, (i) => cell("logits", order[i])) },
    ],
    read({ query = t, rank }) {
      const key = order[rank];
      if (query !== t || key === undefined) return null;
      const said = says.at(own.keyName(key), own.queryName);
      return { label: said, value: cell("logits", key), sum: about(own, key, context) };
    },
  };
}

// One number against the budget, for every selector; their names on the right, the highest at the dial's budget on top.
const curves = (which, metric) => (context) => {
  const { views, state, spec, words, at } = context;
  const { tokens: T, budget, selector } = state.dials;
  const says = words.curves;
  const budgets = spec.budgets.filter((m) => m < T);
  const last = budgets.length;
  const end = budgets[last - 1];
  const size = spec.curves.length;
  const x = [...budgets, Math.min(Math.max(budget, 1), end)]; // the dial's own number stands behind the others
  const here = views.here.subarray(metric * size, (metric + 1) * size);
  const lines = spec.curves.map((_, s) => [...views[which].subarray(s * spec.budgets.length).slice(0, last), here[s]]);
  const own = spec.curves.indexOf(selector);
  const high = which === "error" ? 2 ** Math.ceil(Math.log2(largest(lines.flat()) || 1) - 1e-9) : 1;
  const standing = lines.map((_, s) => s).sort((a, b) => here[b] - here[a]);
  const styles = lines.map((_, s) => {
    if (s === own) return { colour: "key", width: 2.5 };
    return { colour: spec.curves[s] === "exact" ? "ink" : "muted", width: 1.2, dash: DASHES[s] };
  });
  const legend = standing.flatMap((s, n) => {
    const y = high * (1 - (n + 0.5) / size);
    const part = (share) => end ** (1 + (LEGEND - 1) * share);
    const colour = s === own ? "keyText" : styles[s].colour;
    return [
      { type: "line", x: [part(0.06), part(0.24)], y: [y, y], ...styles[s] },
      label(words.selectors[spec.curves[s]], [part(0.29), y - 0.02 * high], colour),
    ];
  });
  const title = words[which].title;
  return {
    title,
    caption: `${words[which].caption} ${says.caption}`,
    source: says.source,
    headline: short(here[own], 3),
    x: axis(says.x, [1, end ** LEGEND], budgets.filter((_, n) => n % 2 === 0).map((m) => [m, String(m)]), true),
    y: axis("", [0, high], [0, high / 2, high].map((n) => [n, String(n)])),
    layers: [
      ...lines.map((y, s) => ({ type: "line", x: budgets, y, ...styles[s] })), // without the dial's own number
      { type: "dot", x: x[last], y: here[own], colour: "key", size: 5 },
      ...legend,
    ],
    marks: lines.map((y, s) => {
      const find = (at) => (at.selector === s ? found(at.budget, last + 1) : []);
      return { x, y, at: (n) => ({ selector: s, budget: n }), find };
    }),
    walk: { axis: "budget", size: last + 1, keep: { selector: at.selector < size ? at.selector : own } },
    columns: [
      { name: says.x, array: [...budgets, says.own(budget)] },
      ...lines.map((array, s) => ({ name: words.selectors[spec.curves[s]], array })),
    ],
    read({ selector: s = own, budget: n }) {
      if (!(n <= last && s < size)) return null;
      const name = words.selectors[spec.curves[s]];
      return { label: says.at(title, name, budgets[n] ?? budget), value: lines[s][n], sum: says.sum(Math.ceil(T / 2)) };
    },
  };
};

export const panel = {
  computer,
  figures: [
    { id: "codes", kind: "heatmap", wide: true, option: "grid", picture: codes },
    { id: "reads", kind: "heatmap", picture: reads },
    { id: "histogram", kind: "chart", picture: histogram },
    { id: "orders", kind: "chart", picture: orders },
    { id: "recall", kind: "chart", picture: curves("recall", 0) },
    { id: "mass", kind: "chart", picture: curves("mass", 1) },
    { id: "error", kind: "chart", picture: curves("error", 2) },
  ],
  // what a screen reader hears when a dial is released
  summary({ views, state, spec, words }) {
    const s = spec.curves.indexOf(state.dials.selector);
    const numbers = [0, 1, 2].map((metric) => short(views.here[metric * spec.curves.length + s], 3));
    return words.summary(words.selectors[state.dials.selector], numbers);
  },
};
