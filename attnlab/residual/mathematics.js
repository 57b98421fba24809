// The mathematics of the residual panel in doubles: the twin of view.py, with the same names and shapes.
// T tokens, K and V widths, alpha `retention`, beta `write`, gamma `correction`; memories are [K, V], row-major.
import { normal, uniform } from "../panels/draws.js";
import { count, cut, highest, inputsOf, isToy } from "../panels/inputs.js";
import { dot, dots, list, norm, shaped, step, total, unit } from "../panels/numbers.js";

// -- the stream -----------------------------------------------------------------------------------------------------

// Everything that a seed draws, at the dials' largest sizes: smaller ones are the beginnings of rows and columns.
function drawAll(seed, { draws, inputs, ...spec }) {
  const T = highest(spec, "tokens");
  const [keys, values] = [2 * highest(spec, "head_width"), highest(spec, "value_width")];
  return {
    keys: { numbers: normal(seed, draws.keys, T, keys), width: keys },
    values: { numbers: normal(seed, draws.values, T, values), width: values },
    shared: normal(seed, draws.shared, 1, 2 * inputs.real_width),
    asked: uniform(seed, draws.asked, T, 1),
  };
}

// Each row turned towards the direction that all share.
function leaning(own, shared, K, similarity) {
  const towards = unit(shared.slice(0, K), K);
  return own.map((x, i) => (1 - similarity) * x + similarity * towards[i % K]);
}

const rowsOf = ({ numbers, width }, T, K, factor = 1) => cut(numbers, count(T), width, K).map((x) => x / factor);

// { keys(wide), queries(wide), v, asked, T, K, V }: keys before they lean, also at twice the width. Toy queries are keys,
// of the tokens that are `asked` for; a real head has its own.
function stream(T, K, V, drawn) {
  return {
    keys: (wide) => rowsOf(drawn.keys, T, wide ? 2 * K : K, Math.sqrt(wide ? 2 * K : K)),
    v: rowsOf(drawn.values, T, V),
    asked: count(T).map((t) => Math.floor(drawn.asked[t] * (t + 1))),
    ...{ T, K, V },
  };
}

// A real head; wide, its positive and its negative part.
function real({ q, k, v, T, K }) {
  const entering = (x) => (wide) => {
    const own = unit(x, K);
    if (!wide) return own;
    const parts = new Float64Array(2 * T * K);
    own.forEach((x, i) => (parts[i + K * Math.floor(i / K) + (x < 0 ? K : 0)] = Math.abs(x)));
    return parts;
  };
  return { keys: entering(k), queries: entering(q), v, T, K, V: K };
}

// -- one run of a rule ----------------------------------------------------------------------------------------------

// The token loop, seen from the keys: S is only ever asked what it recalls for one of them, and one more write changes
// what it recalls for key i by (k_i.k_t) times what is written. So S stands here as those recalls, a row of V numbers
// for each key, and R likewise; gram [T, T] holds the k_i.k_t.
// `look(t, S, R, before)` sees both after each token, and S before it. Returns errors before and after the clip, and
// what each token adds to S and to R, all [T, V].
function run({ v, T, V, gram, alpha, beta, gamma, delta, residual, keep, fitting }, look) {
  const [error, kept, toS, toR] = Array.from({ length: 4 }, () => shaped([T, V]));
  const [S, R, before] = Array.from({ length: 3 }, () => new Float64Array(T * V));
  const pass = (recalls, t, added, decay) => {
    for (let i = 0, at = 0; i < T; i++) {
      const met = gram[i * T + t];
      for (let c = t * V; c < (t + 1) * V; c++, at++) recalls[at] = decay * recalls[at] + met * added[c];
    }
  };
  for (let t = 0; t < T; t++) {
    const lack = delta ? alpha[t] : 0; // of what is recalled, a delta write subtracts what has not decayed
    before.set(S);
    for (let at = t * V; at < (t + 1) * V; at++) {
      toS[at] = beta[t] * (v[at] - lack * S[at]);
      if (!residual) continue;
      error[at] = v[at] - S[at];
      kept[at] = keep(error[at]);
      toR[at] = fitting ? gamma[t] * (kept[at] - lack * R[at]) : kept[at];
    }
    if (residual) pass(R, t, toR, fitting ? alpha[t] : 0);
    pass(S, t, toS, alpha[t]);
    look(t, S, R, before);
  }
  return { error, kept, toS, toR };
}

