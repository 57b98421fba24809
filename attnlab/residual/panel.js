// The live view of residual error memory: what is shown of the numbers in mathematics.js, and where.
import { curve } from "../panels/curve.js";
import { isToy } from "../panels/inputs.js";
import { largest, least, list, short } from "../panels/numbers.js";
import { axis, found, label, nameTokens, pairMatrix } from "../panels/pictures.js";
import { computer, mean } from "./mathematics.js";

const GAP = 0.04; // between a line or a bar and its name, as a part of the axis
const REACH = 16; // places along a row that can be pointed at

const farthest = (array) => Math.max(largest(array), -least(array));

// The token in focus, or pinned, or the last one.
function focus({ views, state, at = {} }) {
  const T = views.alpha.length;
  return [at.query, state.selection.pin?.query].find((t) => t < T) ?? T - 1;
}

const ruleOf = ({ state, spec }) => spec.rules[state.dials.rule];

// Toy tokens have numbers, those of a real head words.
function naming(context) {
  const { views, state, spec, words } = context;
  if (!isToy(state, spec)) return nameTokens(context);
  const T = views.alpha.length;
  const name = (kind, t) => words.token(words.kit[kind], t);
  return { name, ends: ["1", String(T)], known: (kind, t) => (t < T ? name(kind, t) : "") };
}

// An axis from 0 up to a power of two that no number exceeds.
function upTo(name, ...numbers) {
  const top = 2 ** Math.ceil(Math.log2(Math.max(...numbers.map(largest)) || 1) - 1e-9);
  const word = (value) => (value > 0 && value < 1 ? `1/${1 / value}` : String(value));
  return axis(name, [0, top], [0, top / 2, top].map((value) => [value, word(value)]));
}

// S and R after the token in focus, on one scale that holds for all tokens.
function memories(context) {
  const { views, words } = context;
  const [, T, K, V] = views.memories.shape;
  const { residual } = ruleOf(context);
  const own = focus(context);
  const top = farthest(views.memories);
  const place = (m, t) => (m * T + t) * K * V;
  const sizes = { channel: K, entry: V };
  const says = words.memories;
  return {
    title: says.title,
    caption: residual ? says.two : says.one,
    captions: [says.one, says.two],
    source: says.source,
    array: views.memories,
    rows: K,
    columns: V,
    step: { row: V, column: 1 },
    tiles: (residual ? [0, 1] : [0]).map((memory) => {
      return { offset: place(memory, own), at: { query: own, memory }, title: says.tile(says.names[memory], own) };
    }),
    axes: { row: "channel", column: "entry" },
    names: { row: says.channel, column: says.entry },
    ends: { row: ["1", String(K)], column: ["1", String(V)] },
    colours: { row: "keyText", column: "valueText" },
    scale: { min: -top, max: top, diverging: true },
    word: (axis, index) => (index < sizes[axis] ? `${says[axis]} ${index + 1}` : ""),
    label: ({ memory, query, channel, entry }) => says.at(says.names[memory], query, channel, entry),
    sum({ memory, query, channel, entry }) {
      const cell = (t) => (t < 0 ? 0 : views.memories[place(memory, t) + channel * V + entry]);
      const gone = memory === 1 && !context.state.dials.fitting;
      const left = gone ? 0 : views.alpha[query] * cell(query - 1);
      return says.sum(short(left), short(cell(query) - left));
    },
  };
}

// Where a weight comes from: a product, or for a delta rule what later keys have made of it.
function weightSum({ views, state, words }, what, { delta, residual }, { query, key }) {
  const { alpha, beta, gamma, key_query } = views;
  const { fitting, read_gates } = state.dials;
  const { product, left, newest, gone } = words.weights;
  const match = key_query[query * alpha.length + key];
  const errors = what === "errors";
  if (residual && !errors && key === query) return newest;
  if (errors && !fitting && key < query) return gone;
  if (delta && key < query) return left(short(match));
  const decay = (until) => alpha.subarray(key + 1, until).reduce((all, a) => all * a, 1);
  const read = !residual || !read_gates ? 1 : errors ? gamma[query] : alpha[query];
  const written = errors ? (fitting ? gamma[key] : 1) : beta[key];
  const passed = residual && !errors ? decay(query) : decay(query + 1); // the output reads the old S, the new R
  return product([read, written, passed, match].map((factor) => short(factor)));
}

