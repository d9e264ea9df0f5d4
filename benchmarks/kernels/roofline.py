"""The work and the name of a step's kernel, for tables of its times beside a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from cml_engine.compiler.plan import Step
from cml_engine.ops.declaration.spec import Cost

#: FLOPs of Winograd's transforms of a 6x6 tile, four channels at a time: twelve transforms of six
#: values with 20 operations each, and ten transforms of six sums with 16
_INPUT_FLOPS, _OUTPUT_FLOPS = 4 * 12 * 20, 4 * 10 * 16
_VECTOR = 16
_POINTS = 36
_TILE_IN, _TILE_OUT = 36, 16


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
