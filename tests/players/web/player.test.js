// @ts-check
/** Networks on a device: slices, readbacks, chains, and what goes wrong; of the files in a folder, which test_web_player.py writes. */

import { CmlError, CookedFile, Scheduler, fairShare, leastLaxity, loadCooked } from "../../../players/web/cml.js";
import { goldenOf } from "../../../players/web/check.js";
import { assert, counted, device, frame, raised, same, until } from "./device.js";

const [folder] = Deno.args, ELEMENTS = 40_000;
const X = Float32Array.from({ length: ELEMENTS }, (_, i) => (i * 37 % 101) / 9 - 4);
/** The output of the network that counts its runs, of its `run`-th one (from 0). @param {Float32Array} x @param {number} run */
const expected = (x, run) => x.map((v) => v + (5 + run));
/** @param {string} name */
const bytesOf = async (name) => await Deno.readFile(`${folder}/${name}.cml`);
const small = () => bytesOf("counter");
/** @param {GPUDevice} gpu @param {string} name */
const loadFile = async (gpu, name) => await loadCooked(gpu, await bytesOf(name));
/** The names of the files of a kind. @param {string} kind */
function filesOf(kind) {
  const names = [...Deno.readDirSync(folder)].map(({ name }) => name.slice(0, -4)).filter((name) => name.startsWith(kind));
  assert(names.length, `files of '${kind}'`);
  return names;
}
/** A triangle over the whole picture that takes llvmpipe milliseconds. */
const SCENE = `
@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {
  return vec4f(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.5, 1.0);
}
@fragment fn shade(@builtin(position) at: vec4f) -> @location(0) vec4f {
  var sum = at.x * 0.01;
  for (var i = 0; i < 24; i++) { sum = sin(sum) * 1.1 + at.y * 0.001; }
  return vec4f(sum, fract(3.0 * sum), 0.5, 1.0);
}`;
const options = { sanitizeOps: false, sanitizeResources: false };

/** @param {string} name @param {(gpu: GPUDevice) => Promise<void>} check */
const test = (name, check) =>
  Deno.test({ name, ...options, fn: async () => await check(await device()) });

/** A planner that takes ``count`` workgroups of one job, whatever they take. @param {number} count @returns {import("../../../players/web/cml.js").Planner} */
const bySlices = (count) => ([job]) => {
  if (!job) return [];
  const { step, group: first } = job;
  return [{ job, step, first, count: Math.min(job.network.steps[step].groups - first, count) }];
};

/** The network that counts its runs, on a scheduler, and another one. @param {GPUDevice} gpu @param {number} budgetMs @param {number} slice workgroups of each frame; 0: by the budget */
async function setUp(gpu, budgetMs, slice = 0) {
  const network = await loadFile(gpu, "counter"), other = await loadFile(gpu, "counter");
  const scheduler = new Scheduler(gpu, { budgetMs });
  if (slice) scheduler.planner = bySlices(slice);
  const submit = (/** @type {any} */ x = X, net = network, options = {}) => scheduler.submit(net, { x }, options);
  /** The output of a job, once it has arrived. @param {import("../../../players/web/cml.js").Job} job */
  const outputOf = async (job) => {
    await until(gpu, scheduler, () => job.read("y"));
    return job.read("y");
  };
  return { network, other, scheduler, submit, outputOf };
}

/** Checks that an action raises an error of this code whose message has this text. @param {() => unknown} action @param {string} code @param {string} text */
async function refused(action, code, text) {
  const error = await raised(action);
  assert(error.code === code && error.message.includes(text), `${error.code}: ${error.message}`);
}

/** @param {import("../../../players/web/cml.js").Network} network @param {number} run from 0 @param {string} when */
async function checkRun(network, run, when) {
  assert(same((await network.run({ x: X })).y, expected(X, run)), when);
}

