"""A neural network as plain data: no operator knowledge, no GPU, no text.

A :class:`Graph` is what every pass takes and returns. Tensors are names; a name has one
:class:`Fact`, and is either a graph input, a constant (its values are in ``constants``), or the
output of exactly one :class:`Node`. Nodes stand in an order in which they can run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from cml_engine.errors import InputError, Source
from cml_engine.errors.arguments import ONLY_INPUT, shapes_by_name
from cml_engine.ir.limits import Limits

T = TypeVar("T")
#: a NumPy array of any shape and any type
Array: TypeAlias = np.ndarray[Any, Any]
_log = logging.getLogger(__name__)
#: extents of inputs, by name
Shapes = Mapping[str, tuple[int, ...]]

#: NNEF's three tensor types and how they lie in memory, on the CPU and on the GPU alike but for
#: ``logical``, which is one byte in NumPy and a 32-bit word on the GPU.
NUMPY_DTYPE: Mapping[str, np.dtype[Any]] = {
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


#: Axes of NumPy's arrays, the largest extent, and the product of all extents that are not 0.
_MAX_RANK, _MAX_EXTENT, _MOST = 32, 2**31 - 1, 2**59


def can_be_shape(shape: Sequence[int]) -> bool:
    """Returns True if an array can have the shape, whatever machine it is on. An empty one counts
    too: NumPy refuses ``[0, 2**31, 2**31, 2**31]``."""
    if len(shape) > _MAX_RANK or any(not 0 <= n <= _MAX_EXTENT for n in shape):
        return False
    return prod(max(n, 1) for n in shape) <= _MOST


@dataclass(frozen=True, slots=True)
class Fact:
    """The properties of a tensor that are known before it is computed: ``dtype`` (NNEF's name)
    and ``shape``."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU, where every element is a 32-bit word."""
        return 4 * self.size

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def check_shape(name: str, fact: Fact, shape: tuple[int, ...]) -> None:
    """Raises :class:`InputError` if the input ``name`` cannot take an array of that shape."""
    if shape != fact.shape:
        raise InputError(
            f"input '{name}': wanted shape {list(fact.shape)}, got {list(shape)}. Another shape "
            f"is another session: --shape {name}=..., in Python cml.load(..., shapes=) or "
            "session.reshaped"
        )


class Attrs(Mapping[str, Any]):
    """An operator's attributes, by key (``attrs["axes"]``) or by name (``attrs.axes``)."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        object.__setattr__(self, "_values", {**(values or {}), **named})

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no attribute '{name}'; have {sorted(self._values)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("Attrs is immutable")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self._values.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return Attrs, (self._values,)


class Quantization(Attrs):
    """The quantisation of a tensor: the operator (``op``) and its arguments.

    ``source`` is the line of ``graph.quant``, if it has one.
    """

    __slots__ = ("source",)
    source: Source | None

    def __init__(self, values: Mapping[str, Any], source: Source | None = None) -> None:
        super().__init__(values)
        object.__setattr__(self, "source", source)

    def __reduce__(self) -> tuple[Any, ...]:
        return Quantization, (self._values, self.source)


def place_of(attrs: Attrs) -> Source | None:
    """Returns the source line of a quantisation; None if it has none."""
    return attrs.source if isinstance(attrs, Quantization) else None


@dataclass(frozen=True, slots=True)
class Epilogue:
    """An elementwise operator done on a producer's result before it is stored.

    ``inputs`` are the names of its other operands (a PReLU's slopes, a residual's other side);
    the result so far is the operand at ``position`` (None: it is no operand). In a chain of
    elementwise operators more operands may be results of operators before: ``own`` pairs their
    positions with the operators' numbers, 0 for the node's own.
    """

    op: str
    inputs: tuple[str, ...] = ()
    attrs: Attrs = field(default_factory=Attrs)
    position: int | None = 0
    own: tuple[tuple[int, int], ...] = ()

    def operands(self, others: Sequence[T], results: Sequence[T]) -> list[T]:
        """All operands in order: ``others`` stand for ``inputs``, ``results`` for the results of
        the node's operator and of the epilogues before."""
        places = dict(self.own)
        if self.position is not None:
            places[self.position] = len(results) - 1
        rest = iter(others)
        count = len(others) + len(places)
        return [results[places[i]] if i in places else next(rest) for i in range(count)]


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
        """Every tensor it needs, its epilogues' operands included."""
        return self.inputs + tuple(name for e in self.epilogues for name in e.inputs)

    @property
    def full_op(self) -> str:
        """The operator and those fused to it: ``conv+relu``."""
        return "+".join((self.op, *(epilogue.op for epilogue in self.epilogues)))

    @property
    def title(self) -> str:
        """The operator and its first result, as messages and tables show it: ``conv 'conv1'``."""
        return f"{self.op} '{self.outputs[0]}'" if self.outputs else self.op


@dataclass(frozen=True)
class Origin:
    """The model that a graph was loaded from, in memory: ``make`` evaluates it at given shapes of
    its inputs, and ``shapes`` are those that were given so far."""

    make: Callable[[Shapes], Graph]
    shapes: Shapes = field(default_factory=dict)

    def at(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """The graph at these shapes. Inputs that are not named have the shapes that were given
        before, or else those that the model says."""
        given = {**self.shapes, **shapes_by_name(shapes)}
        start = time.perf_counter()
        graph = self.make(given)
        ms = 1e3 * (time.perf_counter() - start)
        _log.info("'%s' is loaded: %d operators, %.0f ms", graph.name, len(graph.nodes), ms)
        if ONLY_INPUT in given and ONLY_INPUT not in graph.inputs:
            given[graph.inputs[0]] = given.pop(ONLY_INPUT)
        return graph.with_(origin=Origin(self.make, given))


class Ready(Protocol):
    """The prepared form of a graph from a cooked file: its passes have run, and it may have
    plans."""

    def plan(self, limits: Limits, storage: str, plain: bool, lower: Callable[[], T]) -> T:
        """The plan for a device; ``lower`` makes one of the graph. ``plain``: nothing was asked
        for but how things are stored."""
        ...

    def check_cpu(self) -> None:
        """:class:`CmlError` where it does not have what NumPy needs."""
        ...

    @property
    def integer_digest(self) -> bytes | None:
        """Digest of the integer network that it was made of; None where that was none."""
        ...


@dataclass(frozen=True, slots=True)
class Slider:
    """A number of the model that a host moves: ``place`` is ``"mul3.y"``, the operand ``y`` of the
    operator whose result is ``mul3``. ``low`` to ``high`` is what a panel offers; other values are
    taken too. ``default`` is the number in the model."""

    place: str
    low: float = 0.0
    high: float = 1.0
    description: str = ""
    default: float = 0.0


@dataclass(frozen=True)
class Graph:
    """A network: inputs and outputs by name, constants by value, nodes in running order.

    ``labels`` maps the constants that came from ``variable`` to their file's label. ``updates``
    pairs a variable with the tensor that becomes its value after a run (NNEF ``update``).
    ``sources`` says where an input or constant was declared. ``quantization`` holds what a
    ``graph.quant`` says of a tensor (its operator as ``attrs["op"]``, and that one's arguments).
    ``integer`` is the version of the rule by which an integer network is computed
    (docs/integer.md), 0 for one of floats; its quantized constants are the stored integers.
    With ``float_tail`` what has no integer form is computed in floats, and so is what reads it.
    ``words`` are the tensors that hold whole numbers only, each with the least and the largest.
    ``declarations`` has the fragment declarations of operators that are not NNEF's own. ``notes``
    are lines for people: what a converter did. ``kept`` are tensors that somebody reads after a
    run though they are no outputs: no pass may make them part of another operator. ``apart`` are
    tensors whose operators no pass may join to those that read them. ``origin`` makes a graph
    that was loaded anew at other shapes, ``ready`` is what was cooked of it; a graph that was
    changed since, or pickled, has none.
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
    kept: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    integer: int = 0
    float_tail: bool = False
    words: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: inputs that may be left out, by name
    sliders: Mapping[str, Slider] = field(default_factory=dict)
    origin: Origin | None = field(default=None, compare=False, repr=False)
    ready: Ready | None = field(default=None, compare=False, repr=False)

    def with_(self, **changes: Any) -> Graph:
        """A copy with some fields changed."""
        return replace(self, **{"origin": None, "ready": None, **changes})

    def reshaped(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """The same model at other shapes of its inputs, by name: evaluated anew from memory, so
        what it computes from shapes is as if it had been loaded with them. Weights are shared.
        :class:`ModelError` where the network cannot have such shapes."""
        if self.origin is None:
            raise InputError(
                f"'{self.name}' does not know how it was loaded: only a graph as cml.load gives it "
                "has other shapes. Load it with shapes=, or reshape it before it is changed"
            )
        return self.origin.at(shapes)

    def __getstate__(self) -> dict[str, Any]:
        """Without what holds open files and functions."""
        return {**self.__dict__, "origin": None, "ready": None}

    @property
    def lasting(self) -> tuple[str, ...]:
        """The tensors that are read when a run is over: outputs, the new values of variables, and
        what is kept."""
        return self.outputs + tuple(value for _, value in self.updates) + self.kept

    @property
    def roots(self) -> tuple[str, ...]:
        """The tensors that must be computed by their names."""
        return self.lasting + self.apart

    def consumers(self) -> dict[str, list[Node]]:
        """For each tensor, the nodes that read it (a node that reads it twice is listed once)."""
        result: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                result.setdefault(name, []).append(node)
        return result

    def is_constant(self, name: str) -> bool:
        """True where the value never changes: a constant that no ``update`` writes."""
        return name in self.constants and all(name != variable for variable, _ in self.updates)


def is_whole(value: Any) -> bool:
    """Returns True if the value is an integer; a truth value is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def unused_name(name: str, *taken: Container[str]) -> str:
    """The name, with underscores behind it until none of ``taken`` has it."""
    while any(name in names for names in taken):
        name += "_"
    return name


def numbered_name(name: str, is_taken: Callable[[str], bool]) -> str:
    """The name, or where that is taken the first that is free of ``name_2``, ``name_3``, …"""
    found, count = name, 1
    while is_taken(found):
        count += 1
        found = f"{name}_{count}"
    return found
