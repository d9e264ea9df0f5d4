// @ts-check
/// <reference lib="dom" />
/** A flight over land whose tiles networks make within a budget, on the device that draws it. */

import { Scheduler, requestDevice } from "./cml.js";
import { CELLS, CELL_M, SPAN, Tile, digestOf, loadWorld, runTile } from "./tiles.js";

const AHEAD = 4, ASIDE = 2, BEHIND = 1, SPEED = 20, STEP = 2, MOST_ASKED = 2, TREES = 14, MOST_RUNNING = 2;
/** @type {("heights" | "albedo" | "density")[]} in the order of the shader's bindings */
const SHOWN = ["heights", "albedo", "density"];
const FIRST = 6, LOADING_MS = 300;

const CODE = /* wgsl */ `
struct View { matrix: mat4x4<f32>, eye: vec4<f32> };
@group(0) @binding(0) var<uniform> view: View;
@group(1) @binding(0) var<uniform> origin: vec4<f32>;
@group(1) @binding(1) var<storage, read> heights: array<f32>;
@group(1) @binding(2) var<storage, read> albedo: array<f32>;
@group(1) @binding(3) var<storage, read> density: array<f32>;
struct Vertex { @builtin(position) position: vec4<f32>, @location(0) cell: vec2<f32>,
  @location(1) world: vec3<f32>, @location(2) kind: f32 };
fn height(p: vec2<i32>) -> f32 {
  let q = clamp(p + 20, vec2<i32>(0), vec2<i32>(95));
  return heights[u32(q.y * 96 + q.x)];
}
fn placed(cell: vec2<f32>, up: f32, kind: f32) -> Vertex {
  let world = vec3<f32>(origin.x + cell.x * ${CELL_M}.0, up, origin.y + cell.y * ${CELL_M}.0);
  return Vertex(view.matrix * vec4<f32>(world, 1.0), cell, world, kind);
}
@vertex fn land(@builtin(vertex_index) v: u32) -> Vertex {
  var corners = array<vec2<u32>, 6>(vec2<u32>(0u, 0u), vec2<u32>(1u, 0u), vec2<u32>(0u, 1u),
    vec2<u32>(0u, 1u), vec2<u32>(1u, 0u), vec2<u32>(1u, 1u));
  let square = v / 6u; let wide = ${CELLS / STEP}u;
  let at = (vec2<u32>(square % wide, square / wide) + corners[v % 6u]) * ${STEP}u;
  return placed(vec2<f32>(at), max(0.0, height(vec2<i32>(at))), 0.0);
}
@vertex fn tree(@builtin(vertex_index) v: u32, @builtin(instance_index) i: u32) -> Vertex {
  let place = vec2<u32>(i % ${TREES}u, i / ${TREES}u);
  let shift = vec2<f32>(f32((i * 37u) % 17u), f32((i * 53u) % 19u)) / 6.0;
  let cell = vec2<f32>(place) * ${CELLS / TREES}.0 + shift;
  let whole = vec2<i32>(cell);
  let there = density[u32((whole.y + 4) * 64 + whole.x + 4)];
  let foot = height(whole);
  let size = select(0.0, 4.0 + 10.0 * there, there > 0.3 && foot > 1.0);
  let corner = v % 3u; let turn = f32(v / 3u + corner) * 1.5708;
  var spot = vec2<f32>(cos(turn), sin(turn)) * size * 0.35 / ${CELL_M}.0;
  if (corner == 2u) { spot = vec2<f32>(0.0); }
  return placed(cell + spot, foot + select(0.0, size, corner == 2u), 1.0 + f32(v / 3u) * 0.2);
}
fn colour(cell: vec2<f32>) -> vec3<f32> {
  let at = vec2<u32>(clamp((cell + 4.25) * 2.0 + 0.5, vec2<f32>(0.0), vec2<f32>(127.0)));
  let i = at.y * 128u + at.x;
  return vec3<f32>(albedo[i], albedo[16384u + i], albedo[32768u + i]);
}
@fragment fn shade(in: Vertex) -> @location(0) vec4<f32> {
  let at = vec2<i32>(in.cell);
  let slope = vec3<f32>(height(at) - height(at + vec2<i32>(1, 0)), ${CELL_M}.0, height(at) - height(at + vec2<i32>(0, 1)));
  let light = 0.35 + 0.8 * max(0.0, dot(normalize(slope), normalize(vec3<f32>(0.5, 0.8, -0.3))));
  var shown = colour(in.cell) * light;
  if (height(at) <= 0.0) { shown = vec3<f32>(0.05, 0.16, 0.24); }
  if (in.kind > 0.5) { shown = vec3<f32>(0.07, 0.19, 0.08) * (0.4 + 0.4 * in.kind); }
  let far = 1.0 - exp(-pow(distance(in.world, view.eye.xyz) / 1300.0, 2.0));
  return vec4<f32>(pow(mix(shown, vec3<f32>(0.55, 0.68, 0.82), far), vec3<f32>(0.4545)), 1.0);
}`;

