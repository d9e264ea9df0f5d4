// @ts-check
/**
 * Reads the cooked files that are named on standard input, and says a line of each; with `--flip FILE` changes
 * each byte of a file and cuts it at each length, and counts what is accepted.
 */

import { CmlError, CookedFile } from "../../../players/web/cml.js";

/** How reading a file ended. @param {Uint8Array<ArrayBuffer>} bytes */
async function ends(bytes) {
  try {
    (await CookedFile.open(bytes, {}, true))._close();
  } catch (error) {
    if (error instanceof CmlError && error.message) return error.code;
    return `FAILS: ${error instanceof Error ? `${error.name}: ${error.message}` : error}`;
  }
  return "loads";
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
async function flip(bytes) {
  let accepted = 0;
  for (let at = 0; at < bytes.length; at++) {
    const changed = bytes.slice();
    changed[at] ^= 1 << at % 8;
    for (const damaged of [changed, bytes.subarray(0, at)]) {
      const end = await ends(damaged);
      if (end.startsWith("FAILS")) throw new Error(`byte ${at}: ${end}`);
      accepted += Number(end === "loads");
    }
  }
  console.log(`${bytes.length} bytes, ${accepted} accepted`);
}

if (Deno.args[0] === "--flip") {
  await flip(await Deno.readFile(Deno.args[1]));
} else {
  console.log("ready");
  let text = "";
  for await (const chunk of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
    const lines = (text + chunk).split("\n");
    text = /** @type {string} */ (lines.pop());
    for (const line of lines) console.log((await ends(await Deno.readFile(line))).replaceAll("\n", " "));
  }
}
