// @ts-check
/** Tiles of the demo game's world (demo_game/world/tile.py), made by its networks. */

import { loadCooked } from "./cml.js";

export const CELLS = 56, LEVEL = 1, CELL_M = 4 * 2 ** LEVEL, SPAN = CELLS * CELL_M, SEED = 7;
/** by which an integer network's numbers are whole */
const WORDS = 256;

/**
 * Who takes what of whom (demo_game/chain.py), each behind those that it takes from; what is drawn of
 * a tile, and what its digest is of, by session.
 * @typedef {{session: string, tensor: string}} Output
 * @typedef {{sources: Record<string, Record<string, Output>>, readsTile: string[],
 *   shown: Record<string, string>, digested: Output[]}} Chain
 * @typedef {{chain: Chain, networks: Record<string, import("./cml.js").Network>}} World
 */

/**
 * The networks of a world, of the folder that `fetched` reads.
 * @param {GPUDevice} device @param {(name: string) => Promise<ArrayBuffer>} fetched @returns {Promise<World>}
 */
export async function loadWorld(device, fetched) {
  const chain = JSON.parse(new TextDecoder().decode(await fetched("chain.json")));
  const all = Object.keys(chain.sources).map(async (name) => [name, await loadCooked(device, await fetched(`${name}.cml`))]);
  return { chain, networks: Object.fromEntries(await Promise.all(all)) };
}

/** A tile's number, as networks read it. @param {number} x @param {number} z */
export const tileInput = (x, z) => new Int32Array([x * CELLS, z * CELLS, LEVEL, SEED]);

/**
 * A network's inputs: outputs of others, and the tile's number where it reads that.
 * @param {Chain} chain @param {string} name @param {Int32Array} tile @param {(from: Output) => any} output
 */
function inputsOf({ sources, readsTile }, name, tile, output) {
  const inputs = Object.entries(sources[name]).map(([input, from]) => [input, output(from)]);
  return Object.fromEntries(readsTile.includes(name) ? [...inputs, ["tile", tile]] : inputs);
}

/** A tile on its way: a job of each network, each of which takes the others' outputs. */
export class Tile {
  /** @type {Record<string, import("./cml.js").Job>} */ _by = {};

  /** @param {any} scheduler @param {World} world @param {number} x @param {number} z @param {number} priority */
  constructor(scheduler, { chain, networks }, x, z, priority) {
    this.x = x;
    this.z = z;
    this.chain = chain;
    for (const name of Object.keys(chain.sources)) {
      const inputs = inputsOf(chain, name, tileInput(x, z), ({ session, tensor }) => this._by[session].output(tensor));
      this._by[name] = scheduler.submit(networks[name], inputs, { priority, name: `${name} ${x},${z}` });
    }
  }

  get jobs() {
    return Object.values(this._by);
  }
  get error() {
    return this.jobs.find((job) => job.state === "failed")?.error ?? "";
  }
  get done() {
    return this.jobs.every((job) => job.state === "done");
  }
  /** 0 to 1, all networks alike. */
  get progress() {
    return this.jobs.reduce((sum, job) => sum + job.progress, 0) / this.jobs.length;
  }
  /** What is drawn of it, as a range of a buffer. @param {"heights" | "albedo" | "density"} name */
  tensor(name) {
    return this._by[this.chain.shown[name]].tensor(name);
  }
  /** The same as numbers, null until they have arrived. @param {"heights" | "albedo" | "density"} name */
  read(name) {
    return this._by[this.chain.shown[name]].read(name);
  }
  release() {
    for (const job of this.jobs) {
      job.cancel();
      job.release();
    }
  }
}

/**
 * All of a tile at once, as numbers by network and output: to compare with.
 * @param {World} world @param {number} x @param {number} z
 */
export async function runTile({ chain, networks }, x, z) {
  /** @type {Record<string, Record<string, import("./cml.js").Numbers>>} */
  const results = {};
  for (const name of Object.keys(chain.sources)) {
    const inputs = inputsOf(chain, name, tileInput(x, z), ({ session, tensor }) => results[session][tensor]);
    results[name] = await networks[name].run(inputs);
  }
  return results;
}

/**
 * A tile of the integer world in a line (demo_game/reporting/digest.py): of all that it is, as whole
 * numbers, and so the same on every machine.
 * @param {Chain} chain @param {Awaited<ReturnType<typeof runTile>>} results
 */
export async function digestOf({ digested }, results) {
  const tensors = digested.map(({ session, tensor }) => {
    const numbers = results[session][tensor];
    return numbers instanceof Float32Array ? Int32Array.from(numbers, (v) => WORDS * v) : new Int32Array(numbers);
  });
  const bytes = await new Blob(tensors).arrayBuffer();
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
