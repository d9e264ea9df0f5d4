// @ts-check
/**
 * Runs a cooked file's golden input, whole and in slices, and compares with its golden output.
 *
 *     deno run -A players/web/check.js net.cml
 */

import { CmlError, Scheduler, load, requestDevice } from "./cml.js";

/** @typedef {import("./cml.js").Numbers} Numbers */
/** @typedef {{name: string, shape: number[], data: Numbers}} GoldenTensor */

const ARRAYS = [Float32Array, Int32Array, Uint32Array];

/**
 * A file's golden input and the outputs that belong to it; null where it has none.
 * @param {import("./cml.js").CookedFile} file
 * @returns {Promise<{tolerance: number, inputs: GoldenTensor[], outputs: GoldenTensor[]} | null>}
 */
export async function goldenOf(file) {
  if (!file.table.has("golden")) return null;
  const view = await file.section("golden"), count = view.u32(0);
  view.need(4, 4 + 64 * count);
  const tolerance = view.data.getFloat32(4, true);
  /** @type {GoldenTensor[][]} */
  const found = [[], []];
  for (let at = 8; at < 8 + 64 * count; at += 64) {
    const role = view.u32(at + 8), Type = ARRAYS[view.u32(at + 12)], shape = view.shape(at + 16);
    if (role > 1 || !Type) {
      throw new CmlError("CorruptArtifact", "section 'golden': a tensor of no known kind");
    }
    view.zeros(at + 52, 4);
    const elements = shape.reduce((a, b) => a * b, 1);
    const data = new Type(view.part(view.u64(at + 56), 4 * elements).slice().buffer);
    found[role].push({ name: file.text(view, at), shape, data });
  }
  return { tolerance, inputs: found[0], outputs: found[1] };
}

/** The golden input, or random numbers. @param {import("./cml.js").Network} network */
export async function someInputs(network) {
  const golden = await goldenOf(network.file);
  if (golden) return Object.fromEntries(golden.inputs.map(({ name, data }) => [name, data]));
  return Object.fromEntries([...network.inputs.values()].map(({ name, type, elements }) => {
    const numbers = Array.from({ length: elements }, () => Math.random());
    return [name, type === "scalar" ? numbers : numbers.map((v) => Math.round(v))];
  }));
}

/**
 * How far the outputs are from the golden ones (`error` is relative where they are larger than 1),
 * and whether slices gave the bits of the whole run.
 * @param {GPUDevice} gpu @param {Uint8Array<ArrayBuffer>} bytes
 */
export async function checkGolden(gpu, bytes, budgetMs = 2) {
  const network = await load(gpu, bytes), golden = await goldenOf(network.file);
  if (!golden) throw new Error(`'${network.name}' has no golden input`);
  const inputs = Object.fromEntries(golden.inputs.map(({ name, data }) => [name, data]));
  const whole = await network.run(inputs);
  let error = 0;
  for (const { name, data } of golden.outputs) {
    data.forEach((wanted, i) => {
      const far = Math.abs(whole[name][i] - wanted) / Math.max(1, Math.abs(wanted));
      error = Math.max(error, Number.isNaN(far) && !Object.is(whole[name][i], wanted) ? Infinity : far || 0);
    });
  }
  await network.reset();
  const scheduler = new Scheduler(gpu, { budgetMs });
  const job = scheduler.submit(network, inputs);
  let frames = 0;
  const [first] = network.outputs.keys();
  for (; !job.ended || !job.read(first); frames += job.ended ? 0 : 1) {
    const encoder = gpu.createCommandEncoder();
    scheduler.encode(encoder);
    gpu.queue.submit([encoder.finish()]);
    scheduler.endFrame();
    await gpu.queue.onSubmittedWorkDone();
    await new Promise((resolve) => setTimeout(resolve));
  }
  const identical = golden.outputs.every(({ name }) => {
    const found = /** @type {any} */ (job.read(name));
    return whole[name].every((value, i) => Object.is(value, found[i]));
  });
  const { tolerance } = golden, { profile } = network.plan;
  return { name: network.name, profile, error, tolerance, identical, frames };
}

if (/** @type {any} */ (import.meta).main) {
  const { args, readFile, exit } = /** @type {any} */ (globalThis).Deno;
  const found = await checkGolden(await requestDevice(), await readFile(args[0]));
  console.log(JSON.stringify(found));
  exit(found.identical && found.error <= found.tolerance ? 0 : 1);
}
