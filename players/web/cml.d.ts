/**
 * Plays cooked neural networks on WebGPU, in slices, within a budget of milliseconds per frame.
 *
 * The types of WebGPU (`GPUDevice` and others) come from the `dom` library of TypeScript 6, from Deno, or with
 * TypeScript 5 from the package `@webgpu/types`.
 *
 * Exports of `cml.js` that are not declared here serve the project's own tools and may change.
 */

/** The reason of a {@link CmlError}. */
export type ErrorCode =
  /** The file is damaged. */
  | "CorruptArtifact"
  /** No plan in the file fits this device. Cook the network again for it. */
  | "StaleArtifact"
  /** An argument is wrong. */
  | "InputError"
  /** The device refuses a kernel of the file. */
  | "KernelError"
  /** There is no WebGPU or no WebAssembly, the device is lost, or memory is used up. */
  | "DeviceError"
  /** The requested result does not exist. */
  | "JobError";

/** Every error that this module raises on purpose. */
export class CmlError extends Error {
  /** Creates an error; `message` says what is wrong, what was expected, and the next step. */
  constructor(code: ErrorCode, message: string);
  /** The reason, for programs. */
  readonly code: ErrorCode;
}

/** The type of a tensor's elements: float32, int32, or uint32 with the values 0 and 1. */
export type DType = "scalar" | "integer" | "logical";

/** The order of a tensor in memory: row-major, or blocks of four channels in 32 or 16 bits. */
export type Layout = "plain" | "c4" | "c4h";

/** The elements of a tensor in row-major order: an array of its {@link DType}. */
export type Numbers = Float32Array | Int32Array | Uint32Array;

/** An input or output of a network. */
export interface TensorInfo {
  /** The name in the model. */
  readonly name: string;
  /** The type of the elements. */
  readonly type: DType;
  /** The order of the elements on the GPU. */
  readonly layout: Layout;
  /** The extents, such as `[1, 3, 64, 64]`. */
  readonly shape: readonly number[];
  /** The number of elements. */
  readonly elements: number;
  /** The size on the GPU in bytes. */
  readonly bytes: number;
}

/** A tensor on the GPU: the range `[offset, offset + bytes)` of `buffer`. */
export interface GpuTensor {
  /** The buffer; it has the usages `STORAGE`, `COPY_SRC` and `COPY_DST`. */
  buffer: GPUBuffer;
  /** The first byte. */
  offset: number;
  /** The number of bytes. */
  bytes: number;
  /** The extents. */
  shape: number[];
  /** The type of the elements. */
  type: DType;
  /** The order of the elements. */
  layout: Layout;
}

/** An input of a job: its elements, a tensor on the same device, or another job's output. */
export type Input = Numbers | number[] | GpuTensor | JobOutput;

/** The most that a file may use, checked before any of it is allocated. */
export interface Limits {
  /** The unpacked code of all kernels in bytes; 64 MiB unless given. */
  code_bytes: number;
  /** The buffers of one plan in bytes; 2 GiB unless given. */
  device_bytes: number;
  /** The number of kernels; 4096 unless given. */
  kernels: number;
  /** The number of steps of one plan; 16384 unless given. */
  steps: number;
}

/** Options of {@link loadCooked}. */
export interface LoadOptions {
  /** Usages of the outputs' buffers besides storage and copies, such as `GPUBufferUsage.VERTEX`. */
  outputUsage?: number;
  /** Replaces some of the default limits, for a file that you trust. */
  limits?: Partial<Limits>;
  /** Called while the network loads, with the number of kernels that are built and of all. */
  onProgress?: (done: number, total: number) => void;
}

/**
 * Returns a device with the features and limits that networks can use.
 *
 * A device that the host made itself works too. Request the feature `timestamp-query` on it, without
 * which the budget is kept only approximately.
 *
 * @throws {CmlError} `DeviceError` if there is no WebGPU or no adapter.
 */
export function requestDevice(options?: GPURequestAdapterOptions): Promise<GPUDevice>;

/**
 * Loads a cooked file: checks it, uploads the weights and builds the pipelines. Frames may go on
 * meanwhile.
 *
 * @throws {CmlError} `CorruptArtifact`, `StaleArtifact`, `InputError` (over a limit), `KernelError` or
 * `DeviceError`.
 */
export function loadCooked(
  device: GPUDevice,
  file: ArrayBuffer | Uint8Array | CookedFile,
  options?: LoadOptions,
): Promise<Network>;

