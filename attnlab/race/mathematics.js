// The mathematics of the RACE panel in doubles: the twin of view.py, with the same names and shapes.
// P planes, L tables, R = 2^P buckets, T tokens, K the width of q, k and v, beta is `sharpness`.
import { normal } from "../panels/draws.js";
import { distance, dot, dots, mix, norm, rows, softmax, unit } from "../panels/numbers.js";
import { halves, scalar, shaped, step } from "../panels/numbers.js";

// -- inputs ---------------------------------------------------------------------------------------------------------

const cluster = (t, T, toy) => Math.floor((t * toy.clusters) / T);

// Everything that a seed draws, at the dials' largest sizes: smaller ones are the beginnings of rows and columns, so
// only a new seed draws anew.
function drawAll(seed, { toy, dials, error }) {
  const largest = Object.fromEntries(dials.map(({ name, high }) => [name, high]));
  const most = Math.max(...error.tables);
  const rows = {
    planes: Array.from({ length: most * largest.planes }, (_, n) => {
      return toy.planes_per_table * Math.floor(n / largest.planes) + (n % largest.planes);
    }),
    centres: toy.clusters,
    "value centres": toy.clusters,
    queries: largest.tokens,
    keys: largest.tokens,
    values: largest.tokens,
  };
  const drawn = Object.fromEntries(
    Object.entries(rows).map(([name, count]) => [name, normal(seed, toy.streams[name], count, largest.head_width)]),
  );
  return { ...drawn, width: largest.head_width, planesPerTable: largest.planes };
}

// The first K numbers of the given rows of `width` numbers.
function cut(x, rows, width, K) {
  const out = new Float64Array(rows.length * K);
  rows.forEach((row, n) => out.set(x.subarray(row * width, row * width + K), n * K));
  return out;
}

const count = (n) => Array.from({ length: n }, (_, i) => i);

// Tokens in clusters, in order: q and k unit vectors around one centre, v noise around another (params.py).
function toyInputs({ tokens: T, head_width: K }, drawn, toy) {
  const own = count(T).map((t) => cluster(t, T, toy));
  const take = (name, rows) => cut(drawn[name], rows, drawn.width, K);
  const around = (centres, noise, spread) => {
    const x = take(noise, count(T));
    for (let at = 0; at < x.length; at++) x[at] = centres[at] + spread * x[at];
    return x;
  };
  const centres = unit(take("centres", own), K);
  const near = toy.spread / Math.sqrt(K);
  const [q, k] = ["queries", "keys"].map((name) => unit(around(centres, name, near), K));
  return { q, k, v: around(take("value centres", own), "values", toy.spread) };
}

// The beginning of the window of a real head that Python sent.
function realInputs(T, data) {
  const [q, k, v] = [data.q, data.k, data.v].map((bytes) => halves(bytes, T * data.width));
  return { q, k, v };
}

// The names of the tokens, as params.py gives them.
export function tokenNames({ dials }, data, { toy }) {
  if (dials.input !== toy.input) return data.tokens.slice(0, dials.tokens);
  const seen = new Array(toy.clusters).fill(0);
  return Array.from({ length: dials.tokens }, (_, t) => {
    const c = cluster(t, dials.tokens, toy);
    return "abcd"[c] + ++seen[c];
  });
}

// Whether the state asks for a real head that has not come yet.
export const missing = ({ dials }, data, { toy }) => dials.input !== toy.input && data?.input !== dials.input;

// -- soft bits, features, scores ------------------------------------------------------------------------------------

// tanh(W x) as [L, T, P], so that the numbers of one table lie together.
function project(x, W, L, T, P, K) {
  const u = new Float64Array(L * T * P);
  for (let l = 0, at = 0; l < L; l++) {
    for (let t = 0; t < T; t++) {
      for (let p = 0; p < P; p++, at++) u[at] = Math.tanh(dot(x, t * K, W, (l * P + p) * K, K));
    }
  }
  return u;
}

// sigmoid(2 beta u) and sigmoid(-2 beta u): the chances that a soft bit is set or not (p. 22), both to full precision.
function softBits(u, beta) {
  const set = new Float64Array(u.length);
  const unset = new Float64Array(u.length);
  for (let i = 0; i < u.length; i++) {
    const e = Math.exp(-2 * beta * Math.abs(u[i]));
    const likely = 1 / (1 + e);
    set[i] = u[i] > 0 ? likely : e * likely;
    unset[i] = u[i] > 0 ? e * likely : likely;
  }
  return { set, unset };
}

