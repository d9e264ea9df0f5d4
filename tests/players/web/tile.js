// @ts-check
/**
 * A tile of the demo game's world, made by the cooked networks of a folder, as a JSON object: what is
 * drawn of it, and the digest of an integer one.
 */

const [folder, x, z, under = ""] = Deno.args;
const { requestDevice } = await import(`file://${folder}/cml.js`);
const { digestOf, loadWorld, runTile } = await import(`file://${folder}/tiles.js`);
const world = await loadWorld(await requestDevice(), async (/** @type {string} */ name) =>
  (await Deno.readFile(`${folder}/${under}${name}`)).buffer
);
const made = await runTile(world, Number(x), Number(z)), { chain } = world;
const shown = Object.entries(chain.shown).map(([name, session]) => [name, [...made[String(session)][name]]]);
console.log(JSON.stringify({ ...Object.fromEntries(shown), digest: await digestOf(chain, made) }));
