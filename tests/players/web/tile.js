// @ts-check
/** A tile of the demo game's world, made by the cooked networks of a folder, as a JSON object. */

const [folder, x, z] = Deno.args;
const { requestDevice } = await import(`file://${folder}/cml.js`);
const { loadNetworks, runTile } = await import(`file://${folder}/tiles.js`);
const networks = await loadNetworks(await requestDevice(), async (/** @type {string} */ name) =>
  (await Deno.readFile(`${folder}/${name}`)).buffer
);
const made = await runTile(networks, Number(x), Number(z));
console.log(JSON.stringify(Object.fromEntries(Object.entries(made).map(([name, v]) => [name, [.../** @type {any} */ (v)]]))));
