// What every panel computes with: arrays that know their shape, attention over one head, and results that are kept
// until something changes. T tokens, K and V widths, row-major Float64Array throughout.

// A Float64Array with the property `shape`.
export function shaped(shape, array = new Float64Array(shape.reduce((n, m) => n * m, 1))) {
  return Object.assign(array, { shape });
}

// One number for each i < size.
export const list = (size, entry) => shaped([size], Float64Array.from({ length: size }, (_, i) => entry(i)));

export const scalar = (number) => shaped([], Float64Array.of(number));

// A number in so many digits, as it is shown.
export const short = (number, digits = 4) => String(Number(number.toPrecision(digits)));

export const total = (numbers) => numbers.reduce((sum, number) => sum + number, 0);

// The largest number, or 0 where there is none above.
export function largest(array) {
  let most = 0;
  for (let i = 0; i < array.length; i++) if (array[i] > most) most = array[i];
  return most;
}

// The smallest number, or 0 where there is none below.
export function least(array) {
  let low = 0;
  for (let i = 0; i < array.length; i++) if (array[i] < low) low = array[i];
  return low;
}

// A step of a computation that keeps its last result: step(key, make) calls make() only where a part of the key has
// changed.
export function step() {
  let last, result;
  return (key, make) => {
    if (last === undefined || key.some((part, i) => part !== last[i])) {
      result = make();
      last = key;
    }
    return result;
  };
}

// The first `count` little-endian float16 numbers of a DataView, ArrayBuffer or typed array, exactly.
export function halves(bytes, count) {
  const view = new DataView(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength);
  return Float64Array.from({ length: count }, (_, i) => {
    const word = view.getUint16(2 * i, true);
    const exponent = (word >> 10) & 31;
    const fraction = word & 1023;
    const sign = word & 0x8000 ? -1 : 1;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
  });
}

// Each row of x [T, K] divided by its length; a zero row stays zero.
export function unit(x, K) {
  const out = new Float64Array(x.length);
  for (let at = 0; at < x.length; at += K) {
    const length = norm(x.subarray(at, at + K));
    if (length > 0) for (let i = at; i < at + K; i++) out[i] = x[i] / length;
  }
  return out;
}

export function norm(x) {
  let square = 0;
  for (const entry of x) square += entry * entry;
  return Math.sqrt(square);
}

// |x - y|, the root of the summed squares.
export function distance(x, y) {
  let square = 0;
  for (let i = 0; i < x.length; i++) square += (x[i] - y[i]) ** 2;
  return Math.sqrt(square);
}

// The inner product of K numbers of x from a on with those of y from b on.
export function dot(x, a, y, b, K) {
  let sum = 0;
  for (const end = a + K; a < end; a++, b++) sum += x[a] * y[b];
  return sum;
}

// q k^T [T, T]
export function dots(q, k, T, K) {
  const out = shaped([T, T]);
  for (let i = 0, at = 0; i < T; i++) {
    for (let j = 0; j < T; j++, at++) out[at] = dot(q, i * K, k, j * K, K);
  }
  return out;
}

// Attention weights: the rows of scores [T, T] divided by their sums; where causal, a query sees itself and earlier
// keys.
export function rows(scores, T, causal) {
  const weights = shaped([T, T]);
  for (let i = 0; i < T; i++) {
    const at = i * T;
    const end = at + (causal ? i + 1 : T);
    let sum = 0;
    for (let j = at; j < end; j++) sum += scores[j];
    if (sum > 0) for (let j = at; j < end; j++) weights[j] = scores[j] / sum; // a query that agrees with no key weighs none
  }
  return weights;
}

// scale q k^T [T, T]; the scale of softmax attention is 1/sqrt(K).
export const logitsOf = (q, k, T, K, scale = K ** -0.5) => shaped([T, T], dots(q, k, T, K).map((dot) => dot * scale));

// Softmax attention weights of logits [T, T].
export function softmax(logits, T, causal) {
  const weights = shaped([T, T]);
  for (let i = 0; i < T; i++) {
    const at = i * T;
    const end = at + (causal ? i + 1 : T);
    let top = -Infinity;
    for (let j = at; j < end; j++) top = Math.max(top, logits[j]);
    for (let j = at; j < end; j++) weights[j] = Math.exp(logits[j] - top);
  }
  return rows(weights, T, causal);
}

// weights v [T, V]
export function mix(weights, v, T, V) {
  const out = shaped([T, V]);
  for (let i = 0; i < T; i++) {
    for (let j = 0; j < T; j++) {
      const weight = weights[i * T + j];
      if (weight === 0) continue; // as where causal
      for (let c = 0, from = j * V, at = i * V; c < V; c++, from++, at++) out[at] += weight * v[from];
    }
  }
  return out;
}
