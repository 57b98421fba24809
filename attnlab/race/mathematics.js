// The mathematics of the RACE panel in doubles: the twin of view.py, with the same names and shapes.
// P planes, L tables, R = 2^P buckets, T tokens, K the width of q, k and v, beta is `sharpness`.
import { normal } from "../panels/draws.js";
import { count, cut, inputsOf, isToy } from "../panels/inputs.js";
import { distance, dot, dots, logitsOf, mix, norm, rows, softmax, unit } from "../panels/numbers.js";
import { scalar, shaped, step } from "../panels/numbers.js";

// All planes that a seed draws, for the dials' most tables, planes and widest head: only a new seed draws anew.
function drawPlanes(seed, { planes, dials, error }) {
  const [most, width] = ["planes", "head_width"].map((wanted) => dials.find(({ name }) => name === wanted).high);
  const tables = Math.max(...error.tables);
  const rows = count(tables * most).map((n) => planes.per_table * Math.floor(n / most) + (n % most));
  return { numbers: normal(seed, planes.stream, rows, width), width, perTable: most };
}

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

// sum += phi(q).phi(k) of table l for all pairs, as a product over planes: P steps a pair instead of 2^P. Four queries at
// a time read the bits of a key once, and their products do not wait for each other; where fewer are left, the last one
// stands in for those that are not there.
function addTable(sum, { set: qSet, unset: qUnset }, { set: kSet, unset: kUnset }, l, T, P) {
  const from = l * T * P;
  for (let i = 0; i < T; i += 4) {
    const left = T - i;
    const a0 = from + i * P;
    const [a1, a2, a3] = [1, 2, 3].map((n) => Math.min(n, left - 1) * P);
    for (let j = 0, b = from, at = i * T; j < T; j++, at++) {
      let w = 1;
      let x = 1;
      let y = 1;
      let z = 1;
      for (let p = a0; p < a0 + P; p++, b++) {
        const set = kSet[b];
        const unset = kUnset[b];
        w *= qSet[p] * set + qUnset[p] * unset;
        x *= qSet[p + a1] * set + qUnset[p + a1] * unset;
        y *= qSet[p + a2] * set + qUnset[p + a2] * unset;
        z *= qSet[p + a3] * set + qUnset[p + a3] * unset;
      }
      sum[at] += w;
      if (left > 1) sum[at + T] += x;
      if (left > 2) sum[at + 2 * T] += y;
      if (left > 3) sum[at + 3 * T] += z;
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
  const { error, band } = spec;
  const most = Math.max(...error.tables);
  const quarter = quarters(band);
  const inputs = inputsOf(spec);
  const [draws, planes, directions, projections, bits, targets] = Array.from({ length: 6 }, step);
  const [nested, curve, estimates, keyBuckets, queryBuckets, moments] = Array.from({ length: 6 }, step);

  return (state, data) => {
    const { planes: P, tables: L, sharpness: beta, seed, causal, normalize } = state.dials;
    const given = inputs(state, data);
    const { q, k, v, T, K } = given;
    const drawn = draws([seed], () => drawPlanes(seed, spec));
    const W = planes([drawn, P, K], () => {
      const rows = count(most * P).map((n) => Math.floor(n / P) * drawn.perTable + (n % P)); // [L, P, K]
      return cut(drawn.numbers, rows, drawn.width, K);
    });
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
      const logits = logitsOf(q, k, T, K);
      const out_angular = mix(angular, v, T, K);
      return { logits, softmax: softmax(logits, T, causal), angular, pair_angle, out_angular };
    });

    // L S_hat from the first 1, 2, 4, ... tables of one draw; the dial's own number goes on from the last of these
    const sums = nested([soft], () => {
      const sum = shaped([T, T]);
      return error.tables.map((tables, n) => {
        for (let l = n ? error.tables[n - 1] : 0; l < tables; l++) addTable(sum, soft.q, soft.k, l, T, P);
        return shaped([T, T], sum.slice());
      });
    });
    const away = (out) => distance(out, target.out_angular) / Math.sqrt(T) / norm(v); // |O_hat - O|_rms / |V|_F
    const attend = (sum) => {
      const race = rows(sum, T, causal); // the factor 1/L cancels
      return { race, out: mix(race, v, T, K) };
    };
    const error_output = curve([sums, target], () => sums.map((sum) => away(attend(sum).out)));
    const estimate = estimates([sums, target, L], () => {
      const n = error.tables.findLastIndex((tables) => tables <= L);
      const sum = shaped([T, T], sums[n].slice());
      for (let l = error.tables[n]; l < L; l++) addTable(sum, soft.q, soft.k, l, T, P);
      const { race, out } = attend(sum);
      return { pair_score: shaped([T, T], sum.map((s) => s / L)), race, out, error_here: scalar(away(out)) };
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
      theorem2_speaks: scalar(Number((normalize || isToy(state, spec)) && !causal)), // toy tokens are unit vectors
    };
  };
}
