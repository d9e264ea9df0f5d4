// @ts-check
/** Networks on a device: slices, readbacks, chains, and what goes wrong; of the files in a folder, which test_web_player.py writes. */

import { CmlError, CookedFile, Scheduler, load } from "../../../players/web/cml.js";
import { assert, counted, device, frame, raised, same, until } from "./device.js";

const [folder] = Deno.args, ELEMENTS = 40_000, GROUPS = 40;
const X = Float32Array.from({ length: ELEMENTS }, (_, i) => (i * 37 % 101) / 9 - 4);
/** The output of the network that counts its runs, of its `run`-th one (from 0). @param {Float32Array} x @param {number} run */
const expected = (x, run) => x.map((v) => v + (5 + run));
/** @param {string} name */
const bytesOf = async (name) => await Deno.readFile(`${folder}/${name}.cml`);
const small = () => bytesOf("counter");
/** The names of the files of a kind. @param {string} kind */
function filesOf(kind) {
  const names = [...Deno.readDirSync(folder)].map(({ name }) => name.slice(0, -4)).filter((name) => name.startsWith(kind));
  assert(names.length, `files of '${kind}'`);
  return names;
}
const options = { sanitizeOps: false, sanitizeResources: false };

/** @param {string} name @param {(gpu: GPUDevice) => Promise<void>} check */
const test = (name, check) =>
  Deno.test({ name, ...options, fn: async () => await check(await device()) });

/** A planner that takes so many workgroups of one job, whatever they take. @param {number} count */
const bySlices = (count) => (/** @type {any} */ state) => {
  const [job] = state.jobs;
  /** @type {any[]} */
  const slices = [];
  if (job) {
    const left = job.costs[job.step].groups - job.group;
    const taken = Math.min(left, count);
    slices.push({ job, step: job.step, first: job.group, count: taken, predictedMs: 0.1 });
  }
  const starts = job?.state === "queued" ? [job] : [];
  return { slices, starts, reason: "budget", byBudget: false };
};

/** The network that counts its runs, on a scheduler, and another one. @param {GPUDevice} gpu @param {number} budgetMs @param {number} slice workgroups of each frame; 0: by the budget */
async function setUp(gpu, budgetMs, slice = 0) {
  const network = await load(gpu, await small()), other = await load(gpu, await small());
  const scheduler = new Scheduler(gpu, { budgetMs });
  if (slice) scheduler.planner = bySlices(slice);
  return { network, other, scheduler };
}

/** The output of a job, once it has arrived. @param {GPUDevice} gpu @param {Scheduler} scheduler @param {import("../../../players/web/cml.js").Job} job */
async function outputOf(gpu, scheduler, job) {
  await until(gpu, scheduler, () => job.read("y"));
  return job.read("y");
}

/** @param {import("../../../players/web/cml.js").Network} network @param {number} run from 0 @param {string} when */
async function checkRun(network, run, when) {
  assert(same((await network.run({ x: X })).y, expected(X, run)), when);
}

test("a run gives the golden output, and its variable counts", async (gpu) => {
  const network = await load(gpu, await bytesOf("golden"));
  const golden = await network.file.golden();
  const x = golden?.inputs[0].data ?? X;
  assert(same((await network.run({ x })).y, golden?.outputs[0].data ?? []), "the golden output");
  await checkRun(network, 1, "the second run");
  await network.reset();
  await checkRun(network, 0, "after a reset");
});

test("any slices give the same bits", async (gpu) => {
  const network = await load(gpu, await small());
  for (const [run, count] of [1, 12, 1000].entries()) {
    const scheduler = new Scheduler(gpu, { budgetMs: 1 });
    scheduler.planner = bySlices(count);
    const job = scheduler.submit(network, { x: X });
    const frames = await until(gpu, scheduler, () => job.read("y"));
    assert(frames >= GROUPS / count, `${frames} frames with slices of ${count}`);
    assert(same(job.read("y"), expected(X, run)), `slices of ${count}`);
    job.release();
  }
});

test("a frame takes what the budget says, reports it, and never waits", async (gpu) => {
  const { network, scheduler } = await setUp(gpu, 2);
  const job = scheduler.submit(network, { x: X }, { deadlineMs: 1000, name: "mine" });
  assert(job.state === "queued" && job.progress === 0 && job.etaMs > 0, "before");
  assert(job.read("y") === null, "a read is asked for before it is done");
  const { report } = await frame(gpu, scheduler, 0);
  assert(report.reason === "budget" && !report.slices.length, "nothing in a budget of 0");
  await until(gpu, scheduler, () => job.ended, 500);
  assert(job.state === "done" && job.progress === 1 && job.etaMs === 0, "after");
  const tensor = job.tensor("y");
  assert(tensor.bytes === 4 * ELEMENTS && tensor.buffer.size >= tensor.bytes, "a range of a buffer");
  await until(gpu, scheduler, () => job.read("y"));
  assert((await raised(() => job.tensor("z"))).code === "InputError", "an unknown output");
  job.release();
  assert((await raised(() => job.read("y"))).message.includes("released"), "released");
});

