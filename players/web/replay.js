// @ts-check
/**
  * Replays a recording of the Python scheduler without its device, as `scheduler/tools/replay.py`
 * does. The decisions must be those of the recording.
 *
 *     deno run --allow-read players/web/replay.js RECORDING.json
 */

import { CostModel, Curve, FirstGuess, POLICIES, Scheduler, planFrame, plannedSlice } from "./cml.js";

/** A device that gives back the recorded timings. */
class Echo {
  /** @type {any[]} */ arrived = [];
  framesInFlight = 0;
  canWriteReceipt = true;
  /** @param {any} options */ constructor(options) {
    this.granule = options.granule;
    this.maxGroups = options.max_groups;
    this.clockSource = options.clock_source;
  }
  /** @param {any} _network @param {any} inputs */ accept(_network, inputs) { return inputs; }
  check() {}
  encodeGroups() {}
  requestRead() {}
  writeReceipt() {}
  endFrame() { return this.arrived; }
  abandonFrame() {}
}

/** A network of steps without kernels; `busy` while the recorded one lacked memory. */
class Steps {
  ready = true;
  held = false;
  /** @param {any} data */ constructor(data) {
    this.name = data.name;
    this.exclusiveGroup = data.group;
    this.loadTimesMs = data.load_ms;
    this.steps = data.steps.map((/** @type {any} */ [cost_key, op, title, groups, flops, nbytes]) => (
      { cost_key, op, title, groups, flops, nbytes }
    ));
  }
  get busy() { return this.held; }
  set busy(_) {}
  putInputs() {}
  finish() { return this.held ? null : this; }
  release() {}
}

/** Sets the scheduler to the state in which the recording began. @param {Scheduler} scheduler @param {any} options */
function resume(scheduler, options) {
  const { guess, ratios, launch_ms: launchMs, drift: logDrift, error, curves } = options.cost_model;
  const model = new CostModel(options.over_share, new FirstGuess(guess.flops_per_ms, guess.bytes_per_ms, guess.launch_ms, guess.kernels));
  Object.assign(model, { ratios, leastMs: launchMs ?? Infinity, logDrift, error });
  for (const [key, sizes] of Object.entries(curves)) {
    const curve = new Curve();
    for (const [logCount, samples, logTimes] of sizes) curve.add(logCount, samples, logTimes);
    model.curves.set(key, curve);
  }
  for (const [predicted, measured, hopeless] of options.tail) model.recordExcess(predicted, measured, hopeless);
  scheduler.costModel = model;
  const { feedback } = options, { intervals, without } = feedback;
  Object.assign(scheduler.feedback, {
    backOff: feedback.factor, usualMs: feedback.usual_ms, endedMs: feedback.ended_ms, intervalMs: feedback.interval_ms,
    intervals, without, sinceSkip: feedback.since_skip, skipDue: feedback.skip_due,
  });
  scheduler.frame = options.frame;
}

/** Returns a planner that repeats recorded slices. @param {number[][]} slices @returns {import("./cml.js").Planner} */
const asGiven = (slices) => ({ jobs, costs, otherwise }) => {
  const parts = slices.flatMap(([number, step, first, count]) => {
    const job = jobs.find((one) => one.number === number); // undefined if the replay already differs
    return job ? [plannedSlice(costs, job, step, first, count, costs.predictMs(job.costs[step], count))] : [];
  });
  const starts = [...new Set(parts.map(({ job }) => job))].filter(({ state }) => state === "queued");
  return { slices: parts, starts, reason: otherwise, byBudget: false };
};

/** Returns the slices of every frame, [job, step, first, count], for a recording written by `cml`. @param {any} recording */
export function replay({ options, networks: recorded, events, decisions }) {
  let now = 0;
  const device = /** @type {any} */ (new Echo(options)), policy = POLICIES[options.policy];
  const scheduler = new Scheduler(device, { frameMs: options.frame_ms, budgetMs: options.budget_ms, policy, clock: () => now });
  resume(scheduler, options);
  /** @type {Steps[]} */ const networks = recorded.map((/** @type {any} */ data) => new Steps(data));
  /** @type {Map<number, any>} */ const jobs = new Map();
  /** @type {number[][][]} */ const decided = [];
  for (const event of events) {
    const { kind } = event, job = jobs.get(event.job);
    now = Math.max(now, event.now ?? 0);
    if (kind === "frame") {
      for (const [index, ready] of Object.entries(event.ready)) networks[Number(index)].ready = ready;
      scheduler.aimMs = options.spare ? event.aim : null;
      scheduler.rests = event.rests;
      scheduler.planner = event.given ? asGiven(decisions[decided.length]) : planFrame;
      device.framesInFlight = event.waiting ? Infinity : 0;
      for (const network of networks) network.held = false;
      for (const number of event.held ?? []) jobs.get(number).network.held = true;
      const report = scheduler.encode(/** @type {any} */ (null), event.budget);
      decided.push(report.slices.map((part) => [part.job, part.step, part.first, part.count]));
    } else if (kind === "end") {
      device.arrived = event.timings.map((/** @type {any} */ [frame, group, ms]) => ({ frame, group, ms }));
      scheduler.endFrame();
    } else if (kind === "abandoned") {
      scheduler.abandonFrame();
    } else if (kind === "submit") {
      const { job: number, priority, slot, deadline: deadlineAtMs } = event;
      const producers = event.needs.filter((/** @type {number} */ n) => jobs.has(n));
      const inputs = Object.fromEntries(producers.map((/** @type {number} */ n) => [`in${n}`, jobs.get(n).output("out")]));
      jobs.set(number, scheduler.submit(networks[event.network], inputs, { number, priority, slot, deadlineAtMs }));
    } else if (kind === "cancelled" || kind === "failed") {
      scheduler.end(job, kind);
    } else {
      job.paused = kind === "paused";
    }
  }
  return decided;
}

/** Returns the number of frames in which two runs differ, and the first of them. @param {any} a @param {any} b */
export function differences(a, b) {
  const frames = Array.from({ length: Math.max(a.length, b.length) }, (_, i) => i);
  const differing = frames.filter((i) => JSON.stringify(a[i]) !== JSON.stringify(b[i]));
  return { frames: a.length, different: differing.length, first: differing[0] ?? null };
}

if (/** @type {any} */ (import.meta).main) {
  const files = /** @type {any} */ (globalThis).Deno;
  for (const path of files.args) {
    const recording = JSON.parse(await files.readTextFile(path));
    const result = differences(recording.decisions, replay(recording));
    console.log(JSON.stringify(result));
    if (result.different) files.exitCode = 1;
  }
}
