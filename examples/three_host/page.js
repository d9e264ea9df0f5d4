// @ts-check
/// <reference lib="dom" />
/** The page: frames at the display's pace. */

import { requestDevice } from "./cml.js";
import { Host } from "./host.js";
import { loadWorld } from "./tiles.js";

const LOADING_MS = 200;
/** What tests look at. @type {any} */
const status = /** @type {any} */ (globalThis).page = { frames: 0, runs: 0, error: "" };
/** @param {string} id @returns {any} */
const element = (id) => document.getElementById(id);
/** @param {unknown} error */
const say = (error) => {
  element("error").textContent = status.error ||= String(/** @type {any} */ (error)?.message ?? error);
};

async function begin() {
  const device = await requestDevice();
  device.addEventListener("uncapturederror", (/** @type {any} */ { error }) => say(error));
  const world = await loadWorld(device, async (name) => await (await fetch(name)).arrayBuffer());
  const host = await Host.on(device, element("scene"), world);
  let running = 0;
  /** @param {number} now */
  function frame(now) {
    if (status.error) return;
    requestAnimationFrame(frame);
    // browsers do not hold up a page that is faster than its GPU: what is late would pile up
    if (running >= 2) return;
    try {
      // nothing is shown before the first tile: it has the whole device
      host.frame(now / 1000, host.runs ? Number(element("budget").value) : LOADING_MS);
    } catch (error) {
      return say(error);
    }
    running += 1;
    device.queue.onSubmittedWorkDone().then(() => running -= 1);
    Object.assign(status, { frames: host.frames, runs: host.runs });
    const progress = host.tile?.progress ?? 0;
    element("state").textContent = `${element("budget").value} ms, ${host.runs} tiles made, ` +
      `the next one is ${(100 * progress).toFixed(0)} % there`;
  }
  requestAnimationFrame(frame);
}

begin().catch(say);
