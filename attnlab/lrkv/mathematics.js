// The mathematics of the RoPE subspace in doubles: the twin of view.py, with the same names and shapes.
// K width, r rank, n tokens; B is a factor [K, r], row-major, a plane the coordinates i and K/2 + i.
import { normal } from "../panels/draws.js";
import { count } from "../panels/inputs.js";
import { distance, dot, norm, shaped, step } from "../panels/numbers.js";

const radians = (degrees) => (degrees * Math.PI) / 180;

const expands = (option) => option === "expand" || option === "query_side";

// The sizes in force, as params.py has them.
export function sizes({ head_width, rank, option }) {
  const K = head_width - (head_width % 4);
  const most = Math.min(rank - (rank % 2), K / 2);
  const even = count(most / 2).map((n) => 2 * (n + 1));
  return { K, r: option === "tied" ? Math.max(0, ...even.filter((r) => K % r === 0)) : most };
}

// The two planes, from 0.
export function pair(dials) {
  const planes = sizes(dials).K / 2;
  const [i, j] = [dials.first, dials.second].map((plane) => Math.min(plane, planes) - 1);
  return [i, i === j ? (j + 1) % planes : j];
}

export const sharing = ({ groups, heads }) =>
  Math.max(...count(Math.min(groups, heads)).map((g) => g + 1).filter((g) => heads % g === 0));

// -- factors and rotations ------------------------------------------------------------------------------------------

const usual = (K) => count(K / 2).map((i) => 10000 ** ((-2 * i) / K));

// P_t B: each plane of every column turned.
function turned(B, r, frequency, t) {
  const out = B.slice();
  const half = frequency.length;
  for (let i = 0; i < half; i++) {
    const [cos, sin] = [Math.cos(frequency[i] * t), Math.sin(frequency[i] * t)];
    for (let c = 0; c < r; c++) {
      const [a, b] = [i * r + c, (half + i) * r + c];
      out[a] = B[a] * cos - B[b] * sin;
      out[b] = B[a] * sin + B[b] * cos;
    }
  }
  return out;
}

// Rows [n, K] that lie one after another, each made into another: make(row, t).
function eachRow(x, n, K, make) {
  const out = x.slice();
  for (let t = 0; t < n; t++) out.set(make(x.subarray(t * K, t * K + K), t), t * K);
  return out;
}

// Each row turned by its own place.
const turnedRows = (x, n, K, frequency, shift = 0) =>
  eachRow(x, n, K, (row, t) => turned(row, 1, frequency, t + shift));

// Columns that each take one plane: cos x_i + sin x_j, the second coordinate of plane j mirrored where `mirror` is -1.
function leaning(K, planes, others, angle, mirror) {
  const m = planes.length;
  const B = new Float64Array(K * 2 * m);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  planes.forEach((plane, c) => {
    B[plane * 2 * m + c] += cos;
    B[(K / 2 + plane) * 2 * m + m + c] += cos;
    B[others[c] * 2 * m + c] += sin;
    B[(K / 2 + others[c]) * 2 * m + m + c] += mirror * sin;
  });
  return B;
}

// The first head's factor of rotary.py's "tied" and "partial", and of planes that stand as if interleaved.
const drawn = {
  tied({ K, r, seed, draws }) {
    const x = normal(seed, draws.factors, K, 1).map((x) => x / Math.sqrt(r));
    const B = new Float64Array(K * r);
    for (let plane = 0; plane < K / 2; plane++) {
      const latent = Math.floor((plane * r) / K);
      const [real, imaginary] = [x[plane], x[K / 2 + plane]];
      const [one, two] = [plane * r + latent, (K / 2 + plane) * r + latent];
      [B[one], B[two], B[one + r / 2], B[two + r / 2]] = [real, imaginary, -imaginary, real];
    }
    const few = usual(r);
    return { frequency: count(K / 2).map((plane) => few[Math.floor((plane * r) / K)]), latent: few, B };
  },
  partial({ K, r, seed, draws }) {
    const half = K / 4;
    const B = normal(seed, draws.factors, K, r).map((x, at) => (at < 2 * half * r ? 0 : x / Math.sqrt(r)));
    return { frequency: usual(2 * half), latent: [], B };
  },
  other_layout({ K, r, planes }) {
    const B = new Float64Array(K * r);
    planes.forEach((plane, c) => {
      B[2 * plane * r + c] = 1;
      B[(2 * plane + 1) * r + r / 2 + c] = 1;
    });
    return { frequency: usual(K), latent: planes.map((plane) => usual(K)[plane]), B };
  },
};

// A repair with a factor of r columns: what turns keys, what turns latents, and B.
function caseOf(dials, r, draws) {
  const { option, seed } = dials;
  const { K } = sizes(dials);
  const [i, j] = pair(dials);
  const planes = count(r / 2).map((c) => (i + c) % (K / 2));
  const frequency = option === "none" ? [] : usual(K);
  if (r && drawn[option]) return { ...drawn[option]({ K, r, seed, draws, planes }), r };
  const others = planes.map((plane) => (plane + j - i + K / 2) % (K / 2));
  const angle = option === "aligned" ? 0 : radians(dials.angle);
  const B = leaning(K, planes, others, angle, dials.opposite ? -1 : 1);
  const turning = option === "aligned" || option === "latents_turned";
  return { frequency, latent: turning ? planes.map((plane) => frequency[plane]) : [], B, r };
}

