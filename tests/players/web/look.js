// @ts-check
/**
 * Opens a page of ours in Chromium, waits for it to have run, and says how it went.
 *
 *     deno run -A tests/players/web/look.js FOLDER chromium [SECONDS] [EXPRESSION] [PICTURE.png]
 */

import { Page, serve } from "./browser.js";

const [folder, program, seconds = "60", expression = "page.runs > 0 || page.error", picture = ""] = Deno.args;
const site = serve(folder);
const page = await Page.open(program, `${site.url}/`, [1480, 720]);
try {
  await page.until("typeof globalThis.page === 'object'", Number(seconds));
  await page.until(expression, Number(seconds));
  await new Promise((resolve) => setTimeout(resolve, 600));
} catch (error) {
  page.log.push(String(error));
}
if (picture) await page.screenshot(picture);
const found = JSON.parse(await page.evaluate("JSON.stringify({ ...page, scheduler: undefined, networks: undefined })") ?? "{}");
const text = await page.evaluate("document.body.innerText");
console.log(JSON.stringify({ ...found, text, log: page.log }));
await page.close();
await site.close();
