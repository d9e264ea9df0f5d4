"""One node of the engine's graph while it is exported, and the table of the export rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from cml_engine.errors import UnsupportedOp
from cml_engine.errors.arguments import ONNX_OPSET
from cml_engine.formats.expression import TensorExpression
from cml_engine.formats.onnx.export.wire import ELEMENTS, OutNode
from cml_engine.formats.onnx.same_operators import ARITHMETIC, SIGNED, onnx_names
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, AttrValue, Fact, Node, numbered_name

_OF_ARITHMETIC = onnx_names(ARITHMETIC, SIGNED)

#: the default opset: runtimes of the last two years read it
DEFAULT_OPSET = 20


class ConstantStore(Protocol):
    """A function that stores an array as a constant of the ONNX file and returns its name.

    The constant is an initializer or a node of a local function. Its name is ``name`` if that is
    free.
    """

    def __call__(self, array: Array, name: str = "") -> str: ...


@dataclass(frozen=True, slots=True)
class ExportOperand:
    """A tensor that a node reads.

    ``value`` is set if the tensor is the same in every run. ``stored`` is True if a tensor of
    that name is already in the file.
    """

    name: str
    fact: Fact
    value: Array | None = None
    stored: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ExportTensor(TensorExpression["float | None"]):
    """A tensor of the ONNX file, whose methods are the operators of ONNX: ``x * x.Sigmoid()``.

    Its nodes are ONNX's, and not those of a graph. Operands that are numbers become constants, of
    float32 or int32.
    """

    call: ExportCall
    name: str

    def apply(self, op: str, *operands: Input, **attrs: AttrValue) -> ExportTensor:
        return self.call.add(_OF_ARITHMETIC.get(op, op), *operands, **attrs)

    def __lt__(self, other: Input) -> ExportTensor:
        return self.Less(other)

    def __gt__(self, other: Input) -> ExportTensor:
        return self.Greater(other)

    def __ge__(self, other: Input) -> ExportTensor:
        return self.GreaterOrEqual(other)

    def __and__(self, other: Input) -> ExportTensor:
        return self.And(other)

    def __or__(self, other: Input) -> ExportTensor:
        return self.Or(other)

    def reshape(self, shape: Sequence[int]) -> ExportTensor:
        # without allowzero 0 means the input's extent
        zero = 1 if 0 in shape else None
        if zero:
            self.call.require_opset(14, "a shape with an extent of 0")
        return self.Reshape(self.call.indices(*shape), allowzero=zero)

    def cast(self, dtype: str) -> ExportTensor:
        """Adds a cast to ``dtype``, a type of NNEF or of NumPy, and returns the result."""
        name = NUMPY_DTYPE[dtype].name if dtype in NUMPY_DTYPE else dtype
        return self.Cast(to=ELEMENTS[name])

    def transpose(self, axes: Sequence[int]) -> ExportTensor:
        if list(axes) == list(range(len(axes))):
            return self
        return self.Transpose(perm=[int(axis) for axis in axes])

    def unsqueeze(self, *axes: int) -> ExportTensor:
        return self.Unsqueeze(self.call.indices(*axes))

    def squeeze(self, *axes: int) -> ExportTensor:
        return self.Squeeze(self.call.indices(*axes))

    def gather(self, indices: Array, axis: int) -> ExportTensor:
        """Adds a gather by known indices along an axis and returns the result."""
        return self.Gather(self.call.constant(indices.astype(np.int64)), axis=axis)

    def slice(self, ranges: Mapping[int, tuple[int, int, int]]) -> ExportTensor:
        """Adds a slice; ``ranges`` gives the first index, the count and the step by axis."""
        if not ranges:
            return self
        firsts, counts, steps = zip(*ranges.values(), strict=True)
        ends = [f + n * s for f, n, s in zip(firsts, counts, steps, strict=True)]
        lasts = [np.iinfo(np.int64).min if end < 0 else end for end in ends]
        inputs = (firsts, lasts, tuple(ranges), steps)
        return self.Slice(*(self.call.indices(*values) for values in inputs))

    def reduce(self, op: str, axes: Sequence[int], keepdims: bool = True) -> ExportTensor:
        """Adds the reduction ``op`` over the given axes and returns the result.

        The axes are an attribute before opset 18, but always an input of ReduceSum.
        """
        axes = [int(axis) for axis in axes]
        if op == "ReduceSum" or self.call.opset >= 18:
            return self.call.add(op, self, self.call.indices(*axes), keepdims=int(keepdims))
        return self.call.add(op, self, axes=axes, keepdims=int(keepdims))


#: an input of a node: a tensor, a number that becomes a constant, or None for an omitted one
Input: TypeAlias = ExportTensor | float | None
#: adds the nodes of one operator and returns its results
Form = Callable[["ExportCall"], ExportTensor | Sequence[ExportTensor]]
F = TypeVar("F", bound=Form)


@dataclass(kw_only=True)
class ExportCall:
    """One node of the engine's graph during export: its operands and the types of its results.

    The export function of the node's operator gets it as its argument. ``nodes`` are the ONNX nodes
    that are added so far.
    """

    node: Node
    operands: Sequence[ExportOperand]
    results: Sequence[Fact]
    opset: int
    constants: ConstantStore
    prefix: str = ""
    reserved: set[str] = field(default_factory=set)
    nodes: list[OutNode] = field(default_factory=list)
    #: True in an integer network, which has neither NaN nor -0
    is_integer: bool = False

    # -- what is exported -------------------------------------------------------------------------

    @property
    def attrs(self) -> Attrs:
        return self.node.attrs

    @property
    def x(self) -> ExportTensor:
        """The first operand."""
        return self.tensor(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first operand."""
        return self.fact(0).shape

    @property
    def is_empty(self) -> bool:
        """True if the first operand has no elements."""
        return self.fact(0).size == 0

    @property
    def axis(self) -> int:
        """The attribute of that name."""
        return int(self.attrs.axis)

    @property
    def out(self) -> Fact:
        """The type and shape of the first result."""
        return self.results[0]

    def fact(self, position: int) -> Fact:
        return self.operands[position].fact

    def value(self, position: int) -> Array | None:
        """Returns an operand's values, or None if they are only known at run time."""
        return self.operands[position].value

    def tensor(self, position: int, shape: Sequence[int] | None = None) -> ExportTensor:
        """Returns an operand's ONNX tensor, reshaped if a shape is given.

        A constant operand is stored in the file first.
        """
        return self.use(self.operands[position], shape)

    def use(self, operand: ExportOperand, shape: Sequence[int] | None = None) -> ExportTensor:
        """Returns an operand's ONNX tensor as :meth:`tensor` does."""
        result_shape = operand.fact.shape if shape is None else tuple(shape)
        if operand.value is not None and not operand.stored:
            return self.constant(operand.value.reshape(result_shape), operand.name)
        tensor = ExportTensor(self, operand.name)
        return tensor if result_shape == operand.fact.shape else tensor.reshape(result_shape)

    def per_channel(self, position: int, channels: int) -> ExportTensor:
        """Returns an operand as a vector; a single value is repeated for every channel."""
        value, size = self.value(position), self.fact(position).size
        if size == channels:
            return self.tensor(position, (channels,))
        if value is not None:
            return self.constant(np.full(channels, value, np.float32))
        return self.tensor(position, (1,)).Expand(self.indices(channels))

    @property
    def tensors(self) -> list[ExportTensor]:
        return [self.tensor(i) for i in range(len(self.operands))]

    def aligned(self) -> list[ExportTensor]:
        """Returns all operands with axes of 1 appended up to the largest rank.

        NNEF aligns shapes from the left, ONNX from the right.
        """
        facts = [operand.fact for operand in self.operands]
        rank = max(fact.rank for fact in facts)
        return [
            self.tensor(i, (*fact.shape, *[1] * (rank - fact.rank)))
            if fact.rank
            else self.tensor(i)
            for i, fact in enumerate(facts)
        ]

    # -- what is added ----------------------------------------------------------------------------

    def add(self, op: str, *inputs: Input, **attributes: AttrValue) -> ExportTensor:
        """Adds a node with one result and returns the result."""
        return self.split(op, *inputs, n_results=1, **attributes)[0]

    def split(
        self, op: str, *inputs: Input, n_results: int, **attributes: AttrValue
    ) -> list[ExportTensor]:
        """Adds a node with ``n_results`` results and returns them.

        Attributes of None are left out.
        """
        names = tuple(self.new_name(op) for _ in range(n_results))
        stated_attributes = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(OutNode(op, tuple(map(self._input, inputs)), names, stated_attributes))
        return [ExportTensor(self, name) for name in names]

    def new_name(self, op: str) -> str:
        """Returns an unused name for a result of ``op``, and reserves it."""
        name = numbered_name(f"{self.prefix}{op}", self.reserved.__contains__)
        self.reserved.add(name)
        return name

    def _input(self, x: Input) -> str:
        if x is None:
            return ""
        return x.name if isinstance(x, ExportTensor) else self.number(x).name

    def constant(self, array: Array, name: str = "") -> ExportTensor:
        return ExportTensor(self, self.constants(array, name))

    def number(self, value: float) -> ExportTensor:
        """Adds a constant, of int32 for an integer and of float32 for other numbers."""
        return self.constant(np.array(value, np.int32 if isinstance(value, int) else np.float32))

    def indices(self, *values: int) -> ExportTensor:
        """Adds an int64 list, the type of ONNX's shapes and axes."""
        return self.constant(np.array(values, np.int64))

    def fill(self, value: object, fact: Fact | None = None) -> ExportTensor:
        """Adds a constant tensor with the same value everywhere.

        Its type and shape are ``fact``, or those of the first result.
        """
        fact = fact or self.out
        return self.constant(np.full(fact.shape, value, NUMPY_DTYPE[fact.dtype]))

    def require_opset(self, opset: int, feature: str) -> None:
        """Raises :class:`UnsupportedOp` if the model's opset is below ``opset``.

        ``feature`` is the feature that needs ``opset``, for the message.
        """
        if self.opset < opset:
            raise UnsupportedOp(
                f"{self.node.title}: {feature} needs opset {opset}, and {self.opset} is asked for: "
                f"give --opset {opset} (opset={opset})",
                self.node.source,
            )

    def unsupported_error(self, reason: str) -> UnsupportedOp:
        return UnsupportedOp(f"{self.node.title} has no ONNX form: {reason}", self.node.source)

    def write(self, rule: ExportRule, names: Sequence[str]) -> list[OutNode]:
        """Exports the node by its rule; returns the ONNX nodes, with results called ``names``."""
        if self.opset < rule.since:
            self.require_opset(rule.since, "its ONNX form")
        is_filled = rule.empty is not None and self.is_empty
        converted = self.fill(rule.empty) if is_filled else rule.convert(self)
        computed_names = {
            name for node in self.nodes if node.op != "Constant" for name in node.outputs
        }
        result_names: dict[str, str] = {}
        results = [converted] if isinstance(converted, ExportTensor) else converted
        for result, name in zip(results, names, strict=True):
            if result.name in computed_names and result.name not in result_names:
                result_names[result.name] = name
            else:
                self.nodes.append(OutNode("Identity", (result.name,), (name,)))
        return [
            replace(
                node,
                inputs=tuple(result_names.get(name, name) for name in node.inputs),
                outputs=tuple(result_names.get(name, name) for name in node.outputs),
            )
            for node in self.nodes
        ]


