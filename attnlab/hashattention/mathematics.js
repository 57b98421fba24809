// The mathematics of the Hamming recall panel in doubles: the twin of view.py, with the same names and shapes.
// T tokens, K their width, b bits; in arrays [T, T], [t, i] is what query t has of key i.
import { normal, uniform } from "../panels/draws.js";
import { count, cut, highest, inputsOf, isToy, tokenNames } from "../panels/inputs.js";
import { dot, logitsOf, mix, norm, rows, shaped, softmax, step } from "../panels/numbers.js";

// -- tokens ---------------------------------------------------------------------------------------------------------

// Where each toy token stands in the clusters' order.
function shuffled({ dials: { seed, tokens } }, { draws }) {
  const drawn = uniform(seed, draws.order, tokens, 1);
  return count(tokens).sort((a, b) => drawn[a] - drawn[b]);
}

// The toy in its drawn order, keys of different lengths, long queries.
function toy({ q, k, v, T, K }, state, { draws, toy: { query, spread } }) {
  const order = shuffled(state, { draws });
  const lengths = normal(state.dials.seed, draws.lengths, T, 1);
  const take = (x) => cut(x, order, K, K);
  return {
    q: take(q).map((x) => query * Math.sqrt(K) * x),
    k: take(k).map((x, at) => Math.exp(spread * lengths[Math.floor(at / K)]) * x),
    v: take(v),
    ...{ T, K },
  };
}

// The names of the tokens, as params.py gives them.
export function names(state, data, spec) {
  const words = tokenNames(state, data, spec);
  const seen = { a: 0, b: 0, c: 0, d: 0 };
  return isToy(state, spec) ? shuffled(state, spec).map((n) => words[n][0] + ++seen[words[n][0]]) : words;
}

// -- codes ----------------------------------------------------------------------------------------------------------

// Which codes are in force: learned ones where Python has sent them.
export function kind(state, data, { kinds, ...spec }) {
  const wanted = state.dials.codes;
  return wanted === kinds.learned && (isToy(state, spec) || !data.key_codes) ? kinds.centred : wanted;
}

// The signs of the first b rows of W, `width` wide, times x - centre, [T, b].
function signs(x, W, width, { T, K }, b, centre) {
  const bits = shaped([T, b]);
  for (let i = 0; i < b; i++) {
    const shift = centre ? dot(W, i * width, centre, 0, K) : 0;
    for (let t = 0; t < T; t++) bits[t * b + i] = Number(dot(x, t * K, W, i * width, K) - shift > 0);
  }
  return bits;
}

// The first b bits of each word of 32.
function unpacked(bytes, T, b) {
  const words = new DataView(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength);
  const bits = shaped([T, b]);
  return bits.map((_, at) => (words.getUint32(4 * Math.floor(at / b), true) >>> (at % b)) & 1);
}

function meanOf(x, { T, K }) {
  const mean = new Float64Array(K);
  x.forEach((entry, at) => (mean[at % K] += entry / T));
  return mean;
}

// In how many bits they differ; -1 for a later key.
function distances(query, key) {
  const [T, b] = query.shape;
  const out = shaped([T, T]).fill(-1);
  for (let t = 0; t < T; t++) {
    for (let i = 0; i <= t; i++) {
      let apart = 0;
      for (let n = 0; n < b; n++) apart += query[t * b + n] ^ key[i * b + n];
      out[t * T + i] = apart;
    }
  }
  return out;
}

// -- scores: the best first -----------------------------------------------------------------------------------------

// The mean attention that earlier queries gave to a key.
function pastMean(weights, T) {
  const scores = shaped([T, T]);
  const sum = new Float64Array(T);
  for (let t = 0; t < T; t++) {
    for (let i = 0; i < t; i++) scores[t * T + i] = sum[i] / (t - i);
    for (let i = 0; i <= t; i++) sum[i] += weights[t * T + i];
  }
  return scores;
}

// The largest product that a key within its page's bounds could have; a query's own page reaches as far as the query.
function quest({ q, k, T, K }, page) {
  const [low, high] = [k.slice(), k.slice()]; // of a page as far as a key
  for (let at = K; at < T * K; at++) {
    if (Math.floor(at / K) % page === 0) continue;
    low[at] = Math.min(low[at], low[at - K]);
    high[at] = Math.max(high[at], high[at - K]);
  }
  const scores = shaped([T, T]);
  for (let t = 0; t < T; t++) {
    for (let start = 0; start <= t; start += page) {
      const last = Math.min(start + page - 1, t);
      let bound = 0;
      for (let c = 0; c < K; c++) {
        const x = q[t * K + c];
        bound += x * (x > 0 ? high : low)[last * K + c];
      }
      scores.fill(bound, t * T + start, t * T + last + 1);
    }
  }
  return scores;
}

// -- choices --------------------------------------------------------------------------------------------------------

// For each query the keys between the first tokens and the newest, best first, equals in the order of tokens.
function ordersOf(scores, T, { sinks, window }) {
  return count(T).map((t) => {
    const own = scores.subarray(t * T, t * T + T);
    const free = [];
    for (let i = sinks; i <= t - window; i++) free.push(i);
    return free.sort((a, b) => own[b] - own[a]);
  });
}

// The place of each key in its query's order, 0 if it is read in any case, -1 if it comes later.
function places(orders) {
  const T = orders.length;
  const place = shaped([T, T]).fill(-1);
  orders.forEach((order, t) => {
    place.fill(0, t * T, t * T + t + 1);
    order.forEach((key, n) => (place[t * T + key] = n + 1));
  });
  return place;
}