test("timings arrive and teach", async (gpu) => {
  if (!gpu.features.has("timestamp-query")) return;
  const { network, scheduler } = await setUp(gpu, 2);
  let measured = 0;
  for (let run = 0; run < 6; run++) {
    const job = scheduler.submit(network, { x: X });
    while (!job.ended) measured += (await frame(gpu, scheduler, 2)).measured.length;
    job.release();
  }
  for (let i = 0; i < 8; i++) measured += (await frame(gpu, scheduler, 2)).measured.length;
  assert(measured >= 3, `${measured} frames measured`);
  assert(scheduler.costModel.samples(network.steps[0]) >= 3, "samples of the first step");
});

test("nothing is created in steady state", async (gpu) => {
  const { network, scheduler } = await setUp(gpu, 2);
  const counts = counted(gpu);
  const rounds = async (/** @type {number} */ runs) => {
    for (let run = 0; run < runs; run++) {
      const job = scheduler.submit(network, { x: X });
      await until(gpu, scheduler, () => job.read("y"));
      job.release();
    }
  };
  await rounds(3);
  assert(counts.creations > 0, "the first runs make their buffers");
  counts.creations = 0;
  await rounds(20);
  assert(counts.creations === 0, `${counts.creations} creations in steady state`);
});

test("jobs take each other's outputs, and tensors of the host", async (gpu) => {
  const { network, scheduler, other } = await setUp(gpu, 4);
  const first = scheduler.submit(network, { x: X });
  const second = scheduler.submit(other, { x: first.output("y") });
  assert(same(await outputOf(gpu, scheduler, second), expected(expected(X, 0), 0)), "the output of a job");
  const third = scheduler.submit(other, { x: first.tensor("y") });
  first.release();
  assert(same(await outputOf(gpu, scheduler, third), expected(expected(X, 0), 1)), "a tensor on the GPU");
  const fourth = scheduler.submit(network, { x: X }), fifth = scheduler.submit(other, { x: fourth.output("y") });
  fourth.cancel();
  await frame(gpu, scheduler);
  assert(fifth.state === "failed" && fifth.error.includes("cancelled"), fifth.error);
});

test("a frame that is thrown away is made again", async (gpu) => {
  const { network, scheduler } = await setUp(gpu, 1, 10);
  const job = scheduler.submit(network, { x: X });
  job.read("y");
  for (let frames = 0; !job.ended || frames < 12; frames++) {
    scheduler.encode(gpu.createCommandEncoder());
    assert(scheduler.encode(gpu.createCommandEncoder()).reason === "frame not ended", "twice");
    scheduler.abandonFrame();
    await frame(gpu, scheduler);
  }
  assert(same(await outputOf(gpu, scheduler, job), expected(X, 0)), "the result");
});

/** A frame whose encoder is dropped without notice. @param {GPUDevice} gpu @param {Scheduler} scheduler */
function dropFrame(gpu, scheduler) {
  const report = scheduler.encode(gpu.createCommandEncoder());
  scheduler.endFrame();
  return report;
}

test("whichever frame is dropped, no number is wrong", async (gpu) => {
  let failures = 0;
  for (let drop = -1, last = 0; drop <= last; drop++) {
    const { network, scheduler, other } = await setUp(gpu, 1, 20);
    const job = scheduler.submit(network, { x: X }), taker = scheduler.submit(other, { x: job.output("y") });
    let numbers = null, frames = 0;
    for (; frames < 200 && taker.state !== "failed" && !numbers; frames++) {
      if (frames === drop) dropFrame(gpu, scheduler);
      else await frame(gpu, scheduler);
      if (taker.state !== "failed") numbers = taker.read("y");
    }
    if (drop < 0) last = frames;
    assert(!numbers || same(numbers, expected(expected(X, 0), 0)), `wrong numbers, frame ${drop} dropped`);
    if (!numbers) {
      failures += 1;
      const why = job.error || taker.error;
      assert(why.includes(`frame ${drop} was encoded and never submitted`), `frame ${drop}: ${why}`);
    }
    assert(drop < 0 ? numbers : true, "no frame is dropped in the first run");
    network.destroy();
    other.destroy();
  }
  assert(failures > 2, `${failures} frames were missed`);
});

test("variables that a dropped frame would have written are wrong until a reset", async (gpu) => {
  const { network, scheduler, other } = await setUp(gpu, 100, 1e6);
  const job = scheduler.submit(network, { x: X }), bystander = scheduler.submit(other, { x: X });
  while (!job.ended) if (!dropFrame(gpu, scheduler).slices.length) await frame(gpu, scheduler);
  assert(/** @type {string} */ (job.state) === "done", "nothing is known yet");
  const next = scheduler.submit(network, { x: X });
  await until(gpu, scheduler, () => job.state === "failed" && next.state === "failed");
  assert((await raised(() => job.read("y"))).message.includes("never submitted"), "a read");
  const third = scheduler.submit(network, { x: X });
  await until(gpu, scheduler, () => third.state === "failed");
  assert(third.error.includes("reset()"), third.error);
  assert((await raised(() => network.run({ x: X }))).message.includes("reset()"), "a run");
  await network.reset();
  await checkRun(network, 0, "after a reset");
  assert(same(await outputOf(gpu, scheduler, bystander), expected(X, 0)), "another network");
});

