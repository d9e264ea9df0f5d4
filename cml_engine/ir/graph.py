"""A neural network as plain data: no operator knowledge, no GPU, no text.

Every pass takes a :class:`Graph` and returns one. Tensors are names. Each name has one
:class:`Fact` and is a graph input, a constant (with its value in ``constants``), or the output
of exactly one :class:`Node`. Nodes are in an order in which they can run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import isfinite, prod
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from cml_engine.errors import InputError, Source
from cml_engine.errors.arguments import ONLY_INPUT, check_shapes
from cml_engine.ir.limits import Limits

T = TypeVar("T")
#: a NumPy array of any shape and any type
Array: TypeAlias = np.ndarray[Any, Any]
#: a NumPy data type of any kind
DType: TypeAlias = np.dtype[Any]
#: a value of an operator's attribute or of a kernel's parameter
AttrValue: TypeAlias = "bool | int | float | str | np.generic | Array | None | Sequence[AttrValue]"
_log = logging.getLogger(__name__)
#: extents of inputs, by name
Shapes = Mapping[str, tuple[int, ...]]

#: The NumPy types of NNEF's three tensor types. The GPU uses the same, except that ``logical`` is
#: one byte in NumPy and a 32-bit word on the GPU.
NUMPY_DTYPE: Mapping[str, DType] = {
    "scalar": np.dtype(np.float32),
    "integer": np.dtype(np.int32),
    "logical": np.dtype(np.bool_),
}

#: NNEF's type of an array by its ``dtype.kind``
DTYPE_OF_KIND: Mapping[str, str] = {
    "f": "scalar",
    "i": "integer",
    "u": "integer",
    "b": "logical",
}


#: The most axes of a NumPy array, the largest extent, and the largest product of nonzero extents.
_MAX_RANK, _MAX_EXTENT, _MOST = 32, 2**31 - 1, 2**59


def can_be_shape(shape: Sequence[int]) -> bool:
    """Returns True if an array can have the shape on any machine, by its rank, extents and size.

    The limits also apply to empty arrays: NumPy refuses ``[0, 2**31, 2**31, 2**31]``.
    """
    if len(shape) > _MAX_RANK or any(not 0 <= n <= _MAX_EXTENT for n in shape):
        return False
    return prod(max(n, 1) for n in shape) <= _MOST


@dataclass(frozen=True, slots=True)
class Fact:
    """A tensor's type and shape, which are known before it is computed.

    ``dtype`` is NNEF's name of the type.

    Examples
    --------
    >>> fact = cml.ops.Fact("scalar", (1, 3, 8, 8))
    >>> fact.rank, fact.size, fact.nbytes
    (4, 192, 768)
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes on the GPU, where every element is a 32-bit word."""
        return 4 * self.size

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def fact_from(array: Array) -> Fact:
    """Returns the fact of an array: NNEF's type and the shape."""
    return Fact(DTYPE_OF_KIND[array.dtype.kind], array.shape)


def check_shape(name: str, fact: Fact, shape: tuple[int, ...]) -> None:
    """Raises :class:`InputError` if an array's shape differs from that of the input ``name``."""
    if shape != fact.shape:
        raise InputError(
            f"input '{name}': wanted shape {list(fact.shape)}, got {list(shape)}. Another shape "
            f"is another session: --shape {name}=..., in Python cml.load(..., shapes=) or "
            "session.reshaped"
        )