// How much of each past error or value an output adds up. A rule without a second memory has weights of values alone.
function weights(context) {
  const { views, state, words } = context;
  const rule = ruleOf(context);
  const what = rule.residual ? state.selection.weights : "values";
  const array = what === "errors" ? views.error_weights : views.value_weights;
  const most = farthest(array);
  return pairMatrix({
    title: words.weights.title,
    caption: words.weights[what] + (rule.residual ? "" : ` ${words.clip.none}`),
    source: words.weights.source,
    array,
    min: -most,
    max: most,
    causal: true,
    about: (query, key) => words.weights.of(words.weights.what[what], query, key),
    sum: (at) => weightSum(context, what, rule, at),
    named: naming(context),
    words,
  });
}

// Two lines with their names where they are farthest apart: S alone, and both memories where there are two.
function lines(words, x, base, both, residual, gap) {
  const apart = base.map((one, i) => Math.abs(one - both[i]));
  const i = apart.indexOf(Math.max(...apart));
  const high = base[i] >= both[i];
  const side = i > x.length / 2 ? "right" : "left";
  const name = (word, value, up, colour) => label(word, [x[i], value + (up ? 1 : -3) * gap], colour, side);
  return [
    { type: "line", x, y: base, colour: "ink", width: 1.2, dash: [4, 3] },
    name(words.alone, base[i], high || !residual, "ink"),
    ...(residual ? [{ type: "line", x, y: both, colour: "error", width: 2 }] : []),
    ...(residual ? [name(words.both, both[i], !high, "errorText")] : []),
  ];
}

// How well each past value is recalled after the token in focus. Along the axis stand the keys, the oldest on the left.
function recall(context) {
  const { views, words } = context;
  const T = views.alpha.length;
  const { residual } = ruleOf(context);
  const own = focus(context);
  const named = naming(context);
  const [base, both] = [views.recall_base, views.recall_both].map((all) => all.subarray(own * T, own * T + own + 1));
  const keys = list(own + 1, (key) => key);
  const y = upTo(words.recall.y, base, both);
  const ages = [...new Set([own, Math.floor(own / 2), 0])];
  const means = [base, both].map((errors) => short(mean(errors), 3));
  return {
    ...words.recall,
    headline: residual ? means.join(" → ") : means[0],
    x: axis(words.recall.x, [-0.5, own + 0.5], ages.map((age) => [own - age, String(age)])),
    y,
    layers: lines(words, keys, base, both, residual, GAP * y.domain[1]),
    marks: [
      { x: keys, y: both, column: true, at: (key) => ({ query: own, key }), find: (at) => found(at.key, own + 1) },
    ],
    walk: { axis: "key", size: own + 1, keep: { query: own } },
    columns: [
      { name: words.recall.x, array: keys.map((key) => own - key) },
      { name: words.alone, array: base },
      ...(residual ? [{ name: words.both, array: both }] : []),
    ],
    read({ query = own, key }) {
      if (!(query < T && key <= query)) return null;
      const at = query * T + key;
      const which = residual ? words.both : words.alone;
      const sum = residual ? words.recall.sum(short(views.recall_base[at])) : undefined;
      return { label: words.recall.at(which, named.name("key", key), query), value: views.recall_both[at], sum };
    },
  };
}

