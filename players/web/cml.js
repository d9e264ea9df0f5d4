// @ts-check
// The C player (players/c) reads files, plans and schedules, as WebAssembly in `core.js`; here are
// its functions of the page's device, and the classes of `cml.d.ts`, which documents them.
/** @typedef {import("./cml.d.ts").ErrorCode} ErrorCode */
/** @typedef {import("./cml.d.ts").DType} DType */
/** @typedef {import("./cml.d.ts").Layout} Layout */
/** @typedef {import("./cml.d.ts").Numbers} Numbers */
/** @typedef {import("./cml.d.ts").GpuTensor} GpuTensor */
/** @typedef {import("./cml.d.ts").Limits} Limits */
/** @typedef {import("./cml.d.ts").Reason} Reason */
/** @typedef {import("./cml.d.ts").FrameReport} FrameReport */
/** An input or output, and its place in the buffer of a job's outputs. @typedef {import("./cml.d.ts").TensorInfo & {shape: number[], at: number}} Place */
/** @typedef {{op: string, title: string, groups: number}} Step */

/** The class of all errors that this module raises deliberately. */
export class CmlError extends Error {
  /** @param {ErrorCode} code @param {string} message the problem, expected against got, the next step */
  constructor(code, message) {
    super(message);
    this.name = "CmlError";
    this.code = code;
  }
}

/** @param {string} message */ const refused = (message) => new CmlError("InputError", message);
/** @param {string} message */ const corrupt = (message) => new CmlError("CorruptArtifact", message);
/** @param {unknown} error */ const messageOf = (error) => String(/** @type {any} */ (error)?.message ?? error);
/** Returns the value of a key; makes it if it is missing. @template K, V @param {{get(key: K): V | undefined, set(key: K, value: V): unknown}} map @param {K} key @param {() => V} make */
export function getOrMake(map, key, make) {
  const existing = map.get(key);
  if (existing !== undefined) return existing;
  const value = make();
  map.set(key, value);
  return value;
}

// ------------------------------------------------------------------------------------- the core
/** the values of enumerations of cml.h */
const OK = 0, PENDING = 1, ERROR_DEVICE = 7;
/** @type {ErrorCode[]} by cml_status */
const CODES = [
  "DeviceError", "DeviceError", "CorruptArtifact", "StaleArtifact", "InputError", "DeviceError", "InputError", "DeviceError", "InputError",
];
const STATES = /** @type {const} */ (["gone", "queued", "running", "done", "cancelled", "failed"]);
/** @type {Reason[]} */
const REASONS = ["nothing to do", "budget", "waiting for GPU", "preparing", "all waiting", "frame not ended", "device error"];
/** @type {DType[]} */ const TYPES = ["scalar", "integer", "logical"];
/** @type {Layout[]} */ const LAYOUTS = ["plain", "c4", "c4h"];
const ARRAYS = { scalar: Float32Array, integer: Int32Array, logical: Uint32Array };

/** The functions that `core.c` exports; null until {@link startCore} has ended. @type {any} */ let core = null;
/** @type {Promise<void> | null} */ let starting = null;
/** @type {WebAssembly.Memory} */ let memory;
/** @type {number} */ let resultsAt;
/** The page's objects that the core has handles of. @type {any[]} */ const objects = [null];
/** @type {number[]} */ const unused = [];

/** @param {unknown} object @returns {number} its handle */ function keep(object) {
  const handle = unused.pop() ?? objects.length;
  objects[handle] = object;
  return handle;
}
/** @param {number} handle */ function drop(handle) {
  objects[handle] = null;
  unused.push(handle);
}
/** The core's memory, until it grows. */ const heap = () => /** @type {ArrayBuffer} */ (memory.buffer);
/** @param {number} at @param {number} length */ const bytesAt = (at, length) => new Uint8Array(heap(), at, length);
/** @param {number} at @param {number} length */ const wordsAt = (at, length) => new Uint32Array(heap(), at, length);
/** @param {number} at @param {number} length */ const doublesAt = (at, length) => new Float64Array(heap(), at, length);
/** Returns what the last call has left. @param {number} count */ const results = (count) => doublesAt(resultsAt, count);
/** @param {number} at @param {number} length */ const textAt = (at, length) => new TextDecoder().decode(bytesAt(at, length));
/** @param {number} at of a text with an end mark */ function stringAt(at) {
  const bytes = new Uint8Array(heap(), at);
  return textAt(at, bytes.indexOf(0));
}

/** Copies bytes into the core's memory. @param {ArrayLike<number>} bytes @returns {number} their address, for {@link free} */
function put(bytes) {
  const at = core.allocate(Math.max(bytes.length, 1));
  if (!at) throw new CmlError("DeviceError", `the page has no memory for ${bytes.length} bytes`);
  bytesAt(at, bytes.length).set(bytes);
  return at;
}
/** @param {string} text */ const putText = (text) => put(new TextEncoder().encode(`${text}\0`));
/** @param {readonly number[]} numbers */ const putDoubles = (numbers) => put(new Uint8Array(Float64Array.from(numbers).buffer));
/** @param {number} at */ const free = (at) => core.deallocate(at);
/** Calls a function with the address of bytes in the core's memory, which are freed then. @template T @param {number} at @param {(at: number) => T} call */
function lend(at, call) {
  try {
    return call(at);
  } finally {
    free(at);
  }
}

/** Returns a message at an address; names of C become those of JavaScript. @param {number} at */
const messageAt = (at) => stringAt(at).replace(/cml_(\w+)/g, (_, name) => name.replace(/_(\w)/g, (/** @type {any} */ _, /** @type {string} */ c) => c.toUpperCase()));

/** Returns the error of the last call. */
const coreError = () => new CmlError(CODES[core.error_status()], messageAt(core.error_text()));

/** Compiles the core, once. @returns {Promise<void>} */
function startCore() {
  return starting ??= compileCore().catch((error) => {
    starting = null;
    throw error;
  });
}

