// @ts-check
/**
  * Measures whether the budget is kept, for a cooked file in Deno or a browser: the table of `cml frames`.
 *
 *     deno run -A players/web/frames.js net.cml --budget-ms 4 --frames 600 [--json]
 *
 * Frames of four kinds are interleaved, so that other load on the machine affects all of them: ours, a
 * control dispatch of fixed size, a number of operators per frame, and the whole network in one frame.
 */

import { CookedFile, Scheduler, loadCooked, requestDevice } from "./cml.js";
import { isIdentical, playJob, someInputs, submitFrame } from "./check.js";

/** @typedef {import("./cml.js").Network} Network */
/** jobs that are not counted, and frames until timings have arrived */
const WARM_UP_JOBS = 3, DRAIN = 12;

/** Returns the percentiles of milliseconds per frame. @param {number[]} values */
function percentiles(values) {
  const ordered = values.length ? [...values].sort((a, b) => a - b) : [0];
  const at = (/** @type {number} */ share) => ordered[Math.min(ordered.length - 1, Math.trunc(share * ordered.length))];
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1) };
}

/** @typedef {{step: number, first: number, count: number}} Range of workgroups */

/** Returns the operator that takes longest. @param {Network} network @param {Scheduler} scheduler */
function longest(network, scheduler) {
  const times = network.steps.map(({ groups }, step) => scheduler.predictMs(network, step, groups)), ms = Math.max(...times);
  return { step: times.indexOf(ms), ms };
}

/** Returns slices of the longest operator that together take about as long as a frame's slices. */
/** @param {Network} network @param {Scheduler} scheduler @param {number} aimMs @returns {Range[]} */
function control(network, scheduler, aimMs) {
  const { step } = longest(network, scheduler), { groups } = network.steps[step];
  const granule = network.device.software ? navigator.hardwareConcurrency || 1 : 1;
  let count = 1;
  for (let half = groups; half >= 1; half = Math.floor(half / 2)) {
    while (count + half <= groups && scheduler.predictMs(network, step, count + half) <= aimMs) count += half;
  }
  if (count > granule) count -= count % granule;
  const times = Math.max(1, Math.round(aimMs / Math.max(1e-6, scheduler.predictMs(network, step, count))));
  return Array(Math.min(times, 64)).fill({ step, first: 0, count });
}

/**
 * @param {GPUDevice} gpu with timestamp queries @param {Uint8Array<ArrayBuffer>} bytes
 * @param {{budgetMs?: number, frameMs?: number, frames?: number, layers?: number}} options
 */
export async function measureFrames(gpu, bytes, { budgetMs = 4, frameMs = 1000 / 60, frames = 600, layers = 4 } = {}) {
  if (!gpu.features.has("timestamp-query")) throw new Error("wanted a device with timestamps");
  const file = await CookedFile.open(bytes), network = await loadCooked(gpu, file), other = await loadCooked(gpu, file);
  const inputs = someInputs(network), reference = await network.run(inputs);
  await other.run(inputs);
  const scheduler = new Scheduler(gpu, { frameMs, budgetMs }), others = new Scheduler(gpu, { frameMs });
  /** @type {import("./cml.js").FrameReport[]} of jobs that count */ let encoded = [];
  /** @type {import("./cml.js").FrameReport[]} */ let measured = [];
  /** @type {Map<number, number[]>} where the times of frames beside the scheduler's go */ const sinks = new Map();
  /** @type {number[]} */ const controls = [], /** @type {number[]} */ some = [], /** @type {number[]} */ unsliced = [];
  let identical = true;

  async function frame() {
    /** @type {any} */ let report;
    await submitFrame(gpu, (encoder) => report = scheduler.encode(encoder));
    measured.push(...scheduler.endFrame());
    return report;
  }
  async function runJob() {
    await network.reset();
    const job = scheduler.submit(network, inputs);
    while (!job.ended) encoded.push(await frame());
    identical = isIdentical(reference, await playJob(job, network, frame)) && identical;
    return job.number;
  }
  async function drain() {
    for (let i = 0; i < DRAIN; i++) await frame();
  }
  /** Runs a frame of given slices. @param {Range[]} slices @param {number[]} sink */
  async function run(slices, sink) {
    const job = others.submit(other, inputs);
    others.planner = () => slices.map((slice) => ({ job, ...slice }));
    await submitFrame(gpu, (encoder) => sinks.set(others.encode(encoder).frame, sink));
    for (const { frame: number, measuredMs } of others.endFrame()) sinks.get(number)?.push(Number(measuredMs));
    job.cancel();
    job.release();
  }

  for (let i = 0; i < WARM_UP_JOBS; i++) await runJob();
  await drain();
  [encoded, measured] = [[], []];
  const aimMs = scheduler.lastReport?.aimMs ?? budgetMs, fixed = control(network, scheduler, aimMs);
  const whole = other.steps.map(({ groups }, step) => ({ step, first: 0, count: groups }));
  const jobs = new Map();
  for (let turn = 0; encoded.length < frames; turn++) {
    const before = encoded.length;
    jobs.set(await runJob(), 0);
    for (let i = encoded.length - before; i > 0; i--) await run(fixed, controls);
    const first = turn * layers % (Math.ceil(whole.length / layers) * layers);
    await run(whole.slice(first, first + layers), some);
    await run(whole, unsliced);
  }
  await drain();
  for (let i = 0; i < DRAIN; i++) await run([], []);

  const ran = measured.filter(({ slices }) => jobs.has(slices[0]?.job)), full = ran.filter(({ finished }) => !finished.length);
  for (const { slices, measuredMs } of ran) jobs.set(slices[0].job, jobs.get(slices[0].job) + measuredMs);
  const took = full.map(({ measuredMs }) => /** @type {number} */ (measuredMs)), sliced = [...jobs.values()].filter(Boolean);
  const used = took.reduce((total, ms) => total + ms, 0), median = (/** @type {number[]} */ values) => percentiles(values).p50;
  const { step, ms } = longest(network, scheduler);
  return {
    model: network.name,
    device: network.device.name,
    clock: "timestamps",
    budget_ms: budgetMs,
    frame_ms: frameMs,
    frames: full.length,
    frames_over_budget: took.filter((ms) => ms > budgetMs).length,
    budget_used: used / (budgetMs * took.length || 1),
    slices_ms: percentiles(took),
    control_ms: percentiles(controls),
    layers_ms: percentiles(some),
    layers_per_frame: layers,
    unsliced_ms: percentiles(unsliced),
    longest_operator_ms: ms,
    longest_operator: network.steps[step].title,
    jobs: jobs.size,
    frames_per_job: ran.length / Math.max(1, jobs.size),
    sliced_over_unsliced: median(sliced.slice(0, unsliced.length).map((ms, i) => ms / unsliced[i])),
    sliced_over_unsliced_best: Math.min(...sliced) / Math.min(...unsliced),
    identical,
    predicted_error_median: median(full.map(({ predictedMs }, i) => Math.abs(predictedMs / took[i] - 1))),
    scheduler_cpu_ms_per_frame: median(encoded.map(({ cpuMs }) => cpuMs)),
    margin: budgetMs / aimMs || 1,
  };
}

