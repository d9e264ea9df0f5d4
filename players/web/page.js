// @ts-check
/// <reference lib="dom" />
/** The exported page: a scene that is drawn in every frame, and a network that runs in slices beside it. */

import { Scheduler, getOrMake, loadCooked, requestDevice } from "./cml.js";
import { farthest, goldenOf, someInputs } from "./check.js";
import { Painter, pixels, tiles } from "./picture.js";
import { Scene } from "./scene.js";

/** @param {string} id @returns {any} */
const element = (id) => document.getElementById(id);
const MOST_PIXELS = 160, SHOWN_FRAMES = 280, RANKED = 16, MOST_RUNNING = 2;
/** a budget so large that a network is never sliced */ const UNSLICED_MS = 1e9;

/** The page's state, read by tests. @type {any} */
const status = /** @type {any} */ (globalThis).page = { frames: 0, runs: 0, error: "", late: 0 };

/** The times of all operators, by title. */
class Ranking {
  /** @type {Map<string, {op: string, ms: number, groups: number}>} */ rows = new Map();

  /** @param {import("./cml.js").FrameReport[]} reports */
  learn(reports) {
    for (const { slices } of reports) {
      for (const { op, title, measuredMs, count } of slices) {
        const row = getOrMake(this.rows, title, () => ({ op, ms: 0, groups: 0 }));
        row.ms += measuredMs ?? 0;
        row.groups += count;
      }
    }
  }

  /** @param {import("./cml.js").Network} network */
  show(network) {
    const groups = new Map(network.steps.map((step) => [step.title, step.groups]));
    const rows = [...this.rows].map(([title, row]) => (
      { title, op: row.op, ms: row.ms / row.groups * (groups.get(title) ?? 0) }
    )).sort((a, b) => b.ms - a.ms);
    const total = rows.reduce((sum, row) => sum + row.ms, 0) || 1;
    element("rank").replaceChildren(...rows.slice(0, RANKED).map(({ title, op, ms }) => {
      const line = document.createElement("tr"), share = 100 * ms / total;
      for (const text of [title.startsWith(op) ? title : `${op} ${title}`, ms.toFixed(3), `${share.toFixed(1)} %`]) {
        line.insertCell().textContent = text;
      }
      const bar = Object.assign(document.createElement("span"), { className: "bar" });
      bar.style.width = `${share}%`;
      line.cells[0].append(bar);
      line.title = title;
      return line;
    }));
  }
}

/** The intervals between frames in milliseconds, and their chart. */
class Times {
  /** @type {number[]} */ all = [];
  last = 0;

  /** @param {number} now */
  tick(now) {
    if (this.last) this.all.push(now - this.last);
    this.last = now;
    if (this.all.length > SHOWN_FRAMES) this.all.shift();
  }

  /** @param {number} budget @param {any} report */
  show(budget, report) {
    const canvas = element("times"), paper = canvas.getContext("2d"), high = canvas.height;
    paper.fillStyle = "#0b0c0f";
    paper.fillRect(0, 0, canvas.width, high);
    this.all.forEach((ms, i) => {
      paper.fillStyle = ms > 25 ? "#e8705f" : "#4d8fd6";
      paper.fillRect(2 * i, high - Math.min(high, ms * high / 60), 1.5, high);
    });
    paper.fillStyle = "#ffffff44";
    paper.fillRect(0, high - 16.7 * high / 60, canvas.width, 1);
    const sorted = [...this.all].sort((a, b) => a - b), middle = sorted[sorted.length >> 1] || 1;
    const measured = report ? `, the last frame ran ${report.measuredMs.toFixed(2)} of ${budget} ms` : "";
    element("pace").textContent = `${(1000 / middle).toFixed(0)} frames per second, the longest ` +
      `of the last ${this.all.length} took ${Math.max(0, ...this.all).toFixed(0)} ms${measured}`;
  }
}

/** A network whose results are shown in the canvas `result`, of one job at a time. */
class Work {
  /** @type {any} */ job = null;
  format = navigator.gpu.getPreferredCanvasFormat();

