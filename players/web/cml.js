// @ts-check
/**
 * Plays cooked networks (docs/cooked.md) on WebGPU, in parts, within a budget of milliseconds per
 * frame. One module, nothing else needed.
 *
 *     const network = await load(device, await (await fetch("net.cml")).arrayBuffer());
 *     const scheduler = new Scheduler(device, { frameMs: 1000 / 60, budgetMs: 4 });
 *     const job = scheduler.submit(network, { image: pixels });
 *     // in every frame of the host's loop
 *     scheduler.encode(encoder);
 *     device.queue.submit([encoder.finish()]);
 *     scheduler.endFrame();
 *     if (job.state === "done") { job.tensor("out"); job.read("out"); }
 *
 * What a frame runs is decided by the same functions of the same numbers as in Python
 * (scheduler/planning/): recordings of the one replay in the other.
 */
// ---------------------------------------------------------------------------------- vocabulary
/**
 * `CorruptArtifact`: the file is damaged. `StaleArtifact`: no plan in it fits this device.
 * `InputError`: the caller's to mend. `KernelError`: the device takes no such kernel.
 * `DeviceError`: the device is lost, or out of memory. `JobError`: there is no such result.
 * @typedef {"CorruptArtifact" | "StaleArtifact" | "InputError" | "KernelError" | "DeviceError" |
 *   "JobError"} ErrorCode
 */

/** Everything that this module raises on purpose. */
export class CmlError extends Error {
  /** @param {ErrorCode} code @param {string} message what, wanted against got, the next step */
  constructor(code, message) {
    super(message);
    this.name = "CmlError";
    this.code = code;
  }
}

/** @param {string} message */ const corrupt = (message) => new CmlError("CorruptArtifact", message);
/** @param {string} message */ const refused = (message) => new CmlError("InputError", message);

/** @typedef {"scalar" | "integer" | "logical"} DType */
/** @typedef {"plain" | "c4" | "c4h"} Layout */
/** @typedef {Float32Array | Int32Array | Uint32Array} Numbers */
/** @typedef {{space: number, offset: number, bytes: number}} Range */
/**
 * A tensor of a network, and where it lies in which of its buffers.
 * @typedef {{name: string, type: DType, layout: Layout, shape: number[], elements: number} & Range} TensorPlace
 */
/**
 * A tensor on the GPU: `bytes` bytes of `buffer`, from `offset`.
 * @typedef {{buffer: GPUBuffer, offset: number, bytes: number, shape: number[], type: DType, layout: Layout}} GpuTensor
 */
/**
 * What a scheduler knows of a step before it ever ran; FLOPs and bytes are per workgroup.
 * @typedef {{key: string, op: string, title: string, groups: number, flops: number, nbytes: number}} StepCost
 */
/**
 * @typedef {StepCost & {kernel: number, bindings: Range[], writes: number, params: number,
 *   paramsBytes: number, line: number, file: string}} Step
 */
/**
 * @typedef {{label: string, paramsBytes: number, tensors: number, flags: number, offset: number,
 *   packed: number, unpacked: number, unpackedBytes: number}} Kernel
 */
/** @typedef {{at: string, wanted: number, atMost: boolean, what: string}} Need */
/**
 * A constant in a buffer: numbers of the section `values` in another order.
 * @typedef {Range & {stored: number, becomes: number, source: number, matrix: number | null, extents: number[],
 *   dims: {extent: number, axis: number, step: number}[], count: number}} Piece
 */
/**
 * @typedef {{profile: string, pieces: Piece[], sizes: number[], needs: Need[], subgroup: number,
 *   software: boolean, flops: number, bytes: number, steps: Step[], inputs: TensorPlace[], outputs: TensorPlace[],
 *   updates: [Range, Range][], params: Uint8Array<ArrayBuffer>}} Plan
 */

/** @type {DType[]} */ const TYPES = ["scalar", "integer", "logical"];
/** @type {Layout[]} */ const LAYOUTS = ["plain", "c4", "c4h"];
const SPACES = ["arena", "weights", "own"];
const ARRAYS = { scalar: Float32Array, integer: Int32Array, logical: Uint32Array };
const NONE = 0xffffffff;
/** @param {number} a @param {number} b */ const roundUp = (a, b) => Math.ceil(a / b) * b;
/** @param {readonly number[]} values plain addition, one after the other */
const sum = (values) => values.reduce((total, value) => total + value, 0);
/** @param {readonly number[]} shape */ const size = (shape) => shape.reduce((product, extent) => product * extent, 1);

// ---------------------------------------------------------------------------------------- files
const MAGIC = [0x89, 0x43, 0x4d, 0x4c, 0x0d, 0x0a, 0x1a, 0x0a];
/** what this module reads of a file; others are ignored */
const ALONE = new Set(["strings", "kernels", "code", "values", "guess", "golden", "meta"]);
const MOST_SECTIONS = 256;
const FORMAT = 2, HEADER = 96;
/**
 * What a file may take when it is unpacked: a small file can state much. `code_bytes` of all kernels, `device_bytes` of a
 * plan's buffers, `kernels`, and `steps` of a plan.
 * @typedef {{code_bytes: number, device_bytes: number, kernels: number, steps: number}} Limits
 */
/** @type {Limits} */
const LIMITS = { code_bytes: 64 * 2 ** 20, device_bytes: 2 * 2 ** 30, kernels: 4096, steps: 16384 };

/** Little-endian numbers of one section, checked against its end. */
class View {
  /** @param {Uint8Array<ArrayBuffer>} bytes @param {string} where */ constructor(bytes, where) {
    this.bytes = bytes;
    this.where = where;
    this.data = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }
  /** @param {number} at @param {number} bytes */ need(at, bytes) {
    if (!(at >= 0 && bytes >= 0 && at + bytes <= this.bytes.byteLength)) {
      throw corrupt(`${this.where}: ${bytes} bytes at ${at} lie outside of its ${this.bytes.byteLength}`);
    }
  }
  /** @param {number} at @returns {number} */ u32(at) {
    this.need(at, 4);
    return this.data.getUint32(at, true);
  }
  /** @param {number} at @returns {number} */ u64(at) {
    this.need(at, 8);
    const value = Number(this.data.getBigUint64(at, true));
    if (value > Number.MAX_SAFE_INTEGER) throw corrupt(`${this.where}: the length ${value} at ${at} cannot be`);
    return value;
  }
  /** @param {number} at a number that is no infinity, not less than 0 */ f64(at) {
    this.need(at, 8);
    const value = this.data.getFloat64(at, true);
    if (!(value >= 0 && value <= 1e300)) throw corrupt(`${this.where}: ${value} at ${at} is no cost`);
    return value;
  }
  /** @param {number} at a number per millisecond, or a factor */ rate(at) {
    const value = this.f64(at);
    if (value < LEAST_COST) throw corrupt(`${this.where}: ${value} at ${at} is no rate`);
    return value;
  }
  /** @param {number} at what a device must have: rounded where it is beyond all devices */ amount(at) {
    this.need(at, 8);
    return Number(this.data.getBigUint64(at, true));
  }
  /** @param {number} at @param {number} bytes which are reserved, and so zero */ zeros(at, bytes) {
    this.need(at, bytes);
    for (let i = at; i < at + bytes; i++) {
      if (this.bytes[i]) throw corrupt(`${this.where}: byte ${i} is reserved, and not zero`);
    }
  }
  /** @param {number} at @param {number} bytes */ part(at, bytes) {
    this.need(at, bytes);
    return this.bytes.subarray(at, at + bytes);
  }
  /** @param {number} at a rank, then eight extents */ shape(at) {
    const rank = this.u32(at);
    if (rank > 8) throw corrupt(`${this.where}: a tensor of rank ${rank}`);
    const shape = Array.from({ length: rank }, (_, i) => this.u32(at + 4 + 4 * i));
    this.zeros(at + 4 + 4 * rank, 4 * (8 - rank));
    if (size(shape) > 2 ** 48) throw corrupt(`${this.where}: [${shape}] elements`);
    return shape;
  }
  /** A table of records: its number of rows and where it begins. @param {number} at @param {number} width */
  table(at, width) {
    const rows = this.u32(at), first = this.u32(at + 4);
    if (first % 8) throw corrupt(`${this.where}: the table at ${first} is not aligned`);
    this.need(first, rows * width);
    return { rows, first, width };
  }
}

/** @param {Uint8Array<ArrayBuffer>} bytes */ async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) {
    throw new CmlError(
      "DeviceError",
      "this page is no secure context, so it has no crypto.subtle: serve it by https or localhost",
    );
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}

/** @param {Uint8Array} a @param {Uint8Array} b */
const sameBytes = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);

/**
 * A zlib stream of a known length.
 * @param {Uint8Array<ArrayBuffer>} packed @param {number} length @param {string} what
 */
async function unzip(packed, length, what) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const reader = stream.getReader();
  const found = new Uint8Array(length);
  let at = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      if (at + value.length > length) {
        await reader.cancel();
        throw corrupt(`${what} is longer than its ${length} bytes`);
      }
      found.set(value, at);
      at += value.length;
    }
  } catch (error) {
    if (error instanceof CmlError) throw error;
    throw corrupt(`${what} cannot be unpacked: ${said(error)}`);
  }
  if (at !== length) throw corrupt(`${what} has ${at} bytes, wanted ${length}`);
  return found;
}

/** @param {Uint8Array} bytes @param {string} what */ function decoded(bytes, what) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw corrupt(`${what} is not UTF-8`);
  }
}

/** @param {unknown} error */ const said = (error) => String(/** @type {any} */ (error)?.message ?? error);

/** Names, types and shapes of inputs or outputs. @param {TensorPlace[]} places */
const endsOf = (places) => JSON.stringify(places.map(({ name, type, shape }) => [name, type, shape]));