async function compileCore() {
  if (typeof WebAssembly === "undefined") {
    throw new CmlError("DeviceError", "this browser has no WebAssembly, or it is switched off (in a lockdown mode): switch it on for this page");
  }
  /** @type {Uint8Array<ArrayBuffer>} */ let packed;
  try {
    packed = Uint8Array.from(atob((await import("./core.js")).default), (c) => c.charCodeAt(0));
  } catch (error) {
    throw new CmlError("DeviceError", `core.js, which belongs beside cml.js, cannot be loaded (in a clone, \`python -m players.build\` makes it): ${messageOf(error)}`);
  }
  const bytes = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  try {
    const { instance } = await WebAssembly.instantiate(bytes, { cml: imports });
    memory = /** @type {WebAssembly.Memory} */ (instance.exports.memory);
    core = Object.fromEntries(Object.entries(instance.exports).map(([name, call]) => [name, typeof call === "function" ? guarded(call) : call]));
  } catch (error) {
    throw new CmlError("DeviceError", `this page may not run WebAssembly (a Content-Security-Policy needs 'wasm-unsafe-eval'): ${messageOf(error)}`);
  }
  core._initialize?.();
  resultsAt = core.results();
}

/** why the core must not be called any more */ let broken = "";
/** Returns a function of the core whose traps become errors. @param {Function} call */
const guarded = (call) => (/** @type {any[]} */ ...words) => {
  if (broken) throw new CmlError("DeviceError", broken);
  try {
    return call(...words);
  } catch (error) {
    if (!(error instanceof WebAssembly.RuntimeError) && !(error instanceof RangeError)) throw error;
    broken = `the player has failed and is stopped, reload the page: ${error.message}`;
    throw new CmlError("DeviceError", broken);
  }
};

// --------------------------------------------------------------------------- the core's backend
/** The errors of a network's objects. @typedef {{pending: number, error: CmlError | null, outputUsage: number}} Scope */
/** A buffer; `data` is the address of its mapped bytes. @typedef {{buffer: GPUBuffer, device: Device, owned: boolean, mapping: object | null, state: number, data: number}} Buffer */
/** @typedef {{layout: GPUBindGroupLayout, pipeline: GPUComputePipeline | null}} Pipeline */

/** Records an error, of which a scope keeps the first one. @param {Scope} scope @param {ErrorCode} code @param {string} message */
function fail(scope, code, message) { scope.error ??= new CmlError(code, message); }

/** Functions of the names in core.c, whose numbers of 64 bits are BigInts. @type {Record<string, (...words: any[]) => any>} */
const imports = {
  now: () => performance.now(),
  log: Math.log,
  log2: Math.log2,
  exp: Math.exp,
  pow: Math.pow,
  /** Writes a cml_device_info. */
  get_info(device, couldBe, at) {
    if (couldBe) return 0;
    const { gpu: { limits, features, adapterInfo }, name, software, timed } = objects[device];
    const [buffer, binding, ...others] = LIMIT_NAMES.map((limit) => limits[limit]);
    bytesAt(at, 332).fill(0).set(new TextEncoder().encode(name).subarray(0, 255));
    new BigUint64Array(heap(), at + 256, 2).set([BigInt(buffer), BigInt(binding)]);
    wordsAt(at + 272, 7).set([...others, (features.has("subgroups") && adapterInfo?.subgroupMinSize) || 0]);
    doublesAt(at + 304, 1)[0] = timed ? 1e-6 : 0;
    wordsAt(at + 312, 5).set([features.has("shader-f16"), 0, 1, software, software]);
    return 1;
  },
  create_scope: () => keep({ pending: 0, error: null, outputUsage: 0 }),
  poll_scope(_, handle, text, room) {
    /** @type {Scope} */ const { error, pending } = objects[handle];
    if (!error) return pending ? PENDING : OK;
    if (room) bytesAt(text, room).fill(0).set(new TextEncoder().encode(error.message).subarray(0, room - 1));
    return ERROR_DEVICE;
  },
  release(_, handle) {
    const object = objects[handle];
    if (object.owned) object.buffer.destroy();
    drop(handle);
  },
  create_buffer(device, scope, usage, bytes) {
    const { gpu } = objects[device], u = GPUBufferUsage, size = Number(bytes);
    const usages = [
      u.STORAGE | u.COPY_SRC | u.COPY_DST | objects[scope].outputUsage, u.UNIFORM | u.COPY_DST,
      u.COPY_SRC | u.COPY_DST | (gpu.features.has("timestamp-query") ? u.QUERY_RESOLVE : 0), u.MAP_READ | u.COPY_DST,
    ];
    const create = () => gpu.createBuffer({ size, usage: usages[usage], label: "cml" });
    const buffer = objects[device].check(objects[scope], "DeviceError", `no memory for ${size} bytes`, create);
    return buffer ? keep({ buffer, device: objects[device], owned: true, mapping: null, state: 0, data: 0 }) : 0;
  },
  adopt_buffer(_, handle, __, size) {
    const buffer = objects[handle];
    new BigUint64Array(heap(), size, 1)[0] = BigInt(buffer.size);
    return keep({ buffer, owned: false });
  },
  write_buffer(device, _, to, at, data, size) { objects[device].gpu.queue.writeBuffer(objects[to].buffer, Number(at), heap(), data, Number(size)); },
  create_pipeline(device, scope, kernel) {
    const [label, length, _, code, size, tensors, paramsBytes] = wordsAt(kernel, 7);
    return keep(objects[device].pipeline(objects[scope], textAt(label, length), textAt(code, size), tensors, paramsBytes));
  },
  create_bindings(device, scope, pipeline, ranges, count) {
    const entries = Array.from({ length: count }, (_, binding) => {
      const words = wordsAt(ranges + 24 * binding, 6), [offset, size] = [2, 4].map((i) => words[i] + 2 ** 32 * words[i + 1]);
      return { binding, resource: { buffer: objects[words[0]].buffer, offset, size } };
    });
    const { layout } = objects[pipeline];
    try {
      return keep(objects[device].gpu.createBindGroup({ layout, entries }));
    } catch (error) {
      fail(objects[scope], "StaleArtifact", messageOf(error));
      return 0;
    }
  },
  /** Runs recorded commands, each of six words. */
  run(device, at, count) {
    const words = wordsAt(at, count), target = objects[device];
    for (let i = 0; i < count; i += 6) {
      switch (words[i]) {
        case 3:
          target.pass.setPipeline(objects[words[i + 1]].pipeline);
          target.pass.setBindGroup(0, objects[words[i + 2]], words, i + 3, 1);
          target.pass.dispatchWorkgroups(words[i + 4], words[i + 5]);
          break;
        case 1:
          target.pass = target.encoder.beginComputePass({ label: "cml", timestampWrites: target.writes(words[i + 1], words[i + 2]) });
          break;
        case 2:
          target.pass.end();
          break;
        case 4:
          target.encoder.copyBufferToBuffer(
            objects[words[i + 1]].buffer, 4 * words[i + 2], objects[words[i + 3]].buffer, 4 * words[i + 4], 4 * words[i + 5],
          );
          break;
        case 5:
          target.encoder.resolveQuerySet(target.queries, words[i + 1], words[i + 2], objects[words[i + 3]].buffer, 4 * words[i + 4]);
      }
    }
  },
  map(_, handle) {
    /** @type {Buffer} */ const mapped = objects[handle], mapping = {};
    Object.assign(mapped, { mapping, state: PENDING, data: 0 });
    const end = (/** @type {number} */ state) => {
      if (mapped.mapping !== mapping) return;
      mapped.state = state;
      for (const one of mapped.device.schedulers) core.take_slots(one);
    };
    mapped.buffer.mapAsync(GPUMapMode.READ).then(() => end(OK), () => end(ERROR_DEVICE));
  },
  poll_mapped(_, handle, data) {
    /** @type {Buffer} */ const mapped = objects[handle];
    if (mapped.state !== OK) return mapped.state;
    try {
      mapped.data ||= put(new Uint8Array(mapped.buffer.getMappedRange()));
    } catch {
      return ERROR_DEVICE;
    }
    wordsAt(data, 1)[0] = mapped.data;
    return OK;
  },
  unmap(_, handle) {
    /** @type {Buffer} */ const mapped = objects[handle];
    mapped.mapping = null;
    if (mapped.data) free(mapped.data);
    mapped.data = 0;
    mapped.buffer.unmap();
  },
  order(at) { schedulers.get(at)?.deref()?._order(); },
};

