// @ts-check
/**
 * The same table as `cml frames`, of a cooked file in Deno or a browser: is the budget kept?
 *
 *     deno run -A players/web/frames.js net.cml --budget-ms 4 --frames 600 [--json]
 *
 * Frames of four kinds take turns, so that whatever else the machine does touches all of them:
 * ours, a control dispatch of fixed size, so many operators per frame, and the whole network in
 * one frame. After every submit the host waits for the GPU, as one does that waits for the display.
 */

import { CookedFile, Executor, Scheduler, load, requestDevice } from "./cml.js";
import { someInputs } from "./check.js";

const WARM_UP_JOBS = 3, DRAIN = 12;

/** @param {readonly number[]} values */
const sum = (values) => values.reduce((a, b) => a + b, 0);

/** Of milliseconds per frame. @param {number[]} values */
function percentiles(values) {
  const ordered = values.length ? [...values].sort((a, b) => a - b) : [0];
  const at = (/** @type {number} */ share) =>
    ordered[Math.min(ordered.length - 1, Math.trunc(share * ordered.length))];
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: ordered[ordered.length - 1] };
}

/** @param {number[]} values */
const median = (values) => percentiles(values).p50;

/** Submit, and wait: a software GPU would else share its cores with the host's own work. */
/** @param {GPUDevice} gpu @param {(encoder: GPUCommandEncoder) => void} encode */
async function submitted(gpu, encode) {
  const encoder = gpu.createCommandEncoder();
  encode(encoder);
  gpu.queue.submit([encoder.finish()]);
  await gpu.queue.onSubmittedWorkDone();
  await new Promise((resolve) => setTimeout(resolve));
}

/** Frames of our own making beside the scheduler's, on an executor of their own. */
class Turns {
  frame = 0;
  /** @type {Map<number, {sink: number[], groups: number, ms: number}>} */ open = new Map();

  /** @param {GPUDevice} gpu */
  constructor(gpu) {
    this.gpu = gpu;
    this.executor = Executor.on(gpu);
  }

  /** @param {any[]} slices @param {number[]} sink */
  async run(slices, sink) {
    const groups = slices.length ? [slices] : [];
    if (slices.length) this.open.set(this.frame, { sink, groups: 1, ms: 0 });
    await submitted(this.gpu, (encoder) => this.executor.encodeGroups(encoder, this.frame, groups));
    for (const { frame, ms } of this.executor.endFrame(this.frame)) {
      this.open.get(frame)?.sink.push(ms);
    }
    this.frame += 1;
  }
}

/** Our own frames: one job after the other, each checked against the unsliced run. */
class Loop {
  /** @type {any[]} */ measured = [];
  /** @type {number[]} */ cpu = [];
  /** @type {number[]} */ encodeCpu = [];
  /** @type {number[]} */ jobs = [];
  identical = true;
  counted = 0;

  /** @param {GPUDevice} gpu @param {any} network @param {Scheduler} scheduler @param {any} inputs @param {any} reference */
  constructor(gpu, network, scheduler, inputs, reference) {
    Object.assign(this, { gpu, network, scheduler, inputs, reference });
    this.gpu = gpu;
    this.network = network;
    this.scheduler = scheduler;
    this.inputs = inputs;
    this.reference = reference;
  }

  async frame() {
    /** @type {any} */
    let report;
    await submitted(this.gpu, (encoder) => report = this.scheduler.encode(encoder));
    this.measured.push(...this.scheduler.endFrame());
    return report;
  }

  async runJob() {
    await this.network.reset();
    const job = this.scheduler.submit(this.network, this.inputs);
    this.jobs.push(job.number);
    while (!job.ended) {
      const report = await this.frame();
      this.counted += 1;
      this.cpu.push(report.cpuMs - report.encodeMs);
      this.encodeCpu.push(report.encodeMs);
    }
    if (job.error) throw new Error(job.error);
    const names = Object.keys(this.reference);
    while (!job.read(names[0])) await this.frame();
    for (const name of names) {
      const found = /** @type {any} */ (job.read(name));
      const equal = found.every((/** @type {number} */ v, /** @type {number} */ i) =>
        Object.is(v, this.reference[name][i])
      );
      this.identical &&= equal;
    }
    job.release();
  }

