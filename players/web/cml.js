// @ts-check
/**
 * Plays cooked networks (docs/cooked.md) on WebGPU, in parts, within a budget of milliseconds per
 * frame. One module, nothing else needed.
 *
 *     const network = await loadCooked(device, await (await fetch("net.cml")).arrayBuffer());
 *     const scheduler = new Scheduler(device, { frameMs: 1000 / 60, budgetMs: 4 });
 *     const job = scheduler.submit(network, { image: pixels });
 *     // in every frame of the host's loop
 *     scheduler.encode(encoder);
 *     device.queue.submit([encoder.finish()]);
 *     scheduler.endFrame();
 *     if (job.state === "done") { job.tensor("out"); job.read("out"); }
 *
  * The slices of a frame are chosen by the same functions of the same numbers as in Python
 * (scheduler/planning/), so a recording of one scheduler replays in the other.
 */
// ---------------------------------------------------------------------------------- vocabulary
/** @typedef {import("./cml.d.ts").ErrorCode} ErrorCode */
/** The class of all errors that this module raises deliberately. */
export class CmlError extends Error {
  /** @param {ErrorCode} code @param {string} message the problem, wanted against got, the next step */
  constructor(code, message) {
    super(message);
    this.name = "CmlError";
    this.code = code;
  }
}

/** @param {string} message */ const corrupt = (message) => new CmlError("CorruptArtifact", message);
/** @param {string} message */ const refused = (message) => new CmlError("InputError", message);

/** @typedef {import("./cml.d.ts").DType} DType */
/** @typedef {import("./cml.d.ts").Layout} Layout */
/** @typedef {import("./cml.d.ts").Numbers} Numbers */
/** @typedef {import("./cml.d.ts").GpuTensor} GpuTensor */
/** @typedef {import("./cml.d.ts").Limits} Limits */
/** An input or output, and its range in a buffer of the network. */
/** @typedef {import("./cml.d.ts").TensorInfo & {shape: number[], space: number, offset: number}} TensorPlace */
/** The facts of a step from which its time is estimated; FLOPs and bytes are per workgroup. */
/** @typedef {{cost_key: string, op: string, title: string, groups: number, flops: number, nbytes: number}} StepCost */
/** @typedef {Omit<PlanStepRow, "bindings"> & {bindings: BindingRow[]}} Step */
/** A constant in a buffer: numbers of the section `values` in another order. */
/** @typedef {Omit<ConstantRow, "matrix"> & {matrix: number | null, count: number}} Piece */
/** @typedef {{steps: Step[], inputs: TensorPlace[], outputs: TensorPlace[], updates: UpdateRow[]}} PlanTables */
/** @typedef {Pick<PlanHead, "profile" | "spaces" | "needs">} PlanFacts */
/** @typedef {PlanFacts & PlanTables & {params: Uint8Array<ArrayBuffer>, pieces: Piece[]}} Plan */

/** @type {DType[]} */ const TYPES = ["scalar", "integer", "logical"];
/** @type {Layout[]} */ const LAYOUTS = ["plain", "c4", "c4h"];
const ARRAYS = { scalar: Float32Array, integer: Int32Array, logical: Uint32Array };
/** @param {number} a @param {number} b */ const roundUp = (a, b) => Math.ceil(a / b) * b;
/** @param {readonly number[]} values added in order, so that every player has the same sum */
const sum = (values) => values.reduce((total, value) => total + value, 0);
/** Returns the value of a key; makes it if it is missing. @template K, V @param {{get(key: K): V | undefined, set(key: K, value: V): unknown}} map @param {K} key @param {() => V} make */
export function getOrMake(map, key, make) {
  const existing = map.get(key);
  if (existing !== undefined) return existing;
  const value = make();
  map.set(key, value);
  return value;
}
/** @param {readonly number[]} shape */ const size = (shape) => shape.reduce((product, extent) => product * extent, 1);

// ---------------------------------------------------------------------------------------- files
const MAGIC = [0x89, 0x43, 0x4d, 0x4c, 0x0d, 0x0a, 0x1a, 0x0a];
/** the value of an offset that does not exist: all bits set, rounded as `u64` does */ const NO_OFFSET = 2 ** 64;

/** @template T @typedef {{size: number, read: (view: View, at: number) => T}} Field a part of a record: its bytes, and how they are read */
/** A little-endian number. @param {number} size @param {(data: DataView, at: number) => number} get @returns {Field<number>} */
const number = (size, get) => ({
  size,
  read(view, at) {
    view.need(at, size);
    return get(view.data, at);
  },
});
const u32 = number(4, (data, at) => data.getUint32(at, true));
/** rounded above 2^53, which is more than any file, buffer or device has */
const u64 = number(8, (data, at) => Number(data.getBigUint64(at, true)));
const f32 = number(4, (data, at) => data.getFloat32(at, true));
/** of a cost: a finite number of 0 or more */
const f64 = number(8, (data, at) => {
  const value = data.getFloat64(at, true);
  if (!(value >= 0 && value <= MOST_AMOUNT)) throw corrupt(`${value} is no cost`);
  return value;
});
/** A range of the section `strings`. @type {Field<string>} */ const string = {
  size: 8,
  read(view, at) {
    const offset = u32.read(view, at), length = u32.read(view, at + 4);
    if (length > MOST_TEXT || !view.strings) throw view.corrupt(`a text of ${length} bytes`);
    return decode(view.strings.part(offset, length), `the text at ${offset}`);
  },
};
/** @param {number} size @returns {Field<Uint8Array>} */
const raw = (size) => ({ size, read: (view, at) => view.part(at, size) });
/** Bytes that are zero. @param {number} size @returns {Field<void>} */
const reserved = (size) => ({ size, read: (view, at) => view.zeros(at, size) });
/** @template T @param {number} count @param {Field<T>} field @returns {Field<T[]>} */
const list = (count, { size, read }) => (
  { size: count * size, read: (view, at) => Array.from({ length: count }, (_, i) => read(view, at + size * i)) }
);
/**
 * @template {Record<string, Field<any>>} F
 * @param {F} fields in the order of the file, without gaps
 * @returns {Field<{[K in keyof F as K extends `reserved_${string}` ? never : K]: ReturnType<F[K]["read"]>}>}
 */
function record(fields) {
  let size = 0;
  const places = Object.entries(fields).map(([name, field]) => {
    size += field.size;
    return { name, field, offset: size - field.size };
  });
  const read = (/** @type {View} */ view, /** @type {number} */ at) =>
    /** @type {any} */ (Object.fromEntries(places.map(({ name, field, offset }) => [name, field.read(view, at + offset)])));
  return { size, read };
}

// <generated by generate.py>
const FORMAT = 2;
const MOST_SECTIONS = 256;
const SECTION_ALIGNMENT = 64;
const TABLE_ALIGNMENT = 8;
const MOST_DIMENSIONS = 8;
const MOST_TEXT = 4096;
const MOST_PARAMS = 65536;
const MOST_TENSORS = 64;
const MOST_INPUTS = 64;
const MOST_DEVICES = 64;
const MOST_FACTORS = 4096;
const MOST_SMALLER = 1040;
const VALUE_ALIGNMENT = 16;
const SOURCE_AXES = 4;
const TRUSTED = 1;
const SUBGROUPS = 2;
const F16 = 4;
const MOST_WGSL = 524288;
const MOST_DEPTH = 64;
const MOST_PENDING = 512;
const MOST_NAMES = 512;
const MOST_ELEMENTS = 4096;
const MOST_EXPANDED = 1048576;
const LAST = 15;
const SETTLED = 3;
const CHANGED = 0.4054651081081644;
const NEAR = 3;
const KNOWN_ERROR = 0.1;
const UNKNOWN_ERROR = 30.0;
const MOST_ERROR = 0.2;
const RATIOS = 15;
const SHORTEST = 0.001;
const GUESSED_SAMPLES = 4;
const MOST_UNKNOWN = 6.907755278982137;
const CLIP = 0.9162907318741551;
const USUAL = 3.0;
const LITTLE = 0.1;
const DRIFT_WEIGHT = 0.03125;
const AIMED_SHARE = 0.8;
const SMALL = 0.25;
const ENOUGH = 8;
const WINDOW = 1200;
const PRIOR = 1.3;
const MIN_SHARE = 0.02;
const PROBE_SHARE = 0.25;
const STARVED_MS = 500.0;
const CATCH_UP_MS = 500.0;
const STICKINESS_MS = 20.0;
const APART_EVERY = 16;
const LATE = 1.15;
const GROWTH = 1.25;
const DECAY = 0.99;
const MOST_BACK_OFF = 16.0;
const BELIEVED = 0.25;
const SMOOTHED = 0.1;
const LONGEST = 60;
const TELLING_LAUNCHES = 8;
const TELLING_SHARE = 0.25;
const LEAST_AIM = 0.125;
const SKIP_EVERY = 48;
const MOST_BYTES = 281474976710656, MOST_AMOUNT = 1e+300;
const SINGLE_SECTIONS = ['strings', 'kernels', 'code', 'values', 'guess', 'golden', 'meta', 'graph'];
/** @type {Limits} */ const LIMITS = {code_bytes: 67108864, device_bytes: 2147483648, kernels: 4096, steps: 16384};
/** A table of a plan. @typedef {ReturnType<typeof tableRow.read>} Table */
const tableRow = record({
  count: u32,
  offset: u32,
});
/** The compressed code of a kernel in one language. @typedef {ReturnType<typeof codeRow.read>} Code */
const codeRow = record({
  offset: u64,
  packed: u32,
  nbytes: u32,
});
/** The memory that a file takes when unpacked, as its header states it. @typedef {ReturnType<typeof totalsRow.read>} Totals */
const totalsRow = record({
  code_bytes: u64,
  device_bytes: u64,
  kernels: u32,
  steps: u32,
});
/** The begin of the file. @typedef {ReturnType<typeof fileHeader.read>} FileHeader */
const fileHeader = record({
  magic: raw(8),
  format: u32,
  sections: u32,
  nbytes: u64,
  table_digest: raw(32),
  totals: totalsRow,
  reserved_80: reserved(16),
});
/** A section in the section table. @typedef {ReturnType<typeof sectionRow.read>} SectionRow */
const sectionRow = record({
  tag: raw(8),
  offset: u64,
  nbytes: u64,
  number: u32,
  reserved_28: reserved(4),
  digest: raw(32),
});
/** The begin of the section ``kernels``. @typedef {ReturnType<typeof kernelsHead.read>} KernelsHead */
const kernelsHead = record({
  count: u32,
  reserved_4: reserved(4),
});
/** A kernel variant. @typedef {ReturnType<typeof kernelRow.read>} KernelRow */
const kernelRow = record({
  digest: raw(32),
  label: string,
  params_bytes: u32,
  tensors: u32,
  flags: u32,
  reserved_52: reserved(4),
  spirv: codeRow,
  wgsl: codeRow,
  reserved_88: reserved(8),
});
/** The limits and features that a plan needs of a device. @typedef {ReturnType<typeof needsRow.read>} Needs */
const needsRow = record({
  storage_alignment: u32,
  uniform_alignment: u32,
  binding_bytes: u64,
  buffer_bytes: u64,
  threads: u32,
  shared_bytes: u32,
  bindings: u32,
  lanes: u32,
  software: u32,
  reserved_44: reserved(4),
});
/** The begin of a section ``plan``. @typedef {ReturnType<typeof planHead.read>} PlanHead */
const planHead = record({
  profile: string,
  reserved_8: reserved(8),
  spaces: list(3, u64),
  needs: needsRow,
  flops: f64,
  nbytes: f64,
  gas: u64,
  steps: tableRow,
  bindings: tableRow,
  inputs: tableRow,
  outputs: tableRow,
  updates: tableRow,
  params: tableRow,
  constants: tableRow,
  reserved_168: reserved(24),
});
/** A dispatch. @typedef {ReturnType<typeof planStepRow.read>} PlanStepRow */
const planStepRow = record({
  kernel: u32,
  groups: u32,
  first_binding: u32,
  bindings: u32,
  writes: u32,
  params_offset: u32,
  params_bytes: u32,
  line: u32,
  op: string,
  title: string,
  cost_key: string,
  file: string,
  flops: f64,
  nbytes: f64,
  gas: u64,
  reserved_88: reserved(8),
});
/** A range of a buffer. @typedef {ReturnType<typeof bindingRow.read>} BindingRow */
const bindingRow = record({
  space: u32,
  reserved_4: reserved(4),
  offset: u64,
  nbytes: u64,
});
/** A copy between buffers after a run. @typedef {ReturnType<typeof updateRow.read>} UpdateRow */
const updateRow = record({
  source: bindingRow,
  target: bindingRow,
});
/** An input or output. @typedef {ReturnType<typeof tensorRow.read>} TensorRow */
const tensorRow = record({
  name: string,
  type: u32,
  layout: u32,
  rank: u32,
  extents: list(8, u32),
  space: u32,
  offset: u64,
  nbytes: u64,
  reserved_72: reserved(8),
});
/** A dimension of a constant as it lies in its buffer. @typedef {ReturnType<typeof dimensionRow.read>} Dimension */
const dimensionRow = record({
  extent: u32,
  axis: u32,
  step: u32,
});
/** A constant in a buffer, and the numbers that it is made of. @typedef {ReturnType<typeof constantRow.read>} ConstantRow */
const constantRow = record({
  space: u32,
  stored: u32,
  becomes: u32,
  rank: u32,
  offset: u64,
  nbytes: u64,
  source: u64,
  matrix: u64,
  extents: list(4, u32),
  dims: list(8, dimensionRow),
});
/** The begin of the section ``guess``. @typedef {ReturnType<typeof guessHead.read>} GuessHead */
const guessHead = record({
  devices: u32,
  factors: u32,
});
/** The assumed speed of a type of device. @typedef {ReturnType<typeof deviceRow.read>} DeviceRow */
const deviceRow = record({
  pattern: string,
  flops_per_ms: f64,
  bytes_per_ms: f64,
  launch_ms: f64,
  first_factor: u32,
  factors: u32,
});
/** The measured time of a family of kernels, relative to what the device's speed predicts. @typedef {ReturnType<typeof factorRow.read>} FactorRow */
const factorRow = record({
  kernel: string,
  times: f64,
});
/** The begin of the section ``golden``. @typedef {ReturnType<typeof goldenHead.read>} GoldenHead */
const goldenHead = record({
  tensors: u32,
  tolerance: f32,
});
/** A tensor of the golden pair. @typedef {ReturnType<typeof goldenRow.read>} GoldenRow */
const goldenRow = record({
  name: string,
  role: u32,
  type: u32,
  rank: u32,
  extents: list(8, u32),
  reserved_52: reserved(4),
  offset: u64,
});
// </generated>

