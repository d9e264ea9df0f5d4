"""What a program needs before it can run: weights on the device, pipelines built.

Either all at once (:meth:`Preparation.finish`, for tools): as many threads as there are cores build
pipelines while the weights go up. Or a little in every frame: weights go up in chunks, one thread
builds pipelines and leaves the other cores to the game, bind groups follow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cml_engine.gpu.hlsl import ShaderKey, shader_key
from cml_engine.plan import Plan, Step, stored_bytes

if TYPE_CHECKING:
    from cml_engine.backends.gpu import GpuProgram
    from cml_engine.gpu.device import Gpu

#: bytes of weights uploaded per millisecond of budget: what a slow bus does in a tenth of it
UPLOAD_BYTES_PER_MS = 256 << 10
#: bind groups made in one frame
_LAUNCHES_PER_FRAME = 32


def step_key(step: Step) -> ShaderKey:
    """The kernel variant of a step."""
    return shader_key(
        step.path,
        step.params_layout,
        len(step.bindings),
        step.defines,
        step.trusted,
        interface=step.interface,
        inline=step.inline,
    )


class Preparation:
    """The way of one program to being ready, from memory that holds nothing yet."""

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self._gpu = gpu
        self._plan = plan
        self._chunks = _weight_chunks(plan)
        self._uploaded = False
        self._building: Future[None] | None = None
        self._steps = list(plan.steps)
        self.done = False

    def finish(self, program: GpuProgram) -> None:
        """Do all of it now."""
        if self._building is not None:
            self._building.result()
        keys = dict.fromkeys(step_key(step) for step in self._plan.steps)
        building = [_builders().submit(self._gpu.pipeline, key) for key in keys]
        self._upload(program, 1 << 62)
        wait(building)
        for pipeline in building:
            pipeline.result()
        for step in self._steps:
            program.make_launch(step)
        self._steps.clear()
        self.done = True

    def advance(self, program: GpuProgram, budget_ms: float) -> None:
        """Do a frame's worth of it. Raises what building a pipeline raised."""
        if self._building is None:
            self._building = _builder().submit(self._build_pipelines)
        self._upload(program, max(64 << 10, int(budget_ms * UPLOAD_BYTES_PER_MS)))
        if not (self._building.done() and self._uploaded):
            return
        self._building.result()
        batch, self._steps = self._steps[:_LAUNCHES_PER_FRAME], self._steps[_LAUNCHES_PER_FRAME:]
        for step in batch:
            program.make_launch(step)
        self.done = not self._steps

    def bind_again(self) -> None:
        """The tensors lie elsewhere now: the bind groups must be made anew."""
        self._steps = list(self._plan.steps)
        self.done = False

    def _build_pipelines(self) -> None:
        for step in self._plan.steps:
            self._gpu.pipeline(step_key(step))

    def _upload(self, program: GpuProgram, limit: int) -> None:
        if self._uploaded:
            return
        for offset, words in self._chunks:
            program.write_weights(offset, words)
            limit -= words.nbytes
            if limit <= 0:
                return
        self._uploaded = True


def _weight_chunks(plan: Plan) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """All weights as ``(byte offset, flat numbers)`` of at most 64 KiB each."""
    count = 16 << 10
    for offset, array in plan.weights.values():
        flat = np.ravel(array)
        for start in range(0, flat.size, count):
            yield offset + stored_bytes(flat[:start]), flat[start : start + count]


@cache
def _builder() -> ThreadPoolExecutor:
    """The one thread that builds the pipelines of all programs while a game runs."""
    return ThreadPoolExecutor(1, "cml-pipelines")


@cache
def _builders() -> ThreadPoolExecutor:
    """The threads that build pipelines where somebody waits for them (docs/performance.md)."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "cml-pipelines-now")
