"""Adds nodes for calls, and constants for literals, to the graph under construction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from cml_engine.errors import ModelError, ShapeError, Source, UnsupportedOp
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.construction import GraphConstruction, Infer
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, AttrValue, Node, fact_from
from cml_engine.ir.single_value import stored_bytes
from cml_engine.nnef.expansion.signatures import BoundArguments, Signature
from cml_engine.nnef.expansion.values import TensorRef, Value, describe, kind_of, leaves
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.syntax_tree import Type

#: The microseconds to make a node.
_NODE_STEPS = 30

_INT32 = 2**31


class Exact(str):
    """A tensor name that the graph's body assigns, which the tensor must get.

    A target that is a plain ``str`` is only a suggestion.
    """

    __slots__ = ()


Target: TypeAlias = "str | tuple[Target, ...] | None"


@dataclass
class Scope:
    """The names that expressions can read, with their values.

    It is the scope of the graph's body, or of one fragment's expansion.
    """

    text: SourceText
    names: dict[str, Value] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    #: The site of the call in the model; None in the graph's own body.
    caller: Source | None = None
    chain: tuple[str, ...] = ()
    prefix: str = ""
    #: True for the standard library's fragments, whose lines the user cannot change.
    standard: bool = False
    #: The type that ``?`` stands for in a generic fragment's body.
    dtype: str | None = None

    def source(self, pos: int) -> Source:
        """Returns the line of the model for an offset of the text.

        In a fragment's body it is the line of the call in the graph's body.
        """
        return self.text.at(pos) if self.caller is None else self.caller

    def error(self, error_type: type[ModelError], message: str, pos: int) -> ModelError:
        """Returns an error of type ``error_type`` at an offset.

        In a fragment's body it names the fragment.
        """
        if self.caller is None:
            return error_type(message, self.text.at(pos))
        if self.standard:
            return error_type(f"in the body of '{self.chain[-1]}': {message}", self.caller)
        located_message = f"{message} (in fragment '{self.chain[-1]}', called at {self.caller})"
        return error_type(located_message, self.text.at(pos))


@dataclass(frozen=True, slots=True)
class Site:
    """The place of an operator's call: its scope, offset in the text, and the results' names."""

    scope: Scope
    pos: int
    target: Target = None

    @property
    def source(self) -> Source:
        return self.scope.source(self.pos)


def spread(target: Target, count: int) -> list[Target]:
    """Returns the names of the ``count`` parts of an array or tuple that is assigned to ``target``.

    A single name is numbered from ``_1`` on. Without names all parts get None.
    """
    if isinstance(target, tuple) and len(target) == count:
        return list(target)
    if isinstance(target, str):
        return [f"{target}_{i + 1}" for i in range(count)]
    return [None] * count


class NodeBuilder(GraphConstruction):
    """The graph that NNEF text is evaluated to, whose tensors the text's assignments name."""

    def __init__(self, infer: Infer | None) -> None:
        super().__init__(infer)
        self._taken: set[str] = set()
        self._counters: dict[str, int] = {}
        self._budget = current_budget()

    # -- names ----------------------------------------------------------------------------------

    def reserve(self, names: Iterable[str]) -> None:
        """Reserves the names that the graph's body assigns, so that no other tensor gets them."""
        self._taken.update(names)

    def tensor_name(self, target: Target, fallback: str) -> str:
        """Returns the name of a new tensor.

        It is ``target`` if the graph assigns it, else an unused name made from ``target`` or
        ``fallback``.
        """
        if isinstance(target, Exact):
            return str(target)
        if isinstance(target, str) and target not in self._taken:
            self._taken.add(target)
            return target
        return self._numbered(target if isinstance(target, str) else fallback)

    def _numbered(self, base: str) -> str:
        stem = f"{base}_" if base[-1:].isdigit() else base
        count = self._counters.get(stem, 0) + 1
        while f"{stem}{count}" in self._taken:
            count += 1
        self._counters[stem] = count
        self._taken.add(f"{stem}{count}")
        return f"{stem}{count}"

    # -- constants ------------------------------------------------------------------------------

    def tensor(self, value: Value, site: Site) -> TensorRef:
        """Returns a value as a tensor; numbers become constants.

        A single number becomes a rank-0 constant named by its text.
        """
        if isinstance(value, TensorRef):
            return value
        if isinstance(value, list):
            return self._nested(value, site)
        dtype = kind_of(value)
        if dtype not in NUMPY_DTYPE:
            raise ShapeError(f"wanted a tensor, got {describe(value)}")
        array = literal_array(value, dtype)
        name = literal_name(array)
        if name not in self.constants:
            self.add_constant(name, array, site.source)
        return TensorRef(name, dtype)

    def _nested(self, value: list[Value], site: Site) -> TensorRef:
        """Adds nested lists of numbers as a constant and returns its tensor.

        Raises an error if rows differ in length or numbers in type.
        """
        dtypes = {kind_of(leaf) for leaf in leaves(value)}
        shape = shape_of_numbers(value)
        if len(dtypes) != 1 or not dtypes <= NUMPY_DTYPE.keys() or shape is None:
            raise ShapeError(f"wanted a tensor, or numbers in even rows, got {describe(value)}")
        (dtype,) = dtypes
        flat = [literal_array(leaf, dtype) for leaf in leaves(value)]
        name = self.tensor_name(None, "literal")
        self.add_constant(name, np.array(flat, NUMPY_DTYPE[dtype]).reshape(shape), site.source)
        return TensorRef(name, dtype)

    def add_constant(self, name: str, array: Array, source: Source) -> None:
        self._budget.charge_bytes(stored_bytes(array), f"the constant '{name}'")
        self.declare(name, fact_from(array), source, array)

    # -- nodes ----------------------------------------------------------------------------------

    def emit(self, sig: Signature, bound: BoundArguments, site: Site) -> Value:
        """Adds a node for a call with bound arguments and returns its output.

        An operator with several results returns a tuple; a result may be a list of tensors.
        """
        inputs: list[str] = []
        attrs: dict[str, AttrValue] = {}
        for param in sig.params:
            value = bound.values[param.name]
            if param.is_tensor:
                inputs += self._input_names(param.type, value, site)
            else:
                attrs[param.name] = value
        if sig.needs_dtype:
            attrs["dtype"] = bound.dtype
        results = self._results(sig, bound, site)
        outputs = tuple(ref.name for ref in flat(results))
        steps = _NODE_STEPS + len(inputs)
        self._budget.charge_steps(steps, f"the operator {sig.name}")
        self.append(Node(sig.name, tuple(inputs), outputs, Attrs(attrs), site.source))
        return results[0] if len(results) == 1 else tuple(results)

    def copy(self, ref: TensorRef, name: str, source: Source) -> None:
        """Adds the node ``name = copy(ref)``, for an output that only renames a tensor."""
        self.append(Node("copy", (ref.name,), (name,), Attrs(), source))

    def _input_names(self, type: Type, value: Value, site: Site) -> list[str]:
        if type.kind in ("array", "tuple"):
            types = type.items if type.kind == "tuple" else type.items * len(value)
            pairs = zip(types, value, strict=True)
            return [name for item, part in pairs for name in self._input_names(item, part, site)]
        return [self.tensor(value, site).name]

    # -- results --------------------------------------------------------------------------------

    def _results(self, sig: Signature, bound: BoundArguments, site: Site) -> list[Value]:
        single = len(sig.results) == 1
        targets = [site.target] if single else spread(site.target, len(sig.results))
        prefix = site.scope.prefix
        fallback = f"{prefix}_{sig.name}" if prefix else sig.name
        results: list[Value] = []
        self._budget.charge_nodes(1, f"the operator {sig.name}")
        for result, target in zip(sig.results, targets, strict=True):
            is_array = result.type.kind == "array"
            dtype = _element_dtype(sig, result.type, bound)
            if not is_array:
                results.append(TensorRef(self.tensor_name(target, fallback), dtype))
                continue
            parts = spread(target, self._result_count(sig, bound, target, site))
            self._budget.charge_nodes(len(parts), f"the operator {sig.name}")
            results.append([TensorRef(self.tensor_name(part, fallback), dtype) for part in parts])
        return results

    def _result_count(
        self, sig: Signature, bound: BoundArguments, target: Target, site: Site
    ) -> int:
        """Returns the number of tensors in a call's result that is an array.

        Raises an error if it is unknown or differs from the number of names on the left side.
        """
        count = self._number_of_results(sig.name, bound)
        n_names = len(target) if isinstance(target, tuple) else None
        if count is None and n_names is None:
            raise ShapeError(
                f"how many tensors {sig.name} gives is unknown: write [a, b] = {sig.name}(...)"
            )
        if count is not None and n_names is not None and n_names != count:
            raise ShapeError(f"{sig.name} gives {count} tensors, but the left side names {n_names}")
        n_tensors = count if count is not None else n_names or 0
        if n_tensors < 0:
            raise ShapeError(f"{sig.name} would give {n_tensors:,} tensors: wanted 0 or more")
        self._budget.check_nodes(n_tensors, f"the operator {sig.name}")
        return n_tensors

    def _number_of_results(self, op: str, bound: BoundArguments) -> int | None:
        if op == "split":
            return len(bound.values["ratios"])
        if op == "copy_n":
            return int(bound.values["times"])
        value = bound.values.get("value")
        if op == "unstack" and isinstance(value, TensorRef) and value.name in self.facts:
            shape, axis = self.facts[value.name].shape, bound.values["axis"]
            return shape[axis] if 0 <= axis < len(shape) else None
        return None


