// @ts-check
/** A canvas for three.js in Deno, which has WebGPU and no page. */

export const SIDE = 128;

/** A square canvas, and the texture that it shows once it is configured. */
export function canvasOf() {
  const shown = /** @type {{texture: GPUTexture}} */ ({});
  const context = {
    configure(/** @type {{device: GPUDevice, format: GPUTextureFormat}} */ { device, format }) {
      const usage = GPUTextureUsage.RENDER_ATTACHMENT | GPUTextureUsage.COPY_SRC;
      shown.texture = device.createTexture({ size: [SIDE, SIDE], format, usage });
    },
    getCurrentTexture: () => shown.texture,
  };
  const canvas = { width: SIDE, height: SIDE, style: {}, addEventListener() {}, getContext: () => context };
  return { canvas, shown };
}

/** The bytes of a texture of SIDE x SIDE. @param {GPUDevice} device @param {GPUTexture} texture */
export async function bytesOf(device, texture) {
  const bytesPerRow = 4 * SIDE, usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
  const buffer = device.createBuffer({ size: bytesPerRow * SIDE, usage });
  const encoder = device.createCommandEncoder();
  encoder.copyTextureToBuffer({ texture }, { buffer, bytesPerRow }, [SIDE, SIDE]);
  device.queue.submit([encoder.finish()]);
  await buffer.mapAsync(GPUMapMode.READ);
  const bytes = new Uint8Array(buffer.getMappedRange().slice(0));
  if (!texture.format.startsWith("bgra")) return bytes;
  return bytes.map((_, i) => bytes[i % 4 === 0 ? i + 2 : i % 4 === 2 ? i - 2 : i]);
}