// How an output reads both memories: the factor of the old S, and that of the new R; a single memory is read when new.
const readers = ({ alpha, gamma, gated }, t) => (gated ? [alpha[t], gamma[t]] : [1, 1]);

// Recall errors of the first `count` keys after token t: of S alone, and of both as the output reads them.
function recalls(about, t, count, S, R, before) {
  const { v, V, T, residual } = about;
  const size = norm(v) / Math.sqrt(T);
  const [a, g] = readers(about, t);
  const away = (recalled) =>
    Float64Array.from({ length: count }, (_, i) => {
      let square = 0;
      for (let at = i * V; at < (i + 1) * V; at++) square += (recalled(at) - v[at]) ** 2;
      return Math.sqrt(square) / size;
    });
  const base = away((at) => S[at]);
  return [base, residual ? away((at) => a * before[at] + g * R[at]) : base];
}

export const mean = (errors) => Math.sqrt(errors.reduce((sum, x) => sum + x * x, 0) / errors.length);

// Mean recall error after the last token, of S alone and of both.
function meanRecall(about) {
  let found;
  run(about, (t, ...memories) => {
    if (t === about.T - 1) found = recalls(about, t, about.T, ...memories).map(mean);
  });
  return found;
}

// -- views of a run -------------------------------------------------------------------------------------------------

// Both memories after every token, errors, output and recall errors.
function trace(about) {
  const { q, k, T, K, V, alpha, residual, fitting } = about;
  const size = K * V;
  const [recall_base, recall_both] = [shaped([T, T]), shaped([T, T])];
  const { error, kept, toS, toR } = run(about, (t, ...memories) => {
    const [base, both] = recalls(about, t, t + 1, ...memories);
    recall_base.set(base, t * T);
    recall_both.set(both, t * T);
  });
  const memories = shaped([2, T, K, V]);
  const out = shaped([T, V]);
  // the memory after token t, which starts at `to`: the one before it decayed, and the new row written with the key
  const put = (to, t, added, decay) => {
    for (let at = to, r = 0; r < K; r++) {
      for (let c = t * V; c < (t + 1) * V; c++, at++) {
        memories[at] = (t ? decay * memories[at - size] : 0) + k[t * K + r] * added[c];
      }
    }
  };
  const read = (from, t, gate) => {
    for (let r = 0, at = from; r < K; r++) {
      const x = gate * q[t * K + r];
      for (let c = t * V; c < (t + 1) * V; c++, at++) out[c] += x * memories[at];
    }
  };
  for (let t = 0; t < T; t++) {
    const [S, R] = [t * size, (T + t) * size];
    put(S, t, toS, alpha[t]);
    if (!residual) {
      read(S, t, 1);
      continue;
    }
    put(R, t, toR, fitting ? alpha[t] : 0);
    const [a, g] = readers(about, t);
    if (t) read(S - size, t, a);
    read(R, t, g);
  }
  const here = [recall_base, recall_both].map((errors) => mean(errors.subarray((T - 1) * T)));
  return { memories, error, kept, out, recall_base, recall_both, recall_here: list(2, (side) => here[side]) };
}

// How much of each past value and of each past error is in an output: what has become of each token's key is passed on
// from token to token, a row for each.
function weights(about) {
  const { q, k, T, K, alpha, beta, gamma, delta, residual, fitting } = about;
  const [values, errors, key_query] = Array.from({ length: 3 }, () => shaped([T, T]));
  const [S, R] = [new Float64Array(T * K), new Float64Array(T * K)];
  const pass = (rows, t, rate, delta) => {
    for (let i = 0; i < t; i++) {
      for (let r = 0; r < K; r++) rows[i * K + r] *= alpha[t];
      const met = delta ? rate * dot(rows, i * K, k, t * K, K) : 0;
      if (met) for (let r = 0; r < K; r++) rows[i * K + r] -= met * k[t * K + r];
    }
    for (let r = 0; r < K; r++) rows[t * K + r] = rate * k[t * K + r];
  };
  for (let t = 0; t < T; t++) {
    const read = (rows, into, gate) => {
      for (let i = 0; i <= t; i++) into[t * T + i] = gate * dot(q, t * K, rows, i * K, K);
    };
    read(k, key_query, 1);
    const [a, g] = readers(about, t);
    if (residual) read(S, values, a);
    pass(S, t, beta[t], delta);
    if (!residual) {
      read(S, values, 1);
      continue;
    }
    if (fitting) pass(R, t, gamma[t], delta);
    else R.fill(0).set(k.subarray(t * K, (t + 1) * K), t * K);
    read(R, errors, g);
  }
  return { key_query, value_weights: values, error_weights: errors };
}

