"""The operator ``concat_windows``: a window of each operand, concatenated, in one dispatch.

No model has it: a pass puts it in the place of a ``concat`` of slices
(``compiler/passes/join_slices.py``). On hardware, planning may let it compute operands
(``compiler/planning/operands.py``). Shader: ``shaders_hlsl/movement/windows.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import MAX_RANK, contiguous_strides
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Cost,
    Dispatch,
    OperandRows,
    OpSpec,
    Random,
    RowMapping,
    Traits,
    engine_kernel,
)
from cml_engine.ops.elementwise.kernels.elementwise import CHAIN, Link, chain_statements
from cml_engine.ops.movement.strided_copy import Copy, Dim, box, copy_regions

#: tensors that one dispatch reads: with its result, as many as every device of WebGPU's binds
MAX_PARTS = 7
_GROUP, _ITEMS = 64, 2
#: dimensions of the windows of one dispatch, by variant: each is a division for every item
_RANKS = (3, 4, MAX_RANK)
_DIMS = "shape src_stride dst_stride"
_KERNEL = engine_kernel(
    "movement/windows.hlsl",
    " ".join(f"{name}:u{MAX_PARTS}" for name in ("begin", "size", "src_offset", "dst_offset"))
    + "".join(f" {name}:u{MAX_PARTS * MAX_RANK}" for name in _DIMS.split()),
    group=_GROUP,
)
#: the most numbers that formulas of computed parts take
MAX_NUMBERS = 64
_COMPUTING = replace(_KERNEL, params=f"{_KERNEL.params} attr:f{MAX_NUMBERS}")


@dataclass(frozen=True, slots=True)
class Chain:
    """Formulas that compute a part from what is copied otherwise, which is their operand 0.

    Each other operand is the name of a tensor with a single value, or numbers: one for all
    channels, or one for each.
    """

    links: Sequence[Link]
    operands: Sequence[str | tuple[float, ...]]

    @property
    def numbers(self) -> list[float]:
        """The values of the formulas' attributes, and the numbers of the operands, in order."""
        values = [value for link in self.links for value in link.values]
        operands = [n for operand in self.operands if not isinstance(operand, str) for n in operand]
        return [*values, *operands]


@dataclass(frozen=True, slots=True)
class Part:
    """A window of the tensor ``source``, of float32 if it has a chain.

    The copy of a part with a chain has a dimension for each of the result's, or for each but the
    first if that has one item.
    """

    source: str
    copy: Copy
    chain: Chain | None = None


def _shapes(attrs: Attrs) -> list[tuple[int, ...]]:
    """Returns the shape of each window."""
    extents, axis = list(attrs.extents), attrs.axis
    return [(*extents[:axis], count, *extents[axis + 1 :]) for count in attrs.counts]


def _infer(attrs: Attrs, *values: Fact) -> Fact:
    for fact, first, shape in zip(values, attrs.begins, _shapes(attrs), strict=True):
        if any(b + n > e for b, n, e in zip(first, shape, fact.shape, strict=True)):
            raise ShapeError(f"concat_windows of {shape} at {first} of {fact}: it reaches beyond")
    extents = list(attrs.extents)
    extents[attrs.axis] = sum(attrs.counts)
    return Fact(values[0].dtype, tuple(extents))


def _cpu(attrs: Attrs, *values: Array) -> Array:
    windows = [
        x[tuple(slice(b, b + n) for b, n in zip(first, shape, strict=True))]
        for x, first, shape in zip(values, attrs.begins, _shapes(attrs), strict=True)
    ]
    return np.concatenate(windows, attrs.axis)


@dataclass(frozen=True, slots=True)
class Window:
    """The window of an operand: its shape, where it begins, and its offset in the result."""

    shape: tuple[int, ...]
    begin: Sequence[int]
    offset: int


def windows_of(attrs: Attrs, target: Fact) -> list[Window]:
    """Returns the windows of the operands that are concatenated to ``target``."""
    stride = contiguous_strides(target.shape)[attrs.axis]
    offsets = [at * stride for at in accumulate(attrs.counts, initial=0)][:-1]
    return list(map(Window, _shapes(attrs), attrs.begins, offsets))


def copied_part(name: str, source: Fact, window: Window, target: Fact) -> Part:
    """Returns the part that is a copy of a window of the tensor ``name``."""
    strides = contiguous_strides(source.shape)
    offset = sum(s * b for s, b in zip(strides, window.begin, strict=True))
    to = contiguous_strides(target.shape)
    return Part(name, box(window.shape, strides, to, offset, window.offset))


def _lower(op: Lowering) -> Iterator[Dispatch]:
    result, target = op.outputs[0], op.out_names[0]
    parts = [
        copied_part(name, fact, window, result)
        for name, fact, window in zip(
            op.in_names, op.inputs, windows_of(op.attrs, result), strict=True
        )
    ]
    if op.limits.software or len(parts) == 1:
        # a launch costs little there, and copies of single kinds have faster loops
        for part in parts:
            yield from copy_regions(op, part.source, target, part.copy)
        return
    if result.size:
        yield launch_parts(parts, target)