/** A cooked file whose header, table and used sections are as they should be. */
export class CookedFile {
  /** @type {Map<string, {offset: number, bytes: number, hash: Uint8Array}[]>} */ table = new Map();
  /** @type {Map<string, View>} */ _seen = new Map();
  /** @type {Kernel[]} */ kernels = [];
  /** @type {Plan[]} */ plans = [];
  /** @type {Record<string, unknown>} */ meta = {};
  /** @type {Limits} as the header states them */ totals = { ...LIMITS };
  /** @param {Uint8Array<ArrayBuffer>} bytes */ constructor(bytes) {
    this.bytes = bytes;
  }
  /**
   * Read and check everything but weights and kernels, which are checked where they are used.
   * @param {ArrayBuffer | Uint8Array<ArrayBuffer>} source @param {Partial<Limits>} limits other than the defaults
   */
  static async open(source, limits = {}) {
    const bytes = source instanceof Uint8Array ? source : new Uint8Array(source);
    const file = new CookedFile(bytes);
    await file._readTable({ ...LIMITS, ...limits });
    for (const tag of ["strings", "kernels", "code"]) await file.section(tag);
    if (!file.has("values")) throw corrupt("the file has no section 'values'");
    file.kernels = file._readKernels();
    for (let i = 0; i < (file.table.get("plan")?.length ?? 0); i++) {
      file.plans.push(new PlanReader(file, await file.section("plan", i)).read());
    }
    if (!file.plans.length) throw corrupt("the file has no plan");
    file._checkTotals();
    for (const plan of file.plans) {
      for (const end of /** @type {const} */ (["inputs", "outputs"])) {
        if (endsOf(plan[end]) !== endsOf(file.plans[0][end])) throw corrupt(`the plans have other ${end} than each other`);
      }
    }
    file._readMeta(await file.section("meta"));
    return file;
  }
  /** @param {View} view */ _readMeta(view) {
    try {
      this.meta = JSON.parse(decoded(view.bytes, view.where));
    } catch (error) {
      throw corrupt(`${view.where} is no JSON: ${said(error)}`);
    }
    const { name, engine, rules, custom, half, integer = "0".repeat(64) } = Object(this.meta);
    const fits = typeof name === "string" && typeof engine === "string" && Number.isInteger(rules) &&
      Array.isArray(custom) && custom.every((one) => typeof one === "string") && typeof half === "boolean" &&
      typeof integer === "string" && /^[0-9a-f]{64}$/.test(integer);
    if (!fits) throw corrupt(`${view.where} lacks something`);
  }
  get name() { return String(this.meta.name); }
  _checkTotals() {
    const { kernels, plans, totals } = this;
    const found = {
      code_bytes: sum(kernels.map((kernel) => kernel.unpackedBytes)),
      device_bytes: Math.max(...plans.map((plan) => sum(plan.sizes) + plan.params.length)),
      kernels: kernels.length,
      steps: Math.max(...plans.map((plan) => plan.steps.length)),
    };
    if (JSON.stringify(found) !== JSON.stringify(totals)) {
      throw corrupt("the header states other totals than the kernels and plans have");
    }
  }
  /** @param {Limits} limits */ async _readTable(limits) {
    const length = this.bytes.byteLength;
    if (length < HEADER || !MAGIC.every((byte, i) => this.bytes[i] === byte)) {
      throw corrupt("this is no cooked file: make one with `cml cook MODEL -o net.cml`");
    }
    const head = new View(this.bytes, "the file's header");
    const format = head.u32(8), count = head.u32(12);
    if (format !== FORMAT) {
      throw new CmlError("StaleArtifact", `the file has format ${format}, wanted ${FORMAT}: cook it again`);
    }
    if (head.u64(16) !== length) throw corrupt(`the file has ${length} bytes, and says ${head.u64(16)}: it was cut`);
    if (count > MOST_SECTIONS) throw corrupt(`${count} sections are too many`);
    head.zeros(80, 16);
    this.totals = { code_bytes: head.amount(56), device_bytes: head.amount(64), kernels: head.u32(72), steps: head.u32(76) };
    const table = head.part(HEADER, 64 * count);
    if (!sameBytes(await sha256(table), head.part(24, 32))) {
      throw corrupt("the table of sections is not what its hash says");
    }
    for (const [name, most] of Object.entries(limits)) {
      const wanted = this.totals[/** @type {keyof Limits} */ (name)];
      if (wanted > most) {
        throw refused(`the file states ${wanted} ${name}, the limit is ${most}. If you trust it: limits: { ${name}: ${wanted} }`);
      }
    }
    const end = this._readRows(new View(table, "the table of sections"), count);
    if (end !== length) throw corrupt(`${length - end} bytes lie behind the last section`);
  }
  /** @param {View} view @param {number} count @returns {number} where the last section ends */ _readRows(view, count) {
    let end = HEADER + 64 * count, before = "", number = -1;
    const file = new View(this.bytes, "the file");
    for (let at = 0; at < 64 * count; at += 64) {
      const tag = tagAt(view, at);
      const offset = view.u64(at + 8), bytes = view.u64(at + 16);
      number = tag === before ? number + 1 : 0;
      view.zeros(at + 28, 4);
      if (tag < before || view.u32(at + 24) !== number || (number && ALONE.has(tag))) {
        throw corrupt(`section '${tag}' is out of order`);
      }
      if (offset % 64 || offset < end || offset - end > 63) {
        throw corrupt(`section '${tag}' at ${offset} does not follow what ends at ${end}`);
      }
      file.zeros(end, offset - end);
      file.need(offset, bytes);
      const rows = this.table.get(tag) ?? [];
      rows.push({ offset, bytes, hash: view.part(at + 32, 32) });
      this.table.set(tag, rows);
      before = tag;
      end = offset + bytes;
    }
    return end;
  }
  /** A section, once its hash was looked at. @param {string} tag @param {number} number */
  async section(tag, number = 0) {
    const row = this.table.get(tag)?.[number];
    const name = number ? `${tag} ${number}` : tag;
    if (!row) throw corrupt(`the file has no section '${name}'`);
    const known = this._seen.get(name);
    if (known) return known;
    const bytes = this.bytes.subarray(row.offset, row.offset + row.bytes);
    if (!sameBytes(await sha256(bytes), row.hash)) throw corrupt(`section '${name}' is not what its hash says`);
    // typed arrays begin at multiples of their elements, and a file may begin anywhere
    const view = new View(tag === "values" && bytes.byteOffset % 16 ? bytes.slice() : bytes, `section '${name}'`);
    this._seen.set(name, view);
    return view;
  }
  /** @param {string} tag */ has(tag) { return this.table.has(tag); }
  /** @param {View} view @param {number} at @returns {string} */ text(view, at) {
    const offset = view.u32(at), length = view.u32(at + 4);
    if (length > 4096) throw corrupt(`${view.where}: the text at ${at} has ${length} bytes`);
    const strings = /** @type {View} */ (this._seen.get("strings"));
    return decoded(strings.part(offset, length), `${view.where}: the text at ${at}`);
  }
  _readKernels() {
    const view = /** @type {View} */ (this._seen.get("kernels"));
    const code = /** @type {View} */ (this._seen.get("code"));
    const count = view.u32(0);
    view.zeros(4, 4);
    if (view.bytes.byteLength !== 8 + 96 * count) throw corrupt("section 'kernels' has gaps");
    const found = [];
    let end = 0;
    for (let at = 8; at < 8 + 96 * count; at += 96) {
      const label = this.text(view, at + 32);
      const paramsBytes = view.u32(at + 40), tensors = view.u32(at + 44);
      const flags = view.u32(at + 48);
      const offset = view.u64(at + 72), packed = view.u32(at + 80), unpacked = view.u32(at + 84);
      view.zeros(at + 52, 4);
      view.zeros(at + 88, 8);
      const spirv = { offset: view.u64(at + 56), packed: view.u32(at + 64), unpacked: view.u32(at + 68) };
      for (const one of [spirv, { offset, packed, unpacked }]) { // none is unpacked twice
        code.need(one.offset, one.packed);
        if (one.packed ? one.offset !== end || !one.unpacked : one.offset || one.unpacked) {
          throw corrupt(`the code of kernel '${label}' does not lie behind that of the one before`);
        }
        end += one.packed;
      }
      if (flags > 7) throw corrupt(`kernel '${label}' has the unknown flags ${flags}`);
      const fits = paramsBytes % 16 === 0 && paramsBytes >= 16 && paramsBytes <= 65536 &&
        tensors >= 1 && tensors <= 64 && spirv.unpacked % 4 === 0 && unpacked <= 1040 * packed && spirv.unpacked <= 1040 * spirv.packed;
      if (!fits) throw corrupt(`kernel '${label}' is of no possible size`);
      const unpackedBytes = unpacked + spirv.unpacked;
      found.push({ label, paramsBytes, tensors, flags, offset, packed, unpacked, unpackedBytes });
    }
    if (end !== code.bytes.byteLength) throw corrupt("section 'code' has code that no kernel has");
    return found;
  }
  /** @param {Kernel} kernel @returns {Promise<string>} its WGSL */ async wgsl(kernel) {
    const code = await this.section("code");
    const what = `kernel '${kernel.label}'`;
    if (kernel.unpacked > MOST_WGSL) throw corrupt(`${what}: its WGSL is longer than ${MOST_WGSL} bytes`);
    const text = decoded(await unzip(code.part(kernel.offset, kernel.packed), kernel.unpacked, what), what);
    checkWgsl(text, what);
    return text;
  }
  /** What a device of that name is believed to do. @param {string} device */
  async guess(device) {
    if (!this.has("guess")) return new FirstGuess();
    const view = await this.section("guess");
    const devices = view.u32(0), count = view.u32(4), first = 8 + 40 * devices;
    if (devices > 64 || count > 4096) throw corrupt("section 'guess' has too many rows");
    if (view.bytes.byteLength !== first + 16 * count) throw corrupt("section 'guess' has gaps");
    const factors = Array.from({ length: count }, (_, i) =>
      /** @type {const} */ ([this.text(view, first + 16 * i), view.rate(first + 16 * i + 8)]));
    const found = Array.from({ length: devices }, (_, i) => {
      const at = 8 + 40 * i, from = view.u32(at + 32), many = view.u32(at + 36);
      if (from + many > count) throw corrupt("section 'guess': factors lie outside of it");
      const kernels = Object.fromEntries(factors.slice(from, from + many));
      const guess = new FirstGuess(view.rate(at + 8), view.rate(at + 16), view.f64(at + 24), kernels);
      return { pattern: this.text(view, at), guess };
    });
    return found.find(({ pattern }) => matches(pattern, device))?.guess ?? new FirstGuess();
  }
}

// ----------------------------------------------------------------------------------- code
// The same rules with the same numbers as in cml_engine/cooked/wgsl.py, which says why.
const MOST_WGSL = 512 << 10, MOST_DEPTH = 64, MOST_PENDING = 512, MOST_NAMES = 512;
const MOST_ELEMENTS = 4096, MOST_SIZE = 1 << 20;
/** blanks and comments, then a token or the end */
const TOKEN = /(?:[ \t\r\n]|\/\/[^\r\n]*)*(?:([A-Za-z_][A-Za-z_0-9]*|[0-9][A-Za-z_0-9.]*|->|<<|<=|>=|[!-~])|$)/y;
const ARRAY_SIZE = /^[ \t\r\n]*(?:[iu]32\()?([0-9]{1,9})[iu]?\)?[ \t\r\n]*$/;
const DECLARING = new Set(["fn", "struct", "alias", "const", "override"]);
const ARRAY_TYPES = new Set(["array", "binding_array"]);
/** @type {Record<string, string>} */ const OPENS = { ")": "(", "]": "[", "}": "{" };

/**
 * Refuses code that is longer, more deeply nested or expanded to more than a shader compiler takes.
 * @param {string} text @param {string} what begins the message
 */
export function checkWgsl(text, what) {
  if (text.length > MOST_WGSL || text.includes("/*") || !/^[\t\r\n -~]*$/.test(text)) {
    throw corrupt(`${what}: its WGSL is not ASCII, has comments of several lines, or is longer than ${MOST_WGSL} bytes`);
  }
  const problem = new WgslScanner(text).problem();
  if (problem) throw corrupt(`${what}: its WGSL ${problem}`);
}

/** An open bracket: `<` of a template, `a` for that of an array's. */
/** @typedef {{kind: string, size: number, element: number, argument: number, pending: number}} Bracket */

class WgslScanner {
  size = 0;
  pending = 0;
  /** @type {Map<string, number>} of every name; below 0 until its declaration has ended */ sizes = new Map();
  /** @type {[string, number, number][]} declarations: name, brackets and size before it */ open = [];
  /** @type {Bracket[]} */ brackets = [{ kind: "", size: 0, element: 0, argument: 0, pending: 0 }];

  /** @param {string} text */ constructor(text) {
    this.text = text;
  }
  /** Every token and where it ends. @returns {Generator<[string, number]>} */
  *tokens() {
    TOKEN.lastIndex = 0;
    for (let found; (found = TOKEN.exec(this.text))?.[1];) {
      const end = TOKEN.lastIndex;
      yield [found[1], end];
      TOKEN.lastIndex = end;
    }
  }
  get top() { return this.brackets[this.brackets.length - 1]; }
  /** @returns {string} the rest of a sentence that begins with "its WGSL"; "" where nothing is wrong */ problem() {
    const tokens = [...this.tokens()];
    let before = "", blockEnded = false;
    for (const [token] of tokens) {
      if (DECLARING.has(before)) {
        if (this.sizes.has(token) || this.sizes.size === MOST_NAMES) {
          return `declares '${token}' twice, or over ${MOST_NAMES} names`;
        }
        this.sizes.set(token, -1);
      }
      before = token;
    }
    before = "";
    for (const [token, end] of tokens) {
      if (blockEnded && token !== "else") this._endItem();
      blockEnded = token === "}";
      const problem = this._count(token, before) || this._place(token, before, end);
      if (problem) return problem;
      if (this.size > MOST_SIZE) return `expands to more than ${MOST_SIZE} tokens and elements of arrays`;
      before = token;
    }
    return this.brackets.length > 1 ? "has brackets that do not end" : "";
  }
  /** Add a token to what is open. @param {string} token @param {string} before */ _count(token, before) {
    const known = this.sizes.get(token);
    if (DECLARING.has(before)) {
      this.open.push([token, this.brackets.length, this.size]);
    } else if (known !== undefined) {
      if (known < 0) return `uses '${token}' before the end of its declaration`;
      this.size += known;
    }
    this.size += 1;
    this.pending += 1;
    this.top.pending += 1;
    return this.pending > MOST_PENDING ? `has a statement or a chain of else of over ${MOST_PENDING} tokens` : "";
  }
  /** @param {string} token @param {string} before @param {number} end */ _place(token, before, end) {
    const isArray = ARRAY_TYPES.has(before);
    if (isArray && token !== "<") return "has an array without a type";
    if (token === "<" && /^[A-Za-z_]/.test(before)) return this._push(isArray ? "a" : "<");
    if (token === ">") return this._closeTemplate(end);
    if (token === ",") {
      this._endItem();
      this.top.argument = end;
      this.top.element = this.size - 1 - this.top.size;
      return "";
    }
    return "()[]{};".includes(token) ? this._bracket(token) : "";
  }
  /** @param {string} kind */ _push(kind) {
    if (this.brackets.length > MOST_DEPTH) return `has more than ${MOST_DEPTH} brackets in each other`;
    this.brackets.push({ kind, size: this.size, element: 0, argument: 0, pending: 0 });
    return "";
  }
  _pop() { this.pending -= this.brackets.pop()?.pending ?? 0; }
  _endItem() {
    this.pending -= this.top.pending;
    this.top.pending = 0;
  }
  /** @param {number} end */ _closeTemplate(end) {
    const { kind, argument, element, pending } = this.top;
    if (kind === "a" && argument) {
      const count = ARRAY_SIZE.exec(this.text.slice(argument, end - 1));
      if (!count) return "has an array whose size is no plain number";
      if (element * Number(count[1]) > MOST_ELEMENTS) return `has an array of more than ${MOST_ELEMENTS} elements`;
      this.size += element * Number(count[1]);
    }
    if (kind === "a" || kind === "<") { // maybe a comparison, which goes on
      this.brackets.pop();
      this.top.pending += pending;
    }
    return "";
  }
  /** Open or close a bracket, or end a statement. @param {string} token */ _bracket(token) {
    while (token !== "(" && token !== "[" && (this.top.kind === "<" || this.top.kind === "a")) {
      if (this.top.kind === "a") return "has an array whose type does not end";
      this._pop(); // it was a sign of a comparison
    }
    if ("([{".includes(token)) return this._push(token);
    if (token in OPENS) {
      if (this.top.kind !== OPENS[token]) return "has brackets that do not match";
      this._pop();
    }
    if (token === ";") this._endItem();
    while (";}".includes(token) && this.open[this.open.length - 1]?.[1] === this.brackets.length) {
      const [name, , size] = /** @type {[string, number, number]} */ (this.open.pop());
      this.sizes.set(name, this.size - size);
    }
    return "";
  }
}

/** @param {View} view @param {number} at */ function tagAt(view, at) {
  const letters = view.part(at, 8);
  const length = letters.indexOf(0) < 0 ? 8 : letters.indexOf(0);
  view.zeros(at + length, 8 - length);
  const tag = String.fromCharCode(...letters.subarray(0, length));
  if (!/^[\x21-\x7e]+$/.test(tag)) throw corrupt("a section's tag is no ASCII");
  return tag;
}

/**
 * Whether one of a pattern's words occurs in the name; a word between `\b` as a whole.
 * @param {string} pattern @param {string} name
 */
function matches(pattern, name) {
  if (!pattern) return true;
  return pattern.split("|").some((word) => {
    const edge = word.startsWith("\\b") && word.endsWith("\\b");
    const bare = edge ? word.slice(2, -2) : word;
    const escaped = bare.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    return new RegExp(edge ? `\\b${escaped}\\b` : escaped, "i").test(name);
  });
}

