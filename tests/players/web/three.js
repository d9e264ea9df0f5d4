// @ts-check
/**
 * The three.js host without a browser: a picture of its scene from above, where every pixel is one
 * of the land's texture, beside the network's own numbers.
 *
 *     deno run -A tests/players/web/three.js FOLDER
 */

import { bytesOf, canvasOf, SIDE } from "./canvas.js";

const [folder] = Deno.args;

/** @type {any} */ (globalThis).requestAnimationFrame = () => 0;
/** @type {any} */ (globalThis).cancelAnimationFrame = () => {};
const { requestDevice } = await import(`file://${folder}/cml.js`);
const { loadWorld, runTile } = await import(`file://${folder}/tiles.js`);
const { FIRST, Host } = await import(`file://${folder}/host.js`);
const THREE = await import(`file://${folder}/three.webgpu.js`);
const device = await requestDevice();
/** @type {string[]} */
const errors = [];
const world = await loadWorld(device, async (/** @type {string} */ name) => (await Deno.readFile(`${folder}/${name}`)).buffer);
const { albedo } = (await runTile(world, ...FIRST)).texture;
const { canvas, shown } = canvasOf();
const host = await Host.on(device, canvas, world);
device.onuncapturederror = (/** @type {GPUUncapturedErrorEvent} */ { error }) => errors.push(error.message);

async function frame() {
  host.frame(host.frames / 60, 30);
  await device.queue.onSubmittedWorkDone();
  await new Promise((resolve) => setTimeout(resolve));
}
await frame();
const empty = await bytesOf(device, shown.texture);
while (!host.runs && host.frames < 3000) await frame();
await frame();
const seen = await bytesOf(device, shown.texture);

// from above, without light: the picture is the texture
host.land.material = new THREE.MeshBasicMaterial({ map: host.map });
host.sea.visible = false;
// its 112 texels are as many pixels
const half = 224 * SIDE / 112;
host.camera = new THREE.OrthographicCamera(-half, half, half, -half, 1, 8000);
host._look = () => {
  host.camera.position.set(0, 4000, 0);
  host.camera.lookAt(0, 0, 0);
};
await frame();
const above = await bytesOf(device, shown.texture);
const painted = await bytesOf(device, host.texture);
console.log(JSON.stringify({
  frames: host.frames, runs: host.runs, errors,
  empty: [...empty], seen: [...seen], above: [...above], painted: [...painted], albedo: [...albedo],
}));
