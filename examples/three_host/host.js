// @ts-check
/**
 * A three.js scene of a piece of land that networks make, on one device with them: its picture is
 * painted into a texture that three.js takes as it is, and nothing of it leaves the GPU.
 */

import * as THREE from "./three.webgpu.js";
import { Scheduler } from "./cml.js";
import { Painter } from "./picture.js";
import { CELLS, SPAN, Tile } from "./tiles.js";

const TEXELS = 128, HIGH = 96, APRON = 20;
/** a coast, from which tiles follow towards the east */
export const FIRST = [-12, -2];
/** what sRGB means: three.js reads the numbers that the network wrote */
const FORMAT = "rgba8unorm-srgb";

/** A plane of the tile's cells. The picture has two texels per cell, and a border. */
function plane() {
  const geometry = new THREE.PlaneGeometry(SPAN, SPAN, CELLS, CELLS).rotateX(-Math.PI / 2);
  const { uv } = geometry.attributes;
  for (let i = 0; i < uv.count; i++) {
    const [column, row] = [i % (CELLS + 1), Math.floor(i / (CELLS + 1))];
    uv.setXY(i, (2 * column + 9) / TEXELS, (2 * row + 9) / TEXELS);
  }
  return geometry;
}

/** The scene, three's renderer and our scheduler. */
export class Host {
  frames = 0;
  /** how many tiles were shown */ runs = 0;
  /** @type {Tile | null} */ tile = null;

  /**
   * three.js gets the device that the networks are on: one of `requestDevice()` has all that they
   * can use. (The other way round: `renderer.backend.device`, after `renderer.init()`.)
   * @param {GPUDevice} device @param {any} canvas @param {import("./tiles.js").World} world
   */
  static async on(device, canvas, world) {
    const renderer = new THREE.WebGPURenderer({ device, canvas, antialias: false });
    await renderer.init();
    renderer.setSize(canvas.width, canvas.height, false);
    return new Host(device, renderer, world);
  }

  /** @param {GPUDevice} device @param {any} renderer @param {import("./tiles.js").World} world */
  constructor(device, renderer, world) {
    this.device = device;
    this.renderer = renderer;
    this.world = world;
    this.scheduler = new Scheduler(device, { frameMs: 1000 / 60 });
    this.painter = new Painter(device, FORMAT);
    const { RENDER_ATTACHMENT, TEXTURE_BINDING, COPY_SRC } = GPUTextureUsage;
    const usage = RENDER_ATTACHMENT | TEXTURE_BINDING | COPY_SRC;
    this.texture = device.createTexture({ size: [TEXELS, TEXELS], format: FORMAT, usage });
    this.map = new THREE.ExternalTexture(this.texture);
    this.land = new THREE.Mesh(plane(), new THREE.MeshStandardMaterial({ map: this.map, roughness: 1, side: THREE.DoubleSide }));
    const wet = new THREE.MeshStandardMaterial({ color: 0x1c4f68, transparent: true, opacity: 0.85, roughness: 0.9 });
    this.sea = new THREE.Mesh(new THREE.PlaneGeometry(SPAN, SPAN).rotateX(-Math.PI / 2), wet);
    this.land.visible = this.sea.visible = false;
    this.scene = new THREE.Scene();
    this.scene.background = new THREE.Color(0x9fc3e6);
    this.sun = new THREE.DirectionalLight(0xfff2dd, 4);
    this.sun.position.set(0.5, 0.8, -0.3);
    this.scene.add(this.land, this.sea, this.sun, new THREE.AmbientLight(0xbcd0ff, 1));
    const { width, height } = renderer.domElement;
    this.camera = new THREE.PerspectiveCamera(40, width / height, 1, 5000);
  }

  /** A frame: the networks' slices, then three's scene. @param {number} seconds @param {number} budgetMs */
  frame(seconds, budgetMs) {
    const encoder = this.device.createCommandEncoder();
    this.tile ??= this._ask();
    const report = this.scheduler.encode(encoder, budgetMs);
    if (this.tile.error) throw new Error(this.tile.error);
    if (this.tile.done) this._show(encoder, this.tile);
    this.device.queue.submit([encoder.finish()]);
    this.scheduler.endFrame();
    this._look(seconds);
    // three.js makes its own encoder and submits it: on the same queue, so behind ours
    this.renderer.render(this.scene, this.camera);
    this.frames += 1;
    return report;
  }

  _ask() {
    const tile = new Tile(this.scheduler, this.world, FIRST[0] + this.runs, FIRST[1], 1);
    tile.read("heights");
    return tile;
  }

  /** Its picture once painted stays in the texture; its heights come by a readback. */
  /** @param {GPUCommandEncoder} encoder @param {Tile} tile */
  _show(encoder, tile) {
    const heights = tile.read("heights");
    if (!heights) return;
    this.painter.paint(encoder, tile.tensor("albedo"), this.texture.createView(), { clear: true });
    const { position } = this.land.geometry.attributes;
    for (let i = 0; i < position.count; i++) {
      const [column, row] = [i % (CELLS + 1), Math.floor(i / (CELLS + 1))];
      position.setY(i, heights[(row + APRON) * HIGH + column + APRON]);
    }
    position.needsUpdate = true;
    this.land.geometry.computeVertexNormals();
    this.land.visible = this.sea.visible = true;
    tile.release();
    this.tile = null;
    this.runs += 1;
  }

  /** @param {number} seconds */
  _look(seconds) {
    const turn = 0.25 * seconds;
    this.camera.position.set(520 * Math.sin(turn), 380, 520 * Math.cos(turn));
    this.camera.lookAt(0, 20, 0);
  }
}
