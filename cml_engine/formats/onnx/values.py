"""The tensors of an ONNX import, and the graph under construction that they add operators to.

Operators are written as arithmetic and methods: ``x * x.sigmoid()`` adds a ``sigmoid`` and a
``mul`` to the graph of the import that is under way. Operators of known values are computed at
once; known integers keep 64 bits where they are moved, cut and joined.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.cpu.cpu_program import run_node
from cml_engine.errors import (
    ModelError,
    NeedsConstant,
    Source,
    TensorFileError,
    UnsupportedOp,
)
from cml_engine.formats.builder import ImportBuilder, registered_declarations
from cml_engine.formats.expression import TensorExpression
from cml_engine.formats.onnx.ranges import (
    INT32,
    INT64,
    MOVES,
    UINT32,
    Interval,
    Intervals,
    of_array,
    union_of,
)
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.block_weights import weight_blocks
from cml_engine.ir.graph import (
    DTYPE_OF_KIND,
    NUMPY_DTYPE,
    Array,
    Attrs,
    AttrValue,
    DType,
    Fact,
    Graph,
    Node,
    ancestors,
    can_be_shape,
)
from cml_engine.ir.single_value import converted, distinct, filled
from cml_engine.ops.declaration.registry import formula_of

_DTYPES: dict[str, DType] = {
    "scalar": np.dtype("f4"),
    "integer": np.dtype("i8"),
    "logical": np.dtype("?"),
}
#: The most elements of a tensor.
_MOST = 2**31 - 1

#: The most elements of a tensor that is computed at import rather than at run time.
MAX_FOLDED = 1 << 26

#: the reason and the advice for inputs without elements
NOTHING = "an extent of its inputs is 0: give shapes with extents of 1 or more"


class InvalidNode(Exception):
    """The error that a node does not follow ONNX's rules; the importer adds the advice."""


class TooWide(UnsupportedOp):
    """The error that the low 32 bits of integers may not be enough.

    ``inputs`` are the names of the graph's integer inputs from which they are computed.
    """

    inputs: Sequence[str] = ()


def unsupported_error(variant: str) -> UnsupportedOp:
    """Returns the error for ``variant``, a variant of an operator that cannot be imported."""
    return UnsupportedOp(f"{variant} is not supported: export the model otherwise")


# -- tensors -------------------------------------------------------------------------------------


