"""Imports If, Loop and Scan, and the recurrent LSTM, GRU and RNN, all unrolled at import.

Trip counts and the conditions of loops must be known. In recurrent operators one product computes
the input's contribution to all steps; each step adds a product with the state and elementwise
operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cml_engine.errors import ModelError, TensorFileError
from cml_engine.formats.onnx.model import OnnxGraph
from cml_engine.formats.onnx.op_schemas import (
    MICROSOFT,
    Attr,
    OnnxCall,
    at_least,
    attribute,
    one_of,
    op,
)
from cml_engine.formats.onnx.operators.elementwise import activate, parameter_count
from cml_engine.formats.onnx.operators.quantized import dequantize
from cml_engine.formats.onnx.operators.runtime_quantized import dynamically_quantized
from cml_engine.formats.onnx.values import (
    InvalidNode,
    SequenceValue,
    Value,
    as_value,
    checked_axis,
    concat,
    constant,
    needs_constant,
    per_channel,
    zeros,
)
from cml_engine.io.load_limits import current_budget


@op(
    "If", "the branch that is taken; both and select, if that is known at run time only",
    takes_sequences=True,
)  # fmt: skip
def if_(
    call: OnnxCall, condition: Value, *, then_branch: OnnxGraph, else_branch: OnnxGraph
) -> list[Value]:
    if condition.size != 1:
        raise InvalidNode(f"a condition of {condition.size} values")
    if condition.array is not None:
        is_taken = bool(condition.array.reshape(-1)[0])
        return call.inner(then_branch if is_taken else else_branch, [], "")
    try:
        branches = [
            call.inner(branch, [], f"{name}_")
            for name, branch in (("then", then_branch), ("else", else_branch))
        ]
    except TensorFileError:
        raise
    except ModelError as error:
        raise needs_constant(
            condition, "the condition", f". One of its branches cannot be imported: {error}"
        ) from error
    pairs = list(zip(*branches, strict=True))
    for yes, no in pairs:
        is_sequence = isinstance(yes, SequenceValue) or isinstance(no, SequenceValue)
        if is_sequence or (yes.dtype, yes.shape) != (no.dtype, no.shape):
            raise needs_constant(
                condition,
                "the condition",
                f", or give its branches results of one shape, which are {yes} and {no}",
            )
    is_chosen = condition.squeeze(range(condition.rank))
    return [is_chosen.select(yes, no).typed(yes.dtype) for yes, no in pairs]


@op("Loop", "its body, again and again", takes_sequences=True)
def loop(
    call: OnnxCall,
    number_of_iterations: int | None = None,
    condition: Value | None = None,
    *initial_state: Value,
    body: OnnxGraph,
) -> list[Value]:
    is_running = as_value(True) if condition is None else condition
    state, count = list(initial_state), 0
    stacked: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    while (number_of_iterations is None or count < number_of_iterations) and bool(
        constant(is_running, "the loop's condition").reshape(-1)[0]
    ):
        current_budget().charge_nodes(1, f"iteration {count:,} of the loop")
        inputs = [as_value(count), is_running, *state]
        is_running, *results = call.inner(body, inputs, f"{count}_")
        state = results[: len(state)]
        for parts, value in zip(stacked, results[len(state) :], strict=True):
            parts.append(value.unsqueeze([0]))
        count += 1
    if not count and stacked:  # the body tells the shapes of its results
        results = call.inner(body, [as_value(0), is_running, *state], "0_")[1 + len(state) :]
        return [*state, *(zeros([0, *value.shape], value.dtype) for value in results)]
    return [*state, *(concat(parts, 0) for parts in stacked)]


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
    reversed_inputs = scan_input_directions or [0] * num_scan_inputs
    lengths = {v.shape[a] for a, v in zip(axes, scanned, strict=True)}
    if len(lengths) != 1:
        raise InvalidNode(f"it goes over {sorted(lengths)} elements at once")
    length = lengths.pop()
    current_budget().check_nodes(length, "the operator")
    stacked: list[list[Value]] = [[] for _ in range(len(body.outputs) - len(state))]
    if stacked and not length:
        raise InvalidNode("it goes over no elements")
    out_axes = scan_output_axes or [0] * len(stacked)
    reversed_outputs = scan_output_directions or [0] * len(stacked)
    for step in range(length):
        parts = []
        for value, axis, is_reversed in zip(scanned, axes, reversed_inputs, strict=True):
            index = length - 1 - step if is_reversed else step
            parts.append(value.slice(axis, index, index + 1).squeeze([axis]))
        results = call.inner(body, [*state, *parts], f"{step}_")
        state = results[: len(state)]
        for outputs, value, axis in zip(stacked, results[len(state) :], out_axes, strict=True):
            outputs.append(value.unsqueeze([checked_axis(axis, value.rank + 1)]))
    joined = [
        concat(outputs[::-1] if is_reversed else outputs, checked_axis(axis, outputs[0].rank))
        for outputs, axis, is_reversed in zip(stacked, out_axes, reversed_outputs, strict=True)
    ]
    return [*state, *joined]


State = list[Value]


@dataclass(frozen=True)
class RecurrentCell:
    """One direction of a recurrent layer: its weights, biases and activations.

    ``clip`` bounds the arguments of activations. ``variant`` is the attribute ``input_forget`` of
    an LSTM and ``linear_before_reset`` of a GRU. ``rounded`` rounds the input and the states before
    their products with the weights.
    """

    weights: Value
    recurrent: Value
    bias: tuple[Value, Value]
    peephole: Value | None
    activations: Sequence[tuple[str, list[float]]]
    clip: float | None
    variant: bool
    rounded: Callable[[Value], Value]

    @property
    def size(self) -> int:
        return self.recurrent.shape[1]

    def parts(self, x: Value, count: int) -> list[Value]:
        return x.split(1, [self.size] * count)

    def apply(self, number: int, x: Value, clipped: bool = True) -> Value:
        """Adds activation ``number`` of ``x``, clamped if ``clipped``, and returns its result."""
        if clipped and self.clip is not None:
            x = x.clamp(-self.clip, self.clip)
        return activate(x, *self.activations[number])


Step = Callable[[RecurrentCell, Value, State], State]


# -- the three cells -----------------------------------------------------------------------------


def _lstm_step(cell: RecurrentCell, x: Value, state: State) -> State:
    hidden, old_cell = state
    i, o, f, c = cell.parts(x + cell.rounded(hidden).linear(cell.recurrent, 0.0), 4)
    peepholes = [None] * 3 if cell.peephole is None else cell.parts(cell.peephole, 3)
    i = cell.apply(0, _add_peephole(i, peepholes[0], old_cell))
    f = 1.0 - i if cell.variant else cell.apply(0, _add_peephole(f, peepholes[2], old_cell))
    new_cell = f * old_cell + i * cell.apply(1, c)
    o = cell.apply(0, _add_peephole(o, peepholes[1], new_cell))
    # `clip` bounds the sums of the gates only: ONNX Runtime does not clip the argument of h
    return [o * cell.apply(2, new_cell, clipped=False), new_cell]


def _add_peephole(gate: Value, weights: Value | None, state: Value) -> Value:
    return gate if weights is None else gate + weights * state


def _gru_step(cell: RecurrentCell, x: Value, state: State) -> State:
    hidden, n = state[0], cell.size
    xz, xr, xh = cell.parts(x, 3)
    weights_z, weights_r, weights_h = cell.recurrent.split(0, [n, n, n])
    # x already includes the state biases of z and r
    z = cell.apply(0, xz + hidden.linear(weights_z, 0.0))
    r = cell.apply(0, xr + hidden.linear(weights_r, 0.0))
    bias = cell.bias[1].slice(1, 2 * n, 3 * n)
    inner = (
        r * hidden.linear(weights_h, bias) if cell.variant else (r * hidden).linear(weights_h, bias)
    )
    candidate = cell.apply(1, xh + inner)
    return [candidate + z * (hidden - candidate)]


def _rnn_step(cell: RecurrentCell, x: Value, state: State) -> State:
    return [cell.apply(0, x + state[0].linear(cell.recurrent, 0.0))]


# -- all steps of all directions -----------------------------------------------------------------


def _rows(value: Value, index: int) -> Value:
    """Returns the part of a weight or state that belongs to direction ``index``."""
    return value.slice(0, index, index + 1).squeeze([0])


def _steps(
    cell: RecurrentCell, x: Value, state: State, lengths: Value | None, is_reversed: bool,
    step: Step,
) -> tuple[Value, State]:  # fmt: skip
    """Adds all steps of one direction over ``x``, [length, batch, width], from ``state``.

    ``lengths`` are those of the sequences of the batch, [batch]; None means the whole length.
    Returns every step's hidden state as [length, 1, batch, size], and the last state.
    """
    length, batch, width = x.shape
    rows = cell.rounded(x.reshape([length * batch, width]))
    projected = rows.linear(cell.weights, cell.bias[0])
    hidden_states: list[Value] = []
    for t in range(length)[:: -1 if is_reversed else 1]:
        new_state = step(cell, projected.slice(0, t * batch, (t + 1) * batch), state)
        hidden = new_state[0]
        is_within = None if lengths is None else lengths.gt(t).reshape([batch, 1])
        if is_within is not None and not (is_within.array is not None and is_within.array.all()):
            new_state = [is_within.select(a, b) for a, b in zip(new_state, state, strict=True)]
            hidden = is_within.select(hidden, 0.0)
        state = new_state
        hidden_states.append(hidden.reshape([1, 1, batch, cell.size]))
    return concat(hidden_states[::-1] if is_reversed else hidden_states, 0), state


def _input_bias(input_bias: Value, state_bias: Value, gates: int, size: int) -> Value:
    """Returns the sum of the bias of the input and the bias of the state.

    The state's bias of a GRU's last gate is left out, because the reset gate scales it.
    """
    if gates == 3:
        state_bias = concat([state_bias.slice(1, 0, 2 * size), zeros((1, size))], 1)
    return input_bias + state_bias


def _activations(
    names: Sequence[str] | None,
    defaults: tuple[str, ...],
    alphas: list[float] | None,
    betas: list[float] | None,
) -> list[tuple[str, list[float]]]:
    """Returns the name and the parameters of each activation of a recurrent node.

    The parameters of all are listed in order.
    """
    names = names or defaults
    if len(names) != len(defaults):
        raise InvalidNode(f"activations {names}: wanted {len(defaults)}")
    parameter_lists = [list(alphas or []), list(betas or [])]
    activations = []
    for name in names:
        lists = parameter_lists[: parameter_count(name)]
        activations.append((name, [values.pop(0) for values in lists] if all(lists) else []))
    return activations


#: the attributes of all recurrent operators
_RECURRENT: Mapping[str, Attr] = {
    "activation_alpha": Attr(float, many=True),
    "activation_beta": Attr(float, many=True),
    "activations": Attr(str, many=True),
    "clip": Attr(float),
    "direction": one_of("forward", "reverse", "bidirectional"),
    "hidden_size": at_least(1),
}


def _declare(
    name: str, gates: int, defaults: tuple[str, ...], step: Step, variant: str = ""
) -> Callable[..., list[Value]]:
    """Declares a recurrent operator and returns its form.

    ``variant`` is an attribute of its own.
    """
    states = 2 if name == "LSTM" else 1
    attrs = {**_RECURRENT, "layout": attribute(False, kind=bool, since=14)}
    if variant:
        attrs[variant] = Attr(bool, False)

    def form(
        x: Value,
        weights: Value,
        recurrent: Value,
        bias: Value | None = None,
        sequence_lengths: Value | None = None,
        initial: Value | None = None,
        initial_cell: Value | None = None,
        peepholes: Value | None = None,
        *,
        activation_alpha: list[float] | None,
        activation_beta: list[float] | None,
        activations: list[str] | None,
        clip: float | None,
        direction: str,
        layout: bool = False,
        **more: Any,
    ) -> list[Value]:
        if x.rank != 3:
            raise InvalidNode(f"its input is {x}, wanted 3 axes")
        x = x.transpose([1, 0, 2]) if layout else x
        length, batch, _ = x.shape
        current_budget().check_nodes(length, "the operator")
        directions = 2 if direction == "bidirectional" else 1
        activation_list = _activations(
            activations, defaults * directions, activation_alpha, activation_beta
        )
        initial_states = [initial, initial_cell][:states]
        initial_states = [
            v.transpose([1, 0, 2]) if layout and v is not None else v for v in initial_states
        ]
        size = recurrent.shape[2]
        shapes: list[tuple[Value | None, list[int]]] = [
            (weights, [gates * size, x.shape[2]]),
            (recurrent, [gates * size, size]),
            (bias, [2 * gates * size]),
            (peepholes, [3 * size]),
            *((state, [batch, size]) for state in initial_states),
        ]
        for value, shape in shapes:
            if value is not None and value.shape != (directions, *shape):
                raise InvalidNode(f"an input is {value}, wanted {[directions, *shape]}")
        if sequence_lengths is not None:
            per_channel(sequence_lengths, batch, "the input of lengths")
        outputs, states_by_direction = [], []
        for d in range(directions):
            input_bias = state_bias = zeros((1, gates * size))
            if bias is not None:
                input_bias, state_bias = bias.slice(0, d, d + 1).split(1, [gates * size] * 2)
            cell = RecurrentCell(
                weights=_rows(weights, d),
                recurrent=_rows(recurrent, d),
                bias=(_input_bias(input_bias, state_bias, gates, size), state_bias),
                peephole=None if peepholes is None else peepholes.slice(0, d, d + 1),
                activations=activation_list[d * len(defaults) : (d + 1) * len(defaults)],
                clip=clip,
                variant=more.get(variant, False),
                rounded=more.get("rounded", lambda x: x),
            )
            state = [zeros((batch, size)) if v is None else _rows(v, d) for v in initial_states]
            is_reversed = direction == "reverse" or d == 1
            y, state = _steps(cell, x, state, sequence_lengths, is_reversed, step)
            outputs.append(y)
            states_by_direction.append(state)
        y = concat(outputs, 1)
        final_states = [
            concat([f[i].unsqueeze([0]) for f in states_by_direction], 0) for i in range(states)
        ]
        if layout:
            y = y.transpose([2, 0, 1, 3])
            final_states = [v.transpose([1, 0, 2]) for v in final_states]
        return [y, *final_states]

    op(name, "linear, split, add, mul, and the activations, for every step", attrs=attrs,
       inputs=8 if name == "LSTM" else 6)(form)  # fmt: skip
    return form


_lstm = _declare("LSTM", 4, ("Sigmoid", "Tanh", "Tanh"), _lstm_step, "input_forget")
_declare("GRU", 3, ("Sigmoid", "Tanh"), _gru_step, "linear_before_reset")
_declare("RNN", 1, ("Tanh",), _rnn_step)


@op("DynamicQuantizeLSTM", "DynamicQuantizeLinear, and LSTM's operators", domain=MICROSOFT,
    attrs={**_RECURRENT, "input_forget": Attr(bool, False)}, inputs=12)  # fmt: skip
def dynamic_quantize_lstm(call: OnnxCall, **attributes: Any) -> list[Value]:
    """Imports DynamicQuantizeLSTM: an LSTM whose weights are integers, with their axes swapped.

    Behind LSTM's inputs are the scales and zero points of both. The input and the states are
    rounded to 256 steps before each product.
    """
    weights = _quantized_rows(call[1], call[8], call[9])
    recurrent = _quantized_rows(call[2], call[10], call[11])
    others = [call.optional(position) for position in range(3, 8)]
    return _lstm(call[0], weights, recurrent, *others, **attributes, rounded=dynamically_quantized)


def _quantized_rows(integers: Value, scale: Value, zero: Value) -> Value:
    """Returns weights [directions, inputs, gates] as the numbers [directions, gates, inputs]."""
    count = integers.shape[0]
    scales, zeros = (v.reshape([count, 1, v.size // count]) for v in (scale, zero))
    return dequantize(integers, scales, zeros).transpose([0, 2, 1])