/** What tests look at. @type {any} */
const status = /** @type {any} */ (globalThis).page = { frames: 0, runs: 0, error: "" };
/** @param {string} id @returns {any} */
const element = (id) => document.getElementById(id);

/** @param {number[]} a @param {number[]} b columns first */
function product(a, b) {
  return Array.from({ length: 16 }, (_, i) =>
    [0, 1, 2, 3].reduce((sum, k) => sum + a[4 * k + i % 4] * b[4 * (i >> 2) + k], 0));
}

/** Eastwards, a little down. @param {number[]} eye @param {number} aspect @param {number} roll */
function looking(eye, aspect, roll) {
  const [tilt, near, far, zoom] = [0.27, 2, 6000, 1.3], [c, s] = [Math.cos(tilt), Math.sin(tilt)];
  const [cr, sr] = [Math.cos(roll), Math.sin(roll)];
  const moved = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, -eye[0], -eye[1], -eye[2], 1];
  // right is south, up is up, forward is east
  const turned = product([cr, -sr, 0, 0, sr, cr, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1], [0, s, c, 0, 0, c, -s, 0, 1, 0, 0, 0, 0, 0, 0, 1]);
  const depth = far / (far - near);
  const seen = [zoom / aspect, 0, 0, 0, 0, zoom, 0, 0, 0, 0, depth, 1, 0, 0, -near * depth, 0];
  return product(seen, product(turned, moved));
}