/** Checks that each accessor refuses an output that the network does not have. @param {import("../../../players/web/cml.js").Job} job */
async function refuseUnknownOutputs(job) {
  for (const call of [() => job.output("z"), () => job.tensor("z"), () => job.read("z")]) {
    await refused(call, "InputError", "no output 'z'; it has y");
  }
}

test("a run gives the golden output, and its variable counts", async (gpu) => {
  const network = await loadFile(gpu, "golden");
  const golden = goldenOf(network);
  const x = golden?.inputs[0].data ?? X;
  assert(same((await network.run({ x })).y, golden?.outputs[0].data ?? []), "the golden output");
  await checkRun(network, 1, "the second run");
  await network.reset();
  await checkRun(network, 0, "after a reset");
});

test("a frame takes what the budget says, reports it, and never waits", async (gpu) => {
  const { network, scheduler } = await setUp(gpu, 2);
  const job = scheduler.submit(network, { x: X }, { deadlineMs: 1000, name: "mine" });
  assert(job.state === "queued" && job.progress === 0 && job.etaMs > 0, "before");
  assert(job.read("y") === null, "a read is asked for before it is done");
  await refuseUnknownOutputs(job);
  const { report } = await frame(gpu, scheduler, 0);
  assert(report.reason === "budget" && !report.slices.length, "nothing in a budget of 0");
  await until(gpu, scheduler, () => job.ended, 500);
  assert(job.state === "done" && job.progress === 1 && job.etaMs === 0, "after");
  const tensor = job.tensor("y");
  assert(tensor.bytes === 4 * ELEMENTS && tensor.buffer.size >= tensor.bytes, "a range of a buffer");
  await until(gpu, scheduler, () => job.read("y"));
  await refuseUnknownOutputs(job);
  job.release();
  await refused(() => job.read("y"), "JobError", "released");
});

test("timings arrive and teach", async (gpu) => {
  if (!gpu.features.has("timestamp-query")) return;
  const { scheduler, submit } = await setUp(gpu, 2);
  let measured = 0, settled = false;
  for (let run = 0; run < 6; run++) {
    const job = submit();
    while (!job.ended) {
      const { report, measured: arrived } = await frame(gpu, scheduler, 2);
      measured += arrived.length;
      settled ||= report.slices[0]?.settled;
    }
    job.release();
  }
  for (let i = 0; i < 8; i++) measured += (await frame(gpu, scheduler, 2)).measured.length;
  assert(measured >= 3, `${measured} frames measured`);
  const job = submit();
  settled ||= (await frame(gpu, scheduler, 2)).report.slices[0]?.settled;
  assert(settled, "the first step's time is known");
});

test("drawing is not part of the times of slices", async (gpu) => {
  if (!gpu.features.has("timestamp-query")) return;
  const network = await loadFile(gpu, "long"), scheduler = new Scheduler(gpu), x = new Float32Array(16 * 48 * 48);
  const usage = GPUTextureUsage.RENDER_ATTACHMENT, size = [1280, 720], format = "rgba8unorm";
  const view = gpu.createTexture({ size, format, usage }).createView(), module = gpu.createShaderModule({ code: SCENE });
  const pipeline = gpu.createRenderPipeline({ layout: "auto", vertex: { module }, fragment: { module, targets: [{ format }] } });
  const groups = network.steps.map((each) => each.groups), step = groups.indexOf(Math.max(...groups));
  const counts = [groups[step], 1, groups[step], 1];
  /** @type {number[][]} */ const times = [[], [], [], []];
  scheduler.planner = ([job]) => counts.map((count) => ({ job, step, first: 0, count }));
  for (let frame = 0; frame < 40; frame++) {
    const job = scheduler.submit(network, { x }), encoder = gpu.createCommandEncoder();
    const picture = encoder.beginRenderPass({ colorAttachments: [{ view, loadOp: "clear", storeOp: "store" }] });
    picture.setPipeline(pipeline);
    picture.draw(3);
    picture.end();
    scheduler.encode(encoder);
    gpu.queue.submit([encoder.finish()]);
    for (const { slices } of scheduler.endFrame()) {
      slices.forEach(({ measuredMs }, i) => measuredMs === null || times[i].push(measuredMs));
    }
    job.cancel();
    await gpu.queue.onSubmittedWorkDone();
    await new Promise((resolve) => setTimeout(resolve));
  }
  const found = times.map((all) => all.sort((a, b) => a - b)[all.length >> 1]);
  assert(Math.max(found[1], found[3]) < 0.5 * Math.min(found[0], found[2]), `long, short, long, short: ${found}`);
});