// -- spans ----------------------------------------------------------------------------------------------------------

function column(B, r, c) {
  const out = new Float64Array(B.length / r);
  for (let k = 0; k < out.length; k++) out[k] = B[k * r + c];
  return out;
}

// What is left of x beside orthonormal directions, taken off twice: once leaves rounding behind.
function beside(x, basis) {
  const left = x.slice();
  for (const direction of [...basis, ...basis]) {
    const part = dot(left, 0, direction, 0, x.length);
    for (let k = 0; k < x.length; k++) left[k] -= part * direction[k];
  }
  return left;
}

function orthonormal(B, r) {
  const basis = [];
  for (let c = 0; c < r; c++) {
    const left = beside(column(B, r, c), basis);
    const length = norm(left);
    if (length > 1e-12) basis.push(left.map((y) => y / length));
  }
  return basis;
}

const within = (x, basis) => {
  const out = new Float64Array(x.length);
  for (const direction of basis) {
    const part = dot(x, 0, direction, 0, x.length);
    for (let k = 0; k < x.length; k++) out[k] += part * direction[k];
  }
  return out;
};

// Both singular values of two columns, the larger first.
function singular([x, y]) {
  const [a, b, c] = [dot(x, 0, x, 0, x.length), dot(x, 0, y, 0, x.length), dot(y, 0, y, 0, y.length)];
  const apart = Math.hypot(a - c, 2 * b);
  return [a + c + apart, a + c - apart].map((twice) => Math.sqrt(Math.max(twice, 0) / 2));
}

// -- planes i and j -------------------------------------------------------------------------------------------------

const columns = (B) => [0, 1].map((c) => column(B, 2, c));

// All there is to see in the four coordinates of both planes; as columns they stand first, first, second, second.
function subspace(dials, places) {
  const frequency = pair(dials).map((plane) => usual(sizes(dials).K)[plane]);
  const mirror = dials.opposite ? -1 : 1;
  const angle = radians(dials.angle);
  const B = leaning(4, [0], [1], angle, mirror);
  const basis = orthonormal(B, 2);
  const shown = (x) => [x[0], x[2], x[1], x[3]];
  const rows = (found) => shaped([found.length, 4], Float64Array.from(found.flatMap(shown)));
  const sines = (moved) => singular(orthonormal(moved, 2).map((x) => beside(x, basis)));
  const moved = Array.from(places, (t) => turned(B, 2, frequency, t));
  const now = moved[places.indexOf(dials.position)];
  const inner = orthonormal(now, 2).map((x) => Float64Array.from(basis, (direction) => dot(x, 0, direction, 0, 4)));
  const closed = (lean) => (t) => {
    const apart = frequency[0] * t - mirror * (frequency[1] * t);
    return Math.abs(Math.sin(2 * lean)) * Math.abs(Math.sin(apart / 2));
  };
  return {
    basis: rows(columns(B)),
    turned: rows(columns(now)),
    within: rows(columns(now).map((x) => within(x, basis))),
    overlap: shaped([2, 2], Float64Array.of(...singular(inner), ...sines(now).reverse())),
    trail: rows(moved.map((at) => column(at, 2, 0))),
    laws: [moved.map((at) => sines(at)[0]), places.map(closed(angle)), places.map(closed(Math.PI / 4))],
  };
}

// -- the repair -----------------------------------------------------------------------------------------------------

// How far a repair's own factor of two columns is from where it should be, relative to its size.
function missed(dials, places, draws) {
  const { option } = dials;
  const { frequency, latent, B } = caseOf(dials, 2, draws);
  const basis = option === "best_latent_map" && orthonormal(B, 2);
  const [x, y] = columns(B);
  return places.map((t) => {
    const should = columns(option === "still" ? B : turned(B, 2, frequency, t));
    const [cos, sin] = [Math.cos, Math.sin].map((f) => f((latent[0] ?? 0) * t));
    const byLatents = [x.map((x, k) => cos * x + sin * y[k]), y.map((y, k) => cos * y - sin * x[k])];
    const got = expands(option) ? should : basis ? should.map((x) => within(x, basis)) : byLatents;
    return Math.hypot(...got.map((x, c) => distance(x, should[c]))) / norm(B);
  });
}

// x [n, r] times B^T: [n, K]; and q [n, K] times B: [n, r].
const expanded = (x, n, B, K, r) =>
  Float64Array.from({ length: n * K }, (_, at) => dot(x, Math.floor(at / K) * r, B, (at % K) * r, r));

function projected(q, n, B, K, r) {
  const out = new Float64Array(n * r);
  for (let t = 0; t < n; t++) {
    for (let k = 0; k < K; k++) {
      const x = q[t * K + k];
      for (let c = 0; c < r; c++) out[t * r + c] += x * B[k * r + c];
    }
  }
  return out;
}

