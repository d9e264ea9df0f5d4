// @ts-check
/**
 * Runs the golden inputs of cooked files, whole and in slices, and compares with their golden outputs:
 * a line of JSON for each.
 *
 *     deno run -A players/web/check.js net.cml [other.cml]
 */

import { Scheduler, loadCooked, requestDevice } from "./cml.js";

/** @typedef {import("./cml.js").Numbers} Numbers */
/** @typedef {{name: string, data: Numbers}} GoldenTensor */

const ARRAYS = { scalar: Float32Array, integer: Int32Array, logical: Uint32Array };
/** bytes of the head and of each row of the section `golden` (docs/cooked.md), and where a row has its offset */
const HEAD_BYTES = 8, ROW_BYTES = 64, OFFSET_AT = 56;

/**
 * Returns the golden input and its outputs, or null if the file has none. Loading has checked that they are those of the network.
 * @param {import("./cml.js").Network} network @returns {{tolerance: number, inputs: GoldenTensor[], outputs: GoldenTensor[]} | null}
 */
export function goldenOf({ file, inputs, outputs }) {
  const bytes = file.section("golden"), view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (!bytes.length) return null;
  const places = [...inputs.values(), ...[...outputs.values()].map(({ place }) => place)];
  const tensors = places.map(({ name, type, elements }, i) => {
    const at = Number(view.getBigUint64(HEAD_BYTES + ROW_BYTES * i + OFFSET_AT, true));
    return { name, data: new ARRAYS[type](bytes.slice(at, at + 4 * elements).buffer) };
  });
  return { tolerance: view.getFloat32(4, true), inputs: tensors.slice(0, inputs.size), outputs: tensors.slice(inputs.size) };
}

/** Returns the golden input, or random numbers if there is none. @param {import("./cml.js").Network} network @returns {Record<string, any>} */
export function someInputs(network) {
  const golden = goldenOf(network);
  if (golden) return Object.fromEntries(golden.inputs.map(({ name, data }) => [name, data]));
  return Object.fromEntries([...network.inputs.values()].map(({ name, type, elements }) => {
    const numbers = Array.from({ length: elements }, () => Math.random());
    return [name, type === "scalar" ? numbers : numbers.map((v) => Math.round(v))];
  }));
}

/** Returns the largest error, relative for numbers above 1; for integers the share that differs. */
/** @param {Numbers} expected @param {Numbers} actual */
export function farthest(expected, actual) {
  if (!(expected instanceof Float32Array)) return expected.filter((value, i) => value !== actual[i]).length / Math.max(expected.length, 1);
  let error = 0;
  expected.forEach((value, i) => {
    const far = Math.abs(actual[i] - value) / Math.max(1, Math.abs(value));
    error = Math.max(error, Number.isNaN(far) && !Object.is(actual[i], value) ? Infinity : far || 0);
  });
  return error;
}

/** Returns true if all numbers are bit-identical. @param {Record<string, Numbers>} a @param {Record<string, Numbers | null>} b */
export const isIdentical = (a, b) => Object.entries(a).every(([name, values]) => values.every((value, i) => Object.is(value, b[name]?.[i])));

/** Encodes and submits a frame and waits for the GPU, as a host waits for the display. */
/** @param {GPUDevice} gpu @param {(encoder: GPUCommandEncoder) => void} encode */
export async function submitFrame(gpu, encode) {
  const encoder = gpu.createCommandEncoder();
  encode(encoder);
  gpu.queue.submit([encoder.finish()]);
  await gpu.queue.onSubmittedWorkDone();
  await new Promise((resolve) => setTimeout(resolve));
}

/** Plays a job in frames; returns its outputs. `frame` encodes, submits and ends one. */
/** @param {import("./cml.js").Job} job @param {import("./cml.js").Network} network @param {() => Promise<unknown>} frame */
export async function playJob(job, network, frame) {
  const names = [...network.outputs.keys()];
  while (!job.ended || !job.read(names[0])) await frame();
  const outputs = Object.fromEntries(names.map((name) => [name, job.read(name)]));
  job.release();
  return outputs;
}

/** Returns a planner of random slices, about `parts` of a run, from one workgroup to several steps. */
/** @param {import("./cml.js").Network} network @param {number} parts @returns {import("./cml.js").Planner} */
const byChance = (network, parts) => ([job]) => {
  /** @type {{job: import("./cml.js").Job, step: number, first: number, count: number}[]} */ const slices = [];
  if (!job) return slices;
  let { step, group: first } = job, left = 2 * Math.random() * network.steps.length / parts;
  for (; left > 0 && step < network.steps.length; [step, first] = [step + 1, 0]) {
    const { groups } = network.steps[step];
    const count = Math.min(groups - first, Math.ceil(left * groups));
    slices.push({ job, step, first, count });
    left -= count / groups;
  }
  return slices;
};

/** Compares the outputs with the golden ones, and runs in planned and random slices with an unsliced run. */
/** @param {GPUDevice} gpu @param {Uint8Array<ArrayBuffer>} bytes */
export async function checkGolden(gpu, bytes, budgetMs = 2, parts = 200) {
  const network = await loadCooked(gpu, bytes), golden = goldenOf(network);
  if (!golden) throw new Error(`'${network.name}' has no golden input`);
  const inputs = someInputs(network);
  const unsliced = await network.run(inputs);
  const error = Math.max(...golden.outputs.map(({ name, data }) => farthest(data, unsliced[name])));
  const frames = [];
  let identical = true;
  for (const planner of [null, byChance(network, parts)]) {
    await network.reset();
    const scheduler = new Scheduler(gpu, { budgetMs }), job = scheduler.submit(network, inputs);
    scheduler.planner = planner;
    let count = 0;
    const sliced = await playJob(job, network, async () => {
      await submitFrame(gpu, (encoder) => scheduler.encode(encoder));
      scheduler.endFrame();
      count += job.ended ? 0 : 1;
    });
    identical &&= isIdentical(unsliced, sliced);
    frames.push(count);
  }
  network.destroy();
  return { name: network.name, profile: network.plan.profile, error, tolerance: golden.tolerance, identical, frames };
}

if (/** @type {any} */ (import.meta).main) {
  const { args, readFile, exit } = /** @type {any} */ (globalThis).Deno;
  const gpu = await requestDevice();
  let good = true;
  for (const path of args) {
    const result = await checkGolden(gpu, await readFile(path));
    good &&= result.identical && result.error <= result.tolerance;
    console.log(JSON.stringify(result));
  }
  exit(good ? 0 : 1);
}