  /** @param {GPUDevice} device @param {import("./cml.js").Network} network */
  constructor(device, network) {
    this.device = device;
    this.network = network;
    this.painter = new Painter(device, this.format);
    this.context = element("result").getContext("webgpu");
    const usage = GPUTextureUsage.RENDER_ATTACHMENT | GPUTextureUsage.COPY_DST;
    this.context.configure({ device, format: this.format, alphaMode: "opaque", usage });
  }

  /** Returns the job if it is done; throws if it failed. */
  finished() {
    if (this.job?.state === "failed") throw new Error(this.job.error);
    return this.job?.state === "done" ? this.job : null;
  }

  release() {
    this.job.release();
    this.job = null;
  }
}

/** A picture that is enlarged tile by tile. */
class Enlarging extends Work {
  /** @type {any[]} */ queue = [];
  /** @type {ImageBitmap | HTMLCanvasElement} */ source = sample();
  done = 0;

  /** @param {GPUDevice} device @param {import("./cml.js").Network} network @param {any} model */
  constructor(device, network, model) {
    super(device, network);
    this.input = /** @type {any} */ (network.inputs.get(model.input));
    this.output = /** @type {any} */ (network.outputs.get(model.output)).place;
  }

  /** @param {ImageBitmap | HTMLCanvasElement} source the last picture by default */
  begin(source = this.source) {
    this.source = source;
    const share = Math.min(1, MOST_PIXELS / Math.max(source.width, source.height));
    const [width, height] = [source.width, source.height].map((n) => Math.max(1, Math.round(n * share)));
    const small = new OffscreenCanvas(width, height), paper = /** @type {any} */ (small.getContext("2d"));
    paper.drawImage(source, 0, 0, width, height);
    const picture = paper.getImageData(0, 0, width, height);
    const [, , high, wide] = this.input.shape, scale = this.output.shape[3] / wide;
    const canvas = element("result");
    canvas.width = width * scale;
    canvas.height = height * scale;
    this._showPlain(small, canvas.width, canvas.height);
    this.queue = tiles(width, height, wide, high).map((tile) => (
      { ...tile, numbers: () => pixels(picture, tile.left, tile.top, wide, high) }
    ));
    this.count = this.queue.length;
    this.done = 0;
    this.job?.cancel();
    this.job = null;
    const shrunk = share < 1 ? `, made smaller from ${source.width} × ${source.height},` : "";
    element("hint").textContent = `${width} × ${height}${shrunk} to ${canvas.width} × ${canvas.height} in ` +
      `${this.count} ${this.count === 1 ? "tile" : "tiles"}. Drop another picture here.`;
  }

  /** Draws the browser's enlargement into a texture, of which every frame copies: a canvas forgets what it showed. */
  /** @param {OffscreenCanvas} small @param {number} width @param {number} height */
  _showPlain(small, width, height) {
    const { RENDER_ATTACHMENT, COPY_SRC, COPY_DST } = GPUTextureUsage;
    const usage = RENDER_ATTACHMENT | COPY_SRC | COPY_DST;
    this.texture?.destroy();
    this.texture = this.device.createTexture({ size: [width, height], format: this.format, usage });
    const source = new OffscreenCanvas(width, height);
    /** @type {any} */ (source.getContext("2d")).drawImage(small, 0, 0, width, height);
    this.device.queue.copyExternalImageToTexture({ source }, { texture: this.texture }, [width, height]);
  }

  /** @param {Scheduler} scheduler */
  feed(scheduler) {
    if (this.job || !this.queue.length) return;
    this.tile = this.queue.shift();
    this.job = scheduler.submit(this.network, { [this.input.name]: this.tile.numbers() });
  }

