// The words of the RACE panel; *letters* stand in italics. The dials are named by params.py, or in another language by
// `dialLabels` here.
const conditions =
  "*s*ₘᵢₙ ≥ *C*₁*N*, ‖*E*‖₂ ≤ *s*ₘᵢₙ/2, *L* ≥ log(2*N*/*δ*): p. 8, conditions pp. 17, 26–27.";
const rate = {
  drawn: "Dashed: Theorem 2’s rate, for no mask, unit *q*, *k*,",
  masked: "No rate: Theorem 2 excludes the mask; it asks for unit *q*, *k*,",
  lengths: "No rate: these *q*, *k* are not unit; Theorem 2 asks for that, no mask,",
};

export const en = {
  title: "RACE attention",
  subtitle: "arXiv:2510.04008v5 · tokens vote through soft random buckets instead of meeting in pairs",
  choices: { toy: "toy: four clusters" },
  options: { features: { label: "whose buckets", keys: "keys", queries: "queries" } },
  realWidth: "The heads of the shipped language model are 64 wide.",
  query: "query",
  key: "key",
  bucket: "bucket",
  table: (l) => `table ${l + 1}`,
  token: (kind, number, word) => `${kind} ${number} “${word}”`,
  corner: (r, P) => `bucket ${r} (${Array.from({ length: P }, (_, p) => ((r >> p) & 1 ? "+" : "−")).join(" ")})`,
  weight: (which, query, key) => `${which} weight of ${key} for ${query}`,
  buckets: {
    title: "Buckets",
    caption: "Share of each token in each of the 2*ᴾ* buckets; bars: the mass of the keys there. Algorithm 1, p. 5.",
    share: (token, table, bucket) => `share of ${token} in ${table}, ${bucket}`,
  },
  softmax: {
    title: () => "Softmax",
    caption: "exp(*q·k*/√*d*), rows sum to 1: the attention everybody knows. Fig. 3, p. 6.",
  },
  angular: {
    title: (kernel) => `Angular, ${kernel}`,
    caption: "*κ* = 1 − angle/π to the power *P*: what RACE estimates. Eqs. 3–4, p. 6.",
  },
  race: { title: () => "RACE", caption: "Read back from the buckets alone, shown pair by pair. Algorithm 1, p. 5." },
  band: {
    title: "Estimate *Ŝ* by angle",
    caption: "Dots: every pair. Band: exact mean ± *σ* for unit vectors (this project, from p. 22). Line: *κᴾ*, p. 6.",
    x: "angle between q and k",
    y: "Ŝ",
    target: "κᴾ",
    mean: "mean ± σ",
    shortfall: "shortfall at angle 0",
    pair: (query, key, angle) => `Ŝ of ${query} and ${key} at ${angle} rad`,
    angle: (angle) => `exact mean of Ŝ at ${angle} rad`,
  },
  error: {
    title: "Output error",
    caption: (speaks, { causal }) =>
      `rms(*Ô − O*) / ‖*V*‖ against angular. ${speaks ? rate.drawn : causal ? rate.masked : rate.lengths} ${conditions}`,
    x: "tables L",
    y: "error",
    measured: "measured",
    rate: "rate, constant chosen",
    at: (L) => `output error with ${L} table${L === 1 ? "" : "s"}`,
  },
  lemma: {
    title: "Where Lemma 10 fails",
    every: "fails for every draw",
    many: "fails with many tables",
    x: "sharpness β",
    y: "planes P",
    border: (region, P) => `Lemma 10 ${region} at P = ${P} below sharpness`,
    everyDraw: "Lemma 10 (p. 24) fails here in every draw: identical unit vectors have *S* = 1, yet *Ŝ* < ½ for all *L*.",
    manyTables: "Lemma 10 (p. 24) fails here as tables are added: where *S* = 1, *Ŝ* tends to a mean below ½.",
    neither: "These dials lie outside both regions where Lemma 10 (p. 24) fails for identical vectors.",
  },
  summary: (error, L, sentence) => `Output error ${error} with ${L} tables. ${sentence.replaceAll("*", "")}`,
};