/** Reads one section `plan`, and refuses what does not fit together. */
class PlanReader {
  /** @param {CookedFile} file @param {View} view */ constructor(file, view) {
    this.file = file;
    this.view = view;
    this.sizes = [16, 24, 32].map((at) => view.u64(at));
    this.alignment = view.u32(40);
  }
  /** @returns {Plan} */ read() {
    const { view, file } = this;
    view.zeros(84, 4);
    view.zeros(8, 8);
    view.zeros(168, 24);
    const software = view.u32(80);
    if (software > 1) throw corrupt(`${view.where}: ${software} is no kind of driver`);
    for (const alignment of [this.alignment, view.u32(44)]) {
      if (alignment < 4 || alignment > 4096 || alignment & (alignment - 1)) {
        throw corrupt(`${view.where}: ${alignment} is no alignment`);
      }
    }
    for (const bytes of this.sizes) {
      if (bytes % 4 || bytes > 2 ** 48 || bytes > view.amount(56)) throw corrupt(`${view.where}: a buffer of ${bytes} bytes`);
    }
    const inputs = this._rows(128, 80, (at) => this._tensor(at));
    if (inputs.length > 64) throw corrupt(`${this.view.where}: ${inputs.length} inputs`);
    const { rows: paramsBytes, first: paramsAt } = view.table(152, 1);
    return {
      profile: file.text(view, 0), pieces: this._pieces(), sizes: this.sizes,
      needs: this._needs(), subgroup: view.u32(76), software: software === 1,
      flops: view.f64(88), bytes: view.f64(96),
      steps: this._steps(paramsBytes),
      inputs,
      outputs: this._rows(136, 80, (at) => this._tensor(at)),
      updates: this._rows(144, 48, (at) => this._update(at)),
      params: view.part(paramsAt, paramsBytes),
    };
  }
  /** @returns {Piece[]} */ _pieces() {
    const { view } = this, { bytes: there } = this.file.table.get("values")?.[0] ?? { bytes: 0 };
    let before = 0, end = 0;
    return this._rows(160, 160, (at) => {
      const [space, stored, becomes, rank] = [0, 4, 8, 12].map((field) => view.u32(at + field));
      const offset = view.u64(at + 16), bytes = view.u64(at + 24), source = view.u64(at + 32);
      const none = view.u32(at + 40) === NONE && view.u32(at + 44) === NONE;
      const matrix = none ? null : view.u64(at + 40);
      const extents = [48, 52, 56, 60].map((field) => view.u32(at + field));
      if (!rank || rank > 8) throw corrupt(`${view.where}: a constant of ${rank} dimensions`);
      const dims = Array.from({ length: rank }, (_, i) => {
        const [extent, axis, step] = [64, 68, 72].map((field) => view.u32(at + field + 12 * i));
        return { extent, axis, step };
      });
      view.zeros(at + 64 + 12 * rank, 12 * (8 - rank));
      // the finer dimensions of an axis fill the step of each: no place is left out
      const fill = dims.every(({ extent, axis, step }) =>
        extent && axis < 4 && step === size(dims.filter((d) => d.axis === axis && d.step < step).map((d) => d.extent))
      );
      // all of the source is there, so that it is no larger
      const ends = matrix === null ? extents : [extents[0], extents[1], 36, extents[3]];
      const whole = ends.every((end, a) => end <= size(dims.filter((d) => d.axis === a).map((d) => d.extent)));
      const count = size(dims.map((d) => d.extent)), width = becomes ? 4 : STORED_BYTES[stored];
      const windows = matrix === null || (width === 4 && becomes !== 2 && extents[2] === 9 && extents[3] === 1 &&
        matrix % 16 === 0 && matrix + 144 <= there && dims.every(({ axis }) => axis < 3));
      const fits = stored < 7 && becomes < 3 && (becomes === 0) === (stored < 3) && space > 0 && fill && whole && windows &&
        count <= 2 ** 48 && size(extents) <= 2 ** 48 && roundUp(count * width, 4) === bytes && offset % 4 === 0 &&
        source % 16 === 0 && source + size(extents) * STORED_BYTES[stored] <= there;
      if (!fits || space < before || (space === before && offset < end)) {
        throw corrupt(`${view.where}: a constant of ${bytes} bytes at ${offset} does not fit its source`);
      }
      [before, end] = [space, offset + bytes];
      return this._inside({ space, offset, bytes, stored, becomes, source, matrix, extents, dims, count });
    });
  }
  /** @template T @param {number} at @param {number} width @param {(at: number) => T} read @returns {T[]} */
  _rows(at, width, read) {
    const { rows, first } = this.view.table(at, width);
    return Array.from({ length: rows }, (_, i) => read(first + width * i));
  }
  /** @returns {Need[]} */ _needs() {
    const { view } = this;
    /** @param {string} at @param {number} wanted */
    const atLeast = (at, wanted) => ({ at, wanted, atMost: false, what: "at least" });
    /** @param {string} at @param {number} wanted */
    const atMost = (at, wanted) => ({ at, wanted, atMost: true, what: "at most" });
    return [
      atMost("minStorageBufferOffsetAlignment", this.alignment),
      atMost("minUniformBufferOffsetAlignment", view.u32(44)),
      atLeast("maxStorageBufferBindingSize", view.amount(48)),
      atLeast("maxBufferSize", Math.max(view.amount(56), ...this.sizes)),
      atLeast("maxComputeInvocationsPerWorkgroup", view.u32(64)),
      atLeast("maxComputeWorkgroupStorageSize", view.u32(68)),
      atLeast("maxStorageBuffersPerShaderStage", view.u32(72)),
    ];
  }
  /** @param {number} paramsBytes @returns {Step[]} */ _steps(paramsBytes) {
    const { view, file } = this;
    const bindings = this._rows(120, 24, (at) => this._binding(at));
    if (bindings.some(({ bytes }) => bytes > view.amount(48))) throw corrupt(`${view.where}: a binding that is too large`);
    const paramsAt = view.u32(156), unit = view.u32(44);
    /** @type {Map<number, number>} parameter blocks */ const blocks = new Map();
    let end = 0, next = 0;
    const steps = this._rows(112, 96, (at) => {
      const kernel = view.u32(at), groups = view.u32(at + 4);
      const first = view.u32(at + 8), count = view.u32(at + 12), writes = view.u32(at + 16);
      const params = view.u32(at + 20), bytes = view.u32(at + 24);
      const title = file.text(view, at + 40);
      const known = file.kernels[kernel];
      if (params === roundUp(end, unit) && params + bytes <= paramsBytes) {
        view.zeros(paramsAt + end, params - end);
        blocks.set(params, bytes);
        end = params + bytes;
      }
      // bindings lie one behind the other, and parameters are a block of their own or one before
      const fits = known && groups >= 1 && groups <= 65535 ** 2 && count === known.tensors && writes >= 1 &&
        writes <= count && count <= view.u32(72) && (!(known.flags & 2) || view.u32(76) > 0) && first === next &&
        first + count <= bindings.length && bytes === known.paramsBytes && blocks.get(params) === bytes;
      next += count;
      view.zeros(at + 88, 8);
      if (!fits) throw corrupt(`${view.where}: step '${title}' does not fit its kernel`);
      return {
        kernel, groups, writes, params, paramsBytes: bytes, title,
        bindings: bindings.slice(first, first + count),
        line: view.u32(at + 28), op: file.text(view, at + 32), key: file.text(view, at + 48),
        file: file.text(view, at + 56), flops: view.f64(at + 64), nbytes: view.f64(at + 72),
      };
    });
    if (next !== bindings.length || end !== paramsBytes) {
      throw corrupt(`${view.where}: it has bindings or parameters that no step has`);
    }
    return steps;
  }
  /** @param {number} at @returns {[Range, Range]} from and to */ _update(at) {
    const from = this._binding(at), to = this._binding(at + 24);
    if (from.space === to.space || to.space === 1) throw corrupt(`${this.view.where}: an update within one buffer`);
    return [from, to];
  }
  /** @param {number} at @returns {Range} */ _binding(at) {
    const space = this.view.u32(at), offset = this.view.u64(at + 8);
    const bytes = this.view.u64(at + 16);
    this.view.zeros(at + 4, 4);
    if (offset % this.alignment || bytes % 4 || bytes < 4) {
      throw corrupt(`${this.view.where}: a binding of ${bytes} bytes at ${offset}`);
    }
    return this._inside({ space, offset, bytes });
  }
  /** @template {Range} R @param {R} range @returns {R} */ _inside(range) {
    const whole = this.sizes[range.space];
    if (range.space > 2 || range.offset + range.bytes > whole) {
      throw corrupt(
        `${this.view.where}: ${range.bytes} bytes at ${range.offset} lie outside of the ` +
          `${SPACES[range.space] ?? "unknown space"}'s ${whole ?? 0}`,
      );
    }
    return range;
  }
  /** @param {number} at @returns {TensorPlace} */ _tensor(at) {
    const { view } = this;
    const name = this.file.text(view, at);
    const type = TYPES[view.u32(at + 8)], layout = LAYOUTS[view.u32(at + 12)];
    const shape = view.shape(at + 16);
    view.zeros(at + 72, 8);
    if (!type || !layout || (layout !== "plain" && (shape.length < 3 || type !== "scalar"))) {
      throw corrupt(`${view.where}: '${name}' is a tensor of no known kind`);
    }
    const elements = size(shape), bytes = view.u64(at + 64);
    const wanted = elements ? storedBytes(shape, layout) : 0;
    const offset = view.u64(at + 56);
    if (bytes !== wanted || offset % this.alignment) {
      throw corrupt(`${view.where}: '${name}' [${shape}] takes ${wanted} bytes, not ${bytes}`);
    }
    const space = view.u32(at + 52);
    this._inside({ space, offset, bytes: roundUp(bytes, 16) });
    return { name, type, layout, shape, elements, space, offset, bytes };
  }
}

// ------------------------------------------------------------------------------------ constants
/** of numbers by how they are stored: bits, then int8 to uint16 */ const STORED_BYTES = [1, 2, 4, 1, 1, 2, 2];
const STORED_ARRAYS = [Uint8Array, Uint16Array, Uint32Array, Int8Array, Uint8Array, Int16Array, Uint16Array];

/**
 * Elements [first, first + count) of a constant as they are uploaded: docs/cooked.md has the rule.
 * @param {View} values @param {Piece} piece @param {number} first @param {number} count
 */
export function numbersOf(values, piece, first, count) {
  const { stored, becomes, extents, dims, matrix } = piece;
  const part = values.part(piece.source, size(extents) * STORED_BYTES[stored]);
  const Source = matrix !== null && !becomes ? Float32Array : STORED_ARRAYS[stored];
  const source = new Source(part.buffer, part.byteOffset, size(extents));
  const Result = becomes === 1 || matrix !== null ? Float32Array : becomes === 2 ? Int32Array : STORED_ARRAYS[stored];
  const found = new Result(count), ends = [...extents], at = [0, 0, 0, 0];
  let transformed = (/** @type {number} */ _window, /** @type {number} */ _point) => 0;
  if (matrix !== null) {
    transformed = pointsOf(source, new Float64Array(values.part(matrix, 144).slice().buffer));
    ends[2] = 36;
  }
  const index = dims.map(() => 0);
  for (let i = dims.length - 1, rest = first; i >= 0; rest = Math.floor(rest / dims[i--].extent)) {
    index[i] = rest % dims[i].extent;
    at[dims[i].axis] += index[i] * dims[i].step;
  }
  for (let n = 0; n < count; n++) {
    const row = at[0] * ends[1] + at[1];
    if (at[0] < ends[0] && at[1] < ends[1] && at[2] < ends[2] && at[3] < ends[3]) {
      found[n] = matrix === null ? source[(row * ends[2] + at[2]) * ends[3] + at[3]] : transformed(row, at[2]);
    }
    for (let i = dims.length - 1; i >= 0; i--) {
      const { extent, axis, step } = dims[i];
      at[axis] += step;
      if (++index[i] < extent) break;
      at[axis] -= extent * step;
      index[i] = 0;
    }
  }
  return new Uint8Array(found.buffer);
}

/**
 * matrix * window * transposed matrix at a point, in doubles, terms in this order.
 * @param {ArrayLike<number>} v @param {Float64Array} g @returns {(window: number, point: number) => number}
 */
const pointsOf = (v, g) => (window, point) => {
  const y = 3 * Math.floor(point / 6), x = 3 * (point % 6), w = 9 * window;
  const a = g[y] * v[w] + g[y + 1] * v[w + 3] + g[y + 2] * v[w + 6];
  const b = g[y] * v[w + 1] + g[y + 1] * v[w + 4] + g[y + 2] * v[w + 7];
  const c = g[y] * v[w + 2] + g[y + 1] * v[w + 5] + g[y + 2] * v[w + 8];
  return a * g[x] + b * g[x + 1] + c * g[x + 2];
};

// -------------------------------------------------------------------------------------- layouts
/** @param {number[]} shape @param {Layout} layout @returns {number} */ function storedBytes(shape, layout) {
  if (layout === "plain") return 4 * size(shape);
  const [batch, channels, ...spatial] = shape;
  return batch * Math.ceil(channels / 4) * size(spatial) * (layout === "c4h" ? 8 : 16);
}

/** @param {TensorPlace} place each element's index in blocks of four channels */
function* blocked({ shape: [batch, channels, ...spatial] }) {
  const area = size(spatial), blocks = Math.ceil(channels / 4);
  for (let n = 0, plain = 0; n < batch; n++) {
    for (let c = 0; c < channels; c++) {
      const base = (n * blocks + (c >> 2)) * area * 4 + (c & 3);
      for (let i = 0; i < area; i++) yield [plain++, base + 4 * i];
    }
  }
}

/** @param {Layout} layout @returns {any} arrays of the numbers that a blocked tensor has */
function blockedArray(layout) {
  const found = layout === "c4" ? Float32Array : /** @type {any} */ (globalThis).Float16Array;
  if (!found) throw new CmlError("StaleArtifact", "this browser has no Float16Array: cook without --half");
  return found;
}

