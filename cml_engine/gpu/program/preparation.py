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
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, Protocol

import wgpu

from cml_engine.compiler.plan import Plan, Step
from cml_engine.gpu.device import SLICE_BYTES, Device, Pipeline
from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.program.memory import EVERYTHING, Chunks, chunks
from cml_engine.gpu.shaders.hlsl import Variant, step_params
from cml_engine.ops.common.once import Once

#: ranges of workgroups that one submit may hold
RANGE_SLOTS = 256


class Slots:
    """A uniform buffer of workgroup ranges.

    It has one slot per whole step, then a ring of slots for partial ranges.
    """

    def __init__(self, plan: Plan, gpu: Device) -> None:
        self._stride = max(gpu.limits.uniform_offset_alignment, SLICE_BYTES)
        self._width = gpu.limits.max_groups_per_dimension
        self._steps = len(plan.steps)
        block = bytearray(self._stride * (self._steps + RANGE_SLOTS))
        for step in plan.steps:
            at = self.step_offset(step.index)
            block[at : at + SLICE_BYTES] = self.data(0, step.groups)
        self._next = 0
        self.memory = _filled(plan, gpu, block)

    def step_offset(self, step: int) -> int:
        """Returns the byte offset of the whole step's slice in :attr:`memory`."""
        return step * self._stride

    def take(self, first: int, end: int) -> int:
        """Writes the range ``[first, end)`` into the ring's next slot and returns its byte offset.

        A slot is reused after :data:`RANGE_SLOTS` others, which must be in a later submit.
        """
        offset = (self._steps + self._next) * self._stride
        self._next = (self._next + 1) % RANGE_SLOTS
        self.memory.write(self.data(first, end), offset)
        return offset

    def data(self, first: int, end: int) -> bytes:
        return struct.pack("=4I", first, end, self._width, 0)


class Uniforms:
    """The uniform buffers of a program: the slices, and the parameters of every step.

    The parameters are written once, because a plan's shapes do not change. The memory is freed with
    this object.
    """

    def __init__(self, plan: Plan, gpu: Device) -> None:
        self.slots = Slots(plan, gpu)
        align = gpu.limits.uniform_offset_alignment
        block = bytearray()
        self._ranges: list[tuple[int, int]] = []
        known: dict[bytes, tuple[int, int]] = {}  # equal blocks share memory
        for step in plan.steps:
            data = step_params(step)
            if data not in known:
                known[data] = len(block), len(data)
                block += data + bytes(-len(data) % align)
            self._ranges.append(known[data])
        self._params = _filled(plan, gpu, block or bytearray(16))
        for memory in (self.slots.memory, self._params):
            weakref.finalize(self, gpu.memory.free_later, memory.free).atexit = False

    def params_binding(self, step: Step) -> dict[str, Any]:
        """Returns the step's parameters as a bind group resource."""
        return self._params.binding(*self._ranges[step.index])


def _filled(plan: Plan, gpu: Device, data: bytearray) -> Allocation:
    usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
    memory = gpu.memory.allocate(len(data), usage, owner=plan.name, category="uniform")
    memory.write(data)
    return memory


class Prepared(Protocol):
    """The interface of the program to prepare: ``program.GpuProgram``."""

    @property
    def name(self) -> str: ...

    def upload(self, values: Chunks, limit: int) -> int:
        """Uploads at most ``limit`` bytes: first shared weights, then ``values``.

        Returns the unused part of the limit.
        """
        ...

    def make_launch(self, step: Step, pipeline: Pipeline) -> None: ...


#: reports the stage of a compilation, the units of it that are done, and their total
OnProgress = Callable[[str, int, int], None]
#: bytes of weights uploaded per millisecond of budget; a slow bus takes a tenth of that time
UPLOAD_BYTES_PER_MS = 256 << 10
#: bind groups created in a frame: per millisecond of its budget, and the minimum
_LAUNCHES_PER_MS, _LEAST_LAUNCHES = 1, 4


