/** Pictures as networks have them: `[1, 3, H, W]` or `[1, 1, H, W]`, values from 0 to 1. */

import type { GpuTensor } from "./cml.js";

/** Options of {@link Painter.paint}. */
export interface PaintOptions {
  /** The part of the view to draw to, as `[x, y, width, height]` in shares; all unless given. */
  region?: number[];
  /** The part of the tensor to draw, as `[left, top, right, bottom]` in shares; all unless given. */
  cut?: number[];
  /** The value that becomes black; 0 unless given. */
  low?: number;
  /** The value that becomes white; 1 unless given. */
  high?: number;
  /** Whether the rest of the view becomes black; false unless given. */
  clear?: boolean;
}

/** Draws tensors into textures on the GPU, without a readback. */
export class Painter {
  /** Creates a painter for textures of one format; `rgba8unorm` unless given. */
  constructor(device: GPUDevice, format?: GPUTextureFormat);
  /** Appends a draw of the tensor into a view. The tensor has the layout `plain`. */
  paint(
    encoder: GPUCommandEncoder,
    tensor: GpuTensor,
    view: GPUTextureView,
    options?: PaintOptions,
  ): void;
}

/**
 * Returns a part of a picture as the elements of `[1, 3, height, width]`. Pixels beyond the border
 * repeat the border.
 */
export function pixels(
  picture: ImageData,
  left: number,
  top: number,
  width: number,
  height: number,
): Float32Array;

/** A tile: the first pixel of its input, and the parts for {@link Painter.paint}. */
export interface Tile {
  /** The column of its first pixel. */
  left: number;
  /** The row of its first pixel. */
  top: number;
  /** The part of the tile that counts. */
  cut: number[];
  /** The part of the whole picture that it covers. */
  region: number[];
}

/**
 * Returns the tiles that cover a picture of `width` by `height`. Neighbours overlap by `margin`
 * pixels (6 unless given), because a network knows less at a tile's border.
 */
export function tiles(
  width: number,
  height: number,
  tileWidth: number,
  tileHeight: number,
  margin?: number,
): Tile[];