  /** @param {GPUCommandEncoder} encoder */
  paint(encoder) {
    if (!this.texture) return;
    const job = this.finished();
    if (job) {
      const { region, cut } = this.tile, view = this.texture.createView();
      this.painter.paint(encoder, job.tensor(this.output.name), view, { region, cut });
      this.release();
      this.done += 1;
      if (this.done === this.count) status.runs += 1;
    }
    const canvas = element("result"), target = this.context.getCurrentTexture();
    encoder.copyTextureToTexture({ texture: this.texture }, { texture: target }, [canvas.width, canvas.height]);
  }

  text() {
    const share = this.job ? `, the next one is ${(100 * this.job.progress).toFixed(0)} % there` : "";
    return this.count ? `${this.done} of ${this.count} tiles${share}` : "";
  }
}

/** A network that runs repeatedly on its golden input, whose outputs are compared with the golden ones. */
class Running extends Work {
  verdict = "";

  /** @param {GPUDevice} device @param {import("./cml.js").Network} network */
  constructor(device, network) {
    super(device, network);
    const planar = [...network.outputs.values()].map(({ place }) => place).filter((place) =>
      place.type === "scalar" && place.layout === "plain" && place.shape.length === 4 && place.shape[0] === 1
    );
    this.shown = planar.sort((a, b) => b.elements - a.elements)[0];
    element("hint").textContent = this.shown ? `output '${this.shown.name}' [${this.shown.shape}]`
      : "no output of this network is a picture";
  }

  async begin() {
    this.inputs = someInputs(this.network);
    const golden = goldenOf(this.network);
    const output = golden?.outputs.find(({ name }) => name === this.shown?.name) ?? golden?.outputs[0];
    this.golden = output && { ...output, tolerance: golden?.tolerance ?? 0 };
    let low = Infinity, high = -Infinity;
    for (const value of output?.data ?? [0, 1]) [low, high] = [Math.min(low, value), Math.max(high, value)];
    this.range = { low, high: high > low ? high : low + 1 };
  }

  /** @param {Scheduler} scheduler */
  feed(scheduler) {
    if (this.job || !this.inputs) return;
    this.job = scheduler.submit(this.network, this.inputs);
    if (this.golden) this.job.read(this.golden.name);
  }

  /** @param {GPUCommandEncoder} encoder */
  paint(encoder) {
    const { golden, shown, range } = this, job = this.finished();
    if (!job) return;
    const values = golden && job.read(golden.name);
    if (golden && !values) return;
    if (golden && values) {
      const far = farthest(golden.data, values);
      this.verdict = `within ${far.toExponential(1)} of the file's own output (${golden.tolerance.toExponential(0)} allowed)`;
    }
    if (shown) {
      const canvas = element("result"), [, , high, wide] = shown.shape;
      if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
      this.painter.paint(encoder, job.tensor(shown.name), this.context.getCurrentTexture().createView(), { ...range, clear: true });
    }
    this.release();
    status.runs += 1;
  }

  text() {
    return this.verdict;
  }
}

/** Draws the picture that is enlarged at first: a sun over hills. */
function sample() {
  const canvas = Object.assign(document.createElement("canvas"), { width: 112, height: 112 });
  const paper = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const sky = paper.createLinearGradient(0, 0, 0, 112);
  sky.addColorStop(0, "#27406e");
  sky.addColorStop(0.7, "#e8a87c");
  paper.fillStyle = sky;
  paper.fillRect(0, 0, 112, 112);
  /** @type {[string, number, number, number][]} colours, centres and radii */
  const discs = [
    ["#ffe9b8", 76, 52, 12], ["#6a5a80", 34, 112, 50], ["#4a4a72", 92, 124, 56], ["#4a4a72", 2, 98, 26],
    ["#2e3558", 50, 136, 50], ["#171d35", 18, 130, 36], ["#171d35", 96, 142, 46],
  ];
  for (const [colour, x, y, radius] of discs) {
    paper.fillStyle = colour;
    paper.beginPath();
    paper.arc(x, y, radius, 0, 7);
    paper.fill();
  }
  return canvas;
}

