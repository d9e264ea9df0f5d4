// @ts-check
/** Runs players/c/tools/replay.c as WebAssembly, from its standard input to its output: `deno run replay.js REPLAY.wasm` */

const input = new Uint8Array(await new Response(Deno.stdin.readable).arrayBuffer());
/** @type {WebAssembly.Memory} */ let memory;
/** @type {Uint8Array[]} */ const output = [];
let at = 0;

/** Calls `each` with the blocks of memory of a WASI call; returns the sum. @param {number} blocks @param {number} count @param {(bytes: Uint8Array) => number} each */
function sumOver(blocks, count, each) {
  const view = new DataView(memory.buffer);
  let sum = 0;
  for (let i = 0; i < count; i++) {
    const [start, length] = [0, 4].map((offset) => view.getUint32(blocks + 8 * i + offset, true));
    sum += each(new Uint8Array(memory.buffer, start, length));
  }
  return sum;
}

/** @type {Record<string, (...words: any[]) => any>} */
const wasi = {
  fd_read(_file, blocks, count, result) {
    const read = sumOver(blocks, count, (bytes) => {
      const part = input.subarray(at, at + bytes.length);
      bytes.set(part);
      at += part.length;
      return part.length;
    });
    new DataView(memory.buffer).setUint32(result, read, true);
    return 0;
  },
  fd_write(_file, blocks, count, result) {
    const written = sumOver(blocks, count, (bytes) => output.push(bytes.slice()) && bytes.length);
    new DataView(memory.buffer).setUint32(result, written, true);
    return 0;
  },
  proc_exit(code) { throw new Error(`exit ${code}`); },
};
const { log, log2, exp, pow } = Math;
const module = await WebAssembly.compile(await Deno.readFile(Deno.args[0]));
const missing = WebAssembly.Module.imports(module).filter(({ module: from }) => from.startsWith("wasi"));
const imports = { cml: { log, log2, exp, pow } };
for (const { module: from, name } of missing) {
  /** @type {any} */ (imports)[from] ??= {};
  /** @type {any} */ (imports)[from][name] = wasi[name] ?? (() => 0);
}
const { exports } = await WebAssembly.instantiate(module, imports);
memory = /** @type {WebAssembly.Memory} */ (exports.memory);
try {
  /** @type {Function} */ (exports._start)();
} catch (error) {
  if (/** @type {Error} */ (error).message !== "exit 0") throw error;
}
await new Response(new Blob(/** @type {BlobPart[]} */ (output)).stream()).body?.pipeTo(Deno.stdout.writable);