/** A cooked file that was read and checked. Give it to {@link loadCooked}, on several devices if needed. */
export class CookedFile {
  private constructor();
  /**
   * Reads a file and checks it, except the kernels, which {@link loadCooked} checks.
   *
   * @throws {CmlError} `CorruptArtifact`, `StaleArtifact` or `InputError` (over a limit).
   */
  static open(
    source: ArrayBuffer | Uint8Array,
    limits?: Partial<Limits>,
  ): Promise<CookedFile>;
  /** The name of the model. */
  get name(): string;
}

/** A network on a device. {@link loadCooked} creates it. */
export class Network {
  private constructor();
  /** The name of the model. */
  readonly name: string;
  /** The inputs by name. */
  readonly inputs: ReadonlyMap<string, TensorInfo>;
  /** The outputs by name, as `place`, and their offset in the buffer of a job's outputs. */
  readonly outputs: ReadonlyMap<string, { readonly place: TensorInfo; readonly at: number }>;
  /**
   * Runs the whole network at once and waits for the outputs: for tools and tests, not for frames.
   *
   * @throws {CmlError} `InputError` for wrong inputs, `JobError` while a job of the network runs, or a frame
   * with its work has not ended.
   */
  run(inputs: Record<string, Numbers | number[] | GpuTensor>): Promise<Record<string, Numbers>>;
  /** Gives the network's variables the values that they have in the file. */
  reset(): Promise<void>;
  /** Releases the network's memory. Jobs of it must have ended. */
  destroy(): void;
}

/**
 * Orders the jobs that could run in a frame, the first one first. `rate` is the part of the elapsed
 * time that networks may use.
 */
export type Policy = (jobs: Job[], nowMs: number, rate: number) => Job[];

/**
 * The default policy: of the jobs whose deadline can still be met the one with the least time to
 * spare, then jobs that are overdue by up to 500 ms, then all others by {@link fairShare}. A job that
 * has not run for 500 ms goes first.
 */
export const leastLaxity: Policy;

/** A policy that divides GPU time in proportion to the priorities; deadlines do not count. */
export const fairShare: Policy;

/** A policy that runs the highest priority first, then the oldest job. Low priorities may starve. */
export const byPriority: Policy;

/** Options of a {@link Scheduler}. */
export interface SchedulerOptions {
  /** The intended duration of a frame in milliseconds; 1000 / 60 unless given. */
  frameMs?: number;
  /** The GPU milliseconds per frame that networks may use; 4 unless given. */
  budgetMs?: number;
  /** The share of frames that may exceed the budget, between 0 and 1; 0.01 unless given. */
  overShare?: number;
  /** The order in which jobs get their part of a frame; {@link leastLaxity} unless given. */
  policy?: Policy;
  /** The number of jobs that are queued, run, or are done and not released; 256 unless given. */
  maxJobs?: number;
}

/** Options of {@link Scheduler.submit}. */
export interface SubmitOptions {
  /** The share of GPU time beside other jobs; 1 unless given. 0 takes only what all others leave. */
  priority?: number;
  /** The milliseconds from now until the job should be done. */
  deadlineMs?: number;
  /** A name for messages; the network's name unless given. */
  name?: string;
  /** A job that is still queued in the same slot is cancelled. */
  slot?: string;
}

/** The reason why a frame runs no more than it does. */
export type Reason =
  | "budget"
  | "nothing to do"
  | "waiting for GPU"
  | "preparing"
  | "all waiting"
  | "frame not ended"
  | "device error";

/** Some workgroups of one step, in one frame. */
export interface SliceReport {
  /** The number of the job. */
  job: number;
  /** The index of the step in the network. */
  step: number;
  /** The operator. */
  op: string;
  /** The operator and its place in the model. */
  title: string;
  /** The first workgroup. */
  first: number;
  /** The number of workgroups. */
  count: number;
  /** The predicted GPU time in milliseconds. */
  predictedMs: number;
  /** The measured GPU time in milliseconds; `null` until it has arrived, and if the slice was timed with others. */
  measuredMs: number | null;
  /** True if such slices were measured often enough before; `predictedMs` is an estimate otherwise. */
  settled: boolean;
}

