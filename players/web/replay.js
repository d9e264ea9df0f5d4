// @ts-check
/**
 * Runs a recording of the Python scheduler again, without the device it was made on:
 * `scheduler/tools/replay.py`, here. What it decides must be what was decided then.
 *
 *     deno run --allow-read players/web/replay.js RECORDING.json
 */

import { CostModel, Curve, FirstGuess, POLICIES, Point, Scheduler, bucketOf, planFrame } from "./cml.js";

/** A device that gives back the recorded timings. */
class Echo {
  /** @type {any[]} */ arrived = [];
  framesInFlight = 0;

  /** @param {any} options */
  constructor(options) {
    this.granule = options.granule;
    this.maxGroups = options.max_groups;
    this.clockSource = options.clock_source;
  }

  check() {}
  /** @param {any} _network @param {any} inputs */
  accept(_network, inputs) {
    return inputs;
  }
  canSign = true;
  encodeGroups() {}
  requestRead() {}
  sign() {}
  endFrame() {
    return this.arrived;
  }
  abandonFrame() {}
}

/** A network that is only its steps; `busy` while it was held up for want of memory. */
class Steps {
  ready = true;
  held = false;

  /** @param {any} data */
  constructor(data) {
    this.name = data.name;
    this.exclusiveGroup = data.group;
    this.loadTimesMs = data.load_ms;
    this.steps = data.steps.map((/** @type {any} */ [key, op, title, groups, flops, nbytes]) => (
      { key, op, title, groups, flops, nbytes }
    ));
  }
  get busy() {
    return this.held;
  }
  set busy(_) {}
  putInputs() {}
  finish() {
    return this.held ? null : this;
  }
  release() {}
}

/** A model that predicts as Python's did whose state this is. @param {any} data @param {number} share */
function modelOf(data, share) {
  const { flops_per_ms, bytes_per_ms, launch_ms, kernels } = data.guess;
  const guess = new FirstGuess(flops_per_ms, bytes_per_ms, launch_ms, kernels);
  const model = new CostModel(share, guess);
  model.unknown = data.unknown;
  model.unknownSamples = data.unknown_samples;
  model.logDrift = data.drift;
  model.error = data.error;
  for (const [key, rows] of Object.entries(data.curves)) {
    const curve = new Curve();
    for (const [logCount, logMs, samples, spread] of rows) {
      const bucket = bucketOf(Math.max(1, Math.round(Math.exp(logCount))));
      curve.add(bucket, new Point(logCount, logMs, samples, spread));
    }
    model.curves.set(key, curve);
  }
  return model;
}

/** Know what the scheduler of the recording knew when it began. @param {Scheduler} scheduler @param {any} options */
function resume(scheduler, options) {
  const { feedback } = scheduler;
  scheduler.costModel = modelOf(options.cost_model, options.over_share);
  for (const [was, took, late] of options.tail) scheduler.costModel.tail.remember(was, took, late);
  feedback.backOff = options.feedback.back_off;
  feedback.usualMs = options.feedback.usual;
  feedback.endedMs = options.feedback.ended;
  feedback.intervalMs = options.feedback.interval;
  feedback.intervals = options.feedback.intervals;
  feedback.without = options.feedback.without;
  feedback.sinceRest = options.feedback.since_rest;
  feedback.restDue = options.feedback.rest_due;
  scheduler.frame = options.frame;
}

/** What another planner decided then. @param {number[][]} slices @returns {any} */
const asGiven = (slices) => (/** @type {any} */ state) => {
  const jobs = new Map(state.jobs.map((/** @type {any} */ job) => [job.number, job]));
  const parts = [];
  for (const [number, step, first, count] of slices) {
    const job = jobs.get(number);
    if (!job) continue; // the replay has gone another way before
    const predictedMs = state.costs.predictMs(job.costs[step], count);
    parts.push({ job, step, first, count, predictedMs });
  }
  const chosen = [...new Set(parts.map((part) => part.job))];
  const starts = chosen.filter((job) => job.state === "queued");
  return { slices: parts, starts, reason: state.otherwise, byBudget: false };
};

/**
 * @param {any} recording as `cml` has written it
 * @returns {number[][][]} the slices of every frame: [job, step, first, count]
 */
export function replay(recording) {
  const { options } = recording;
  let now = 0;
  const device = /** @type {any} */ (new Echo(options));
  const scheduler = new Scheduler(device, {
    frameMs: options.frame_ms,
    budgetMs: options.budget_ms,
    policy: POLICIES[options.policy],
    clock: () => now,
  });
  resume(scheduler, options);
  /** @type {Steps[]} */
  const networks = recording.networks.map((/** @type {any} */ data) => new Steps(data));
  /** @type {Map<number, any>} */
  const jobs = new Map();
  /** @type {number[][][]} */
  const decided = [];
  for (const event of recording.events) {
    if ("now" in event) now = Math.max(now, event.now);
    if (event.kind === "frame") {
      for (const [index, ready] of Object.entries(event.ready)) networks[Number(index)].ready = ready;
      scheduler.aimMs = options.spare ? event.aim : null;
      scheduler.rests = event.rests;
      scheduler.planner = event.given
        ? asGiven(recording.decisions[decided.length])
        : planFrame;
      device.framesInFlight = event.waiting ? Infinity : 0;
      for (const network of networks) network.held = false;
      for (const number of event.held ?? []) jobs.get(number).network.held = true;
      const report = scheduler.encode(/** @type {any} */ (null), event.budget);
      decided.push(report.slices.map((part) => [part.job, part.step, part.first, part.count]));
    } else if (event.kind === "end") {
      device.arrived = event.timings.map((/** @type {any} */ [frame, group, ms]) => (
        { frame, group, ms }
      ));
      scheduler.endFrame();
    } else if (event.kind === "abandoned") scheduler.abandonFrame();
    else if (event.kind === "submit") {
      const taken = event.needs.filter((/** @type {number} */ n) => jobs.has(n));
      const inputs = Object.fromEntries(
        taken.map((/** @type {number} */ n) => [`in${n}`, jobs.get(n).output("out")]),
      );
      jobs.set(event.job, scheduler.submit(networks[event.network], inputs, {
        number: event.job, priority: event.priority, slot: event.slot ?? undefined,
        deadlineAtMs: event.deadline,
      }));
    } else if (event.kind === "cancelled" || event.kind === "failed") {
      scheduler.end(jobs.get(event.job), event.kind);
    } else jobs.get(event.job).paused = event.kind === "paused";
  }
  return decided;
}

/** How many frames two runs decided otherwise, and the first of them. @param {any} a @param {any} b */
export function differences(a, b) {
  const frames = Array.from({ length: Math.max(a.length, b.length) }, (_, i) => i);
  const found = frames.filter((i) => JSON.stringify(a[i]) !== JSON.stringify(b[i]));
  return { frames: a.length, different: found.length, first: found[0] ?? null };
}

if (/** @type {any} */ (import.meta).main) {
  const files = /** @type {any} */ (globalThis).Deno;
  for (const path of files.args) {
    const recording = JSON.parse(await files.readTextFile(path));
    const found = differences(recording.decisions, replay(recording));
    console.log(JSON.stringify(found));
    if (found.different) files.exitCode = 1;
  }
}
