// @ts-check
/**
 * Runs the golden inputs of cooked files, whole and in slices, and compares with their golden outputs:
 * a line of JSON for each.
 *
 *     deno run -A players/web/check.js net.cml [other.cml] [--profile portable]
 */

import { CookedFile, Scheduler, loadCooked, planFrame, requestDevice } from "./cml.js";

/** @typedef {import("./cml.js").Numbers} Numbers */

/** Returns the golden input, or random numbers if there is none. @param {import("./cml.js").Network} network @returns {Promise<Record<string, any>>} */
export async function someInputs(network) {
  const golden = await network.file.golden();
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
const byChance = (network, parts) => ({ jobs: [job] }) => {
  /** @type {import("./cml.js").FramePlan} */
  const plan = { slices: [], starts: [], reason: "budget", byBudget: false };
  if (!job) return plan;
  if (job.state === "queued") plan.starts.push(job);
  let { step, group: first } = job, left = 2 * Math.random() * network.steps.length / parts;
  for (; left > 0 && step < job.costs.length; [step, first] = [step + 1, 0]) {
    const { groups } = job.costs[step];
    const count = Math.min(groups - first, Math.ceil(left * groups));
    plan.slices.push({ job, step, first, count, predictedMs: 0.1 });
    left -= count / groups;
  }
  return plan;
};

/** Compares the outputs with the golden ones, and runs in planned and random slices with an unsliced run. */
/** @param {GPUDevice} gpu @param {Uint8Array<ArrayBuffer>} bytes @param {string} [profile] of the plan; chosen by the player by default */
export async function checkGolden(gpu, bytes, profile, budgetMs = 2, parts = 200) {
  const file = await CookedFile.open(bytes), golden = await file.golden();
  if (!golden) throw new Error(`'${file.name}' has no golden input`);
  if (profile) file.plans = file.plans.filter((plan) => plan.profile === profile);
  const network = await loadCooked(gpu, file), inputs = await someInputs(network);
  const unsliced = await network.run(inputs);
  const error = Math.max(...golden.outputs.map(({ name, data }) => farthest(data, unsliced[name])));
  const frames = [];
  let identical = true;
  for (const planner of [planFrame, byChance(network, parts)]) {
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
  return { name: file.name, profile: network.plan.profile, error, tolerance: golden.tolerance, identical, frames };
}

if (/** @type {any} */ (import.meta).main) {
  const { args, readFile, exit } = /** @type {any} */ (globalThis).Deno;
  const gpu = await requestDevice(), at = args.indexOf("--profile");
  const [, profile] = at < 0 ? [] : args.splice(at, 2);
  let good = true;
  for (const path of args) {
    const result = await checkGolden(gpu, await readFile(path), profile);
    good &&= result.identical && result.error <= result.tolerance;
    console.log(JSON.stringify(result));
  }
  exit(good ? 0 : 1);
}
