// @ts-check
/**
 * Opens a page of ours in Chromium, waits for it to have run, and says how it went: the page's status, its text,
 * and for each size of the window where the element of the result lies and how large the page is.
 *
 *     deno run -A tests/players/web/look.js FOLDER chromium [SECONDS] [EXPRESSION] [PICTURE.png] [WIDTHxHEIGHT,…]
 */

import { Page, serve } from "./browser.js";

const [folder, program, seconds = "60", expression = "page.runs > 0 || page.error", picture = "", sizes = "1480x720"] =
  Deno.args;
const site = serve(folder);
const [first, ...others] = sizes.split(",").map((size) => /** @type {[number, number]} */ (size.split("x").map(Number)));
const page = await Page.open(program, `${site.url}/`, first);
try {
  await page.until("typeof globalThis.page === 'object'", Number(seconds));
  await page.until(expression, Number(seconds));
  await new Promise((resolve) => setTimeout(resolve, 600));
} catch (error) {
  page.log.push(String(error));
}
const layouts = [await layout()];
if (picture) await page.screenshot(picture);
for (const size of others) {
  await page.resize(size);
  layouts.push(await layout());
}
const found = JSON.parse(await page.evaluate("JSON.stringify({ ...page, scheduler: undefined, networks: undefined })") ?? "{}");
const text = await page.evaluate("document.body.innerText");
console.log(JSON.stringify({ ...found, text, layouts, log: page.log }));
await page.close();
await site.close();

function layout() {
  return page.evaluate(`(({ scrollWidth, clientWidth, clientHeight }, result) => (
    { result, scrollWidth, clientWidth, clientHeight }
  ))(document.documentElement, document.getElementById("result")?.getBoundingClientRect().toJSON())`);
}
