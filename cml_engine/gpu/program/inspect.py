"""Inspection of a program for tests, tools and benchmarks. All functions block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cml_engine.compiler.plan import Binding, TensorPlace
from cml_engine.gpu.memory.words import empty, from_words
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.gpu.program.uniforms import RANGE_SLOTS
from cml_engine.gpu.timing.timers import PassTimer
from cml_engine.ir.graph import Array


def run_ranges(
    program: GpuProgram, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]
) -> None:
    """Uploads the inputs and runs ranges of workgroups ``(step, first, count)`` in order.

    There is one submit per :data:`RANGE_SLOTS` ranges.
    """
    with program.exclusive():
        _run_ranges(program, inputs, ranges)


def _run_ranges(
    program: GpuProgram, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]
) -> None:
    program.write_inputs(inputs)
    for start in range(0, len(ranges), RANGE_SLOTS):
        encoder = program.gpu.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for step, first, count in ranges[start : start + RANGE_SLOTS]:
            program.encode_range(compute, step, first, count)
        compute.end()
        program.gpu.queue.submit([encoder.finish()])


def read_tensor(program: GpuProgram, place: TensorPlace) -> Array:
    """Returns the current value of any tensor of the program as an array.

    The value is valid only while the tensor's memory is not reused by another tensor.
    """
    if place.fact.size == 0:
        return empty(place.fact)
    data = read_bytes(program, place.binding)
    return from_words(data, place)


def read_bytes(program: GpuProgram, binding: Binding) -> memoryview:
    buffer, offset = program.place(binding)
    return program.gpu.queue.read_buffer(buffer, offset, binding.nbytes)


def read_arena(program: GpuProgram) -> Array:
    """Returns the whole arena as 32-bit words, so that tests can check the gaps between tensors."""
    whole = Binding("", "arena", 0, program.residency.arena_bytes)
    return np.frombuffer(read_bytes(program, whole), np.uint32)


def fill_arena(program: GpuProgram, word: int) -> None:
    """Fills the whole arena with ``word``, so that tests find elements that no kernel wrote."""
    with program.exclusive():
        program.load()
        program.retained.lose()
        assert program.residency.arena is not None
        program.residency.arena.write(np.full(program.residency.arena_bytes // 4, word, np.uint32))


def time_steps(
    program: GpuProgram,
    inputs: Mapping[str, Array],
    runs: int,
    steps: Sequence[int] | None = None,
) -> Array:
    """Runs the given steps, or all, several times; returns milliseconds ``[runs, steps]``.

    Each step has its own pass, and passes cannot overlap. The sum is therefore slightly more
    than an uninstrumented run takes.
    """
    timer = PassTimer(program.gpu)
    if steps is None:
        steps = range(len(program.plan.steps))
    with program.exclusive():
        program.write_inputs(inputs)
        return np.array([timer.time(steps, program.encode_all) for _ in range(runs)])
