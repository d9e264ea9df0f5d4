// @ts-check
/** Chromium without a window, with WebGPU on a software driver, driven by Deno. */

const FLAGS = [
  "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
  "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan",
  "--use-vulkan=swiftshader", "--use-angle=vulkan", "--ignore-gpu-blocklist", "--remote-debugging-port=0",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const TYPES = { html: "text/html", js: "text/javascript", css: "text/css", png: "image/png", jpg: "image/jpeg" };

/** Serve the files of a folder, and nothing else. @param {string} root */
export function serve(root) {
  const server = Deno.serve({ port: 0, hostname: "127.0.0.1", onListen() {} }, async (request) => {
    const path = decodeURIComponent(new URL(request.url).pathname);
    try {
      const name = path.endsWith("/") ? `${path}index.html` : path;
      const type = /** @type {any} */ (TYPES)[name.split(".").pop() ?? ""] ?? "application/octet-stream";
      return new Response(await Deno.readFile(root + name), { headers: { "content-type": type } });
    } catch {
      return new Response("no such file", { status: 404 });
    }
  });
  return { url: `http://127.0.0.1:${server.addr.port}`, close: () => server.shutdown() };
}

/** A page in a browser of its own. */
export class Page {
  #next = 0;
  /** @type {Map<number, (value: any) => void>} */ #awaited = new Map();
  /** @type {string[]} what the page said, and its errors */ log = [];

  /** @param {string} program @param {string} url @param {[number, number]} size */
  static async open(program, url, size = [1280, 800]) {
    const page = new Page();
    page.profile = await Deno.makeTempDir();
    const args = [...FLAGS, `--window-size=${size.join()}`, `--user-data-dir=${page.profile}`, "about:blank"];
    page.process = new Deno.Command(program, { args, stdout: "null", stderr: "piped" }).spawn();
    const address = await page.#address();
    const targets = await (await fetch(`http://${new URL(address).host}/json`)).json();
    const target = targets.find((/** @type {any} */ one) => one.type === "page");
    const socket = new WebSocket(target.webSocketDebuggerUrl);
    await new Promise((resolve) => socket.onopen = resolve);
    page.socket = socket;
    socket.onmessage = ({ data }) => page.#take(JSON.parse(data));
    for (const domain of ["Page", "Runtime", "Log"]) await page.call(`${domain}.enable`);
    await page.resize(size);
    await page.call("Page.navigate", { url });
    return page;
  }

  async #address() {
    const reader = this.process?.stderr.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = /** @type {any} */ (await reader?.read());
      text += value ?? "";
      const found = /DevTools listening on (ws:\S+)/.exec(text);
      if (found) {
        (async () => {
          for (let part; !(part = await reader?.read())?.done;) this.stderr = (this.stderr + part?.value).slice(-8000);
        })();
        return found[1];
      }
      if (done) throw new Error(`the browser did not start: ${text.slice(-2000)}`);
    }
  }

  /** @param {any} message */
  #take({ id, result, error, method, params }) {
    if (id) this.#awaited.get(id)?.(error ? { error } : result);
    else if (method === "Runtime.consoleAPICalled") {
      this.log.push(params.args.map((/** @type {any} */ a) => a.value ?? a.description).join(" "));
    } else if (method === "Runtime.exceptionThrown") {
      this.log.push(`exception: ${params.exceptionDetails.exception?.description ?? params.exceptionDetails.text}`);
    } else if (method === "Log.entryAdded") this.log.push(`${params.entry.level}: ${params.entry.text}`);
  }

  /** @param {string} method @param {any} params */
  async call(method, params = {}) {
    const id = ++this.#next;
    const answer = new Promise((resolve) => this.#awaited.set(id, resolve));
    this.socket?.send(JSON.stringify({ id, method, params }));
    return /** @type {any} */ (await answer);
  }

  /** @param {string} expression */
  async evaluate(expression) {
    const found = await this.call("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (found.exceptionDetails) throw new Error(found.exceptionDetails.exception?.description ?? "failed");
    return found.result?.value;
  }

  /** Wait until the expression holds. @param {string} expression */
  async until(expression, seconds = 60) {
    for (const end = Date.now() + 1000 * seconds; Date.now() < end;) {
      const found = await this.evaluate(expression);
      if (found) return found;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`not in ${seconds} s: ${expression}\n${this.log.join("\n")}`);
  }

  /** @param {[number, number]} size */
  async resize([width, height]) {
    await this.call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
  }

  /** @param {string} file a .jpg or .png */
  async screenshot(file, quality = 80) {
    const format = file.endsWith(".png") ? "png" : "jpeg";
    const { data } = await this.call("Page.captureScreenshot", { format, ...(format === "jpeg" ? { quality } : {}) });
    await Deno.writeFile(file, Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
  }

  async close() {
    this.call("Browser.close");
    await new Promise((resolve) => setTimeout(resolve, 300));
    try {
      this.process?.kill();
    } catch { /* it has ended */ }
    this.socket?.close();
    await this.process?.status;
    await Deno.remove(this.profile ?? "", { recursive: true }).catch(() => {});
  }

  /** the browser's own words */ stderr = "";
  /** @type {Deno.ChildProcess | undefined} */ process;
  /** @type {WebSocket | undefined} */ socket;
  /** @type {string | undefined} */ profile;
}