class Attrs(Mapping[str, Any]):
    """An operator's attributes, by key (``attrs["axes"]``) or by name (``attrs.axes``).

    Examples
    --------
    >>> attrs = cml.ops.Attrs(axes=[2, 3])
    >>> attrs["axes"], attrs.axes
    ([2, 3], [2, 3])
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object] | None = None, /, **named: object) -> None:
        object.__setattr__(self, "_values", {**(values or {}), **named})

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no attribute '{name}'; have {sorted(self._values)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Attrs is immutable")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self._values.items())

    def __reduce__(self) -> tuple[object, ...]:
        return Attrs, (self._values,)

    def with_(self, **changes: object) -> Attrs:
        """Returns a copy of the attributes with some of them added or replaced."""
        return Attrs(self, **changes)


class Quantization(Attrs):
    """The quantisation of a tensor: the operator (``attrs["op"]``) and its arguments by name.

    ``source`` is the line of ``graph.quant``, if it has one.
    """

    __slots__ = ("source",)
    source: Source | None

    def __init__(self, values: Mapping[str, object], source: Source | None = None) -> None:
        super().__init__(values)
        object.__setattr__(self, "source", source)

    def __reduce__(self) -> tuple[object, ...]:
        return Quantization, (self._values, self.source)


def place_of(attrs: Attrs) -> Source | None:
    """Returns the line of ``graph.quant`` that a quantisation comes from, or None."""
    return attrs.source if isinstance(attrs, Quantization) else None


@dataclass(frozen=True, slots=True)
class Epilogue:
    """An elementwise operator that is applied to a node's result before it is stored.

    ``inputs`` are the names of its other operands, such as the slopes of a PReLU or the other
    side of a residual. The result so far is the operand at ``position`` (None if it is not an
    operand). In a chain of elementwise operators, other operands may also be earlier results:
    ``own`` pairs their positions with the operators' numbers, 0 for the node's own operator.
    """

    op: str
    inputs: tuple[str, ...] = ()
    attrs: Attrs = field(default_factory=Attrs)
    position: int | None = 0
    own: tuple[tuple[int, int], ...] = ()

    def operands(self, input_values: Sequence[T], results: Sequence[T]) -> list[T]:
        """Returns all operands of the epilogue in order.

        ``operands`` are the values of ``inputs``; ``results`` are those of the node's operator and
        of the earlier epilogues.
        """
        positions = dict(self.own)
        if self.position is not None:
            positions[self.position] = len(results) - 1
        remaining = iter(input_values)
        count = len(input_values) + len(positions)
        return [results[positions[i]] if i in positions else next(remaining) for i in range(count)]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the graph: ``outputs = op(inputs, attrs)``, then its epilogues in order."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=Attrs)
    source: Source | None = None
    epilogues: tuple[Epilogue, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the tensors that the node reads, including the operands of its epilogues.

        A tensor that is read twice is listed twice.
        """
        return self.inputs + tuple(name for e in self.epilogues for name in e.inputs)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors that the node reads, then of those that it computes."""
        return self.reads + self.outputs

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of the operator and of its epilogues, in order."""
        return self.op, *(epilogue.op for epilogue in self.epilogues)

    @property
    def full_op(self) -> str:
        """The operator and the operators of its epilogues, joined by ``+``: ``conv+relu``."""
        return "+".join(self.ops)

    @property
    def title(self) -> str:
        """The operator and its first result, as in messages and tables: ``conv 'conv1'``."""
        return f"{self.op} '{self.outputs[0]}'" if self.outputs else self.op