/** The bytes of one section. Every read is checked against their end. */
class View {
  /** @param {Uint8Array<ArrayBuffer>} bytes @param {string} where @param {View} [strings] */ constructor(bytes, where, strings) {
    this.bytes = bytes;
    this.where = where;
    this.strings = strings;
    this.data = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }
  /** @param {number} at @param {number} bytes */ need(at, bytes) {
    if (!(at >= 0 && bytes >= 0 && at + bytes <= this.bytes.byteLength)) {
      throw this.corrupt(`${bytes} bytes at ${at} lie outside of its ${this.bytes.byteLength}`);
    }
  }
  /** @param {string} problem */ corrupt(problem) { return corrupt(`${this.where}: ${problem}`); }
  /** @param {number} at @param {number} bytes which are reserved, and so zero */ zeros(at, bytes) {
    if (this.part(at, bytes).some(Boolean)) throw this.corrupt(`a byte of ${at} to ${at + bytes} is reserved, and not zero`);
  }
  /** @param {number} at @param {number} bytes */ part(at, bytes) {
    this.need(at, bytes);
    return this.bytes.subarray(at, at + bytes);
  }
  /** @param {{rank: number, extents: number[]}} row */ shape({ rank, extents }) {
    if (rank > MOST_DIMENSIONS || extents.slice(rank).some(Boolean)) throw this.corrupt(`a tensor of rank ${rank}`);
    const shape = extents.slice(0, rank);
    if (size(shape) > MOST_BYTES) throw this.corrupt(`[${shape}] elements`);
    return shape;
  }
  /** The rows of a table. @template T @param {Field<T>} row @param {Table} table @returns {T[]} */
  rows(row, { count, offset }) {
    this.need(offset, count * row.size);
    return list(count, row).read(this, offset);
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

/** Unpacks a zlib stream of a known length. @param {Uint8Array<ArrayBuffer>} packed @param {number} length @param {string} subject */
async function unzip(packed, length, subject) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const reader = stream.getReader();
  const unpacked = new Uint8Array(length);
  let at = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      if (at + value.length > length) {
        await reader.cancel();
        throw corrupt(`${subject} is longer than its ${length} bytes`);
      }
      unpacked.set(value, at);
      at += value.length;
    }
  } catch (error) {
    if (error instanceof CmlError) throw error;
    throw corrupt(`${subject} cannot be unpacked: ${messageOf(error)}`);
  }
  if (at !== length) throw corrupt(`${subject} has ${at} bytes, wanted ${length}`);
  return unpacked;
}

/** @param {Uint8Array} bytes @param {string} subject */ function decode(bytes, subject) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw corrupt(`${subject} is not UTF-8`);
  }
}

/** @param {unknown} error */ const messageOf = (error) => String(/** @type {any} */ (error)?.message ?? error);

/** @typedef {{name: string, shape: number[], data: Numbers}} GoldenTensor */
/** @typedef {{tolerance: number, inputs: GoldenTensor[], outputs: GoldenTensor[]}} Golden */

/** A cooked file whose header, section table and used sections have been checked. */
export class CookedFile {
  /** @type {Map<string, SectionRow[]>} the sections by tag */ table = new Map();
  /** @type {Map<string, View>} sections whose hashes are checked */ _seen = new Map();
  /** @type {KernelRow[]} */ kernels = [];
  /** @type {Plan[]} */ plans = [];
  /** @type {Record<string, unknown>} */ meta = {};
  /** @param {Uint8Array<ArrayBuffer>} bytes */ constructor(bytes) {
    this.bytes = bytes;
  }
  /** Reads and checks everything but weights and kernels, which are checked when they are used. */
  /** @param {ArrayBuffer | Uint8Array<ArrayBuffer>} source @param {Partial<Limits>} limits other than the defaults */
  static async open(source, limits = {}) {
    const file = new CookedFile(source instanceof Uint8Array ? source : new Uint8Array(source));
    const totals = await file._readTable({ ...LIMITS, ...limits });
    await file.section("strings");
    if (!file.table.has("values")) throw corrupt("the file has no section 'values'");
    file.kernels = readKernels(await file.section("kernels"), await file.section("code"));
    for (let i = 0; i < (file.table.get("plan")?.length ?? 0); i++) {
      file.plans.push(new PlanReader(file, await file.section("plan", i)).read());
    }
    if (!file.plans.length) throw corrupt("the file has no plan");
    file._checkTotals(totals);
    for (const plan of file.plans) {
      for (const end of /** @type {const} */ (["inputs", "outputs"])) {
        const [one, first] = [plan, file.plans[0]].map((of) => JSON.stringify(of[end].map(({ name, type, shape }) => [name, type, shape])));
        if (one !== first) throw corrupt(`the plans have other ${end} than each other`);
      }
    }
    file._readMeta(await file.section("meta"));
    return file;
  }
  /** @param {View} view */ _readMeta(view) {
    try {
      this.meta = JSON.parse(decode(view.bytes, view.where));
    } catch (error) {
      throw view.corrupt(`it is no JSON: ${messageOf(error)}`);
    }
    const { name, engine, rules, custom, half, integer = "0".repeat(64) } = Object(this.meta);
    const fits = typeof name === "string" && typeof engine === "string" && Number.isInteger(rules) &&
      Array.isArray(custom) && custom.every((one) => typeof one === "string") && typeof half === "boolean" &&
      typeof integer === "string" && /^[0-9a-f]{64}$/.test(integer);
    if (!fits) throw view.corrupt("it lacks something");
  }
  get name() { return String(this.meta.name); }
  /** @param {Limits} stated by the header */ _checkTotals(stated) {
    const { kernels, plans } = this;
    const totals = {
      code_bytes: sum(kernels.map(({ spirv, wgsl }) => spirv.nbytes + wgsl.nbytes)),
      device_bytes: Math.max(...plans.map(({ spaces, params }) => sum(spaces) + params.length)),
      kernels: kernels.length,
      steps: Math.max(...plans.map(({ steps }) => steps.length)),
    };
    if (JSON.stringify(totals) !== JSON.stringify(stated)) {
      throw corrupt("the header states other totals than the kernels and plans have");
    }
  }
  /** @param {Limits} limits @returns {Promise<Limits>} the totals that the header states */ async _readTable(limits) {
    const length = this.bytes.byteLength;
    if (length < fileHeader.size || !MAGIC.every((byte, i) => this.bytes[i] === byte)) {
      throw corrupt("this is no cooked file: make one with `cml cook MODEL -o net.cml`");
    }
    const head = new View(this.bytes, "the file's header");
    const format = u32.read(head, MAGIC.length);
    if (format !== FORMAT) {
      throw new CmlError("StaleArtifact", `the file has format ${format}, wanted ${FORMAT}: cook it again`);
    }
    const { nbytes, sections, table_digest, totals } = fileHeader.read(head, 0);
    if (nbytes !== length) throw corrupt(`the file has ${length} bytes, and says ${nbytes}: it was cut`);
    if (sections > MOST_SECTIONS) throw corrupt(`${sections} sections are too many`);
    const table = head.part(fileHeader.size, sectionRow.size * sections);
    if (!sameBytes(await sha256(table), table_digest)) {
      throw corrupt("the table of sections is not what its hash says");
    }
    for (const [name, limit] of Object.entries(limits)) {
      const total = totals[/** @type {keyof Limits} */ (name)];
      if (total > limit) {
        throw refused(`the file states ${total} ${name}, the limit is ${limit}. If you trust it: limits: { ${name}: ${total} }`);
      }
    }
    const end = this._readRows(new View(this.bytes, "the table of sections"), sections);
    if (end !== length) throw corrupt(`${length - end} bytes lie behind the last section`);
    return totals;
  }
  /** @param {View} view @param {number} count @returns {number} the end of the last section */ _readRows(view, count) {
    let end = fileHeader.size + sectionRow.size * count, before = "", number = -1;
    for (const row of view.rows(sectionRow, { count, offset: fileHeader.size })) {
      const tag = String.fromCharCode(...row.tag).replace(/\0+$/, ""), { offset, nbytes } = row;
      if (!/^[\x21-\x7e]+$/.test(tag)) throw corrupt("a section's tag is no ASCII");
      number = tag === before ? number + 1 : 0;
      if (tag < before || row.number !== number || (number && SINGLE_SECTIONS.includes(tag))) {
        throw corrupt(`section '${tag}' is out of order`);
      }
      if (offset % SECTION_ALIGNMENT || offset < end || offset - end >= SECTION_ALIGNMENT) {
        throw corrupt(`section '${tag}' at ${offset} does not follow what ends at ${end}`);
      }
      view.zeros(end, offset - end);
      view.need(offset, nbytes);
      this.table.set(tag, [...this.table.get(tag) ?? [], row]);
      before = tag;
      end = offset + nbytes;
    }
    return end;
  }
  /** Returns a section; checks its hash at the first use. @param {string} tag @param {number} number */
  async section(tag, number = 0) {
    const row = this.table.get(tag)?.[number];
    const name = number ? `${tag} ${number}` : tag;
    if (!row) throw corrupt(`the file has no section '${name}'`);
    const checked = this._seen.get(name);
    if (checked) return checked;
    const bytes = this.bytes.subarray(row.offset, row.offset + row.nbytes);
    if (!sameBytes(await sha256(bytes), row.digest)) throw corrupt(`section '${name}' is not what its hash says`);
    // typed arrays begin at multiples of their elements, and a file may begin anywhere
    const aligned = tag === "values" && bytes.byteOffset % VALUE_ALIGNMENT ? bytes.slice() : bytes;
    const view = new View(aligned, `section '${name}'`, this._seen.get("strings"));
    this._seen.set(name, view);
    return view;
  }
  /** @param {KernelRow} kernel @returns {Promise<string>} its WGSL */ async wgsl({ label, wgsl: { offset, packed, nbytes } }) {
    const code = await this.section("code"), subject = `kernel '${label}'`;
    if (nbytes > MOST_WGSL) throw corrupt(`${subject}: its WGSL is longer than ${MOST_WGSL} bytes`);
    const text = decode(await unzip(code.part(offset, packed), nbytes, subject), subject);
    checkWgsl(text, subject);
    return text;
  }
  /** Returns the assumed speed of a device by its name. @param {string} device */
  async guess(device) {
    if (!this.table.has("guess")) return new FirstGuess();
    const view = await this.section("guess");
    const { devices, factors: count } = guessHead.read(view, 0), first = guessHead.size + deviceRow.size * devices;
    if (devices > MOST_DEVICES || count > MOST_FACTORS) throw view.corrupt("it has too many rows");
    if (view.bytes.byteLength !== first + factorRow.size * count) throw view.corrupt("it has gaps");
    const rows = view.rows(deviceRow, { count: devices, offset: guessHead.size });
    const factors = view.rows(factorRow, { count, offset: first }).map(({ kernel, times }) => [kernel, rate(times)]);
    const guesses = rows.map(({ pattern, flops_per_ms, bytes_per_ms, launch_ms, first_factor, factors: factorCount }) => {
      if (first_factor + factorCount > count) throw view.corrupt("factors lie outside of it");
      const kernels = Object.fromEntries(factors.slice(first_factor, first_factor + factorCount));
      return { pattern, guess: new FirstGuess(rate(flops_per_ms), rate(bytes_per_ms), launch_ms, kernels) };
    });
    return guesses.find(({ pattern }) => matches(pattern, device))?.guess ?? new FirstGuess();
  }
  /** Returns the golden input and its outputs, or null if the file has none. @returns {Promise<Golden | null>} */
  async golden() {
    if (!this.table.has("golden")) return null;
    const view = await this.section("golden"), { tensors: count, tolerance } = goldenHead.read(view, 0);
    const rows = view.rows(goldenRow, { count, offset: goldenHead.size }), { inputs, outputs } = this.plans[0];
    const places = [...inputs, ...outputs];
    if (!(tolerance >= 0 && tolerance < Infinity) || count !== places.length) {
      throw view.corrupt("it has no tolerance, or other tensors than the network");
    }
    const tensors = places.map(({ name, type, shape, elements }, i) => {
      const row = rows[i], fits = row.role === Number(i >= inputs.length) && TYPES[row.type] === type && row.name === name &&
        String(view.shape(row)) === String(shape);
      if (!fits) throw view.corrupt(`'${row.name}' is not '${name}' of the network`);
      return { name, shape, data: new ARRAYS[type](view.part(row.offset, 4 * elements).slice().buffer) };
    });
    return { tolerance, inputs: tensors.slice(0, inputs.length), outputs: tensors.slice(inputs.length) };
  }
}

/** @param {View} view @param {View} code */ function readKernels(view, code) {
  const { count } = kernelsHead.read(view, 0);
  if (view.bytes.byteLength !== kernelsHead.size + kernelRow.size * count) throw view.corrupt("it has gaps");
  const kernels = view.rows(kernelRow, { count, offset: kernelsHead.size });
  let end = 0;
  for (const { label, params_bytes: bytes, tensors, flags, spirv, wgsl } of kernels) {
    for (const { offset, packed, nbytes } of [spirv, wgsl]) { // none is unpacked twice
      code.need(offset, packed);
      if (packed ? offset !== end || !nbytes : offset || nbytes) {
        throw corrupt(`the code of kernel '${label}' does not lie behind that of the one before`);
      }
      if (nbytes > MOST_SMALLER * packed) throw corrupt(`kernel '${label}' is of no possible size`);
      end += packed;
    }
    if (flags & ~(TRUSTED | SUBGROUPS | F16)) throw corrupt(`kernel '${label}' has the unknown flags ${flags}`);
    const fits = bytes % 16 === 0 && bytes >= 16 && bytes <= MOST_PARAMS && tensors >= 1 && tensors <= MOST_TENSORS &&
      spirv.nbytes % 4 === 0;
    if (!fits) throw corrupt(`kernel '${label}' is of no possible size`);
  }
  if (end !== code.bytes.byteLength) throw code.corrupt("it has code that no kernel has");
  return kernels;
}

