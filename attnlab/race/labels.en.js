// The words of the RACE panel; *letters* stand in italics. The dials are named by params.py, or in another language by
// `dialLabels` here.
const conditions = "*s*ₘᵢₙ ≥ *C*₁*N*, ‖*E*‖₂ ≤ *s*ₘᵢₙ/2, *L* ≥ log(2*N*/*δ*).";
const rate = {
  drawn: "Dashed: Theorem 2’s rate, for no mask, unit *q*, *k*,",
  masked: "No rate: Theorem 2 excludes the mask; it asks for unit *q*, *k*,",
  lengths: "No rate: these *q*, *k* are not unit; Theorem 2 asks for that, no mask,",
};

const tables = (L) => `${L} table${L === 1 ? "" : "s"}`;

export const words = {
  title: "RACE attention",
  subtitle: "arXiv:2510.04008v5 · tokens vote through soft random buckets instead of meeting in pairs",
  options: { features: { label: "whose buckets", keys: "keys", queries: "queries" } },
  views: { softmax: "Softmax", angular: "Angular", race: "RACE" }, // where the title moves with the dials
  bucket: "bucket",
  table: (l) => `table ${l + 1}`,
  corner: (r, P) => `bucket ${r} (${Array.from({ length: P }, (_, p) => ((r >> p) & 1 ? "+" : "−")).join(" ")})`,
  weight: (which, query, key) => `${which} weight of ${key} for ${query}`,
  buckets: {
    title: "Buckets",
    caption: "Share of each token in each of the 2*ᴾ* buckets; bars: the mass of the keys there.",
    source: "Algorithm 1, p. 5",
    share: (token, table, bucket) => `share of ${token} in ${table}, ${bucket}`,
    chances: ", the chances of its soft bits",
    bars: "mass",
    mass: (table, bucket) => `mass of ${table}, ${bucket}`,
    massSum: (T) => `the shares of ${T} keys, added up`,
  },
  softmax: {
    title: () => "Softmax",
    caption: "exp(*q·k*/√*d*), rows sum to 1: the attention everybody knows.",
    source: "Fig. 3, p. 6",
  },
  angular: {
    title: (kernel) => `Angular, ${kernel}`,
    caption: "*κ* = 1 − angle/π to the power *P*: what RACE estimates.",
    source: "Eqs. 3–4, p. 6",
    sum: (angle, P, power, total, keys) =>
      `κ^${P} = (1 − ${angle}/π)^${P} = ${power}, over ${total}, the sum over ${keys} keys`,
  },
  race: {
    title: () => "RACE",
    caption: "Read back from the buckets alone, shown pair by pair.",
    source: "Algorithm 1, p. 5",
    sum: (score, mean, total, keys) => `Ŝ / Σ Ŝ = ${score} / ${total}, the sum over ${keys} keys; Ŝ = ${mean} tables`,
  },
  band: {
    title: "Estimate *Ŝ* by angle",
    caption: "Dots: every pair. Band: exact mean ± *σ* for unit vectors. Line: *κᴾ*.",
    source: "*κᴾ*: p. 6; band: this project, from p. 22",
    x: "angle between q and k",
    y: "Ŝ",
    target: "κᴾ",
    mean: "mean ± σ",
    shortfall: "shortfall at angle 0",
    columns: { mean: "mean of Ŝ", sd: "σ of Ŝ" },
    sum: ", one φ(q)·φ(k) a table",
    meanSum: (each, P) => `${each}^${P}: the mean of one plane to the power P`,
    pair: (query, key, angle) => `Ŝ of ${query} and ${key} at ${angle} rad`,
    angle: (angle) => `exact mean of Ŝ at ${angle} rad`,
  },
  error: {
    title: "Output error",
    source: "Theorem 2, p. 8; conditions pp. 17, 26–27",
    sum: "rms(Ô − O) / ‖V‖, with the first tables of one draw",
    caption: (why) => `rms(*Ô − O*) / ‖*V*‖ against angular. ${rate[why]} ${conditions}`,
    x: "tables L",
    y: "error",
    measured: "measured",
    rate: "rate, constant chosen",
    at: (L) => `output error with ${tables(L)}`,
    own: (L) => `${L} (dial)`,
  },
  lemma: {
    title: "Where Lemma 10 fails",
    source: "Lemma 10, p. 24",
    everySum: (P) => `tanh²β = 2^(1 − 1/${P}) − 1: below it even the clearest soft bits leave Ŝ under ½`,
    manySum: (P) => `E[tanh²(β tanh g)] = 2^(1 − 1/${P}) − 1, g standard normal`,
    every: "fails for every draw",
    many: "fails with many tables",
    x: "sharpness β",
    y: "planes P",
    border: (region, P) => `Lemma 10 ${region} at P = ${P} below sharpness`,
    everyDraw: "Fails here in every draw: identical unit vectors have *S* = 1, yet *Ŝ* < ½ for all *L*.",
    manyTables: "Fails here as tables are added: where *S* = 1, *Ŝ* tends to a mean below ½.",
    neither: "These dials lie outside both regions where it fails for identical vectors.",
  },
  summary: (error, L, sentence) => `Output error ${error} with ${tables(L)}. Lemma 10: ${sentence.replaceAll("*", "")}`,
};
