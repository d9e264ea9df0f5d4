"""Imports LSTM, GRU and RNN, unrolled step by step.

One product computes the input's contribution to all steps. Each step adds a product with the
state and a few elementwise operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cml_engine.formats.onnx.attributes import FLOAT, FLOATS, TEXTS, at_least, one_of
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import op
from cml_engine.formats.onnx.operators.convolution import apply_activation
from cml_engine.formats.onnx.values import Value

_COMMON = {
    "activation_alpha": FLOATS,
    "activation_beta": FLOATS,
    "activations": TEXTS,
    "clip": FLOAT,
    "direction": one_of("forward", "reverse", "bidirectional"),
    "hidden_size": at_least(1),
}
#: the number of parameters of activations that have any
_PARAMETERS = {
    "affine": 2, "leakyrelu": 1, "thresholdedrelu": 1, "scaledtanh": 2, "hardsigmoid": 2, "elu": 1,
}  # fmt: skip

State = list[Value]


@dataclass(frozen=True)
class RecurrentCell:
    """One direction of a recurrent layer: its node, weights, biases and activations."""

    call: OnnxCall
    weights: Value
    recurrent: Value
    bias: tuple[Value, Value]
    peephole: Value | None
    activations: tuple[tuple[str, list[float]], ...]

    @property
    def size(self) -> int:
        return self.recurrent.shape[1]

    def apply(self, number: int, x: Value, clipped: bool = True) -> Value:
        """Adds activation ``number`` of ``x`` and returns the result.

        With ``clipped`` ``x`` is first clamped by the node's attribute ``clip``, if it has one.
        """
        name, params = self.activations[number]
        bound = self.call.attr("clip") if clipped else None
        x = x if bound is None else self.call.op("clamp", x, -float(bound), float(bound))
        return apply_activation(self.call, x, name, params)

    def from_state(self, hidden: Value, weights: Value, bias: Value | float = 0.0) -> Value:
        return self.call.op("linear", hidden, weights, bias)


Step = Callable[[RecurrentCell, Value, State], State]


def _rows(call: OnnxCall, value: Value, index: int) -> Value:
    """Returns the part of a weight or state that belongs to direction ``index``."""
    return call.squeeze(call.slice(value, 0, index, index + 1), [0])


def _parts(cell: RecurrentCell, x: Value, count: int) -> list[Value]:
    return cell.call.split(x, 1, [cell.size] * count)


# -- the three cells -----------------------------------------------------------------------------


def _lstm_step(cell: RecurrentCell, x: Value, state: State) -> State:
    call, (hidden, old) = cell.call, state
    gates = call.op("add", x, cell.from_state(hidden, cell.recurrent))
    i, o, f, c = _parts(cell, gates, 4)
    look = [None] * 3 if cell.peephole is None else _parts(cell, cell.peephole, 3)
    i = cell.apply(0, _add_peephole(call, i, look[0], old))
    if call.attr("input_forget"):
        f = call.op("sub", 1.0, i)
    else:
        f = cell.apply(0, _add_peephole(call, f, look[2], old))
    new = call.op("add", call.op("mul", f, old), call.op("mul", i, cell.apply(1, c)))
    o = cell.apply(0, _add_peephole(call, o, look[1], new))
    # `clip` bounds the sums of the gates only: ONNX Runtime does not clip the argument of h
    return [call.op("mul", o, cell.apply(2, new, clipped=False)), new]


def _add_peephole(call: OnnxCall, gate: Value, weights: Value | None, state: Value) -> Value:
    return gate if weights is None else call.op("add", gate, call.op("mul", weights, state))


def _gru_step(cell: RecurrentCell, x: Value, state: State) -> State:
    call, hidden, n = cell.call, state[0], cell.size
    xz, xr, xh = _parts(cell, x, 3)
    weights = call.split(cell.recurrent, 0, [n, n, n])
    # x already includes the state biases of z and r
    z = cell.apply(0, call.op("add", xz, cell.from_state(hidden, weights[0])))
    r = cell.apply(0, call.op("add", xr, cell.from_state(hidden, weights[1])))
    bias = call.slice(cell.bias[1], 1, 2 * n, 3 * n)
    if call.attr("linear_before_reset"):
        inner = call.op("mul", r, cell.from_state(hidden, weights[2], bias))
    else:
        inner = cell.from_state(call.op("mul", r, hidden), weights[2], bias)
    new = cell.apply(1, call.op("add", xh, inner))
    return [call.op("add", new, call.op("mul", z, call.op("sub", hidden, new)))]


def _rnn_step(cell: RecurrentCell, x: Value, state: State) -> State:
    call = cell.call
    return [cell.apply(0, call.op("add", x, cell.from_state(state[0], cell.recurrent)))]


# -- all steps of all directions -----------------------------------------------------------------


def _run(
    call: OnnxCall, gates: int, states: int, defaults: tuple[str, ...], step: Step
) -> list[Value]:
    batch_first = bool(call.attributes.get("layout"))
    x = call.transpose(call[0], [1, 0, 2]) if batch_first else call[0]
    length, batch, _ = x.shape
    call.check_written_out(length)
    directions = 2 if call.attr("direction") == "bidirectional" else 1
    if call[1].shape[0] != directions:
        raise call.shape_error(f"direction '{call.attr('direction')}' with weights {call[1]}")
    names = _activations(call, defaults * directions)
    outputs, finals = [], []
    for d in range(directions):
        cell = _cell(call, d, gates, names[d * len(defaults) : (d + 1) * len(defaults)])
        state = [_initial(call, 5 + i, d, batch, cell.size, batch_first) for i in range(states)]
        back = call.attr("direction") == "reverse" or d == 1
        y, state = _steps(call, cell, x, state, back, step)
        outputs.append(y)
        finals.append(state)
    y = outputs[0] if directions == 1 else call.concat(outputs, 1)
    lasts = [call.concat([call.unsqueeze(f[i], [0]) for f in finals], 0) for i in range(states)]
    if batch_first:
        y = call.transpose(y, [2, 0, 1, 3])
        lasts = [call.transpose(v, [1, 0, 2]) for v in lasts]
    return [y, *lasts]


def _steps(
    call: OnnxCall, cell: RecurrentCell, x: Value, state: State, back: bool, step: Step
) -> tuple[Value, State]:
    """Adds all steps of one direction over ``x``, [length, batch, width], from ``state``.

    Returns every step's hidden state as [length, 1, batch, size], and the last state.
    """
    length, batch, width = x.shape
    flat = call.reshape(x, [length * batch, width])
    every = call.op("linear", flat, cell.weights, cell.bias[0])
    lengths = call.ints(4, "the lengths of the sequences") if call.has(4) else [length] * batch
    found: list[Value] = []
    for t in range(length)[:: -1 if back else 1]:
        new = step(cell, call.slice(every, 0, t * batch, (t + 1) * batch), state)
        hidden = new[0]
        if min(lengths) <= t:
            runs = Value.known(np.array([t < n for n in lengths]).reshape(batch, 1))
            new = [call.op("select", runs, a, b) for a, b in zip(new, state, strict=True)]
            hidden = call.op("select", runs, hidden, 0.0)
        state = new
        found.append(call.reshape(hidden, [1, 1, batch, cell.size]))
    return call.concat(found[::-1] if back else found, 0), state


def _cell(
    call: OnnxCall, d: int, gates: int, names: list[tuple[str, list[float]]]
) -> RecurrentCell:
    recurrent = _rows(call, call[2], d)
    count = gates * recurrent.shape[1]
    if call.has(3):
        both = call.slice(call[3], 0, d, d + 1)
        of_x, of_state = call.split(both, 1, [count, count])
    else:
        of_x = of_state = Value.known(np.zeros((1, count), np.float32))
    peephole = call.slice(call[7], 0, d, d + 1) if call.has(7) else None
    return RecurrentCell(
        call=call,
        weights=_rows(call, call[1], d),
        recurrent=recurrent,
        bias=(_input_bias(call, of_x, of_state, gates, recurrent.shape[1]), of_state),
        peephole=peephole,
        activations=tuple(names),
    )


def _input_bias(call: OnnxCall, of_x: Value, of_state: Value, gates: int, size: int) -> Value:
    """Returns the sum of the bias of the input and the bias of the state.

    The state's bias of a GRU's last gate is left out, because the reset gate scales it.
    """
    if gates == 3:
        kept = call.slice(of_state, 1, 0, 2 * size)
        zero = Value.known(np.zeros((1, size), np.float32))
        of_state = call.concat([kept, zero], 1)
    if of_x.array is not None and of_state.array is not None:
        return Value.known(of_x.array + of_state.array, of_x.name)
    return call.op("add", of_x, of_state)


def _initial(
    call: OnnxCall, position: int, d: int, batch: int, size: int, batch_first: bool
) -> Value:
    if not call.has(position):
        return Value.known(np.zeros((batch, size), np.float32))
    given = call[position]
    given = call.transpose(given, [1, 0, 2]) if batch_first else given
    return _rows(call, given, d)


def _activations(call: OnnxCall, defaults: tuple[str, ...]) -> list[tuple[str, list[float]]]:
    """Returns the name and the parameters of each activation of a recurrent node.

    The attributes ``activation_alpha`` and ``activation_beta`` list the parameters in order.
    """
    names = call.attr("activations") or defaults
    if len(names) != len(defaults):
        raise call.shape_error(f"activations {names}: wanted {len(defaults)}")
    alphas = list(call.attr("activation_alpha") or [])
    betas = list(call.attr("activation_beta") or [])
    found = []
    for name in names:
        count = _PARAMETERS.get(name.lower(), 0)
        lists: list[list[Any]] = [alphas, betas][:count]
        given = all(lists) if count else False
        found.append((name, [values.pop(0) for values in lists] if given else []))
    return found


for _name, _gates, _states, _defaults, _step, _inputs, _more in (
    ("LSTM", 4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step, 8, {"input_forget": 0}),
    ("GRU", 3, 1, ("Sigmoid", "Tanh"), _gru_step, 6, {"linear_before_reset": 0}),
    ("RNN", 1, 1, ("Tanh",), _rnn_step, 6, {}),
):
    _form = partial(_run, gates=_gates, states=_states, defaults=_defaults, step=_step)
    _nnef = "linear, split, add, mul, and the activations, for every step"
    op(_name, nnef=_nnef, inputs=_inputs, attrs={**_COMMON, **_more}, until=13)(_form)
    op(_name, nnef=_nnef, inputs=_inputs, attrs={**_COMMON, **_more, "layout": 0}, since=14)(_form)