export const isRead = (place, budget) => place >= 0 && place <= budget;

// Recall of the true top, mass and output error for each of these rising budgets: means over the later half of the
// queries.
function means(orders, budgets, { v, T, K }, { weights, out, true_place }, top) {
  const half = Math.floor(T / 2);
  const [recall, mass, error] = count(3).map(() => new Float64Array(budgets.length));
  for (let t = half; t < T; t++) {
    const order = orders?.[t] ?? [];
    const own = out.subarray(t * K, t * K + K);
    const size = norm(own) || 1;
    const sum = new Float64Array(K);
    let [weight, read, found, free, n] = [0, 0, 0, 0, 0];
    const add = (i) => {
      const w = weights[t * T + i];
      const place = true_place[t * T + i];
      weight += w;
      read++;
      found += place > 0 && place <= top;
      for (let c = 0, at = i * K; c < K; c++, at++) sum[c] += w * v[at];
    };
    for (let i = 0; i <= t; i++) true_place[t * T + i] ? free++ : add(i);
    budgets.forEach((budget, m) => {
      while (n < budget && n < order.length) add(order[n++]);
      let square = 0;
      for (let c = 0; c < K; c++) square += (own[c] - sum[c] / (weight || 1)) ** 2;
      recall[m] += (free ? found / Math.min(top, free) : 1) / (T - half);
      mass[m] += weight / (T - half);
      error[m] += read > t ? 0 : Math.sqrt(square) / size / (T - half); // of all keys, what is left is rounding
    });
  }
  return [recall, mass, error];
}

// -- every view -----------------------------------------------------------------------------------------------------

// A function (state, data) -> views that keeps its intermediate results, so that a dial recomputes what depends on it.
export function computer(spec) {
  const inputs = inputsOf(spec);
  const [tokens, draws, dense, coded, hashed, target, curve, here, chosen] = count(9).map(step);
  const ranked = spec.curves.map(step);
  const [width, most] = ["head_width", "bits"].map((name) => highest(spec, name));

  return (state, data) => {
    const { selector, budget, sinks, window, top, seed, bits } = state.dials;
    const source = inputs(state, data);
    const given = tokens([source, seed], () => (isToy(state, spec) ? toy(source, state, spec) : source));
    const { q, k, v, T, K } = given;
    const [W, lsh] = draws([seed], () => {
      return [spec.draws.projections, spec.draws.lsh].map((stream) => normal(seed, stream, most, width));
    });
    const about = dense([given], () => {
      const logits = logitsOf(q, k, T, K);
      const weights = softmax(logits, T, true);
      const short = count(T).map((i) => -norm(k.subarray(i * K, i * K + K)));
      const key_norm = shaped([T, T]).map((_, at) => short[at % T]);
      const scores = { exact: logits, key_norm, past_mean: pastMean(weights, T), quest: quest(given, spec.page) };
      return { logits, weights, out: mix(weights, v, T, K), scores, centre: meanOf(k, given) };
    });
    const own = kind(state, data, spec);
    const isLearned = own === spec.kinds.learned;
    const b = isLearned ? Math.min(bits, data.code_bits) : bits;
    const code = coded([given, W, own, b], () => {
      if (isLearned) return [data.query_codes, data.key_codes].map((bytes) => unpacked(bytes, T, b));
      const centre = own === spec.kinds.centred && about.centre;
      return [signs(q, W, width, given, b), signs(k, W, width, given, b, centre)];
    });
    const [query_bits, key_bits] = code.map((bits) => shaped([T, b], bits));
    const apart = hashed([given, lsh, code], () => {
      const random = distances(signs(q, lsh, width, given, b), signs(k, lsh, width, given, b, about.centre));
      const distance = distances(query_bits, key_bits);
      return { distance, scores: { hash: distance.map((d) => -d), lsh_centred: random.map((d) => -d) } };
    });
    const scores = { ...about.scores, ...apart.scores };
    // of each selector; those that read no more than the first tokens and the newest have no scores
    const orders = spec.curves.map((name, n) => {
      return scores[name] && ranked[n]([scores[name], sinks, window], () => ordersOf(scores[name], T, state.dials));
    });
    const orderOf = (name) => orders[spec.curves.indexOf(name)];
    const { true_place, code_place } = target([orderOf("exact"), orderOf("hash")], () => {
      return { true_place: places(orderOf("exact")), code_place: places(orderOf("hash")) };
    });
    const measure = (budgets) => {
      const found = orders.map((order) => means(order, budgets, given, { ...about, true_place }, top));
      return [0, 1, 2].map((n) => found.map((metrics) => metrics[n]));
    };
    const joined = (lists) => lists.flatMap((list) => Array.from(list));
    const [recall, mass, error] = curve([true_place, code_place, top], () => {
      const shape = [orders.length, spec.budgets.length];
      return measure(spec.budgets).map((lists) => shaped(shape, Float64Array.from(joined(lists))));
    });
    return {
      query_bits,
      key_bits,
      distance: apart.distance,
      logits: about.logits,
      weights: about.weights,
      true_place,
      code_place,
      ...chosen([orderOf(selector), about, budget], () => {
        const place = places(orderOf(selector));
        const read = about.weights.map((weight, at) => (isRead(place[at], budget) ? weight : 0));
        return { place, sparse: rows(read, T, true) };
      }),
      ...{ recall, mass, error },
      here: here([recall, budget], () => {
        return shaped([3, orders.length], Float64Array.from(joined(measure([budget]).map(joined))));
      }),
    };
  };
}
