"""The checked inputs and attributes of one node during import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from cml_engine.errors import NeedsConstant, ShapeError, UnsupportedOp
from cml_engine.formats.onnx.attributes import Attr, WrongAttribute
from cml_engine.formats.onnx.model import OnnxNode
from cml_engine.formats.onnx.op_schemas import OnnxOpSchema
from cml_engine.formats.onnx.values import NOTHING, Value, has_nothing
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array, can_be_shape

if TYPE_CHECKING:
    from cml_engine.formats.onnx.emit import Emitter

Operand = Value | float | int | bool
#: The most elements of a tensor.
_MOST = 2**31 - 1


class NodeInputs:
    """A node during import with the values of its inputs and its checked attributes.

    ``opset`` is the version of the node's domain.
    """

    def __init__(
        self,
        node: OnnxNode,
        row: OnnxOpSchema,
        opset: int,
        inputs: Sequence[Value | None],
        emitter: Emitter,
        wanted: Sequence[bool],
    ) -> None:
        self.node, self.opset, self.inputs, self.emit = node, opset, inputs, emitter
        self._wanted = wanted
        count = max((i for i, name in enumerate(node.inputs, 1) if name), default=0)
        if count > row.inputs:
            raise UnsupportedOp(
                f"{count} inputs, the operator takes {row.inputs}: the model was made for another "
                "version of it",
                emitter.source,
            )
        self._attrs = self._check_attributes(row)

    def attr(self, name: str) -> Any:
        """Returns the checked value of a declared attribute, or its default if it is missing."""
        return self._attrs[name]

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self._attrs

    def given(self, name: str) -> bool:
        return name in self.node.attributes

    def has(self, position: int) -> bool:
        """Returns True if the node has an input at ``position``."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def wants(self, position: int) -> bool:
        """Returns True if a node or the graph's outputs read the output at ``position``."""
        return position < len(self._wanted) and self._wanted[position]

    @property
    def results(self) -> int:
        """The number of outputs that the node declares."""
        return len(self.node.outputs)

    def __getitem__(self, position: int) -> Value:
        """Returns the input at ``position``; raises :class:`ShapeError` if it is missing."""
        if not self.has(position):
            raise self.shape_error(f"input {position + 1} is missing")
        value = self.inputs[position]
        assert value is not None
        return value

    def get(self, position: int, default: Operand) -> Value:
        """Returns the input at ``position``, or the default as a value if it is missing."""
        return self[position] if self.has(position) else self.emit.value(default)

    def array(self, position: int, what: str = "") -> Array:
        """Returns the array of an input that must be known at import.

        An error calls it ``what``.
        """
        return self.known_values(self[position], what or f"input {position + 1}")

    def known_values(self, value: Value, what: str) -> Array:
        if value.array is not None:
            return value.array
        inputs = self.emit.origins(value)
        named = ", ".join(f"'{name}'" for name in inputs)
        from_what = f"it is computed from {named}" if inputs else "it is computed"
        bind = "a constant in its place"
        if inputs:
            options = " ".join(f"--constant {name}=VALUE|FILE" for name in inputs)
            bind = f"{options}, or cml.load(…, constants={{'{inputs[0]}': …}})"
        raise NeedsConstant(
            f"{what} must be known when the model is loaded, and {from_what}: export the model "
            f"with fixed shapes, or give {bind}",
            self.emit.source,
            inputs,
        )

    def ints(self, position: int, what: str = "") -> list[int]:
        """Returns a flat list of an input's integers, which must be known at import."""
        array = self.array(position, what)
        if array.dtype.kind not in "iu" and array.size:
            raise self.shape_error(
                f"{what or f'input {position + 1}'} is {array.dtype}, wanted integers"
            )
        return [int(n) for n in array.reshape(-1)]

    def known_integers(self) -> list[Array]:
        """Returns the arrays of all inputs if all are known and none is of floats, else []."""
        arrays = [v.array for v in self.inputs if v is not None and v.array is not None]
        whole = all(array.dtype.kind != "f" for array in arrays)
        return arrays if whole and len(arrays) == len(self.inputs) else []

    def number(self, position: int, default: float = 0.0) -> float:
        """Returns the single number of an input that must be known at import.

        Returns ``default`` if the input is missing.
        """
        if not self.has(position):
            return default
        array = self.array(position)
        if array.size != 1:
            raise self.shape_error(f"input {position + 1} has {array.size} values, wanted one")
        return float(array.reshape(-1)[0])

    def axis(self, axis: int, rank: int) -> int:
        """Returns an axis counted from the front.

        Raises an error if it is not among ``rank`` axes.
        """
        if not -rank <= axis < rank:
            raise self.shape_error(f"axis {axis} of {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        found = [self.axis(axis, rank) for axis in axes]
        if len(set(found)) < len(found):
            raise self.shape_error(f"the axes {list(axes)} name one twice")
        return found

    # -- arrays that the import makes -------------------------------------------------------------

    def checked_shape(self, shape: Sequence[int]) -> list[int]:
        """Returns the shape as a list.

        Raises an error if a tensor of the network cannot have it.
        """
        if not can_be_shape(shape) or prod(shape) > _MOST:
            raise self.shape_error(f"the shape {list(shape)[:8]}")
        return list(shape)

    def allocate(self, shape: Sequence[int], itemsize: int = 8) -> list[int]:
        """Returns the shape as a list; raises an error if an array of it exceeds the memory budget.

        Nothing is allocated here. ``itemsize`` is the number of bytes per element.
        """
        checked = self.checked_shape(shape)
        what = f"its tensor of the shape {checked[:8]}"
        current_budget().check_bytes(prod(checked) * itemsize, what, self.emit.source)
        return checked

    def check_written_out(self, count: int) -> None:
        """Raises an error if ``count`` iterations or results of an operator exceed the budget.

        An operator calls it before it adds nodes for each of them.
        """
        current_budget().check_nodes(count, "the operator", self.emit.source)

    # -- errors -----------------------------------------------------------------------------------

    def unsupported_error(self, what: str) -> UnsupportedOp:
        """Returns the error for ``what``, a variant of this operator that cannot be imported."""
        return UnsupportedOp(
            f"{what} is not supported: export the model otherwise", self.emit.source
        )

    def shape_error(self, what: str) -> ShapeError:
        if has_nothing(self.inputs):
            return ShapeError(f"{what}: {NOTHING}", self.emit.source)
        return ShapeError(f"{what}: the model is not right, export it again", self.emit.source)

    def _check_attributes(self, row: OnnxOpSchema) -> dict[str, Any]:
        for name in self.node.attributes:
            if name not in row.attrs:
                known = ", ".join(row.attrs) or "none"
                raise UnsupportedOp(
                    f"unknown attribute '{name}', the operator has {known}: the model was made for "
                    "another version of it",
                    self.emit.source,
                )
        return {name: self._value(name, attr) for name, attr in row.attrs.items()}

    def _value(self, name: str, attr: Attr) -> Any:
        count = None if attr.count is None else attr.count(self)
        if name not in self.node.attributes:
            if attr.required:
                raise self.shape_error(f"attribute '{name}' is missing")
            return attr.left_out(count)
        try:
            value = attr.value(self.node.attributes[name], count)
        except WrongAttribute as error:
            raise self.shape_error(f"attribute '{name}' {error}") from None
        if attr.among and value not in attr.among:
            raise self.unsupported_error(f"{name}={value!r} (of {', '.join(map(str, attr.among))})")
        return value
