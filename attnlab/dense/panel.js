// The live view of softmax attention: what is shown of the numbers in mathematics.js, and where.
import { list, short, total } from "../panels/numbers.js";
import { readCell } from "../panels/paint.js";
import { nameTokens, pairMatrix, series, softmaxSum } from "../panels/pictures.js";
import { computer } from "./mathematics.js";

function weights(context) {
  const { views, state, words } = context;
  const { causal } = state.dials;
  return pairMatrix({
    ...words.weights,
    array: views.weights,
    causal,
    sum: (at) => softmaxSum(views.logits, at, causal, words),
    named: nameTokens(context),
    words,
  });
}

// By how many keys each query is spread, and how many it sees.
function spread(context) {
  const { views, words } = context;
  const { effective, seen } = views;
  return series(words.spread, {
    along: "query",
    array: effective,
    against: seen,
    logY: true,
    headline: words.spread.mean(short(total(effective) / effective.length, 3)),
    label: (i) => words.spread.at(nameTokens(context).name("query", i)),
    sum: (i) => words.spread.sum(short(Math.log(effective[i])), seen[i]),
  });
}

// What is left of the weights where every query keeps its heaviest keys alone.
function kept({ views, words }) {
  return series(words.kept, {
    along: "kept",
    array: views.kept,
    against: views.kept_even,
    colour: "key",
    logX: true,
    headline: words.kept.most(1 + views.kept.findIndex((share) => share >= 0.9)),
    label: (n) => words.kept.at(n + 1),
    sum: (n) => words.kept.sum(views.kept.length, short(views.kept_even[n])),
  });
}

// The weights of the query in focus, key by key; of the last one where none is.
function row(context) {
  const { views, words, at } = context;
  const T = views.seen.length;
  const own = at.query < T ? at.query : T - 1;
  return series(words.row, {
    along: "key",
    keep: { query: own },
    array: views.weights.subarray(own * T, (own + 1) * T),
    against: list(T, (key) => (key < views.seen[own] ? 1 / views.seen[own] : 0)),
    bars: true,
    y: words.row.y(nameTokens(context).name("query", own)),
    read: ({ query = own, key }) => readCell(weights(context), { query, key }),
  });
}

export const panel = {
  computer,
  figures: [
    { id: "weights", kind: "heatmap", picture: weights },
    { id: "spread", kind: "chart", picture: spread },
    { id: "kept", kind: "chart", picture: kept },
    { id: "row", kind: "chart", wide: true, picture: row },
  ],
};
