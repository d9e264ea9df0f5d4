// @ts-check
/** Writes small cooked files by docs/cooked.md, whole or with a fault, to read them again. */

const ARENA = 0, WEIGHTS = 1, OWN = 2;
const NONE = 0xffffffff;
export const HEADER = 96;
const ALIGN = 256;
export const ELEMENTS = 1000;
const BYTES = 4 * ELEMENTS;
const KEPT = Math.ceil(BYTES / ALIGN) * ALIGN;

/** @param {number} tensors @param {string} body */
const wgsl = (tensors, body) => `
struct Slice { first: u32, end: u32, width: u32, unused: u32 };
struct Params { count: u32, add: f32, a: u32, b: u32 };
@group(0) @binding(0) var<uniform> slice: Slice;
@group(0) @binding(1) var<uniform> params: Params;
${Array.from({ length: tensors }, (_, i) => `@group(0) @binding(${i + 2}) var<storage, read_write> t${i}: array<f32>;`).join("\n")}
@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) gid: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
  let group = slice.first + gid.x + gid.y * slice.width;
  let i = group * 8u + lid.x;
  if (group >= slice.end || i >= params.count) { return; }
  ${body}
}`;

export const KERNELS = [
  { label: "scale", tensors: 3, flags: 1, wgsl: wgsl(3, "t2[i] = t0[i] * t1[i % 4u];") },
  { label: "add", tensors: 3, flags: 1, wgsl: wgsl(3, "t2[i] = t0[i] + t1[0];") },
  { label: "count", tensors: 2, flags: 1, wgsl: wgsl(2, "t1[i] = t0[i] + params.add;") },
];
const WEIGHT = new Float32Array([1, 2, 3, 4]);

/** What the network makes of `x` in its `run`-th run (from 0): its variable counts them. */
/** @param {Float32Array} x @param {number} run */
export const expected = (x, run) => x.map((v, i) => Math.fround(v * WEIGHT[i % 4]) + (10 + run));

