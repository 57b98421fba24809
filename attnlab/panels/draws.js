// The twin of attnlab/draws.py: Threefry-2x32 with 20 rounds. Integers and uniforms agree bit for bit, normals to
// 1e-12.

// Two 32-bit words of counter (row, column) under key (seed, stream), written to `words`.
function threefry(seed, stream, row, column, words) {
  const k0 = seed | 0;
  const k1 = stream | 0;
  const k2 = k0 ^ k1 ^ 0x1bd11bda;
  let x0 = (row + k0) | 0;
  let x1 = (column + k1) | 0;
  // four rounds, then a key injection; written out because this is the hot loop of a seed change
  x0 = (x0 + x1) | 0; x1 = ((x1 << 13) | (x1 >>> 19)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 15) | (x1 >>> 17)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 26) | (x1 >>> 6)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 6) | (x1 >>> 26)) ^ x0;
  x0 = (x0 + k1) | 0; x1 = (x1 + k2 + 1) | 0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 17) | (x1 >>> 15)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 29) | (x1 >>> 3)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 16) | (x1 >>> 16)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 24) | (x1 >>> 8)) ^ x0;
  x0 = (x0 + k2) | 0; x1 = (x1 + k0 + 2) | 0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 13) | (x1 >>> 19)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 15) | (x1 >>> 17)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 26) | (x1 >>> 6)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 6) | (x1 >>> 26)) ^ x0;
  x0 = (x0 + k0) | 0; x1 = (x1 + k1 + 3) | 0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 17) | (x1 >>> 15)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 29) | (x1 >>> 3)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 16) | (x1 >>> 16)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 24) | (x1 >>> 8)) ^ x0;
  x0 = (x0 + k1) | 0; x1 = (x1 + k2 + 4) | 0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 13) | (x1 >>> 19)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 15) | (x1 >>> 17)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 26) | (x1 >>> 6)) ^ x0;
  x0 = (x0 + x1) | 0; x1 = ((x1 << 6) | (x1 >>> 26)) ^ x0;
  x0 = (x0 + k2) | 0; x1 = (x1 + k0 + 5) | 0;
  words[0] = x0;
  words[1] = x1;
}

const each = (numbers) => (typeof numbers === "number" ? Array.from({ length: numbers }, (_, n) => n) : numbers);

// uint32 [rows, columns, 2]; rows and columns are counts, or arrays of the numbers wanted
export function bits(seed, stream, rows, columns) {
  const across = each(columns);
  const down = each(rows);
  const out = new Uint32Array(2 * down.length * across.length);
  const words = [0, 0];
  let at = 0;
  for (const row of down) {
    for (const column of across) {
      threefry(seed, stream, row, column, words);
      out[at++] = words[0];
      out[at++] = words[1];
    }
  }
  return out;
}

// float64 [rows, columns] in [0, 1), 53 bits: 27 of the first word, 26 of the second
export function uniform(seed, stream, rows, columns) {
  const words = bits(seed, stream, rows, columns);
  const out = new Float64Array(words.length / 2);
  for (let i = 0; i < out.length; i++) out[i] = ((words[2 * i] >>> 5) * 2 ** 26 + (words[2 * i + 1] >>> 6)) / 2 ** 53;
  return out;
}

// float64 [rows, columns], standard normal by Box and Muller's cosine branch, two uniforms each; columns is a count
export function normal(seed, stream, rows, columns) {
  const pairs = uniform(seed, stream, rows, 2 * columns);
  const out = new Float64Array(pairs.length / 2);
  for (let i = 0; i < out.length; i++) {
    out[i] = Math.sqrt(-2 * Math.log(1 - pairs[2 * i])) * Math.cos(2 * Math.PI * pairs[2 * i + 1]);
  }
  return out;
}