/** Deno has subgroups if it knows their size, but neither lists the feature nor accepts the line that enables it. */
const DENO = "Deno" in globalThis;
/** @type {any[]} */ const WANTED_FEATURES = ["timestamp-query", "shader-f16", "subgroups"];
/** The limits that decide whether a network runs, in the order of cml_device_info. */
const LIMIT_NAMES = [
  "maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage", "minStorageBufferOffsetAlignment",
  "minUniformBufferOffsetAlignment", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupStorageSize",
  "maxComputeWorkgroupsPerDimension",
];
/** CML_QUERIES of cml_backend.h */ const QUERIES = 224;

/** Requests a device with the features and limits that networks use. A host that makes its own requests the same. @param {GPURequestAdapterOptions} options */
export async function requestDevice(options = { powerPreference: "high-performance" }) {
  const adapter = await navigator.gpu?.requestAdapter(options);
  if (!adapter) throw new CmlError("DeviceError", missingWebGpu());
  await startCore();
  const unlisted = DENO && /** @type {any} */ (adapter.info).subgroupMinSize > 0 ? "subgroups" : "";
  const requiredFeatures = WANTED_FEATURES.filter((name) => adapter.features.has(name) || name === unlisted);
  const limits = /** @type {Record<string, any>} */ (/** @type {unknown} */ (adapter.limits));
  const requiredLimits = Object.fromEntries([...LIMIT_NAMES, "maxComputeWorkgroupSizeX"].map((name) => [name, limits[name]]));
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
  /** @type {Set<number>} addresses of its schedulers */ schedulers = new Set();
  /** @type {any} */ encoder = null;
  /** @type {any} */ pass = null;
  lost = "";
  /** @param {GPUDevice} gpu */ static of(gpu) {
    if (!gpu) throw refused(`the device is ${gpu}: requestDevice() makes one`);
    return getOrMake(Device._known, gpu, () => new Device(gpu));
  }
  /** @param {GPUDevice} gpu */ constructor(gpu) {
    this.gpu = gpu;
    const info = /** @type {any} */ (gpu.adapterInfo);
    const parts = [info?.description, info?.vendor, info?.architecture, info?.device];
    this.name = parts.filter((word) => /\D/.test(word ?? "")).join(" ") || "an unnamed device";
    this.software = /llvmpipe|softpipe|swiftshader|software|basic render/i.test(this.name);
    this.timed = gpu.features.has("timestamp-query");
    if (this.timed) this.queries = gpu.createQuerySet({ type: "timestamp", count: QUERIES, label: "cml" });
    this.at = keep(this);
    /** the scheduler that owns the networks, and runs them whole */
    this.owner = this.createScheduler(0.01, 0, OWNER_JOBS);
    gpu.lost.then(({ message, reason }) => {
      this.lost = message || String(reason);
      for (const one of this.schedulers) core.device_lost(one);
    });
  }
  /** @param {number} share @param {number} policy @param {number} jobs @returns {number} its address */
  createScheduler(share, policy, jobs) {
    const granule = this.software ? navigator.hardwareConcurrency || 1 : 1;
    const at = core.create(this.at, share, policy, jobs, granule);
    if (!at) throw coreError();
    this.schedulers.add(at);
    return at;
  }
  checkLost() { if (this.lost) throw new CmlError("DeviceError", `the device is lost: ${this.lost}`); }
  /** Runs `make`; the scope gets an error that begins with `problem` if the device refuses it, now or later. */
  /** @template T @param {Scope} scope @param {ErrorCode} code @param {string} problem @param {() => T} make @returns {T | null} */
  check(scope, code, problem, make) {
    this.gpu.pushErrorScope("out-of-memory");
    this.gpu.pushErrorScope("validation");
    let made = null;
    try {
      made = make();
    } catch (error) {
      if (error instanceof CmlError) scope.error ??= error;
      else fail(scope, code, `${problem}: ${messageOf(error)}`);
    }
    scope.pending += 2;
    for (let i = 0; i < 2; i++) {
      this.gpu.popErrorScope().then((error) => error && fail(scope, code, `${problem}: ${messageOf(error)}`), () => {}).then(() => scope.pending -= 1);
    }
    return made;
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
  /** Begins to compile a kernel. @param {Scope} scope @param {string} label @param {string} code @param {number} tensors @param {number} paramsBytes @returns {Pipeline} */
  pipeline(scope, label, code, tensors, paramsBytes) {
    /** @type {Pipeline} */ const made = { layout: this.layout(tensors, paramsBytes), pipeline: null };
    const problem = `the device does not take kernel '${label}'`, key = `${tensors} ${paramsBytes} ${code}`;
    const building = getOrMake(this._pipelines, key, () => {
      const built = this._build(problem, label, code, made.layout);
      built.catch(() => this._pipelines.delete(key));
      return built;
    });
    scope.pending += 1;
    building.then((pipeline) => made.pipeline = pipeline, (error) => {
      if (this.lost) fail(scope, "DeviceError", `the device is lost: ${this.lost}`);
      else fail(scope, "KernelError", messageOf(error));
    }).then(() => scope.pending -= 1);
    return made;
  }
  /** @param {string} problem @param {string} label @param {string} code @param {GPUBindGroupLayout} layout */
  async _build(problem, label, code, layout) {
    /** @type {Scope} */ const scope = { pending: 0, error: null, outputUsage: 0 };
    const module = this.check(scope, "KernelError", problem, () =>
      this.gpu.createShaderModule({ label, code: DENO ? code.replace("enable subgroups;", "") : code })
    );
    if (scope.error || !module) throw scope.error;
    try {
      const compute = { module, entryPoint: "main" };
      return await this.gpu.createComputePipelineAsync({ label, layout: this.gpu.createPipelineLayout({ bindGroupLayouts: [layout] }), compute });
    } catch (error) {
      throw scope.error ?? new CmlError("KernelError", `${problem}: ${messageOf(error)}`);
    }
  }
  /** The timestamps of a pass. @param {number} begin @param {number} end queries, or all bits set @returns {any} */
  writes(begin, end) {
    if (end > QUERIES) return undefined;
    if (begin > QUERIES) return { querySet: this.queries, endOfPassWriteIndex: end };
    return { querySet: this.queries, beginningOfPassWriteIndex: begin, endOfPassWriteIndex: end };
  }
}

// ---------------------------------------------------------------------------------------- files
/** What the core has of objects that nothing refers to any more. */
const collected = new FinalizationRegistry((/** @type {() => void} */ end) => { if (!broken) end(); });

/** A cooked file whose header, section table and used sections have been checked. */
export class CookedFile {
  /** @type {Map<string, {offset: number, nbytes: number}[]>} the sections by tag */ table = new Map();
  /** @type {Record<string, unknown>} */ meta = {};
  /** the addresses of the opened file and of its bytes; 0: it is closed */ _at = 0;
  _bytesAt = 0;
  /** @param {Uint8Array<ArrayBuffer>} bytes @param {Partial<Limits>} limits */ constructor(bytes, limits) {
    this.bytes = bytes;
    this._limits = limits;
  }
  /** Reads and checks everything but kernels, which are checked when they are used. */
  /** @param {ArrayBuffer | Uint8Array<ArrayBuffer>} source @param {Partial<Limits>} limits other than the defaults */
  static async open(source, limits = {}, withKernels = false) {
    await startCore();
    const file = new CookedFile(source instanceof Uint8Array ? source : new Uint8Array(source), limits);
    await file._open(withKernels);
    file._readMeta();
    return file;
  }
  async _open(withKernels = false) {
    if (this._at) return;
    const { code_bytes = 0, device_bytes = 0, kernels = 0, steps = 0 } = this._limits, bytesAddress = put(this.bytes);
    const at = core.open_file(bytesAddress, this.bytes.length, code_bytes, device_bytes, kernels, steps);
    if (!at) {
      const error = coreError();
      free(bytesAddress);
      throw error;
    }
    [this._at, this._bytesAt] = [at, bytesAddress];
    collected.register(this, () => release(at, bytesAddress), this);
    await this._confirm();
    if (core.check_file(at, Number(withKernels)) !== OK) {
      const error = coreError();
      this._close();
      throw error;
    }
  }
  /** Computes the sections' hashes on another thread; the core computes those that do not match. */
  async _confirm() {
    this.table.clear();
    const hashes = [];
    for (let i = 0, tagAt; (tagAt = core.section(this._at, i)) !== 0; i++) {
      const tag = textAt(tagAt, 8).replace(/\0+$/, ""), [offset, nbytes] = results(2);
      getOrMake(this.table, tag, () => /** @type {{offset: number, nbytes: number}[]} */ ([])).push({ offset, nbytes });
      const digest = globalThis.crypto?.subtle?.digest("SHA-256", bytesAt(this._bytesAt + offset, nbytes));
      if (digest) hashes.push(digest.then((hash) => ({ i, hash })));
    }
    for (const { i, hash } of await Promise.all(hashes)) {
      lend(put(new Uint8Array(hash)), (at) => core.confirm(this._at, i, at));
    }
  }
  /** Frees the core's copy; a later use makes another one. */
  _close() {
    if (this._at) release(this._at, this._bytesAt);
    collected.unregister(this);
    this._at = this._bytesAt = 0;
  }
  _readMeta() {
    const where = "section 'meta'";
    try {
      this.meta = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(this.section("meta")));
    } catch (error) {
      throw corrupt(`${where}: it is no JSON: ${messageOf(error)}`);
    }
    const { name, engine, rules, custom, half, integer = "0".repeat(64) } = Object(this.meta);
    const fits = typeof name === "string" && typeof engine === "string" && Number.isInteger(rules) &&
      Array.isArray(custom) && custom.every((one) => typeof one === "string") && typeof half === "boolean" &&
      typeof integer === "string" && /^[0-9a-f]{64}$/.test(integer);
    if (!fits) throw corrupt(`${where}: it lacks something`);
  }
  get name() { return String(this.meta.name); }
  /** Returns the bytes of a section; none if the file lacks it. @param {string} tag */
  section(tag) {
    const { offset, nbytes } = this.table.get(tag)?.[0] ?? { offset: 0, nbytes: 0 };
    return this.bytes.subarray(offset, offset + nbytes);
  }
}

