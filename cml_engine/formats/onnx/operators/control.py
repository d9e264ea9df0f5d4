"""Imports If, Loop and Scan, resolved at import: conditions and trip counts must be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from cml_engine.formats.onnx.attributes import INTS, at_least, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.model import OnnxGraph
from cml_engine.formats.onnx.op_schemas import MANY, op
from cml_engine.formats.onnx.values import Value
from cml_engine.io.load_limits import current_budget


class GraphImporter(Protocol):
    """The importer of graphs in a node's attributes; ``importer.Importer`` implements it."""

    def inner(
        self, graph: OnnxGraph, values: dict[str, Value], scope: Any, prefix: str
    ) -> list[Value]: ...


Control = Callable[[OnnxCall, GraphImporter, Any], Sequence[Value | None]]

#: operators that run graphs, by name
CONTROL: dict[str, Control] = {}


def _graph_op(name: str, nnef: str, inputs: int, **attrs: Any) -> Callable[[Control], Control]:
    def declare(control: Control) -> Control:
        op(name, nnef=nnef, inputs=inputs, attrs=attrs)(_never)
        CONTROL[name] = control
        return control

    return declare


def _never(call: OnnxCall) -> Value:
    raise call.unsupported_error(f"{call.node.op} outside a graph")


@_graph_op("If", "the branch that is taken", 1, then_branch=OnnxGraph, else_branch=OnnxGraph)
def if_(call: OnnxCall, importer: GraphImporter, scope: Any) -> Sequence[Value | None]:
    condition = call.array(0, "the condition")
    if condition.size != 1:
        raise call.shape_error(f"a condition of {condition.size} values")
    branch = call.attr("then_branch" if condition.reshape(-1)[0] else "else_branch")
    return importer.inner(branch, {}, scope, "")


@_graph_op("Loop", "its body, again and again", MANY, body=OnnxGraph)
def loop(call: OnnxCall, importer: GraphImporter, scope: Any) -> Sequence[Value | None]:
    body: OnnxGraph = call.attr("body")
    trips = call.ints(0, "the number of iterations")[0] if call.has(0) else None
    go_on = call[1] if call.has(1) else Value.known(np.array(True))
    carried = [call[i] for i in range(2, len(call.inputs))]
    stacked: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    count = 0
    while (trips is None or count < trips) and bool(
        call.known_values(go_on, "the loop's condition").reshape(-1)[0]
    ):
        current_budget().charge_nodes(1, f"iteration {count:,} of the loop", call.emit.source)
        inputs = [Value.known(np.array(count, np.int64)), go_on, *carried]
        names = [info.name for info in body.inputs]
        values = dict(zip(names, inputs, strict=True))
        go_on, *results = importer.inner(body, values, scope, f"{count}_")
        carried = results[: len(carried)]
        for parts, value in zip(stacked, results[len(carried) :], strict=True):
            parts.append(call.unsqueeze(value, [0]))
        count += 1
    return [*carried, *(_joined(call, parts, 0) for parts in stacked)]


def _joined(call: OnnxCall, parts: list[Value], axis: int) -> Value:
    if not parts:
        raise call.unsupported_error("a loop that never runs and gives a list of results")
    return call.concat(parts, axis)


@_graph_op(
    "Scan",
    "its body, again and again",
    MANY,
    body=OnnxGraph,
    num_scan_inputs=required(at_least(1)),
    scan_input_axes=INTS,
    scan_input_directions=INTS,
    scan_output_axes=INTS,
    scan_output_directions=INTS,
)
def scan(call: OnnxCall, importer: GraphImporter, scope: Any) -> Sequence[Value | None]:
    if call.opset < 9:
        raise call.unsupported_error("Scan of opset 8")
    body: OnnxGraph = call.attr("body")
    lists = call.attr("num_scan_inputs")
    inputs = [call[i] for i in range(len(call.inputs))]
    state, scanned = inputs[: len(inputs) - lists], inputs[len(inputs) - lists :]
    axes = call.attr("scan_input_axes") or [0] * lists
    axes = [call.axis(a, v.rank) for a, v in zip(axes, scanned, strict=True)]
    back = call.attr("scan_input_directions") or [0] * lists
    lengths = {v.shape[a] for a, v in zip(axes, scanned, strict=True)}
    if len(lengths) != 1:
        raise call.shape_error(f"it goes over {sorted(lengths)} elements at once")
    length = lengths.pop()
    call.check_written_out(length)
    stacked: list[list[Value]] = [[] for _ in range(len(body.outputs) - len(state))]
    out_axes = call.attr("scan_output_axes") or [0] * len(stacked)
    out_back = call.attr("scan_output_directions") or [0] * len(stacked)
    for step in range(length):
        parts = []
        for value, axis, turned in zip(scanned, axes, back, strict=True):
            at = length - 1 - step if turned else step
            parts.append(call.squeeze(call.slice(value, axis, at, at + 1), [axis]))
        values = dict(zip([info.name for info in body.inputs], [*state, *parts], strict=True))
        results = importer.inner(body, values, scope, f"{step}_")
        state = results[: len(state)]
        for found, value, axis in zip(stacked, results[len(state) :], out_axes, strict=True):
            found.append(call.unsqueeze(value, [call.axis(axis, value.rank + 1)]))
    finished = []
    for found, axis, turned in zip(stacked, out_axes, out_back, strict=True):
        parts = found[::-1] if turned else found
        finished.append(_joined(call, parts, call.axis(axis, parts[0].rank if parts else 1)))
    return [*state, *finished]
