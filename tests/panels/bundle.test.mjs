import assert from "node:assert/strict";
import test from "node:test";

test("the bundled text loads without a page and exports what its hosts ask for", async () => {
  const bundle = await import(`${process.env.VECTORS}/race.mjs`);
  assert.deepEqual(Object.keys(bundle).sort(), ["default", "mount"]);
  assert.equal(typeof bundle.mount, "function");
  assert.equal(typeof bundle.default.render, "function");
});
