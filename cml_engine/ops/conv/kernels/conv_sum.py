"""A sum of convolutions with unlike windows, in one dispatch.

No operator has this kernel: planning joins the dispatches of several
(``compiler/planning/sums.py``). Shader: ``shaders_hlsl/conv/conv_sum.hlsl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import inf, prod

import numpy as np

from cml_engine.ir.graph import Array, Epilogue
from cml_engine.ir.layout import C4, VECTOR_TYPE
from cml_engine.ops.conv.kernels.conv_window import (
    MOST_SHARED,
    PARTS,
    blocks_of_turn,
    row_of_table,
)
from cml_engine.ops.conv.node import GROUP, ConvTile
from cml_engine.ops.conv.shapes import RECIPROCALS, ConvShape, reciprocals
from cml_engine.ops.declaration.epilogue import per_channel
from cml_engine.ops.declaration.expression import LETTERS
from cml_engine.ops.declaration.hardware import HardwareTable, KernelLimits
from cml_engine.ops.declaration.registry import formula_of
from cml_engine.ops.declaration.spec import Defines, Dispatch, engine_kernel
from cml_engine.ops.elementwise.kernels.elementwise import Link, chain_statements

#: the most convolutions of a sum, and numbers of all formulas
MOST_TERMS, _MOST_VALUES = 4, 24
_ROWS = (4, 8, 16)
#: cycles of a wave's multiply-add
_PRODUCT = 2
_BY_TERM = "x_width x_volume x_image x_origin turns filter_at bias_at"
KERNEL = engine_kernel(
    "conv/conv_sum.hlsl",
    f"batch:u out_c:u row_blocks:u y_size:i3 {RECIPROCALS} "
    + " ".join(f"{name}:u{MOST_TERMS}" for name in _BY_TERM.split())
    + f" attr:f{_MOST_VALUES}",
    group=GROUP,
)


@dataclass(frozen=True, slots=True)
class Result:
    """An operand of an epilogue: the result of an earlier term of the sum, by the term's number."""

    term: int


@dataclass(frozen=True, slots=True)
class Single:
    """An operand that is a tensor with a single value."""

    name: str


@dataclass(frozen=True, slots=True)
class Channels:
    """An operand that is a plain tensor with a value for each channel."""

    name: str


@dataclass(frozen=True, slots=True)
class Elements:
    """An operand that is a tensor of the result's shape, plain or in blocks."""

    name: str
    is_plain: bool


@dataclass(frozen=True, slots=True)
class Formulas:
    """Formulas of elements, one after the other. Operand 0 of theirs is the element of a map that
    they change, if any; the others are ``operands``, of which an array has a value for each
    channel."""

    links: Sequence[Link]
    operands: Sequence[float | Array | Single]


#: an operand of an epilogue; an array and formulas have a value for each channel
Operand = float | Array | Result | Single | Channels | Elements | Formulas
#: an epilogue with its operands beside the result so far
Step = tuple[Epilogue, Sequence[Operand]]
Steps = Sequence[Step]


