import assert from "node:assert/strict";
import test from "node:test";

test("the bundled text loads without a page and exports what its hosts ask for", async () => {
  const bundle = await import(`${process.env.VECTORS}/race.mjs`);
  assert.deepEqual(Object.keys(bundle).sort(), ["mount", "render", "start"]);
  for (const name of ["mount", "render", "start"]) assert.equal(typeof bundle[name], "function");
});