// phi [L, T, R], one plane after the other: the next bit of the bucket number doubles what is there.
function features({ set, unset }, L, T, P) {
  const R = 2 ** P;
  const phi = shaped([L, T, R]);
  for (let row = 0; row < L * T; row++) {
    const at = row * R;
    phi[at] = 1;
    for (let p = 0; p < P; p++) {
      const yes = set[row * P + p];
      const no = unset[row * P + p];
      const half = 2 ** p;
      for (let r = at; r < at + half; r++) {
        phi[r + half] = phi[r] * yes;
        phi[r] *= no;
      }
    }
  }
  return phi;
}

// What the keys leave in each bucket [L, R].
function massOf(phi) {
  const [L, T, R] = phi.shape;
  const mass = shaped([L, R]);
  for (let l = 0, at = 0; l < L; l++) {
    for (let t = 0; t < T; t++) for (let r = 0; r < R; r++, at++) mass[l * R + r] += phi[at];
  }
  return mass;
}

// sum += phi(q).phi(k) of table l for all pairs, as a product over planes: P steps a pair instead of 2^P. Two queries at
// a time read the bits of a key once, and their products do not wait for each other; the last one may be its own second.
function addTable(sum, { set: qSet, unset: qUnset }, { set: kSet, unset: kUnset }, l, T, P) {
  const from = l * T * P;
  for (let i = 0; i < T; i += 2) {
    const paired = i + 1 < T;
    const a = from + i * P;
    const other = paired ? P : 0;
    for (let j = 0, b = from, at = i * T; j < T; j++, at++) {
      let first = 1;
      let second = 1;
      for (let p = a; p < a + P; p++, b++) {
        const set = kSet[b];
        const unset = kUnset[b];
        first *= qSet[p] * set + qUnset[p] * unset;
        second *= qSet[p + other] * set + qUnset[p + other] * unset;
      }
      sum[at] += first;
      if (paired) sum[at + T] += second;
    }
  }
}

// -- theory ---------------------------------------------------------------------------------------------------------

// tanh(r cos t) on the upper right quarter of the circle, both ends included, for each radius of theory.py's rule.
function quarters({ points, radius }) {
  const cosine = Float64Array.from({ length: points / 4 + 1 }, (_, t) => Math.cos((2 * Math.PI * t) / points));
  return radius.map((r) => cosine.map((c) => Math.tanh(r * c)));
}

// E[a(g1) a(g2)] and E[a^2(g1) a^2(g2)] at angles 0, pi/steps, ..., pi, with a = tanh(beta tanh g): the rule of
// theory.py. An angle is a whole number of the circle's points, and a repeats up to its sign: one quarter of the circle
// gives all of it, and half of it with half the angles is enough for the integral.
function pairMoments(beta, quarter, { steps, points, weight }) {
  const half = points / 2;
  const shift = half / steps;
  const [a, square] = [new Float64Array(points), new Float64Array(points)];
  const [aa, aabb] = [new Float64Array(steps + 1), new Float64Array(steps + 1)];
  for (let m = 0; m < weight.length; m++) {
    for (let t = 0; t <= half / 2; t++) {
      a[t] = Math.tanh(beta * quarter[m][t]);
      a[half - t] = -a[t];
    }
    for (let t = 0; t < half; t++) {
      a[t + half] = -a[t];
      square[t] = square[t + half] = a[t] * a[t];
    }
    for (let n = 0; n <= steps / 2; n++) {
      aa[n] += (weight[m] * dot(a, half, a, half - n * shift, half)) / half;
      aabb[n] += (weight[m] * dot(square, half, square, half - n * shift, half)) / half;
    }
  }
  for (let n = 0; n < steps / 2; n++) [aa[steps - n], aabb[steps - n]] = [-aa[n], aabb[n]];
  return { aa, aabb };
}

// Exact mean and standard deviation of S_hat for unit vectors at each angle, and kappa^P.
function bandOf({ aa, aabb }, P, L) {
  const size = aa.length;
  const [band_angle, band_mean, band_sd, band_target] = Array.from({ length: 4 }, () => shaped([size]));
  for (let n = 0; n < size; n++) {
    const x = (1 + aa[n]) / 2;
    const xx = (1 + 2 * aa[n] + aabb[n]) / 4;
    band_angle[n] = (Math.PI * n) / (size - 1);
    band_mean[n] = x ** P;
    band_sd[n] = Math.sqrt(Math.max(xx ** P - x ** (2 * P), 0) / L);
    band_target[n] = (1 - n / (size - 1)) ** P;
  }
  return { band_angle, band_mean, band_sd, band_target };
}

