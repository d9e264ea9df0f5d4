// @ts-check
/** Converts between pictures and tensors; `picture.d.ts` documents what is exported. */

import { getOrMake } from "./cml.js";

const CODE = /* wgsl */ `
struct Place { shape: vec4<u32>, region: vec4<f32>, value: vec4<f32>, cut: vec4<f32> };
@group(0) @binding(0) var<uniform> place: Place;
@group(0) @binding(1) var<storage, read> numbers: array<f32>;
struct Vertex { @builtin(position) position: vec4<f32>, @location(0) at: vec2<f32> };
@vertex fn corner(@builtin(vertex_index) i: u32) -> Vertex {
  let at = vec2<f32>(f32(i & 1u), f32(i >> 1u));
  let spot = place.region.xy + at * place.region.zw;
  return Vertex(vec4<f32>(spot.x * 2.0 - 1.0, 1.0 - spot.y * 2.0, 0.0, 1.0),
    mix(place.cut.xy, place.cut.zw, at));
}
@fragment fn shade(in: Vertex) -> @location(0) vec4<f32> {
  let wide = place.shape.y; let high = place.shape.z; let area = wide * high;
  let x = min(u32(in.at.x * f32(wide)), wide - 1u);
  let y = min(u32(in.at.y * f32(high)), high - 1u);
  let i = y * wide + x;
  var colour = vec3<f32>(numbers[i]);
  if (place.shape.x >= 3u) { colour = vec3<f32>(numbers[i], numbers[area + i], numbers[2u * area + i]); }
  return vec4<f32>(clamp((colour - place.value.x) * place.value.y, vec3<f32>(0.0), vec3<f32>(1.0)), 1.0);
}`;

/** Draws tensors into textures of one format. */
export class Painter {
  /** @type {WeakMap<GPUBuffer, Map<string, GPUBindGroup>>} */ _groups = new WeakMap();
  /** @type {Map<string, GPUBuffer>} */ _places = new Map();

  /** @param {GPUDevice} device @param {GPUTextureFormat} format */
  constructor(device, format = "rgba8unorm") {
    this.device = device;
    const module = device.createShaderModule({ code: CODE, label: "picture" });
    this.pipeline = device.createRenderPipeline({
      label: "picture",
      layout: "auto",
      vertex: { module, entryPoint: "corner" },
      fragment: { module, entryPoint: "shade", targets: [{ format }] },
      primitive: { topology: "triangle-strip" },
    });
  }

  /** @param {GPUCommandEncoder} encoder @param {import("./cml.js").GpuTensor} tensor @param {GPUTextureView} view @param {import("./picture.d.ts").PaintOptions} how */
  paint(encoder, tensor, view, how = {}) {
    const { region = [0, 0, 1, 1], cut = [0, 0, 1, 1], low = 0, high = 1, clear = false } = how;
    const [channels, height, width] = tensor.shape.slice(-3);
    const key = [channels, width, height, region, low, high, cut].join();
    const pass = encoder.beginRenderPass({
      colorAttachments: [{ view, loadOp: clear ? "clear" : "load", storeOp: "store", clearValue: [0, 0, 0, 1] }],
    });
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, this._group(tensor, key, [channels, width, height], [...region, low, 1 / (high - low), 0, 0, ...cut]));
    pass.draw(4);
    pass.end();
  }

  /** @param {import("./cml.js").GpuTensor} tensor @param {string} key @param {number[]} shape @param {number[]} numbers */
  _group(tensor, key, shape, numbers) {
    const { buffer, offset, bytes } = tensor, groups = getOrMake(this._groups, buffer, () => new Map());
    return getOrMake(groups, `${offset} ${key}`, () => this.device.createBindGroup({
      layout: this.pipeline.getBindGroupLayout(0),
      entries: [
        { binding: 0, resource: { buffer: this._place(key, shape, numbers) } },
        { binding: 1, resource: { buffer, offset, size: bytes } },
      ],
    }));
  }

  /** @param {string} key @param {number[]} shape @param {number[]} numbers */
  _place(key, shape, numbers) {
    return getOrMake(this._places, key, () => {
      const buffer = this.device.createBuffer({ size: 64, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
      this.device.queue.writeBuffer(buffer, 0, new Uint32Array([...shape, 0]));
      this.device.queue.writeBuffer(buffer, 16, new Float32Array(numbers));
      return buffer;
    });
  }
}

/** @param {ImageData} picture @param {number} left @param {number} top @param {number} width @param {number} height */
export function pixels(picture, left, top, width, height) {
  const values = new Float32Array(3 * width * height), area = width * height;
  for (let y = 0; y < height; y++) {
    const row = Math.min(Math.max(top + y, 0), picture.height - 1) * picture.width;
    for (let x = 0; x < width; x++) {
      const from = 4 * (row + Math.min(Math.max(left + x, 0), picture.width - 1));
      for (let c = 0; c < 3; c++) values[c * area + y * width + x] = picture.data[from + c] / 255;
    }
  }
  return values;
}

/** @param {number} width @param {number} height @param {number} tileWidth @param {number} tileHeight */
export function tiles(width, height, tileWidth, tileHeight, margin = 6) {
  const across = along(width, tileWidth, margin), down = along(height, tileHeight, margin);
  return down.flatMap((y) => across.map((x) => ({
    left: x.first,
    top: y.first,
    cut: [x.from, y.from, x.to, y.to].map((at, i) => at / (i % 2 ? tileHeight : tileWidth)),
    region: [
      (x.first + x.from) / width, (y.first + y.from) / height,
      (x.to - x.from) / width, (y.to - y.from) / height,
    ],
  })));
}

/** @param {number} length @param {number} tile @param {number} maxMargin */
function along(length, tile, maxMargin) {
  const margin = Math.min(maxMargin, Math.floor(tile / 4)), parts = [];
  for (let done = 0; done < length;) {
    const last = done === 0 ? length <= tile : done - margin + tile >= length;
    const first = done === 0 ? 0 : last ? Math.max(0, length - tile) : done - margin;
    const to = last ? length : first + tile - margin;
    parts.push({ first, from: done - first, to: to - first });
    done = to;
  }
  return parts;
}