/** @param {number} at @param {number} bytesAddress */ function release(at, bytesAddress) {
  core.close_file(at);
  free(bytesAddress);
}

// ------------------------------------------------------------------------------------- networks
/** milliseconds of a frame that loading takes at once */ const LOAD_MS = 4;
/** jobs of networks that run whole at a time */ const OWNER_JOBS = 16;
/** slices of a frame that the core plans at most */ const MOST_SLICES = 256;
/** Lets frames and other tasks run; timers that follow each other would wait for 4 ms. */
const nextTask = () => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close();
    resolve(undefined);
  };
  port2.postMessage(0);
});

/** @param {GPUDevice} gpu @param {ArrayBuffer | Uint8Array<ArrayBuffer> | CookedFile} source @param {import("./cml.d.ts").LoadOptions} options */
export async function loadCooked(gpu, source, options = {}) {
  const file = source instanceof CookedFile ? source : await CookedFile.open(source, options.limits);
  await file._open();
  const device = Device.of(gpu);
  device.checkLost();
  const at = core.load(device.owner, file._at);
  if (!at) throw staleError();
  const network = new Network(file, device, at);
  try {
    await network._build(options);
  } catch (error) {
    network.destroy();
    throw error;
  }
  if (!network._hasVariables && file !== source) file._close();
  return network;
}

