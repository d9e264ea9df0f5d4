// @ts-check
/** Another way to fill frames, to show and to measure beside ours. */

/** @typedef {import("./cml.js").Planner} Planner */
/** @typedef {import("./cml.js").FramePlan} FramePlan */

/** @param {import("./cml.js").Job["network"]} network */
const exclusivity = (network) => network.exclusiveGroup ?? network;

/**
 * The usual way, to show and measure beside ours: so many whole operators in every frame, whatever
 * they take; null is the whole network of one job.
 * @param {number | null} count @returns {Planner}
 */
export const operatorsPerFrame = (count) => (state) => {
  /** @type {FramePlan} */
  const plan = { slices: [], starts: [], reason: state.otherwise, byBudget: false };
  if (state.budgetMs <= 0) return { ...plan, reason: "budget" };
  if (state.gpuBehind) return { ...plan, reason: "waiting for GPU" };
  /** @type {Set<unknown>} */
  const begun = new Set();
  const order = state.policy(state.jobs, state.nowMs, state.rate);
  for (const job of count ? order : order.slice(0, 1)) {
    const queued = job.state === "queued";
    if (queued && begun.has(exclusivity(job.network))) continue;
    if (count && plan.slices.length >= count) break;
    for (let step = job.step; step < job.costs.length; step++) {
      if (count && plan.slices.length >= count) break;
      const first = step === job.step ? job.group : 0, left = job.costs[step].groups - first;
      const predictedMs = state.costs.predictMs(job.costs[step], left);
      plan.slices.push({ job, step, first, count: left, predictedMs });
    }
    if (queued) plan.starts.push(job);
    if (queued) begun.add(exclusivity(job.network));
  }
  return plan.slices.length === count ? { ...plan, reason: "budget" } : plan;
};