  async drain() {
    for (let i = 0; i < DRAIN; i++) await this.frame();
  }

  async beginCounting() {
    await this.drain();
    this.counted = 0;
    for (const list of [this.jobs, this.measured, this.cpu, this.encodeCpu]) list.length = 0;
  }
}

/** A part of the longest operator of about the size that a slice of ours has. */
/** @param {any} network @param {Scheduler} scheduler */
function control(network, scheduler) {
  const model = scheduler.costModel, aim = model.aimMs(scheduler.budgetMs);
  const step = longest(network, scheduler), cost = network.steps[step];
  let count = model.groupsWithin(cost, cost.groups, aim) || 1;
  const { granule } = scheduler.executor;
  if (count > granule) count -= count % granule;
  const times = Math.max(1, Math.round(aim / Math.max(1e-6, model.predictMs(cost, count))));
  return Array(Math.min(times, 64)).fill({ job: { network }, step, first: 0, count });
}

/** @param {any} network @param {Scheduler} scheduler */
function longest(network, scheduler) {
  const times = network.steps.map((/** @type {any} */ cost) =>
    scheduler.costModel.predictMs(cost, cost.groups)
  );
  return times.indexOf(Math.max(...times));
}

/**
 * @param {GPUDevice} gpu with timestamp queries @param {Uint8Array<ArrayBuffer>} bytes
 * @param {{budgetMs?: number, frameMs?: number, frames?: number, layers?: number,
 *   inputs?: Record<string, any>}} options
 */
export async function measureFrames(gpu, bytes, options = {}) {
  const { budgetMs = 4, frameMs = 1000 / 60, frames = 600, layers = 4 } = options;
  if (!gpu.features.has("timestamp-query")) throw new Error("wanted a device with timestamps");
  const file = await CookedFile.open(bytes);
  const network = await load(gpu, file), other = await load(gpu, file);
  const inputs = options.inputs ?? await someInputs(network);
  const reference = await network.run(inputs);
  await other.run(inputs);
  const turns = new Turns(gpu), scheduler = new Scheduler(gpu, { frameMs, budgetMs });
  const loop = new Loop(gpu, network, scheduler, inputs, reference);
  for (let i = 0; i < WARM_UP_JOBS; i++) await loop.runJob();
  const fixed = control(other, scheduler);
  const whole = other.steps.map((step, i) => (
    { job: { network: other }, step: i, first: 0, count: step.groups }
  ));
  const samples = { control: [], layers: [], unsliced: [] };
  await loop.beginCounting();
  for (let turn = 0; loop.counted < frames; turn++) {
    const before = loop.counted;
    await loop.runJob();
    for (let i = loop.counted - before; i > 0; i--) await turns.run(fixed, samples.control);
    const first = turn * layers % (Math.ceil(whole.length / layers) * layers);
    await turns.run(whole.slice(first, first + layers), samples.layers);
    await turns.run(whole, samples.unsliced);
  }
  await loop.drain();
  for (let i = 0; i < DRAIN; i++) await turns.run([], []);
  return { ...report(network, scheduler, loop, samples), layers_per_frame: layers };
}

