"""The turns of the kernels' loops, from the parameters and defines of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

from benchmarks.hardware.listing import Nest
from cml_engine.compiler.plan import Step

Values = Mapping[str, Any]


def _conv(p: Values, d: Values) -> Nest:
    if "PART" in d:
        blocks = _blocks(p["block_end"] - p["block_begin"], d)
        return Nest([p["tap_end"] - p["tap_begin"], blocks])
    # a phase of a deconv meets every up-th tap, and does nothing for the others
    meets = prod(p["up"]) if int(d.get("TRANSPOSED", 0)) else 1
    *outer, line = p["k_size"]
    return Nest([*outer, line / meets, _blocks(p["band"], d)])


def _blocks(count: float, d: Values) -> float:
    """Returns the turns of a loop over blocks of inputs, as TURN of conv.hlsl has it."""
    turns = _turns(count, d)
    return turns // 2 if "AHEAD" in d and int(d["COLUMNS"]) <= 2 else turns


def _turns(count: float, d: Values) -> float:
    """Returns the turns of a loop over ``count`` blocks, whose first stands before it if loads are
    ahead."""
    return max(count - 1, 0) if "AHEAD" in d else count


def _line(p: Values, _: Values) -> Nest:
    return Nest([*p["k_size"][:2], p["band"]])


def _plain(p: Values, _: Values) -> Nest:
    return Nest([*p["k_size"][:2], p["group_in"]])


def _window(p: Values, d: Values) -> Nest:
    # the first turn stands before the loop; a wave skips the parts of others, and one stores
    parts = int(d["PARTS"])
    turns = [-(-p["band"] // int(d["BLOCKS"]) // parts) - 1] if int(d["LOOP"]) else []
    return Nest(turns if parts == 1 else [1, *turns], tail=1 / parts)


def _sum(p: Values, d: Values) -> Nest:
    # the first turn of each term stands before its loop; a wave skips the parts of others, and one
    # stores
    turns = [
        -(-p["turns"][n] // int(d[f"SPLIT{n}"])) - 1
        for n in range(int(d["TERMS"]))
        if int(d[f"LOOP{n}"])
    ]
    return Nest([1], each=turns, tail=1 / int(d["PARTS"]))


def _winograd(p: Values, d: Values) -> Nest:
    return Nest([_turns((p["in_blocks"] + 1) // 2, d)]) if "stage_is_product" in d else Nest()


def _matmul(p: Values, d: Values) -> Nest:
    if "REDUCE" in d:  # lanes are side by side along k, which counts vectors
        return Nest([-(-(p["k_end"] - p["k_begin"]) // int(d["GROUP"]))])
    step = 4 if "A_VECTOR" in d or "B_INNER" in d else 1
    rows, columns = int(d.get("ROWS", 1)), int(d.get("COLS", 1))
    steps = (p["k_end"] - p["k_begin"]) / step
    # with loads ahead, the first turn stands before the loop
    return Nest([max(steps // d["AHEAD"] - 1, 0) if "AHEAD" in d else steps], rows * columns)


def _elementwise(p: Values, _: Values) -> Nest:
    return Nest([p["dims"]], p["dims"])


def _reduction(p: Values, d: Values) -> Nest:
    lanes = int(d["GROUP"]) if int(d["TREE"]) else 1
    # elements are added in blocks of a loop around theirs
    turns = -(-p["chunk"] // lanes)
    return Nest([turns, 1] if int(d["LINE"]) else [turns, 1, p["reduced_dims"]])


def _rows(p: Values, d: Values) -> Nest:
    lanes = int(d["GROUP"]) if int(d["TREE"]) else 1
    return Nest([-(-p["total"] // lanes), 1])


_NESTS: dict[str, Callable[[Values, Values], Nest]] = {
    "conv": _conv,
    # a wave skips the rows of others
    "conv_chain": lambda p, d: Nest([1]),
    "conv_sum": _sum,
    "conv_row_tile": _line,
    "conv_phases": _line,
    "conv_plain": _plain,
    "conv_window": _window,
    "winograd": _winograd,
    "matmul": _matmul,
    "elementwise": _elementwise,
    "reduce": _reduction,
    "softmax": _reduction,
    "standardize": _rows,
}


def nest_of(step: Step) -> Nest | None:
    """Returns the turns of the loops of a step's kernel; None if they are not known."""
    turns = _NESTS.get(Path(step.path).stem)
    return None if turns is None else turns(cast(Values, step.params), step.defines)