/** A growing row of bytes. */
class Bytes {
  /** @type {number[]} */ all = [];
  /** @param {...(number)} values */
  u32(...values) {
    for (const v of values) this.all.push(v & 255, (v >>> 8) & 255, (v >>> 16) & 255, (v >>> 24) & 255);
    return this;
  }
  /** @param {...(number | bigint)} values */
  u64(...values) {
    for (const v of values) {
      const word = new DataView(new ArrayBuffer(8));
      word.setBigUint64(0, BigInt(v), true);
      this.raw(new Uint8Array(word.buffer));
    }
    return this;
  }
  /** @param {...number} values */
  f64(...values) {
    this.raw(new Uint8Array(new Float64Array(values).buffer));
    return this;
  }
  /** @param {ArrayLike<number>} bytes */
  raw(bytes) {
    this.all.push(...Array.from(bytes));
    return this;
  }
  /** @param {number} multiple */
  pad(multiple) {
    while (this.all.length % multiple) this.all.push(0);
    return this;
  }
  get length() {
    return this.all.length;
  }
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
async function deflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

/** Strings by their place. */
class Strings extends Bytes {
  /** @type {Map<string, [number, number]>} */ known = new Map();
  /** @param {string} text @returns {[number, number]} */
  at(text) {
    let found = this.known.get(text);
    if (!found) {
      const bytes = new TextEncoder().encode(text);
      this.known.set(text, found = [this.length, bytes.length]);
      this.raw(bytes);
    }
    return found;
  }
}

/**
 * The sections of a network with three steps and a variable: `y = x * w + v`, then `v = v + 1`.
 * @param {{kernels?: typeof KERNELS, needs?: Partial<Record<string, number>>, c4?: boolean,
 *   bindings?: (rows: number[][]) => number[][]}} how
 */
export async function sections(how = {}) {
  const strings = new Strings(), code = new Bytes(), kernels = new Bytes();
  const list = how.kernels ?? KERNELS;
  kernels.u32(list.length, 0);
  for (const kernel of list) {
    const bytes = new TextEncoder().encode(kernel.wgsl), packed = await deflate(bytes);
    kernels.raw(await sha256(bytes)).u32(...strings.at(kernel.label), 16, kernel.tensors);
    kernels.u32(kernel.flags, 0).u64(0).u32(0, 0).u64(code.length).u32(packed.length, bytes.length);
    kernels.u64(0);
    code.raw(packed);
  }
  const at = { x: 0, t: KEPT, y: 2 * KEPT, v: 3 * KEPT };
  let bindings = [
    [ARENA, at.x, BYTES], [WEIGHTS, 0, 16], [ARENA, at.t, BYTES],
    [ARENA, at.t, BYTES], [OWN, 0, 4], [ARENA, at.y, BYTES],
    [OWN, 0, 4], [ARENA, at.v, 4],
  ];
  bindings = how.bindings?.(bindings) ?? bindings;
  const groups = Math.ceil(ELEMENTS / 8);
  const steps = [["scale", 0, groups, 0, 3], ["add", 1, groups, 3, 3], ["count", 2, 1, 6, 2]];
  const table = new Bytes();
  for (const [title, kernel, count, first, tensors] of /** @type {any[]} */ (steps)) {
    table.u32(kernel, count, first, tensors, 1, 256 * kernel, 16, 7);
    table.u32(...strings.at(title), ...strings.at(`${title}1`), ...strings.at(`${title} k-0 1F`));
    table.u32(...strings.at("graph.nnef")).f64(2e6, 64).u64(5, 0);
  }
  const rows = new Bytes();
  for (const [space, offset, bytes] of bindings) rows.u32(space, 0).u64(offset, bytes);
  /** @param {string} name @param {number} offset */
  const tensor = (name, offset) =>
    new Bytes().u32(...strings.at(name), 0, 0, 2, 1, ELEMENTS, 0, 0, 0, 0, 0, 0, ARENA)
      .u64(offset, BYTES, 0);
  const params = new Bytes();
  for (const count of [ELEMENTS, ELEMENTS, 1]) {
    params.pad(256).u32(count).raw(new Uint8Array(new Float32Array([1]).buffer)).u32(0, 0);
  }
  const update = new Bytes().u32(ARENA, 0).u64(at.v, 4).u32(OWN, 0).u64(0, 4);
  // WEIGHT as it is, and 10 as an integer of 8 bits that becomes a float
  const pieces = new Bytes();
  for (const [space, stored, becomes, n, source] of [[WEIGHTS, 2, 0, 4, 0], [OWN, 3, 1, 1, 16]]) {
    pieces.u32(space, stored, becomes, 1).u64(0, 4 * n, source).u32(NONE, NONE, n, 1, 1, 1, n, 0, 1);
    pieces.raw(new Uint8Array(7 * 12));
  }
  const parts = [table, rows, tensor("x", at.x), tensor("y", at.y), update, params, pieces];
  const counts = [steps.length, bindings.length, 1, 1, 1, params.length, 2];
  const needs = {
    storage: ALIGN, uniform: 256, binding: BYTES, buffer: 4 * KEPT, invocations: 8, shared: 0,
    tensors: 3, lanes: 0, ...how.needs,
  };
  const plan = new Bytes();
  plan.u32(...strings.at("portable"), 0, 0).u64(4 * KEPT, 16, 4).u32(needs.storage, needs.uniform);
  plan.u64(needs.binding, needs.buffer).u32(needs.invocations, needs.shared, needs.tensors, needs.lanes, 0, 0);
  plan.f64(3e3, 4e4).u64(15);
  let offset = 192;
  parts.forEach((part, i) => {
    plan.u32(counts[i], offset);
    offset += part.pad(8).length;
  });
  plan.raw(new Uint8Array(24));
  for (const part of parts) plan.raw(part.all);
  const x = Float32Array.from({ length: ELEMENTS }, (_, i) => i / 7 - 3);
  const golden = new Bytes().u32(2).raw(new Uint8Array(new Float32Array([1e-5]).buffer));
  ["x", "y"].forEach((name, role) => {
    golden.u32(...strings.at(name), role, 0, 2, 1, ELEMENTS, 0, 0, 0, 0, 0, 0, 0);
    golden.u64(8 + 2 * 64 + role * BYTES);
  });
  golden.raw(new Uint8Array(x.buffer)).raw(new Uint8Array(expected(x, 0).buffer));
  const guess = new Bytes().u32(1, 1, ...strings.at("")).f64(2e7, 4e6, 0.004).u32(0, 1);
  guess.u32(...strings.at("k")).f64(1.5);
  const meta = new TextEncoder().encode(JSON.stringify({ name: "small", engine: "0", rules: 1, custom: [], half: false }));
  /** @type {[string, number, Uint8Array<ArrayBuffer>][]} */
  const made = [
    ["code", 0, new Uint8Array(code.all)], ["golden", 0, new Uint8Array(golden.all)],
    ["guess", 0, new Uint8Array(guess.all)], ["kernels", 0, new Uint8Array(kernels.all)],
    ["meta", 0, meta],
    ["plan", 0, new Uint8Array(plan.all)], ["strings", 0, new Uint8Array(strings.all)],
    ["values", 0, new Uint8Array([...new Uint8Array(WEIGHT.buffer), 10])],
  ];
  return made;
}

/**
 * What the header states; wrong where the sections are damaged.
 * @param {[string, number, Uint8Array<ArrayBuffer>][]} parts
 */
function totals(parts) {
  const found = { code: 0, device: 0n, kernels: 0, steps: 0 };
  for (const [tag, , bytes] of parts) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    if (tag === "kernels") {
      found.kernels = Math.floor((bytes.length - 8) / 96);
      for (let at = 8; at + 96 <= bytes.length; at += 96) {
        found.code += view.getUint32(at + 68, true) + view.getUint32(at + 84, true);
      }
    }
    if (tag !== "plan" || bytes.length < 192) continue;
    found.steps = view.getUint32(112, true);
    found.device = BigInt(view.getUint32(152, true));
    for (const at of [16, 24, 32]) found.device += view.getBigUint64(at, true);
  }
  return { ...found, device: found.device & (2n ** 64n - 1n) };
}

/** The file of such sections, with all lengths and hashes as they should be. */
/** @param {[string, number, Uint8Array<ArrayBuffer>][]} parts */
export async function file(parts) {
  const table = new Bytes();
  let end = HEADER + 64 * parts.length;
  const starts = [];
  for (const [tag, number, bytes] of parts) {
    const start = Math.ceil(end / 64) * 64;
    starts.push(start);
    end = start + bytes.length;
    table.raw(new TextEncoder().encode(tag.padEnd(8, "\0"))).u64(start, bytes.length);
    table.u32(number, 0).raw(await sha256(bytes));
  }
  const rows = new Uint8Array(table.all);
  const head = new Bytes().raw([0x89, 0x43, 0x4d, 0x4c, 0x0d, 0x0a, 0x1a, 0x0a]);
  head.u32(2, parts.length).u64(end).raw(await sha256(rows));
  const { code, device, kernels, steps } = totals(parts);
  head.u64(code, device).u32(kernels, steps).u64(0, 0);
  const whole = new Uint8Array(end);
  whole.set(head.all);
  whole.set(rows, HEADER);
  parts.forEach(([, , bytes], i) => whole.set(bytes, starts[i]));
  return whole;
}

/** @param {Parameters<typeof sections>[0]} how */
export const small = async (how = {}) => await file(await sections(how));