// ----------------------------------------------------------------------------------- code
// The same rules with the same numbers as in cml_engine/cooked/wgsl.py, which says why.
/** blanks and comments, then a token or the end */
const TOKEN = /(?:[ \t\r\n]|\/\/[^\r\n]*)*(?:([A-Za-z_][A-Za-z_0-9]*|[0-9][A-Za-z_0-9.]*|->|<<|<=|>=|[!-~])|$)/y;
const ARRAY_SIZE = /^[ \t\r\n]*(?:[iu]32\()?([0-9]{1,9})[iu]?\)?[ \t\r\n]*$/;
const DECLARING = new Set(["fn", "struct", "alias", "const", "override"]);
const ARRAY_TYPES = new Set(["array", "binding_array"]);
/** @type {Record<string, string>} */ const OPENS = { ")": "(", "]": "[", "}": "{" };

/**
 * Refuses code that is longer, more deeply nested or expanded to more than a shader compiler takes.
 * @param {string} text @param {string} subject begins the message
 */
export function checkWgsl(text, subject) {
  if (text.length > MOST_WGSL || text.includes("/*") || !/^[\t\r\n -~]*$/.test(text)) {
    throw corrupt(`${subject}: its WGSL is not ASCII, has comments of several lines, or is longer than ${MOST_WGSL} bytes`);
  }
  const problem = new WgslScanner(text).problem();
  if (problem) throw corrupt(`${subject}: its WGSL ${problem}`);
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
  /** Yields every token and the offset of its end. @returns {Generator<[string, number]>} */
  *tokens() {
    TOKEN.lastIndex = 0;
    for (let match; (match = TOKEN.exec(this.text))?.[1];) {
      const end = TOKEN.lastIndex;
      yield [match[1], end];
      TOKEN.lastIndex = end;
    }
  }
  get top() { return this.brackets[this.brackets.length - 1]; }
  /** @returns {string} the rest of a sentence that begins with "its WGSL"; "" if the code is allowed */ problem() {
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
      if (this.size > MOST_EXPANDED) return `expands to more than ${MOST_EXPANDED} tokens and elements of arrays`;
      before = token;
    }
    return this.brackets.length > 1 ? "has brackets that do not end" : "";
  }
  /** Adds a token to the sizes of all open declarations. @param {string} token @param {string} before */ _count(token, before) {
    const expandedSize = this.sizes.get(token);
    if (DECLARING.has(before)) {
      this.open.push([token, this.brackets.length, this.size]);
    } else if (expandedSize !== undefined) {
      if (expandedSize < 0) return `uses '${token}' before the end of its declaration`;
      this.size += expandedSize;
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
    if (kind === "a" || kind === "<") { // may be a comparison
      this.brackets.pop();
      this.top.pending += pending;
    }
    return "";
  }
  /** Opens or closes a bracket, or ends a statement. @param {string} token */ _bracket(token) {
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

/** @param {number} value per millisecond, or a factor */ function rate(value) {
  if (value < LEAST_COST) throw corrupt(`${value} is no rate`);
  return value;
}

/** Returns true if one of a pattern's words occurs in the name; a word between `\b` must match a whole word. */
/** @param {string} pattern @param {string} name */
function matches(pattern, name) {
  if (!pattern) return true;
  return pattern.split("|").some((word) => {
    const edge = word.startsWith("\\b") && word.endsWith("\\b");
    const bare = edge ? word.slice(2, -2) : word;
    const escaped = bare.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    return new RegExp(edge ? `\\b${escaped}\\b` : escaped, "i").test(name);
  });
}

/** Reads one section `plan`, and refuses one whose parts do not fit together. */
class PlanReader {
  /** @param {CookedFile} file @param {View} view */ constructor(file, view) {
    this.file = file;
    this.view = view;
    this.head = planHead.read(view, 0);
    this.alignment = this.head.needs.storage_alignment;
  }
  /** @returns {Plan} */ read() {
    const { view, head } = this, { needs, spaces, params } = head;
    if (needs.software > 1) throw view.corrupt(`${needs.software} is no kind of driver`);
    for (const alignment of [this.alignment, needs.uniform_alignment]) {
      if (alignment < 4 || alignment > 4096 || alignment & (alignment - 1)) throw view.corrupt(`${alignment} is no alignment`);
    }
    for (const bytes of spaces) {
      if (bytes % 4 || bytes > MOST_BYTES || bytes > needs.buffer_bytes) throw view.corrupt(`a buffer of ${bytes} bytes`);
    }
    if (head.inputs.count > MOST_INPUTS) throw view.corrupt(`${head.inputs.count} inputs`);
    for (const { offset } of [head.steps, head.bindings, head.inputs, head.outputs, head.updates, params, head.constants]) {
      if (offset < planHead.size || offset % TABLE_ALIGNMENT) throw view.corrupt(`a table at ${offset}`);
    }
    return {
      profile: head.profile,
      spaces,
      needs,
      pieces: this._pieces(),
      params: view.part(params.offset, params.count),
      steps: this._steps(),
      inputs: this._tensors(head.inputs),
      outputs: this._tensors(head.outputs),
      updates: view.rows(updateRow, head.updates).map((row) => this._update(row)),
    };
  }
  /** @returns {Piece[]} */ _pieces() {
    const { view } = this, values = this.file.table.get("values")?.[0].nbytes ?? 0;
    let before = 0, end = 0;
    return view.rows(constantRow, this.head.constants).map((row) => {
      const { space, stored, becomes, rank, offset, nbytes, source, extents } = row;
      const matrix = row.matrix === NO_OFFSET ? null : row.matrix;
      if (!rank || rank > MOST_DIMENSIONS) throw view.corrupt(`a constant of ${rank} dimensions`);
      const dims = row.dims.slice(0, rank);
      const behind = row.dims.slice(rank).some(({ extent, axis, step }) => extent || axis || step);
      // the finer dimensions of an axis fill the step of each: no place is left out
      const fill = dims.every(({ extent, axis, step }) =>
        extent && axis < SOURCE_AXES && step === size(dims.filter((d) => d.axis === axis && d.step < step).map((d) => d.extent))
      );
      // the source is no larger than the constant
      const ends = matrix === null ? extents : [extents[0], extents[1], 36, extents[3]];
      const coversSource = ends.every((end, a) => end <= size(dims.filter((d) => d.axis === a).map((d) => d.extent)));
      const count = size(dims.map((d) => d.extent)), width = becomes ? 4 : STORED_BYTES[stored];
      const windows = matrix === null || (width === 4 && becomes !== 2 && extents[2] === 9 && extents[3] === 1 &&
        matrix % VALUE_ALIGNMENT === 0 && matrix + 144 <= values && dims.every(({ axis }) => axis < 3));
      const fits = stored < 7 && becomes < 3 && (becomes === 0) === (stored < 3) && space > 0 && fill && coversSource && windows &&
        !behind && count <= MOST_BYTES && size(extents) <= MOST_BYTES && roundUp(count * width, 4) === nbytes && offset % 4 === 0 &&
        source % VALUE_ALIGNMENT === 0 && source + size(extents) * STORED_BYTES[stored] <= values;
      if (!fits || space < before || (space === before && offset < end)) {
        throw view.corrupt(`a constant of ${nbytes} bytes at ${offset} does not fit its source`);
      }
      [before, end] = [space, offset + nbytes];
      return { ...this._inside(row), matrix, dims, count };
    });
  }
  /** @returns {Step[]} */ _steps() {
    const { view, head: { needs, params, ...head }, file: { kernels } } = this;
    const bindings = view.rows(bindingRow, head.bindings).map((row) => this._binding(row));
    if (bindings.some(({ nbytes }) => nbytes > needs.binding_bytes)) throw view.corrupt("a binding that is too large");
    /** @type {Map<number, number>} parameter blocks */ const blocks = new Map();
    let end = 0, next = 0;
    const steps = view.rows(planStepRow, head.steps).map((row) => {
      const { groups, first_binding: first, bindings: count, writes, params_offset, params_bytes } = row;
      const kernel = kernels[row.kernel];
      if (params_offset === roundUp(end, needs.uniform_alignment) && params_offset + params_bytes <= params.count) {
        view.zeros(params.offset + end, params_offset - end);
        blocks.set(params_offset, params_bytes);
        end = params_offset + params_bytes;
      }
      // bindings follow each other; parameters are a new block or one of an earlier step
      const fits = kernel && groups >= 1 && groups <= 65535 ** 2 && count === kernel.tensors && writes >= 1 &&
        writes <= count && count <= needs.bindings && (!(kernel.flags & SUBGROUPS) || needs.lanes > 0) && first === next &&
        first + count <= bindings.length && params_bytes === kernel.params_bytes && blocks.get(params_offset) === params_bytes;
      next += count;
      if (!fits) throw view.corrupt(`step '${row.title}' does not fit its kernel`);
      return { ...row, bindings: bindings.slice(first, first + count) };
    });
    if (next !== bindings.length || end !== params.count) throw view.corrupt("it has bindings or parameters that no step has");
    return steps;
  }
  /** @param {UpdateRow} row */ _update({ source, target }) {
    if (source.space === target.space || target.space === 1) throw this.view.corrupt("an update within one buffer");
    return { source: this._binding(source), target: this._binding(target) };
  }
  /** @param {BindingRow} row */ _binding(row) {
    const { offset, nbytes } = row;
    if (offset % this.alignment || nbytes % 4 || nbytes < 4) throw this.view.corrupt(`a binding of ${nbytes} bytes at ${offset}`);
    return this._inside(row);
  }
  /** @template {BindingRow} R @param {R} row a range of a buffer @returns {R} */ _inside(row) {
    const { space, offset, nbytes } = row, spaceBytes = this.head.spaces[space];
    if (!(offset + nbytes <= spaceBytes)) {
      throw this.view.corrupt(`${nbytes} bytes at ${offset} lie outside of the ${spaceBytes ?? 0} of buffer ${space}`);
    }
    return row;
  }
  /** @param {Table} table @returns {TensorPlace[]} */ _tensors(table) {
    const { view } = this;
    const names = new Set();
    return view.rows(tensorRow, table).map((row) => {
      const { name, space, offset, nbytes: bytes } = row;
      const type = TYPES[row.type], layout = LAYOUTS[row.layout], shape = view.shape(row), elements = size(shape);
      if (!type || !layout || (layout !== "plain" && (shape.length < 3 || type !== "scalar"))) {
        throw view.corrupt(`'${name}' is a tensor of no known kind`);
      }
      const expectedBytes = elements ? storedBytes(shape, layout) : 0;
      if (bytes !== expectedBytes || offset % this.alignment) {
        throw view.corrupt(`'${name}' [${shape}] takes ${expectedBytes} bytes, not ${bytes}`);
      }
      this._inside({ space, offset, nbytes: roundUp(bytes, 16) });
      if (names.has(name)) throw view.corrupt(`it has '${name}' twice`);
      names.add(name);
      return { name, type, layout, shape, elements, space, offset, bytes };
    });
  }
}

// ------------------------------------------------------------------------------------ constants
/** of numbers by how they are stored: bits, then int8 to uint16 */ const STORED_BYTES = [1, 2, 4, 1, 1, 2, 2];
const STORED_ARRAYS = [Uint8Array, Uint16Array, Uint32Array, Int8Array, Uint8Array, Int16Array, Uint16Array];

/**
 * Returns the elements [first, first + count) of a constant as they are uploaded (docs/cooked.md has the rule).
 * @param {View} values @param {Piece} piece @param {number} first @param {number} count
 */
export function numbersOf(values, piece, first, count) {
  const { stored, becomes, extents, dims, matrix } = piece;
  const part = values.part(piece.source, size(extents) * STORED_BYTES[stored]);
  const Source = matrix !== null && !becomes ? Float32Array : STORED_ARRAYS[stored];
  const source = new Source(part.buffer, part.byteOffset, size(extents));
  const Result = becomes === 1 || matrix !== null ? Float32Array : becomes === 2 ? Int32Array : STORED_ARRAYS[stored];
  const result = new Result(count), ends = [...extents], at = [0, 0, 0, 0];
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
      result[n] = matrix === null ? source[(row * ends[2] + at[2]) * ends[3] + at[3]] : transformed(row, at[2]);
    }
    for (let i = dims.length - 1; i >= 0; i--) {
      const { extent, axis, step } = dims[i];
      at[axis] += step;
      if (++index[i] < extent) break;
      at[axis] -= extent * step;
      index[i] = 0;
    }
  }
  return new Uint8Array(result.buffer);
}

/**
 * Returns a function that computes matrix * window * transposed matrix at a point, in doubles, always in this order.
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

/** Yields each element's index, and its index in blocks of four channels. @param {TensorPlace} place */
function* blocked({ shape: [batch, channels, ...spatial] }) {
  const area = size(spatial), blocks = Math.ceil(channels / 4);
  for (let n = 0, plain = 0; n < batch; n++) {
    for (let c = 0; c < channels; c++) {
      const base = (n * blocks + (c >> 2)) * area * 4 + (c & 3);
      for (let i = 0; i < area; i++) yield [plain++, base + 4 * i];
    }
  }
}

/** Returns the type of arrays that hold a blocked tensor. @param {Layout} layout @returns {any} */
function blockedArray(layout) {
  const ArrayType = layout === "c4" ? Float32Array : /** @type {any} */ (globalThis).Float16Array;
  if (!ArrayType) throw new CmlError("StaleArtifact", "this browser has no Float16Array: cook without --half");
  return ArrayType;
}