/** The tensor as it lies on the device. @param {TensorPlace} place @param {Numbers} values @returns {ArrayBuffer} */
function toDevice(place, values) {
  if (place.layout === "plain") return /** @type {ArrayBuffer} */ (values.slice().buffer);
  const Stored = blockedArray(place.layout);
  const found = new Stored(place.bytes / Stored.BYTES_PER_ELEMENT);
  for (const [from, to] of blocked(place)) found[to] = values[from];
  return found.buffer;
}

/** Inverse of {@link toDevice}. @param {TensorPlace} place @param {ArrayBuffer} stored @returns {Numbers} */
function fromDevice(place, stored) {
  if (place.layout === "plain") return new ARRAYS[place.type](stored);
  const numbers = new (blockedArray(place.layout))(stored);
  const found = new Float32Array(place.elements);
  for (const [to, from] of blocked(place)) found[to] = numbers[from];
  return found;
}

// ------------------------------------------------------------------------------------- planning
// The same decisions as in scheduler/planning/, which says why they are as they are.

const LEAST_COST = 1e-9;

/** What a device is believed to do before anything was measured on it: a roofline. */
export class FirstGuess {
  /** @param {number} flops @param {number} bytes @param {number} launch @param {Record<string, number>} kernels */
  constructor(flops = 2e7, bytes = 4e6, launch = 0.004, kernels = {}) {
    this.flopsPerMs = Math.max(flops, LEAST_COST);
    this.bytesPerMs = Math.max(bytes, LEAST_COST);
    this.launchMs = launch;
    this.kernels = new Map(Object.entries(kernels));
  }
  /** @param {StepCost} step @param {number} count */ workMs(step, count) {
    const work = Math.max(step.flops / this.flopsPerMs, step.nbytes / this.bytesPerMs);
    return count * work * this._factor(step.key);
  }
  /** @param {string} key */ _factor(key) {
    const variant = key.split(" ", 2)[1] ?? "";
    const dash = variant.lastIndexOf("-");
    return this.kernels.get(variant) ?? this.kernels.get(variant.slice(0, Math.max(dash, 0))) ?? 1;
  }
}

const MEMORY = 48, GUESSED_SAMPLES = 4, TELLING_LAUNCHES = 8;
const MOST_UNKNOWN = Math.log(100), CLIP = Math.log(2.5), CLIP_AFTER = 4;
const USUAL = 3, LITTLE = 0.1, SOME = 0.2, SETTLED = 12, DRIFT_WEIGHT = 1 / 32, COMMON = 0.5;
const KEPT = 256;
/** @param {number} value @param {number} most */
const clipped = (value, most) => Math.max(-most, Math.min(most, value));
/** Numbers of workgroups within half an octave are learned together. @param {number} count */
export const bucketOf = (count) => Math.round(2 * Math.log2(count));

/** The time of about so many workgroups, as logarithms. */
export class Point {
  /** @param {number} logCount @param {number} logMs @param {number} samples @param {number} spread */
  constructor(logCount, logMs, samples = 1, spread = 0) {
    this.logCount = logCount;
    this.logMs = logMs;
    this.samples = samples;
    this.spread = spread;
  }
  /** @param {number} logCount @param {number} logMs @returns {number} by how much it moved */ learn(logCount, logMs) {
    this.samples += 1;
    const weight = 1 / Math.min(this.samples, MEMORY);
    let error = logMs - (logCount - this.logCount) - this.logMs;
    if (this.samples > CLIP_AFTER) error = clipped(error, CLIP);
    const believed = this.samples > SETTLED ? clipped(error, SOME + USUAL * this.spread) : error;
    this.logMs += weight * believed;
    this.spread += weight * (Math.abs(error) - this.spread);
    return weight * believed;
  }
}

/** Time over number of workgroups of one step key. */
export class Curve {
  /** @type {Map<number, Point>} */ points = new Map();
  /** @type {Map<number, number>} */ _known = new Map();
  /** @type {Point[]} */ _order = [];
  samples = 0;
  /** @param {number} bucket @param {Point} point */ add(bucket, point) {
    this.points.set(bucket, point);
    this._order = [...this.points.values()].sort((a, b) => a.logCount - b.logCount);
    this.samples = sum(this._order.map((p) => p.samples));
  }
  /** @param {number} count @returns {number | null} the logarithm of the milliseconds */ predict(count) {
    if (!this._order.length) return null;
    let found = this._known.get(count);
    if (found === undefined) {
      if (this._known.size >= KEPT) this._known.clear();
      found = this._between(Math.log(count));
      this._known.set(count, found);
    }
    return found;
  }
  /** @param {number} x */ _between(x) {
    const order = this._order;
    let first = 0;
    while (first < order.length && order[first].logCount < x) first++;
    let last = first;
    while (last < order.length && order[last].logCount <= x) last++;
    last--;
    if (first === order.length || last < 0) {
      const nearest = order[Math.min(first, order.length - 1)];
      return nearest.logMs + x - nearest.logCount;
    }
    const above = order[first], below = order[last];
    const width = above.logCount - below.logCount;
    const share = width ? (x - below.logCount) / width : 0;
    return below.logMs + share * (above.logMs - below.logMs);
  }
  /** @param {number} count @param {number} ms */ learn(count, ms) {
    this._known.clear();
    const x = Math.log(count), y = Math.log(ms);
    const point = this.points.get(bucketOf(count));
    if (!point) {
      this.add(bucketOf(count), new Point(x, y));
      return;
    }
    const moved = point.learn(x, y);
    this.samples += 1;
    for (const other of this._order) if (other !== point) other.logMs += COMMON * clipped(moved, CLIP);
  }
}

/** Sorted numbers. */
class Sorted {
  /** @type {number[]} */ values = [];
  /** @param {number} value @param {boolean} after whether behind those that are equal */ place(value, after) {
    let low = 0, high = this.values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const before = after ? this.values[middle] <= value : this.values[middle] < value;
      if (before) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  /** @param {number} value */ add(value) { this.values.splice(this.place(value, true), 0, value); }
  /** @param {number} value */ remove(value) { this.values.splice(this.place(value, false), 1); }
}

const AIMED_SHARE = 0.8, LEAST_AIM = 0.125, SMALL = 0.25, ENOUGH = 8, WINDOW = 1200, PRIOR = 1.3;

/** How much of a budget may be planned for, so that few frames exceed it. */
class TailMargin {
  /** @type {[number, number, boolean][]} */ frames = [];
  _sorted = new Sorted();
  /** @param {number} share */ constructor(share) {
    this.share = share;
  }
  /** @param {number} budgetMs */ aimMs(budgetMs) {
    if (this._sorted.values.length < ENOUGH) return budgetMs / PRIOR;
    const half = 0.5 * Math.max(0, this._quantile());
    const aim = (Math.sqrt(half * half + budgetMs) - half) ** 2;
    return Math.max(aim, LEAST_AIM * budgetMs);
  }
  _quantile() {
    const sorted = this._sorted.values, count = sorted.length;
    const aimed = AIMED_SHARE * this.share;
    const rank = Math.ceil((1 - aimed) * (count + 1)) - 1;
    if (rank < count) return sorted[rank];
    const reach = 0.5 * (sorted[count - 1] - sorted[count >> 1]) * (1 - count * aimed);
    return sorted[count - 1] + Math.max(0, reach);
  }
  /** @param {number} predictedMs @param {number} measuredMs @param {number} budgetMs */
  learn(predictedMs, measuredMs, budgetMs) {
    const lifted = Math.max(0, SMALL * budgetMs - predictedMs);
    const hopeless = measuredMs - predictedMs > budgetMs;
    this.remember(predictedMs + lifted, measuredMs + lifted, hopeless);
  }
  /** @param {number} predictedMs @param {number} measuredMs @param {boolean} hopeless */
  remember(predictedMs, measuredMs, hopeless) {
    if (this.frames.length === WINDOW) {
      const [was, took, late] = /** @type {[number, number, boolean]} */ (this.frames.shift());
      this._sorted.remove(excess(was, took, late));
    }
    this.frames.push([predictedMs, measuredMs, hopeless]);
    this._sorted.add(excess(predictedMs, measuredMs, hopeless));
  }
}

/** @param {number} predicted @param {number} measured @param {boolean} hopeless */
const excess = (predicted, measured, hopeless) => hopeless ? 0 : (measured - predicted) / Math.sqrt(predicted);

/** Predicts and learns the time of slices: a pure function of what it was told. */
export class CostModel {
  /** @param {number} share @param {FirstGuess} guess */ constructor(share = 0.01, guess = new FirstGuess()) {
    this.guess = guess;
    /** @type {Map<string, Curve>} */ this.curves = new Map();
    this.unknown = 0;
    this.unknownSamples = guess.kernels.size ? GUESSED_SAMPLES : 0;
    this.logDrift = 0;
    this.error = CLIP;
    this.tail = new TailMargin(share);
  }
  /** The median time of so many workgroups. @param {StepCost} step @param {number} count */
  predictMs(step, count) {
    if (count <= 0) return 0;
    const known = this.curves.get(step.key)?.predict(count) ?? null;
    if (known !== null) return Math.exp(known + this.logDrift);
    const work = this.guess.workMs(step, count);
    return this.guess.launchMs + work * Math.exp(this.unknown + this.logDrift);
  }
  /**
   * The largest number of workgroups, at most `limit`, predicted to take `ms`.
   * @param {StepCost} step @param {number} limit @param {number} ms
   */
  groupsWithin(step, limit, ms) {
    if (limit <= 0 || ms <= 0 || this.predictMs(step, 1) > ms) return 0;
    if (this.predictMs(step, limit) <= ms) return limit;
    let low = 1, high = limit;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (this.predictMs(step, middle) <= ms) low = middle;
      else high = middle;
    }
    return low;
  }
  /** The slices together took `ms`. @param {[StepCost, number][]} all @param {number} ms */
  learn(all, ms) {
    const parts = all.filter(([, count]) => count > 0);
    const predicted = parts.map(([step, count]) => this.predictMs(step, count));
    const total = sum(predicted);
    if (!(ms > 0 && total > 0 && Number.isFinite(ms))) return;
    const ratio = ms / total;
    const knows = ([step, count] = parts[0]) => this.curves.get(step.key)?.points.has(bucketOf(count)) ?? false;
    if (parts.every((part) => knows(part))) {
      const error = clipped(Math.log(ratio), CLIP);
      this.logDrift += DRIFT_WEIGHT * clipped(error, LITTLE + USUAL * this.error);
      this.error += DRIFT_WEIGHT * (Math.abs(error) - this.error);
    }
    parts.forEach(([step, count], i) => {
      let curve = this.curves.get(step.key);
      if (!curve) this.curves.set(step.key, curve = new Curve());
      if (!curve.points.size && predicted[i] > TELLING_LAUNCHES * this.guess.launchMs) this._learnUnknown(ratio);
      curve.learn(count, predicted[i] * ratio / this.drift);
    });
  }
  /** @param {number} ratio */ _learnUnknown(ratio) {
    this.unknownSamples += 1;
    this.unknown += Math.log(ratio) / Math.min(this.unknownSamples, MEMORY);
    this.unknown = clipped(this.unknown, MOST_UNKNOWN);
  }
  /** @param {number} predictedMs @param {number} measuredMs @param {number} budgetMs */
  learnFrame(predictedMs, measuredMs, budgetMs) {
    if (predictedMs > 0 && measuredMs > 0 && Number.isFinite(predictedMs + measuredMs)) {
      this.tail.learn(predictedMs, measuredMs, budgetMs);
    }
  }
  /** How much slower the whole device is now than when its steps were learned. */
  get drift() { return Math.exp(this.logDrift); }
  /** How many predicted milliseconds to fill a budget with. @param {number} budgetMs */
  aimMs(budgetMs) { return this.tail.aimMs(budgetMs); }
  /** How many measurements there are of a step key. @param {string} key */
  samples(key) { return this.curves.get(key)?.samples ?? 0; }
}

/** @param {unknown} ms */ const isMs = (ms) => typeof ms === "number" && Number.isFinite(ms) && ms >= 0;
const STARVED_MS = 500, STICKINESS_MS = 20;

/** @typedef {(jobs: Job[], nowMs: number, rate: number) => Job[]} Policy */

/** @param {Job} a @param {Job} b */
const byShare = (a, b) => Number(a.idle) - Number(b.idle) || a.virtualMs - b.virtualMs || b.priority - a.priority ||
  a.number - b.number;

/** @param {Job} job @param {number} nowMs @param {number} rate */
const laxityMs = (job, nowMs, rate) => job.deadlineAtMs === null ? Infinity
    : job.deadlineAtMs - nowMs - job.remainingMs / Math.max(rate, 1e-9);

/** The job with the least GPU time over priority first; deadlines do not count. @type {Policy} */
export const fairShare = (jobs) => [...jobs].sort(byShare);

/** The highest priority first, then the oldest; the low ones may starve. @type {Policy} */
export const byPriority = (jobs) => [...jobs].sort((a, b) => b.priority - a.priority || a.number - b.number);

/**
 * Jobs whose deadline can still be held, the one with the least time to spare first; then all others by fair share.
 * @type {Policy}
 */
export const leastLaxity = (jobs, nowMs, rate) => {
  /** @type {Map<Job, number>} */ const laxity = new Map();
  for (const job of jobs) {
    if (job.deadlineAtMs === null || job.idle) continue;
    const spare = laxityMs(job, nowMs, rate);
    if (spare >= 0) laxity.set(job, spare - (job.group || job.step ? STICKINESS_MS : 0));
  }
  const urgent = [...laxity].sort(
    ([a, x], [b, y]) => x - y || b.priority - a.priority || a.number - b.number,
  ).map(([job]) => job);
  const ordered = [...urgent, ...fairShare(jobs.filter((job) => !laxity.has(job)), nowMs, rate)];
  const starved = ordered.filter((job) => nowMs - job.lastServedMs > STARVED_MS && !job.idle);
  if (!starved.length) return ordered;
  const first = starved.reduce((a, b) => (b.lastServedMs - a.lastServedMs || b.number - a.number) < 0 ? b : a
  );
  return [first, ...ordered.filter((job) => job !== first)];
};

/** @type {Record<string, Policy>} */
export const POLICIES = { least_laxity: leastLaxity, fair_share: fairShare, by_priority: byPriority };

