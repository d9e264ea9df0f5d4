// @ts-check
/** Reads the cooked files that are named on standard input, and says a line of each. */

import { CmlError, CookedFile } from "../../../players/web/cml.js";

/** Reads all that a player may read of a file. @param {Uint8Array<ArrayBuffer>} bytes */
export async function readAll(bytes) {
  const read = await CookedFile.open(bytes);
  for (const tag of read.table.keys()) await read.section(tag);
  await read.guess("llvmpipe");
  await read.golden();
  for (const kernel of read.kernels) await read.wgsl(kernel);
  return read;
}

/** How reading a file ended. @param {string} path */
async function ends(path) {
  try {
    await readAll(await Deno.readFile(path));
  } catch (error) {
    if (error instanceof CmlError && error.message) return error.code;
    return `FAILS: ${error instanceof Error ? `${error.name}: ${error.message}` : error}`;
  }
  return "loads";
}

if (/** @type {any} */ (import.meta).main) {
  console.log("ready");
  let text = "";
  for await (const chunk of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
    const lines = (text + chunk).split("\n");
    text = /** @type {string} */ (lines.pop());
    for (const line of lines) console.log((await ends(line)).replaceAll("\n", " "));
  }
}
