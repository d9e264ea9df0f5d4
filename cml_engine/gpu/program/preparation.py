"""Preparation of a program before it can run: weight upload, pipelines and bind groups.

:meth:`Preparation.finish` does everything at once: one thread per core builds pipelines while the
weights are uploaded. :meth:`Preparation.advance` does a part in every frame: weights are uploaded
in chunks, one thread builds pipelines and leaves the other cores to the game, and the bind groups
follow.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock

import wgpu

from cml_engine.compiler.plan import Plan, Step
from cml_engine.errors import DeviceError
from cml_engine.gpu.device import RANGE_SLOTS, SLICE_BYTES, Device, Pipeline
from cml_engine.gpu.memory.allocator import Allocation, BufferRange
from cml_engine.gpu.native import (
    Dispatch,
    device_error,
    dispatch_of,
    dispatch_recorder,
    string_view,
)
from cml_engine.gpu.program.memory import (
    EVERYTHING,
    Residency,
    SharedConstants,
    chunks,
    write_chunks,
)
from cml_engine.gpu.program.prints import Prints, printing_keys
from cml_engine.gpu.shaders.hlsl import NO_VARIANT, Variant, guarded, step_params
from cml_engine.ops.common.once import Once

#: reports the stage of a compilation, the units of it that are done, and their total
OnProgress = Callable[[str, int, int], None]
#: bytes of weights uploaded per millisecond of budget; a slow bus takes a tenth of that time
UPLOAD_BYTES_PER_MS = 256 << 10
#: the end of a range that its dispatch bounds; its highest bit is clear (``seal.hlsli``)
_NO_END = (1 << 31) - 1
#: bind groups created in a frame: per millisecond of its budget, and the minimum
_LAUNCHES_PER_MS, _LEAST_LAUNCHES = 1, 4


def upload_limit(budget_ms: float) -> int:
    """Returns the bytes that a frame may upload for one program."""
    return max(64 << 10, int(budget_ms * UPLOAD_BYTES_PER_MS))


class Uniforms:
    """The uniform buffers of a program: the parameters of every step, and ranges of workgroups.

    The parameters are written once, because a plan's shapes do not change; only those of sliders
    change. There is a range for each whole step, then slots for partial ranges. A slot keeps its
    range for later frames: an upload costs more than a dispatch. The memory is freed with this
    object.
    """

    def __init__(self, plan: Plan, gpu: Device) -> None:
        align = gpu.limits.uniform_offset_alignment
        self._stride = max(align, SLICE_BYTES)
        self._width = gpu.limits.max_groups_per_dimension
        ranges = bytearray(self._stride * (len(plan.steps) + RANGE_SLOTS))
        #: the offset of each slot by the range in it, the least recently used first
        self._slots: dict[tuple[int, int], int] = {}
        for first in range(RANGE_SLOTS):
            offset = self._slots[first, _NO_END] = self.step_offset(len(plan.steps) + first)
            ranges[offset : offset + SLICE_BYTES] = self._range(first, _NO_END)
        params = bytearray()
        #: the parameters of each step, as a byte offset and a size
        self._spans: list[tuple[int, int]] = []
        spans_by_data: dict[bytes, tuple[int, int]] = {}  # equal blocks share memory
        for step in plan.steps:
            offset = self.step_offset(step.index)
            ranges[offset : offset + SLICE_BYTES] = self._range(0, step.groups)
            data = step_params(step)
            span = None if step.live else spans_by_data.get(data)
            if span is None:
                span = len(params), len(data)
                params += data + bytes(-len(data) % align)
                if step.live is None:
                    spans_by_data[data] = span
            self._spans.append(span)
        self.ranges = self._filled(plan, gpu, ranges)
        self._params = self._filled(plan, gpu, params or bytearray(16))

    def _filled(self, plan: Plan, gpu: Device, data: bytearray) -> Allocation:
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        memory = gpu.memory.allocate(len(data), usage, owner=plan.name, category="uniform")
        memory.free_with_owner(self)
        memory.write(data)
        return memory

    def write_params(self, step: Step) -> None:
        """Writes new parameters of a step that depend on sliders, before the next submit."""
        self._params.write(step_params(step), self._spans[step.index][0])

    def step_offset(self, step: int) -> int:
        """Returns the byte offset of the whole step's range in :attr:`ranges`."""
        return step * self._stride

    def take_slot(self, first: int, end: int) -> int:
        """Returns the byte offset of a slot with the range ``[first, end)``.

        A range that is in no slot is written to the least recently used one; between these uses
        are :data:`RANGE_SLOTS` others, which must not all be in one submit.
        """
        if end - first <= self._width:  # one row of workgroups ends by itself
            end = _NO_END
        offset = self._slots.pop((first, end), None)
        if offset is None:
            oldest = next(iter(self._slots))
            self.ranges.write(self._range(first, end), self._slots[oldest])
            offset = self._slots.pop(oldest)
        self._slots[first, end] = offset
        return offset

    def _range(self, first: int, end: int) -> bytes:
        return struct.pack("=4I", first, end, self._width, 0)

    def bindings(self, step: Step) -> list[BufferRange]:
        """Returns the slice and the step's parameters as bind group resources."""
        return [
            self.ranges.binding(0, SLICE_BYTES),
            self._params.binding(*self._spans[step.index]),
        ]