// The mean recall error for other similarities of the keys, and the dial's own on it.
function similarity(context) {
  const { views, state, spec, words } = context;
  const { residual } = ruleOf(context);
  const x = spec.similarities;
  const { similar_base: base, similar_both: both, recall_here: here } = views;
  const own = state.dials.similarity;
  const all = [...both, here[1]];
  const y = upTo(words.recall.y, base, all);
  const says = words.similarity;
  return {
    ...says,
    x: axis(says.x, [0, 1], [[0, "0"], [0.5, "½"], [1, "1"]]),
    y,
    layers: [
      ...lines(words, x, base, both, residual, GAP * y.domain[1]),
      { type: "dot", x: own, y: here[1], colour: residual ? "error" : "ink", size: 5 },
    ],
    marks: [
      { x: [...x, own], y: all, at: (i) => ({ similarity: i }), find: (at) => found(at.similarity, all.length) },
    ],
    walk: { axis: "similarity", size: all.length },
    columns: [
      { name: says.x, array: [...x, says.own(own)] },
      { name: words.alone, array: [...base, here[0]] },
      ...(residual ? [{ name: words.both, array: all }] : []),
    ],
    read({ similarity: i }) {
      if (!(i < all.length)) return null;
      const sum = residual ? says.sum(short(base[i] ?? here[0])) : undefined;
      return { label: says.at(residual ? words.both : words.alone, x[i] ?? own), value: all[i], sum };
    },
  };
}

// Every channel of every error, before and after the clip.
function clip(context) {
  const { views, state, words } = context;
  const [T, V] = views.error.shape;
  const { residual } = ruleOf(context);
  const own = focus(context);
  const named = naming(context);
  const says = words.clip;
  const [wide, high] = [views.error, views.kept].map((array) => farthest(array) || 1);
  const ticks = (end) => [[-end, short(-end, 2)], [0, "0"], [end, short(end, 2)]];
  const mine = (array) => array.subarray(own * V, (own + 1) * V);
  const beyond = views.error.filter((error) => Math.abs(error) > state.dials.clip).length / views.error.length;
  const dots = Array.from(mine(views.error), (x, c) => {
    return { type: "dot", x, y: mine(views.kept)[c], colour: "error", size: 2.5 };
  });
  const cloud = { type: "points", x: views.error, y: views.kept, colour: "ink", alpha: 0.3 };
  return {
    ...says,
    caption: residual ? says.caption : says.none,
    captions: [says.caption, says.none],
    headline: residual && state.dials.target === "clip" ? says.share(short(100 * beyond, 2)) : undefined,
    x: axis(says.x, [-wide, wide], ticks(wide)),
    y: axis(says.y, [-1.1 * high, 1.1 * high], ticks(high)),
    layers: residual ? [cloud, ...dots] : [],
    marks: residual
      ? [
          {
            x: views.error,
            y: views.kept,
            at: (i) => ({ query: Math.floor(i / V), entry: i % V }),
            find: ({ query, entry }) => (query < T && entry < V ? [query * V + entry] : []),
          },
        ]
      : [],
    walk: { axis: "entry", size: V, keep: { query: own } },
    columns: [
      { name: words.memories.entry, array: list(V, (c) => c + 1) },
      { name: says.x, array: mine(views.error) },
      { name: says.y, array: mine(views.kept) },
    ],
    read({ query = own, entry }) {
      if (!residual || !(query < T && entry < V)) return null;
      const at = query * V + entry;
      const sum = says.sum(short(views.error[at]));
      return { label: says.at(named.name("key", query), entry), value: views.kept[at], sum };
    },
  };
}

const COLOURS = { alpha: "ink", beta: "value", gamma: "error" };