/** @param {any} network @param {Scheduler} scheduler @param {Loop} loop @param {any} samples */
function report(network, scheduler, loop, samples) {
  const budget = scheduler.budgetMs, model = scheduler.costModel;
  const full = loop.measured.filter((r) => r.slices.length && !r.finished.length);
  const took = full.map((r) => r.measuredMs);
  const spent = new Map(loop.jobs.map((number) => [number, 0]));
  for (const r of loop.measured) {
    const job = r.slices[0]?.job;
    if (spent.has(job)) spent.set(job, (spent.get(job) ?? 0) + r.measuredMs);
  }
  const sliced = [...spent.values()].filter((ms) => ms > 0);
  const pairs = sliced.slice(0, samples.unsliced.length).map((ms, i) => ms / samples.unsliced[i]);
  const step = network.steps[longest(network, scheduler)];
  return {
    model: network.name,
    device: network.device.name,
    clock: scheduler.executor.clockSource,
    budget_ms: budget,
    frame_ms: scheduler.frameMs,
    frames: full.length,
    frames_over_budget: took.filter((ms) => ms > budget).length,
    budget_used: took.length ? sum(took) / (budget * took.length) : 0,
    slices_ms: percentiles(took),
    control_ms: percentiles(samples.control),
    layers_ms: percentiles(samples.layers),
    unsliced_ms: percentiles(samples.unsliced),
    longest_operator_ms: model.predictMs(step, step.groups),
    longest_operator: step.title,
    jobs: spent.size,
    frames_per_job: loop.measured.filter((r) => r.slices.length).length / Math.max(1, spent.size),
    sliced_over_unsliced: pairs.length ? median(pairs) : 0,
    sliced_over_unsliced_best: pairs.length ? Math.min(...sliced) / Math.min(...samples.unsliced) : 0,
    identical: loop.identical,
    predicted_error_median: median(full.map((r) => Math.abs(r.predictedMs / r.measuredMs - 1))),
    scheduler_cpu_ms_per_frame: median(loop.cpu),
    encode_cpu_ms_per_frame: median(loop.encodeCpu),
    margin: budget ? budget / model.aimMs(budget) : 1,
  };
}

/** The table, as text. @param {Awaited<ReturnType<typeof measureFrames>>} r */
export function asText(r) {
  const row = (/** @type {string} */ name, /** @type {any} */ p) =>
    name.padEnd(28) + " " +
    [p.p50, p.p95, p.p99, p.max].map((ms) => ms.toFixed(3).padStart(8)).join(" ") +
    (p.p99 / (p.p50 || 1)).toFixed(2).padStart(10);
  const over = (100 * r.frames_over_budget / Math.max(1, r.frames)).toFixed(2);
  return [
    `${r.model} on ${r.device}, budget ${r.budget_ms} ms, clock: ${r.clock}`,
    "ms per frame".padEnd(28) + "      P50      P95      P99      max   P99/P50",
    row("ours", r.slices_ms),
    row("control, a fixed dispatch", r.control_ms),
    row(`${r.layers_per_frame} operators per frame`, r.layers_ms),
    row("unsliced", r.unsliced_ms),
    `longest operator ${r.longest_operator_ms.toFixed(3)} ms (${r.longest_operator})`,
    `${r.frames} full frames of ours, ${r.frames_over_budget} over budget (${over} %), ` +
    `${(100 * r.budget_used).toFixed(1)} % of the budget used, margin ${r.margin.toFixed(2)}`,
    `${r.jobs} runs of ${r.frames_per_job.toFixed(1)} frames each, GPU time ` +
    `${r.sliced_over_unsliced.toFixed(3)} of unsliced ` +
    `(${r.sliced_over_unsliced_best.toFixed(3)} at best), results ` +
    (r.identical ? "identical" : "DIFFERENT"),
    `predicted against measured: median error ${(100 * r.predicted_error_median).toFixed(1)} %`,
    `CPU per frame: ${r.scheduler_cpu_ms_per_frame.toFixed(3)} ms deciding, ` +
    `${r.encode_cpu_ms_per_frame.toFixed(3)} ms encoding`,
  ].join("\n");
}

if (/** @type {any} */ (import.meta).main) {
  const { args, readFile, exit } = /** @type {any} */ (globalThis).Deno;
  /** @param {string} name @param {number} usual */
  const option = (name, usual) => Number(args[args.indexOf(name) + 1 || args.length] ?? usual);
  const options = {
    budgetMs: option("--budget-ms", 4), frameMs: option("--frame-ms", 1000 / 60),
    frames: option("--frames", 600), layers: option("--layers", 4),
  };
  const found = await measureFrames(await requestDevice(), await readFile(args[0]), options);
  console.log(args.includes("--json") ? JSON.stringify(found, null, 2) : asText(found));
  exit(found.identical ? 0 : 1);
}