test("nothing is created in steady state", async (gpu) => {
  const { submit, outputOf } = await setUp(gpu, 2);
  const counts = counted(gpu);
  const runs = async (/** @type {number} */ count) => {
    counts.creations = 0;
    for (let run = 0; run < count; run++) {
      const job = submit();
      await outputOf(job);
      job.release();
    }
    return counts.creations;
  };
  assert(await runs(3) > 0, "the first runs make their buffers");
  const created = await runs(20);
  assert(created === 0, `${created} creations in steady state`);
});

test("jobs take each other's outputs, and tensors of the host", async (gpu) => {
  const { scheduler, other, submit, outputOf } = await setUp(gpu, 4);
  const first = submit(), second = submit(first.output("y"), other);
  assert(same(await outputOf(second), expected(expected(X, 0), 0)), "the output of a job");
  const third = submit(first.tensor("y"), other);
  first.release();
  assert(same(await outputOf(third), expected(expected(X, 0), 1)), "a tensor on the GPU");
  const fourth = submit(), fifth = submit(fourth.output("y"), other);
  fourth.cancel();
  await frame(gpu, scheduler);
  assert(fifth.state === "failed" && fifth.error.includes("cancelled"), fifth.error);
});

test("a job that is released before its end goes on, and a network works for one scheduler at a time", async (gpu) => {
  const { network, scheduler, other, submit, outputOf } = await setUp(gpu, 1, 10);
  const first = submit(), second = submit(first.output("y"), other);
  first.release();
  await frame(gpu, scheduler);
  const elsewhere = new Scheduler(gpu);
  await refused(() => elsewhere.submit(network, { x: X }), "InputError", "another scheduler");
  assert(same(await outputOf(second), expected(expected(X, 0), 0)), "the output of a released job");
  await refused(() => first.read("y"), "JobError", "released");
  for (let i = 0; i < 4; i++) await frame(gpu, scheduler);
  const third = elsewhere.submit(network, { x: X });
  await until(gpu, elsewhere, () => third.read("y"));
  assert(same(third.read("y"), expected(X, 1)), "its variable moved with it");
});

test("a frame that is thrown away is made again", async (gpu) => {
  const { scheduler, submit, outputOf } = await setUp(gpu, 1, 10);
  const job = submit();
  job.read("y");
  for (let frames = 0; !job.ended || frames < 12; frames++) {
    scheduler.encode(gpu.createCommandEncoder());
    assert(scheduler.encode(gpu.createCommandEncoder()).reason === "frame not ended", "twice");
    scheduler.abandonFrame();
    await frame(gpu, scheduler);
  }
  assert(same(await outputOf(job), expected(X, 0)), "the result");
});

/** A frame whose encoder is dropped without notice. @param {GPUDevice} gpu @param {Scheduler} scheduler */
function dropFrame(gpu, scheduler) {
  const report = scheduler.encode(gpu.createCommandEncoder());
  scheduler.endFrame();
  return report;
}

