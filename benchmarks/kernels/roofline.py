"""Finds the limit of a kernel: products, memory or launches (Williams et al., *Roofline*, 2009)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks.table import markdown_table
from cml_engine.compiler.plan import Step
from cml_engine.ops.declaration.spec import Cost

#: the share of a peak from which on it limits a kernel; a kernel below all of them is limited by
#: the instructions around its products, which no control measures
_NEAR = 1 / 3
#: the share of a network's time from which on a kernel is listed
_LEAST_SHARE = 0.02
#: FLOPs of Winograd's transforms of a 6x6 tile, four channels at a time: twelve transforms of six
#: values with 20 operations each, and ten transforms of six sums with 16
_INPUT_FLOPS, _OUTPUT_FLOPS = 4 * 12 * 20, 4 * 10 * 16
_VECTOR = 16
_POINTS = 36
_TILE_IN, _TILE_OUT = 36, 16


@dataclass(frozen=True, slots=True)
class Peaks:
    """The device's peak FLOPs and bytes per second, and the seconds of an empty dispatch."""

    flops: float
    nbytes: float
    launch: float


def work_of(step: Step) -> Cost:
    """Returns the work of a step's dispatch: its FLOPs, and the bytes that it reads and writes.

    The declared costs of Winograd's stages are shares of the convolution that they replace; this
    function computes their actual work.
    """
    if Path(step.path).stem != "winograd":
        return step.cost
    p = cast("Mapping[str, int]", step.params)
    ins, outs = p["tiles"] * p["in_blocks"], p["tiles"] * p["out_blocks"]
    vector = _VECTOR // 2 if "HALVES" in step.defines else _VECTOR
    if "stage_is_input" in step.defines:
        return Cost(ins * _INPUT_FLOPS, ins * _TILE_OUT * vector, ins * _TILE_IN * vector)
    if "stage_is_output" in step.defines:
        return Cost(outs * _OUTPUT_FLOPS, outs * _TILE_IN * vector, outs * _TILE_OUT * vector)
    filter = _POINTS * p["in_blocks"] * p["out_blocks"] * 4 * vector
    products = 2.0 * 16 * _POINTS * ins * p["out_blocks"]
    return Cost(products, _POINTS * ins * vector + filter, _POINTS * outs * vector)


def name_of(step: Step) -> str:
    """Returns a short name of a step's kernel: its file's name and its variant's properties."""
    d, stem = step.defines, Path(step.path).stem
    parts = [stem]
    if stem == "winograd":
        parts += [name for name in ("input", "product", "output") if f"stage_is_{name}" in d]
    if "TAPS" in d:
        parts.append(f"{d['TAPS']} taps")
    if "ROWS" in d and "COLUMNS" in d:
        parts.append(f"{d['ROWS']}×{d['COLUMNS']}")
    if stem == "strided_copy":
        parts.append(f"{d['RANK']} axes")
    return " ".join(parts)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """A kernel variant's time in one network and its rates; medians over the rounds.

    ``flops`` and ``nbytes`` are rates per second; ``of_…`` are shares of the driver's peak in
    the same round.
    """

    model: str
    operator: str
    kernel: str
    defines: str
    dispatches: int
    ms: float
    time_share: float
    flops: float
    nbytes: float
    of_flops: float
    of_nbytes: float
    of_launches: float

    @property
    def limit(self) -> str:
        """The limit with the largest share of its peak: "products", "memory" or "launches".

        It is "instructions", which no control measures, if all shares are below a third.
        """
        shares = {
            "products": self.of_flops,
            "memory": self.of_nbytes,
            "launches": self.of_launches,
        }
        nearest = max(shares, key=lambda name: shares[name])
        return nearest if shares[nearest] >= _NEAR else "instructions"

    @classmethod
    def of(
        cls,
        model: str,
        steps: Sequence[Step],
        seconds: Sequence[float],
        totals: Sequence[float],
        peaks: Sequence[Peaks],
    ) -> KernelTimes:
        """Returns the medians of one kernel variant, which runs in ``steps``.

        For each round, ``seconds`` has the summed time of the steps, ``totals`` the time of the
        whole network, and ``peaks`` the peak rates.
        """
        work = sum((work_of(step) for step in steps), Cost(0, 0, 0))
        rounds = list(zip(seconds, totals, peaks, strict=True))
        median = statistics.median
        first = steps[0]
        return cls(
            model,
            first.full_op,
            name_of(first),
            " ".join(f"{k}={v}" for k, v in sorted(first.defines.items())),
            len(steps),
            1e3 * median(seconds),
            median(s / total for s, total, _ in rounds),
            work.flops / median(seconds),
            work.bytes / median(seconds),
            median(work.flops / s / p.flops for s, _, p in rounds),
            median(work.bytes / s / p.nbytes for s, _, p in rounds),
            median(len(steps) * p.launch / s for s, _, p in rounds),
        )


_HEAD = (
    "operator", "kernel", "dispatches", "ms", "of the time", "GFLOPS", "of peak", "GB/s",
    "of peak", "limited by",
)  # fmt: skip


def markdown(kernels: Sequence[KernelTimes]) -> str:
    """Returns a Markdown table of one network's kernels, the longest first.

    Kernels that take little of the network's time are combined in the last row.
    """
    listed = sorted((k for k in kernels if k.time_share >= _LEAST_SHARE), key=lambda k: -k.ms)
    combined = [k for k in kernels if k.time_share < _LEAST_SHARE]
    rows = [_row(kernel) for kernel in listed]
    if combined:
        dispatches, ms = sum(k.dispatches for k in combined), sum(k.ms for k in combined)
        share = f"{sum(k.time_share for k in combined):.1%}"
        rows.append((f"{len(combined)} more", "", str(dispatches), f"{ms:.2f}", share, *[""] * 5))
    return markdown_table(_HEAD, "|---|---|" + "--:|" * 7 + "---|", rows)


def _row(k: KernelTimes) -> tuple[str, ...]:
    return (
        k.operator,
        k.kernel,
        str(k.dispatches),
        f"{k.ms:.2f}",
        f"{k.time_share:.1%}",
        f"{k.flops / 1e9:.1f}",
        f"{k.of_flops:.0%}",
        f"{k.nbytes / 1e9:.1f}",
        f"{k.of_nbytes:.0%}",
        k.limit,
    )