/** @typedef {{job: Job, step: number, first: number, count: number, predictedMs: number}} Slice */
/**
 * @typedef {"budget" | "nothing to do" | "waiting for GPU" | "preparing" | "all waiting" |
 *   "frame not ended" | "device error"} Reason
 */
/** @typedef {{slices: Slice[], starts: Job[], reason: Reason, byBudget: boolean}} FramePlan */
/**
 * What is known before a frame is filled.
 * @typedef {{nowMs: number, budgetMs: number, aimMs: number, rate: number, granule: number,
 *   gpuBehind: boolean, otherwise: Reason, policy: Policy, jobs: Job[], costs: CostModel}} FrameState
 */
/** @typedef {(state: FrameState) => FramePlan} Planner */

const MIN_SHARE = 0.02, PROBE_SHARE = 0.25;

/** The decision: slices in the policy's order until the aim is reached. @type {Planner} */
export function planFrame(state) {
  /** @type {FramePlan} */ const plan = { slices: [], starts: [], reason: state.otherwise, byBudget: true };
  if (state.budgetMs <= 0) return { ...plan, reason: "budget" };
  if (state.gpuBehind) return { ...plan, reason: "waiting for GPU" };
  /** @type {Set<unknown>} */ const begun = new Set();
  let left = state.aimMs;
  for (const job of state.policy(state.jobs, state.nowMs, state.rate)) {
    const queued = job.state === "queued", exclusive = exclusivity(job.network);
    if (queued && begun.has(exclusive)) continue;
    const found = slicesOf(state, job, left, !plan.slices.length);
    left = found.left;
    plan.slices.push(...found.parts);
    if (queued && (found.parts.length || found.ended)) {
      plan.starts.push(job);
      begun.add(exclusive);
    }
    if (!found.ended) return { ...plan, reason: "budget" };
  }
  return plan;
}

/** @param {FrameState} state @param {Job} job @param {number} left @param {boolean} isFirst */
function slicesOf(state, job, left, isFirst) {
  let { step, group } = job;
  /** @type {Slice[]} */ const parts = [];
  while (step < job.costs.length) {
    const cost = job.costs[step], alone = isFirst && !parts.length;
    if (left <= (alone ? 0 : MIN_SHARE * state.aimMs)) break;
    const probing = state.costs.samples(cost.key) === 0;
    const within = probing ? left * PROBE_SHARE : left;
    const count = countOf(state, cost, cost.groups - group, within, alone);
    if (!count) break;
    const predictedMs = state.costs.predictMs(cost, count);
    parts.push({ job, step, first: group, count, predictedMs });
    left -= predictedMs;
    group += count;
    if (group === cost.groups) [step, group] = [step + 1, 0];
    if (probing) break;
  }
  return { parts, left, ended: step >= job.costs.length };
}

/**
 * @param {FrameState} state @param {StepCost} cost @param {number} limit @param {number} ms
 * @param {boolean} atLeastOne
 */
function countOf(state, cost, limit, ms, atLeastOne) {
  let count = state.costs.groupsWithin(cost, limit, ms);
  if (state.granule > 1 && state.granule < count && count < limit) count -= count % state.granule;
  return !count && atLeastOne ? Math.min(limit, state.granule) : count;
}

// ------------------------------------------------------------------------------------- feedback
/** @typedef {{frame: number, group: number, ms: number}} Timing */
/**
 * A part of a frame; `measuredMs` comes with the frame's.
 * @typedef {{job: number, step: number, op: string, title: string, first: number, count: number,
 *   predictedMs: number, measuredMs: number | null}} SliceReport
 */
/**
 * What a frame ran and why it stopped; `measuredMs` comes some frames later.
 * @typedef {{frame: number, nowMs: number, budgetMs: number, aimMs: number, reason: Reason,
 *   slices: SliceReport[], finished: number[], predictedMs: number, measuredMs: number | null,
 *   planned: boolean, cpuMs: number, encodeMs: number}} FrameReport
 */

const TELLING_SHARE = 0.25, KNOWN = 6, APART_EVERY = 16;
const LATE = 1.15, GROWTH = 1.25, DECAY = 0.99, MOST_BACK_OFF = 16, REST_EVERY = 48, LONGEST = 60;

/** @typedef {{report: FrameReport, groups: [StepCost, number][][], ms: Map<number, number>}} InFlight */

/** Waits for the timings of frames and teaches them to a cost model (scheduler/feedback.py). */
class Feedback {
  /** @type {InFlight[]} */ _awaited = [];
  /** @type {InFlight | null} */ _encoded = null;
  /** @type {number | null} */ endedMs = null;
  backOff = 1; intervals = 0; without = 0; sinceRest = REST_EVERY; restDue = false;
  /** @param {boolean} wallClock @param {number} frameMs */ constructor(wallClock, frameMs) {
    this._wallClock = wallClock;
    this._frameMs = this.usualMs = this.intervalMs = frameMs;
  }
  /** @param {FrameReport} report @param {[StepCost, number][][]} groups */
  encoded(report, groups) { this._encoded = { report, groups, ms: new Map() }; }
  abandoned() { this._encoded = null; }
  /** @param {Timing[]} timings @param {number} nowMs @param {CostModel} model */ ended(timings, nowMs, model) {
    if (this._encoded) this._awaited.push(this._encoded);
    this._encoded = null;
    this._heedInterval(nowMs, model);
    if (this._wallClock) {
      this._awaited = [];
      return [];
    }
    let newest = -1;
    for (const { frame, group, ms } of timings) {
      this._awaited.find((entry) => entry.report.frame === frame)?.ms.set(group, ms);
      newest = Math.max(newest, frame);
    }
    /** @type {FrameReport[]} */ const done = [];
    while (this._awaited.length) {
      const entry = this._awaited[0];
      if (entry.report.frame > newest && entry.groups.length) break;
      this._awaited.shift();
      if (entry.groups.length && entry.ms.size === entry.groups.length) done.push(learnFrame(entry, model));
    }
    return done;
  }
  /** @param {number} nowMs @param {CostModel} model */ _heedInterval(nowMs, model) {
    const before = this.endedMs, parts = this._awaited.at(-1)?.groups.flat() ?? [];
    this.endedMs = nowMs;
    if (before === null) return;
    const interval = Math.min(nowMs - before, LONGEST * this._frameMs);
    this.intervalMs += Math.max(0.1, 1 / ++this.intervals) * (interval - this.intervalMs);
    if (!this._wallClock || this._isLate(interval, parts.length > 0)) return;
    // what was guessed of steps is believed where a frame with them was in time
    const guessed = parts.filter(([step]) => !model.samples(step.key));
    model.learn(guessed, sum(guessed.map(([step, count]) => model.predictMs(step, count))));
  }
  /** Whether a frame was late, perhaps for its networks' sake. @param {number} interval @param {boolean} some */
  _isLate(interval, some) {
    const late = interval > LATE * this.usualMs, most = this.backOff === MOST_BACK_OFF;
    this.without = some ? 0 : this.without + 1;
    this.sinceRest = this.without > 1 ? 0 : this.sinceRest + 1;
    if (this.without > 1) this.restDue = false;
    const weight = this.without === 2 ? 1 : this.without || (late && most) ? 0.25 : interval < this.usualMs ? 0.1 : 0;
    this.usualMs += weight * (Math.max(interval, this._frameMs) - this.usualMs);
    if (late && some && this.sinceRest > REST_EVERY) this.restDue = true;
    else if (late && some) this.backOff = Math.min(MOST_BACK_OFF, this.backOff * GROWTH);
    else this.backOff = 1 + (this.backOff - 1) * DECAY ** (interval / this._frameMs);
    return late;
  }
}

/** @param {InFlight} entry @param {CostModel} model */ function learnFrame({ report, groups, ms }, model) {
  report.measuredMs = sum([...ms.values()]);
  const known = report.planned && groups.every((parts) => allKnown(parts.map(([s]) => s), model));
  if (known && report.predictedMs > TELLING_SHARE * report.aimMs) {
    model.learnFrame(report.predictedMs, report.measuredMs, report.budgetMs);
  }
  let first = 0;
  groups.forEach((parts, index) => {
    const took = /** @type {number} */ (ms.get(index));
    model.learn(parts, took);
    const slices = report.slices.slice(first, first + parts.length);
    const predicted = sum(slices.map((part) => part.predictedMs));
    for (const part of slices) part.measuredMs = took * (predicted ? part.predictedMs / predicted : 1 / slices.length);
    first += parts.length;
  });
  return report;
}

/** @param {StepCost[]} steps @param {CostModel} model */
const allKnown = (steps, model) => steps.every((step) => model.samples(step.key) >= KNOWN);

/**
 * The frame's slices as at most `limit` runs of neighbours, each of which is timed.
 * @param {Slice[]} chosen @param {number} limit @param {number} frame @param {CostModel} model
 */
function inGroups(chosen, limit, frame, model) {
  const together = frame % APART_EVERY !== 0 && allKnown(chosen.map(costOf), model);
  /** @type {Slice[][]} */ const parts = [];
  for (const part of chosen) {
    const last = parts.at(-1);
    if (together && last?.[0].job.network === part.job.network) last.push(part);
    else parts.push([part]);
  }
  return parts.length <= limit ? parts : balanced(chosen, limit);
}

/** @param {Slice} part */ const costOf = (part) => part.job.costs[part.step];
/** @param {Slice[]} chosen @param {number} limit */ function balanced(chosen, limit) {
  const target = sum(chosen.map((part) => part.predictedMs)) / limit;
  /** @type {Slice[][]} */ const groups = [[]];
  let filled = 0;
  for (const part of chosen) {
    if (groups[groups.length - 1].length && filled >= target && groups.length < limit) {
      groups.push([]);
      filled = 0;
    }
    groups[groups.length - 1].push(part);
    filled += part.predictedMs;
  }
  return groups;
}

// ----------------------------------------------------------------------------------------- jobs
/** What a job has as an input: numbers, a tensor on the GPU, or another job's output. */
/** @typedef {Numbers | number[] | GpuTensor | JobOutput} Input */

/** A tensor that a job will have made: give it as another job's input, which then waits for it. */
export class JobOutput {
  /** @param {Job} job @param {string} name */ constructor(job, name) {
    this.job = job;
    this.name = name;
  }
}

/**
 * What a scheduler asks of a network: {@link Network} is one on a device.
 * @typedef {{name: string, steps: StepCost[], ready: boolean, busy: boolean, exclusiveGroup?: string | null,
 *   loadTimesMs?: readonly number[], putInputs(encoder: GPUCommandEncoder, inputs: Record<string, any>): void,
 *   finish(encoder: GPUCommandEncoder): any}} Playable
 */

/** What only one running job has at a time. @param {Playable} network */
const exclusivity = (network) => network.exclusiveGroup ?? network;

/** One run of a network, spread over frames. */
export class Job {
  /** @type {"queued" | "running" | "done" | "cancelled" | "failed"} */ state = "queued";
  paused = false;
  error = "";
  step = 0;
  group = 0;
  virtualMs = 0;
  givenMs = 0;
  wantsRead = false;
  released = false;
  takers = 0;
  /** @type {any} its outputs on the device */ result = null;
  /**
   * @param {Scheduler} owner @param {number} number @param {Playable} network
   * @param {Record<string, any>} inputs
   * @param {{priority: number, nowMs: number, deadlineAtMs: number | null, name: string, slot: string | null}} how
   */
  constructor(owner, number, network, inputs, how) {
    this.owner = owner;
    this.number = number;
    this.network = network;
    this.inputs = inputs;
    this.costs = network.steps;
    this.name = how.name;
    this.slot = how.slot;
    this.priority = how.priority;
    this.idle = how.priority === 0;
    this.deadlineAtMs = how.deadlineAtMs;
    this.lastServedMs = how.nowMs;
  }
  get ended() { return this.state === "done" || this.state === "cancelled" || this.state === "failed"; }
  /** Predicted GPU time of what is left. */
  get remainingMs() { return this.owner.remainingMs(this); }
  /** Share of its work that has been encoded, 0 to 1, by predicted time. */
  get progress() {
    if (this.state === "done") return 1;
    const total = this.remainingMs + this.givenMs;
    return total > 0 ? this.givenMs / total : 0;
  }
  /** Milliseconds from now to its end if nothing else is submitted; 0 once ended. */
  get etaMs() { return this.owner.etaMs(this); }
  /** @type {Job[]} the jobs whose outputs it takes */
  get makers() { return Object.values(this.inputs).filter((v) => v instanceof JobOutput).map((v) => v.job); }
  /** The future tensor, as an input for another job. @param {string} name */
  output(name) { return new JobOutput(this, name); }
  /** The output on the GPU, without a readback. @param {string} name @returns {GpuTensor} */
  tensor(name) {
    this._needDone(name);
    return this.result.tensor(name);
  }
  /**
   * The output as numbers, or null until it has arrived: the copy goes with the next frame, and
   * arrives some frames later. Nothing waits.
   * @param {string} name @returns {Numbers | null}
   */
  read(name) {
    if (!this.ended) {
      this.wantsRead = true;
      return null;
    }
    this._needDone(name);
    if (!this.wantsRead) this.owner.reads.push(this);
    this.wantsRead = true;
    return this.result.read(name);
  }
  /** Stop at the next slice; nothing of it runs any more. */
  cancel() { this.owner.end(this, "cancelled"); }
  /** Keep its place and its memory, run nothing of it until {@link resume}. */
  pause() { this.paused = true; }
  resume() { this.paused = false; }
  /** Give its outputs' memory back, once nobody takes them any more. */
  release() {
    this.released = true;
    this.giveBack();
  }
  giveBack() {
    if (!this.released || this.takers || this.result === null) return;
    this.result.release();
    this.result = null;
  }
  letInputsGo() {
    for (const maker of this.makers) {
      maker.takers -= 1;
      maker.giveBack();
    }
    this.inputs = {};
  }
  /** @param {string} name */ _needDone(name) {
    if (this.state === "done" && this.result !== null && !this.released) return;
    const why = this.state === "done" ? "its outputs were released"
      : `it is ${this.state}${this.error ? `: ${this.error}` : ""}`;
    throw new CmlError("JobError", `job '${this.name}' has no output '${name}', ${why}`);
  }
}

