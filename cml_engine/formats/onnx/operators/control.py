"""Imports If, Loop and Scan, resolved at import: conditions and trip counts must be known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.formats.onnx.model import OnnxGraph
from cml_engine.formats.onnx.op_schemas import OnnxCall, at_least, op
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    checked_axis,
    concat,
    constant,
    unsupported_error,
)
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array


@op("If", "the branch that is taken")
def if_(
    call: OnnxCall, condition: Array, *, then_branch: OnnxGraph, else_branch: OnnxGraph
) -> list[Value]:
    if condition.size != 1:
        raise InvalidNode(f"a condition of {condition.size} values")
    return call.inner(then_branch if condition.reshape(-1)[0] else else_branch, {}, "")


@op("Loop", "its body, again and again")
def loop(
    call: OnnxCall,
    number_of_iterations: int | None = None,
    condition: Value | None = None,
    *carried: Value,
    body: OnnxGraph,
) -> list[Value]:
    go_on = Value.known(np.array(True)) if condition is None else condition
    state, count = list(carried), 0
    stacked: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    while (number_of_iterations is None or count < number_of_iterations) and bool(
        constant(go_on, "the loop's condition").reshape(-1)[0]
    ):
        current_budget().charge_nodes(1, f"iteration {count:,} of the loop")
        inputs = [Value.known(np.array(count, np.int64)), go_on, *state]
        go_on, *results = call.inner(body, _named_inputs(body, inputs), f"{count}_")
        state = results[: len(state)]
        for parts, value in zip(stacked, results[len(state) :], strict=True):
            parts.append(value.unsqueeze([0]))
        count += 1
    return [*state, *(_joined(parts, 0) for parts in stacked)]


def _named_inputs(body: OnnxGraph, values: Sequence[Value]) -> dict[str, Value]:
    return dict(zip([info.name for info in body.inputs], values, strict=True))


def _joined(parts: list[Value], axis: int) -> Value:
    if not parts:
        raise unsupported_error("a loop that never runs and gives a list of results")
    return concat(parts, checked_axis(axis, parts[0].rank))


@op("Scan", "its body, again and again", since=9)
def scan(
    call: OnnxCall,
    *inputs: Value,
    body: OnnxGraph,
    num_scan_inputs: int = at_least(1, required=True),
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> list[Value]:
    count = len(inputs) - num_scan_inputs
    state, scanned = list(inputs[:count]), inputs[count:]
    axes = scan_input_axes or [0] * num_scan_inputs
    axes = [checked_axis(a, v.rank) for a, v in zip(axes, scanned, strict=True)]
    back = scan_input_directions or [0] * num_scan_inputs
    lengths = {v.shape[a] for a, v in zip(axes, scanned, strict=True)}
    if len(lengths) != 1:
        raise InvalidNode(f"it goes over {sorted(lengths)} elements at once")
    length = lengths.pop()
    current_budget().check_nodes(length, "the operator")
    stacked: list[list[Value]] = [[] for _ in range(len(body.outputs) - len(state))]
    out_axes = scan_output_axes or [0] * len(stacked)
    out_back = scan_output_directions or [0] * len(stacked)
    for step in range(length):
        parts = []
        for value, axis, turned in zip(scanned, axes, back, strict=True):
            at = length - 1 - step if turned else step
            parts.append(value.slice(axis, at, at + 1).squeeze([axis]))
        results = call.inner(body, _named_inputs(body, [*state, *parts]), f"{step}_")
        state = results[: len(state)]
        for found, value, axis in zip(stacked, results[len(state) :], out_axes, strict=True):
            found.append(value.unsqueeze([checked_axis(axis, value.rank + 1)]))
    finished = [
        _joined(found[::-1] if turned else found, axis)
        for found, axis, turned in zip(stacked, out_axes, out_back, strict=True)
    ]
    return [*state, *finished]
