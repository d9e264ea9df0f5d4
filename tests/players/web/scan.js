// @ts-check
/** Says of each text of a JSON list whether a shader compiler may have it: `deno run scan.js TEXTS.json` */

import { checkWgsl } from "../../../players/web/cml.js";

const verdicts = JSON.parse(await Deno.readTextFile(Deno.args[0])).map((/** @type {string} */ text) => {
  try {
    checkWgsl(text, "k");
    return "taken";
  } catch (error) {
    return String(/** @type {any} */ (error).message);
  }
});
console.log(JSON.stringify(verdicts));