class Value(TensorExpression[float]):
    """A tensor: known at import (``array``), or computed (``tensor``, its name in the graph).

    A ``cml.Tensor`` has neither an array nor ONNX's type, ``dtype``, which may be wider than the
    type that the graph computes with. A known value gets a ``tensor`` too when an operator reads
    it, named ``name`` if that is set.
    """

    __slots__ = ("array", "dtype", "name", "shape", "tensor")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        array: Array | None = None,
        tensor: str | None = None,
        name: str = "",
    ) -> None:
        self.dtype, self.shape, self.array, self.tensor = dtype, shape, array, tensor
        self.name = name

    @classmethod
    def known(cls, array: object, name: str = "") -> Value:
        array = np.asanyarray(array)
        return cls(array.dtype, array.shape, array, None, name)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def kind(self) -> str:
        """NNEF's name of the type: ``"scalar"``, ``"integer"`` or ``"logical"``."""
        return kind_of(self.dtype)

    def typed(self, dtype: DTypeLike) -> Value:
        """Returns the value with another ONNX type of the same NNEF type.

        A known array is converted; a computed tensor is the same.
        """
        if self.array is not None:
            return Value.known(converted(self.array, np.dtype(dtype)), self.name)
        return Value(np.dtype(dtype), self.shape, None, self.tensor)

    @property
    def counts(self) -> Mapping[int, Value]:
        """The numbers of elements along the counted axes, by axis: integers computed at run time.

        ``shape`` has the largest possible extent of a counted axis. What lies behind the counted
        elements is undefined.
        """
        if self.array is not None or self.tensor is None:
            return {}
        return current_import().counts.get(self.tensor, {})

    def counted(self, counts: Mapping[int, Value]) -> Value:
        """Returns the value with these counted axes and no others.

        That is a copy, because other nodes may read the tensor as it is.
        """
        if counts == self.counts:
            return self
        emit = current_import()
        tensor = emit.builder.node("copy", [emit.tensor(self)], f"{emit.base}_copy")
        return Value(self.dtype, self.shape, None, tensor).declare(counts)

    def declare(self, counts: Mapping[int, Value]) -> Value:
        """Sets the counted axes of a node's new result, which no node reads yet; returns it."""
        if counts:
            current_import().counts[self.tensor or ""] = counts
        return self

    def __str__(self) -> str:
        counts = self.counts
        extents = [f"up to {n}" if a in counts else str(n) for a, n in enumerate(self.shape)]
        return f"{self.dtype.name}[{','.join(extents)}]"

    # -- operators ------------------------------------------------------------------------------

    def apply(self, op: str, *operands: Operand, **attrs: object) -> Value:
        """Adds an operator with one result and returns the result.

        Shapes are aligned as in ONNX, and operators of numbers have their integer form for
        integers.
        """
        return (elementwise if op in _ALIGNED else add_operator)(op, *operands, **attrs)

    def cast(self, kind: str) -> Value:
        """Returns the value cast to ``kind``: ``"scalar"``, ``"integer"`` or ``"logical"``."""
        if self.kind == kind:
            return self
        if (self.kind, kind) == ("integer", "scalar"):
            if self.array is not None:
                return Value.known(self.array.astype(np.float32), self.name)
            bounds = interval_of(self)
            is_exact = _span(bounds) <= UINT32.high and abs(bounds.low) < 1 << 39
            if not bounds.within(INT32) and is_exact:
                return _float_of_halves(self, int(bounds.low))
        return add_operator("cast", self, dtype=kind)

    def like(self, template: Value) -> Value:
        """Returns the value cast to the ONNX type of another one."""
        return self.cast(template.kind).typed(template.dtype)

    def scalar(self) -> Value:
        """Returns the value cast to float32; integers are exact up to 2^24."""
        return self.cast("scalar")

    # -- moves ----------------------------------------------------------------------------------

    def _move(self, op: str, move_array: Callable[[Array], Array], **attrs: object) -> Value:
        if self.array is not None:
            blocks = weight_blocks(self.array) if op in ("unsqueeze", "transpose") else None
            moved_array = blocks.moved(move_array).values() if blocks else move_array(self.array)
            return Value.known(moved_array, self.name)
        return add_operator(op, self, **attrs)

    def reshape(self, shape: Sequence[int]) -> Value:
        shape = [int(n) for n in shape]
        if tuple(shape) == self.shape:
            return self
        if 0 in shape and self.array is None:  # in NNEF 0 copies the input's extent
            return zeros(shape, self.dtype)
        return self._move("reshape", lambda array: array.reshape(shape), shape=shape)

    def unsqueeze(self, axes: Sequence[int]) -> Value:
        if not axes:
            return self
        positions = tuple(axes)
        return self._move(
            "unsqueeze", lambda array: np.expand_dims(array, positions), axes=sorted(axes)
        )

    def lift(self, rank: int) -> Value:
        """Returns the value with axes of extent 1 added in front until it has ``rank`` axes."""
        return self.unsqueeze(list(range(rank - self.rank)))

    def squeeze(self, axes: Sequence[int]) -> Value:
        if not axes:
            return self
        positions = tuple(axes)
        return self._move("squeeze", lambda array: array.squeeze(positions), axes=sorted(axes))

    def transpose(self, axes: Sequence[int]) -> Value:
        order = [int(axis) for axis in axes]
        if order == list(range(self.rank)):
            return self
        return self._move("transpose", lambda array: array.transpose(order), axes=order)

    def slice(self, axis: int, begin: int, end: int) -> Value:
        """Returns the elements ``begin`` to ``end - 1`` of one axis."""
        return self.take({axis: range(begin, end)})

    def take(self, ranges: Mapping[int, range]) -> Value:
        """Returns the elements whose indices are in ``ranges``, by axis."""
        ranges = {a: r for a, r in ranges.items() if r != range(self.shape[a])}
        if not ranges:
            return self
        if self.array is not None:
            array = self.array
            for axis, r in ranges.items():
                array = array.take(r, axis)
            return Value.known(array)
        if not all(ranges.values()):
            shape = [len(ranges[a]) if a in ranges else n for a, n in enumerate(self.shape)]
            kept_counts = {a: n for a, n in self.counts.items() if a not in ranges}
            return zeros(shape, self.dtype).counted(kept_counts)
        bounds = [_slice_bounds(r, self.shape[axis]) for axis, r in ranges.items()]
        begin, end, stride = (list(column) for column in zip(*bounds, strict=True))
        steps = {} if all(s == 1 for s in stride) else {"stride": stride}
        return add_operator("slice", self, axes=list(ranges), begin=begin, end=end, **steps)

    def split(self, axis: int, sizes: Sequence[int]) -> list[Value]:
        """Splits one axis into consecutive parts of the given sizes and returns them."""
        if self.array is not None or 0 in sizes:
            ends = np.cumsum([0, *sizes]).tolist()
            return [self.slice(axis, a, b) for a, b in zip(ends, ends[1:], strict=False)]
        unit = int(np.gcd.reduce(sizes))
        ratios = [size // unit for size in sizes]
        return add_operators("split", len(sizes), self, axis=axis, ratios=ratios)

    def tile(self, repeats: Sequence[int]) -> Value:
        shape = checked_shape([n * r for n, r in zip(self.shape, repeats, strict=True)])
        if all(n == 1 for n in repeats):
            return self
        if self.array is not None and self.size == 1:
            return Value.known(filled(self.array, shape))
        if self.array is not None:
            allocate(shape, self.dtype.itemsize)
        elif 0 in shape:
            return zeros(shape, self.dtype)
        return self._move("tile", lambda array: np.tile(array, repeats), repeats=list(repeats))

    def expand(self, shape: Sequence[int]) -> Value:
        """Returns the value broadcast to a shape; shapes are aligned from the right."""
        lifted = self.reshape([1] * (len(shape) - self.rank) + list(self.shape))
        repeats = [
            target if extent == 1 else 1 for extent, target in zip(lifted.shape, shape, strict=True)
        ]
        if lifted.array is not None and any(target != 1 for target in repeats):
            return Value.known(np.broadcast_to(lifted.array, shape))
        return lifted.tile(repeats)


class SequenceValue(Value):
    """A list of tensors whose length is known at import; no tensor of the graph holds it."""

    __slots__ = ("elements",)

    def __init__(self, elements: Sequence[Value]) -> None:
        super().__init__(np.dtype(np.float32), ())
        self.elements = list(elements)

    def __str__(self) -> str:
        return f"sequence of {', '.join(map(str, self.elements)) or 'nothing'}"


class EmptyOptional(SequenceValue):
    """An optional value that has no element."""

    __slots__ = ()

    def __str__(self) -> str:
        return "missing optional value"


Operand: TypeAlias = Value | float | int | bool
#: operators whose operands are aligned as in ONNX
_ALIGNED = frozenset(
    "abs add and bit_and bit_or bit_xor clamp div eq fmod ge gt int_mod int_rem le lt max min mul "
    "ne neg or pow prelu select shift_left shift_right sign sub".split()
)
#: integer operators that read signs, and those that read the same bits without one
_QUOTIENTS = {"int_div": "uint_div", "int_mod": "uint_mod", "int_rem": "uint_mod"}
#: integer operators for which only the order of their operands counts
_ORDERS = frozenset("int_lt int_le int_gt int_ge int_min int_max".split())
#: those that have a form of their own for integers
_OF_NUMBERS = frozenset("abs add div eq ge gt le lt max min mul ne neg sign sub".split())


def kind_of(dtype: DType) -> str:
    return DTYPE_OF_KIND[dtype.kind]


def has_nothing(values: Sequence[Value | None]) -> bool:
    """Returns True if a computed value has no elements.

    Known values may be empty, such as the region of a Resize.
    """
    return any(v is not None and v.array is None and 0 in v.shape for v in values)


def as_value(x: Operand) -> Value:
    """Returns a number as a known value: float32 for a float, int64 for an int, or a logical.

    A value is returned unchanged.
    """
    if isinstance(x, Value):
        return x
    dtype = np.bool_ if isinstance(x, bool) else np.int64 if isinstance(x, int) else np.float32
    return Value.known(np.array(x, dtype))


def zeros(shape: Sequence[int], dtype: DTypeLike = np.float32) -> Value:
    return Value.known(np.zeros(shape, dtype))


def add_operator(op: str, *inputs: Operand, **attrs: object) -> Value:
    """Adds an NNEF operator with one result and returns the result."""
    return add_operators(op, 1, *inputs, **attrs)[0]


def add_operators(op: str, n_results: int, *inputs: Operand, **attrs: object) -> list[Value]:
    """Adds an NNEF operator with ``n_results`` results and returns them."""
    values = [as_value(x) for x in inputs]
    outputs = current_import().node(op, values, n_results, attrs)
    if op in MOVES:
        dtype = values[op == "select"].dtype
        return [v.typed(dtype) if v.kind == kind_of(dtype) else v for v in outputs]
    return outputs


def add_plain(op: str, x: Value, *others: Value, **attrs: object) -> Value:
    """Adds an operator that moves elements of ``x``, as if no axis were counted.

    Returns the result, which has no counted axes.
    """
    (y,) = current_import().plain_node(op, [x, *others], 1, attrs)
    return y.typed(x.dtype)


def elementwise(op: str, *inputs: Operand, **attrs: object) -> Value:
    """Adds an elementwise operator, of integers in its integer form, and returns its result.

    The shapes are aligned from the right, as in ONNX: NNEF aligns from the left.
    """
    values = [as_value(x) for x in inputs]
    first = next(v for x, v in zip(inputs, values, strict=True) if isinstance(x, Value))
    if op in _OF_NUMBERS and first.kind == "integer":
        op = f"int_{op}"
    if op in _QUOTIENTS or op in _ORDERS:
        hull = union_of(*map(interval_of, values))
        if not hull.within(INT32) and hull.within(UINT32):
            op = _QUOTIENTS.get(op, op)
        if op in _ORDERS and not hull.within(INT32) and _span(hull) <= UINT32.high:
            return _of_shifted(op, values, int(hull.low))
    rank = max(v.rank for v in values)
    has_full_rank = any(v.array is None and v.rank == rank for v in values)
    return add_operator(op, *(_lift(v, rank, has_full_rank) for v in values), **attrs)


def _span(interval: Interval) -> float:
    return interval.high - interval.low


def _of_shifted(op: str, values: Sequence[Value], lowest: int) -> Value:
    """Adds a comparison, minimum or maximum of integers in any range of 2^32.

    The integers, of which ``lowest`` is the lower bound, are shifted into the range of int32.
    Returns the result.
    """
    shift = int(INT32.low) - lowest
    result = elementwise(op, *(v + _number(shift) for v in values))
    return result - _number(shift) if result.kind == "integer" else result


def _float_of_halves(value: Value, lowest: int) -> Value:
    """Adds a cast to float32, rounded once, of integers in any range of 2^32; returns the result.

    ``lowest`` is their lower bound. Both halves of 16 bits and their sums are exact floats.
    """
    from_lowest = value - _number(lowest)
    high = from_lowest.shift_right(16).scalar() + float(lowest >> 16)
    low = from_lowest.bit_and(0xFFFF).scalar() + float(lowest & 0xFFFF)
    return high * 65536.0 + low


def _number(value: int) -> Value:
    """Returns a known integer of any size, of which the network stores the low 32 bits."""
    return Value.known(np.array(value, np.int64 if abs(value) < 1 << 63 else np.uint64))


def bounded(value: Value, interval: Interval) -> Value:
    """Returns an integer value with bounds that the operators' rules guarantee."""
    if interval_of(value).within(interval):
        return value
    copy = value.copy().typed(value.dtype)
    if copy.tensor is not None:
        current_import().intervals[copy.tensor] = interval
    return copy


def _lift(value: Value, rank: int, has_full_rank: bool) -> Value:
    """Returns a value with axes of extent 1 added in front until it has ``rank`` axes.

    With ``has_full_rank`` another operand has all axes, and a known number needs none.
    """
    if has_full_rank and value.array is not None and value.array.size == 1:
        return Value.known(value.array.reshape(()), value.name)
    return value.lift(rank) if value.rank else value


def fragment(op: str, values: Sequence[Operand], many: bool = False, **attrs: object) -> Value:
    """Adds the operators that a compound operator expands to and returns its result.

    With ``many`` it takes its operands as one array.
    """
    return current_import().fragment(op, list(map(as_value, values)), many, attrs)


def concat(values: Sequence[Value], axis: int) -> Value:
    """Returns the values concatenated along an axis. It skips values without elements."""
    nonempty = [v for v in values if 0 not in v.shape]
    if len(nonempty) == 1:
        return nonempty[0]
    arrays = [v.array for v in nonempty if v.array is not None]
    if not nonempty:
        arrays = [np.zeros(v.shape, v.dtype) for v in values]
    elif len(arrays) < len(nonempty):
        return add_operator("concat", *nonempty, axis=axis)
    current_budget().check_bytes(sum(a.nbytes for a in arrays), "its result")
    return Value.known(np.concatenate(arrays, axis))


def _slice_bounds(r: range, extent: int) -> tuple[int, int, int]:
    """Returns NNEF's begin, end and stride of a slice that selects a range of indices."""
    if len(r) == 1:
        return r[0], r[0] + 1, 1
    if r.step > 0:
        return r[0], r[-1] + 1, r.step
    end = r[-1] - 1
    return r[0], end if end >= 0 else -extent - 1, r.step


# -- what must be known, and what fits -----------------------------------------------------------


def constant(value: Value, subject: str) -> Array:
    """Returns the array of a value that must be known at import; an error calls it ``subject``."""
    if value.array is not None:
        return value.array
    raise needs_constant(value, subject)


def needs_constant(value: Value, subject: str, otherwise: str = "") -> NeedsConstant:
    """Returns the error for a computed value that must be known at import, called ``subject``.

    ``otherwise`` is the end of the message, with another way out.
    """
    inputs = current_import().origins(value.tensor)
    origin, bind = "", "a constant in its place"
    if inputs:
        origin = " from " + ", ".join(f"'{name}'" for name in inputs)
        options = " ".join(f"--constant {name}=VALUE|FILE" for name in inputs)
        bind = f"{options}, or cml.load(…, constants={{'{inputs[0]}': …}})"
    return NeedsConstant(
        f"{subject} must be known when the model is loaded, and it is computed{origin}: export "
        f"the model with fixed shapes, or give {bind}{otherwise}",
        current_import().source,
        inputs,
    )


def numbers(value: Value, subject: str) -> Array:
    """Returns the array of a value of rank 1 that must be known at import; a number becomes one."""
    array = constant(value, subject)
    if array.ndim > 1:
        raise InvalidNode(f"{subject}: got {value}, wanted one axis")
    return array.reshape(-1)


def ints(value: Value, subject: str) -> list[int]:
    """Returns a list of a value's integers, which must be known at import."""
    array = numbers(value, subject)
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidNode(f"{subject} is {array.dtype}, wanted integers")
    return [int(n) for n in array]


def number(value: Value, subject: str) -> float:
    """Returns the single number of a value, which must be known at import."""
    return float(single(numbers(value, subject).tolist(), subject))


def single(values: Sequence[float], subject: str) -> float:
    """Returns the only number of a list; raises an error if it has none or several."""
    if len(values) != 1:
        raise InvalidNode(f"{subject} has {len(values)} values, wanted one")
    return values[0]


def checked_axis(axis: int, rank: int) -> int:
    """Returns an axis counted from the front; raises an error if it is not among ``rank`` axes."""
    if not -rank <= axis < rank:
        raise InvalidNode(f"axis {axis} of {rank}")
    return axis % rank


def checked_axes(axes: Sequence[int] | None, rank: int) -> list[int]:
    """Returns axes counted from the front, or all axes for None; raises an error for a double."""
    if axes is None:
        return list(range(rank))
    checked = [checked_axis(axis, rank) for axis in axes]
    if len(set(checked)) < len(checked):
        raise InvalidNode(f"the axes {list(axes)} name one twice")
    return checked


def along(axis: int, rank: int) -> list[int]:
    """Returns the shape, of ``rank`` axes, in which an array lies along ``axis``."""
    return [-1 if a == axis else 1 for a in range(rank)]


def per_channel(value: Value, count: int, subject: str) -> Value:
    """Returns a value that must have one number for each of ``count`` channels."""
    if value.shape != (count,):
        raise InvalidNode(f"{subject} is {value}, wanted {count} numbers")
    return value


def expandable(value: Value, shape: Sequence[int], subject: str) -> Value:
    """Returns a value that must broadcast to ``shape``, which it does not enlarge."""
    if not fits_in(value, shape):
        raise InvalidNode(f"{subject} is {value}, which does not broadcast to {list(shape)}")
    return value


def fits_in(value: Value, shape: Sequence[int]) -> bool:
    """Returns True if a value broadcasts to ``shape``, which it does not enlarge."""
    extents = zip(value.shape[::-1], shape[::-1], strict=False)
    return value.rank <= len(shape) and all(n in (1, target) for n, target in extents)


def checked_shape(shape: Sequence[int]) -> list[int]:
    """Returns the shape as a list; raises an error if a tensor of the network cannot have it."""
    if not can_be_shape(shape) or prod(shape) > _MOST:
        raise InvalidNode(f"the shape {list(shape)[:8]}")
    return list(shape)


def allocate(shape: Sequence[int], itemsize: int = 8) -> list[int]:
    """Returns the shape as a list; raises an error if an array of it exceeds the memory budget.

    Nothing is allocated here. ``itemsize`` is the number of bytes per element.
    """
    checked = checked_shape(shape)
    subject = f"its tensor of the shape {checked[:8]}"
    current_budget().check_bytes(prod(checked) * itemsize, subject)
    return checked


def interval_of(value: Value) -> Interval:
    """Returns the bounds of a value's integers; for a known value, its smallest and its largest."""
    if value.array is not None:
        return of_array(value.array)
    return current_import().intervals.of(value.tensor or "")


# -- the graph -----------------------------------------------------------------------------------


def clean(name: str) -> str:
    """Returns a name with ``_`` in place of all characters that an identifier cannot have."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")


_CURRENT: ContextVar[Emitter] = ContextVar("the import under way")


def current_import() -> Emitter:
    """Returns the graph under construction of the import that is under way."""
    return _CURRENT.get()


class NnefCall(NamedTuple):
    """A call of an NNEF operator of which an operand has a counted axis."""

    op: str
    inputs: Sequence[Value]
    n_results: int
    attrs: Mapping[str, Any]

    def add(self, *inputs: Value, **attrs: object) -> list[Value]:
        """Adds the operator as if no axis were counted, with some operands or attributes replaced.

        Returns the results, which have no counted axes.
        """
        emit = current_import()
        return emit.plain_node(self.op, inputs or self.inputs, self.n_results,
                               {**self.attrs, **attrs})  # fmt: skip


#: adds the operators of a call and returns its results with their counted axes
CountedRule = Callable[[NnefCall], "list[Value]"]
#: what each NNEF operator does along counted axes (counted_axes.py)
COUNTED_RULES: dict[str, CountedRule] = {}


class Emitter:
    """A graph under construction during an ONNX import.

    ``base`` is the name stem of the tensors of the nodes that are added next. An integer network
    (``is_integer``) has no NaN.
    """

    def __init__(self, is_integer: bool) -> None:
        self.is_integer = is_integer
        self.builder = ImportBuilder()
        self.intervals = Intervals(self.builder)
        self.base = "t"
        self._names: dict[str, str] = {}
        #: the numbers of elements along the counted axes of a tensor, by its name
        self.counts: dict[str, Mapping[int, Value]] = {}
        #: variables by a name of the importer's own, and their values after a run
        self._variables: dict[str, Value] = {}
        self._updates: dict[str, Value] = {}
        self._unfused: list[str] = []
        self._calls: dict[str, int] = {}
        self.declarations: dict[str, str] = {}

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Makes values add their operators to this graph."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @property
    def source(self) -> Source | None:
        return self.builder.source

    def at(self, source: Source | None, base: str) -> None:
        """Sets the source and the name stem of the nodes that are added next."""
        self.builder.source = source
        self.base = clean(base) or "t"

    def tensor(self, value: Value) -> str:
        """Returns the name of the value's tensor in the graph.

        A known value is first added as a literal or a variable.
        """
        if isinstance(value, SequenceValue):
            raise ModelError(f"an input is a {value}, wanted a tensor", self.source)
        if value.tensor is None or value.tensor not in self.builder.facts:
            assert value.array is not None
            value.tensor = self._constant(value.array, value.kind, value.name)
        return value.tensor

    def _constant(self, array: Array, kind: str, name: str) -> str:
        size = array.size * NUMPY_DTYPE[kind].itemsize
        current_budget().check_bytes(size, f"the constant '{name or self.base}'", self.source)
        wanted = clean(name) or f"{self.base}_constant"
        if kind == "integer" and not (bounds := of_array(array)).within(INT32):
            # no literal: literals of equal bits share one name
            tensor = self.builder.variable(wanted, array.astype(NUMPY_DTYPE[kind]), kind)
            self.intervals[tensor] = bounds
            return tensor
        if array.dtype == np.float64:
            # the limits of float64 mean "no limit", as infinity does
            values = distinct(array)
            finite = values[np.abs(values) < np.finfo(np.float64).max]
            if finite.size and np.abs(finite).max() > np.finfo(np.float32).max:
                raise TensorFileError(
                    f"a constant has values from {finite.min()} to {finite.max()}, and the network "
                    "computes with 32 bits: give it values that fit",
                    self.source,
                )
        with np.errstate(over="ignore"):
            array = converted(array, NUMPY_DTYPE[kind])
        if array.ndim == 0 and not (kind == "scalar" and np.isnan(array)):
            return self.builder.literal(array, kind)
        return self.builder.variable(wanted, array, kind)

    def variable(self, name: str, step: int = 0) -> Value:
        """Returns a variable of one integer, 0 at first, which every run increases by ``step``."""
        if name not in self._variables:
            tensor = self.builder.variable(name, np.zeros(1, np.int32), "integer")
            self.intervals[tensor] = INT32
            self._variables[name] = value = Value(np.dtype(np.int32), (1,), None, tensor)
            if step:
                self._updates[tensor] = value + step
        return self._variables[name]

    def count(self, key: str) -> int:
        """Returns how often this method was called before with the key."""
        self._calls[key] = self._calls.get(key, -1) + 1
        return self._calls[key]

    def keep_apart(self, value: Value) -> Value:
        """Returns the value, whose operator no pass will fuse with the value's readers."""
        if value.tensor is not None:
            self._unfused.append(value.tensor)
        return value

    # -- operators ------------------------------------------------------------------------------

    def _values(self, names: Sequence[str]) -> list[Value]:
        facts = [self.builder.facts[name] for name in names]
        return [
            Value(_DTYPES[fact.dtype], fact.shape, None, name)
            for name, fact in zip(names, facts, strict=True)
        ]

    def node(
        self,
        op: str,
        inputs: Sequence[Value],
        n_results: int,
        attrs: Mapping[str, Any],
    ) -> list[Value]:
        """Adds an operator, and what it needs along the counted axes of its operands.

        Returns the results. Raises an error if the operator has no rule for counted axes.
        """
        if not any(value.counts for value in inputs):
            return self.plain_node(op, inputs, n_results, attrs)
        rule = COUNTED_RULES.get(op)
        if rule is None and formula_of(op) is not None:
            rule = COUNTED_RULES["elementwise"]
        if rule is None:
            raise counted_error(*next((v, axis) for v in inputs for axis in v.counts))
        return rule(NnefCall(op, inputs, n_results, attrs))

    def plain_node(
        self, op: str, inputs: Sequence[Value], n_results: int, attrs: Mapping[str, Any]
    ) -> list[Value]:
        """Adds an operator whose rules for counted axes the caller applies; returns its results."""
        names, mark = [self.tensor(value) for value in inputs], self.mark()
        output_names = self.builder.split_node(
            op, names, [f"{self.base}_{op}"] * n_results, **attrs
        )
        return self._results(output_names, inputs, mark)

    def custom(
        self, op: str, inputs: Sequence[Value], n_results: int, attrs: Mapping[str, object]
    ) -> list[Value]:
        """Adds an operator that the game declares and returns its results.

        Raises an error if the node's inputs, outputs or attributes do not fit the declaration.
        """
        self.declarations[op] = registered_declarations()[op]
        names = [self.tensor(value) for value in inputs]
        output_names = [f"{self.base}_{op}"] * n_results
        return self._values(
            self.builder.own_node(self.declarations[op], names, output_names, attrs)
        )

    def placeholder(
        self,
        op: str,
        declaration: str,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, AttrValue],
        facts: Sequence[Fact],
    ) -> list[Value]:
        """Adds an operator that is unknown to the engine and returns its results.

        ``declaration`` is its NNEF signature, which the graph records. ``facts`` are the types
        and shapes of its results.
        """
        self.declarations[op] = declaration
        builder = self.builder
        names = tuple(self.tensor(value) for value in inputs if value is not None)
        outputs = tuple(builder.name(f"{self.base}_{op}") for _ in facts)
        builder.nodes.append(Node(op, names, outputs, Attrs(attrs), self.source))
        builder.facts.update(zip(outputs, facts, strict=True))
        return self._values(outputs)

    def fragment(
        self, op: str, inputs: Sequence[Value], many: bool, attrs: Mapping[str, object]
    ) -> Value:
        names, mark = [self.tensor(value) for value in inputs], self.mark()
        graph = self.builder.expand(op, names, attrs, many)
        if any(value.counts for value in inputs):
            return self._replayed(graph, inputs)
        return self._results(self.builder.splice(graph, names, self.base), inputs, mark)[0]

    def _replayed(self, graph: Graph, inputs: Sequence[Value]) -> Value:
        """Adds the nodes of an expanded operator one by one, each with its rule for counted axes.

        Returns the first result.
        """
        values = dict(zip(graph.inputs, inputs, strict=True))
        values |= {name: Value.known(array) for name, array in graph.constants.items()}
        for node in graph.nodes:
            operands = [values[name] for name in node.inputs]
            results = self.node(node.op, operands, len(node.outputs), node.attrs)
            values.update(zip(node.outputs, results, strict=True))
        return values[graph.outputs[0]]

    # -- folding --------------------------------------------------------------------------------

    def mark(self) -> int:
        """Returns the number of nodes so far, which is the index of the next one."""
        return len(self.builder.nodes)

    def _results(self, names: Sequence[str], inputs: Sequence[Value], mark: int) -> list[Value]:
        """Returns the results of the nodes from index ``mark`` on, by name.

        If all inputs are known, the nodes are run and removed, unless a result is too large.
        """
        values = self._values(names)
        is_known = all(value.array is not None for value in inputs)
        if not is_known or any(value.size > MAX_FOLDED for value in values):
            return values
        nodes = self.builder.nodes[mark:]
        bounds = [self.intervals.of(v.tensor or "") for v in values if v.kind == "integer"]
        is_wide = any(self.intervals.find_too_wide(node) for node in nodes)
        if is_wide or not all(interval.within(INT32) for interval in bounds):
            return values  # NumPy's int32 would lose the upper bits
        self.intervals.forget(mark)
        del self.builder.nodes[mark:]
        arrays = ChainMap[str, Array]({}, self.builder.constants)
        for node in nodes:
            size = sum(self.builder.facts.pop(name).size for name in node.outputs)
            current_budget().check_bytes(4 * size, "its result", self.source)
            results = run_node(node, [arrays[name] for name in node.inputs])
            arrays.update(zip(node.outputs, results, strict=True))
        return [Value.known(arrays[v.tensor or ""].astype(v.dtype)) for v in values]

    def origins(self, *tensors: str | None) -> tuple[str, ...]:
        """Returns the names of the graph's inputs from which tensors are computed, in order."""
        _, names = ancestors(self.builder.nodes, filter(None, tensors))
        return tuple(name for name in self.builder.inputs if name in names)

    # -- the end --------------------------------------------------------------------------------

    def _check_integers(self, outputs: Mapping[str, Value]) -> None:
        """Raises :class:`UnsupportedOp` if a result needs more than 32 bits of an integer.

        Only operators that the outputs depend on count.
        """
        self.intervals.learn()
        tensors = (value.tensor for value in outputs.values())
        needed_nodes, _ = ancestors(self.builder.nodes, filter(None, tensors))
        for node in needed_nodes:
            bounds = self.intervals.find_too_wide(node)
            if bounds is not None:
                raise self.too_wide(f"it reads {_advice(bounds)}", node.inputs, node.source)
        sources = {name: node.source for node in needed_nodes for name in node.outputs}
        for name, value in outputs.items():
            if value.kind == "integer" and value.dtype != np.uint32:
                bounds = interval_of(value)
                if not bounds.within(INT32):
                    source = sources.get(value.tensor or "")
                    message = f"the output '{name}' has {_advice(bounds)}"
                    raise self.too_wide(message, [value.tensor], source)

    def set_name(self, tensor: str, name: str) -> None:
        """Records the name that a node's result gets in the finished graph.

        Inputs, and results that already have a name, keep it.
        """
        if tensor not in self._names and tensor not in self.builder.inputs:
            self._names[tensor] = self.builder.name(clean(name) or "t")

    def origin_of(self, count: Value) -> str:
        """Returns the title of the node that determines a count: ``NonZero 'found'``."""
        producers, name = self.producers(), count.tensor or ""
        while name in producers and producers[name].op not in _COUNTING:
            name = next((n for n in producers[name].inputs if n in producers), "")
        source = producers[name].source if name else None
        return source.file.rpartition(": ")[2] if source else "it is computed"

    def producers(self) -> dict[str, Node]:
        """Returns the node that computes each tensor so far, by the tensor's name."""
        return {name: node for node in self.builder.nodes for name in node.outputs}

    def too_wide(
        self, message: str, tensors: Sequence[str | None], source: Source | None
    ) -> TooWide:
        """Returns the error for integers from ``tensors`` that may not fit into 32 bits."""
        names = self.origins(*tensors)
        error = TooWide(message, source)
        error.inputs = [n for n in names if self.builder.facts[n].dtype == "integer"]
        return error

    def graph(self, name: str, outputs: Mapping[str, Value]) -> Graph:
        """Returns the finished graph with the given outputs by name, then the counts of their axes.

        Nodes and constants that no output needs are left out.
        """
        builder = self.builder
        for output, value in outputs.items():
            if isinstance(value, SequenceValue):
                raise UnsupportedOp(
                    f"the output '{output}' is a {value}: make its tensors outputs (SequenceAt), "
                    "or one tensor of them (ConcatFromSequence)"
                )
        outputs = self._with_counts(outputs)
        self._check_integers(outputs)
        updates = {variable: self.tensor(value) for variable, value in self._updates.items()}
        computed = {out for node in builder.nodes for out in node.outputs}
        output_names: dict[str, str] = {}
        for output, value in outputs.items():
            tensor = self.tensor(value)
            is_input = tensor == output and tensor in builder.inputs
            if not is_input and (tensor not in computed or tensor in output_names):
                builder.source = None
                tensor = builder.node("copy", [tensor], output)
            output_names[tensor] = output
        names = {**self._names, **output_names}
        builder.rename_all(names)
        unpruned = builder.any_graph(name or "graph", list(output_names.values())).with_(
            updates=tuple((variable, names.get(new, new)) for variable, new in updates.items()),
            unfused=tuple(names.get(tensor, tensor) for tensor in self._unfused),
        )
        return eliminate_dead_code(unpruned).with_(declarations=self.declarations)

    def _with_counts(self, outputs: Mapping[str, Value]) -> dict[str, Value]:
        """Returns the outputs, and for each counted axis of one the number of its elements.

        What lies behind the elements of an output becomes 0.
        """
        ends, counts = dict(outputs), dict[str, Value]()
        for output, value in outputs.items():
            axes = value.counts
            for axis, count in axes.items():
                name = f"{output}_count" if len(axes) == 1 else f"{output}_count{axis}"
                counts[self.builder.name(clean(name) or "count")] = count
                value = add_plain("keep_first", value, count, axis=axis, value=0.0)
            ends[output] = value
        return ends | counts


def counted_error(value: Value, axis: int, reason: str = "") -> UnsupportedOp:
    """Returns the error for an operator that cannot take a counted axis of an operand."""
    origin = current_import().origin_of(value.counts[axis])
    reason = reason or "the operator is not defined for such an axis"
    return UnsupportedOp(
        f"along axis {axis} of its input {value} the number of elements is known only at run time "
        f"({origin}), and {reason}: reduce or scatter the elements before it, compute with all of "
        "them and a mask (Where), or end the model before it, where session.run gives the result "
        "with its true length"
    )


def refuse_counted(value: Value, axes: Iterable[int], reason: str = "") -> None:
    """Raises the error of :func:`counted_error` if one of the axes is counted."""
    for axis in axes:
        if axis in value.counts:
            raise counted_error(value, axis, reason)


def _advice(bounds: Interval) -> str:
    shown = f"from {bounds.low:,} to {bounds.high:,}" if bounds.within(INT64) else "of any size"
    return (
        f"integers {shown}, and the network computes with their low 32 bits: bound them before "
        "(Clip, Mod, BitwiseAnd), or compute in int32 or uint32, which wrap around in ONNX too"
    )


#: operators whose results have as many elements as their operands' values say
_COUNTING = ("nonzero", "non_max_suppression")