// 1 where identical unit vectors get S_hat below 1/2: in every draw, or in the mean that many tables tend to.
function lemma10({ aa }, P, beta) {
  const needed = 2 ** (1 - 1 / P) - 1; // of the squared soft sign
  return {
    lemma10_every_draw: scalar(Number(Math.tanh(beta) ** 2 < needed)),
    lemma10_large_tables: scalar(Number(aa[0] < needed)),
  };
}

// The measured error, and Theorem 2's rate scaled to touch it from above.
function errors(error_output, { tables, delta }, P, beta, T) {
  const rate = tables.map((L) => P / beta + Math.sqrt(Math.log(T / delta) / L));
  const touch = Math.max(...rate.map((r, n) => error_output[n] / r));
  const list = (numbers) => shaped([tables.length], Float64Array.from(numbers));
  return {
    error_tables: list(tables),
    error_output: list(error_output),
    error_rate: list(rate.map((r) => r * touch)),
  };
}

// -- every view -----------------------------------------------------------------------------------------------------

// A function (state, data) -> views that keeps its intermediate results, so that a dial recomputes what depends on it.
export function computer(spec) {
  const { toy, real_width, error, band } = spec;
  const most = Math.max(...error.tables);
  const quarter = quarters(band);
  const [draws, planes, inputs, directions, projections, bits, targets] = Array.from({ length: 7 }, step);
  const [estimates, keyBuckets, queryBuckets, moments] = Array.from({ length: 4 }, step);

  return ({ dials }, data) => {
    const { planes: P, tables: L, sharpness: beta, tokens: T, seed, causal, normalize } = dials;
    const isToy = dials.input === toy.input;
    const K = isToy ? dials.head_width : real_width;

    const drawn = draws([seed], () => drawAll(seed, spec));
    const W = planes([drawn, P, K], () => {
      const numbers = count(most * P).map((n) => Math.floor(n / P) * drawn.planesPerTable + (n % P)); // [L, P, K]
      return cut(drawn.planes, numbers, drawn.width, K);
    });
    const given = inputs([T, K, isToy ? drawn : data], () =>
      isToy ? toyInputs(dials, drawn, toy) : realInputs(T, data),
    );
    const { q, k, v } = given;
    const unitary = directions([given], () => ({ q: unit(q, K), k: unit(k, K) }));
    const u = projections([W, given, normalize], () => {
      const from = normalize ? unitary : given;
      return { q: project(from.q, W, most, T, P, K), k: project(from.k, W, most, T, P, K) };
    });
    const soft = bits([u, beta], () => ({ q: softBits(u.q, beta), k: softBits(u.k, beta) }));

    // what RACE is held against: softmax, the angles, angular attention of power P
    const target = targets([given, causal, P], () => {
      const pair_angle = shaped(
        [T, T],
        dots(unitary.q, unitary.k, T, K).map((c) => Math.acos(Math.min(1, Math.max(-1, c)))),
      );
      const angular = rows(
        pair_angle.map((angle) => (1 - angle / Math.PI) ** P),
        T,
        causal,
      );
      return { softmax: softmax(q, k, T, K, causal), angular, pair_angle, out_angular: mix(angular, v, T, K) };
    });

    // S_hat from 1, 2, 3, ... tables of one draw: at the dial's number, and at those of the error curve on the way
    const { error_output, ...estimate } = estimates([soft, target, L], () => {
      const away = (out) => distance(out, target.out_angular) / Math.sqrt(T) / norm(v); // |O_hat - O|_rms / |V|_F
      const sum = shaped([T, T]);
      const error_output = [];
      let here;
      for (let l = 1; l <= most; l++) {
        addTable(sum, soft.q, soft.k, l - 1, T, P);
        if (l !== L && !error.tables.includes(l)) continue;
        const race = rows(sum, T, causal); // the factor 1/l cancels
        const out = mix(race, v, T, K);
        if (error.tables.includes(l)) error_output.push(away(out));
        if (l !== L) continue;
        const score = sum.map((s) => s / L);
        here = { pair_score: shaped([T, T], score), race, out, error_here: scalar(away(out)) };
      }
      return { ...here, error_output };
    });
    const moment = moments([beta], () => pairMoments(beta, quarter, band));
    return {
      ...keyBuckets([soft, L], () => {
        const phi_k = features(soft.k, L, T, P);
        return { phi_k, mass: massOf(phi_k) };
      }),
      // the largest of all arrays, and seldom drawn: computed when it is asked for
      get phi_q() {
        return queryBuckets([soft, L], () => features(soft.q, L, T, P));
      },
      ...target,
      ...estimate,
      ...bandOf(moment, P, L),
      ...lemma10(moment, P, beta),
      ...errors(error_output, error, P, beta, T),
      theorem2_speaks: scalar(Number((normalize || isToy) && !causal)), // toy tokens are unit vectors
    };
  };
}
