// @ts-check
/** Files: what is as it should be is read, and everything else refused with a text. */

import { CmlError, CookedFile } from "../../../players/web/cml.js";
import { ELEMENTS, expected, file, HEADER, sections, small } from "./make.js";
import { readAll } from "./reader.js";

/** @param {unknown} held @param {string} what */
function assert(held, what) {
  if (!held) throw new Error(what);
}

/** The code and text of the error that reading gives. @param {Uint8Array<ArrayBuffer>} bytes */
async function refusal(bytes) {
  try {
    await readAll(bytes);
  } catch (error) {
    if (error instanceof CmlError && error.message.length > 10) return error;
    throw error;
  }
  return null;
}

Deno.test("a whole file is read", async () => {
  const read = await readAll(await small());
  const [plan] = read.plans;
  assert(read.name === "small" && plan.profile === "portable", "names");
  assert(plan.steps.map((s) => s.groups).join() === "125,125,1", "steps");
  assert(plan.steps[1].title === "add1" && plan.steps[1].line === 7, "where it came from");
  assert(String(plan.inputs[0].shape) === `1,${ELEMENTS}` && plan.updates.length === 1, "tensors");
  assert((await read.guess("x")).kernels.get("k") === 1.5, "guess");
  const golden = await read.golden();
  assert(golden?.outputs[0].data[3] === expected(golden?.inputs[0].data.slice(), 0)[3], "golden");
});

Deno.test("every byte flipped is damage", async () => {
  const whole = await small();
  for (let at = 0; at < whole.length; at++) {
    // the golden numbers are many and all alike
    if (at % 13 && at > 2500 && at < whole.length - 3000) continue;
    const bytes = whole.slice();
    bytes[at] ^= 1 << (at % 8);
    assert(await refusal(bytes), `byte ${at} flipped is not noticed`);
  }
});

Deno.test("every length but its own is damage", async () => {
  const whole = await small();
  for (let length = 0; length < whole.length; length++) {
    assert(await refusal(whole.subarray(0, length)), `a file of ${length} bytes is not noticed`);
  }
  const longer = new Uint8Array(whole.length + 64);
  longer.set(whole);
  assert((await refusal(longer))?.code === "CorruptArtifact", "a longer file");
});

Deno.test("sections out of order, missing and twice are damage", async () => {
  const parts = await sections();
  const swapped = [...parts];
  [swapped[0], swapped[1]] = [swapped[1], swapped[0]];
  assert((await refusal(await file(swapped)))?.message.includes("out of order"), "swapped");
  for (let i = 0; i < parts.length; i++) {
    const less = parts.filter((_, at) => at !== i);
    const optional = ["golden", "guess"].includes(parts[i][0]);
    assert(!!(await refusal(await file(less))) !== optional, `without ${parts[i][0]}`);
  }
  for (let i = 1; i < parts.length; i++) {
    const mixed = parts.map(([tag, number], at) => /** @type {any} */ (
      [tag, number, parts[at === i ? i - 1 : at === i - 1 ? i : at][2]]
    ));
    assert(await refusal(await file(mixed)), `${parts[i - 1][0]} and ${parts[i][0]} swapped`);
  }
  const twice = [...parts.slice(0, 5), /** @type {any} */ (["meta", 1, parts[4][2]]), ...parts.slice(5)];
  assert(await refusal(await file(twice)), "twice meta");
  const unknown = [...parts, /** @type {any} */ (["zebra", 0, new Uint8Array(5)])];
  assert(!(await refusal(await file(unknown))), "an unknown tag is ignored");
});

Deno.test("what a section says is checked, whatever its hash is", async () => {
  const parts = await sections();
  let noticed = 0;
  for (const [tag, , bytes] of parts) {
    if (tag === "code" || tag === "values" || tag === "meta") continue;
    for (let at = 0; at + 4 <= Math.min(bytes.length, 1200); at += 4) {
      for (const value of [at % 8 ? 0xffffffff : 3]) {
        const changed = bytes.slice();
        new DataView(changed.buffer).setUint32(at, value, true);
        const all = parts.map((part) => /** @type {any} */ (part[0] === tag ? [tag, 0, changed] : part));
        if (await refusal(await file(all))) noticed += 1;
      }
    }
  }
  assert(noticed > 120, `only ${noticed} of the changes are noticed`);
});

Deno.test("lengths of 2^63 are damage, and take no memory", async () => {
  const parts = await sections();
  const plan = parts.findIndex(([tag]) => tag === "plan");
  const view = new DataView(parts[plan][2].buffer);
  const [bindings, inputs, updates] = [124, 132, 148].map((at) => view.getUint32(at, true));
  const places = {
    plan: [16, 24, 32, bindings + 8, bindings + 16, inputs + 56, inputs + 64, updates + 8, updates + 16],
    kernels: [8 + 56, 8 + 72], golden: [8 + 56],
  };
  for (const [tag, offsets] of Object.entries(places)) {
    for (const at of offsets) {
      const all = parts.map(([name, number, bytes]) => {
        const changed = bytes.slice();
        if (name === tag) new DataView(changed.buffer).setBigUint64(at, 1n << 63n, true);
        return /** @type {any} */ ([name, number, changed]);
      });
      const wanted = tag === "plan" && at < 64 ? "InputError" : "CorruptArtifact"; // a total that is too large
      assert((await refusal(await file(all)))?.code === wanted, `${tag} at ${at}`);
    }
  }
  for (const at of [16, HEADER + 8, HEADER + 16]) {
    const whole = await small(), table = whole.subarray(HEADER, HEADER + 64 * parts.length);
    new DataView(whole.buffer).setBigUint64(at, 1n << 63n, true);
    whole.set(new Uint8Array(await crypto.subtle.digest("SHA-256", table)), 24);
    assert((await refusal(whole))?.code === "CorruptArtifact", `the header at ${at}`);
  }
});

Deno.test("a plan that binds outside of its memory is damage", async () => {
  for (const row of [[0, 1 << 20, 4000], [1, 0, 20], [2, 256, 4], [3, 0, 4], [0, 4, 8], [0, 0, 6]]) {
    const bytes = await small({ bindings: (rows) => [row, ...rows.slice(1)] });
    assert((await refusal(bytes))?.code === "CorruptArtifact", `binding ${row}`);
  }
});

Deno.test("a small file that takes much is refused before it is unpacked", async () => {
  for (const [at, bytes, name] of /** @type {any[]} */ ([
    [56, 8, "code_bytes"], [64, 8, "device_bytes"], [72, 4, "kernels"], [76, 4, "steps"],
  ])) {
    const whole = await small(), view = new DataView(whole.buffer);
    const stated = Number(bytes === 8 ? view.getBigUint64(at, true) : view.getUint32(at, true));
    await CookedFile.open(whole, { [name]: stated });
    let error = null;
    await CookedFile.open(whole, { [name]: stated - 1 }).catch((e) => error = e);
    assert(/** @type {any} */ (error)?.code === "InputError", `${name} over its limit`);
    view.setUint32(at, stated - 1, true);
    assert((await refusal(whole))?.message.includes("totals"), `${name} understated`);
  }
});