class Launch:
    """A prepared step: its pipeline, its bind group and the dispatch of its ``groups`` workgroups.

    A row has at most ``width`` workgroups. A debug group of a dispatch has the name ``marker``.
    """

    __slots__ = ("_label", "_uniforms", "_width", "bind_group", "groups", "pipeline", "whole")

    def __init__(
        self,
        pipeline: Pipeline,
        bind_group: wgpu.GPUBindGroup,
        uniforms: Uniforms,
        step: Step,
        width: int,
        marker: str | None,
    ) -> None:
        self.pipeline, self.bind_group, self._uniforms = pipeline, bind_group, uniforms
        self.groups, self._width = step.groups, width
        self._label = None if marker is None else string_view(marker)
        self.whole = self._dispatch(uniforms.step_offset(step.index), step.groups)

    def part(self, first: int, count: int) -> Dispatch:
        """Returns the dispatch of workgroups ``[first, first + count)``, which takes a slot."""
        return self._dispatch(self._uniforms.take_slot(first, first + count), count)

    def _dispatch(self, slot: int, count: int) -> Dispatch:
        width = self._width
        columns, rows = (count, 1) if count <= width else (width, -(-count // width))
        pipeline = self.pipeline.pipeline
        return dispatch_of(pipeline, self.bind_group, (slot,), columns, rows, self._label)


class Preparation:
    """The preparation of one program: it uploads weights, builds pipelines, makes bind groups.

    It remembers what is done and can stop after any part.
    """

    def __init__(
        self,
        plan: Plan,
        gpu: Device,
        residency: Residency,
        constants: SharedConstants,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._plan, self._gpu = plan, gpu
        self._width = gpu.limits.max_groups_per_dimension
        self._residency, self._constants = residency, constants
        self.keys = constants.step_keys(plan)
        if not gpu.has_ieee_functions:
            self.keys = [guarded(key) for key in self.keys]
        if gpu.dump_kernels is not None:
            from cml_engine.gpu.shaders.dump import dump_steps

            dump_steps(plan, self.keys, gpu.dump_kernels)
        if gpu.debug_kernels:
            self.keys = printing_keys(plan, gpu, self.keys)
        #: a step of each kernel variant, the first one
        self._step_of = dict(zip(reversed(self.keys), reversed(plan.steps), strict=True))
        self.uniforms: Uniforms | None = None
        #: the print buffer; None if no kernel prints
        self.prints: Prints | None = None
        #: the finished steps; None for a step on the CPU
        self.launches: list[Launch | None] = []
        self._building: Future[None] | None = None
        #: references that keep the pipelines alive: the device's cache may drop them
        self._pipelines: dict[Variant, Pipeline] = {}
        #: combinations of a kernel and binding sizes that the device has accepted
        self._rehearsed: set[tuple[Variant, tuple[int, ...]]] = set()
        self._on_progress = on_progress
        self._reporting = Lock()
        self._report()
        self.restart()

    @property
    def variants(self) -> list[Variant]:
        """The different kernel variants of the program."""
        return [key for key in dict.fromkeys(self.keys) if key is not NO_VARIANT]

    def restart(self) -> None:
        """Drops the bind groups and marks the weights as missing; keeps the pipelines."""
        self._chunks = chunks(self._plan.own)
        self._uploaded = False
        self._drop_launches()

    def _drop_launches(self) -> None:
        self.launches.clear()
        #: True if the weights are uploaded and the pipelines and bind groups exist
        self.done = False

    def close(self) -> None:
        """Drops everything, for good."""
        self.restart()
        self._pipelines.clear()
        self.uniforms = self.prints = None

    def acquire(self) -> None:
        """Allocates the program's memory; bind groups of an arena that moved are made again.

        Raises :class:`OutOfGpuMemory` if there is not enough.
        """
        if self.uniforms is None:
            self.uniforms = Uniforms(self._plan, self._gpu)
            if self._gpu.debug_kernels:
                self.prints = Prints.of(self._plan, self._gpu, self.keys)
        if self._residency.acquire():
            self._drop_launches()

    def build_ahead(self) -> list[Future[Pipeline]]:
        """Starts to build the pipelines on all cores; returns one future per distinct variant.

        If a kernel fails, the run that needs it builds it again and raises the error.
        """
        return [_builders().submit(self._pipeline, key) for key in self.variants]

    def finish(self) -> None:
        """Completes the preparation now; blocks.

        Raises the error of a pipeline that cannot be built.
        """
        if self._building is not None:
            wait([self._building])  # pipelines that failed there are built again here
        building = self.build_ahead()
        self._upload(EVERYTHING)
        wait(building)
        for pipeline in building:
            pipeline.result()
        BUILDER.built(self._plan.name)
        self._make_launches(len(self.keys))

    def advance(self, budget_ms: float) -> None:
        """Does one frame's share of the preparation without blocking.

        It starts the building thread, uploads a chunk of weights, and creates some bind groups
        once the pipelines are built. An error of a pipeline build is raised once; the next call
        starts to build again.
        """
        if self._building is None:
            self._building = BUILDER.submit(self._plan.name, self._build_pipelines)
        self._upload(upload_limit(budget_ms))
        if not (self._building.done() and self._uploaded):
            return
        built = self._building
        if built.exception() is not None:
            self._building = None
        built.result()
        self._make_launches(max(_LEAST_LAUNCHES, int(budget_ms * _LAUNCHES_PER_MS)))

    @property
    def waiting_for(self) -> str:
        """A text that names the missing part: pipelines, weights or bind groups."""
        if self._building is None:
            return "its first frame"
        if not self._building.done():
            count = len(self.variants)
            doing = BUILDER.describe() or "nothing"
            return (
                f"its pipelines ({len(self._pipelines)} of {count} are built); the builder: {doing}"
            )
        return "its bind groups" if self._uploaded else "its weights' upload"

    def _upload(self, limit: int) -> None:
        """Uploads at most ``limit`` bytes: first shared weights, then the program's own."""
        if not self._uploaded:
            limit = self._constants.upload(limit)
            memory = self._residency.own
            if memory is not None and limit > 0:
                limit = write_chunks(memory, self._chunks, limit)
            self._uploaded = limit > 0

    def _build_pipelines(self) -> None:
        for key in self.variants:
            BUILDER.begin_item(f"kernel '{key.label}'")
            self._pipeline(key)

    def _pipeline(self, key: Variant) -> Pipeline:
        """Returns the variant's pipeline; builds it, and reports the progress, if it is new."""
        built = self._pipelines.get(key)
        if built is None:
            built = self._gpu.pipeline(key, lambda: self._uniforms_of(self._step_of[key]))
            with self._reporting:
                self._pipelines[key] = built
                self._report()
        return built

    def _uniforms_of(self, step: Step) -> tuple[bytes, bytes]:
        return struct.pack("=4I", 0, step.groups, self._width, 0), step_params(step)

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress("kernels", len(self._pipelines), len(self.variants))

    def _make_launches(self, count: int) -> None:
        """Creates the launches of the next ``count`` steps; the weights must be uploaded."""
        first = len(self.launches)
        for step in self._plan.steps[first : first + count]:
            self.launches.append(self._launch(step) if step.cpu_part is None else None)
        self.done = len(self.launches) == len(self.keys)

    def _launch(self, step: Step) -> Launch:
        """Returns a step's launch with a new bind group.

        Raises :class:`DeviceError` if the device rejects the launch of an untrusted kernel.
        """
        uniforms, key = self.uniforms, self.keys[step.index]
        assert uniforms is not None
        pipeline = self._pipeline(key)
        resources = uniforms.bindings(step)
        for binding in step.bindings:
            buffer, offset = self._residency.place(binding)
            # a device keeps a kernel inside its bindings: a write beyond the tensor is visible
            # only if the guard bytes behind it are bound too
            guard = self._plan.options.get("guard", 0) if binding.space == "arena" else 0
            resources.append({"buffer": buffer, "offset": offset, "size": binding.nbytes + guard})
        if self.prints is not None and step.index in self.prints:
            resources.append(self.prints.binding)
        entries = [{"binding": i, "resource": r} for i, r in enumerate(resources)]
        bind_group = self._gpu.device.create_bind_group(layout=pipeline.layout, entries=entries)
        marker = f"{self._plan.name}: {step.title}" if self._gpu.markers else None
        launch = Launch(pipeline, bind_group, uniforms, step, self._width, marker)
        call = key, tuple(binding.nbytes for binding in step.bindings)
        if not step.trusted and call not in self._rehearsed:
            self._rehearse(launch)
            self._rehearsed.add(call)
        return launch

    def _rehearse(self, launch: Launch) -> None:
        """Encodes a launch and discards it.

        Validation errors, such as a binding smaller than the kernel's array, are thus raised
        here and not in the host's frame.
        """
        try:
            encoder = self._gpu.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            dispatch_recorder()(compute, [launch.whole])
            compute.end()
            encoder.finish()
        except wgpu.GPUError as error:
            raise DeviceError(
                f"kernel '{launch.pipeline.label}': {device_error(error).message}"
            ) from error


class Builder:
    """The single thread that builds the pipelines of all programs while a game runs.

    It can describe its current work.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "cml-pipelines")
        self._lock = Lock()
        self._waiting = 0
        self._network = self._item = self._failed = self._error = ""
        self._since = 0.0

    def submit(self, network: str, work: Callable[[], None]) -> Future[None]:
        """Queues ``work`` of a network behind all earlier work and returns its future."""
        with self._lock:
            self._waiting += 1
        return self._thread.submit(self._do, network, work)

    def _do(self, network: str, work: Callable[[], None]) -> None:
        with self._lock:
            self._waiting -= 1
        self._network = network
        try:
            work()
            self.built(network)
        except BaseException as error:
            self._failed = network
            self._error = f"'{network}', {self._item}: {type(error).__name__}: {error}"
            raise
        finally:
            self._network = self._item = ""

    def built(self, network: str) -> None:
        """Clears the last error if it belongs to this network, whose pipelines now exist."""
        if network == self._failed:
            self._failed = self._error = ""

    def begin_item(self, item: str) -> None:
        """Records the name and start of the item that the thread begins to build."""
        self._item, self._since = item, time.perf_counter()

    def describe(self) -> str:
        """Returns a text with the current work, its duration, the queue length and the last error.

        The error disappears once its network has been built. Returns "" if the thread is idle
        and no build failed.
        """
        parts = []
        if self._network:
            seconds = time.perf_counter() - self._since
            parts.append(f"'{self._network}', {self._item or 'beginning'} for {seconds:.1f} s")
        if self._waiting:
            parts.append(f"{self._waiting} networks wait")
        if self._error:
            parts.append(f"last error: {self._error}")
        return "; ".join(parts)


BUILDER = Builder()


@Once
def _builders() -> ThreadPoolExecutor:
    """Returns the pool of one thread per core that builds pipelines when a caller blocks on them.

    The reason is in docs/design/performance.md.
    """
    return ThreadPoolExecutor(os.cpu_count() or 1, "cml-pipelines-now")
