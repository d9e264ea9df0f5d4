// @ts-check
/** Tiles of the demo game's world (demo_game/world/tile.py), made by its networks. */

import { load } from "./cml.js";

export const NETWORKS = ["terrain", "upres", "texture", "population"];
export const CELLS = 56, LEVEL = 1, CELL_M = 4 * 2 ** LEVEL, SPAN = CELLS * CELL_M, SEED = 7;
const GROUND = ["moisture", "grain", "cell"];

/** The networks by name. @param {GPUDevice} device @param {(name: string) => Promise<ArrayBuffer>} fetched */
export async function loadNetworks(device, fetched) {
  const all = NETWORKS.map(async (name) => [name, await load(device, await fetched(`${name}.cml`))]);
  return Object.fromEntries(await Promise.all(all));
}

/** A tile's number, as the first network reads it. @param {number} x @param {number} z */
export const tileInput = (x, z) => new Int32Array([x * CELLS, z * CELLS, LEVEL, SEED]);

/** A tile on its way: a job of each network, each of which takes the others' outputs. */
export class Tile {
  /** @param {any} scheduler @param {any} networks @param {number} x @param {number} z @param {number} priority */
  constructor(scheduler, networks, x, z, priority) {
    this.x = x;
    this.z = z;
    const submit = (/** @type {string} */ name, /** @type {any} */ inputs) =>
      scheduler.submit(networks[name], inputs, { priority, name: `${name} ${x},${z}` });
    this.terrain = submit("terrain", { tile: tileInput(x, z) });
    const taken = (/** @type {string[]} */ ...names) =>
      Object.fromEntries(names.map((name) => [name, this.terrain.output(name)]));
    this.upres = submit("upres", taken("coarse", "detail", "cell"));
    const land = { heights: this.upres.output("heights"), ...taken(...GROUND) };
    this.texture = submit("texture", land);
    this.population = submit("population", land);
  }

  get jobs() {
    return [this.terrain, this.upres, this.texture, this.population];
  }
  get error() {
    return this.jobs.find((job) => job.state === "failed")?.error ?? "";
  }
  get done() {
    return this.jobs.every((job) => job.state === "done");
  }
  /** What is drawn of it: ranges of buffers. */
  get tensors() {
    return [this.upres.tensor("heights"), this.texture.tensor("albedo"), this.population.tensor("density")];
  }
  release() {
    for (const job of this.jobs) {
      job.cancel();
      job.release();
    }
  }
}

/** All of a tile at once, as numbers: to compare with. @param {any} networks @param {number} x @param {number} z */
export async function runTile(networks, x, z) {
  const ground = await networks.terrain.run({ tile: tileInput(x, z) });
  const { coarse, detail, cell, moisture, grain } = ground;
  const { heights } = await networks.upres.run({ coarse, detail, cell });
  const land = { heights, moisture, grain, cell };
  const { albedo } = await networks.texture.run(land);
  const { density } = await networks.population.run(land);
  return { heights, albedo, density };
}