class Preparation:
    """The preparation of one program: it uploads weights, builds pipelines, makes bind groups.

    It remembers what is done and can stop after any part.
    """

    def __init__(
        self,
        plan: Plan,
        gpu: Device,
        keys: Sequence[Variant],
        on_progress: OnProgress | None = None,
    ) -> None:
        self._gpu = gpu
        self._plan = plan
        self._building: Future[None] | None = None
        self._keys = keys
        #: references that keep the pipelines alive: the device's cache may drop them
        self._pipelines: dict[Variant, Pipeline] = {}
        self._on_progress = on_progress
        self._reporting = Lock()
        self._report()
        self.restart()

    def restart(self) -> None:
        """Marks the weights and bind groups as missing, to make them again; keeps pipelines."""
        self._chunks = chunks(self._plan.own)
        self._uploaded = False
        self.bind_again()

    def build_ahead(self) -> list[Future[Pipeline]]:
        """Starts to build the pipelines on all cores; returns one future per distinct variant.

        If a kernel fails, the run that needs it builds it again and raises the error.
        """
        return [_builders().submit(self._pipeline, key) for key in dict.fromkeys(self._keys)]

    def finish(self, program: Prepared) -> None:
        """Completes the preparation now; blocks.

        Raises the error of a pipeline that cannot be built.
        """
        if self._building is not None:
            wait([self._building])  # pipelines that failed there are built again here
        building = self.build_ahead()
        self._upload(program, EVERYTHING)
        wait(building)
        for pipeline in building:
            pipeline.result()
        BUILDER.built(program.name)
        self._make_launches(program, len(self._keys))

    def advance(self, program: Prepared, budget_ms: float) -> None:
        """Does one frame's share of the preparation without blocking.

        It starts the building thread, uploads a chunk of weights, and creates some bind groups
        once the pipelines are built. An error of a pipeline build is raised once; the next call
        starts to build again.
        """
        if self._building is None:
            self._building = BUILDER.submit(program.name, self._build_pipelines)
        self._upload(program, max(64 << 10, int(budget_ms * UPLOAD_BYTES_PER_MS)))
        if not (self._building.done() and self._uploaded):
            return
        built = self._building
        if built.exception() is not None:
            self._building = None
        built.result()
        self._make_launches(program, max(_LEAST_LAUNCHES, int(budget_ms * _LAUNCHES_PER_MS)))

    def bind_again(self) -> None:
        """Marks all bind groups as missing, because the tensors have moved to other memory."""
        self._next = 0
        self.done = False

    @property
    def waiting_for(self) -> str:
        """A text that names the missing part: pipelines, weights or bind groups."""
        if self._building is None:
            return "its first frame"
        if not self._building.done():
            count = len(set(self._keys))
            doing = BUILDER.doing() or "nothing"
            return (
                f"its pipelines ({len(self._pipelines)} of {count} are built); the builder: {doing}"
            )
        return "its bind groups" if self._uploaded else "its weights' upload"

    def _make_launches(self, program: Prepared, count: int) -> None:
        """Creates the launches of the next ``count`` steps."""
        end = self._next + count
        for step in self._plan.steps[self._next : end]:
            program.make_launch(step, self._pipeline(self._keys[step.index]))
        self._next = min(end, len(self._keys))
        self.done = self._next == len(self._keys)

    def _build_pipelines(self) -> None:
        for key in dict.fromkeys(self._keys):
            BUILDER.now(f"kernel '{key.label}'")
            self._pipeline(key)

    def _pipeline(self, key: Variant) -> Pipeline:
        """Returns the variant's pipeline; builds it, and reports the progress, if it is new."""
        found = self._pipelines.get(key)
        if found is None:
            found = self._gpu.pipeline(key)
            with self._reporting:
                self._pipelines[key] = found
                self._report()
        return found

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress("kernels", len(self._pipelines), len(set(self._keys)))

    def _upload(self, program: Prepared, limit: int) -> None:
        if not self._uploaded:
            self._uploaded = program.upload(self._chunks, limit) > 0


class Builder:
    """The single thread that builds the pipelines of all programs while a game runs.

    It can describe its current work.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "cml-pipelines")
        self._lock = Lock()
        self._waiting = 0
        self._network = self._what = self._failed = self._error = ""
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
            self._error = f"'{network}', {self._what}: {type(error).__name__}: {error}"
            raise
        finally:
            self._network = self._what = ""

    def built(self, network: str) -> None:
        """Clears the last error if it belongs to this network, whose pipelines now exist."""
        if network == self._failed:
            self._failed = self._error = ""

    def now(self, what: str) -> None:
        """Records the name and start of the item that the thread begins to build."""
        self._what, self._since = what, time.perf_counter()

    def doing(self) -> str:
        """Returns a text with the current work, its duration, the queue length and the last error.

        The error disappears once its network has been built. Returns "" if the thread is idle
        and no build failed.
        """
        said = []
        if self._network:
            seconds = time.perf_counter() - self._since
            said.append(f"'{self._network}', {self._what or 'beginning'} for {seconds:.1f} s")
        if self._waiting:
            said.append(f"{self._waiting} networks wait")
        if self._error:
            said.append(f"last error: {self._error}")
        return "; ".join(said)


BUILDER = Builder()


@Once
def _builders() -> ThreadPoolExecutor:
    """Returns the pool of one thread per core that builds pipelines when a caller blocks on them.

    The reason is in docs/design/performance.md.
    """
    return ThreadPoolExecutor(os.cpu_count() or 1, "cml-pipelines-now")
