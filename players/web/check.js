// @ts-check
/**
 * Runs the golden inputs of cooked files, whole and in slices, and compares with their golden outputs:
 * a line of JSON for each.
 *
 *     deno run -A players/web/check.js net.cml [other.cml] [--profile portable]
 */

import { CmlError, CookedFile, GOLDEN_HEAD_BYTES, GOLDEN_ROW_BYTES, Scheduler, goldenHead, goldenRow, load, planFrame, requestDevice } from "./cml.js";

/** @typedef {import("./cml.js").Numbers} Numbers */
/** @typedef {{name: string, shape: number[], data: Numbers}} GoldenTensor */

const TYPES = ["scalar", "integer", "logical"], ARRAYS = [Float32Array, Int32Array, Uint32Array];

/**
 * A file's golden input and the outputs that belong to it; null where it has none.
 * @param {import("./cml.js").CookedFile} file
 * @returns {Promise<{tolerance: number, inputs: GoldenTensor[], outputs: GoldenTensor[]} | null>}
 */
export async function goldenOf(file) {
  if (!file.table.has("golden")) return null;
  const view = await file.section("golden"), { tensors: count, tolerance } = goldenHead(view, 0);
  const rows = view.rows(goldenRow, GOLDEN_ROW_BYTES, { count, offset: GOLDEN_HEAD_BYTES }), { inputs, outputs } = file.plans[0];
  const wanted = [...inputs, ...outputs];
  if (!(tolerance >= 0 && tolerance < Infinity) || count !== wanted.length) {
    throw new CmlError("CorruptArtifact", "section 'golden' has no tolerance, or other tensors than the network");
  }
  /** @type {GoldenTensor[][]} */
  const found = [[], []];
  wanted.forEach((place, i) => {
    const { role, type, offset } = rows[i], name = file.text(rows[i].name), shape = view.shape(rows[i]);
    const fits = role === Number(i >= inputs.length) && TYPES[type] === place.type && name === place.name &&
      String(shape) === String(place.shape);
    if (!fits) throw new CmlError("CorruptArtifact", `section 'golden': '${name}' is not '${place.name}' of the network`);
    const data = new ARRAYS[type](view.part(offset, 4 * place.elements).slice().buffer);
    found[role].push({ name, shape, data });
  });
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
 * How far numbers are off, relative where one is larger than 1; of integers the share that differs.
 * @param {Numbers} wanted @param {Numbers} found
 */
export function farthest(wanted, found) {
  if (!(wanted instanceof Float32Array)) {
    let different = 0;
    wanted.forEach((value, i) => different += Number(value !== found[i]));
    return different / Math.max(wanted.length, 1);
  }
  let error = 0;
  wanted.forEach((value, i) => {
    const far = Math.abs(found[i] - value) / Math.max(1, Math.abs(value));
    error = Math.max(error, Number.isNaN(far) && !Object.is(found[i], value) ? Infinity : far || 0);
  });
  return error;
}

/**
 * Slices as chance will have them, about so many per run: of one workgroup, of thousands, over the
 * ends of steps.
 * @param {import("./cml.js").Network} network @param {number} parts
 * @returns {import("./cml.js").Planner}
 */
const byChance = (network, parts) => ({ jobs: [job] }) => {
  /** @type {import("./cml.js").FramePlan} */
  const plan = { slices: [], starts: [], reason: "budget", byBudget: false };
  if (!job) return plan;
  if (job.state === "queued") plan.starts.push(job);
  const share = 2 * Math.random() * network.steps.length / parts;
  let { step, group: first } = job;
  for (let left = share; left > 0 && step < job.costs.length; [step, first] = [step + 1, 0]) {
    const { groups } = job.costs[step];
    const count = Math.min(groups - first, Math.ceil(left * groups));
    plan.slices.push({ job, step, first, count, predictedMs: 0.1 });
    left -= count / groups;
  }
  return plan;
};

/**
 * A run in slices: its outputs, and how many frames it took.
 * @param {GPUDevice} gpu @param {import("./cml.js").Network} network
 * @param {Record<string, Numbers>} inputs @param {Scheduler} scheduler
 */
async function runSliced(gpu, network, inputs, scheduler) {
  const job = scheduler.submit(network, inputs), [first] = network.outputs.keys();
  let frames = 0;
  for (; !job.ended || !job.read(first); frames += job.ended ? 0 : 1) {
    const encoder = gpu.createCommandEncoder();
    scheduler.encode(encoder);
    gpu.queue.submit([encoder.finish()]);
    scheduler.endFrame();
    await gpu.queue.onSubmittedWorkDone();
    await new Promise((resolve) => setTimeout(resolve));
  }
  const found = Object.fromEntries([...network.outputs.keys()].map((name) => [name, job.read(name)]));
  job.release();
  return { frames, found };
}

/**
 * How far the outputs are from the golden ones, and whether slices gave the bits of the whole run:
 * slices by the budget, and slices by chance.
 * @param {GPUDevice} gpu @param {Uint8Array<ArrayBuffer>} bytes @param {string} [profile] the plan
 *   that is wanted, where it is not for the player to choose
 */
export async function checkGolden(gpu, bytes, profile, budgetMs = 2, parts = 200) {
  const file = await CookedFile.open(bytes), golden = await goldenOf(file);
  if (!golden) throw new Error(`'${file.name}' has no golden input`);
  if (profile) file.plans = file.plans.filter((plan) => plan.profile === profile);
  const network = await load(gpu, file);
  const inputs = Object.fromEntries(golden.inputs.map(({ name, data }) => [name, data]));
  const whole = await network.run(inputs);
  const error = Math.max(...golden.outputs.map(({ name, data }) => farthest(data, whole[name])));
  const frames = [];
  let identical = true;
  for (const planner of [planFrame, byChance(network, parts)]) {
    await network.reset();
    const scheduler = new Scheduler(gpu, { budgetMs });
    scheduler.planner = planner;
    const sliced = await runSliced(gpu, network, inputs, scheduler);
    frames.push(sliced.frames);
    for (const [name, wanted] of Object.entries(whole)) {
      const found = /** @type {any} */ (sliced.found[name]);
      identical &&= wanted.every((value, i) => Object.is(value, found[i]));
    }
  }
  const { tolerance } = golden, found = network.plan.profile;
  network.destroy();
  return { name: file.name, profile: found, error, tolerance, identical, frames };
}

if (/** @type {any} */ (import.meta).main) {
  const { args, readFile, exit } = /** @type {any} */ (globalThis).Deno;
  const gpu = await requestDevice(), at = args.indexOf("--profile");
  const [, profile] = at < 0 ? [] : args.splice(at, 2);
  let good = true;
  for (const path of args) {
    const found = await checkGolden(gpu, await readFile(path), profile);
    good &&= found.identical && found.error <= found.tolerance;
    console.log(JSON.stringify(found));
  }
  exit(good ? 0 : 1);
}
