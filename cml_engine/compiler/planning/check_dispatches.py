"""Checks the dispatches that an operator's lowering returns, before anything is planned.

Every dispatch must write to the node's own tensors, and every epilogue must be applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cml_engine.errors import OperatorError
from cml_engine.ir.graph import is_whole
from cml_engine.ir.layout import C4H, VECTOR_TYPE
from cml_engine.ops.declaration.checks import fault
from cml_engine.ops.declaration.epilogue import STEPS
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel, OpSpec
from cml_engine.ops.elementwise.elementwise_op import CHAIN


def check_dispatches(spec: OpSpec, op: Lowering, dispatches: Sequence[Any]) -> None:
    """Raises :class:`OperatorError` if the dispatches that an operator returned for a node are
    invalid.

    A dispatch is invalid if it is no :class:`Dispatch`, binds a tensor that the node does not
    have, or writes to a tensor that is no result or scratch. A result that is never written is
    an error too.
    """
    results = {*op.out_names, *op.scratch_words}
    known = {*op.node.reads, *results, *op.packed}
    written: set[str] = set()
    for dispatch in dispatches:
        _check_form(spec, op, dispatch)
        for name in dispatch.tensors:
            if name not in known:
                raise _wrong(spec, op, f"binds '{name}', which is no tensor of this node")
        targets = dispatch.tensors[len(dispatch.tensors) - dispatch.writes :]
        for name in targets:
            if name not in results:
                what = "its input" if name in op.node.reads else "a constant of the plan"
                raise _wrong(spec, op, f"writes to '{name}', {what}")
        written.update(targets if dispatch.groups else ())
    for name in op.out_names:
        if name not in written and op.fact(name).size:
            raise _wrong(spec, op, f"writes nothing to its result '{name}'")
    if spec.is_custom:
        _check_promises(spec, op, dispatches)


def _check_form(spec: OpSpec, op: Lowering, dispatch: Any) -> None:
    if not isinstance(dispatch, Dispatch):
        raise _wrong(spec, op, f"gives {dispatch!r}, wanted a cml.Dispatch: op.launch(…) makes one")
    groups, writes = dispatch.groups, dispatch.writes
    if not is_whole(groups) or groups < 0:
        raise _wrong(spec, op, f"wants {groups!r} workgroups; wanted a whole number")
    if not is_whole(writes) or not 0 < writes <= len(dispatch.tensors):
        raise _wrong(spec, op, f"writes {writes!r} of {len(dispatch.tensors)} tensors")
    kernel: Any = dispatch.kernel
    cost: Any = dispatch.cost
    if not isinstance(kernel, Kernel | None) or not isinstance(cost, Cost | None):
        raise _wrong(spec, op, "has a kernel or a cost of another type than cml.Kernel, cml.Cost")


def _check_promises(spec: OpSpec, op: Lowering, dispatches: Sequence[Dispatch]) -> None:
    """Raises :class:`OperatorError` if a node's dispatches ignore a feature that its kernel
    declares.

    The features are epilogues, which a dispatch must apply, and maps in 16 bits, which each
    dispatch that binds one must support.
    """
    if op.epilogues and not any(
        dispatch.defines.keys() & {STEPS, CHAIN} for dispatch in dispatches
    ):
        names = ", ".join(epilogue.op for epilogue in op.epilogues)
        raise _wrong(spec, op, f"does not apply the epilogues that its kernel states ({names})")
    half = VECTOR_TYPE[C4H]
    for dispatch in dispatches:
        stored = [name for name in dispatch.tensors if op.layout(name) == C4H]
        if stored and half not in dispatch.defines.values():
            raise _wrong(spec, op, f"reads '{stored[0]}' in 32 bits, though its kernel states half")


def _wrong(spec: OpSpec, op: Lowering, what: str) -> OperatorError:
    said = "a launch of its lower" if spec.kernel and spec.kernel.lower else "its launch"
    return fault(spec, f"{op.node.title}: {said} {what}", op.node.source)