# -- the rules -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExportRule:
    """The rule that exports one operator: the function ``convert`` that adds its ONNX nodes.

    ``onnx`` describes the nodes for the documentation. With
    ``function`` the nodes are put into a local function, and the graph has one node that calls
    it. ``since`` is the lowest opset. ``empty`` is the value of the results if the first operand
    has no elements; None leaves that case to ``convert``.
    """

    convert: Form
    onnx: str = ""
    function: bool = False
    since: int = ONNX_OPSET.low
    empty: float | None = None


_ROWS: dict[str, ExportRule] = {}


def rule(
    *names: str,
    onnx: str,
    function: bool = False,
    since: int = ONNX_OPSET.low,
    empty: float | None = None,
) -> Callable[[F], F]:
    """Returns a decorator that registers a function as the export rule of the named operators."""

    def declare(convert: F) -> F:
        for name in names:
            if name in _ROWS:
                raise ValueError(f"two rows for {name}")
            _ROWS[name] = ExportRule(convert, onnx, function, since, empty)
        return convert

    return declare


@cache
def load_export_rules() -> Mapping[str, ExportRule]:
    """Returns the export rules of all operators, by the operator's name."""
    from cml_engine.formats.onnx.export import operators

    for family in iter_modules(operators.__path__):
        import_module(f"{operators.__name__}.{family.name}")
    return _ROWS