// The gates of the rule at every token.
function gates(context) {
  const { views, spec, state, words } = context;
  const has = spec.rules[state.dials.rule].gates;
  const letters = Object.entries({ alpha: "retention", beta: "write", gamma: "correction" });
  const own = letters.filter(([, gate]) => has.includes(gate)).map(([letter]) => letter);
  const T = views.alpha.length;
  const named = naming(context);
  const places = list(T, (t) => t + 1);
  const says = words.gates;
  const text = (letter) => (letter === "alpha" ? "ink" : `${COLOURS[letter]}Text`);
  return {
    ...says,
    x: axis(says.x, [0.5, T + 0.5], [1, Math.round(T / 2), T].map((t) => [t, String(t)])),
    y: axis(says.y, [0, 1.1], [[0, "0"], [0.5, "½"], [1, "1"]]),
    layers: own.flatMap((letter, n) => [
      { type: "line", x: places, y: views[letter], colour: COLOURS[letter], width: 2 },
      label(words.gate[letter], [1 + n * 0.06 * T, views[letter][Math.floor(n * 0.06 * T)] + GAP], text(letter)),
    ]),
    marks: own.map((letter) => {
      return { x: places, y: views[letter], column: true, at: (t) => ({ query: t }), find: (at) => found(at.query, T) };
    }),
    walk: { axis: "query", size: T },
    columns: [
      { name: says.x, array: places },
      ...own.map((letter) => ({ name: words.gate[letter], array: views[letter] })),
    ],
    read({ query, key, memory }) {
      if (!(query < T) || key !== undefined || memory !== undefined || !own.length) return null;
      const [first, ...others] = own;
      const sum = others.length ? says.sum(others.map((letter) => [letter, short(views[letter][query])])) : undefined;
      return { label: says.at(words.gate[first], named.name("query", query)), value: views[first][query], sum };
    },
  };
}

// Every rule with as many numbers of state, and as a mark with keys as wide as everybody's.
function budget(context) {
  const { views, state, spec, words } = context;
  const { budget_wide: wide, budget_narrow: narrow } = views;
  const [, , K, V] = views.memories.shape;
  const numbers = K * V * (state.dials.same_budget && !ruleOf(context).residual ? 1 : 2); // one wide memory, or two
  const names = Object.keys(spec.rules);
  const rows = list(names.length, (n) => names.length - n);
  const x = upTo(words.budget.x, wide, narrow);
  const [, top] = x.domain;
  const says = words.budget;
  const at = (i) => ({ rule: i % names.length });
  const along = (i) => (top * Math.floor(i / names.length)) / REACH;
  const reach = Array.from({ length: REACH * names.length }, (_, i) => i);
  return {
    ...says,
    caption: says.caption(numbers),
    x,
    y: axis("", [0.4, names.length + 0.6], []),
    layers: names.flatMap((name, n) => {
      const colour = spec.rules[name].residual ? "error" : "muted";
      const y = [rows[n] - 0.4, rows[n] + 0.4];
      return [
        { type: "box", x: [0, wide[n]], y, colour, alpha: name === state.dials.rule ? 0.5 : 0.25 },
        { type: "line", x: [narrow[n], narrow[n]], y, colour },
        label(`${words.rules[name]} ${short(wide[n], 3)}`, [GAP * top, rows[n] - 0.15], "ink"),
      ];
    }),
    marks: [
      { x: wide, y: rows, at, find: ({ rule }) => found(rule, names.length) },
      { x: reach.map(along), y: reach.map((i) => rows[i % names.length]), at, find: () => [] },
    ],
    walk: { axis: "rule", size: names.length },
    columns: [
      { name: says.columns.rule, array: names, word: (name) => words.rules[name] },
      { name: says.columns.wide, array: wide },
      { name: says.columns.narrow, array: narrow },
    ],
    read({ rule: n }) {
      if (!(n < names.length)) return null;
      return { label: says.at(words.rules[names[n]], numbers), value: wide[n], sum: says.sum(short(narrow[n])) };
    },
  };
}

export const panel = {
  computer,
  controls: { curve },
  figures: [
    { id: "memories", kind: "heatmap", wide: true, picture: memories },
    { id: "weights", kind: "heatmap", option: "weights", picture: weights },
    { id: "recall", kind: "chart", picture: recall },
    { id: "similarity", kind: "chart", picture: similarity },
    { id: "clip", kind: "chart", picture: clip },
    { id: "gates", kind: "chart", picture: gates },
    { id: "budget", kind: "chart", picture: budget },
  ],
  // the dials that mean nothing beside the others, and what is in force in their place
  idle(state, words, spec) {
    const { tied, target, write } = state.dials;
    return {
      ...(tied && { correction: { why: words.tied, instead: write } }),
      ...(target !== "clip" && { clip: { why: words.whole } }),
      ...(!isToy(state, spec) && { value_width: { why: words.kit.realWidth, instead: spec.inputs.real_width } }),
    };
  },
};
