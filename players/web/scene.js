// @ts-check
/// <reference lib="dom" />
/** A scene that turns for as long as frames come: what a hitch is seen on. */

const CUBES = 5 * 5 * 5;
const CODE = /* wgsl */ `
struct View { turn: vec4<f32>, aspect: vec4<f32> };
@group(0) @binding(0) var<uniform> view: View;
struct Vertex { @builtin(position) position: vec4<f32>, @location(0) colour: vec3<f32> };
fn turned(p: vec3<f32>, a: f32, b: f32) -> vec3<f32> {
  let q = vec3<f32>(p.x * cos(a) + p.z * sin(a), p.y, p.z * cos(a) - p.x * sin(a));
  return vec3<f32>(q.x, q.y * cos(b) - q.z * sin(b), q.y * sin(b) + q.z * cos(b));
}
@vertex fn corner(@builtin(vertex_index) v: u32, @builtin(instance_index) i: u32) -> Vertex {
  var faces = array<u32, 6>(0u, 1u, 2u, 2u, 1u, 3u);
  let face = v / 6u; let k = faces[v % 6u];
  let s = select(-1.0, 1.0, face % 2u == 0u);
  let flat = vec2<f32>(f32(k & 1u) * 2.0 - 1.0, f32(k >> 1u) * 2.0 - 1.0);
  var p = vec3<f32>(flat, s); var n = vec3<f32>(0.0, 0.0, s);
  if (face / 2u == 1u) { p = p.zxy; n = n.zxy; }
  if (face / 2u == 2u) { p = p.yzx; n = n.yzx; }
  let cell = vec3<f32>(f32(i % 5u), f32(i / 5u % 5u), f32(i / 25u)) - 2.0;
  let beat = 0.5 + 0.5 * sin(view.turn.x * 2.0 + length(cell) * 1.3);
  let spot = turned(p * (0.10 + 0.14 * beat) + cell * 0.85, view.turn.x * 0.7, 0.5 + 0.3 * sin(view.turn.x * 0.4));
  let light = 0.35 + 0.65 * max(0.0, dot(turned(n, view.turn.x * 0.7, 0.5), normalize(vec3<f32>(0.4, 0.7, -0.6))));
  let depth = spot.z + 6.5;
  return Vertex(vec4<f32>(spot.x * 1.6 / view.aspect.x, spot.y * 1.6, (depth - 1.0) * 0.9, depth),
    (0.45 + 0.55 * cos(vec3<f32>(0.0, 2.1, 4.2) + cell.x * 0.5 + beat)) * light);
}
@fragment fn shade(in: Vertex) -> @location(0) vec4<f32> { return vec4<f32>(in.colour, 1.0); }`;

/** Turning cubes in a canvas. */
export class Scene {
  /** @param {GPUDevice} device @param {HTMLCanvasElement} canvas */
  constructor(device, canvas) {
    const format = navigator.gpu.getPreferredCanvasFormat();
    this.device = device;
    this.canvas = canvas;
    this.context = /** @type {GPUCanvasContext} */ (canvas.getContext("webgpu"));
    this.context.configure({ device, format, alphaMode: "opaque" });
    const module = device.createShaderModule({ code: CODE, label: "scene" });
    this.pipeline = device.createRenderPipeline({
      layout: "auto",
      vertex: { module, entryPoint: "corner" },
      fragment: { module, entryPoint: "shade", targets: [{ format }] },
      depthStencil: { format: "depth24plus", depthWriteEnabled: true, depthCompare: "less" },
    });
    this.uniform = device.createBuffer({ size: 32, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    const entries = [{ binding: 0, resource: { buffer: this.uniform } }];
    this.group = device.createBindGroup({ layout: this.pipeline.getBindGroupLayout(0), entries });
    const size = [canvas.width, canvas.height], usage = GPUTextureUsage.RENDER_ATTACHMENT;
    this.depth = device.createTexture({ size, usage, format: "depth24plus" }).createView();
  }

  /** @param {GPUCommandEncoder} encoder @param {number} seconds */
  draw(encoder, seconds) {
    const aspect = this.canvas.width / this.canvas.height;
    this.device.queue.writeBuffer(this.uniform, 0, new Float32Array([seconds, 0, 0, 0, aspect, 0, 0, 0]));
    const view = this.context.getCurrentTexture().createView();
    const clearValue = [0.06, 0.07, 0.09, 1];
    const pass = encoder.beginRenderPass({
      colorAttachments: [{ view, clearValue, loadOp: "clear", storeOp: "store" }],
      depthStencilAttachment: { view: this.depth, depthClearValue: 1, depthLoadOp: "clear", depthStoreOp: "store" },
    });
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, this.group);
    pass.draw(36, CUBES);
    pass.end();
  }
}
