// @ts-check
/** A device whose creations are counted, and frames on it. */

import { requestDevice } from "../../../players/web/cml.js";

const CREATES = /^create(?!CommandEncoder)/;
/** @type {Promise<GPUDevice> | undefined} */
let shared;

/** The device that tests share. */
export const device = () => shared ??= requestDevice();

/** @param {unknown} held @param {string} what */
export function assert(held, what) {
  if (!held) throw new Error(what);
}

/** @param {ArrayLike<number> | null | undefined} a @param {ArrayLike<number>} b */
export const same = (a, b) =>
  !!a && a.length === b.length && Array.from(b).every((v, i) => Object.is(v, a[i]));

/** The error that this raises, or that it comes to. @param {() => unknown} action */
export async function raised(action) {
  try {
    await action();
  } catch (error) {
    return /** @type {any} */ (error);
  }
  throw new Error("nothing was raised");
}

/** Count what is created on a device from now on. @param {GPUDevice} gpu */
export function counted(gpu) {
  const counts = { creations: 0 };
  const target = /** @type {any} */ (gpu);
  for (const name of Object.getOwnPropertyNames(Object.getPrototypeOf(gpu))) {
    if (!CREATES.test(name)) continue;
    const create = target[name].bind(gpu);
    target[name] = (/** @type {any[]} */ ...all) => {
      counts.creations += 1;
      return create(...all);
    };
  }
  return counts;
}

/** One frame of a host. @param {GPUDevice} gpu @param {import("../../../players/web/cml.js").Scheduler} scheduler */
export async function frame(gpu, scheduler, budgetMs = scheduler.budgetMs) {
  const encoder = gpu.createCommandEncoder();
  const report = scheduler.encode(encoder, budgetMs);
  gpu.queue.submit([encoder.finish()]);
  const measured = scheduler.endFrame();
  await gpu.queue.onSubmittedWorkDone();
  await new Promise((resolve) => setTimeout(resolve));
  return { report, measured };
}

/** Frames until that holds. @param {GPUDevice} gpu @param {any} scheduler @param {() => unknown} held */
export async function until(gpu, scheduler, held, most = 3000) {
  for (let frames = 0; frames < most; frames++) {
    if (held()) return frames;
    await frame(gpu, scheduler);
  }
  throw new Error(`not after ${most} frames; the last one: ${JSON.stringify(scheduler.lastReport)}`);
}