/**
 * Networks within a budget of GPU milliseconds per frame. In every frame of the host's loop:
 * {@link encode}, the host's own submit, {@link endFrame}. None of them waits, builds a pipeline
 * or, in steady state, creates anything on the device.
 */
export class Scheduler {
  /** @type {Map<number, Job>} */ _jobs = new Map();
  /** @type {Map<number, Job>} */ _running = new Map();
  /** @type {[boolean, number][]} */ _left = [];
  /** @type {Job[]} */ _begun = [];
  /** @type {Job[]} */ reads = [];
  /** @type {[Job, Job["state"], number, number, number, number][] | null} */ _open = null;
  /** @type {Map<Playable, number[]>} */ _workLeft = new Map();
  /** @type {FrameReport | null} */ lastReport = null;
  /** @type {Planner} */ planner = planFrame;
  /** @type {number | null} what is planned for; null: what the margin leaves of the budget */ aimMs = null;
  /** the next frames run nothing */
  rests = false;
  frame = 0;
  _number = 0;
  _budgetMs = 0;
  _nowMs = -Infinity;
  _rate = 0;
  /**
   * @param {GPUDevice | Executor} device that the networks were loaded on
   * @param {{frameMs?: number, budgetMs?: number, overShare?: number, policy?: Policy,
   *   clock?: () => number, costModel?: CostModel, maxFramesInFlight?: number}} options
   *   `overShare`: the part of frames that may exceed the budget; the margin is chosen for it
   */
  constructor(device, options = {}) {
    this.frameMs = wantedMs("frameMs", options.frameMs ?? 1000 / 60);
    this.budgetMs = wantedMs("budgetMs", options.budgetMs ?? 4);
    const share = options.overShare ?? 0.01;
    if (!(share > 0 && share < 1)) throw refused(`overShare is ${share}: wanted between 0 and 1`);
    this.policy = options.policy ?? leastLaxity;
    this.clock = options.clock ?? (() => performance.now());
    this.maxFramesInFlight = options.maxFramesInFlight ?? 4;
    this.executor = "encodeGroups" in device ? device : Executor.on(device);
    this.guessing = !options.costModel;
    this.costModel = options.costModel ?? new CostModel(share);
    this.feedback = new Feedback(this.executor.clockSource === "wall clock", this.frameMs);
  }
  /** The jobs that have not ended, the oldest first. */
  get jobs() { return [...this._jobs.values()].sort((a, b) => a.number - b.number); }
  /** @param {number} ms @returns {[number, number]} the frame's budget, and what of it is planned for */ _allowed(ms) {
    if (isMs(ms)) this._budgetMs = ms;
    const usual = this.costModel.aimMs(this._budgetMs) / this.feedback.backOff;
    return [this._budgetMs, this.aimMs ?? usual];
  }
  _now() {
    const now = this.clock();
    if (now >= this._nowMs && now < Infinity) this._nowMs = now;
    return this._nowMs;
  }
  /**
   * Run the network on these inputs, in parts, as the budget allows. Numbers are copied now.
   * @param {Playable} network @param {Record<string, Input>} inputs
   * @param {{priority?: number, deadlineMs?: number, name?: string, slot?: string, number?: number, deadlineAtMs?:
   *   number | null}} options `priority`: its share against other jobs, 0 is only what all others leave; `slot`: a job
   *   that waits with the same slot is cancelled
   * @returns {Job}
   */
  submit(network, inputs, options = {}) {
    const nowMs = this._now(), { deadlineMs } = options;
    const deadlineAtMs = options.deadlineAtMs ??
      (deadlineMs === undefined ? null : nowMs + wantedMs("deadlineMs", deadlineMs));
    const priority = wantedMs("priority", options.priority ?? 1);
    const { name = network.name, slot = null, number = this._number } = options;
    const how = { priority, nowMs, deadlineAtMs, name, slot };
    const job = new Job(this, number, network, this.executor.accept(network, inputs), how);
    this._number = Math.max(this._number, number) + 1;
    for (const maker of job.makers) maker.takers += 1;
    if (this.guessing && network instanceof Network) {
      this.costModel = new CostModel(this.costModel.tail.share, network.guess);
      this.guessing = false;
    }
    network.loadTimesMs?.forEach((ms, i) => {
      const cost = network.steps[i];
      if (!this.costModel.samples(cost.key)) this.costModel.learn([[cost, cost.groups]], ms);
    });
    if (slot !== null) {
      for (const old of this.jobs) if (old.slot === slot && old.state === "queued") this.end(old, "cancelled");
      this._left = [];
    }
    this._add(job);
    return job;
  }
  /** A new job starts level with the others: it may not make up for its absence. @param {Job} job */
  _add(job) {
    const levels = this.jobs.filter((other) => other.idle === job.idle).map((o) => o.virtualMs);
    for (const [idle, level] of this._left) if (idle === job.idle) levels.push(level);
    job.virtualMs = levels.length ? Math.min(...levels) : 0;
    this._jobs.set(job.number, job);
  }
  /** @param {Job} job @param {"done" | "cancelled" | "failed"} state @param {string} error */
  end(job, state, error = "") {
    if (job.ended) return;
    const began = job.state === "running";
    job.state = state;
    job.error = error;
    this._jobs.delete(job.number);
    this._running.delete(job.number);
    this._left.push([job.idle, job.virtualMs]);
    if (began) job.network.busy = false;
    if (state !== "done") job.letInputsGo();
  }
  /** @param {Job} job */ etaMs(job) {
    if (job.ended) return 0;
    const mates = [...this.jobs.filter((other) => !other.paused && other !== job), job];
    const interval = Math.max(this.frameMs, this.feedback.intervalMs), rate = this._rate * this.frameMs / interval;
    let ahead = 0;
    for (const other of this.policy(mates, this._now(), rate)) {
      if (other === job) break;
      ahead += other.remainingMs;
    }
    return (ahead + job.remainingMs) / Math.max(rate, 1e-9) + interval;
  }
  /** @param {Job} job */ remainingMs(job) {
    if (job.ended || job.step >= job.costs.length) return 0;
    let sums = this._workLeft.get(job.network);
    if (!sums) {
      sums = [0];
      for (const cost of [...job.costs].reverse()) {
        sums.push(sums[sums.length - 1] + this.costModel.predictMs(cost, cost.groups));
      }
      this._workLeft.set(job.network, sums.reverse());
    }
    const current = job.costs[job.step];
    return this.costModel.predictMs(current, current.groups - job.group) + sums[job.step + 1];
  }
  // --- a frame
  /**
   * Append this frame's slices to the host's encoder. Nothing is appended until the frame before was ended.
   * @param {GPUCommandEncoder} encoder @param {number} budgetMs of this frame
   * @returns {FrameReport}
   */
  encode(encoder, budgetMs = this.budgetMs) {
    const start = performance.now(), nowMs = this._now();
    const [budget, aim] = this._allowed(budgetMs);
    /** @type {FrameReport} */ const report = {
      frame: this.frame, nowMs, budgetMs: budget, aimMs: this.rests || this.feedback.restDue ? 0 : aim, slices: [],
      reason: "frame not ended", finished: [], predictedMs: 0, measuredMs: null, planned: true,
      cpuMs: 0, encodeMs: 0,
    };
    if (this._open) return report;
    this._rate = aim / this.frameMs;
    this._workLeft.clear();
    this._left = [];
    this._open = [...this._running.values()].map(snapshot);
    const plan = this._begin(encoder, report);
    for (const part of plan.slices) this._apply(part, report);
    report.reason = plan.reason;
    report.planned = plan.byBudget;
    const model = this.costModel;
    const groups = inGroups(plan.slices, this.executor.maxGroups, this.frame, model);
    const encoding = performance.now();
    this._append(encoder, report, groups);
    this.feedback.encoded(report, groups.map((group) => group.map((part) => [costOf(part), part.count])));
    this.lastReport = report;
    const end = performance.now();
    report.encodeMs = end - encoding;
    report.cpuMs = end - start;
    return report;
  }
  /** Decide, and start the jobs that are to begin. @param {GPUCommandEncoder} encoder @param {FrameReport} report */
  _begin(encoder, report) {
    const { jobs, otherwise } = this._candidates();
    /** @type {FrameState} */ let state = {
      nowMs: report.nowMs, budgetMs: report.budgetMs, aimMs: report.aimMs, rate: this._rate,
      granule: this.executor.granule, otherwise, policy: this.policy, jobs, costs: this.costModel,
      gpuBehind: this.executor.framesInFlight >= this.maxFramesInFlight,
    };
    for (;;) {
      const plan = this.planner(state);
      const refusing = plan.starts.find((job) => !this._start(encoder, job));
      if (!refusing) return plan;
      const taken = refusing.ended ? null : exclusivity(refusing.network);
      const left = state.jobs.filter((job) =>
        job !== refusing && (job.state === "running" || exclusivity(job.network) !== taken)
      );
      state = { ...state, jobs: left };
    }
  }
  /** Jobs that could run now: not paused, inputs there, network ready and not taken. */
  _candidates() {
    /** @type {Reason} */ let otherwise = "nothing to do";
    const busy = new Set([...this._running.values()].map((job) => exclusivity(job.network)));
    /** @type {Job[]} */ const jobs = [];
    for (const job of this.jobs) {
      const lost = job.state === "queued" &&
        job.makers.find((m) => m.ended && (m.state !== "done" || m.result === null));
      if (lost) {
        this.end(job, "failed", `its input's job '${lost.name}' has no outputs: ${lost.state}`);
      } else if (job.paused || (job.state === "queued" && job.makers.some((m) => !m.ended))) {
        if (otherwise === "nothing to do") otherwise = "all waiting";
      } else if (job.state === "queued" && !job.network.ready) otherwise = "preparing";
      else if (job.state === "running" || !busy.has(exclusivity(job.network))) jobs.push(job);
    }
    return { jobs, otherwise };
  }
  /** @param {GPUCommandEncoder} encoder @param {Job} job */ _start(encoder, job) {
    if (job.state === "running") return true;
    try {
      if (job.network.busy) return false;
      job.network.putInputs(encoder, job.inputs);
      job.network.busy = true;
    } catch (error) {
      this.end(job, "failed", said(error));
      return false;
    }
    this._open?.push(snapshot(job));
    this._begun.push(job);
    job.state = "running";
    this._running.set(job.number, job);
    return true;
  }
  /** @param {Slice} part @param {FrameReport} report */ _apply({ job, step, first, count, predictedMs }, report) {
    const { op, title, groups } = job.costs[step];
    [job.step, job.group] = first + count === groups ? [step + 1, 0] : [step, first + count];
    job.givenMs += predictedMs;
    job.virtualMs += predictedMs / (job.priority || 1);
    job.lastServedMs = report.nowMs;
    report.predictedMs += predictedMs;
    const { number } = job;
    report.slices.push({ job: number, step, op, title, first, count, predictedMs, measuredMs: null });
  }
  /** The slices, then the ends of the jobs that are through, then the readbacks. */
  /** @param {GPUCommandEncoder} encoder @param {FrameReport} report @param {Slice[][]} groups */
  _append(encoder, report, groups) {
    try {
      this.executor.check();
      this.executor.encodeGroups(encoder, report.frame, groups);
    } catch (error) {
      report.reason = "device error";
      for (const job of this.jobs) this.end(job, "failed", said(error));
    }
    for (const job of [...this._running.values()].sort((a, b) => a.number - b.number)) {
      if (job.step < job.costs.length) continue;
      try {
        job.result = job.network.finish(encoder);
      } catch (error) {
        this.end(job, "failed", said(error));
        continue;
      }
      if (job.result === null) continue; // memory for its outputs will come
      this.end(job, "done");
      report.finished.push(job.number);
      if (job.wantsRead) this.reads.push(job);
    }
    for (const job of this.reads.splice(0)) {
      if (job.result !== null) this.executor.requestRead(encoder, job.result);
    }
  }
  /**
   * Call after the host's submit. Learns from the timings that have arrived; returns the reports
   * of the frames that are now measured.
   */
  endFrame() {
    this._open = null;
    for (const job of this._begun.splice(0)) job.letInputsGo();
    const timings = this.executor.endFrame(this.frame).filter(({ ms }) => isMs(ms));
    this.frame += 1;
    return this.feedback.ended(timings, this._now(), this.costModel);
  }
  /** Call instead of the submit and endFrame where the encoder is thrown away. */
  abandonFrame() {
    for (const [job, state, step, group, givenMs, virtualMs] of this._open ?? []) {
      if (job.state === "cancelled" || job.state === "failed") continue;
      if (job.state === "done") {
        job.result?.release();
        [job.result, job.released] = [null, false];
      }
      job.network.busy = state === "running";
      Object.assign(job, { state, step, group, givenMs, virtualMs });
      this._jobs.set(job.number, job);
      if (state === "running") this._running.set(job.number, job);
      else this._running.delete(job.number);
    }
    if (!this._open) return;
    this._open = null;
    this._begun = [];
    this.executor.abandonFrame(this.frame);
    this.feedback.abandoned();
    this.frame += 1;
  }
}

/** @param {Job} job @returns {[Job, Job["state"], number, number, number, number]} */
const snapshot = (job) => [job, job.state, job.step, job.group, job.givenMs, job.virtualMs];
/** @param {string} name @param {unknown} value @returns {number} */ function wantedMs(name, value) {
  if (isMs(value)) return /** @type {number} */ (value);
  throw refused(`${name} is ${value}: wanted a finite number of 0 or more`);
}

// --------------------------------------------------------------------------------- on the device
/** Deno has subgroups where it knows their size, but neither lists them nor takes the line that enables them. */
const DENO = "Deno" in globalThis;
/** @type {any[]} */ const WANTED_FEATURES = ["timestamp-query", "shader-f16", "subgroups"];
const WANTED_LIMITS = [
  "maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage",
  "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX", "minStorageBufferOffsetAlignment", "minUniformBufferOffsetAlignment",
];

