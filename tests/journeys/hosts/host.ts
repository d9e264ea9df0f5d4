// A TypeScript host of the npm package: `deno run host.ts net.cml` prints what a network makes.
import {
  CmlError,
  type FrameReport,
  type GpuTensor,
  type Job,
  loadCooked,
  type Network,
  type Numbers,
  requestDevice,
  Scheduler,
} from "cml-engine";
import { Painter } from "cml-engine/picture.js";

declare const Deno: { args: string[]; readFile(path: string): Promise<Uint8Array<ArrayBuffer>> };

const device: GPUDevice = await requestDevice();
const steps: string[] = [];
const onProgress = (done: number, total: number): void => void steps.push(`${done}/${total}`);
const network: Network = await loadCooked(device, await Deno.readFile(Deno.args[0]), { onProgress });
console.log("loading", ...steps);
const scheduler = new Scheduler(device, { frameMs: 1000 / 60, budgetMs: 4 });
const image = new Float32Array(network.inputs.get("image")?.elements ?? 0).fill(1);
const job: Job = scheduler.submit(network, { image }, { priority: 1, deadlineMs: 250 });

const painter = new Painter(device, "rgba8unorm");
const usage = GPUTextureUsage.RENDER_ATTACHMENT | GPUTextureUsage.TEXTURE_BINDING;
const texture = device.createTexture({ size: [32, 32], format: "rgba8unorm", usage });

let large: Numbers | null = null;
for (let frame = 0; frame < 1000 && !large; frame++) {
  const encoder = device.createCommandEncoder();
  const report: FrameReport = scheduler.encode(encoder);
  if (job.state === "failed" || report.reason === "device error") throw new Error(job.error);
  if (job.state === "done") {
    const tensor: GpuTensor = job.tensor("large");
    painter.paint(encoder, tensor, texture.createView(), { clear: true });
  }
  device.queue.submit([encoder.finish()]);
  scheduler.endFrame();
  large = job.read("large");
  await new Promise((resolve) => setTimeout(resolve));
}
console.log(job.state, network.outputs.get("large")?.place.shape.join(), large?.[0]);
job.release();
try {
  await network.run({ picture: image });
} catch (error) {
  if (error instanceof CmlError) console.log(error.code, error.message);
}