// -- every view -----------------------------------------------------------------------------------------------------

// The curve at each token: straight lines between points that stand evenly from the first token to the last.
const overTokens = (points, T) =>
  list(T, (t) => {
    const place = t * ((points.length - 1) / (T - 1));
    const left = Math.min(Math.floor(place), points.length - 2);
    return points[left] + (points[left + 1] - points[left]) * (place - left);
  });

// The gates of a rule at every token.
function gatesOf(name, { retention, write, correction, tied, tokens: T }, { gates }) {
  const of = (gate, points, none) => (gates.includes(gate) ? overTokens(points, T) : list(T, () => none));
  const fixed = () => total(retention) / retention.length;
  return {
    alpha: name === "retnet" ? list(T, fixed) : of("retention", retention, 1),
    beta: of("write", write, 1),
    gamma: of("correction", tied ? write : correction, 0),
  };
}

// What of an error R is taught.
function keeper({ target, clip }) {
  if (target === "log_cosh") return Math.tanh;
  return target === "none" ? (x) => x : (x) => Math.min(Math.max(x, -clip), clip);
}

// A function (state, data) -> views that keeps its intermediate results, so that a dial recomputes what depends on it.
export function computer(spec) {
  const inputs = inputsOf(spec);
  const names = Object.keys(spec.rules);
  const [draws, sources, shared, traces, weighed, similar, budgets] = Array.from({ length: 7 }, step);
  return (state, data) => {
    const { dials } = state;
    const { rule, same_budget, similarity, normalize, seed, tokens, head_width, value_width } = dials;
    const drawn = draws([seed], () => drawAll(seed, spec));
    const given = isToy(state, spec) ? null : inputs(state, data);
    const source = sources([drawn, given, tokens, head_width, value_width], () =>
      given ? real(given) : stream(tokens, head_width, value_width, drawn),
    );
    // the same object as long as no dial that any rule depends on has changed
    const at = JSON.stringify({ ...dials, rule: "", same_budget: "", similarity: 0, input: "" });
    const common = shared([source, drawn, at], () => {
      return { fitting: dials.fitting, gated: dials.read_gates, keep: keeper(dials) };
    });
    const keysOf = (similarity, wide) => {
      const K = source.K * (wide ? 2 : 1);
      const lean = (own) => {
        const x = leaning(own, drawn.shared, K, similarity);
        return normalize ? unit(x, K) : x;
      };
      const k = lean(source.keys(wide));
      return { k, K, lean, gram: dots(k, k, source.T, K) };
    };
    const about = (name, keys) => {
      return { ...source, ...spec.rules[name], ...gatesOf(name, dials, spec.rules[name]), ...common, ...keys };
    };
    const wide = same_budget && !spec.rules[rule].residual;
    const here = about(rule, keysOf(similarity, wide));
    here.q = given ? here.lean(source.queries(wide)) : cut(here.k, source.asked, here.K, here.K);
    const key = [common, rule, similarity, wide];
    const rivals = () => {
      const [budget_narrow, budget_wide] = [false, true].map((same) => {
        const [narrow, wide] = [false, same].map((wide) => keysOf(similarity, wide));
        const error = (name) => meanRecall(about(name, spec.rules[name].residual ? narrow : wide))[1];
        return list(names.length, (n) => error(names[n]));
      });
      return { budget_narrow, budget_wide };
    };
    return {
      ...traces(key, () => trace(here)),
      ...weighed(key, () => weights(here)),
      alpha: here.alpha,
      beta: here.beta,
      gamma: here.gamma,
      ...similar([common, rule, wide], () => {
        const means = spec.similarities.map((similarity) => meanRecall(about(rule, keysOf(similarity, wide))));
        const [similar_base, similar_both] = [0, 1].map((side) => list(means.length, (s) => means[s][side]));
        return { similar_base, similar_both };
      }),
      ...budgets([common, similarity], rivals),
    };
  };
}