/**
 * A device with what networks can use. A host that makes its own asks for the same.
 * @param {GPURequestAdapterOptions} options
 */
export async function requestDevice(options = { powerPreference: "high-performance" }) {
  const adapter = await navigator.gpu?.requestAdapter(options);
  if (!adapter) throw new CmlError("DeviceError", "no WebGPU here: wanted a browser and GPU with it");
  const unlisted = DENO && /** @type {any} */ (adapter.info).subgroupMinSize > 0 ? "subgroups" : "";
  const requiredFeatures = WANTED_FEATURES.filter((name) => adapter.features.has(name) || name === unlisted);
  const limits = /** @type {Record<string, any>} */ (/** @type {unknown} */ (adapter.limits));
  const requiredLimits = Object.fromEntries(WANTED_LIMITS.map((name) => [name, limits[name]]));
  const wanted = { requiredFeatures, requiredLimits };
  return await adapter.requestDevice(/** @type {GPUDeviceDescriptor} */ (wanted));
}

/** A device, and what is made once on it. */
class Device {
  /** @type {WeakMap<GPUDevice, Device>} */ static _known = new WeakMap();
  /** @type {Map<string, Promise<GPUComputePipeline>>} */ _pipelines = new Map();
  /** @type {Map<string, GPUBindGroupLayout>} */ _layouts = new Map();
  lost = "";
  /** @param {GPUDevice} gpu */ static of(gpu) {
    let found = Device._known.get(gpu);
    if (!found) Device._known.set(gpu, found = new Device(gpu));
    return found;
  }
  /** @param {GPUDevice} gpu */ constructor(gpu) {
    this.gpu = gpu;
    const info = gpu.adapterInfo;
    const words = [info?.description, info?.vendor, info?.architecture, info?.device];
    this.name = words.filter((word) => /\D/.test(word ?? "")).join(" ") || "an unnamed device";
    this.software = /llvmpipe|softpipe|swiftshader|software|basic render/i.test(this.name);
    this.timed = gpu.features.has("timestamp-query");
    gpu.lost.then(({ message, reason }) => this.lost = message || String(reason));
  }
  check() { if (this.lost) throw new CmlError("DeviceError", `the device is lost: ${this.lost}`); }
  /**
   * Make things, and say what the device has against it.
   * @template T @param {ErrorCode} code @param {string} what @param {() => T} make
   */
  async made(code, what, make) {
    this.check();
    this.gpu.pushErrorScope("out-of-memory");
    this.gpu.pushErrorScope("validation");
    let found, error;
    try {
      found = make();
    } catch (raised) {
      error = raised;
    }
    const scopes = await Promise.all([this.gpu.popErrorScope(), this.gpu.popErrorScope()]);
    error ??= scopes[0] ?? scopes[1];
    if (error) throw new CmlError(scopes[1] ? "DeviceError" : code, `${what}: ${said(error)}`);
    return /** @type {T} */ (found);
  }
  /** @param {number} tensors @param {number} paramsBytes */ layout(tensors, paramsBytes) {
    const key = `${tensors} ${paramsBytes}`;
    let found = this._layouts.get(key);
    if (found) return found;
    const visibility = GPUShaderStage.COMPUTE;
    /** @type {GPUBindGroupLayoutEntry[]} */ const entries = [
      { binding: 0, visibility, buffer: { type: "uniform", hasDynamicOffset: true, minBindingSize: 16 } },
      { binding: 1, visibility, buffer: { type: "uniform", minBindingSize: paramsBytes } },
    ];
    for (let i = 0; i < tensors; i++) entries.push({ binding: i + 2, visibility, buffer: { type: "storage" } });
    this._layouts.set(key, found = this.gpu.createBindGroupLayout({ entries }));
    return found;
  }
  /** @param {Kernel} kernel @param {string} code */ pipeline(kernel, code) {
    // by the code itself: what a file says that its digest is may be wrong
    const key = `${kernel.tensors} ${kernel.paramsBytes} ${code}`;
    let found = this._pipelines.get(key);
    if (!found) {
      this._pipelines.set(key, found = this._build(kernel, code));
      found.catch(() => this._pipelines.delete(key));
    }
    return found;
  }
  /** @param {Kernel} kernel @param {string} code */ async _build({ label, tensors, paramsBytes }, code) {
    const what = `the device does not take kernel '${label}'`;
    /** @type {[GPUShaderModule, GPUPipelineLayout]} */
    const [module, layout] = await this.made("KernelError", what, () => [
      this.gpu.createShaderModule({ label, code: DENO ? code.replace("enable subgroups;", "") : code }),
      this.gpu.createPipelineLayout({ bindGroupLayouts: [this.layout(tensors, paramsBytes)] }),
    ]);
    try {
      const compute = { module, entryPoint: "main" };
      return await this.gpu.createComputePipelineAsync({ label, layout, compute });
    } catch (error) {
      this.check();
      throw new CmlError("KernelError", `${what}: ${said(error)}`);
    }
  }
}

/** The first plan of the file that fits the device. @param {CookedFile} file @param {Device} device */
function choosePlan(file, device) {
  const limits = /** @type {any} */ (device.gpu.limits), { features } = device.gpu;
  const reasons = [];
  const inOrder = [...file.plans].sort((a, b) => device.software ? Number(b.software) - Number(a.software) : 0);
  for (const plan of inOrder) {
    const lacks = plan.needs.filter(({ at, wanted, atMost }) => atMost ? limits[at] > wanted : limits[at] < wanted)
      .map(({ at, wanted, what }) => `${at} of ${what} ${wanted}, the device has ${limits[at]}`);
    const kernels = new Set(plan.steps.map((step) => file.kernels[step.kernel]));
    for (const { label, flags, packed } of kernels) {
      if (!packed) lacks.push(`WGSL of kernel '${label}', the file has none`);
      if (flags & 2 && !features.has("subgroups")) lacks.push("the feature 'subgroups'");
      if (flags & 4 && !features.has("shader-f16")) lacks.push("the feature 'shader-f16'");
    }
    const lanes = /** @type {any} */ (device.gpu.adapterInfo)?.subgroupMinSize ?? 0;
    if (plan.subgroup > lanes) lacks.push(`subgroups of ${plan.subgroup}, the device has ${lanes}`);
    if (!lacks.length) return plan;
    reasons.push(`profile '${plan.profile}' needs ${[...new Set(lacks)].slice(0, 3).join("; ")}`);
  }
  throw new CmlError(
    "StaleArtifact",
    `no plan of '${file.name}' fits ${device.name}: ${reasons.join(". ")}. Make the device with ` +
      "requestDevice(), or cook for it (cml cook --devices portable)",
  );
}

const RANGE_SLOTS = 256, UPLOAD_NUMBERS = 1 << 16, COPY_ALIGNMENT = 256;
const scratch = new Uint32Array(4);

/**
 * Read a cooked file, and have its network ready on the device: weights uploaded, pipelines built,
 * all checked. Frames may go on meanwhile.
 * @param {GPUDevice} gpu @param {ArrayBuffer | Uint8Array<ArrayBuffer> | CookedFile} source
 * @param {{outputUsage?: number, limits?: Partial<Limits>}} options `outputUsage`: of the outputs' buffers, beside storage
 *   and copies (as GPUBufferUsage.VERTEX); `limits`: other than the defaults for what the file may take
 */
export async function load(gpu, source, options = {}) {
  const file = source instanceof CookedFile ? source : await CookedFile.open(source, options.limits);
  const device = Device.of(gpu);
  const network = new Network(file, choosePlan(file, device), device, options.outputUsage ?? 0);
  try {
    await network._load(await file.guess(device.name));
  } catch (error) {
    network.destroy();
    throw error;
  }
  return network;
}

/** A network on a device; {@link load} makes it. */
export class Network {
  ready = false;
  busy = false;
  /** @type {number[]} what each step took at load, on a device that times nothing in a frame */ loadTimesMs = [];
  guess = new FirstGuess();
  /** @type {GPUBuffer[]} */ _buffers = [];
  /** @type {GPUBuffer[]} */ _outputs = [];
  /** @type {GPUBuffer[]} */ _staging = [];
  /** @type {{pipeline: GPUComputePipeline, group: GPUBindGroup}[]} */ _launches = [];
  _range = 0;
  /** @param {CookedFile} file @param {Plan} plan @param {Device} device @param {number} usage */
  constructor(file, plan, device, usage) {
    this.file = file;
    this.plan = plan;
    this.device = device;
    this.name = file.name;
    this.steps = plan.steps;
    this._outputUsage = usage;
    this._stride = Math.max(device.gpu.limits.minUniformBufferOffsetAlignment, 16);
    this._width = device.gpu.limits.maxComputeWorkgroupsPerDimension;
    let at = 0;
    /** outputs lie one behind the other in a job's buffer */
    this.outputs = new Map(plan.outputs.map((place) => {
      const here = { place, at };
      at += roundUp(place.bytes, COPY_ALIGNMENT);
      return [place.name, here];
    }));
    this.outputBytes = Math.max(at, COPY_ALIGNMENT);
    this.inputs = new Map(plan.inputs.map((place) => [place.name, place]));
  }
  /** @param {FirstGuess} guess */ async _load(guess) {
    const { gpu } = this.device, { plan } = this, usage = GPUBufferUsage;
    this.guess = guess;
    const tensors = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST;
    const uniform = usage.UNIFORM | usage.COPY_DST;
    const sizes = [...plan.sizes, this._stride * (plan.steps.length + RANGE_SLOTS), plan.params.length];
    const what = `no memory for network '${this.name}'`;
    this._buffers = await this.device.made("DeviceError", what, () => sizes.map((bytes, i) => {
      const size = Math.max(roundUp(bytes, 16), 16);
      return gpu.createBuffer({ size, usage: i < 3 ? tensors : uniform, label: this.name });
    }));
    await this._upload(plan.pieces);
    this._writeUniforms();
    const kernels = plan.steps.map((step) => this.file.kernels[step.kernel]);
    /** @type {Map<Kernel, GPUComputePipeline>} */ const built = new Map();
    await Promise.all([...new Set(kernels)].map(async (kernel) => {
      built.set(kernel, await this.device.pipeline(kernel, await this.file.wgsl(kernel)));
    }));
    await this.device.made("StaleArtifact", `the device does not run network '${this.name}'`, () => {
      this._launches = plan.steps.map((step, i) => {
        const pipeline = /** @type {GPUComputePipeline} */ (built.get(kernels[i]));
        return { pipeline, group: this._bindGroup(step, kernels[i]) };
      });
      this._rehearse();
    });
    if (!this.device.timed) await this._measure();
    this.ready = true;
  }
  /** Make constants and upload them, some at a time, so that frames go on. @param {Piece[]} pieces */
  async _upload(pieces) {
    const values = await this.file.section("values");
    let since = 0;
    for (const piece of pieces) {
      const width = piece.becomes ? 4 : STORED_BYTES[piece.stored];
      for (let first = 0; first < piece.count; first += UPLOAD_NUMBERS) {
        const count = Math.min(piece.count - first, UPLOAD_NUMBERS);
        if (since + count > UPLOAD_NUMBERS) since = await new Promise((resolve) => setTimeout(resolve, 0, 0));
        since += count;
        this.device.check();
        this._write(piece.space, piece.offset + width * first, numbersOf(values, piece, first, count));
      }
    }
  }
  /** @param {number} space @param {number} at @param {Uint8Array<ArrayBuffer>} bytes */ _write(space, at, bytes) {
    const whole = new Uint8Array(roundUp(bytes.length, 4));
    whole.set(bytes);
    this.device.gpu.queue.writeBuffer(this._buffers[space], at, whole);
  }
  /** Every step's parameters and its whole range, written once. */
  _writeUniforms() {
    const { steps, params } = this.plan;
    const slices = new Uint32Array(this._stride / 4 * steps.length);
    steps.forEach((step, i) => slices.set([0, step.groups, this._width], i * this._stride / 4));
    this._write(3, 0, new Uint8Array(slices.buffer));
    this._write(4, 0, params);
  }
  /** @param {Step} step @param {Kernel} kernel */ _bindGroup(step, kernel) {
    const tensors = step.bindings.map(({ space, offset, bytes }, i) => ({
      binding: i + 2, resource: { buffer: this._buffers[space], offset, size: bytes },
    }));
    const params = { buffer: this._buffers[4], offset: step.params, size: step.paramsBytes };
    const layout = this.device.layout(kernel.tensors, kernel.paramsBytes);
    const slice = { binding: 0, resource: { buffer: this._buffers[3], size: 16 } };
    const entries = [slice, { binding: 1, resource: params }, ...tensors];
    return this.device.gpu.createBindGroup({ label: step.title, layout, entries });
  }
  /** Encode a whole run and throw it away: what the device refuses, it refuses here. */
  _rehearse() {
    const encoder = this.device.gpu.createCommandEncoder();
    this.encodeAll(encoder);
    this._copyUpdates(encoder);
    encoder.finish();
  }
  /** @param {GPUCommandEncoder} encoder */ encodeAll(encoder) {
    const pass = encoder.beginComputePass({ label: this.name });
    this.steps.forEach((step, i) => this.encodeRange(pass, i, 0, step.groups));
    pass.end();
  }
  /** @param {GPUComputePassEncoder} pass @param {number} step @param {number} first @param {number} count */
  encodeRange(pass, step, first, count) {
    const { pipeline, group } = this._launches[step];
    let slot = step;
    if (count !== this.steps[step].groups) {
      slot = this.steps.length + this._range;
      this._range = (this._range + 1) % RANGE_SLOTS;
      scratch.set([first, first + count, this._width, 0]);
      this.device.gpu.queue.writeBuffer(this._buffers[3], slot * this._stride, scratch);
    }
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group, [slot * this._stride]);
    if (count <= this._width) pass.dispatchWorkgroups(count);
    else pass.dispatchWorkgroups(this._width, Math.ceil(count / this._width));
  }
  /** @param {string} name @param {any} value @returns {any} what a job keeps of it */ accept(name, value) {
    const place = this.inputs.get(name);
    if (!place) {
      const known = [...this.inputs.keys()].join(", ") || "(none)";
      throw refused(`network '${this.name}' has no input '${name}'; it has ${known}`);
    }
    const wanted = `input '${name}': wanted ${place.type} [${place.shape}]`;
    if (value instanceof ARRAYS[place.type] || Array.isArray(value)) {
      if (value.length === place.elements) return toDevice(place, ARRAYS[place.type].from(value));
      throw refused(`${wanted}, got ${value.length} numbers for its ${place.elements}`);
    }
    const tensor = value instanceof JobOutput ? promised(value) : value;
    if (!tensor?.shape) throw refused(`${wanted} as ${ARRAYS[place.type].name}, got ${typeof value}`);
    const same = ["type", "layout"].every((key) => tensor[key] === /** @type {any} */ (place)[key]);
    if (!same || String(tensor.shape) !== String(place.shape) || tensor.bytes !== place.bytes) {
      throw refused(`${wanted} ${place.layout}, got ${tensor.type} [${tensor.shape}] ${tensor.layout}`);
    }
    const { buffer, offset } = tensor;
    if (buffer && !(offset % 4 === 0 && offset >= 0 && offset + place.bytes <= buffer.size &&
        buffer.usage & GPUBufferUsage.COPY_SRC && !this._buffers.includes(buffer))) {
      throw refused(`${wanted} in a buffer with COPY_SRC, at a multiple of 4, inside of it`);
    }
    return value;
  }
  /** Put accepted inputs where the network reads them. @param {GPUCommandEncoder} encoder @param {Record<string, any>} inputs */
  putInputs(encoder, inputs) {
    for (const [name, value] of Object.entries(inputs)) {
      const { space, offset, bytes } = /** @type {TensorPlace} */ (this.inputs.get(name));
      if (!bytes) continue;
      if (value instanceof ArrayBuffer) this._write(space, offset, new Uint8Array(value));
      else {
        const taken = value instanceof JobOutput ? value.job.result.tensor(value.name) : value;
        const { buffer, offset: at } = taken;
        encoder.copyBufferToBuffer(buffer, at, this._buffers[space], offset, bytes);
      }
    }
  }
  /** Append copies of the outputs, then the variables' new values. @param {GPUCommandEncoder} encoder */
  finish(encoder) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const buffer = this._outputs.pop() ??
      this.device.gpu.createBuffer({ size: this.outputBytes, usage: usage | this._outputUsage, label: this.name });
    for (const { place, at } of this.outputs.values()) {
      if (!place.bytes) continue;
      encoder.copyBufferToBuffer(this._buffers[place.space], place.offset, buffer, at, place.bytes);
    }
    this._copyUpdates(encoder);
    return new Result(this, buffer);
  }
  /** @param {GPUCommandEncoder} encoder */ _copyUpdates(encoder) {
    for (const [from, to] of this.plan.updates) {
      const source = this._buffers[from.space], target = this._buffers[to.space];
      const bytes = Math.min(from.bytes, to.bytes);
      encoder.copyBufferToBuffer(source, from.offset, target, to.offset, bytes);
    }
  }
  /** Give variables the values that they have in the file. */
  async reset() {
    for (const [, { space, offset, bytes }] of this.plan.updates) {
      const touched = this.plan.pieces.filter((piece) =>
        piece.space === space && piece.offset < offset + bytes && piece.offset + piece.bytes > offset
      );
      await this._upload(touched);
    }
  }
  /**
   * Run all of it at once and wait for the outputs: for tools and tests, not for frames.
   * @param {Record<string, Numbers | number[] | GpuTensor>} inputs @returns {Promise<Record<string, Numbers>>}
   */
  async run(inputs) {
    if (this.busy) throw new CmlError("JobError", `a job is running in network '${this.name}'`);
    const accepted = acceptAll(this, inputs);
    const encoder = this.device.gpu.createCommandEncoder();
    this.putInputs(encoder, accepted);
    this.encodeAll(encoder);
    const result = this.finish(encoder);
    result.requestRead(encoder);
    this.device.gpu.queue.submit([encoder.finish()]);
    await result.ask();
    const found = Object.fromEntries([...this.outputs.keys()].map((name) => [name, result.read(name)]));
    result.release();
    return /** @type {Record<string, Numbers>} */ (found);
  }
  /** Every step's time, for a device that times nothing in a frame. */
  async _measure() {
    const { gpu } = this.device;
    for (let i = 0; i < 2 * this.steps.length; i++) {
      const step = i % this.steps.length, encoder = gpu.createCommandEncoder();
      const pass = encoder.beginComputePass();
      this.encodeRange(pass, step, 0, this.steps[step].groups);
      pass.end();
      const start = performance.now();
      gpu.queue.submit([encoder.finish()]);
      await gpu.queue.onSubmittedWorkDone();
      this.loadTimesMs[step] = Math.max(performance.now() - start, this.guess.launchMs);
    }
  }
  destroy() {
    this.ready = false;
    for (const buffer of [...this._buffers, ...this._outputs, ...this._staging]) buffer.destroy();
  }
}

