// The mathematics of the softmax panel in doubles: the twin of view.py, with the same names and shapes.
import { inputsOf } from "../panels/inputs.js";
import { list, logitsOf, shaped, softmax, total } from "../panels/numbers.js";

// exp(entropy) of one query's weights.
const effective = (row) => Math.exp(-total(row.map((w) => (w > 0 ? w * Math.log(w) : 0))));

// Mean share of the mass on a query's 1, 2, ..., T heaviest keys.
function kept(weights, T) {
  const mean = shaped([T]);
  for (let i = 0; i < T; i++) {
    const sorted = weights.slice(i * T, (i + 1) * T).sort();
    for (let n = 0, sum = 0; n < T; n++) mean[n] += (sum += sorted[T - 1 - n]) / T;
  }
  return mean;
}

// A function (state, data) -> views.
export function computer(spec) {
  const inputs = inputsOf(spec);
  return (state, data) => {
    const { tokens: T, temperature, causal } = state.dials;
    const { q, k, K } = inputs(state, data);
    const logits = logitsOf(q, k, T, K, 1 / (Math.sqrt(K) * temperature));
    const weights = softmax(logits, T, causal);
    const seen = list(T, (i) => (causal ? i + 1 : T));
    return {
      logits,
      weights,
      seen,
      effective: list(T, (i) => effective(weights.subarray(i * T, (i + 1) * T))),
      kept: kept(weights, T),
      kept_even: list(T, (n) => total(seen.map((keys) => Math.min((n + 1) / keys, 1))) / T),
    };
  };
}