/** @param {Enlarging} work */
function takePictures(work) {
  const area = element("drop");
  const over = (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    area.classList.toggle("over", event.type === "dragover");
  };
  for (const kind of ["dragover", "dragleave", "drop"]) area.addEventListener(kind, over);
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
  const take = async (/** @type {FileList | undefined} */ files) => {
    const file = [...files ?? []].find((one) => one.type.startsWith("image/"));
    if (!file) return element("hint").textContent = "This file is no picture: use a .png or .jpg";
    try {
      work.begin(await createImageBitmap(file));
    } catch {
      element("hint").textContent = `'${file.name}' cannot be read as a picture`;
    }
  };
  area.addEventListener("drop", (/** @type {DragEvent} */ { dataTransfer }) => take(dataTransfer?.files));
  element("file").onchange = () => take(element("file").files);
  element("open").hidden = false;
}

async function begin() {
  const model = await (await fetch("model.json")).json();
  element("title").textContent = document.title = `${model.name}, inside the frame`;
  const device = await requestDevice().catch((error) => {
    element("about").textContent = "This page runs a neural network on the GPU, by WebGPU.";
    element("help").hidden = false;
    throw error;
  });
  const say = (/** @type {string} */ text) => element("error").textContent = status.error ||= text;
  device.addEventListener("uncapturederror", (/** @type {any} */ { error }) => say(error.message));
  device.lost.then(({ message }) => say(`the device is lost: ${message}`));
  const scene = new Scene(device, element("scene"));
  const times = new Times(), ranking = new Ranking();
  /** @type {Scheduler | null} */ let scheduler = null;
  /** @type {any} */ let work = null;
  /** @type {any} */ let measured = null;

  let running = 0;
  /** @param {number} now */
  function frame(now) {
    if (status.error) return;
    requestAnimationFrame(frame);
    // browsers do not slow down a page that is faster than its GPU, so frames would queue up
    if (running >= MOST_RUNNING) return;
    times.tick(now);
    const budget = Number(element("budget").value);
    const encoder = device.createCommandEncoder();
    try {
      scene.draw(encoder, now / 1000);
      if (scheduler) {
        work.feed(scheduler);
        scheduler.encode(encoder, element("unsliced").checked ? UNSLICED_MS : budget);
        work.paint(encoder);
      }
      device.queue.submit([encoder.finish()]);
      running += 1;
      device.queue.onSubmittedWorkDone().then(() => running -= 1);
      const reports = scheduler?.endFrame() ?? [];
      ranking.learn(reports);
      measured = reports.at(-1) ?? measured;
    } catch (error) {
      say(String(/** @type {any} */ (error).message));
      return;
    }
    status.frames += 1;
    if (status.frames % 10 === 0) {
      times.show(budget, measured);
      element("state").textContent = work?.text() ?? "";
    }
    if (status.frames % 30 === 0 && scheduler) ranking.show(work.network);
  }
  requestAnimationFrame(frame);

  const bytes = await (await fetch(model.file)).arrayBuffer();
  const mega = (bytes.byteLength / 2 ** 20).toFixed(1);
  element("about").textContent = `${mega} MiB: uploading, and building the kernels; the scene goes on`;
  const start = performance.now(), network = await loadCooked(device, bytes);
  element("about").textContent = `${network.steps.length} ${network.steps.length === 1 ? "dispatch" : "dispatches"}, ${mega} MiB, plan '${network.plan.profile}', ` +
    `ready in ${((performance.now() - start) / 1000).toFixed(1)} s on ${network.device.name}`;
  work = model.picture ? new Enlarging(device, network, model) : new Running(device, network);
  if (work instanceof Enlarging) takePictures(work);
  await work.begin();
  element("again").onclick = () => work.begin();
  element("budget").oninput = () => element("shown").textContent = `${element("budget").value} ms`;
  scheduler = new Scheduler(device, { frameMs: 1000 / 60, budgetMs: 4 });
  status.scheduler = scheduler;
}

begin().catch((error) => element("error").textContent = status.error = error.message);
