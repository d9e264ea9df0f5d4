"""Converts recurrent layers, unrolled step by step: an input's extent is the sequence length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cml_engine.formats.ncnn.conversion import NcnnLayer, NcnnTensor, converts, joined
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array

_REVERSE, _BOTH = 1, 2


@dataclass(frozen=True)
class _Cell:
    """The weights of one direction of a recurrent layer.

    ``input`` and ``state`` are matrices for the input and the previous state, with the rows of
    one gate after those of another. ``bias`` has the gates' biases, ``inner_bias`` what is left:
    the bias of a GRU's product with the state.
    """

    input: Array
    bias: Array
    inner_bias: Array
    state: Array


#: the tensors passed from step to step, of which the first is the step's result; empty before the
#: first step
_State = list[NcnnTensor]
#: returns the next state, from the input's part of the gates and the previous state
_Step = Callable[[NcnnTensor, _State], _State]

_recurrent = partial(converts, params="0-2 8", limits="int8 weights, long sequences")


@_recurrent("LSTM", params="0-3 8", inputs=(1, 3), outputs=(1, 3))
def _lstm(layer: NcnnLayer, x: NcnnTensor, *states: NcnnTensor) -> list[NcnnTensor]:
    width = layer.integer(0)
    hidden = layer.integer(3, width)
    cells = _cells(layer, 4, hidden, width, 4)
    projections = layer.array(len(cells), 1, width, hidden) if hidden != width else None
    if len(states) == 1:
        raise layer.damaged_error("a state without its memory")

    def step_of(index: int, cell: _Cell, weight: NcnnTensor) -> _Step:
        projection = None
        if projections is not None:
            projection = layer.constant(projections[index], f"projection{index}_weight")

        def step(gates: NcnnTensor, before: _State) -> _State:
            if before:
                gates = gates + before[0].matmul(weight, transposeB=True)
            i, f, o, g = gates.split(2, [1, 1, 1, 1])
            memory = i.sigmoid() * g.tanh()
            if before:
                memory = f.sigmoid() * before[1] + memory
            out = o.sigmoid() * memory.tanh()
            if projection is not None:
                out = out.matmul(projection, transposeB=True)
            return [out, memory]

        return step

    return _run(layer, x, states, cells, step_of)


@_recurrent("GRU", inputs=(1, 2), outputs=(1, 2))
def _gru(layer: NcnnLayer, x: NcnnTensor, *states: NcnnTensor) -> list[NcnnTensor]:
    width = layer.integer(0)

    def step_of(index: int, cell: _Cell, weight: NcnnTensor) -> _Step:
        inner = layer.constant(cell.inner_bias, f"new{index}_bias")

        def step(gates: NcnnTensor, before: _State) -> _State:
            reset, update, new = gates.split(2, [1, 1, 1])
            product = inner
            if before:
                recurrent = before[0].matmul(weight, transposeB=True).split(2, [1, 1, 1])
                reset, update = reset + recurrent[0], update + recurrent[1]
                product = recurrent[2] + inner
            new = (new + reset.sigmoid() * product).tanh()
            update = update.sigmoid()
            return [new + update * (before[0] - new) if before else new - update * new]

        return step

    return _run(layer, x, states, _cells(layer, 3, width, width, 4), step_of)


@_recurrent("RNN", inputs=(1, 2), outputs=(1, 2))
def _rnn(layer: NcnnLayer, x: NcnnTensor, *states: NcnnTensor) -> list[NcnnTensor]:
    width = layer.integer(0)

    def step_of(_index: int, _cell: _Cell, weight: NcnnTensor) -> _Step:
        def step(gates: NcnnTensor, before: _State) -> _State:
            if before:
                gates = gates + before[0].matmul(weight, transposeB=True)
            return [gates.tanh()]

        return step

    return _run(layer, x, states, _cells(layer, 1, width, width, 1), step_of)


def _cells(layer: NcnnLayer, gates: int, hidden: int, width: int, biases: int) -> list[_Cell]:
    """Reads the weights of the layer's one or two directions and returns a cell for each."""
    layer.refuse(8, "int8 weights")
    direction, total = layer.integer(2), layer.integer(1)
    count = 1 + (direction == _BOTH)
    rows = count * gates * hidden
    if width < 1 or hidden < 1 or not 0 <= direction <= _BOTH or total < 1 or total % rows:
        raise layer.damaged_error(f"{total} weights for {width} outputs in direction {direction}")
    inputs = layer.array(count, gates * hidden, total // rows)
    bias = layer.array(count, 1, 1, biases * hidden)
    states = layer.array(count, gates * hidden, width)
    parts = bias[..., : gates * hidden], bias[..., gates * hidden :]
    return [_Cell(*weights) for weights in zip(inputs, *parts, states, strict=True)]


def _run(
    layer: NcnnLayer,
    x: NcnnTensor,
    states: Sequence[NcnnTensor],
    cells: Sequence[_Cell],
    step_of: Callable[[int, _Cell, NcnnTensor], _Step],
) -> list[NcnnTensor]:
    """Runs a recurrent layer over all steps of ``x`` and returns its outputs.

    The first output has the results of all steps, of both directions side by side. The last states
    follow if the layer has outputs for them. ``states`` have a row for each direction.
    """
    width = cells[0].input.shape[1]
    if len(x.extents) != 2 or x.extents[1] != width:
        raise layer.damaged_error(f"an input of {list(x.extents)}: wanted rows of {width}")
    length = x.extents[0]
    current_budget().check_nodes(length, f"a sequence of {length:,} steps", layer.source)
    rows: list[NcnnTensor] = []
    final_states: list[_State] = []
    for index, cell in enumerate(cells):
        weight = layer.constant(cell.input[None], f"input{index}_weight")
        product = x.matmul(weight, transposeB=True)
        steps = _rows(product + layer.constant(cell.bias, f"bias{index}"), length)
        is_backwards = layer.integer(2) == _REVERSE or index == 1
        for state in states:
            if len(state.extents) != 2 or state.extents[0] != len(cells):
                expected = f"wanted {len(cells)} rows"
                raise layer.damaged_error(f"a state of {list(state.extents)}: {expected}")
        current = [_rows(state, len(cells))[index] for state in states]
        step = step_of(index, cell, layer.constant(cell.state[None], f"state{index}_weight"))
        outputs_of_steps: list[NcnnTensor] = []
        for gates in reversed(steps) if is_backwards else steps:
            current = step(gates, current)
            outputs_of_steps.append(current[0])
        final_states.append(current)
        rows.append(joined(outputs_of_steps[::-1] if is_backwards else outputs_of_steps, 1))
    outputs = [joined(rows, 2)]
    if len(layer.outputs) > 1:
        outputs += [joined(parts, 1) for parts in zip(*final_states, strict=True)]
    return outputs


def _rows(x: NcnnTensor, count: int) -> list[NcnnTensor]:
    return [x] if count == 1 else x.split(1, [1] * count)