// The first head's logits by the repair, and from keys that are made whole and then turned.
function logits(dials, draws) {
  const { option, tokens: n, seed } = dials;
  const { K, r } = sizes(dials);
  const { frequency, latent, B } = caseOf(dials, r, draws);
  const q = normal(seed, draws.queries, n, K);
  const shared = turnedRows(normal(seed, draws.keys, n, K), n, K, frequency);
  const z = normal(seed, draws.latents, n, r);
  const asking = turnedRows(q, n, K, frequency);
  const whole = expanded(z, n, B, K, r);
  const residual = option === "still" ? whole : turnedRows(whole, n, K, frequency);
  const basis = option === "best_latent_map" && orthonormal(B, r);
  const mapped = basis ? eachRow(residual, n, K, (row) => within(row, basis)) : option === "expand" && residual;
  const asked = projected(option === "still" ? q : asking, n, B, K, r);
  const latents = turnedRows(z, n, r, latent);
  const [factored, wanted] = [shaped([n, n]), shaped([n, n])];
  const root = Math.sqrt(K);
  for (let s = 0; s < n; s++) {
    const back = option === "query_side" && projected(turnedRows(q, n, K, frequency, -s), n, B, K, r);
    for (let t = s; t < n; t++) {
      const part = dot(asking, t * K, shared, s * K, K);
      const by = mapped
        ? dot(asking, t * K, mapped, s * K, K)
        : dot(back || asked, t * r, back ? z : latents, s * r, r);
      factored[t * n + s] = (part + by) / root;
      wanted[t * n + s] = (part + dot(option === "still" ? q : asking, t * K, residual, s * K, K)) / root;
    }
  }
  const seen = (n * (n + 1)) / 2;
  const here = [factored.map((x, at) => x - wanted[at]), wanted].map((x) => norm(x) / Math.sqrt(seen));
  return { factored, wanted, here: shaped([2], Float64Array.from(here)) };
}

// -- a cache, and heads ---------------------------------------------------------------------------------------------

// Numbers of a token in one layer, in the order of spec.metered.
export function elements({ heads: H, head_width: d, rank: r, latent_width, ...more }) {
  const lrkv = 2 * (d + H * r);
  return [2 * H * d, 2 * sharing({ heads: H, ...more }) * d, 2 * d, latent_width, lrkv, lrkv + H, 2 * H * (d + r)];
}

function meter(dials, { bytes }) {
  const token = elements(dials).map((numbers) => numbers * bytes[dials.stored] * dials.layers);
  return shaped([2, token.length], Float64Array.from([...token, ...token.map((bytes) => bytes * dials.context)]));
}

// exp of the entropy of eigenvalues, each with how often it comes.
function effectiveRank(values) {
  const sum = values.reduce((sum, [value, times]) => sum + value * times, 0);
  if (sum <= 0) return 0;
  const parts = values.filter(([value]) => value > 0).map(([value, times]) => [value / sum, times]);
  return Math.exp(-parts.reduce((sum, [part, times]) => sum + times * part * Math.log(part), 0));
}

// Heads at a cosine of `share` to each other: of their Gram matrix one eigenvalue is the mean's, which centring takes.
function diversity({ heads: H, shared }, shares) {
  const all = [...shares, shared];
  const others = (share) => [1 - share, H - 1];
  const before = all.map((share) => effectiveRank([[1 + (H - 1) * share, 1], others(share)]));
  const after = all.map((share) => effectiveRank([others(share)]));
  return shaped([2, all.length], Float64Array.from([...before, ...after]));
}

// -- all views ------------------------------------------------------------------------------------------------------

export const placesOf = ({ places: [last, parts] }) =>
  Float64Array.from({ length: last * parts + 1 }, (_, p) => p / parts);
export const shares = Float64Array.from({ length: 33 }, (_, s) => s / 32);

const MINE = {
  spans: ["angle", "first", "second", "opposite", "position", "head_width", "option", "rank", "seed"],
  logits: ["option", "angle", "first", "second", "opposite", "head_width", "rank", "tokens", "seed"],
};

// A function (state) -> views; what a dial leaves alone is kept.
export function computer(spec) {
  const places = placesOf(spec);
  const kept = { spans: step(), logits: step() };
  const keep = (name, dials, make) => kept[name](MINE[name].map((dial) => dials[dial]), make);
  return ({ dials }) => {
    const { laws, ...spans } = keep("spans", dials, () => {
      const { laws, ...spans } = subspace(dials, places);
      return { ...spans, laws: [...laws, missed(dials, places, spec.draws)] };
    });
    const law = shaped([4, places.length]);
    laws.forEach((line, n) => law.set(line, n * places.length));
    return {
      ...spans,
      law,
      ...keep("logits", dials, () => logits(dials, spec.draws)),
      meter: meter(dials, spec),
      diversity: diversity(dials, shares),
    };
  };
}