/** @param {Network} network @param {Record<string, any>} inputs */ function acceptAll(network, inputs) {
  const lacking = [...network.inputs.keys()].filter((name) => !(name in inputs));
  if (lacking.length) throw refused(`network '${network.name}' wants the inputs ${lacking.join(", ")} too`);
  return Object.fromEntries(Object.entries(inputs).map(([name, v]) => [name, network.accept(name, v)]));
}

/** @param {JobOutput} output */ function promised({ job, name }) {
  const found = job.network instanceof Network && job.network.outputs.get(name);
  if (!found) throw refused(`job '${job.name}' has no output '${name}'`);
  return found.place;
}

/** The outputs of one job, in a buffer of their own. */
class Result {
  /** @type {GPUBuffer | null} */ staging = null;
  /** @type {Map<string, Numbers> | null} */ values = null;
  error = "";
  /** @param {Network} network @param {GPUBuffer} buffer */ constructor(network, buffer) {
    this.network = network;
    this.buffer = buffer;
  }
  /** @param {GPUCommandEncoder} encoder */ requestRead(encoder) {
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST, size = this.network.outputBytes;
    this.staging ??= this.network._staging.pop() ?? this.network.device.gpu.createBuffer({ size, usage });
    encoder.copyBufferToBuffer(this.buffer, 0, this.staging, 0, size);
  }
  /** Ask for what was copied; what it is arrives later. */
  async ask() {
    const staging = /** @type {GPUBuffer} */ (this.staging);
    try {
      await staging.mapAsync(GPUMapMode.READ);
      const bytes = staging.getMappedRange();
      this.values = new Map([...this.network.outputs.values()].map(({ place, at }) =>
        [place.name, fromDevice(place, bytes.slice(at, at + place.bytes))]
      ));
      staging.unmap();
      this.network._staging.push(staging);
    } catch (error) {
      this.error = said(error);
    }
    this.staging = null;
  }
  /** @param {string} name @returns {Numbers | null} */ read(name) {
    if (this.error) throw new CmlError("DeviceError", `the readback failed: ${this.error}`);
    this._place(name);
    return this.values?.get(name) ?? null;
  }
  /** @param {string} name @returns {GpuTensor} */ tensor(name) {
    const { place: { bytes, shape, type, layout }, at } = this._place(name);
    return { buffer: this.buffer, offset: at, bytes, shape, type, layout };
  }
  /** @param {string} name */ _place(name) {
    const found = this.network.outputs.get(name);
    if (found) return found;
    const known = [...this.network.outputs.keys()].join(", ");
    throw refused(`network '${this.network.name}' has no output '${name}'; it has ${known}`);
  }
  release() {
    if (this.network.ready) this.network._outputs.push(this.buffer);
    else this.buffer.destroy();
  }
}

const MAX_GROUPS = 12, SLOTS = 8, AGE = 2;
/** browsers round timestamps to this many nanoseconds, unless they are told not to */
const ROUNDED = [100_000n, 65_536n];

/** Where one frame's timestamps go. */
/** @typedef {{index: number, staging: GPUBuffer, frame: number, passes: number, asked: boolean, ticks: BigInt64Array | null}} TimeSlot */

/** The device's side of a scheduler: slices into the host's encoder, timings and outputs back. */
export class Executor {
  maxGroups = MAX_GROUPS;
  /** @type {TimeSlot[]} */ _free = [];
  /** @type {TimeSlot[]} */ _busy = [];
  /** @type {Result[]} */ _reads = [];
  /** @type {Result[]} */ _again = [];
  /** @param {GPUDevice} gpu */ static on(gpu) { return new Executor(Device.of(gpu)); }
  /** @param {Device} device */ constructor(device) {
    this.device = device;
    this.clockSource = device.timed ? "timestamps" : "wall clock";
    this.granule = device.software ? navigator.hardwareConcurrency || 1 : 1;
    // such a driver writes the beginning of a pass at its end: each is timed from the one before
    this._each = device.software ? 1 : 2;
    this._passes = MAX_GROUPS + (device.software ? 1 : 0);
    const count = SLOTS * this._each * this._passes;
    this._bytes = roundUp(8 * this._each * this._passes, COPY_ALIGNMENT);
    if (!device.timed) return;
    const { gpu } = device, usage = GPUBufferUsage, label = "frame scheduler";
    this._queries = gpu.createQuerySet({ type: "timestamp", count, label });
    this._resolved = gpu.createBuffer({ size: SLOTS * this._bytes, usage: usage.QUERY_RESOLVE | usage.COPY_SRC, label });
    for (let index = 0; index < SLOTS; index++) {
      const staging = gpu.createBuffer({ size: this._bytes, usage: usage.MAP_READ | usage.COPY_DST, label });
      this._free.push({ index, staging, frame: -1, passes: 0, asked: false, ticks: null });
    }
  }
  get framesInFlight() { return this._busy.filter((slot) => slot.asked).length; }
  check() { this.device.check(); }
  /** @param {any} network @param {Record<string, any>} inputs */ accept(network, inputs) {
    if (network instanceof Network && network.device === this.device) return acceptAll(network, inputs);
    throw refused("submit a network that load() made on the scheduler's own device");
  }
  /** @param {GPUCommandEncoder} encoder @param {number} frame @param {Slice[][]} groups */
  encodeGroups(encoder, frame, groups) {
    for (const result of this._again.splice(0)) this.requestRead(encoder, result);
    const slot = groups.length ? this._free.shift() : undefined;
    if (slot) {
      Object.assign(slot, { frame, passes: 0, asked: false, ticks: null });
      this._busy.push(slot);
      if (this._each === 1) encoder.beginComputePass({ timestampWrites: this._writes(slot) }).end();
    }
    for (const group of groups) {
      const pass = encoder.beginComputePass({ label: "cml", timestampWrites: slot && this._writes(slot) });
      for (const { job, step, first, count } of group) {
        /** @type {Network} */ (job.network).encodeRange(pass, step, first, count);
      }
      pass.end();
    }
    if (!slot || !this._queries || !this._resolved) return;
    const at = slot.index * this._bytes, count = this._each * slot.passes;
    encoder.resolveQuerySet(this._queries, slot.index * this._each * this._passes, count, this._resolved, at);
    encoder.copyBufferToBuffer(this._resolved, at, slot.staging, 0, 8 * count);
  }
  /** @param {TimeSlot} slot @returns {GPUComputePassTimestampWrites} */ _writes(slot) {
    const at = this._each * (slot.index * this._passes + slot.passes++);
    const querySet = /** @type {GPUQuerySet} */ (this._queries);
    if (this._each === 1) return { querySet, endOfPassWriteIndex: at };
    return { querySet, beginningOfPassWriteIndex: at, endOfPassWriteIndex: at + 1 };
  }
  /** @param {GPUCommandEncoder} encoder @param {Result} result */
  requestRead(encoder, result) {
    result.requestRead(encoder);
    this._reads.push(result);
  }
  /** Ask for what is old enough, take what has arrived. @param {number} frame @returns {Timing[]} */
  endFrame(frame) {
    for (const result of this._reads.splice(0)) result.ask();
    for (const slot of this._busy) if (!slot.asked && frame - slot.frame >= AGE) this._ask(slot);
    /** @type {Timing[]} */ const timings = [];
    while (this._busy[0]?.ticks) {
      const slot = /** @type {TimeSlot} */ (this._busy.shift());
      this._free.push(slot);
      const times = this._milliseconds(/** @type {BigInt64Array} */ (slot.ticks));
      times.forEach((ms, group) => timings.push({ frame: slot.frame, group, ms }));
    }
    return timings;
  }
  /** @param {TimeSlot} slot */ async _ask(slot) {
    slot.asked = true;
    try {
      await slot.staging.mapAsync(GPUMapMode.READ);
      const count = this._each * slot.passes;
      slot.ticks = new BigInt64Array(slot.staging.getMappedRange(0, 8 * count).slice(0));
      slot.staging.unmap();
    } catch {
      // the device is lost: the next frame says so
      slot.ticks = new BigInt64Array(0);
    }
  }
  /** @param {BigInt64Array} ticks */ _milliseconds(ticks) {
    const starts = this._each === 1 ? ticks.slice(0, -1) : ticks.filter((_, i) => i % 2 === 0);
    const ends = this._each === 1 ? ticks.slice(1) : ticks.filter((_, i) => i % 2 === 1);
    const unit = ROUNDED.find((each) => ticks.every((tick) => tick % each === 0n)) ?? 0n;
    // what is too short for a rounded clock is no nothing, or it would never be known
    return [...ends].map((end, i) => Math.max(Number(end - starts[i]), Number(unit) / 4, 0) * 1e-6);
  }
  /** What was encoded for the frame will never be submitted. @param {number} frame */
  abandonFrame(frame) {
    this._free.push(...this._busy.filter((slot) => slot.frame === frame));
    this._busy = this._busy.filter((slot) => slot.frame !== frame);
    this._again.push(...this._reads.splice(0));
  }
}