/** Returns the table as text. @param {Awaited<ReturnType<typeof measureFrames>>} r */
export function asText(r) {
  const row = (/** @type {string} */ name, /** @type {ReturnType<typeof percentiles>} */ p) =>
    name.padEnd(28) + [p.p50, p.p95, p.p99, p.max].map((ms) => ms.toFixed(3).padStart(9)).join("") + (p.p99 / (p.p50 || 1)).toFixed(2).padStart(10);
  return [
    `${r.model} on ${r.device}, budget ${r.budget_ms} ms, clock: ${r.clock}`,
    "ms per frame".padEnd(28) + "      P50      P95      P99      max   P99/P50",
    row("ours", r.slices_ms),
    row("control, a fixed dispatch", r.control_ms),
    row(`${r.layers_per_frame} operators per frame`, r.layers_ms),
    row("unsliced", r.unsliced_ms),
    `longest operator ${r.longest_operator_ms.toFixed(3)} ms (${r.longest_operator})`,
    `${r.frames} full frames of ours, ${r.frames_over_budget} over budget (${(100 * r.frames_over_budget / Math.max(1, r.frames)).toFixed(2)} %), ` +
    `${(100 * r.budget_used).toFixed(1)} % of the budget used, margin ${r.margin.toFixed(2)}`,
    `${r.jobs} runs of ${r.frames_per_job.toFixed(1)} frames each, GPU time ${r.sliced_over_unsliced.toFixed(3)} of unsliced ` +
    `(${r.sliced_over_unsliced_best.toFixed(3)} at best), results ${r.identical ? "identical" : "DIFFERENT"}`,
    `predicted against measured: median error ${(100 * r.predicted_error_median).toFixed(1)} %`,
    `CPU per frame: ${r.scheduler_cpu_ms_per_frame.toFixed(3)} ms deciding and encoding`,
  ].join("\n");
}

if (/** @type {any} */ (import.meta).main) {
  const { args, readFile, exit } = /** @type {any} */ (globalThis).Deno;
  /** @param {string} name @param {number} usual */
  const option = (name, usual) => Number(args[args.indexOf(name) + 1 || args.length] ?? usual);
  const options = {
    budgetMs: option("--budget-ms", 4), frameMs: option("--frame-ms", 1000 / 60),
    frames: option("--frames", 600), layers: option("--operators", 4),
  };
  const result = await measureFrames(await requestDevice(), await readFile(args[0]), options);
  console.log(args.includes("--json") ? JSON.stringify(result, null, 2) : asText(result));
  exit(result.identical ? 0 : 1);
}