test("inputs are checked when they are handed in", async (gpu) => {
  const { network, scheduler } = await setUp(gpu, 1);
  const storage = gpu.createBuffer({ size: 4 * ELEMENTS, usage: GPUBufferUsage.STORAGE });
  const tensor = {
    buffer: storage, offset: 0, bytes: 4 * ELEMENTS, shape: [1, ELEMENTS], type: "scalar",
    layout: "plain",
  };
  /** @type {[any, string][]} */
  const wrong = [
    [{}, "wants the inputs x"], [{ x: X, z: X }, "no input 'z'; it has x"],
    [{ x: X.slice(1) }, `${ELEMENTS - 1} numbers`], [{ x: new Int32Array(ELEMENTS) }, "as Float32Array"],
    [{ x: null }, "as Float32Array"], [{ x: tensor }, "COPY_SRC"],
    [{ x: { ...tensor, shape: [ELEMENTS] } }, `[${ELEMENTS}] plain`],
  ];
  for (const [inputs, text] of wrong) {
    const error = await raised(() => scheduler.submit(network, inputs));
    assert(error.code === "InputError" && error.message.includes(text), error.message);
  }
  assert((await raised(() => scheduler.submit(network, { x: X }, { deadlineMs: NaN }))).code === "InputError", "NaN");
  assert((await raised(() => new Scheduler(gpu, { budgetMs: -1 }))).code === "InputError", "a budget of -1");
  assert(!scheduler.jobs.length, "nothing was taken");
});

test("a kernel that does not compile is named, with the reason", async (gpu) => {
  for (const name of filesOf("kernel")) {
    const error = await raised(async () => await load(gpu, await bytesOf(name)));
    assert(error.code === "KernelError" && error.message.includes("kernel 'elementwise"), `${error.message} of ${name}`);
  }
  const network = await load(gpu, await small());
  await checkRun(network, 0, "the device is as it was");
});

test("a device with smaller limits, or without WGSL, says what is wanted", async (gpu) => {
  for (const name of filesOf("max").concat(filesOf("min"))) {
    const error = await raised(async () => await load(gpu, await bytesOf(name)));
    assert(error.code === "StaleArtifact" && error.message.includes(name), error.message);
  }
  // what a host's own device has, which asks for nothing
  const plain = /** @type {GPUDevice} */ (await (await navigator.gpu.requestAdapter())?.requestDevice());
  for (const [name, text] of [
    ["features", "'subgroups'"], ["features", "'shader-f16'"],
    ["bindings", "maxStorageBuffersPerShaderStage of at least 9, the device has 8"],
  ]) {
    const error = await raised(async () => await load(plain, await bytesOf(name)));
    assert(error.message.includes(text) && error.message.includes("requestDevice()"), error.message);
  }
  plain.destroy();
});

test("plans with wrong numbers are refused or run: the device stays", async (gpu) => {
  let uncaptured = 0;
  gpu.onuncapturederror = () => uncaptured += 1;
  for (const name of filesOf("plan")) {
    try {
      (await load(gpu, await bytesOf(name))).destroy();
    } catch (error) {
      assert(error instanceof CmlError, String(error));
    }
  }
  gpu.onuncapturederror = null;
  assert(uncaptured === 0, `${uncaptured} errors of the device were nobody's`);
  const network = await load(gpu, await CookedFile.open(await small()));
  await checkRun(network, 0, "the device is as it was");
});

test("a host chooses the limits of a file", async () => {
  const file = await small();
  for (const [name, stated] of /** @type {[string, number][]} */ (Object.entries(JSON.parse(await Deno.readTextFile(`${folder}/totals.json`))))) {
    await CookedFile.open(file, { [name]: stated });
    const error = await raised(async () => await CookedFile.open(file, { [name]: stated - 1 }));
    assert(error.code === "InputError" && error.message.includes(name), error.message);
  }
});

Deno.test({ name: "a lost device ends all jobs with a text", ...options, fn: async () => {
  const adapter = await navigator.gpu.requestAdapter();
  const gpu = /** @type {GPUDevice} */ (await adapter?.requestDevice());
  const { network, scheduler } = await setUp(gpu, 1, 3);
  const job = scheduler.submit(network, { x: X }), waiting = scheduler.submit(network, { x: X });
  await frame(gpu, scheduler);
  const encoder = gpu.createCommandEncoder();
  gpu.destroy();
  await gpu.lost;
  assert(scheduler.encode(encoder).reason === "device error", "the reason");
  assert(job.state === "failed" && waiting.state === "failed", "both have failed");
  assert(job.error.includes("the device is lost"), job.error);
  assert((await raised(async () => await load(gpu, await small()))).code === "DeviceError", "load");
} });