@dataclass(frozen=True)
class Origin:
    """The model that a graph was loaded from, in memory, so that it can be reshaped.

    ``make`` evaluates the model at given input shapes; ``shapes`` are the shapes that were given
    so far.
    """

    make: Callable[[Shapes], Graph]
    shapes: Shapes = field(default_factory=dict)

    def at(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """Evaluates the model at the given input shapes, by name, and returns the graph.

        Inputs that are not named keep the shapes given before, or else the model's own.
        """
        all_shapes = {**self.shapes, **check_shapes(shapes)}
        start = time.perf_counter()
        graph = self.make(all_shapes)
        ms = 1e3 * (time.perf_counter() - start)
        _log.info("'%s' is loaded: %d operators, %.0f ms", graph.name, len(graph.nodes), ms)
        if ONLY_INPUT in all_shapes and ONLY_INPUT not in graph.inputs:
            all_shapes[graph.inputs[0]] = all_shapes.pop(ONLY_INPUT)
        return graph.with_(origin=Origin(self.make, all_shapes))


class CookedForm(Protocol):
    """The data of a cooked file for its graph: the passes have run, and it may have plans."""

    def plan(self, limits: Limits, storage: str, plain: bool, lower: Callable[[], T]) -> T:
        """Returns the file's plan for a device, or the result of ``lower`` if the file has none.

        ``lower`` plans the graph. ``plain`` is True if all options except ``storage`` and
        ``tuned`` have their defaults.
        """
        ...

    def check_cpu(self) -> None:
        """Raises :class:`CmlError` if the file lacks data that a run in NumPy needs."""
        ...

    @property
    def integer_digest(self) -> bytes | None:
        """The digest of the integer network that the file was cooked from.

        It is None for other networks.
        """
        ...


#: the value of a slider: a number, a truth value, or a list of them
SliderValue = float | bool | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Slider:
    """A value of the model that a host changes at run time: a number, a truth value, or a list.

    ``place`` such as ``"mul3.y"`` is the operand or attribute ``y`` of the operator whose result
    is ``mul3``. A panel offers the range ``low`` to ``high``; other values are accepted too. With
    ``choices``, the values of words, it offers a list, and a host may give a word. ``default`` is
    the value in the model.

    Examples
    --------
    >>> cml.Slider("mul3.y", low=0.0, high=2.0, default=1.0).default
    1.0
    >>> cml.Slider("noise.seed", choices={"calm": 3, "wild": 8}).choices["wild"]
    8
    """

    place: str
    low: float = 0.0
    high: float = 1.0
    description: str = ""
    default: SliderValue = 0.0
    choices: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place: object = self.place
        if not isinstance(place, str) or not place.rpartition(".")[0]:
            raise InputError(
                f"a slider's place is {self.place!r}, wanted a result and its operator's operand "
                "or attribute, such as 'mul3.y'"
            )
        if not isinstance(self.choices, Mapping):
            raise InputError(
                f"slider '{self.place}': choices is {self.choices!r}, wanted words with their "
                "values, such as {'soft': 0.5, 'hard': 2}"
            )
        numbers: list[object] = [self.low, self.high, *self.choices.values()]
        for number in numbers:
            if not isinstance(number, int | float) or not isfinite(number):
                raise InputError(f"slider '{self.place}': {number!r} is not a finite number")

    def samples(self) -> list[SliderValue]:
        """Returns values of each extreme: those of the choices, or the ends of the range."""
        is_integer = isinstance(self.default, int) and not isinstance(self.default, bool)
        ends = (False, True) if isinstance(self.default, bool) else (self.low, self.high)
        values = [int(v) if is_integer else v for v in (*self.choices.values(),) or ends]
        if isinstance(self.default, tuple):
            return [(v,) * len(self.default) for v in values]
        return list(values)


@dataclass(frozen=True, repr=False)
class Graph:
    """A network: inputs and outputs by name, constants by value, nodes in execution order.

    Parameters
    ----------
    labels : the file labels of constants that came from ``variable``.
    updates : pairs of a variable and the tensor that becomes its value after a run (NNEF
        ``update``).
    sources : the positions at which inputs and constants are declared.
    quantization : the entry of ``graph.quant`` for a tensor: its operator as ``attrs["op"]``, and
        the operator's arguments.
    integer : the version of the integer rule of an integer network (docs/integer.md); 0 for a
        float network. The quantized constants of an integer network are the stored integers.
    float_tail : operators without an integer form, and operators that depend on them, are computed
        in floats.
    words : the tensors that hold integers only, each with its smallest and largest value.
    input_ranges : the smallest and largest value that a run may give to an integer input, where
        they are not those of int32.
    declarations : the fragment declarations of operators that are not NNEF's own.
    notes : messages for people, such as a converter's.
    taps : tensors that are read after a run although they are not outputs, each with the name of
        the tensor that has its value (itself before the passes).
    unfused : tensors whose operators no pass may fuse with their consumers.
    origin : evaluates a loaded graph at other shapes. A graph that was changed or pickled has none.
    cooked_form : the cooked form of the graph. A graph that was changed or pickled has none.

    Examples
    --------
    >>> graph.inputs, graph.outputs
    (('image',), ('out',))
    >>> graph.facts["out"].shape
    (1, 4, 8, 8)
    >>> graph.reshaped({"image": [1, 3, 16, 16]}).facts["out"].shape
    (1, 4, 16, 16)
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    facts: Mapping[str, Fact]
    constants: Mapping[str, Array] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    updates: tuple[tuple[str, str], ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    quantization: Mapping[str, Attrs] = field(default_factory=dict)
    declarations: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    taps: Mapping[str, str] = field(default_factory=dict)
    unfused: tuple[str, ...] = ()
    integer: int = 0
    float_tail: bool = False
    words: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    input_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: inputs with a default, which a run may omit, by name
    sliders: Mapping[str, Slider] = field(default_factory=dict)
    #: the values in the file of inputs that a run may omit, by name
    defaults: Mapping[str, Array] = field(default_factory=dict)
    #: constants that the file declares as inputs too: ``cml.load(..., inputs=)`` makes them inputs
    optional: frozenset[str] = frozenset()
    origin: Origin | None = field(default=None, compare=False)
    cooked_form: CookedForm | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        inputs, outputs = (
            ", ".join(f"{name} {self.facts.get(name)}" for name in names)
            for names in (self.inputs, self.outputs)
        )
        return f"<Graph '{self.name}', {len(self.nodes)} nodes: {inputs} -> {outputs}>"

    def with_(self, **changes: Any) -> Graph:
        """Returns a copy with some fields changed.

        ``origin`` and ``cooked_form`` become None unless they are given.
        """
        return replace(self, **{"origin": None, "cooked_form": None, **changes})

    def reshaped(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """Returns the same model at other shapes of its inputs, by name.

        The model is evaluated again in memory, so everything that it derives from shapes is as
        if it had been loaded with them. Weights are shared. Raises :class:`InputError` for a
        graph that ``cml.load`` did not return, and :class:`ModelError` if the network does not
        support the shapes.
        """
        if self.origin is None:
            raise InputError(
                f"'{self.name}' does not know how it was loaded: only a graph as cml.load gives it "
                "has other shapes. Load it with shapes=, or reshape it before it is changed"
            )
        return self.origin.at(shapes)

    def __getstate__(self) -> dict[str, object]:
        """Returns the state to pickle, without ``origin`` and ``cooked_form``.

        They contain open files and functions.
        """
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**state, "origin": None, "cooked_form": None}

    @property
    def persistent(self) -> tuple[str, ...]:
        """The names of the tensors that are read after a run.

        They are the outputs, the new values of variables, and the values of ``taps``.
        """
        updates = tuple(value for _, value in self.updates)
        return self.outputs + updates + tuple(self.taps.values())

    @property
    def roots(self) -> tuple[str, ...]:
        """The tensors that passes must preserve: :attr:`persistent` and ``unfused``."""
        return self.persistent + self.unfused

    @cached_property
    def consumers(self) -> Mapping[str, list[Node]]:
        """The nodes that read each tensor, by its name, in execution order.

        A node that reads a tensor twice is listed once. A tensor that no node reads is missing.
        """
        result: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                result.setdefault(name, []).append(node)
        return result

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that computes each tensor, by the tensor's name, in execution order."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def _preserved(self) -> frozenset[str]:
        return frozenset(self.roots)

    def is_read_once(self, name: str) -> bool:
        """Returns True if one node reads a tensor, and passes need not preserve it."""
        return len(self.consumers.get(name, ())) == 1 and name not in self._preserved

    def facts_of(self, names: Iterable[str]) -> list[Fact]:
        """Returns the types and shapes of tensors, in the order of their names."""
        return [self.facts[name] for name in names]

    @property
    def ops(self) -> set[str]:
        """The names of all operators, including those of epilogues."""
        return {op for node in self.nodes for op in node.ops}

    def constant(self, name: str) -> Array | None:
        """Returns the value of a constant that no ``update`` writes, otherwise None."""
        return self.constants[name] if self.is_constant(name) else None

    def is_constant(self, name: str) -> bool:
        """Returns True if a tensor's value never changes: a constant that no ``update`` writes."""
        return name in self.constants and all(name != variable for variable, _ in self.updates)


def ancestors(nodes: Sequence[Node], names: Iterable[str]) -> tuple[list[Node], set[str]]:
    """Returns the nodes that tensors depend on, in execution order, and the names of the tensors
    and of all that these nodes read."""
    found, needed = list[Node](), set(names)
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.reads)
            found.append(node)
    return found[::-1], needed


def is_whole(value: object) -> bool:
    """Returns True if the value is an integer and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def unused_name(name: str, *taken: Container[str]) -> str:
    """Returns the name with underscores appended until it is in none of ``taken``."""
    while any(name in names for names in taken):
        name += "_"
    return name


def numbered_name(name: str, is_taken: Callable[[str], bool]) -> str:
    """Returns the name if it is free, otherwise the first free one of ``name_2``, ``name_3``, …"""
    candidate, count = name, 1
    while is_taken(candidate):
        count += 1
        candidate = f"{name}_{count}"
    return candidate