function staleError() {
  const error = coreError();
  return error.code === "StaleArtifact" ? new CmlError(error.code, `${error.message} (requestDevice() does)`) : error;
}

/** A network on a device; {@link loadCooked} makes it. */
export class Network {
  ready = false;
  /** @param {CookedFile} file @param {Device} device @param {number} at */ constructor(file, device, at) {
    this.file = file;
    this.device = device;
    this.name = file.name;
    this._at = at;
    core.network(at);
    const [steps, inputs, outputs, updates, , , , scope, launchMs, profile, profileLength] = results(11);
    this.plan = { profile: textAt(profile, profileLength) };
    this._hasVariables = updates > 0;
    /** @type {Scope} */ this._scope = objects[scope];
    this._launchMs = launchMs;
    /** @type {Step[]} */ this.steps = Array.from({ length: steps }, (_, i) => {
      core.step(at, i);
      const [op, opLength, title, titleLength, groups] = results(5);
      return { op: textAt(op, opLength), title: textAt(title, titleLength), groups };
    });
    const places = Array.from({ length: inputs + outputs }, (_, i) => placeOf(at, i));
    /** @type {Map<string, Place>} */ this.inputs = new Map(places.slice(0, inputs).map((place) => [place.name, place]));
    /** outputs follow each other in a job's buffer */
    this.outputs = new Map(places.slice(inputs).map((place) => [place.name, { place, at: place.at }]));
    collected.register(this, () => core.unload(at), this);
  }
  /** @param {{outputUsage?: number, onProgress?: (done: number, total: number) => void}} options */ async _build({ outputUsage = 0, onProgress }) {
    /** @type {Scope} */ const scope = this._scope, { device } = this, problem = `the device does not run network '${this.name}'`;
    let done = -1;
    const check = () => {
      device.checkLost();
      if (scope.error) throw scope.error;
    };
    for (let status = PENDING; status !== OK;) {
      check();
      status = device.check(scope, "StaleArtifact", problem, () => core.build(this._at, LOAD_MS));
      if (status !== OK && status !== PENDING) throw scope.error ?? coreError();
      core.network(this._at);
      const [kernels, built] = results(7).slice(5);
      for (; done < built; done++) onProgress?.(done + 1, kernels);
      if (built === kernels && scope.pending) await settled(scope);
      else await nextTask();
    }
    device.check(scope, "StaleArtifact", problem, () => this._rehearse());
    await settled(scope);
    check();
    if (!device.timed) await this._measure();
    scope.outputUsage = outputUsage;
    this.ready = true;
  }
  /** Encodes a whole run without submitting it, so that the device reports its errors now. */
  _rehearse() {
    const encoder = this.device.encoder = this.device.gpu.createCommandEncoder();
    core.run_all(this._at);
    encoder.finish();
  }
  /** Measures every step's time, for a device that cannot time passes. */
  async _measure() {
    const { device, steps } = this, { gpu } = device, times = steps.map(() => 0);
    for (let i = 0; i < 2 * steps.length; i++) {
      const encoder = device.encoder = gpu.createCommandEncoder(), start = performance.now();
      core.run_step(this._at, i % steps.length);
      gpu.queue.submit([encoder.finish()]);
      await gpu.queue.onSubmittedWorkDone();
      times[i % steps.length] = Math.max(performance.now() - start, this._launchMs);
    }
    const at = core.load_times(this._at);
    if (at) doublesAt(at, times.length).set(times);
  }
  /** Resets variables to their values in the file. */
  async reset() { if (core.reset(this._at) !== OK) throw coreError(); }
  /** @param {Record<string, Numbers | number[] | GpuTensor>} inputs @returns {Promise<Record<string, Numbers>>} */
  async run(inputs) {
    if (core.is_at_work(this._at) || core.is_wrong(this._at)) {
      const why = core.is_wrong(this._at) ? "has wrong variables, call reset()" : "is running a job, or a frame with its work has not ended";
      throw new CmlError("JobError", `network '${this.name}' ${why}`);
    }
    const { device } = this, { gpu, owner } = device, names = [...this.outputs.keys()];
    const number = submitTo(owner, this, acceptAll(this, inputs), 1, 0, null);
    const outcome = () => /** @type {typeof STATES[number]} */ (STATES[core.job_state(owner, number)]);
    lend(putText(names[0] ?? ""), (at) => core.read(owner, number, at)); // its last frame copies the outputs
    for (let first = 0; !["done", "failed"].includes(outcome());) {
      const steps = this.steps.slice(first, first + MOST_SLICES);
      lend(putDoubles(steps.flatMap(({ groups }, i) => [number, first + i, 0, groups])), (at) => core.decide(owner, at, steps.length));
      const encoder = device.encoder = gpu.createCommandEncoder();
      core.encode(owner, 0, 1000 / 60);
      const slices = results(8)[7];
      gpu.queue.submit([encoder.finish()]);
      core.end_frame(owner);
      first += slices;
      if (!slices && outcome() === "running") await gpu.queue.onSubmittedWorkDone();
    }
    try {
      if (outcome() === "failed") throw new CmlError("DeviceError", messageAt(results(1)[0]));
      /** @type {Record<string, Numbers>} */ const outputs = {};
      for (const name of names) {
        let values;
        while (!(values = readOutput(owner, number, this, name))) {
          device.checkLost();
          await nextTask();
        }
        outputs[name] = values;
      }
      return outputs;
    } finally {
      core.release_job(owner, number);
    }
  }
  destroy() {
    if (!this._at) return;
    for (const one of this.device.schedulers) core.forget(one, this._at);
    core.unload(this._at);
    collected.unregister(this);
    this.ready = false;
    this._at = 0;
  }
}

/** Waits until a scope has all answers of the device. @param {Scope} scope */
async function settled(scope) { while (scope.pending && !scope.error) await nextTask(); }

