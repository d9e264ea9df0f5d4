"""Converts recurrent layers, unrolled step by step: an input's extent is the sequence length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import converts
from cml_engine.formats.ncnn.param import NcnnLayer
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array

_FORWARD, _REVERSE, _BOTH = range(3)


@dataclass(frozen=True)
class _Cell:
    """The weights of one direction of a recurrent layer.

    ``input`` and ``state`` are matrices for the input and the previous state, with the rows of
    one gate after those of another. ``bias`` has one row per gate (a GRU has four).
    """

    input: Array
    bias: Array
    state: Array


#: the tensors passed from step to step; the first is the step's result
_State = list[str]
#: ``step(to, gates, before)``: the next state, from the input's part of the gates and the previous
#: state
_Step = Callable[[Conversion, str, "_State | None"], _State]


@converts(
    "LSTM", params="0-3 8", inputs=(1, 3), outputs=(1, 3), limits="int8 weights, long sequences"
)
def _lstm(layer: NcnnLayer, graph: Conversion, x: str, *states: str) -> list[str]:
    width = layer.integer(0)
    hidden = layer.integer(3, width)
    cells = _cells(layer, graph, 4, hidden, width, 4)
    smaller: list[Array] = []
    if hidden != width:
        projections = graph.weights.flagged(len(cells) * width * hidden, layer)
        smaller = list(projections.reshape(len(cells), 1, width, hidden))
    if len(states) == 1:
        raise layer.damaged_error("a state without its memory")

    def step_of(index: int, cell: _Cell) -> _Step:
        state = graph.weight(cell.state[None], f"state{index}_weight")
        projection = graph.weight(smaller[index], f"projection{index}_weight") if smaller else ""

        def step(graph: Conversion, gates: str, before: _State | None) -> _State:
            if before is not None:
                product = graph.op("matmul", before[0], state, transposeB=True)
                gates = graph.op("add", gates, product)
            i, f, o, g = graph.ops("split", 4, gates, axis=2, ratios=[1, 1, 1, 1])
            memory = graph.op("mul", graph.op("sigmoid", i), graph.op("tanh", g))
            if before is not None:
                memory = graph.op("add", graph.op("mul", graph.op("sigmoid", f), before[1]), memory)
            out = graph.op("mul", graph.op("sigmoid", o), graph.op("tanh", memory))
            if projection:
                out = graph.op("matmul", out, projection, transposeB=True)
            return [out, memory]

        return step

    return _run(layer, graph, x, states, cells, step_of, [cell.bias.reshape(-1) for cell in cells])


@converts(
    "GRU", params="0-2 8", inputs=(1, 2), outputs=(1, 2), limits="int8 weights, long sequences"
)
def _gru(layer: NcnnLayer, graph: Conversion, x: str, *states: str) -> list[str]:
    width = layer.integer(0)
    cells = _cells(layer, graph, 3, width, width, 4)

    def step_of(index: int, cell: _Cell) -> _Step:
        state = graph.weight(cell.state[None], f"state{index}_weight")
        inner = graph.weight(cell.bias[3].reshape(1, 1, -1), f"new{index}_bias")

        def step(graph: Conversion, gates: str, before: _State | None) -> _State:
            r, u, n = graph.ops("split", 3, gates, axis=2, ratios=[1, 1, 1])
            new = inner
            if before is not None:
                product = graph.op("matmul", before[0], state, transposeB=True)
                more = graph.ops("split", 3, product, axis=2, ratios=[1, 1, 1])
                r, u = (graph.op("add", a, b) for a, b in zip((r, u), more, strict=False))
                new = graph.op("add", more[2], inner)
            new = graph.op("tanh", graph.op("add", n, graph.op("mul", graph.op("sigmoid", r), new)))
            update = graph.op("sigmoid", u)
            if before is None:
                return [graph.op("sub", new, graph.op("mul", update, new))]
            return [graph.op("add", new, graph.op("mul", update, graph.op("sub", before[0], new)))]

        return step

    biases = [cell.bias[:3].reshape(-1) for cell in cells]
    return _run(layer, graph, x, states, cells, step_of, biases)


@converts(
    "RNN", params="0-2 8", inputs=(1, 2), outputs=(1, 2), limits="int8 weights, long sequences"
)
def _rnn(layer: NcnnLayer, graph: Conversion, x: str, *states: str) -> list[str]:
    width = layer.integer(0)
    cells = _cells(layer, graph, 1, width, width, 1)

    def step_of(index: int, cell: _Cell) -> _Step:
        state = graph.weight(cell.state[None], f"state{index}_weight")

        def step(graph: Conversion, gates: str, before: _State | None) -> _State:
            if before is not None:
                product = graph.op("matmul", before[0], state, transposeB=True)
                gates = graph.op("add", gates, product)
            return [graph.op("tanh", gates)]

        return step

    return _run(layer, graph, x, states, cells, step_of, [cell.bias.reshape(-1) for cell in cells])


def _cells(
    layer: NcnnLayer, graph: Conversion, gates: int, hidden: int, width: int, biases: int
) -> list[_Cell]:
    """Reads the weights of the layer's one or two directions and returns a cell for each."""
    layer.refuse(8, "int8 weights")
    count, total = 1 + (layer.integer(2) == _BOTH), layer.integer(1)
    rows = count * gates * hidden
    if width < 1 or hidden < 1 or not 0 <= layer.integer(2) <= _BOTH or total < 1 or total % rows:
        raise layer.damaged_error(
            f"{total} weights for {width} outputs in direction {layer.integer(2)}"
        )
    inputs = graph.weights.flagged(total, layer).reshape(count, gates * hidden, total // rows)
    bias = graph.weights.flagged(count * biases * hidden, layer).reshape(count, biases, hidden)
    states = graph.weights.flagged(rows * width, layer).reshape(count, gates * hidden, width)
    return [_Cell(*parts) for parts in zip(inputs, bias, states, strict=True)]


def _run(
    layer: NcnnLayer,
    graph: Conversion,
    x: str,
    states: Sequence[str],
    cells: Sequence[_Cell],
    step_of: Callable[[int, _Cell], _Step],
    biases: Sequence[Array],
) -> list[str]:
    """Runs a recurrent layer over all steps of ``x`` and returns the names of its outputs.

    The first output has the results of all steps, of both directions side by side. The last states
    follow if the layer has outputs for them.
    """
    extents = graph.extents(x)
    if len(extents) != 2 or extents[1] != cells[0].input.shape[1]:
        raise layer.damaged_error(
            f"an input of {list(extents)}: wanted rows of {cells[0].input.shape[1]}"
        )
    current_budget().check_nodes(extents[0], f"a sequence of {extents[0]:,} steps", layer.source)
    rows: list[str] = []
    last: list[_State] = []
    for index, (cell, bias) in enumerate(zip(cells, biases, strict=True)):
        weight = graph.weight(cell.input[None], f"input{index}_weight")
        product = graph.op("matmul", x, weight, transposeB=True)
        gates = graph.op("add", product, graph.weight(bias.reshape(1, 1, -1), f"bias{index}"))
        steps = _parts(graph, gates, extents[0])
        backwards = layer.integer(2) == _REVERSE or index == 1
        state = _first(layer, graph, states, index, len(cells))
        step = step_of(index, cell)
        made: list[str] = []
        for gate in reversed(steps) if backwards else steps:
            state = step(graph, gate, state)
            made.append(state[0])
        assert state is not None
        last.append(state)
        rows.append(_joined(graph, made[::-1] if backwards else made, 1))
    outputs = [_joined(graph, rows, 2)]
    if len(layer.outputs) > 1:
        outputs += [_joined(graph, [s[k] for s in last], 1) for k in range(len(last[0]))]
    return outputs


def _first(
    layer: NcnnLayer, graph: Conversion, states: Sequence[str], index: int, count: int
) -> _State | None:
    """Returns the tensors of the initial state of direction ``index``; None if no state is given.

    ``states`` have a row for each of ``count`` directions.
    """
    for state in states:
        if len(graph.extents(state)) != 2 or graph.extents(state)[0] != count:
            raise layer.damaged_error(
                f"a state of {list(graph.extents(state))}: wanted {count} rows"
            )
    return [_parts(graph, state, count)[index] for state in states] or None


def _parts(graph: Conversion, x: str, count: int) -> list[str]:
    return [x] if count == 1 else graph.ops("split", count, x, axis=1, ratios=[1] * count)


def _joined(graph: Conversion, parts: Sequence[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else graph.op("concat", *parts, axis=axis)
