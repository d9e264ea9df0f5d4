// @ts-check
/// <reference lib="dom" />
/** A moving scene, on which a late frame is visible as a hitch. */

const CODE = /* wgsl */ `
@group(0) @binding(0) var<uniform> view: vec4<f32>; // seconds, width, height
@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
  return vec4<f32>(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}
@fragment fn shade(@builtin(position) p: vec4<f32>) -> @location(0) vec4<f32> {
  let q = (p.xy / view.yz - 0.5) * vec2<f32>(view.y / view.z, -1.0);
  var colour = mix(vec3<f32>(0.20, 0.14, 0.22), vec3<f32>(0.06, 0.09, 0.16), q.y + 0.5);
  let deep = 0.35 / max(-0.1 - q.y, 0.001);
  if (q.y < -0.12) { // the ground, which passes by
    let tile = (i32(floor(3.0 * q.x * deep + view.x)) + i32(floor(3.0 * deep))) & 1;
    colour = mix(colour, vec3<f32>(0.16 + 0.2 * f32(tile)), exp(-0.15 * deep));
  }
  var nearest = 0.0;
  for (var i = 0.0; i < 8.0 && abs(q.y - 0.04) < 0.26; i += 1.0) { // balls on a circle that turns
    let turn = 0.7854 * i + 0.7 * view.x;
    let size = 0.06 - 0.02 * cos(turn);
    let r = (q - vec2<f32>(0.4 * sin(turn), 0.05 + 0.12 * cos(turn) + 0.04 * sin(3.0 * view.x + i))) / size;
    if (dot(r, r) < 1.0 && size > nearest) {
      let light = max(dot(vec3<f32>(r, sqrt(1.0 - dot(r, r))), vec3<f32>(-0.48, 0.67, 0.57)), 0.0);
      colour = (0.45 + 0.55 * cos(vec3<f32>(0.0, 2.1, 4.2) + 0.7854 * i)) * (0.2 + light);
      nearest = size;
    }
  }
  return vec4<f32>(colour, 1.0);
}`;

/** Balls that turn over a ground, in a canvas. */
export class Scene {
  /** @param {GPUDevice} device @param {HTMLCanvasElement} canvas */
  constructor(device, canvas) {
    const format = navigator.gpu.getPreferredCanvasFormat();
    this.device = device;
    this.canvas = canvas;
    this.context = /** @type {GPUCanvasContext} */ (canvas.getContext("webgpu"));
    this.context.configure({ device, format, alphaMode: "opaque" });
    const module = device.createShaderModule({ code: CODE, label: "scene" });
    this.pipeline = device.createRenderPipeline({ layout: "auto", vertex: { module }, fragment: { module, targets: [{ format }] } });
    this.uniform = device.createBuffer({ size: 16, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    const entries = [{ binding: 0, resource: { buffer: this.uniform } }];
    this.group = device.createBindGroup({ layout: this.pipeline.getBindGroupLayout(0), entries });
  }

  /** @param {GPUCommandEncoder} encoder @param {number} seconds */
  draw(encoder, seconds) {
    const { width, height } = this.canvas, view = this.context.getCurrentTexture().createView();
    this.device.queue.writeBuffer(this.uniform, 0, new Float32Array([seconds, width, height, 0]));
    const pass = encoder.beginRenderPass({ colorAttachments: [{ view, loadOp: "clear", storeOp: "store" }] });
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, this.group);
    pass.draw(3);
    pass.end();
  }
}
