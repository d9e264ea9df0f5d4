"""What a program needs before it can run: weights on the device, pipelines built.

Either all at once (:meth:`Preparation.finish`, for tools): as many threads as there are cores build
pipelines while the weights go up. Or a little in every frame: weights go up in chunks, one thread
builds pipelines and leaves the other cores to the game, bind groups follow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Protocol

from cml_engine.compiler.plan import Plan, Step
from cml_engine.gpu.device import Device
from cml_engine.gpu.pipelines import Pipeline
from cml_engine.gpu.program.common import EVERYTHING, Chunks, chunks
from cml_engine.gpu.shaders.steps import Variant
from cml_engine.ops.common.once import Once


class Prepared(Protocol):
    """What becomes ready: ``program.GpuProgram``."""

    @property
    def name(self) -> str: ...

    def upload(self, values: Chunks, limit: int) -> int:
        """Upload so many bytes: shared weights, then of these; what is left of the limit."""
        ...

    def make_launch(self, step: Step, pipeline: Pipeline) -> None: ...


#: reports the stage of a compilation, the units of it that are done, and their total
OnProgress = Callable[[str, int, int], None]
#: bytes of weights uploaded per millisecond of budget: what a slow bus does in a tenth of it
UPLOAD_BYTES_PER_MS = 256 << 10
#: bind groups made in a frame: for a millisecond of its budget, and at least
_LAUNCHES_PER_MS, _LEAST_LAUNCHES = 1, 4


class Preparation:
    """The way of one program to being ready, from memory that holds nothing yet."""

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
        #: the device lets go of a pipeline that no program holds
        self._pipelines: dict[Variant, Pipeline] = {}
        self._on_progress = on_progress
        self._reporting = Lock()
        self._report()
        self.restart()

    def restart(self) -> None:
        """Uploads and binds everything again; the pipelines stay."""
        self._chunks = chunks(self._plan.own)
        self._uploaded = False
        self.bind_again()

    def build_ahead(self) -> list[Future[Pipeline]]:
        """Begins to build the pipelines on all cores. A kernel that fails is built again, and its
        error raised, by the run that needs it."""
        return [_builders().submit(self._pipeline, key) for key in dict.fromkeys(self._keys)]

    def finish(self, program: Prepared) -> None:
        """Do all of it now."""
        if self._building is not None:
            wait([self._building])  # what failed there is tried again here
        building = self.build_ahead()
        self._upload(program, EVERYTHING)
        wait(building)
        for pipeline in building:
            pipeline.result()
        BUILDER.built(program.name)
        self._make_launches(program, len(self._keys))

    def advance(self, program: Prepared, budget_ms: float) -> None:
        """Do a frame's worth of it. Raises what building a pipeline raised, once: the next call
        begins to build anew."""
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
        """The tensors lie elsewhere now: the bind groups must be made anew."""
        self._next = 0
        self.done = False

    @property
    def waiting_for(self) -> str:
        """What is missing, in words."""
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
        """Those of the next ``count`` steps."""
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
        """Returns the variant's pipeline. The thread that builds it reports the progress."""
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
    """The one thread that builds the pipelines of all programs while a game runs; it can say what
    it is doing."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "cml-pipelines")
        self._lock = Lock()
        self._waiting = 0
        self._network = self._what = self._failed = self._error = ""
        self._since = 0.0

    def submit(self, network: str, work: Callable[[], None]) -> Future[None]:
        """Do this when all that was submitted before is done."""
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
        """All pipelines of the network are there, whoever built them: its error is mended."""
        if network == self._failed:
            self._failed = self._error = ""

    def now(self, what: str) -> None:
        """The thread begins with this."""
        self._what, self._since = what, time.perf_counter()

    def doing(self) -> str:
        """What it is at, for how long, what waits for it, and its last error, until that network is
        built after all; "" where all is done and none failed."""
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
    """The threads that build pipelines where somebody waits for them
    (docs/design/performance.md)."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "cml-pipelines-now")