/** Returns the bytes of a tensor on the device. @param {TensorPlace} place @param {Numbers} values @returns {ArrayBuffer} */
function toDevice(place, values) {
  if (place.layout === "plain") return /** @type {ArrayBuffer} */ (values.slice().buffer);
  const Stored = blockedArray(place.layout);
  const blocks = new Stored(place.bytes / Stored.BYTES_PER_ELEMENT);
  for (const [from, to] of blocked(place)) blocks[to] = values[from];
  return blocks.buffer;
}

/** Returns the values of a tensor's bytes on the device. @param {TensorPlace} place @param {ArrayBuffer} stored @returns {Numbers} */
function fromDevice(place, stored) {
  if (place.layout === "plain") return new ARRAYS[place.type](stored);
  const blocks = new (blockedArray(place.layout))(stored);
  const values = new Float32Array(place.elements);
  for (const [to, from] of blocked(place)) values[to] = blocks[from];
  return values;
}

// ------------------------------------------------------------------------------------- planning
// The same decisions as in scheduler/planning/, which explains them.

const LEAST_COST = 1e-9;

/** The expected speed of a device on which nothing has been measured: a roofline. */
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
    return count * work * this._factor(step.cost_key);
  }
  /** @param {string} key */ _factor(key) {
    const variant = key.split(" ", 2)[1] ?? "";
    const dash = variant.lastIndexOf("-");
    return this.kernels.get(variant) ?? this.kernels.get(variant.slice(0, Math.max(dash, 0))) ?? 1;
  }
}

/** @param {number} value @param {number} most */
const clip = (value, most) => Math.max(-most, Math.min(most, value));
/** Returns the bucket of a number of workgroups; a bucket is half an octave. @param {number} count */
const bucketOf = (count) => Math.round(2 * Math.log2(count));

/** Returns the middle value, the lower one of two. @param {number[]} values */
const median = (values) => [...values].sort((a, b) => a - b)[(values.length - 1) >> 1];

/** The last times of about `exp(logCount)` workgroups, as logarithms of milliseconds. @typedef {{bucket: number, logCount: number, samples: number, logTimes: number[]}} TimedSize */

/** Returns the closest values that never fall: the weighted means of neighbours that do. @param {number[]} values @param {number[]} weights */
function ascending(values, weights) {
  /** @type {[number, number, number][]} */ const blocks = [];
  values.forEach((value, i) => {
    let weight = weights[i], number = 1;
    while (blocks.length && blocks[blocks.length - 1][0] > value) {
      const [before, beforeWeight, beforeNumber] = /** @type {[number, number, number]} */ (blocks.pop());
      value = (before * beforeWeight + value * weight) / (beforeWeight + weight);
      weight += beforeWeight;
      number += beforeNumber;
    }
    blocks.push([value, weight, number]);
  });
  return blocks.flatMap(([value, , number]) => Array(number).fill(value));
}

/** The time of one cost key as a function of the number of workgroups. */
export class Curve {
  /** @type {TimedSize[]} in the order of their numbers */ sizes = [];
  samples = 0;
  /** @type {{at: number[], logMs: number[]} | null} the sizes that count, with ascending times */ _ordered = null;
  /** @param {number} logCount @param {number} samples @param {number[]} logTimes */
  add(logCount, samples, logTimes) {
    const bucket = bucketOf(Math.max(1, Math.round(Math.exp(logCount))));
    const size = { bucket, logCount, samples, logTimes };
    this.sizes.push(size);
    this.sizes.sort((a, b) => a.logCount - b.logCount);
    this.samples += samples;
    return size;
  }
  /** @param {number} count */ at(count) {
    const bucket = bucketOf(count);
    return this.sizes.find((size) => size.bucket === bucket);
  }
  /** Returns true if about so many workgroups were timed often enough. @param {number} count */
  isSettled(count) {
    const near = bucketOf(count);
    return this.sizes.some(({ bucket, samples }) => Math.abs(bucket - near) <= NEAR && samples >= SETTLED);
  }
  _order() {
    const settled = this.sizes.filter(({ samples }) => samples >= SETTLED), sizes = settled.length ? settled : this.sizes;
    const logMs = ascending(sizes.map(({ logTimes }) => median(logTimes)), sizes.map(({ logTimes }) => logTimes.length));
    return { at: sizes.map(({ logCount }) => logCount), logMs };
  }
  /** Returns the logarithm of the milliseconds. Beyond the sizes, the time grows with the number, but for the launch. */
  /** @param {number} count @param {number} launchMs */ predict(count, launchMs) {
    const { at, logMs } = this._ordered ??= this._order(), x = Math.log(count);
    let above = 0;
    while (above < at.length && at[above] < x) above++;
    if (above === at.length || (above === 0 && at[0] !== x)) {
      const nearest = Math.min(above, at.length - 1), nearestMs = Math.exp(logMs[nearest]), fixedMs = Math.min(launchMs, nearestMs);
      return Math.log(fixedMs + (nearestMs - fixedMs) * Math.exp(x - at[nearest]));
    }
    if (at[above] === x) return logMs[above];
    const share = (x - at[above - 1]) / (at[above] - at[above - 1]);
    return logMs[above - 1] + share * (logMs[above] - logMs[above - 1]);
  }
  /** @param {number} count @param {number} ms */ learn(count, ms) {
    const x = Math.log(count), size = this.at(count) ?? this.add(x, 0, []);
    const usual = size.logTimes.length ? median(size.logTimes) : 0;
    // the number differs a little from the size's own
    size.logTimes.push(Math.log(ms) - (x - size.logCount));
    if (size.logTimes.length > LAST) size.logTimes.shift();
    size.samples += 1;
    this.samples += 1;
    this._ordered = null;
    const newest = size.logTimes.slice(-SETTLED);
    if (Math.min(...newest) > usual + CHANGED || Math.max(...newest) < usual - CHANGED) size.logTimes = newest;
    return size;
  }
}

/** Predicts the time of slices from earlier measurements. */
export class CostModel {
  /** @type {Map<string, Curve>} by cost key */ curves = new Map();
  /** @type {number[]} logarithms of measured over guessed times, of the steps measured last for the first time */ ratios = [];
  /** The least settled time of any step. */ leastMs = Infinity;
  logDrift = 0;
  error = CLIP;
  /** @type {number[]} by how much recent frames exceeded their prediction, the oldest first */ _excess = [];
  /** @type {number[]} the same, ascending */ _sorted = [];
  /** @param {number} share of the frames that may exceed their budget @param {FirstGuess} guess */
  constructor(share = 0.01, guess = new FirstGuess()) {
    this.share = share;
    this.guess = guess;
    if (guess.kernels.size) this.ratios = Array(GUESSED_SAMPLES).fill(0); // measured guesses count as some ratios of 1
  }
  /** Returns the predicted milliseconds of `count` workgroups. @param {StepCost} step @param {number} count */
  predictMs(step, count) {
    if (count <= 0) return 0;
    const curve = this.curves.get(step.cost_key);
    if (curve) return Math.exp(curve.predict(count, Math.min(this.leastMs, this.guess.launchMs)) + this.logDrift);
    const work = this.guess.workMs(step, count), unknown = this.ratios.length ? clip(median(this.ratios), MOST_UNKNOWN) : 0;
    return this.guess.launchMs + work * Math.exp(unknown + this.logDrift);
  }
  /** Returns the largest number of workgroups, at most `limit`, that is predicted to take `ms`. */
  /** @param {StepCost} step @param {number} limit @param {number} ms */
  groupsWithin(step, limit, ms) {
    if (limit <= 0 || ms <= 0) return 0;
    if (this.predictMs(step, limit) <= ms) return limit;
    if (this.predictMs(step, 1) > ms) return 0;
    let low = 1, high = limit;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (this.predictMs(step, middle) <= ms) low = middle;
      else high = middle;
    }
    return low;
  }
  /** Returns true if the step was timed often enough at about `count` workgroups. @param {StepCost} step @param {number} count */
  isSettled(step, count) { return this.curves.get(step.cost_key)?.isSettled(count) ?? false; }
  /** Learns that the slices together took `ms`: a sample of one slice, or of the only one of several whose cost is not settled. */
  /** @param {[StepCost, number][]} all @param {number} ms */
  learn(all, ms) {
    const parts = all.filter(([, count]) => count > 0);
    if (!parts.length || !(ms >= 0 && Number.isFinite(ms)) || (ms === 0 && parts.length > 1)) return;
    if (parts.length === 1) {
      const [[step, count]] = parts;
      if (ms > 0 && this.isSettled(step, count)) this._learnDrift(ms / this.predictMs(step, count));
      this._learnStep(step, count, Math.max(ms, SHORTEST));
      return;
    }
    const predicted = parts.map(([step, count]) => this.predictMs(step, count)), total = sum(predicted);
    const settled = parts.map(([step, count]) => this.isSettled(step, count));
    if (settled.every(Boolean)) return this._learnDrift(ms / total);
    const errors = predicted.map((partMs, i) => (settled[i] ? KNOWN_ERROR : UNKNOWN_ERROR) * partMs);
    const variance = sum(errors.map((error) => error * error));
    parts.forEach(([step, count], i) => {
      const restMs = ms - (total - predicted[i]), others = Math.sqrt(Math.max(0, variance - errors[i] * errors[i]));
      if (!settled[i] && others < MOST_ERROR * restMs) this._learnStep(step, count, restMs);
    });
  }
  /** @param {StepCost} step @param {number} count @param {number} ms */ _learnStep(step, count, ms) {
    let curve = this.curves.get(step.cost_key);
    if (!curve) {
      this.curves.set(step.cost_key, curve = new Curve());
      const workMs = this.guess.workMs(step, count), { launchMs } = this.guess;
      if (workMs > 0 && ms > TELLING_LAUNCHES * launchMs) {
        this.ratios.push(Math.log((ms - launchMs) / workMs) - this.logDrift);
        if (this.ratios.length > RATIOS) this.ratios.shift();
      }
    }
    const size = curve.learn(count, ms / Math.exp(this.logDrift));
    if (size.samples >= SETTLED) this.leastMs = Math.min(this.leastMs, Math.exp(median(size.logTimes)));
  }
  /** Learns that settled steps took `ratio` times the predicted time. @param {number} ratio */ _learnDrift(ratio) {
    const error = clip(Math.log(ratio), CLIP);
    this.logDrift += DRIFT_WEIGHT * clip(error, LITTLE + USUAL * this.error);
    this.error += DRIFT_WEIGHT * (Math.abs(error) - this.error);
  }
  /** Learns by how much a whole frame exceeded its prediction. */
  /** @param {number} predictedMs @param {number} measuredMs @param {number} budgetMs */
  learnFrame(predictedMs, measuredMs, budgetMs) {
    if (!(predictedMs > 0 && measuredMs > 0 && Number.isFinite(predictedMs + measuredMs))) return;
    const lifted = Math.max(0, SMALL * budgetMs - predictedMs);
    this.recordExcess(predictedMs + lifted, measuredMs + lifted, measuredMs - predictedMs > budgetMs);
  }
  /** Counts a hopeless frame as one that did not exceed its prediction. */
  /** @param {number} predictedMs @param {number} measuredMs @param {boolean} hopeless */
  recordExcess(predictedMs, measuredMs, hopeless) {
    const excess = hopeless ? 0 : (measuredMs - predictedMs) / Math.sqrt(predictedMs), sorted = this._sorted;
    if (this._excess.length === WINDOW) sorted.splice(sorted.indexOf(/** @type {number} */ (this._excess.shift())), 1);
    this._excess.push(excess);
    const at = sorted.findIndex((value) => value > excess);
    sorted.splice(at < 0 ? sorted.length : at, 0, excess);
  }
  /** Returns the milliseconds to plan for, so that few frames exceed the budget. @param {number} budgetMs */
  aimMs(budgetMs) {
    const sorted = this._sorted, count = sorted.length, aimed = AIMED_SHARE * this.share;
    if (count < ENOUGH) return budgetMs / PRIOR;
    const rank = Math.ceil((1 - aimed) * (count + 1)) - 1;
    let tail = sorted[Math.min(rank, count - 1)];
    // too few frames were measured to know how rare ones behave
    if (rank >= count) tail += Math.max(0, 0.5 * (tail - sorted[count >> 1]) * (1 - count * aimed));
    const half = 0.5 * Math.max(0, tail);
    return Math.max((Math.sqrt(half * half + budgetMs) - half) ** 2, LEAST_AIM * budgetMs);
  }
  /** Returns the number of measurements of a step's cost key, or of about so many workgroups. @param {StepCost} step @param {number} [count] */
  samples({ cost_key }, count) {
    const curve = this.curves.get(cost_key);
    return (count === undefined ? curve?.samples : curve?.at(count)?.samples) ?? 0;
  }
}

/** @param {unknown} ms */ const isMs = (ms) => typeof ms === "number" && Number.isFinite(ms) && ms >= 0;

/** @typedef {(jobs: Job[], nowMs: number, rate: number) => Job[]} Policy */
/** Orders jobs that are equal otherwise: the highest priority first, then the oldest. @param {Job} a @param {Job} b */
const byRank = (a, b) => b.priority - a.priority || a.number - b.number;

/** Orders jobs by GPU time divided by priority, the least first; ignores deadlines. @type {Policy} */
export const fairShare = (jobs) => [...jobs].sort((a, b) => Number(a.idle) - Number(b.idle) || a.virtualMs - b.virtualMs || byRank(a, b));

/** Orders jobs by priority, the highest first, then the oldest; low priorities may starve. @type {Policy} */
export const byPriority = (jobs) => [...jobs].sort(byRank);

