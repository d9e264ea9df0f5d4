// @ts-check
/** Prints the SHA-256 of each plan's buffers of constants, as the player uploads them, of each file. */
import { CookedFile, numbersOf } from "../../../players/web/cml.js";

const { args, readFile } = /** @type {any} */ (globalThis).Deno;
for (const path of args) await printDigests(await CookedFile.open(await readFile(path)));

/** @param {CookedFile} file */
async function printDigests(file) {
  const values = await file.section("values");
  for (const plan of file.plans) {
    for (const space of [1, 2]) {
      const whole = new Uint8Array(plan.spaces[space]);
      for (const piece of plan.pieces.filter((one) => one.space === space)) {
        for (let first = 0, at = piece.offset; first < piece.count; first += 1000) {
          const part = numbersOf(values, piece, first, Math.min(1000, piece.count - first));
          whole.set(part, at);
          at += part.length;
        }
      }
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
      console.log([...digest].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
    }
  }
}