test("a page orders jobs by a policy of its own, and by the player's", async (gpu) => {
  const network = await loadFile(gpu, "counter"), other = await loadFile(gpu, "counter");
  /** @type {string[][]} */ const seen = [];
  const policy = (/** @type {import("../../../players/web/cml.js").Job[]} */ jobs, /** @type {number} */ now, /** @type {number} */ rate) => {
    const ordered = [leastLaxity, fairShare].map((one) => one(jobs, now, rate).map(({ name }) => name).join());
    seen.push(ordered);
    return [...jobs].sort((a, b) => b.name.localeCompare(a.name));
  };
  const scheduler = new Scheduler(gpu, { policy, budgetMs: 0.01 });
  const jobs = ["a", "b", "c"].map((name, i) =>
    scheduler.submit([network, other, network][i], { x: X }, { name, deadlineMs: 1e6 / (i + 1), priority: i ? 1 : 3 })
  );
  const { report } = await frame(gpu, scheduler);
  assert(report.slices[0].job === jobs[2].number, "the page's order");
  assert(seen[0].join(";") === "c,b,a;a,b,c", `the player's orders: ${seen[0].join(";")}`);
  for (const job of jobs) job.cancel();
});

test("whichever frame is dropped, no number is wrong", async (gpu) => {
  let failures = 0;
  for (let drop = -1, last = 0; drop <= last; drop++) {
    const { network, scheduler, other, submit } = await setUp(gpu, 1, 20);
    const job = submit(), taker = submit(job.output("y"), other);
    const hasFailed = () => taker.state === "failed";
    let numbers = null, frames = 0;
    for (; frames < 200 && !hasFailed() && !numbers; frames++) {
      if (frames === drop) dropFrame(gpu, scheduler);
      else await frame(gpu, scheduler);
      if (!hasFailed()) numbers = taker.read("y");
    }
    if (drop < 0) last = frames;
    assert(!numbers || same(numbers, expected(expected(X, 0), 0)), `wrong numbers, frame ${drop} dropped`);
    if (!numbers) {
      failures += 1;
      const why = job.error || taker.error;
      assert(why.includes("a frame was encoded and never submitted"), `frame ${drop}: ${why}`);
    }
    assert(drop < 0 ? numbers : true, "no frame is dropped in the first run");
    network.destroy();
    other.destroy();
  }
  assert(failures > 2, `${failures} frames were missed`);
});

test("variables that a dropped frame would have written are wrong until a reset", async (gpu) => {
  const { network, scheduler, other, submit, outputOf } = await setUp(gpu, 100, 1e6);
  const job = submit(), bystander = submit(X, other);
  while (!job.ended) if (!dropFrame(gpu, scheduler).slices.length) await frame(gpu, scheduler);
  assert(/** @type {string} */ (job.state) === "done", "nothing is known yet");
  const next = submit();
  await until(gpu, scheduler, () => job.state === "failed" && next.state === "failed");
  await refused(() => job.read("y"), "JobError", "never submitted");
  const third = submit();
  await until(gpu, scheduler, () => third.state === "failed");
  assert(third.error.includes("reset()"), third.error);
  await refused(() => network.run({ x: X }), "JobError", "reset()");
  await network.reset();
  await checkRun(network, 0, "after a reset");
  assert(same(await outputOf(bystander), expected(X, 0)), "another network");
});

test("inputs are checked when they are handed in", async (gpu) => {
  const { network, scheduler, submit } = await setUp(gpu, 1);
  const storage = gpu.createBuffer({ size: 4 * ELEMENTS, usage: GPUBufferUsage.STORAGE });
  const tensor = {
    buffer: storage, offset: 0, bytes: 4 * ELEMENTS, shape: [1, ELEMENTS], type: "scalar",
    layout: "plain",
  };
  /** @type {[any, string][]} */
  const wrong = [
    [{}, "wants the inputs x"], [{ x: X, z: X }, "no input 'z'; it has x"], [{ z: X }, "no input 'z'; it has x"],
    [{ x: X.slice(1) }, `${ELEMENTS - 1} numbers`], [{ x: new Int32Array(ELEMENTS) }, "as Float32Array, got Int32Array"],
    [{ x: null }, "as Float32Array"], [{ x: tensor }, "COPY_SRC"],
    [{ x: { ...tensor, shape: [ELEMENTS] } }, `[${ELEMENTS}] plain`],
  ];
  for (const [inputs, text] of wrong) {
    await refused(() => scheduler.submit(network, inputs), "InputError", text);
  }
  await refused(() => submit(X, network, { deadlineMs: NaN }), "InputError", "NaN");
  await refused(() => new Scheduler(gpu, { budgetMs: -1 }), "InputError", "-1");
  await refused(() => loadFile(/** @type {any} */ (null), "counter"), "InputError", "requestDevice() makes one");
  assert(!scheduler.jobs.length, "nothing was taken");
});