/** Orders jobs whose deadline can still be met by the time to spare, the least first; then all others by fair share. @type {Policy} */
export const leastLaxity = (jobs, nowMs, rate) => {
  /** @type {Map<Job, number>} */ const laxity = new Map();
  /** @type {Set<Job>} jobs that missed their deadlines by little */ const overdue = new Set();
  for (const job of jobs) {
    if (job.deadlineAtMs === null || job.idle) continue;
    const spare = job.deadlineAtMs - nowMs - job.remainingMs / Math.max(rate, 1e-9);
    const overdueMs = nowMs - job.deadlineAtMs;
    if (spare < 0 && !(overdueMs >= 0 && overdueMs <= CATCH_UP_MS)) continue;
    if (spare < 0) overdue.add(job);
    laxity.set(job, spare - (job.group || job.step ? STICKINESS_MS : 0));
  }
  const urgent = [...laxity].sort(([a, x], [b, y]) => Number(overdue.has(a)) - Number(overdue.has(b)) || x - y || byRank(a, b)).map(([job]) => job);
  const ordered = [...urgent, ...fairShare(jobs.filter((job) => !laxity.has(job)), nowMs, rate)];
  const [first] = ordered.filter((job) => nowMs - job.lastServedMs > STARVED_MS && !job.idle)
    .sort((a, b) => a.lastServedMs - b.lastServedMs || a.number - b.number);
  return first ? [first, ...ordered.filter((job) => job !== first)] : ordered;
};

/** @type {Record<string, Policy>} */
export const POLICIES = { least_laxity: leastLaxity, fair_share: fairShare, by_priority: byPriority };

/** @typedef {{job: Job, step: number, first: number, count: number, predictedMs: number, samples?: number, settled?: boolean}} Slice */
/** @typedef {import("./cml.d.ts").Reason} Reason */
/** @typedef {{slices: Slice[], starts: Job[], reason: Reason, byBudget: boolean}} FramePlan */
/**
 * The state from which a frame is planned.
 * @typedef {{nowMs: number, budgetMs: number, aimMs: number, rate: number, granule: number, mostUnsettled: number, gpuBehind: boolean,
 *   otherwise: Reason, policy: Policy, jobs: Job[], costs: CostModel}} FrameState
 */
/** @typedef {(state: FrameState) => FramePlan} Planner */

/** Plans a frame: slices in the policy's order until the aim is reached. @type {Planner} */
export function planFrame(state) {
  /** @type {FramePlan} */ const plan = { slices: [], starts: [], reason: state.otherwise, byBudget: true };
  if (state.budgetMs <= 0) return { ...plan, reason: "budget" };
  if (state.gpuBehind) return { ...plan, reason: "waiting for GPU" };
  /** @type {Set<unknown>} */ const begun = new Set();
  let remainingMs = state.aimMs;
  for (const job of state.policy(state.jobs, state.nowMs, state.rate)) {
    const queued = job.state === "queued", exclusive = exclusivity(job.network);
    if (unsettledIn(plan.slices) >= state.mostUnsettled) return { ...plan, reason: "budget" };
    if (queued && begun.has(exclusive)) continue;
    const added = slicesOf(state, job, remainingMs, plan.slices);
    remainingMs = added.left;
    plan.slices.push(...added.parts);
    if (queued && (added.parts.length || added.ended)) {
      plan.starts.push(job);
      begun.add(exclusive);
    }
    if (!added.ended) return { ...plan, reason: "budget" };
  }
  return plan;
}

/** @param {Slice[]} slices */ const unsettledIn = (slices) => slices.filter(({ settled }) => !settled).length;
/** Returns a slice of a job's step with the state of its cost. @param {CostModel} costs @param {Job} job @param {number} step @param {number} first @param {number} count @param {number} predictedMs @returns {Slice} */
export const plannedSlice = (costs, job, step, first, count, predictedMs) => ({
  job, step, first, count, predictedMs, samples: costs.samples(job.costs[step], count), settled: costs.isSettled(job.costs[step], count),
});

/** @param {FrameState} state @param {Job} job @param {number} left @param {Slice[]} earlier the frame's other slices */
function slicesOf({ aimMs, granule, mostUnsettled, costs }, job, left, earlier) {
  let { step, group } = job, unsettled = unsettledIn(earlier);
  /** @type {Slice[]} */ const parts = [];
  while (step < job.costs.length) {
    const cost = job.costs[step], limit = cost.groups - group, alone = !earlier.length && !parts.length;
    if (left <= (alone ? 0 : MIN_SHARE * aimMs)) break;
    const probing = costs.samples(cost) === 0;
    let count = costs.groupsWithin(cost, limit, probing ? left * PROBE_SHARE : left);
    if (granule > 1 && granule < count && count < limit) count -= count % granule;
    if (!count && alone) count = Math.min(limit, granule);
    if (!count || unsettled >= mostUnsettled) break;
    const predictedMs = costs.predictMs(cost, count);
    const before = parts.at(-1);
    if (before?.step === step) {
      before.count += count;
      before.predictedMs += predictedMs;
    } else {
      parts.push(plannedSlice(costs, job, step, group, count, predictedMs));
      unsettled += Number(!parts[parts.length - 1].settled);
    }
    left -= predictedMs;
    group += count;
    if (group === cost.groups) [step, group] = [step + 1, 0];
    if (probing) break;
  }
  return { parts, left, ended: step >= job.costs.length };
}

// ------------------------------------------------------------------------------------- feedback
/** @typedef {{frame: number, group: number, ms: number}} Timing */
/** @typedef {import("./cml.d.ts").FrameReport & {planned: boolean, encodeMs: number}} FrameReport */
/** @typedef {{report: FrameReport, groups: [StepCost, number][][], ms: Map<number, number>}} InFlight */