def shape_of_numbers(value: Value) -> tuple[int, ...] | None:
    """Returns the extents of nested lists; () for a number, None if rows differ in length."""
    if not isinstance(value, list):
        return ()
    inner = {shape_of_numbers(item) for item in value}
    (shape,) = inner if len(inner) == 1 else (None,)
    return None if shape is None else (len(value), *shape)


def literal_array(value: Value, dtype: str) -> Array:
    """Returns a number or logical as a rank-0 array of the engine's type.

    Raises an error for an integer that does not fit in 32 bits.
    """
    if dtype == "integer" and not -_INT32 <= value < _INT32:
        raise ShapeError(f"{value} does not fit in 32 bits")
    with np.errstate(over="ignore"):
        return np.array(value, NUMPY_DTYPE[dtype])


def literal_name(array: Array) -> str:
    """Returns the tensor name of a literal: its text (``0.5``, ``-1``, ``true``).

    Apart from ``true`` and ``false`` it is never an identifier.
    """
    if array.dtype == np.bool_:
        return "true" if array else "false"
    return str(array[()])


def _element_dtype(sig: Signature, result: Type, bound: BoundArguments) -> str:
    element = result.items[0] if result.kind == "array" else result
    if element.kind != "tensor":
        raise UnsupportedOp(f"{sig.name} gives a {result}: a node can only give tensors")
    return (bound.dtype if element.name == "?" else element.name) or "scalar"


def flat(values: Sequence[Value]) -> list[Value]:
    return [ref for v in values for ref in (v if isinstance(v, list) else [v])]