async function begin() {
  const device = await requestDevice(), canvas = element("world");
  const say = (/** @type {string} */ text) => element("error").textContent = status.error ||= text;
  device.addEventListener("uncapturederror", (/** @type {any} */ { error }) => say(error.message));
  const format = navigator.gpu.getPreferredCanvasFormat(), context = canvas.getContext("webgpu");
  context.configure({ device, format, alphaMode: "opaque" });
  const module = device.createShaderModule({ code: CODE });
  const { VERTEX, FRAGMENT } = GPUShaderStage, visibility = VERTEX | FRAGMENT;
  const view = device.createBindGroupLayout({ entries: [{ binding: 0, visibility, buffer: {} }] });
  const tensor = (/** @type {number} */ binding) => (
    /** @type {GPUBindGroupLayoutEntry} */ ({ binding, visibility, buffer: { type: "read-only-storage" } })
  );
  const tileLayout = device.createBindGroupLayout({ entries: [{ binding: 0, visibility, buffer: {} }, tensor(1), tensor(2), tensor(3)] });
  const layout = device.createPipelineLayout({ bindGroupLayouts: [view, tileLayout] });
  const [land, tree] = ["land", "tree"].map((entryPoint) => device.createRenderPipeline({
    layout,
    vertex: { module, entryPoint },
    fragment: { module, entryPoint: "shade", targets: [{ format }] },
    depthStencil: { format: "depth24plus", depthWriteEnabled: true, depthCompare: "less" },
  }));
  const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
  const uniform = device.createBuffer({ size: 80, usage });
  const viewGroup = device.createBindGroup({ layout: view, entries: [{ binding: 0, resource: { buffer: uniform } }] });
  const depth = device.createTexture({
    size: [canvas.width, canvas.height], format: "depth24plus", usage: GPUTextureUsage.RENDER_ATTACHMENT,
  }).createView();

  const integer = Boolean(Number(new URLSearchParams(location.search).get("integer")));
  const folder = integer ? "integer/" : "";
  const world = await loadWorld(device, async (name) => await (await fetch(folder + name)).arrayBuffer());
  // drivers finish their kernels when these first run: behind the loading screen, not in a frame
  const first = await runTile(world, 0, 0);
  if (integer) {
    status.digest = await digestOf(world.chain, first);
    element("digest").textContent = `the integer world; tile 0, 0 is ${status.digest} on every machine`;
  }
  const scheduler = new Scheduler(device, { frameMs: 1000 / 60, budgetMs: 4 });
  Object.assign(status, { scheduler, networks: world.networks });
  /** @type {Map<string, {tile: Tile, group: GPUBindGroup | null}>} */
  const tiles = new Map();

  /** Ask for the tiles around, let those go that are passed. @param {number} east @param {number} south */
  function stream(east, south) {
    const cx = Math.floor(east / SPAN), cz = Math.floor(south / SPAN);
    for (const [key, { tile }] of tiles) {
      if (tile.x >= cx - BEHIND && tile.x <= cx + AHEAD && Math.abs(tile.z - cz) <= ASIDE) continue;
      tile.release();
      tiles.delete(key);
    }
    // the nearest first, and few at a time: what is far may be passed before it is made
    let pending = [...tiles.values()].filter(({ group }) => !group).length;
    const missing = [];
    for (let x = cx - BEHIND; x <= cx + AHEAD; x++) {
      for (let z = cz - ASIDE; z <= cz + ASIDE; z++) {
        const far = Math.abs(x - cx - 0.6) + Math.abs(z - cz);
        if (!tiles.has(`${x},${z}`)) missing.push({ x, z, far });
      }
    }
    for (const { x, z } of missing.sort((a, b) => a.far - b.far)) {
      if (pending++ >= MOST_ASKED) break;
      tiles.set(`${x},${z}`, { tile: new Tile(scheduler, world, x, z, 1), group: null });
    }
  }

  /** @param {Tile} tile */
  function groupOf(tile) {
    const buffer = device.createBuffer({ size: 16, usage });
    device.queue.writeBuffer(buffer, 0, new Float32Array([tile.x * SPAN, tile.z * SPAN, 0, 0]));
    const entries = SHOWN.map((name, i) => {
      const { buffer, offset, bytes } = tile.tensor(name);
      return { binding: i + 1, resource: { buffer, offset, size: bytes } };
    });
    return device.createBindGroup({ layout: tileLayout, entries: [{ binding: 0, resource: { buffer } }, ...entries] });
  }

  let running = 0, last = 0, seconds = 0, longest = 0, flying = false;
  /** @param {number} now */
  function frame(now) {
    if (status.error) return;
    requestAnimationFrame(frame);
    if (running >= MOST_RUNNING) return;
    const took = last ? now - last : 0;
    last = now;
    // the first tiles are made before the flight begins, with all that the device has
    flying ||= status.runs >= FIRST;
    if (flying) seconds += Math.min(took, 50) / 1000;
    longest = flying ? Math.max(0.995 * longest, took) : 0;
    const eye = [seconds * SPEED, 210, 224 + 120 * Math.sin(seconds / 7)];
    stream(eye[0], eye[2]);
    const numbers = [...looking(eye, canvas.width / canvas.height, 0.12 * Math.cos(seconds / 7)), ...eye, 0];
    device.queue.writeBuffer(uniform, 0, new Float32Array(numbers));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginRenderPass({
      colorAttachments: [{ view: context.getCurrentTexture().createView(), clearValue: [0.76, 0.84, 0.92, 1], loadOp: "clear", storeOp: "store" }],
      depthStencilAttachment: { view: depth, depthClearValue: 1, depthLoadOp: "clear", depthStoreOp: "store" },
    });
    pass.setBindGroup(0, viewGroup);
    for (const entry of tiles.values()) {
      if (!entry.group && entry.tile.done) entry.group = groupOf(entry.tile);
      if (entry.tile.error) say(entry.tile.error);
      if (!entry.group) continue;
      pass.setBindGroup(1, entry.group);
      pass.setPipeline(land);
      pass.draw(6 * (CELLS / STEP) ** 2);
      pass.setPipeline(tree);
      pass.draw(12, TREES * TREES);
    }
    pass.end();
    scheduler.encode(encoder, flying ? Number(element("budget").value) : LOADING_MS);
    device.queue.submit([encoder.finish()]);
    running += 1;
    device.queue.onSubmittedWorkDone().then(() => running -= 1);
    scheduler.endFrame();
    status.frames += 1;
    status.runs = [...tiles.values()].filter(({ group }) => group).length;
    if (status.frames % 15 === 0) {
      element("state").textContent = `${element("budget").value} ms, ${status.runs} of ${tiles.size} tiles here, ` +
        `longest frame ${longest.toFixed(0)} ms`;
    }
  }
  requestAnimationFrame(frame);
}

begin().catch((error) => element("error").textContent = status.error = String(error.message));