/** Waits for the timings of frames and teaches them to a cost model (scheduler/frame_timings.py). */
class Feedback {
  /** @type {InFlight[]} */ _awaited = [];
  /** @type {InFlight | null} */ _encoded = null;
  /** @type {number | null} */ endedMs = null;
  backOff = 1; intervals = 0; without = 0; sinceSkip = SKIP_EVERY; skipDue = false;
  /** @param {boolean} wallClock @param {number} frameMs */ constructor(wallClock, frameMs) {
    this._wallClock = wallClock;
    this._frameMs = this.usualMs = this.intervalMs = frameMs;
  }
  /** @param {FrameReport} report @param {[StepCost, number][][]} groups */
  addFrame(report, groups) { this._encoded = { report, groups, ms: new Map() }; }
  dropFrame() { this._encoded = null; }
  /** @param {Timing[]} timings @param {number} nowMs @param {CostModel} model */ endFrame(timings, nowMs, model) {
    if (this._encoded) this._awaited.push(this._encoded);
    this._encoded = null;
    this._learnInterval(nowMs, model);
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
  /** @param {number} nowMs @param {CostModel} model */ _learnInterval(nowMs, model) {
    const before = this.endedMs, parts = this._awaited.at(-1)?.groups.flat() ?? [];
    this.endedMs = nowMs;
    if (before === null) return;
    const interval = Math.min(nowMs - before, LONGEST * this._frameMs);
    this.intervalMs += Math.max(SMOOTHED, 1 / ++this.intervals) * (interval - this.intervalMs);
    if (!this._wallClock || this.judge(interval, parts.length > 0)) return;
    // a frame in time confirms the estimates of its steps
    for (const [step, count] of parts) if (!model.samples(step)) model.learn([[step, count]], model.predictMs(step, count));
  }
  /** Returns true if a frame was late and its networks may be the reason. @param {number} interval @param {boolean} some */
  judge(interval, some) {
    const late = interval > LATE * this.usualMs, most = this.backOff === MOST_BACK_OFF;
    this.without = some ? 0 : this.without + 1;
    this.sinceSkip = this.without > 1 ? 0 : this.sinceSkip + 1;
    if (this.without > 1) this.skipDue = false;
    const weight = this.without === 2 ? 1 : this.without || (late && most) ? BELIEVED : interval < this.usualMs ? SMOOTHED : 0;
    this.usualMs += weight * (Math.max(interval, this._frameMs) - this.usualMs);
    if (late && some && this.sinceSkip > SKIP_EVERY) this.skipDue = true;
    else if (late && some) this.backOff = Math.min(MOST_BACK_OFF, this.backOff * GROWTH);
    else this.backOff = 1 + (this.backOff - 1) * DECAY ** (interval / this._frameMs);
    return late;
  }
}

/** @param {InFlight} entry @param {CostModel} model */ function learnFrame({ report, groups, ms }, model) {
  report.measuredMs = sum([...ms.values()]);
  const isPredictable = report.planned && report.slices.every(({ settled }) => settled);
  if (isPredictable && report.predictedMs > TELLING_SHARE * report.aimMs) {
    model.learnFrame(report.predictedMs, report.measuredMs, report.budgetMs);
  }
  let first = 0;
  groups.forEach((parts, index) => {
    const took = /** @type {number} */ (ms.get(index));
    model.learn(parts, took);
    // the time of a group is not divided among its slices
    if (parts.length === 1) report.slices[first].measuredMs = took;
    first += parts.length;
  });
  return report;
}

const MAX_FRAMES_IN_FLIGHT = 4;
/** @param {Slice} part */ const costOf = (part) => part.job.costs[part.step];
/** Returns how many slices of a frame can be timed one by one, between groups of the others. @param {number} maxGroups */
const mostTimedAlone = (maxGroups) => Math.max(1, (maxGroups - 1) >> 1);

/** Returns the frame's slices in at most `limit` groups of neighbours; each group is timed: slices whose costs are not settled alone, the others by job. */
/** @param {Slice[]} chosen @param {number} limit @param {number} frame */
function groupSlices(chosen, limit, frame) {
  const allSettled = chosen.every(({ settled }) => settled), tooMany = chosen.length > limit;
  const candidates = chosen.filter(({ settled }) => !settled || (allSettled && frame % APART_EVERY === 0));
  if (tooMany || !allSettled) candidates.sort((a, b) => (a.samples ?? 0) - (b.samples ?? 0));
  const alone = new Set(limit === 1 ? [] : candidates.slice(0, tooMany ? mostTimedAlone(limit) : chosen.length));
  /** @param {boolean} byJob @returns {Slice[][]} */ const runs = (byJob) => {
    /** @type {Slice[][]} */ const found = [];
    for (const part of chosen) {
      const last = found.at(-1)?.at(-1);
      if (last && !alone.has(part) && !alone.has(last) && (!byJob || last.job === part.job)) found[found.length - 1].push(part);
      else found.push([part]);
    }
    return found;
  };
  const groups = runs(true);
  return groups.length > limit ? runs(false) : groups;
}

// ----------------------------------------------------------------------------------------- jobs
/** An input of a job: numbers, a tensor on the GPU, or another job's output. */
/** @typedef {Numbers | number[] | GpuTensor | JobOutput} Input */

/** The future output of a job. A job that has it as an input waits for it. */
export class JobOutput {
  /** @param {Job} job @param {string} name */ constructor(job, name) {
    this.job = job;
    this.name = name;
  }
}

/**
 * The interface of a network for a scheduler; {@link Network} is one on a device.
 * @typedef {{name: string, steps: StepCost[], ready: boolean, busy: boolean, exclusiveGroup?: string | null,
 *   loadTimesMs?: readonly number[], writer?: Job | null, variablesError?: string,
 *   putInputs(encoder: GPUCommandEncoder, inputs: Record<string, any>): void, finish(encoder: GPUCommandEncoder): any}} Playable
 */

/** Returns the key that only one running job may have at a time. @param {Playable} network */
const exclusivity = (network) => network.exclusiveGroup ?? network;

/** @typedef {{number: number, name: string, slot: string | null, priority: number, deadlineAtMs: number | null, nowMs: number}} JobFacts */

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
  consumers = 0;
  /** the number of encoded frames with its work that may not have run yet */ pending = 0;
  /** @type {Job[]} jobs that have read what it wrote in such frames */ dependents = [];
  /** @type {any} its outputs on the device */ result = null;
  /** @param {Scheduler} owner @param {Playable} network @param {Record<string, any>} inputs @param {JobFacts} facts */
  constructor(owner, network, inputs, { number, name, slot, priority, deadlineAtMs, nowMs }) {
    this.owner = owner;
    this.number = number;
    this.network = network;
    this.inputs = inputs;
    this.costs = network.steps;
    this.name = name;
    this.slot = slot;
    this.priority = priority;
    this.idle = priority === 0;
    this.deadlineAtMs = deadlineAtMs;
    this.lastServedMs = nowMs;
  }
  get ended() { return this.state === "done" || this.state === "cancelled" || this.state === "failed"; }
  /** The predicted GPU milliseconds of its remaining work. */
  get remainingMs() { return this.owner.remainingMs(this); }
  /** The share of its work that has been encoded, 0 to 1, by predicted time. */
  get progress() {
    if (this.state === "done") return 1;
    const total = this.remainingMs + this.givenMs;
    return total > 0 ? this.givenMs / total : 0;
  }
  /** The predicted milliseconds until its end if nothing else is submitted; 0 once ended. */
  get etaMs() { return this.owner.etaMs(this); }
  /** @type {Job[]} the jobs whose outputs it takes */
  get producers() { return Object.values(this.inputs).filter((v) => v instanceof JobOutput).map((v) => v.job); }
  /** Returns its future output, to be an input of another job. @param {string} name */
  output(name) { return new JobOutput(this, name); }
  /** Returns an output on the GPU, without a readback. @param {string} name @returns {GpuTensor} */
  tensor(name) {
    this._needDone(name);
    return this.result.tensor(name);
  }
  /** Returns an output as numbers, or null until they have arrived, some frames after the first call. */
  /** @param {string} name @returns {Numbers | null} */
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
  /** Stops the job; no further slice of it runs. */
  cancel() { this.owner.end(this, "cancelled"); }
  /** Runs no slice of the job until {@link resume}; it keeps its memory. */
  pause() { this.paused = true; }
  resume() { this.paused = false; }
  /** Frees the memory of its outputs once no other job needs them. */
  release() {
    this.released = true;
    this.releaseOutputs();
  }
  releaseOutputs() {
    if (!this.released || this.consumers || this.result === null) return;
    this.result.release();
    this.result = null;
  }
  releaseInputs() {
    for (const producer of this.producers) {
      producer.consumers -= 1;
      producer.releaseOutputs();
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

/** @typedef {Pick<Job, "state" | "step" | "group" | "givenMs" | "virtualMs">} Progress of a job, to which an abandoned frame returns it */

/** Networks within a budget of GPU milliseconds per frame: {@link encode}, the host's own submit, {@link endFrame}. */
export class Scheduler {
  /** @type {Map<number, Job>} that have not ended */ _jobs = new Map();
  /** the least virtual time of jobs that ended since the last frame: of normal and of idle ones */ _left = [Infinity, Infinity];
  /** @type {Job[]} */ _begun = [];
  /** @type {Job[]} */ reads = [];
  /** @type {Map<Job, Progress> | null} of the open frame: what its jobs were before */ _open = null;
  /** @type {Map<Playable, number[]>} */ _workLeft = new Map();
  /** @type {FrameReport | null} */ lastReport = null;
  /** @type {Planner} */ planner = planFrame;
  /** @type {number | null} the milliseconds to plan for; null: the budget less the margin */ aimMs = null;
  /** the next frames run nothing */
  rests = false;
  frame = 0;
  _number = 0;
  _budgetMs = 0;
  _nowMs = -Infinity;
  _rate = 0;
  /** @typedef {{frameMs?: number, budgetMs?: number, overShare?: number, policy?: Policy, clock?: () => number}} Options */
  /** @param {GPUDevice | Executor} device @param {Options} options */
  constructor(device, options = {}) {
    this.frameMs = checkMs("frameMs", options.frameMs ?? 1000 / 60);
    this.budgetMs = checkMs("budgetMs", options.budgetMs ?? 4);
    const share = options.overShare ?? 0.01;
    if (!(share > 0 && share < 1)) throw refused(`overShare is ${share}: wanted between 0 and 1`);
    this.policy = options.policy ?? leastLaxity;
    this.clock = options.clock ?? (() => performance.now());
    this.executor = "encodeGroups" in device ? device : Executor.on(device);
    this.executor.onFrameLost = (jobs, why) => jobs.forEach((job) => this._invalidate(job, why));
    this.costModel = new CostModel(share);
    this.feedback = new Feedback(this.executor.clockSource === "wall clock", this.frameMs);
  }
  /** Returns the jobs that have not ended, the oldest first. */
  get jobs() { return [...this._jobs.values()].sort((a, b) => a.number - b.number); }
  get _running() { return this.jobs.filter(({ state }) => state === "running"); }
  _now() {
    const now = this.clock();
    if (now >= this._nowMs && now < Infinity) this._nowMs = now;
    return this._nowMs;
  }
  /** Submits a run of the network on these inputs. Arrays of numbers are copied now. */
  /** @typedef {import("./cml.d.ts").SubmitOptions & Partial<JobFacts>} SubmitOptions */
  /** @param {Playable} network @param {Record<string, Input>} inputs @param {SubmitOptions} options */
  submit(network, inputs, options = {}) {
    const nowMs = this._now(), { deadlineMs, name = network.name, slot = null, number = this._number } = options;
    const deadlineAtMs = options.deadlineAtMs ??
      (deadlineMs === undefined ? null : nowMs + checkMs("deadlineMs", deadlineMs));
    const priority = checkMs("priority", options.priority ?? 1);
    const job = new Job(this, network, this.executor.accept(network, inputs), { number, name, slot, priority, deadlineAtMs, nowMs });
    for (const producer of job.producers) producer.consumers += 1;
    if (!this._number && network instanceof Network) this.costModel = new CostModel(this.costModel.share, network.guess);
    network.loadTimesMs?.forEach((ms, i) => {
      const cost = network.steps[i];
      if (!this.costModel.samples(cost)) this.costModel.learn([[cost, cost.groups]], ms);
    });
    this._number = Math.max(this._number, number) + 1;
    if (slot !== null) {
      for (const old of this.jobs) if (old.slot === slot && old.state === "queued") this.end(old, "cancelled");
      this._left = [Infinity, Infinity];
    }
    // it starts level with the others, and does not catch up on time before it
    const levels = this.jobs.filter(({ idle }) => idle === job.idle).map(({ virtualMs }) => virtualMs);
    const level = Math.min(this._left[Number(job.idle)], ...levels);
    job.virtualMs = level < Infinity ? level : 0;
    this._jobs.set(number, job);
    return job;
  }
  /** @param {Job} job @param {"done" | "cancelled" | "failed"} state @param {string} error */
  end(job, state, error = "") {
    if (job.ended) return;
    const began = job.state === "running";
    job.state = state;
    job.error = error;
    this._jobs.delete(job.number);
    this._left[Number(job.idle)] = Math.min(this._left[Number(job.idle)], job.virtualMs);
    if (began) job.network.busy = false;
    if (state !== "done") job.releaseInputs();
  }
  /** Fails a job whose results are wrong, and those that have read them. @param {Job} job @param {string} why */
  _invalidate(job, why) {
    if (job.state === "failed" || job.state === "cancelled") return;
    if (job.state === "done" && job.network.writer) job.network.variablesError = why;
    this.end(job, "failed", why);
    [job.state, job.error] = ["failed", why]; // even where it was done
    for (const taker of job.dependents.splice(0)) this._invalidate(taker, why);
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
    const sums = getOrMake(this._workLeft, job.network, () => {
      const all = [0];
      for (const cost of [...job.costs].reverse()) all.push(all[all.length - 1] + this.costModel.predictMs(cost, cost.groups));
      return all.reverse();
    });
    const current = job.costs[job.step];
    return this.costModel.predictMs(current, current.groups - job.group) + sums[job.step + 1];
  }
  // --- a frame
  /** Appends this frame's slices to the host's encoder; nothing if the last frame was not ended. */
  /** @param {GPUCommandEncoder} encoder @param {number} budgetMs of this frame @returns {FrameReport} */
  encode(encoder, budgetMs = this.budgetMs) {
    const start = performance.now(), nowMs = this._now();
    if (isMs(budgetMs)) this._budgetMs = budgetMs;
    const aim = this.aimMs ?? this.costModel.aimMs(this._budgetMs) / this.feedback.backOff;
    /** @type {FrameReport} */ const report = {
      frame: this.frame, nowMs, budgetMs: this._budgetMs, aimMs: this.rests || this.feedback.skipDue ? 0 : aim, slices: [],
      reason: "frame not ended", finished: [], predictedMs: 0, measuredMs: null, planned: true,
      cpuMs: 0, encodeMs: 0,
    };
    if (this._open) return report;
    this._rate = aim / this.frameMs;
    this._workLeft.clear();
    this._left = [Infinity, Infinity];
    this._open = new Map(this._running.map((job) => [job, progressOf(job)]));
    const plan = this._begin(encoder, report);
    for (const part of plan.slices) this._apply(part, report);
    report.reason = plan.reason;
    report.planned = plan.byBudget;
    const groups = groupSlices(plan.slices, this.executor.maxGroups, this.frame);
    const encoding = performance.now();
    this._append(encoder, report, groups);
    this.feedback.addFrame(report, groups.map((group) => group.map((part) => [costOf(part), part.count])));
    this.lastReport = report;
    const end = performance.now();
    report.encodeMs = end - encoding;
    report.cpuMs = end - start;
    return report;
  }
  /** The most slices of a frame whose costs are not settled: all are to be timed. */
  get _mostUnsettled() {
    return this.executor.clockSource === "timestamps" ? mostTimedAlone(this.executor.maxGroups) : Infinity;
  }
  /** Plans the frame and starts the jobs that begin in it. @param {GPUCommandEncoder} encoder @param {FrameReport} report */
  _begin(encoder, report) {
    const { jobs, otherwise } = this._candidates();
    /** @type {FrameState} */ let state = {
      nowMs: report.nowMs, budgetMs: report.budgetMs, aimMs: report.aimMs, rate: this._rate,
      granule: this.executor.granule, mostUnsettled: this._mostUnsettled, otherwise, policy: this.policy, jobs, costs: this.costModel,
      gpuBehind: this.executor.framesInFlight >= MAX_FRAMES_IN_FLIGHT || !this.executor.canWriteReceipt,
    };
    for (;;) {
      const plan = this.planner(state);
      const refusing = plan.starts.find((job) => !this._start(encoder, job));
      if (!refusing) return plan;
      const busy = this._busy(refusing.ended ? [] : [refusing]);
      const candidates = state.jobs.filter((job) =>
        job !== refusing && (job.state === "running" || !busy.has(exclusivity(job.network)))
      );
      state = { ...state, jobs: candidates };
    }
  }
  /** Returns the groups that the running jobs and the `others` use. @param {Job[]} others */
  _busy(others = []) { return new Set([...this._running, ...others].map((job) => exclusivity(job.network))); }
  /** Returns the state with the jobs that can run now: not paused, inputs complete, network ready and free. */
  _candidates() {
    /** @type {Reason} */ let otherwise = "nothing to do";
    const busy = this._busy();
    /** @type {Job[]} */ const jobs = [];
    for (const job of this.jobs) {
      const lost = job.state === "queued" &&
        job.producers.find((m) => m.ended && (m.state !== "done" || m.result === null));
      if (lost) {
        this.end(job, "failed", `its input's job '${lost.name}' has no outputs: ${lost.state}`);
      } else if (job.paused || (job.state === "queued" && job.producers.some((m) => !m.ended))) {
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
      if (job.network.variablesError) {
        throw new CmlError("JobError", `the variables of network '${job.network.name}' are wrong, call reset(): ${job.network.variablesError}`);
      }
      job.network.putInputs(encoder, job.inputs);
      job.network.busy = true;
    } catch (error) {
      this.end(job, "failed", messageOf(error));
      return false;
    }
    for (const source of [...job.producers, job.network.writer]) if (source?.pending) source.dependents.push(job);
    this._open?.set(job, progressOf(job));
    this._begun.push(job);
    job.state = "running";
    return true;
  }
  /** @param {Slice} part @param {FrameReport} report */ _apply({ job, step, first, count, predictedMs, settled }, report) {
    const { op, title, groups } = job.costs[step];
    [job.step, job.group] = first + count === groups ? [step + 1, 0] : [step, first + count];
    job.givenMs += predictedMs;
    job.virtualMs += predictedMs / (job.priority || 1);
    job.lastServedMs = report.nowMs;
    report.predictedMs += predictedMs;
    report.slices.push({ job: job.number, step, op, title, first, count, predictedMs, measuredMs: null, settled: !!settled });
  }
  /** Encodes the slices, then the outputs of the jobs that have ended, then the readbacks. */
  /** @param {GPUCommandEncoder} encoder @param {FrameReport} report @param {Slice[][]} groups */
  _append(encoder, report, groups) {
    const worked = new Set([...groups.flat().map((part) => part.job), ...this._begun]);
    try {
      this.executor.check();
      this.executor.encodeGroups(encoder, report.frame, groups);
    } catch (error) {
      report.reason = "device error";
      for (const job of this.jobs) this.end(job, "failed", messageOf(error));
    }
    for (const job of this._running) {
      if (job.step < job.costs.length || !this.executor.canWriteReceipt) continue;
      worked.add(job);
      try {
        job.result = job.network.finish(encoder);
      } catch (error) {
        this.end(job, "failed", messageOf(error));
        continue;
      }
      if (job.result === null) continue; // waits for memory for its outputs
      this.end(job, "done");
      if (job.network.writer !== undefined) job.network.writer = job;
      report.finished.push(job.number);
      if (job.wantsRead) this.reads.push(job);
    }
    for (const job of this.executor.canWriteReceipt ? this.reads.splice(0) : []) {
      if (job.result !== null) this.executor.requestRead(encoder, job.result);
    }
    this.executor.writeReceipt(encoder, report.frame, [...worked]);
  }
  /** Ends a frame after the host's submit. Learns from timings that have arrived, and returns the reports of these frames. */
  endFrame() {
    this._open = null;
    for (const job of this._begun.splice(0)) job.releaseInputs();
    const timings = this.executor.endFrame(this.frame).filter(({ ms }) => isMs(ms));
    this.frame += 1;
    return this.feedback.endFrame(timings, this._now(), this.costModel);
  }
  /** Ends a frame whose encoder is not submitted; call it in place of {@link endFrame}. */
  abandonFrame() {
    for (const [job, before] of this._open ?? []) {
      if (job.state === "cancelled" || job.state === "failed") continue;
      if (job.state === "done") {
        job.result?.release();
        [job.result, job.released] = [null, false];
      }
      job.network.busy = before.state === "running";
      Object.assign(job, before);
      this._jobs.set(job.number, job);
    }
    if (!this._open) return;
    this._open = null;
    this._begun = [];
    this.executor.abandonFrame(this.frame);
    this.feedback.dropFrame();
    this.frame += 1;
  }
}

/** @param {Job} job @returns {Progress} */
const progressOf = ({ state, step, group, givenMs, virtualMs }) => ({ state, step, group, givenMs, virtualMs });
/** @param {string} name @param {unknown} value @returns {number} */ function checkMs(name, value) {
  if (isMs(value)) return /** @type {number} */ (value);
  throw refused(`${name} is ${value}: wanted a finite number of 0 or more`);
}

// --------------------------------------------------------------------------------- on the device
/** Deno has subgroups if it knows their size, but neither lists the feature nor accepts the line that enables it. */
const DENO = "Deno" in globalThis;
/** @type {any[]} */ const WANTED_FEATURES = ["timestamp-query", "shader-f16", "subgroups"];
/** The device's limits by the needs of a plan; those of alignments (`min…`) are the most that a plan allows. */
/** @type {[keyof Needs, string][]} */ const LIMIT_OF_NEED = [
  ["storage_alignment", "minStorageBufferOffsetAlignment"], ["uniform_alignment", "minUniformBufferOffsetAlignment"],
  ["binding_bytes", "maxStorageBufferBindingSize"], ["buffer_bytes", "maxBufferSize"],
  ["threads", "maxComputeInvocationsPerWorkgroup"], ["shared_bytes", "maxComputeWorkgroupStorageSize"],
  ["bindings", "maxStorageBuffersPerShaderStage"],
];

/** Requests a device with the features and limits that networks use. A host that makes its own requests the same. @param {GPURequestAdapterOptions} options */
export async function requestDevice(options = { powerPreference: "high-performance" }) {
  const adapter = await navigator.gpu?.requestAdapter(options);
  if (!adapter) throw new CmlError("DeviceError", missingWebGpu());
  const unlisted = DENO && /** @type {any} */ (adapter.info).subgroupMinSize > 0 ? "subgroups" : "";
  const requiredFeatures = WANTED_FEATURES.filter((name) => adapter.features.has(name) || name === unlisted);
  const limits = /** @type {Record<string, any>} */ (/** @type {unknown} */ (adapter.limits));
  const names = [...LIMIT_OF_NEED.map(([, name]) => name), "maxComputeWorkgroupSizeX"];
  const requiredLimits = Object.fromEntries(names.map((name) => [name, limits[name]]));
  const descriptor = { requiredFeatures, requiredLimits };
  return await adapter.requestDevice(/** @type {GPUDeviceDescriptor} */ (descriptor));
}

function missingWebGpu() {
  if (navigator.gpu) {
    return "WebGPU finds no GPU that it can use: update the graphics driver, and switch on graphics acceleration in the " +
      "browser's settings";
  }
  if (/** @type {any} */ (globalThis).isSecureContext === false) {
    return "this page has no WebGPU because its address is not secure: serve it by https or from localhost";
  }
  return "this browser has no WebGPU: use Chrome or Edge 113, Safari 26, Firefox 141, or newer";
}

/** A device with the objects that its networks share. */
class Device {
  /** @type {WeakMap<GPUDevice, Device>} */ static _known = new WeakMap();
  /** @type {Map<string, Promise<GPUComputePipeline>>} */ _pipelines = new Map();
  /** @type {Map<string, GPUBindGroupLayout>} */ _layouts = new Map();
  lost = "";
  /** @param {GPUDevice} gpu */ static of(gpu) { return getOrMake(Device._known, gpu, () => new Device(gpu)); }
  /** @param {GPUDevice} gpu */ constructor(gpu) {
    this.gpu = gpu;
    const info = gpu.adapterInfo;
    const parts = [info?.description, info?.vendor, info?.architecture, info?.device];
    this.name = parts.filter((word) => /\D/.test(word ?? "")).join(" ") || "an unnamed device";
    this.software = /llvmpipe|softpipe|swiftshader|software|basic render/i.test(this.name);
    this.timed = gpu.features.has("timestamp-query");
    gpu.lost.then(({ message, reason }) => this.lost = message || String(reason));
  }
  check() { if (this.lost) throw new CmlError("DeviceError", `the device is lost: ${this.lost}`); }
  /**
   * Runs `make`, and throws an error that begins with `problem` if the device refuses it.
   * @template T @param {ErrorCode} code @param {string} problem @param {() => T} make
   */
  async createChecked(code, problem, make) {
    this.check();
    this.gpu.pushErrorScope("out-of-memory");
    this.gpu.pushErrorScope("validation");
    let created, error;
    try {
      created = make();
    } catch (raised) {
      error = raised;
    }
    const scopes = await Promise.all([this.gpu.popErrorScope(), this.gpu.popErrorScope()]);
    error ??= scopes[0] ?? scopes[1];
    if (error) throw new CmlError(scopes[1] ? "DeviceError" : code, `${problem}: ${messageOf(error)}`);
    return /** @type {T} */ (created);
  }
  /** @param {number} tensors @param {number} paramsBytes */ layout(tensors, paramsBytes) {
    return getOrMake(this._layouts, `${tensors} ${paramsBytes}`, () => {
      const visibility = GPUShaderStage.COMPUTE;
      /** @type {GPUBindGroupLayoutEntry[]} */ const entries = [
        { binding: 0, visibility, buffer: { type: "uniform", hasDynamicOffset: true, minBindingSize: 16 } },
        { binding: 1, visibility, buffer: { type: "uniform", minBindingSize: paramsBytes } },
      ];
      for (let i = 0; i < tensors; i++) entries.push({ binding: i + 2, visibility, buffer: { type: "storage" } });
      return this.gpu.createBindGroupLayout({ entries });
    });
  }
  /** @param {KernelRow} kernel @param {string} code */ pipeline(kernel, code) {
    // the key is the code itself, because a file's digest may be wrong
    const key = `${kernel.tensors} ${kernel.params_bytes} ${code}`;
    return getOrMake(this._pipelines, key, () => {
      const built = this._build(kernel, code);
      built.catch(() => this._pipelines.delete(key));
      return built;
    });
  }
  /** @param {KernelRow} kernel @param {string} code */ async _build({ label, tensors, params_bytes }, code) {
    const problem = `the device does not take kernel '${label}'`;
    /** @type {[GPUShaderModule, GPUPipelineLayout]} */
    const [module, layout] = await this.createChecked("KernelError", problem, () => [
      this.gpu.createShaderModule({ label, code: DENO ? code.replace("enable subgroups;", "") : code }),
      this.gpu.createPipelineLayout({ bindGroupLayouts: [this.layout(tensors, params_bytes)] }),
    ]);
    try {
      const compute = { module, entryPoint: "main" };
      return await this.gpu.createComputePipelineAsync({ label, layout, compute });
    } catch (error) {
      this.check();
      throw new CmlError("KernelError", `${problem}: ${messageOf(error)}`);
    }
  }
}

/** Returns the first plan of the file that fits the device. @param {CookedFile} file @param {Device} device */
function choosePlan(file, device) {
  const limits = /** @type {any} */ (device.gpu.limits), { features } = device.gpu;
  const reasons = [];
  const lanes = /** @type {any} */ (device.gpu.adapterInfo)?.subgroupMinSize ?? 0;
  const inOrder = [...file.plans].sort((a, b) => device.software ? b.needs.software - a.needs.software : 0);
  for (const plan of inOrder) {
    const { needs } = plan, lacks = [];
    for (const [need, name] of LIMIT_OF_NEED) {
      const needed = needs[need], has = limits[name], atMost = name.startsWith("min");
      if (atMost ? has > needed : has < needed) lacks.push(`${name} of at ${atMost ? "most" : "least"} ${needed}, the device has ${has}`);
    }
    for (const { label, flags, wgsl } of new Set(plan.steps.map((step) => file.kernels[step.kernel]))) {
      if (!wgsl.packed) lacks.push(`WGSL of kernel '${label}', the file has none`);
      if (flags & SUBGROUPS && !features.has("subgroups")) lacks.push("the feature 'subgroups'");
      if (flags & F16 && !features.has("shader-f16")) lacks.push("the feature 'shader-f16'");
    }
    if (needs.lanes > lanes) lacks.push(`subgroups of ${needs.lanes}, the device has ${lanes}`);
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
 * Reads and checks a cooked file, uploads its weights and builds its pipelines. Frames go on
 * meanwhile.
 * @param {GPUDevice} gpu @param {ArrayBuffer | Uint8Array<ArrayBuffer> | CookedFile} source
 * @param {{outputUsage?: number, limits?: Partial<Limits>, onProgress?: (done: number, total: number) => void}} options
 *   `outputUsage`: of the outputs' buffers, beside storage and copies (as GPUBufferUsage.VERTEX); `limits`: other than the
 *   defaults for what the file may take; `onProgress`: called with the built kernels and their number
 */
export async function loadCooked(gpu, source, options = {}) {
  const file = source instanceof CookedFile ? source : await CookedFile.open(source, options.limits);
  const device = Device.of(gpu);
  const network = new Network(file, choosePlan(file, device), device, options.outputUsage ?? 0);
  try {
    await network._load(await file.guess(device.name), options.onProgress);
  } catch (error) {
    network.destroy();
    throw error;
  }
  return network;
}

/** A network on a device; {@link loadCooked} makes it. */
export class Network {
  ready = false;
  busy = false;
  /** @type {number[]} the milliseconds of each step at load, on a device that cannot time passes */ loadTimesMs = [];
  /** @type {Job | null | undefined} the last job that wrote the variables; undefined if it has none */ writer;
  /** why its variables are wrong */ variablesError = "";
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
    if (plan.updates.length) this.writer = null;
    this._outputUsage = usage;
    this._stride = Math.max(device.gpu.limits.minUniformBufferOffsetAlignment, 16);
    this._width = device.gpu.limits.maxComputeWorkgroupsPerDimension;
    let at = 0;
    /** outputs follow each other in a job's buffer */
    this.outputs = new Map(plan.outputs.map((place) => {
      const here = { place, at };
      at += roundUp(place.bytes, COPY_ALIGNMENT);
      return [place.name, here];
    }));
    this.outputBytes = Math.max(at, COPY_ALIGNMENT);
    this.inputs = new Map(plan.inputs.map((place) => [place.name, place]));
  }
  /** @param {FirstGuess} guess @param {(done: number, total: number) => void} [onProgress] */ async _load(guess, onProgress) {
    const { gpu } = this.device, { plan } = this, usage = GPUBufferUsage;
    this.guess = guess;
    const tensors = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST;
    const uniform = usage.UNIFORM | usage.COPY_DST;
    const sizes = [...plan.spaces, this._stride * (plan.steps.length + RANGE_SLOTS), plan.params.length];
    const problem = `no memory for network '${this.name}'`;
    this._buffers = await this.device.createChecked("DeviceError", problem, () => sizes.map((bytes, i) => {
      const size = Math.max(roundUp(bytes, 16), 16);
      return gpu.createBuffer({ size, usage: i < 3 ? tensors : uniform, label: this.name });
    }));
    await this._upload(plan.pieces);
    this._writeUniforms();
    const kernels = plan.steps.map((step) => this.file.kernels[step.kernel]);
    /** @type {Map<KernelRow, GPUComputePipeline>} */ const built = new Map();
    const different = new Set(kernels);
    onProgress?.(0, different.size);
    await Promise.all([...different].map(async (kernel) => {
      built.set(kernel, await this.device.pipeline(kernel, await this.file.wgsl(kernel)));
      onProgress?.(built.size, different.size);
    }));
    await this.device.createChecked("StaleArtifact", `the device does not run network '${this.name}'`, () => {
      this._launches = plan.steps.map((step, i) => {
        const pipeline = /** @type {GPUComputePipeline} */ (built.get(kernels[i]));
        return { pipeline, group: this._bindGroup(step, kernels[i]) };
      });
      this._rehearse();
    });
    if (!this.device.timed) await this._measure();
    this.ready = true;
  }
  /** Uploads the constants in chunks, so that frames go on. @param {Piece[]} pieces */
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
    const padded = new Uint8Array(roundUp(bytes.length, 4));
    padded.set(bytes);
    this.device.gpu.queue.writeBuffer(this._buffers[space], at, padded);
  }
  /** Writes every step's parameters and its full range; called once. */
  _writeUniforms() {
    const { steps, params } = this.plan;
    const slices = new Uint32Array(this._stride / 4 * steps.length);
    steps.forEach((step, i) => slices.set([0, step.groups, this._width], i * this._stride / 4));
    this._write(3, 0, new Uint8Array(slices.buffer));
    this._write(4, 0, params);
  }
  /** @param {Step} step @param {KernelRow} kernel */ _bindGroup(step, kernel) {
    const tensors = step.bindings.map(({ space, offset, nbytes }, i) => ({
      binding: i + 2, resource: { buffer: this._buffers[space], offset, size: nbytes },
    }));
    const params = { buffer: this._buffers[4], offset: step.params_offset, size: step.params_bytes };
    const layout = this.device.layout(kernel.tensors, kernel.params_bytes);
    const slice = { binding: 0, resource: { buffer: this._buffers[3], size: 16 } };
    const entries = [slice, { binding: 1, resource: params }, ...tensors];
    return this.device.gpu.createBindGroup({ label: step.title, layout, entries });
  }
  /** Encodes a whole run without submitting it, so that the device reports its errors now. */
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
  /** @param {string} name @param {any} value @returns {any} the job's copy */ accept(name, value) {
    const place = this.inputs.get(name);
    if (!place) {
      const inputNames = [...this.inputs.keys()].join(", ") || "(none)";
      throw refused(`network '${this.name}' has no input '${name}'; it has ${inputNames}`);
    }
    const expected = `input '${name}': wanted ${place.type} [${place.shape}]`;
    if (value instanceof ARRAYS[place.type] || Array.isArray(value)) {
      if (value.length === place.elements) return toDevice(place, ARRAYS[place.type].from(value));
      throw refused(`${expected}, got ${value.length} numbers for its ${place.elements}`);
    }
    const tensor = value instanceof JobOutput ? placeOfOutput(value) : value;
    if (!tensor?.shape) throw refused(`${expected} as ${ARRAYS[place.type].name}, got ${typeof value}`);
    const same = ["type", "layout"].every((key) => tensor[key] === /** @type {any} */ (place)[key]);
    if (!same || String(tensor.shape) !== String(place.shape) || tensor.bytes !== place.bytes) {
      throw refused(`${expected} ${place.layout}, got ${tensor.type} [${tensor.shape}] ${tensor.layout}`);
    }
    const { buffer, offset } = tensor;
    if (buffer && !(offset % 4 === 0 && offset >= 0 && offset + place.bytes <= buffer.size &&
        buffer.usage & GPUBufferUsage.COPY_SRC && !this._buffers.includes(buffer))) {
      throw refused(`${expected} in a buffer with COPY_SRC, at a multiple of 4, inside of it`);
    }
    return value;
  }
  /** Copies accepted inputs to where the network reads them. @param {GPUCommandEncoder} encoder @param {Record<string, any>} inputs */
  putInputs(encoder, inputs) {
    for (const [name, value] of Object.entries(inputs)) {
      const { space, offset, bytes } = /** @type {TensorPlace} */ (this.inputs.get(name));
      if (!bytes) continue;
      if (value instanceof ArrayBuffer) this._write(space, offset, new Uint8Array(value));
      else {
        const tensor = value instanceof JobOutput ? value.job.result.tensor(value.name) : value;
        const { buffer, offset: at } = tensor;
        encoder.copyBufferToBuffer(buffer, at, this._buffers[space], offset, bytes);
      }
    }
  }
  /** Encodes copies of the outputs, then of the variables' new values. @param {GPUCommandEncoder} encoder */
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
    for (const { source, target } of this.plan.updates) {
      const [from, to] = [source, target].map(({ space }) => this._buffers[space]);
      encoder.copyBufferToBuffer(from, source.offset, to, target.offset, Math.min(source.nbytes, target.nbytes));
    }
  }
  /** Resets variables to their values in the file. */
  async reset() {
    for (const { target: { space, offset, nbytes } } of this.plan.updates) {
      await this._upload(this.plan.pieces.filter((piece) =>
        piece.space === space && piece.offset < offset + nbytes && piece.offset + piece.nbytes > offset
      ));
    }
    if (this.writer) this.writer = null;
    this.variablesError = "";
  }
  /**
   * Runs the whole network and waits for the outputs: for tools and tests, not for frames.
   * @param {Record<string, Numbers | number[] | GpuTensor>} inputs @returns {Promise<Record<string, Numbers>>}
   */
  async run(inputs) {
    if (this.busy || this.variablesError) {
      const why = this.variablesError ? `has wrong variables, call reset(): ${this.variablesError}` : "is running a job";
      throw new CmlError("JobError", `network '${this.name}' ${why}`);
    }
    const accepted = acceptAll(this, inputs);
    const encoder = this.device.gpu.createCommandEncoder();
    this.putInputs(encoder, accepted);
    this.encodeAll(encoder);
    const result = this.finish(encoder);
    result.requestRead(encoder);
    this.device.gpu.queue.submit([encoder.finish()]);
    await result.map();
    result.submitted = true;
    const outputs = Object.fromEntries([...this.outputs.keys()].map((name) => [name, result.read(name)]));
    result.release();
    return /** @type {Record<string, Numbers>} */ (outputs);
  }
  /** Measures every step's time, for a device that cannot time passes. */
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

/** @param {JobOutput} output */ function placeOfOutput({ job, name }) {
  const output = job.network instanceof Network && job.network.outputs.get(name);
  if (!output) throw refused(`job '${job.name}' has no output '${name}'`);
  return output.place;
}

/** The outputs of one job, in a buffer of their own. */
class Result {
  /** @type {GPUBuffer | null} */ staging = null;
  /** @type {Map<string, Numbers> | null} */ values = null;
  /** @type {Promise<void> | null} */ mapping = null;
  /** true if the frames that computed and copied it have run */ submitted = false;
  released = false;
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
  /** Maps the copied outputs; their numbers arrive later. */
  async map() {
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
      this.error = messageOf(error);
    }
    this.staging = null;
  }
  /** @param {string} name @returns {Numbers | null} */ read(name) {
    if (this.error) throw new CmlError("DeviceError", `the readback failed: ${this.error}`);
    this._place(name);
    return this.submitted ? this.values?.get(name) ?? null : null;
  }
  /** @param {string} name @returns {GpuTensor} */ tensor(name) {
    const { place: { bytes, shape, type, layout }, at } = this._place(name);
    return { buffer: this.buffer, offset: at, bytes, shape, type, layout };
  }
  /** @param {string} name */ _place(name) {
    const output = this.network.outputs.get(name);
    if (output) return output;
    const outputNames = [...this.network.outputs.keys()].join(", ");
    throw refused(`network '${this.network.name}' has no output '${name}'; it has ${outputNames}`);
  }
  release() {
    this.released = true;
    if (this.network.ready) this.network._outputs.push(this.buffer);
    else this.buffer.destroy();
  }
}

const MAX_GROUPS = 12, SLOTS = 8, AGE = 2, RECEIPTS = 256;
/** empty passes before the timed ones on a software driver, and how many of their times are kept */
const LEAD = 2, EMPTY = 15;
/** the least share of a pass's time that is left without the time of an empty pass */
const LEAST_LEFT = 0.1;
/** the nanoseconds to which browsers round timestamps by default */
const ROUNDED = [100_000n, 65_536n];

/**
 * A buffer for one frame's timestamps and its receipt: a number that a command of the frame copies, so that it is missing
 * if the frame was never submitted.
 * @typedef {{index: number, staging: GPUBuffer, frame: number, passes: number, receipt: number, jobs: Job[],
 *   reads: Result[], mapping: boolean, data: ArrayBuffer | null}} FrameSlot
 */

/** Encodes a scheduler's slices on a device, and reads timings and outputs back. */
export class Executor {
  maxGroups = MAX_GROUPS;
  /** @type {FrameSlot[]} */ _free = [];
  /** @type {FrameSlot[]} */ _busy = [];
  /** @type {FrameSlot | null} of the frame that is being encoded */ _current = null;
  /** @type {Result[]} */ _reads = [];
  /** @type {Result[]} */ _again = [];
  /** @type {Timing[]} */ _timings = [];
  /** Called with the jobs that had work in a frame that never ran. @type {(jobs: Job[], why: string) => void} */ onFrameLost = () => {};
  _signed = 0;
  _frame = 0;
  /** @type {number[]} the last times of empty passes */ _emptyMs = [];
  /** @param {GPUDevice} gpu */ static on(gpu) { return new Executor(Device.of(gpu)); }
  /** @param {Device} device */ constructor(device) {
    this.device = device;
    this.clockSource = device.timed ? "timestamps" : "wall clock";
    this.granule = device.software ? navigator.hardwareConcurrency || 1 : 1;
    // on a software driver each pass is timed from the end of the one before; see _stamp()
    this._each = device.software ? 1 : 2;
    this._passes = MAX_GROUPS + (device.software ? LEAD : 0);
    const count = SLOTS * this._each * this._passes;
    this._receiptAt = 8 * this._each * this._passes;
    this._bytes = roundUp(this._receiptAt + 4, COPY_ALIGNMENT);
    const { gpu } = device, usage = GPUBufferUsage, label = "frame scheduler";
    this._table = gpu.createBuffer({ size: 4 * RECEIPTS, usage: usage.COPY_SRC | usage.COPY_DST, label });
    gpu.queue.writeBuffer(this._table, 0, Uint32Array.from({ length: RECEIPTS }, (_, i) => i + 1));
    for (let index = 0; index < SLOTS; index++) {
      const staging = gpu.createBuffer({ size: this._bytes, usage: usage.MAP_READ | usage.COPY_DST, label });
      this._free.push({ index, staging, frame: -1, passes: 0, receipt: 0, jobs: [], reads: [], mapping: false, data: null });
    }
    if (!device.timed) return;
    this._queries = gpu.createQuerySet({ type: "timestamp", count, label });
    this._resolved = gpu.createBuffer({ size: SLOTS * this._bytes + 8, usage: usage.QUERY_RESOLVE | usage.COPY_SRC, label });
  }
  get framesInFlight() { return this._busy.filter((slot) => slot.mapping && this._frame - slot.frame >= AGE).length; }
  /** Returns true if the current frame can leave a receipt; without one no job may end in it. */
  get canWriteReceipt() { return this._current !== null || this._free.length > 0; }
  check() { this.device.check(); }
  /** @param {any} network @param {Record<string, any>} inputs */ accept(network, inputs) {
    if (network instanceof Network && network.device === this.device) return acceptAll(network, inputs);
    throw refused("submit a network that loadCooked() made on the scheduler's own device");
  }
  /** @param {number} frame */ _begin(frame) {
    const slot = this._free.shift();
    if (!slot) return null;
    this._signed += 1;
    Object.assign(slot, { frame, passes: 0, receipt: this._signed % RECEIPTS + 1, mapping: false, data: null });
    this._busy.push(slot);
    return this._current = slot;
  }
  /** @param {GPUCommandEncoder} encoder @param {number} frame @param {Slice[][]} groups */
  encodeGroups(encoder, frame, groups) {
    for (const result of this._again.splice(0)) if (!result.released) this.requestRead(encoder, result);
    const slot = groups.length && this._begin(frame) && this._queries ? this._current : undefined;
    // the first empty pass ends when all work before it has, the second shows what _stamp() costs
    for (let lead = 0; slot && this._each === 1 && lead < LEAD; lead++) {
      encoder.beginComputePass({ timestampWrites: this._writes(slot) }).end();
      this._stamp(encoder, slot);
    }
    for (const group of groups) {
      const pass = encoder.beginComputePass({ label: "cml", timestampWrites: slot ? this._writes(slot) : undefined });
      for (const { job, step, first, count } of group) {
        /** @type {Network} */ (job.network).encodeRange(pass, step, first, count);
      }
      pass.end();
      if (slot) this._stamp(encoder, slot);
    }
    if (!slot || !this._queries || !this._resolved) return;
    const at = slot.index * this._bytes, count = this._each * slot.passes;
    encoder.resolveQuerySet(this._queries, slot.index * this._each * this._passes, count, this._resolved, at);
    encoder.copyBufferToBuffer(this._resolved, at, slot.staging, 0, 8 * count);
  }
  /** @param {FrameSlot} slot @returns {GPUComputePassTimestampWrites} */ _writes(slot) {
    const at = this._each * (slot.index * this._passes + slot.passes++);
    const querySet = /** @type {GPUQuerySet} */ (this._queries);
    if (this._each === 1) return { querySet, endOfPassWriteIndex: at };
    return { querySet, beginningOfPassWriteIndex: at, endOfPassWriteIndex: at + 1 };
  }
  /**
   * Has a software driver write the timestamp of the last pass now. Once llvmpipe has drawn anything, it runs compute work at
   * once but queues timestamps with the tiles to be drawn: one is then written at any time during the next pass, unless the
   * driver has to wait for it.
   * @param {GPUCommandEncoder} encoder @param {FrameSlot} slot
   */
  _stamp(encoder, slot) {
    if (this._each !== 1 || !this._queries || !this._resolved) return;
    encoder.resolveQuerySet(this._queries, slot.index * this._passes + slot.passes - 1, 1, this._resolved, SLOTS * this._bytes);
  }
  /** @param {GPUCommandEncoder} encoder @param {Result} result */
  requestRead(encoder, result) {
    result.requestRead(encoder);
    this._reads.push(result);
  }
  /** Encodes the receipt of a frame with work of these jobs. @param {GPUCommandEncoder} encoder @param {number} frame @param {Job[]} jobs */
  writeReceipt(encoder, frame, jobs) {
    const slot = this._current ?? (jobs.length || this._reads.length ? this._begin(frame) : null);
    if (!slot) return;
    encoder.copyBufferToBuffer(this._table, 4 * (slot.receipt - 1), slot.staging, this._receiptAt, 4);
    slot.jobs = jobs;
    slot.reads = [...this._reads];
    for (const job of jobs) job.pending += 1;
  }
  /** Maps the buffers of frames that are old enough, and returns the timings that have arrived. @param {number} frame @returns {Timing[]} */
  endFrame(frame) {
    const age = this._reads.length ? 0 : AGE; // outputs are handed out once all frames that computed them have run
    this._current = null;
    this._frame = frame + 1;
    for (const result of this._reads.splice(0)) result.mapping = result.map();
    for (const slot of this._busy) if (!slot.mapping && frame - slot.frame >= age) this._mapSlot(slot);
    return this._timings.splice(0);
  }
  /** @param {FrameSlot} slot */ async _mapSlot(slot) {
    slot.mapping = true;
    try {
      await slot.staging.mapAsync(GPUMapMode.READ);
      slot.data = slot.staging.getMappedRange().slice(0);
      slot.staging.unmap();
    } catch {
      // the device is lost; the next frame reports it
      slot.data = new ArrayBuffer(0);
    }
    while (this._busy[0]?.data) this._settle(/** @type {FrameSlot} */ (this._busy.shift()));
  }
  /** Reads the timings of a frame, or finds that it never ran. @param {FrameSlot} slot */ _settle(slot) {
    const { frame, passes, receipt, reads } = slot, data = /** @type {ArrayBuffer} */ (slot.data);
    const jobs = this._releaseSlot(slot);
    if (data.byteLength && new DataView(data).getUint32(this._receiptAt, true) !== receipt) {
      this.onFrameLost(jobs, `frame ${frame} was encoded and never submitted, so its numbers are wrong. Submit every encoder, or call abandonFrame()`);
      for (const result of reads) {
        result.mapping?.then(() => {
          result.values = null;
          this._again.push(result);
        });
      }
      return;
    }
    for (const job of jobs) if (!job.pending) job.dependents = [];
    for (const result of reads) result.submitted = true;
    if (!data.byteLength) return;
    const times = this._milliseconds(new BigInt64Array(data, 0, this._each * passes));
    times.forEach((ms, group) => this._timings.push({ frame, group, ms }));
  }
  /** Frees a slot. @param {FrameSlot} slot @returns {Job[]} the jobs that had work in its frame */ _releaseSlot(slot) {
    const { jobs } = slot;
    for (const job of jobs) job.pending -= 1;
    [slot.jobs, slot.reads] = [[], []];
    this._free.push(slot);
    return jobs;
  }
  /** @param {BigInt64Array} ticks */ _milliseconds(ticks) {
    const starts = this._each === 1 ? ticks.slice(0, -1) : ticks.filter((_, i) => i % 2 === 0);
    const ends = this._each === 1 ? ticks.slice(1) : ticks.filter((_, i) => i % 2 === 1);
    const unit = ROUNDED.find((each) => ticks.every((tick) => tick % each === 0n)) ?? 0n;
    const times = [...ends].map((end, i) => Number(end - starts[i]) * 1e-6);
    let emptyMs = 0;
    if (this._each === 1) {
      this._emptyMs.push(/** @type {number} */ (times.shift()));
      if (this._emptyMs.length > EMPTY) this._emptyMs.shift();
      emptyMs = median(this._emptyMs);
    }
    // a pass as short as an empty one has some time left; a time below the clock's resolution counts as a quarter of it: 0 would
    // mean unmeasured
    return times.map((ms) => Math.max(LEAST_LEFT * ms, ms - emptyMs, Number(unit) / 4e6, 0));
  }
  /** Drops a frame whose commands will never be submitted. @param {number} frame */
  abandonFrame(frame) {
    if (this._current) this._releaseSlot(/** @type {FrameSlot} */ (this._busy.pop()));
    this._current = null;
    this._frame = frame + 1;
    this._again.push(...this._reads.splice(0));
  }
}
