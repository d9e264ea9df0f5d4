"""Operators whose attributes are inputs, so that a host changes them at run time (sliders).

``leaky_relu[alpha]`` is the operator ``leaky_relu`` with its attribute ``alpha`` as a further
operand behind the others. An elementwise operator's formula reads the operand like any other. The
kernel of another operator gets it as a parameter, which is written before a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cml_engine.errors import CmlError, InputError
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Fact, Node
from cml_engine.ops.declaration.expression import LETTERS, with_attributes_as_operands
from cml_engine.ops.declaration.lowering import Lowering, kind_of, whole
from cml_engine.ops.declaration.registry import derive_by, lookup
from cml_engine.ops.declaration.spec import NO_TRAITS, Dispatch, LiveParams, OpSpec
from cml_engine.ops.elementwise.elementwise_op import cpu as formula_cpu
from cml_engine.ops.elementwise.kernels.elementwise import KERNEL_PATH, kernel_of

_NAME = re.compile(r"(\w+)\[([\w,]+)\]")


def with_input_attribute(node: Node, attribute: str, tensor: str) -> Node:
    """Returns the node with ``tensor`` as the value of one of its attributes.

    The attribute keeps its value, from which shapes and layouts follow.
    """
    base, names = _parts(node.op)
    op = f"{base}[{','.join((*names, attribute))}]"
    return replace(node, op=op, inputs=(*node.inputs, tensor))


def base_operator(op: str) -> OpSpec:
    """Returns the operator of a name, with all its attributes as attributes."""
    return lookup(_parts(op)[0])


def attribute_fact(node: Node, attribute: str) -> Fact | None:
    """Returns the fact of an input for the attribute's value; None if it is not numbers.

    Numbers are a number, a truth value, or a list of them.
    """
    spec, value = base_operator(node.op), node.attrs[attribute]
    values = np.asarray(value if value is not None else "")
    if values.dtype.kind not in "biuf" or values.ndim > 1:
        return None
    if is_read_by_formula(spec):
        return Fact("scalar", values.shape)
    return Fact(kind_of(spec, attribute, value), values.shape)


def is_read_by_formula(spec: OpSpec) -> bool:
    """Returns True if the operator's only kernel is that of its elementwise formula."""
    kernel, formula = spec.kernel, spec.formula
    return (
        kernel is not None
        and formula is not None
        and kernel.path == KERNEL_PATH
        and formula.arity + len(formula.attrs) <= len(LETTERS)
    )


def _parts(op: str) -> tuple[str, tuple[str, ...]]:
    """Returns the name of the operator without brackets, and the attributes in them."""
    match = _NAME.fullmatch(op)
    return (match[1], tuple(match[2].split(","))) if match else (op, ())


def _derive(name: str) -> OpSpec | None:
    """Returns the operator of a name with brackets; None for any other name."""
    base, names = _parts(name)
    if not names:
        return None
    spec, count = lookup(base), len(names)
    derived = replace(
        spec,
        name=name,
        infer=lambda attrs, *facts: spec.infer(attrs, *facts[: len(facts) - count]),
        cost=lambda attrs, inputs, outputs: spec.cost(
            attrs, inputs[: len(inputs) - count], outputs
        ),
        formula=None,
        prepare=None,
        exact=False,
        bounds=None,
        traits=NO_TRAITS,
    )
    if is_read_by_formula(spec):
        assert spec.formula is not None
        formula = with_attributes_as_operands(spec.formula, names)
        derived = replace(derived, formula=formula, cpu=partial(formula_cpu, formula))
        return replace(derived, kernel=kernel_of(formula))
    kernel = spec.kernel and replace(spec.kernel, lower=partial(_lower, spec, names), threads=None)
    cpu = None if spec.cpu is None else partial(_cpu, spec, names)
    return replace(derived, cpu=cpu, kernel=kernel)


derive_by(_derive)


def _cpu(
    spec: OpSpec, names: Sequence[str], attrs: Attrs, *arrays: Array
) -> Array | Sequence[Array]:
    assert spec.cpu is not None
    count = len(arrays) - len(names)
    values = {name: array.tolist() for name, array in zip(names, arrays[count:], strict=True)}
    return spec.cpu(Attrs({**attrs, **values}), *arrays[:count])


def _lower(spec: OpSpec, names: Sequence[str], op: Lowering) -> Iterator[Dispatch]:
    """Yields the operator's dispatches, whose parameters a run computes again from new values.

    Raises :class:`InputError` if a value of a slider's range changes more than parameters.
    """
    tensors = op.node.inputs[len(op.node.inputs) - len(names) :]
    node = replace(op.node, op=spec.name, inputs=op.node.inputs[: len(op.node.inputs) - len(names)])
    inner = replace(op, node=node, declared=spec)
    live = _LiveNode(spec, dict(zip(tensors, names, strict=True)), inner, _dispatches(spec, inner))
    for tensor in tensors:
        for value in op.graph.sliders[tensor].samples():
            live.dispatches_at({tensor: np.asarray(value, NUMPY_DTYPE[op.fact(tensor).dtype])})
    for k, dispatch in enumerate(live.dispatches):
        yield replace(dispatch, live=LiveParams(tensors, partial(_params, live, k)))


def _params(live: _LiveNode, k: int, values: Mapping[str, Array]) -> Mapping[str, object]:
    return live.dispatches_at(values)[k].params


def _dispatches(spec: OpSpec, op: Lowering) -> list[Dispatch]:
    kernel = spec.kernel
    assert kernel is not None  # only called for an operator with a kernel
    return [whole(op, spec, kernel)] if kernel.lower is None else list(kernel.lower(op))


@dataclass(frozen=True)
class _LiveNode:
    """A node with its dispatches, and ``attributes``: the attribute that each tensor holds."""

    spec: OpSpec
    attributes: Mapping[str, str]
    op: Lowering
    dispatches: list[Dispatch]

    def dispatches_at(self, values: Mapping[str, Array]) -> list[Dispatch]:
        """Returns the node's dispatches with new values of some sliders.

        Raises :class:`InputError` if anything but parameters of the kernels would differ.
        """
        new = {self.attributes[tensor]: value.tolist() for tensor, value in values.items()}
        op = replace(
            self.op,
            node=replace(self.op.node, attrs=self.op.attrs.with_(**new)),
            packed=dict(self.op.packed),
            scratch_words={},
            choices=[],
            chosen=[],
            required_choices=list(self.op.chosen),
        )
        try:
            dispatches = _dispatches(self.spec, op)
        except CmlError as error:
            raise self._refusal(values, str(error)) from error
        if len(dispatches) != len(self.dispatches):
            raise self._refusal(values, "the number of its dispatches")
        for before, after in zip(self.dispatches, dispatches, strict=True):
            for aspect, before_value, after_value in (
                ("defines in the kernel's code", before.defines, after.defines),
                ("the kernel", before.kernel, after.kernel),
                ("the tensors or packed weights that it binds", before.tensors, after.tensors),
                ("the number of its workgroups", before.groups, after.groups),
            ):
                if before_value != after_value:
                    raise self._refusal(values, aspect)
        return dispatches

    def _refusal(self, values: Mapping[str, Array], aspect: str) -> InputError:
        tensor = next(iter(values))
        name = self.attributes[tensor]
        change = self.op.attrs[name], values[tensor].tolist()
        return InputError(
            f"slider '{tensor}': the attribute '{name}' of {self.op.node.title} is compiled into "
            f"its kernel, so it cannot move from {change[0]} to {change[1]}: it decides {aspect}. "
            "Leave the slider out, and load the model with another value",
            self.op.node.source,
        )