@dataclass(frozen=True)
class Term:
    """A convolution of a sum: its input, whose layout is plain or in blocks, its filter and bias,
    and its epilogues.

    ``changed`` are formulas that change the elements of the input before they are multiplied.
    ``inner`` is a convolution of one channel that computes the input, for a term of one tap and one
    turn.
    """

    shape: ConvShape
    source: str
    is_plain: bool
    filter: Array
    bias: Array
    steps: Steps
    changed: Formulas | None = None
    inner: Term | None = None

    @property
    def reader(self) -> Term:
        """The convolution that reads a map."""
        return self.inner or self

    @property
    def operands(self) -> list[Operand]:
        """The operands of all its formulas."""
        steps = [*self.steps, *(self.inner.steps if self.inner else ())]
        found = [operand for _, operands in steps for operand in operands]
        inner = [o for f in (self.changed, *found) if isinstance(f, Formulas) for o in f.operands]
        return [*found, *inner]

    @property
    def inner_products(self) -> int:
        """The products of a position of the convolution that computes the input."""
        return self.inner.shape.taps * self.inner.shape.out_channels if self.inner else 0

    @property
    def depth(self) -> int:
        """The channels of a block: 1 for an input of one plain channel, else 4."""
        return 1 if self.is_plain and self.shape.in_channels == 1 else 4

    @property
    def blocks(self) -> int:
        """The blocks of input channels."""
        return -(-self.shape.in_channels // 4)

    @cached_property
    def blocks_of_turn(self) -> int:
        """The blocks that a turn multiplies."""
        return blocks_of_turn(self.shape.taps, self.blocks)

    @property
    def turns(self) -> int:
        return self.blocks // self.blocks_of_turn

    def split(self, parts: int) -> int:
        """Returns the number of a workgroup's ``parts`` waves that share the turns."""
        return max(n for n in PARTS if n <= min(parts, max(self.turns, 1)))

    def packed(self, rows: int) -> Array:
        """Returns the filter as [row block][block][tap][channel][rows]."""
        count, channels = self.filter.shape[:2]
        row_blocks = -(-count // rows)
        shape = row_blocks * rows, self.blocks * self.depth, self.shape.taps
        padded = np.zeros(shape, np.float32)
        padded[:count, :channels] = self.filter.reshape(count, channels, -1)
        split = padded.reshape(row_blocks, rows, self.blocks, self.depth, -1)
        return split.transpose(0, 2, 4, 3, 1).reshape(-1)


def is_possible(shape: ConvShape, is_plain: bool) -> bool:
    """Returns True if a convolution can be a term: no window reaches beyond its input, and the
    channels fill blocks."""
    has_blocks = not is_plain or shape.in_channels == 1 or shape.in_channels % 4 == 0
    is_single = shape.groups == 1 and shape.in_channels > 0 and len(shape.axes) <= 2
    return is_single and shape.is_inside and has_blocks


def is_inner(shape: ConvShape, outer: ConvShape) -> bool:
    """Returns True if a term of shape ``outer`` can compute its own input.

    That input is the result of a convolution ``shape`` of one channel.
    """
    blocks = -(-outer.in_channels // 4)
    is_one_turn = outer.taps == 1 and blocks_of_turn(1, blocks) == blocks
    is_whole = shape.in_channels == 1 and shape.out_channels % 4 == 0
    return is_one_turn and is_whole and is_possible(shape, True)


def shared_sums(terms: Sequence[Term]) -> list[int]:
    """Returns for each term the first of those that are added in the same registers.

    A term shares those of another if it adds its result before all else, which nothing else reads
    and which is itself a sum.
    """
    reads = [o.term for term in terms for o in term.operands if isinstance(o, Result)]
    first = list(range(len(terms)))
    for n, term in enumerate(terms):
        for step in takewhile(_is_sum, term.steps):
            added = _added(step)
            if added is None or reads.count(added) > 1:
                continue
            if all(map(_is_sum, terms[added].steps)):
                least, merged = min(first[n], first[added]), {first[n], first[added]}
                first = [least if k in merged else k for k in first]
    return first


def _is_sum(step: Step) -> bool:
    """Returns True for an epilogue that adds an operand."""
    epilogue, operands = step
    return epilogue.op == "add" and not epilogue.own and len(operands) == 1


def _added(step: Step) -> int | None:
    """Returns the term whose result an epilogue adds."""
    operand = step[1][0] if _is_sum(step) else None
    return operand.term if isinstance(operand, Result) else None


def _splits(terms: Sequence[Term], first: Sequence[int], parts: int) -> list[int]:
    """Returns how many waves have a part of each term's sums; 1 for a term that shares those of
    another. ``first`` is the result of :func:`shared_sums`."""
    splits = [1] * len(terms)
    for term, n in zip(terms, first, strict=True):
        splits[n] = max(splits[n], term.split(parts))
    return splits


def default_tile(terms: Sequence[Term], table: HardwareTable) -> ConvTile | None:
    """Returns the tile with the least modelled time; None if none fits."""
    tiles = _fitting_tiles(terms, table.limits)
    return min(tiles, key=lambda tile: seconds(terms, tile, table), default=None)


def _fitting_tiles(terms: Sequence[Term], limits: KernelLimits) -> Iterator[ConvTile]:
    if any(term.blocks_of_turn * term.shape.taps > limits.window_cells for term in terms):
        return
    first = shared_sums(terms)
    for rows in _ROWS:
        # the code of a term of single channels has a fourth of the products
        products = sum(rows * term.shape.taps * term.depth / 4 for term in terms)
        products += sum(term.inner_products for term in terms)
        if products > limits.window_products or rows >= 2 * max(terms[0].shape.out_channels, 4):
            continue
        for parts in PARTS:
            shared = sum((split - 1) * rows for split in _splits(terms, first, parts))
            if shared <= MOST_SHARED and parts <= max(term.turns for term in terms):
                yield ConvTile(rows, 1, GROUP, parts)


def seconds(terms: Sequence[Term], tile: ConvTile, table: HardwareTable) -> float:
    """Returns the modelled time: a wave executes the turns of all terms, and once what stands
    outside of them."""
    once, turns, waves = ConvTile(tile.rows, 1, GROUP), list[tuple[float, float]](), list[int]()
    outside = (0.0, 0.0)
    for term in terms:
        kind, scale = row_of_table(term.shape.taps, term.blocks_of_turn)
        kernels = table.kernels
        cycles = kernels.get(f"{kind} inside window {once}", kernels.get(f"{kind} window {once}"))
        if cycles is None:  # the table is being written
            return inf
        count = -(-term.turns // term.split(tile.parts)) * scale * term.depth / 4
        turns.append((count * cycles.busy[1], count * cycles.alone[1]))
        turns.append((_PRODUCT * term.inner_products, _PRODUCT * term.inner_products))
        # the first turn of the table's kernel stands before its loop
        ends = (cycles.busy[0] - cycles.busy[1], cycles.alone[0] - cycles.alone[1])
        outside = max(outside[0], ends[0]), max(outside[1], ends[1])
        waves.append(cycles.waves)
    busy, alone = (out + sum(n) for out, n in zip(outside, zip(*turns, strict=True), strict=True))
    return table.seconds_of(busy, alone, min(waves), _groups(terms, tile) * tile.parts)


def _groups(terms: Sequence[Term], tile: ConvTile) -> int:
    shape = terms[0].shape
    return _tiles(shape) * -(-shape.out_channels // tile.rows)


def _origin(term: Term) -> int:
    """Returns where the first window of a term begins in the map that is read."""
    begins = [-axis.before for axis in term.shape.axes3]
    if term.inner:
        axes = term.inner.shape.axes3
        begins = [b * a.stride - a.before for b, a in zip(begins, axes, strict=True)]
    return begins[1] * term.reader.shape.axes3[2].wide + begins[2]


def _tiles(shape: ConvShape) -> int:
    return -(-shape.batch * prod(shape.narrow) // GROUP)


# -- the dispatch ----------------------------------------------------------------------------------


class Sum:
    """The dispatch of a sum of terms, the last of which has its result, with a tile: its constants,
    numbers and code.

    ``tensors`` are those that it reads beside its constant.
    """

    def __init__(self, terms: Sequence[Term], tile: ConvTile) -> None:
        self.terms, self.tile = terms, tile
        found = [operand for term in terms for operand in term.operands]
        others = [o.name for o in found if isinstance(o, Single | Channels | Elements)]
        self.tensors = tuple(dict.fromkeys([*(term.reader.source for term in terms), *others]))
        blocked = {term.reader.source for term in terms if not term.reader.is_plain}
        self._blocked = blocked | {
            o.name for o in found if isinstance(o, Elements) and not o.is_plain
        }
        self._slots = {name: f"T{i}" for i, name in enumerate(self.tensors, 1)}
        self._rows = -(-terms[0].shape.out_channels // tile.rows) * tile.rows
        self._arrays: list[Array] = []
        self._size = 0
        self._values: list[float] = []
        self._functions: list[str] = []
        self._filters = [self._constant(term.packed(tile.rows)) for term in terms]
        self._first = shared_sums(terms)
        self._splits = _splits(terms, self._first, tile.parts)
        self._biases = [self._by_row(self._bias(n)) for n in range(len(terms))]
        self._loads = [self._load(n, term) for n, term in enumerate(terms)]
        self._statements = [text for n in range(len(terms)) for text in self._finish(n)]

    @property
    def fits(self) -> bool:
        """True if the kernel has room for the convolutions and the numbers of their formulas."""
        return len(self.terms) <= MOST_TERMS and len(self._values) <= _MOST_VALUES

    def weights(self) -> Array:
        """Returns the filters, and all that has a value for each channel, as the kernel reads
        them."""
        return np.concatenate(self._arrays)

    def launch(self, weights: str, target: str, defines: Defines) -> Dispatch:
        """Returns the dispatch. ``weights`` is the constant of :meth:`weights`, ``defines`` are
        those of the store."""
        terms, tile, shape = self.terms, self.tile, self.terms[-1].shape
        out = f"T{len(self.tensors) + 1}"
        each = [self._defines(n, term) for n, term in enumerate(terms)]
        groups, row_blocks = _groups(terms, tile), self._rows // tile.rows
        return Dispatch(
            groups=groups,
            tensors=(weights, *self.tensors, target),
            params={
                "batch": shape.batch,
                "out_c": shape.out_channels,
                "row_blocks": row_blocks,
                "y_size": [axis.narrow for axis in shape.axes3],
                **reciprocals(groups, row_blocks, shape.axes3[2].narrow),
                "attr": self._values or [0.0],
                **self._params(),
            },
            defines={
                "T0_TYPE": VECTOR_TYPE[C4],
                **{f"{self._slots[name]}_TYPE": VECTOR_TYPE[C4] for name in self._blocked},
                **defines,
                "OUT": out,
                f"{out}_TYPE": VECTOR_TYPE[C4] if defines["OUT_C4"] else "float",
                "GROUP": tile.group * tile.parts,
                "LANES": tile.group,
                "PARTS": tile.parts,
                "ROWS": tile.rows,
                "FULL": int(shape.out_channels % tile.rows == 0),
                "FEW": int(all(term.reader.shape.is_few(groups) for term in terms)),
                "TERMS": len(terms),
                "FUNCTIONS": " ".join(self._functions),
                "FINISH": " ".join(self._statements),
                "TOTAL": f"r{len(terms) - 1}",
                **{f"{k}{n}": value for n, found in enumerate(each) for k, value in found.items()},
            },
            kernel=KERNEL,
        )

    def _params(self) -> dict[str, list[int]]:
        readers = [term.reader for term in self.terms]
        axes = [reader.shape.axes3 for reader in readers]
        volumes = [y.wide * x.wide for _, y, x in axes]
        items = [r.shape.in_channels if r.is_plain else r.blocks for r in readers]
        return {
            "x_width": [x.wide for _, _, x in axes],
            "x_volume": volumes,
            "x_image": [count * volume for count, volume in zip(items, volumes, strict=True)],
            "x_origin": [_origin(term) for term in self.terms],
            "turns": [term.turns for term in self.terms],
            "filter_at": self._filters,
            "bias_at": self._biases,
        }

    def _defines(self, n: int, term: Term) -> Defines:
        _, y, x = term.shape.axes3
        split = term.split(self.tile.parts)
        load = "SINGLE" if term.depth == 1 else "PLAIN" if term.is_plain else "IN_BLOCKS"
        inner_y, inner_x = (a.stride for a in term.inner.shape.axes3[1:]) if term.inner else (1, 1)
        return {
            "TAPS_Y": y.size,
            "TAPS_X": x.size,
            "STRIDE_Y": y.stride * inner_y,
            "STRIDE_X": x.stride * inner_x,
            "DILATION_Y": y.dilation,
            "DILATION_X": x.dilation,
            "BLOCKS": term.blocks_of_turn,
            "DEPTH": term.depth,
            "INPUT": self._slots[term.reader.source],
            "LOAD": f"INNER{n}" if term.inner else load,
            "CHANGED": self._loads[n],
            "SPLIT": split,
            "SUMS": f"sums{self._first[n]}",
            "SUMMED": self._splits[n],
            "LOOP": int(-(-term.turns // split) > 1),
        }

    def _constant(self, array: Array) -> int:
        """Adds a constant of whole vectors; returns the index of its first vector."""
        self._arrays.append(array)
        self._size += array.size
        return (self._size - array.size) // 4

    def _by_row(self, values: Array) -> int:
        """Adds a constant with a value for each channel, or one for all."""
        filled = np.zeros(self._rows, np.float32)
        filled[: self._rows if values.size == 1 else values.size] = values.reshape(-1)
        return self._constant(filled)

    def _number(self, value: float) -> str:
        self._values.append(value)
        return f"attr({len(self._values) - 1})"

    def _sharing(self, n: int) -> list[int]:
        """Returns the terms whose sums are those of term ``n``."""
        return [m for m, first in enumerate(self._first) if first == self._first[n]]

    def _bias(self, n: int) -> Array:
        """Returns the biases of all that is in the sums of a term."""
        first, *others = (self.terms[m].bias.reshape(-1) for m in self._sharing(n))
        return sum(others, first)

    # -- formulas

    def _load(self, n: int, term: Term) -> str:
        """Adds the functions that compute and change a block of a term's input; returns the name
        of the latter."""
        if term.inner:
            self._functions.append(self._inner(n, term.inner))
        if term.changed is None:
            return "AS_IS"
        name = self._function(term.changed)
        lanes = ", ".join(f"{name}(x[{i}], 0)" if i < term.depth else "0.0" for i in range(4))
        self._functions.append(f"float4 changed{n}(float4 x) {{ return float4({lanes}); }}")
        return f"changed{n}"

    def _inner(self, n: int, term: Term) -> str:
        """Returns the function that computes a block of a term's input."""
        _, y, x = term.shape.axes3
        filter, slot = self._constant(term.packed(4)), self._slots[term.source]
        bias = self._constant(per_channel(term.bias, term.shape.out_channels))
        lines = ["float4 v = float4(0.0);"]
        for tap in range(term.shape.taps):
            row, column = tap // x.size * y.dilation, tap % x.size * x.dilation
            value = f"{slot}[at + {row} * x_width({n}) + {column}]"
            place = f"{filter} + block * {term.shape.taps} + {tap}"
            lines.append(f"v = mad(T0[{place}], float4({value}), v);")
        lines += [f"v += T0[{bias} + block];", *self._steps("v", term.steps), "return v;"]
        return f"float4 inner{n}(uint at, uint block) {{ {' '.join(lines)} }}"

    def _function(self, formulas: Formulas) -> str:
        """Adds a function that computes formulas of an element and a channel; returns its name."""
        first = len(self._values)
        self._values += [value for link in formulas.links for value in link.values]
        loads = []
        for k, operand in enumerate(formulas.operands, 1):
            if isinstance(operand, Single):
                text = f"{self._slots[operand.name]}[0]"
            elif isinstance(operand, np.ndarray):
                text = f"T0[{self._by_row(operand)} + channel / 4][channel % 4]"
            else:
                text = self._number(operand)
            loads.append(f"float p{k} = {text};")
        kinds = ["float"] * (len(formulas.operands) + 1)
        statements = chain_statements(formulas.links, kinds, "float", first)
        name, last = f"formulas{len(self._functions)}", len(formulas.links) - 1
        body = " ".join([*loads, *statements, f"return r{last};"])
        self._functions.append(f"float {name}(float p0, uint channel) {{ {body} }}")
        return name

    def _finish(self, n: int) -> Iterator[str]:
        """Yields HLSL that computes the result of a term from its sums, if it is the last that is
        added to them."""
        sharing = self._sharing(n)
        if n != sharing[-1]:
            return
        yield f"float4 r{n} = RESULT({n});"
        # what the other terms add comes first
        steps = [step for m in sharing for step in self.terms[m].steps]
        yield from self._steps(f"r{n}", [step for step in steps if _added(step) not in sharing])

    def _steps(self, result: str, steps: Steps) -> Iterator[str]:
        """Yields HLSL that applies the epilogues of a convolution to its result."""
        for epilogue, operands in steps:
            formula = formula_of(epilogue.op)
            assert formula is not None  # epilogues have formulas
            attrs = [self._number(value) for value in formula.values(epilogue.attrs)]
            texts = [self._operand(operand) for operand in operands]
            values = epilogue.operands(texts, [("float4", result)])
            parts = [f"{t} {a} = {value};" for a, (t, value) in zip(LETTERS, values, strict=False)]
            text = formula.wide_expression("float4", attrs)
            yield f"{{ {' '.join(parts)} {result} = {text}; }}"

    def _operand(self, operand: Operand) -> tuple[str, str]:
        """Returns the HLSL type and text of an operand of an epilogue."""
        if isinstance(operand, float):
            return "float", self._number(operand)
        if isinstance(operand, np.ndarray):
            return "float4", f"T0[{self._by_row(operand)} + block]"
        if isinstance(operand, Result):
            return "float4", f"r{operand.term}"
        if isinstance(operand, Single):
            return "float4", f"float4({self._slots[operand.name]}[0])"
        if isinstance(operand, Elements):
            read = "ELEMENTS" if operand.is_plain else "ELEMENTS_IN_BLOCKS"
            return "float4", f"{read}({self._slots[operand.name]})"
        if isinstance(operand, Channels):
            read = f"{self._slots[operand.name]}[min({{}}, out_c - 1)]"
        else:
            read = f"{self._function(operand)}(0.0, {{}})"
        return "float4", f"float4({', '.join(read.format(f'4 * block + {i}') for i in range(4))})"
