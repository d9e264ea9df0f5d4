"""The modelled time of kernels on hardware, by which the rules choose between them.

The tables are generated: ``python -m benchmarks.hardware --write`` compiles each kernel with the
compilers of AMD and NVIDIA and counts its cycles (docs/design/performance.md states the model). A
table is of one card. Other hardware has other times; tuning measures them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf
from operator import mul
from pathlib import Path

from cml_engine.ir.limits import Limits

#: the tables by :attr:`Limits.scalar_loads`
FILES = {
    True: Path(__file__).with_name("hardware_amd.json"),
    False: Path(__file__).with_name("hardware_nvidia.json"),
}


@dataclass(frozen=True, slots=True)
class KernelCycles:
    """The cycles of 64 lanes: outside of a kernel's loops, and in a turn of each, outermost first.

    ``busy`` counts those in which its SIMD computes, or its loads keep others waiting; ``alone``
    those that pass if no other wave is there. ``waves`` are the waves that fit a SIMD.
    """

    waves: int
    busy: tuple[float, ...]
    alone: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The limits of the card's kernels.

    Those of ``conv_window.hlsl``: ``window_products`` is the number of products per input channel
    whose code fits the instruction cache, ``byte_window_products`` the number for four channels of
    bytes, whose products are one operation, and ``window_cells`` the number of inputs per iteration
    that fit the registers. ``copy_groups`` workgroups fill the card with copies.
    """

    window_products: int
    byte_window_products: int
    window_cells: int
    copy_groups: int


@dataclass(frozen=True, slots=True)
class HardwareTable:
    """A card, and its kernels by name: ``tile 16x4 by 64``.

    ``simds`` is the number of SIMDs, or of pairs that take 64 lanes; ``clock`` is in 1/s,
    ``memory`` in bytes per second, and ``launch`` the seconds of a dispatch without work.
    """

    simds: int
    clock: float
    memory: float
    launch: float
    limits: KernelLimits
    kernels: dict[str, KernelCycles]

    def seconds(
        self, kernel: str, groups: int, turns: Sequence[float] = (), nbytes: float = 0.0
    ) -> float:
        """Returns the time of a dispatch of ``groups`` workgroups of one wave each, infinity for
        a kernel that is not in the table.

        ``turns`` are those of its loops, the outermost first; ``nbytes`` is what it moves.
        """
        cycles = self.kernels.get(kernel)
        if cycles is None:  # the table is being written
            return inf
        executed = [1.0, *accumulate(turns, mul)]
        busy: float = sum(map(mul, cycles.busy, executed))
        alone: float = sum(map(mul, cycles.alone, executed))
        return self.seconds_of(busy, alone, cycles.waves, groups, nbytes)

    def seconds_of(
        self, busy: float, alone: float, waves: int, groups: int, nbytes: float = 0.0
    ) -> float:
        """Returns the time of a dispatch of ``groups`` waves that take these cycles each, of which
        ``waves`` fit a SIMD."""
        deep = -(-groups // self.simds)
        rounds = -(-deep // min(waves, max(deep, 1)))
        bounds = deep * busy / self.clock, rounds * alone / self.clock, nbytes / self.memory
        return self.launch + max(bounds)


def hardware_table(limits: Limits) -> HardwareTable:
    """Returns the table by which kernels are chosen for hardware with these limits."""
    return _table(limits.scalar_loads)


@cache
def _table(scalar_loads: bool) -> HardwareTable:
    stored = json.loads(FILES[scalar_loads].read_text(encoding="utf-8"))
    kernels = {
        name: KernelCycles(row["waves"], tuple(row["busy"]), tuple(row["alone"]))
        for name, row in stored["kernels"].items()
    }
    card = stored["card"]
    limits = KernelLimits(**stored["limits"])
    return HardwareTable(
        card["simds"], card["clock"], card["memory"], card["launch"], limits, kernels
    )
