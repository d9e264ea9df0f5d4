"""Recurrent layers, unrolled step by step: the sequence length is an extent of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import layer
from cml_engine.formats.ncnn.param import NcnnLayer
from cml_engine.io.load_limits import current
from cml_engine.ir.graph import Array

_FORWARD, _REVERSE, _BOTH = range(3)


@dataclass(frozen=True)
class _Cell:
    """The weights of one direction: rows for the input and for the previous state, gate by gate.

    ``bias`` has ncnn's rows, one per gate (a GRU has four).
    """

    input: Array
    bias: Array
    state: Array


#: the tensors passed from step to step; the first is the step's result
_State = list[str]
#: ``step(to, gates, before)``: the next state, from the input's part of the gates and the previous
#: state
_Step = Callable[[Conversion, str, "_State | None"], _State]


@layer("LSTM", params="0-3 8", inputs=(1, 3), outputs=(1, 3), limits="int8 weights, long sequences")
def _lstm(one: NcnnLayer, to: Conversion, x: str, *states: str) -> list[str]:
    width = one.whole(0)
    hidden = one.whole(3, width)
    cells = _cells(one, to, 4, hidden, width, 4)
    smaller: list[Array] = []
    if hidden != width:
        projections = to.weights.flagged(len(cells) * width * hidden, one)
        smaller = list(projections.reshape(len(cells), 1, width, hidden))
    if len(states) == 1:
        raise one.damaged("a state without its memory")

    def step_of(index: int, cell: _Cell) -> _Step:
        state = to.weight(cell.state[None], f"state{index}_weight")
        projection = to.weight(smaller[index], f"projection{index}_weight") if smaller else ""

        def step(to: Conversion, gates: str, before: _State | None) -> _State:
            if before is not None:
                product = to.op("matmul", before[0], state, transposeB=True)
                gates = to.op("add", gates, product)
            i, f, o, g = to.ops("split", 4, gates, axis=2, ratios=[1, 1, 1, 1])
            memory = to.op("mul", to.op("sigmoid", i), to.op("tanh", g))
            if before is not None:
                memory = to.op("add", to.op("mul", to.op("sigmoid", f), before[1]), memory)
            out = to.op("mul", to.op("sigmoid", o), to.op("tanh", memory))
            if projection:
                out = to.op("matmul", out, projection, transposeB=True)
            return [out, memory]

        return step

    return _run(one, to, x, states, cells, step_of, [cell.bias.reshape(-1) for cell in cells])


@layer("GRU", params="0-2 8", inputs=(1, 2), outputs=(1, 2), limits="int8 weights, long sequences")
def _gru(one: NcnnLayer, to: Conversion, x: str, *states: str) -> list[str]:
    width = one.whole(0)
    cells = _cells(one, to, 3, width, width, 4)

    def step_of(index: int, cell: _Cell) -> _Step:
        state = to.weight(cell.state[None], f"state{index}_weight")
        inner = to.weight(cell.bias[3].reshape(1, 1, -1), f"new{index}_bias")

        def step(to: Conversion, gates: str, before: _State | None) -> _State:
            r, u, n = to.ops("split", 3, gates, axis=2, ratios=[1, 1, 1])
            new = inner
            if before is not None:
                product = to.op("matmul", before[0], state, transposeB=True)
                more = to.ops("split", 3, product, axis=2, ratios=[1, 1, 1])
                r, u = (to.op("add", a, b) for a, b in zip((r, u), more, strict=False))
                new = to.op("add", more[2], inner)
            new = to.op("tanh", to.op("add", n, to.op("mul", to.op("sigmoid", r), new)))
            update = to.op("sigmoid", u)
            if before is None:
                return [to.op("sub", new, to.op("mul", update, new))]
            return [to.op("add", new, to.op("mul", update, to.op("sub", before[0], new)))]

        return step

    biases = [cell.bias[:3].reshape(-1) for cell in cells]
    return _run(one, to, x, states, cells, step_of, biases)


@layer("RNN", params="0-2 8", inputs=(1, 2), outputs=(1, 2), limits="int8 weights, long sequences")
def _rnn(one: NcnnLayer, to: Conversion, x: str, *states: str) -> list[str]:
    width = one.whole(0)
    cells = _cells(one, to, 1, width, width, 1)

    def step_of(index: int, cell: _Cell) -> _Step:
        state = to.weight(cell.state[None], f"state{index}_weight")

        def step(to: Conversion, gates: str, before: _State | None) -> _State:
            if before is not None:
                product = to.op("matmul", before[0], state, transposeB=True)
                gates = to.op("add", gates, product)
            return [to.op("tanh", gates)]

        return step

    return _run(one, to, x, states, cells, step_of, [cell.bias.reshape(-1) for cell in cells])


def _cells(
    one: NcnnLayer, to: Conversion, gates: int, hidden: int, width: int, biases: int
) -> list[_Cell]:
    """Reads the weights of every direction."""
    one.refuse(8, "int8 weights")
    count, total = 1 + (one.whole(2) == _BOTH), one.whole(1)
    rows = count * gates * hidden
    if width < 1 or hidden < 1 or not 0 <= one.whole(2) <= _BOTH or total < 1 or total % rows:
        raise one.damaged(f"{total} weights for {width} outputs in direction {one.whole(2)}")
    inputs = to.weights.flagged(total, one).reshape(count, gates * hidden, total // rows)
    bias = to.weights.flagged(count * biases * hidden, one).reshape(count, biases, hidden)
    states = to.weights.flagged(rows * width, one).reshape(count, gates * hidden, width)
    return [_Cell(*parts) for parts in zip(inputs, bias, states, strict=True)]


def _run(
    one: NcnnLayer,
    to: Conversion,
    x: str,
    states: Sequence[str],
    cells: Sequence[_Cell],
    step_of: Callable[[int, _Cell], _Step],
    biases: Sequence[Array],
) -> list[str]:
    """Returns all steps of all directions, then the last states if the layer has outputs for
    them."""
    extents = to.extents(x)
    if len(extents) != 2 or extents[1] != cells[0].input.shape[1]:
        raise one.damaged(f"an input of {list(extents)}: wanted rows of {cells[0].input.shape[1]}")
    current().check_nodes(extents[0], f"a sequence of {extents[0]:,} steps", one.source)
    rows: list[str] = []
    last: list[_State] = []
    for index, (cell, bias) in enumerate(zip(cells, biases, strict=True)):
        weight = to.weight(cell.input[None], f"input{index}_weight")
        product = to.op("matmul", x, weight, transposeB=True)
        gates = to.op("add", product, to.weight(bias.reshape(1, 1, -1), f"bias{index}"))
        steps = _parts(to, gates, extents[0])
        backwards = one.whole(2) == _REVERSE or index == 1
        state = _first(one, to, states, index, len(cells))
        step = step_of(index, cell)
        made: list[str] = []
        for gate in reversed(steps) if backwards else steps:
            state = step(to, gate, state)
            made.append(state[0])
        assert state is not None
        last.append(state)
        rows.append(_joined(to, made[::-1] if backwards else made, 1))
    outputs = [_joined(to, rows, 2)]
    if len(one.outputs) > 1:
        outputs += [_joined(to, [s[k] for s in last], 1) for k in range(len(last[0]))]
    return outputs


def _first(
    one: NcnnLayer, to: Conversion, states: Sequence[str], index: int, count: int
) -> _State | None:
    """Returns the initial state of direction ``index``; None if no state is given."""
    for state in states:
        if len(to.extents(state)) != 2 or to.extents(state)[0] != count:
            raise one.damaged(f"a state of {list(to.extents(state))}: wanted {count} rows")
    return [_parts(to, state, count)[index] for state in states] or None


def _parts(to: Conversion, x: str, count: int) -> list[str]:
    return [x] if count == 1 else to.ops("split", count, x, axis=1, ratios=[1] * count)


def _joined(to: Conversion, parts: Sequence[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else to.op("concat", *parts, axis=axis)