/** @param {number} network @param {number} i @returns {Place} */ function placeOf(network, i) {
  core.tensor(network, i);
  const [nameAt, length, type, layout, elements, bytes, at, rank, ...extents] = results(16);
  return { name: textAt(nameAt, length), type: TYPES[type], layout: LAYOUTS[layout], shape: extents.slice(0, rank), elements, bytes, at };
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

/** Checks a job's inputs. @param {Network} network @param {Record<string, any>} inputs */
function acceptAll(network, inputs) {
  const accepted = Object.entries(inputs).map(([name, value]) => ({ name, value: accept(network, name, value) }));
  const lacking = [...network.inputs.keys()].filter((name) => !(name in inputs));
  if (lacking.length) throw refused(`network '${network.name}' wants the inputs ${lacking.join(", ")} too`);
  return accepted;
}

/** @param {Network} network @param {string} name @param {any} value @returns {any} its numbers in an array of their type, or itself */
function accept(network, name, value) {
  const place = network.inputs.get(name);
  if (!place) throw refused(`network '${network.name}' has no input '${name}'; it has ${[...network.inputs.keys()].join(", ") || "(none)"}`);
  const expected = `input '${name}': wanted ${place.type} [${place.shape}]`, ArrayType = ARRAYS[place.type];
  if (value instanceof ArrayType || Array.isArray(value)) {
    if (value.length === place.elements) return value instanceof ArrayType ? value : ArrayType.from(value);
    throw refused(`${expected}, got ${value.length} numbers for its ${place.elements}`);
  }
  const tensor = value instanceof JobOutput ? value.job.network.outputs.get(value.name)?.place : value;
  if (value instanceof JobOutput && !tensor) throw refused(`job '${value.job.name}' has no output '${value.name}'`);
  if (!tensor?.shape) throw refused(`${expected} as ${ArrayType.name}, got ${value?.constructor?.name ?? value}`);
  const same = tensor.type === place.type && tensor.layout === place.layout;
  if (!same || String(tensor.shape) !== String(place.shape) || tensor.bytes !== place.bytes) {
    throw refused(`${expected} ${place.layout}, got ${tensor.type} [${tensor.shape}] ${tensor.layout}`);
  }
  const { buffer, offset } = tensor;
  if (buffer && !(offset % 4 === 0 && offset >= 0 && offset + place.bytes <= buffer.size && buffer.usage & GPUBufferUsage.COPY_SRC)) {
    throw refused(`${expected} in a buffer with COPY_SRC, at a multiple of 4, inside of it`);
  }
  return value;
}

/** the bytes of a `cml_input`, of which these are the fields */ const INPUT_BYTES = 40;

/**
 * Submits a job to the core. @param {number} scheduler @param {Network} network @param {{name: string, value: any}[]} inputs
 * @param {number} priority as in cml_job_options @param {number} deadlineMs @param {string | null} slot @returns {number} its number
 */
function submitTo(scheduler, network, inputs, priority, deadlineMs, slot) {
  /** @type {number[]} */ const blocks = [], /** @type {number[]} */ handles = [];
  const keepBlock = (/** @type {number} */ at) => (blocks.push(at), at);
  try {
    const rows = keepBlock(put(new Uint8Array(INPUT_BYTES * inputs.length)));
    inputs.forEach(({ name, value }, i) => {
      const nameAt = keepBlock(putText(name)), isNumbers = ArrayBuffer.isView(value);
      const dataAt = isNumbers ? keepBlock(put(new Uint8Array(value.buffer, value.byteOffset, value.byteLength))) : 0;
      const outputAt = value instanceof JobOutput ? keepBlock(putText(value.name)) : 0;
      const buffer = !isNumbers && !outputAt ? keep(value.buffer) : 0;
      if (buffer) handles.push(buffer);
      const row = new DataView(heap(), rows + INPUT_BYTES * i, INPUT_BYTES);
      [nameAt, dataAt, isNumbers ? value.byteLength : 0, buffer].forEach((word, k) => row.setUint32(4 * k, word, true));
      row.setBigUint64(16, BigInt(buffer ? value.offset : 0), true);
      row.setBigUint64(24, BigInt(outputAt ? value.job.number : 0), true);
      row.setUint32(32, outputAt, true);
    });
    const number = core.submit(scheduler, network._at, rows, inputs.length, priority, deadlineMs, slot === null ? 0 : keepBlock(putText(slot)));
    if (!number) throw coreError();
    return number;
  } finally {
    blocks.forEach(free);
    handles.forEach(drop);
  }
}

/** Returns an output as numbers; null until it has arrived. @param {number} scheduler @param {number} number @param {Network} network @param {string} name @returns {Numbers | null} */
function readOutput(scheduler, number, network, name) {
  const status = lend(putText(name), (at) => core.read(scheduler, number, at));
  if (status === PENDING) return null;
  if (status !== OK) throw coreError();
  const { type, elements } = /** @type {{place: Place}} */ (network.outputs.get(name)).place, [at, isCopy] = results(2);
  const values = new ARRAYS[type](heap(), at, elements).slice();
  if (isCopy) free(at);
  return values;
}

/** @typedef {typeof STATES[number]} State */

/** One run of a network, spread over frames. */
export class Job {
  error = "";
  /** @type {Exclude<State, "gone"> | null} its last state, once that cannot change */ _final = null;
  /** @type {State} when the scheduler looked last */ _seen = "queued";
  _released = false;
  /** @type {Map<string, Numbers>} */ _values = new Map();
  /** @param {Scheduler} owner @param {Network} network @param {number} number @param {string} name @param {number} priority @param {number | null} deadlineAtMs */
  constructor(owner, network, number, name, priority, deadlineAtMs) {
    this.owner = owner;
    this.network = network;
    this.number = number;
    this.name = name;
    this.priority = priority;
    this.deadlineAtMs = deadlineAtMs;
  }
  /** @returns {Exclude<State, "gone">} */ get state() {
    if (this._final) return this._final;
    const state = STATES[core.job_state(this.owner._at, this.number)];
    if (state === "gone") return this._final = "failed";
    if (state === "failed") this.error = messageAt(results(1)[0]);
    if (state === "failed" || state === "cancelled") this._final = state;
    return state;
  }
  get ended() { return !["queued", "running"].includes(this.state); }
  /** the step and workgroup at which it goes on */
  get step() { return this._info("job_state", 1); }
  get group() { return this._info("job_state", 2); }
  /** The predicted GPU milliseconds of its remaining work. */
  get remainingMs() { return this.ended ? 0 : this._info("job_info", 2); }
  /** The share of its work that has been encoded, 0 to 1, by predicted time. */
  get progress() { return this.state === "done" ? 1 : this.ended ? 0 : this._info("job_info", 0); }
  /** The predicted milliseconds until its end if nothing else is submitted; 0 once ended. */
  get etaMs() { return this.ended ? 0 : this._info("job_info", 1); }
  /** @param {"job_state" | "job_info"} call @param {number} i of its results */ _info(call, i) {
    core[call](this.owner._at, this.number);
    return results(3)[i];
  }
  /** Returns its future output, to be an input of another job. @param {string} name */
  output(name) {
    this._placeOf(name);
    return new JobOutput(this, name);
  }
  /** Returns an output on the GPU, without a readback. @param {string} name @returns {GpuTensor} */
  tensor(name) {
    const { bytes, shape, type, layout } = this._needDone(name);
    const handle = lend(putText(name), (at) => core.output(this.owner._at, this.number, at));
    return { buffer: objects[handle].buffer, offset: results(1)[0], bytes, shape, type, layout };
  }
  /** Returns an output as numbers, or null until they have arrived, some frames after the first call. */
  /** @param {string} name @returns {Numbers | null} */
  read(name) {
    if (this.ended) this._needDone(name);
    else this._placeOf(name);
    const known = this._values.get(name);
    if (known) return known;
    const values = readOutput(this.owner._at, this.number, this.network, name);
    if (values && !this.ended) return null; // a frame that made it has not run
    if (values) this._values.set(name, values);
    return values;
  }
  /** Stops the job; no further slice of it runs. */
  cancel() { if (!this.ended) core.cancel(this.owner._at, this.number); }
  /** Runs no slice of the job until {@link resume}; it keeps its memory. */
  pause() { core.pause(this.owner._at, this.number, 1); }
  resume() { core.pause(this.owner._at, this.number, 0); }
  /** Frees the memory of its outputs once no other job needs them. */
  release() {
    if (this._released) return;
    this._released = true;
    this.owner._release(this);
  }
  /** @param {string} name @returns {Place} */ _needDone(name) {
    const { state } = this, place = this._placeOf(name);
    if (state !== "done" || this._released) {
      const why = state === "done" ? "its outputs were released" : `it is ${state}${this.error ? `: ${this.error}` : ""}`;
      throw new CmlError("JobError", `job '${this.name}' has no output '${name}', ${why}`);
    }
    return place;
  }
  /** @param {string} name @returns {Place} */ _placeOf(name) {
    const { outputs } = this.network, output = outputs.get(name);
    if (!output) throw refused(`network '${this.network.name}' has no output '${name}'; it has ${[...outputs.keys()].join(", ")}`);
    return output.place;
  }
}

// ------------------------------------------------------------------------------------ schedulers
/** @typedef {(jobs: Job[], nowMs: number, rate: number) => Job[]} Policy */
/** @param {number} index of a cml_policy @returns {Policy} */ const policyOf = (index) => (jobs, nowMs, rate) => (
  jobs.length ? jobs[0].owner._sort(index, jobs, nowMs, rate) : []
);
/** Orders jobs whose deadline can still be met by the time to spare, the least first; then all others by fair share. */
export const leastLaxity = policyOf(0);
/** Orders jobs by GPU time divided by priority, the least first; ignores deadlines. */
export const fairShare = policyOf(1);
/** Orders jobs by priority, the highest first, then the oldest; low priorities may starve. */
export const byPriority = policyOf(2);
const POLICIES = [leastLaxity, fairShare, byPriority];

/** @param {unknown} ms */ const isMs = (ms) => typeof ms === "number" && Number.isFinite(ms) && ms >= 0;
/** @param {string} name @param {unknown} value @returns {number} */ function checkMs(name, value) {
  if (isMs(value)) return /** @type {number} */ (value);
  throw refused(`${name} is ${value}: wanted a finite number of 0 or more`);
}

/** by their address in the core @type {Map<number, WeakRef<Scheduler>>} */ const schedulers = new Map();
/** frames whose timings may still arrive */ const IN_FLIGHT = 16;
/** CML_IDLE of cml.h */ const IDLE = -1;

/** A frame's slices, decided by a tool: job, step, first and count of each. @typedef {(jobs: Job[]) => {job: Job, step: number, first: number, count: number}[]} Planner */

/** Networks within a budget of GPU milliseconds per frame: {@link encode}, the host's own submit, {@link endFrame}. */
export class Scheduler {
  /** @type {Map<number, Job>} that may still change */ _jobs = new Map();
  /** @type {Map<number, FrameReport>} frames that are not measured yet */ _awaited = new Map();
  /** @type {FrameReport | null} */ lastReport = null;
  /** @type {Planner | null} decides in place of the core */ planner = null;
  _budgetMs = 0;
  /** its address in the core; 0 until it is needed */ _at = 0;
  /** @typedef {{frameMs?: number, budgetMs?: number, overShare?: number, policy?: Policy, maxJobs?: number}} Options */
  /** @param {GPUDevice} gpu @param {Options} options */
  constructor(gpu, options = {}) {
    this.gpu = gpu;
    this.frameMs = checkMs("frameMs", options.frameMs ?? 1000 / 60);
    this.budgetMs = checkMs("budgetMs", options.budgetMs ?? 4);
    this._share = options.overShare ?? 0.01;
    if (!(this._share > 0 && this._share < 1)) throw refused(`overShare is ${this._share}: wanted between 0 and 1`);
    this.policy = options.policy ?? leastLaxity;
    this._maxJobs = checkMs("maxJobs", options.maxJobs ?? 256);
  }
  /** Creates the core's scheduler: networks exist by then, and so does the core. */
  _start() {
    if (this._at || !core) return;
    const device = Device.of(this.gpu), at = device.createScheduler(this._share, POLICIES.indexOf(this.policy), this._maxJobs);
    this._at = at;
    schedulers.set(at, new WeakRef(this));
    collected.register(this, () => {
      schedulers.delete(at);
      device.schedulers.delete(at);
      core.destroy(at);
    });
  }
  /** Returns the jobs that have not ended, the oldest first. */
  get jobs() { return [...this._jobs.values()].filter((job) => !job.ended); }
  /** Submits a run of the network on these inputs. Arrays of numbers are copied now. */
  /** @param {Network} network @param {Record<string, Input>} inputs @param {import("./cml.d.ts").SubmitOptions} options */
  submit(network, inputs, options = {}) {
    if (!(network instanceof Network) || network.device.gpu !== this.gpu) throw refused("submit a network that loadCooked() made on the scheduler's own device");
    const { deadlineMs, name = network.name, slot = null } = options, priority = checkMs("priority", options.priority ?? 1);
    const deadline = deadlineMs === undefined ? 0 : Math.max(checkMs("deadlineMs", deadlineMs), 1e-9);
    const accepted = acceptAll(network, inputs);
    this._start();
    this._refresh();
    const number = submitTo(this._at, network, accepted, priority || IDLE, deadline, slot);
    const job = new Job(this, network, number, name, priority, deadlineMs === undefined ? null : performance.now() + deadline);
    this._jobs.set(number, job);
    return job;
  }
  /** Looks at all jobs. @returns {number[]} the numbers of those that are done now, and were not before */
  _refresh() {
    const finished = [];
    for (const job of this._jobs.values()) {
      const { state } = job;
      if (state === "done" && job._seen !== "done") finished.push(job.number);
      job._seen = state;
      if (job._final) this._jobs.delete(job.number);
      else if (job._released) this._release(job);
    }
    return finished;
  }
  /** Gives up a job of which nothing is needed any more, if it has ended and its frame cannot be abandoned. @param {Job} job */
  _release(job) {
    if (!job.ended || (this._isOpen && job.state === "done")) return;
    job._final = job.state;
    job._values.clear();
    this._jobs.delete(job.number);
    core.release_job(this._at, job.number);
  }
  // --- a frame
  /** Appends this frame's slices to the host's encoder; nothing if the last frame was not ended. */
  /** @param {GPUCommandEncoder} encoder @param {number} budgetMs of this frame @returns {FrameReport} */
  encode(encoder, budgetMs = this.budgetMs) {
    const start = performance.now();
    if (isMs(budgetMs)) this._budgetMs = budgetMs;
    this._start();
    if (!this._at) return this.lastReport = reportOf([0, start, this._budgetMs, 0, 0, 0, 0, 0]);
    const device = Device.of(this.gpu), wasOpen = this._isOpen;
    if (!wasOpen) this._decide();
    device.encoder = encoder;
    /** @type {number} */ let slices;
    try {
      slices = core.encode(this._at, this._budgetMs, this.frameMs);
    } catch (error) {
      core.abandon_frame(this._at); // the encoder does not take commands
      throw error;
    }
    const report = reportOf(results(8));
    if (report.reason !== "frame not ended") this._isOpen = report.reason !== "device error";
    this._report(report, slices, results(8)[7]);
    if (!wasOpen) {
      report.finished = this._refresh();
      this._awaited.set(report.frame, report);
      this._awaited.delete(report.frame - IN_FLIGHT);
    }
    report.cpuMs = performance.now() - start;
    return this.lastReport = report;
  }
  _isOpen = false;
  /** @param {FrameReport} report @param {number} at @param {number} count */ _report({ slices }, at, count) {
    const numbers = doublesAt(at, 6 * count);
    for (let i = 0; i < 6 * count; i += 6) {
      const job = numbers[i], step = numbers[i + 1], { op, title } = /** @type {Job} */ (this._jobs.get(job)).network.steps[step];
      slices.push({ job, step, op, title, first: numbers[i + 2], count: numbers[i + 3], predictedMs: numbers[i + 4], measuredMs: null, settled: numbers[i + 5] > 0 });
    }
  }
  /** Lets a tool's planner decide this frame. */
  _decide() {
    if (!this.planner) return core.decide(this._at, 0, -1);
    const slices = this.planner(this.jobs), numbers = slices.flatMap(({ job, step, first, count }) => [job.number, step, first, count]);
    lend(putDoubles(numbers), (at) => core.decide(this._at, at, slices.length));
  }
  /** Ends a frame after the host's submit. Learns from timings that have arrived, and returns the reports of these frames. */
  endFrame() {
    /** @type {FrameReport[]} */ const reports = [];
    if (!this._at) return reports;
    const count = core.end_frame(this._at);
    this._isOpen = false;
    for (let i = 0; i < count; i++) {
      const at = core.measured(this._at, i), [frame, ms, groups] = doublesAt(at, 3), report = this._awaited.get(frame);
      if (!report) continue;
      this._awaited.delete(frame);
      report.measuredMs = ms;
      const numbers = doublesAt(at + 24, 2 * groups);
      // the time of a group is not divided among its slices
      for (let k = 0, first = 0; k < groups; first = numbers[2 * k++]) {
        if (numbers[2 * k] === first + 1) report.slices[first].measuredMs = numbers[2 * k + 1];
      }
      reports.push(report);
    }
    this._refresh();
    return reports;
  }
  /** Ends a frame whose encoder is not submitted; call it in place of {@link endFrame}. */
  abandonFrame() {
    if (!this._isOpen) return;
    this._isOpen = false;
    core.abandon_frame(this._at);
    if (this.lastReport) this._awaited.delete(this.lastReport.frame);
    this._refresh();
  }
  // --- policies of the page
  /** Orders the core's candidates by this scheduler's policy. */
  _order() {
    const at = core.candidates(this._at), [count, nowMs, rate] = results(3);
    const jobs = this._jobsAt(at, count);
    this._putCandidates(this.policy(jobs, nowMs, rate));
  }
  /** @param {number} at @param {number} count @returns {Job[]} */ _jobsAt(at, count) {
    const numbers = lend(at, () => [...doublesAt(at, count)]);
    return numbers.map((number) => /** @type {Job} */ (this._jobs.get(number)));
  }
  /** @param {Job[]} jobs */ _putCandidates(jobs) {
    lend(putDoubles(jobs.map(({ number }) => number)), (at) => core.put_candidates(this._at, at, jobs.length));
  }
  /** @param {number} policy @param {Job[]} jobs @param {number} nowMs @param {number} rate */ _sort(policy, jobs, nowMs, rate) {
    this._putCandidates(jobs);
    core.sort(this._at, policy, nowMs, rate);
    const at = core.candidates(this._at);
    return this._jobsAt(at, results(1)[0]);
  }
  // --- for tools
  /** Returns the predicted milliseconds of workgroups of a step. @param {Network} network @param {number} step @param {number} count */
  predictMs(network, step, count) {
    this._start();
    return core.predict(this._at, network._at, step, count);
  }
}

/** @param {ArrayLike<number>} numbers of a cml_report @returns {FrameReport} */
const reportOf = ({ 0: frame, 1: nowMs, 2: budgetMs, 3: aimMs, 4: predictedMs, 6: reason }) => (
  { frame, nowMs, budgetMs, aimMs, reason: REASONS[reason], slices: [], finished: [], predictedMs, measuredMs: null, cpuMs: 0 }
);