test("a kernel that does not compile is named, with the reason", async (gpu) => {
  for (const name of filesOf("kernel")) {
    await refused(() => loadFile(gpu, name), "KernelError", "kernel 'elementwise");
  }
  await checkRun(await loadFile(gpu, "counter"), 0, "the device is as it was");
});

test("a device with smaller limits, or without WGSL, says what is wanted", async (gpu) => {
  for (const name of filesOf("max").concat(filesOf("min"))) {
    await refused(() => loadFile(gpu, name), "StaleArtifact", name);
  }
  // what a host's own device has, which asks for nothing
  const plain = /** @type {GPUDevice} */ (await (await navigator.gpu.requestAdapter())?.requestDevice());
  for (const [name, text] of [
    ["features", "lanes of a subgroup 4, the device has 0"], ["features", "shader-f16"], ["features", "requestDevice()"],
    ["bindings", "maxStorageBuffersPerShaderStage 9, the device has 8"],
  ]) await refused(() => loadFile(plain, name), "StaleArtifact", text);
  plain.destroy();
});

test("plans with wrong numbers are refused or run: the device stays", async (gpu) => {
  let uncaptured = 0;
  const count = () => uncaptured += 1;
  gpu.addEventListener("uncapturederror", count);
  for (const name of filesOf("plan")) {
    try {
      (await loadFile(gpu, name)).destroy();
    } catch (error) {
      assert(error instanceof CmlError, String(error));
    }
  }
  gpu.removeEventListener("uncapturederror", count);
  assert(uncaptured === 0, `${uncaptured} errors of the device were nobody's`);
  /** @type {number[][]} */ const progress = [];
  const onProgress = (/** @type {number} */ done, /** @type {number} */ total) => progress.push([done, total]);
  const network = await loadCooked(gpu, await CookedFile.open(await small()), { onProgress });
  const [, kernels] = progress[0];
  assert(kernels > 0 && progress.every(([done], i) => done === i) && progress.length === kernels + 1, "progress of loading");
  await checkRun(network, 0, "the device is as it was");
});

test("a host chooses the limits of a file", async () => {
  const file = await small();
  for (const [name, stated] of /** @type {[string, number][]} */ (Object.entries(JSON.parse(await Deno.readTextFile(`${folder}/totals.json`))))) {
    await CookedFile.open(file, { [name]: stated });
    await refused(() => CookedFile.open(file, { [name]: stated - 1 }), "InputError", name);
  }
});

Deno.test({ name: "a lost device ends all jobs with a text", ...options, fn: async () => {
  const adapter = await navigator.gpu.requestAdapter();
  const gpu = /** @type {GPUDevice} */ (await adapter?.requestDevice());
  const { scheduler, submit } = await setUp(gpu, 1, 3);
  const job = submit(), waiting = submit();
  await frame(gpu, scheduler);
  const encoder = gpu.createCommandEncoder();
  gpu.destroy();
  await gpu.lost;
  assert(scheduler.encode(encoder).reason === "device error", "the reason");
  assert(job.state === "failed" && waiting.state === "failed", "both have failed");
  assert(job.error.includes("the device was lost"), job.error);
  await refused(() => loadFile(gpu, "counter"), "DeviceError", "lost");
} });