def launch_parts(parts: Sequence[Part], target: str, rank: int = 0) -> Dispatch:
    """Returns the dispatch that writes all parts to ``target``, which has rank ``rank`` if it has
    computed parts."""
    copies = [part.copy for part in parts]
    dimensions = next(r for r in _RANKS if r >= max(len(copy.dims) for copy in copies))
    begins = [0, *accumulate(-(-copy.size // (_GROUP * _ITEMS)) for copy in copies)]
    # the shader counts from the innermost
    dims = [[*c.dims[::-1], *[Dim(1, 0, 0)] * (dimensions - len(c.dims))] for c in copies]
    flat = [dim for part in dims for dim in part]
    chains = [part.chain for part in parts if part.chain]
    sources = tuple(
        dict.fromkeys([part.source for part in parts] + [n for c in chains for n in _singles(c)])
    )
    numbers = [number for chain in chains for number in chain.numbers]
    return Dispatch(
        groups=begins.pop(),
        tensors=(*sources, target),
        params={
            "begin": begins,
            "size": [copy.size for copy in copies],
            "src_offset": [copy.src_offset for copy in copies],
            "dst_offset": [copy.dst_offset for copy in copies],
            "shape": [dim.extent for dim in flat],
            "src_stride": [dim.src for dim in flat],
            "dst_stride": [dim.dst for dim in flat],
            **({"attr": numbers or [0.0]} if chains else {}),
        },
        defines={
            "PARTS": len(copies),
            "RANK": dimensions,
            "ITEMS": _ITEMS,
            "ITEM": _item(parts, {name: f"T{i}" for i, name in enumerate(sources)}),
            "OUT": f"T{len(sources)}",
            **{f"T{i}_TYPE": "uint" for i in range(len(sources) + 1)},
            **({CHAIN: rank - 2} if chains else {}),
        },
        kernel=_COMPUTING if chains else None,
    )


def _singles(chain: Chain) -> list[str]:
    return [operand for operand in chain.operands if isinstance(operand, str)]


def _item(parts: Sequence[Part], slots: Mapping[str, str]) -> str:
    """Returns HLSL that sets ``value`` to the item of a part at ``at``."""
    statements, first = [], 0
    for k, part in enumerate(parts):
        source, chain = f"{slots[part.source]}[at]", part.chain
        if chain is None:
            text = f"value = {source};"
        else:
            text = _computed(chain, source, slots, first)
            first += len(chain.numbers)
        statements.append(f"if (part == {k}) {{ {text} }}")
    return " else ".join(statements)


def _computed(chain: Chain, source: str, slots: Mapping[str, str], first: int) -> str:
    """Returns HLSL that computes an item of a part; ``first`` is the index of its first number."""
    loads = [f"asfloat({source})"]
    at = first + sum(len(link.values) for link in chain.links)
    for operand in chain.operands:
        if isinstance(operand, str):
            loads.append(f"asfloat({slots[operand]}[0])")
            continue
        loads.append(f"attr({at} + channel)" if len(operand) > 1 else f"attr({at})")
        at += len(operand)
    operands = [f"float p{i} = {load};" for i, load in enumerate(loads)]
    statements = chain_statements(chain.links, ["float"] * len(loads), "float", first)
    return " ".join([*operands, *statements, f"value = asuint(r{len(chain.links) - 1});"])


def _cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    return Cost(0, outputs[0].nbytes, outputs[0].nbytes)


def _rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    """Returns the row mapping of consecutive rows of each operand; None along the joined axis."""
    if axis == attrs.axis:
        return None
    firsts = [begin[axis] for begin in attrs.begins]

    def need(begin: int, end: int) -> OperandRows:
        extents, begins = list(attrs.extents), [list(b) for b in attrs.begins]
        extents[axis] = end - begin
        for first in begins:
            first[axis] = 0
        spans = tuple((first + begin, first + end) for first in firsts)
        return OperandRows(spans, attrs.with_(extents=extents, begins=begins), (begin, end))

    return RowMapping(axis, need)


def _case(
    shapes: Sequence[tuple[int, ...]],
    begins: Sequence[Sequence[int]],
    counts: Sequence[int],
    extents: Sequence[int],
    note: str,
    axis: int = 1,
    dtype: str = "scalar",
) -> Case:
    inputs = tuple(Random(shape, -99, 99, dtype) for shape in shapes)
    attrs = {"axis": axis, "begins": begins, "counts": counts, "extents": extents}
    return Case(inputs, attrs, note)


_START = [0, 0, 0, 0]
define(
    OpSpec(
        "concat_windows",
        infer=_infer,
        cpu=_cpu,
        kernel=replace(_KERNEL, lower=_lower),
        cost=_cost,
        tolerance=EXACT,
        custom=True,
        traits=Traits(rows=_rows),
        cases=[
            _case(
                [(1, 4, 15, 17), (1, 1, 13, 14), (1, 3, 9, 11)],
                [[0, 0, 3, 2], [0, 0, 1, 3], _START],
                [4, 1, 3],
                [1, 0, 9, 11],
                "maps and a border",
            ),
            _case(
                [(2, 5, 3, 4)] * 7,
                [[0, i % 3, 0, 0] for i in range(7)],
                [1, 2, 3, 1, 2, 1, 2],
                [2, 0, 3, 4],
                "seven parts of channels, twice",
            ),
            _case([(2, 9), (3, 12)], [[0, 2], [1, 3]], [1, 2], [0, 7], "rows", axis=0),
            _case([(5, 7)], [[1, 2]], [3], [4, 0], "one part"),
            _case([(1, 3), (1, 3)], [[0, 1], [0, 2]], [1, 1], [1, 0], "extents of one"),
            _case([(3, 4), (3, 4)], [[0, 1], [1, 0]], [0, 2], [2, 0], "an empty part"),
            _case([(0, 4), (2, 4)], [[0, 0], [1, 0]], [1, 2], [0, 0], "no rows"),
            _case(
                [(2, 3, 2, 3, 2, 3, 2, 3), (2, 2, 2, 2, 2, 2, 2, 2)],
                [[0, 1] * 4, [0] * 8],
                [2, 1],
                [0, 2, 1, 2, 2, 2, 1, 2],
                "rank 8",
                axis=0,
            ),
            _case([(9,), (300,)], [[1], [2]], [7, 290], [0], "integers", 0, "integer"),
        ],
    )
)