/** The slices of a frame and the reason why it stopped. */
export interface FrameReport {
  /** The number of the frame. */
  frame: number;
  /** The time at which the frame was encoded, by `performance.now()`. */
  nowMs: number;
  /** The budget in milliseconds. */
  budgetMs: number;
  /** The part of the budget that is planned for, in milliseconds; the rest is a margin. */
  aimMs: number;
  /** The reason why no more was run. */
  reason: Reason;
  /** The slices in the order in which they run. */
  slices: SliceReport[];
  /** The numbers of the jobs that end in this frame. */
  finished: number[];
  /** The predicted GPU time of all slices in milliseconds. */
  predictedMs: number;
  /** The measured GPU time in milliseconds; `null` until it has arrived, some frames later. */
  measuredMs: number | null;
  /** The CPU time of `encode` in milliseconds. */
  cpuMs: number;
}

/**
 * Runs networks within a budget of GPU milliseconds per frame.
 *
 * In every frame call {@link encode}, submit the encoder, then call {@link endFrame}. None of them
 * waits or builds a pipeline, and in steady state none creates anything on the device.
 */
export class Scheduler {
  /** Creates a scheduler for the device that the networks were loaded on. */
  constructor(device: GPUDevice, options?: SchedulerOptions);
  /** The intended duration of a frame in milliseconds. */
  frameMs: number;
  /** The budget of a frame for which {@link encode} gets none. */
  budgetMs: number;
  /** The jobs that have not ended, the oldest first. */
  get jobs(): Job[];
  /** The report of the last encoded frame. */
  lastReport: FrameReport | null;
  /**
   * Queues a run of a network. Elements are copied now.
   *
   * @throws {CmlError} `InputError` for wrong inputs or options, with `maxJobs` jobs, or while the network
   * works for another scheduler.
   */
  submit(network: Network, inputs: Record<string, Input>, options?: SubmitOptions): Job;
  /**
   * Appends this frame's slices to the host's encoder, at most `budgetMs` of them. Appends nothing
   * until the frame before was ended.
   */
  encode(encoder: GPUCommandEncoder, budgetMs?: number): FrameReport;
  /**
   * Ends the frame; call it after the submit. Learns from the timings that have arrived, and returns
   * the reports of the frames that they complete.
   */
  endFrame(): FrameReport[];
  /**
   * Returns all jobs to their state before {@link encode}. Call it instead of the submit and
   * {@link endFrame} if the encoder is discarded; the jobs of a frame that is ended and never submitted
   * fail, and a network whose variables they changed refuses to run until {@link Network.reset}.
   */
  abandonFrame(): void;
}

/** One run of a network, spread over frames. {@link Scheduler.submit} creates it. */
export class Job {
  private constructor();
  /** The stage of the job. */
  readonly state: "queued" | "running" | "done" | "cancelled" | "failed";
  /** The reason why the job failed; "" if it did not. */
  readonly error: string;
  /** The number of the job in {@link FrameReport}. */
  readonly number: number;
  /** The name for messages. */
  readonly name: string;
  /** The network that the job runs. */
  readonly network: { readonly name: string };
  /** Whether the job has ended: done, cancelled or failed. */
  get ended(): boolean;
  /** The share of the work that has been encoded, from 0 to 1. */
  get progress(): number;
  /** The milliseconds until the job is done if nothing else is submitted; 0 once it has ended. */
  get etaMs(): number;
  /** The predicted GPU milliseconds of the remaining work. */
  get remainingMs(): number;
  /** Returns a future output, as an input for another job. That job waits for this one. */
  output(name: string): JobOutput;
  /**
   * Returns an output on the GPU, without a readback. It stays until {@link release}.
   *
   * @throws {CmlError} `JobError` unless the job is done, `InputError` for an unknown name.
   */
  tensor(name: string): GpuTensor;
  /**
   * Returns an output as numbers, or `null` until they have arrived. The first call requests the copy,
   * which goes with the next frame and arrives some frames later.
   *
   * @throws {CmlError} `JobError` if the job has ended without an output, `InputError` for an unknown
   * name.
   */
  read(name: string): Numbers | null;
  /** Stops the job at the next slice. */
  cancel(): void;
  /** Keeps the job's place and memory, and runs nothing of it until {@link resume}. */
  pause(): void;
  /** Continues a paused job. */
  resume(): void;
  /** Returns the memory of the outputs, once no other job takes them. Call it for every job. */
  release(): void;
}

/** A future output of a job. {@link Job.output} creates it. */
export class JobOutput {
  private constructor();
  /** The job. */
  readonly job: Job;
  /** The name of the output. */
  readonly name: string;
}
