"""Generates the code and arguments of elementwise operators that are fused into a kernel.

The statements are generated from the operators' own formulas and inserted into
``shaders_hlsl/include/epilogue.hlsli``. A kernel that supports epilogues declares it
(``Kernel.epilogues``), appends :data:`PARAMS` to its parameters, and calls :func:`epilogue_of`
for each node to get the defines, values and tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cml_engine.ir.graph import Array, Epilogue, Fact, Graph, Node
from cml_engine.ir.integer_rule import FLOAT_BOUND
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.expression import LETTERS, Formula
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import formula_of, lookup
from cml_engine.ops.declaration.spec import Defines, Epilogues

#: a longer chain is rare, and each step is registers of the producer's kernel
MAX_STEPS = 5
#: the most tensors that the steps read; with a conv's input, filter, bias and result, this is the
#: number of bindings that WebGPU guarantees
MAX_TENSORS = 4
#: the binding size in bytes that WebGPU guarantees; larger tensors are bound in parts
GUARANTEED = Limits().max_binding_bytes
#: the most numbers passed as parameters: attributes, constants, the number of positions
_MAX_VALUES = 10
PARAMS = f"epi_value:f{_MAX_VALUES}"
#: the define that has the statements
STEPS = "EPI_STEPS"
#: larger numbers of positions are not exact in a float
_MAX_POSITIONS = 1 << 24


@dataclass(frozen=True, slots=True)
class EpilogueArgs:
    """The additions of a node's epilogues to a dispatch.

    ``tensors`` are bound from the requested slot on. ``after_bias`` are constants to place behind
    the bias, each in blocks of four channels like it.
    """

    defines: Defines
    params: dict[str, list[float]]
    tensors: tuple[str, ...]
    after_bias: tuple[str, ...] = ()


def has_room(graph: Graph, node: Node, epilogues: Iterable[Epilogue]) -> bool:
    """Returns True if the node's kernel can apply all epilogues to its result on every device.

    Their buffers must not exceed the number that every device can bind. Passes do not know the
    device, so tensors count as many bindings as the smallest device needs.
    """
    steps = list(epilogues)
    tensors = _tensors(graph, steps)
    bound = [graph.facts[name].nbytes for name in (*node.inputs, *node.outputs, *tensors)]
    # a tensor in several parts has a binding for each
    count = len(tensors) + sum(max(nbytes - 1, 0) // GUARANTEED for nbytes in bound)
    return _is_possible(graph, steps) and (not tensors or count <= MAX_TENSORS)


def _is_possible(graph: Graph, steps: Sequence[Epilogue]) -> bool:
    """Returns True if a kernel's code has room for the epilogues.

    Steps, values and tensors are limited.
    """
    operands = sum(len(step.inputs) + len(step_formula(step).attrs) for step in steps)
    fits = len(steps) <= MAX_STEPS and operands <= _MAX_VALUES
    return fits and len(_tensors(graph, steps)) <= MAX_TENSORS


def _tensors(graph: Graph, steps: Iterable[Epilogue]) -> list[str]:
    operands = (name for step in steps for name in step.inputs)
    return [name for name in operands if _number(graph, name) is None]


def step_formula(epilogue: Epilogue) -> Formula:
    """Returns the formula of the operator that is fused as this epilogue."""
    formula = formula_of(epilogue.op)
    assert formula is not None  # only these are fused
    return formula


def is_wide(epilogue: Epilogue) -> bool:
    """Returns True if a kernel can apply an epilogue to four channels at once."""
    formula = formula_of(epilogue.op)
    if formula is None or not formula.fusable or epilogue.own:
        return False
    return formula.wide_expression("float4", [""] * len(formula.attrs)) is not None


def epilogue_of(
    op: Lowering,
    slot: int,
    vector: bool = False,
    sums: str = "float",
    appends_to_bias: bool = False,
    channels: int | None = None,
) -> EpilogueArgs:
    """Returns the defines, values and tensors of ``op``'s epilogues.

    Tensors are bound as ``T<slot>``, ``T<slot+1>``, …. With ``vector``, the kernel stores a
    ``float4`` of four channels. An operand is a number, or it has one value for every element of
    the result, for every channel (:func:`channel_axis`), for all, (:func:`is_by_position`) for
    every position, or (:func:`is_one_matrix`) for every element of a matrix. ``sums`` is the type
    of the kernel's results: ``int`` for integers that exceed the precision of floats. With
    ``appends_to_bias``, integers per channel may be stored after the bias; the kernel must call the
    bias ``BIAS`` and its number of channels ``out_c``. ``channels`` is their number if the kernel
    stores its result in another shape than it computes.
    """
    width = "4" if vector else ""
    statements = _Statements(op, slot, f"float{width}", f"{sums}{width}", appends_to_bias, channels)
    if not _is_possible(op.graph, op.epilogues):
        raise op.refuse(
            f"{len(op.epilogues)} fused operators; at most {MAX_STEPS} with {MAX_TENSORS} "
            f"tensors and {_MAX_VALUES} numbers are possible"
        )
    for epilogue in op.epilogues:
        statements.add(epilogue)
    return statements.arguments()


@dataclass
class _Statements:
    """The HLSL statements of a node's epilogues under construction, with their operands."""

    op: Lowering
    slot: int
    kind: str
    #: the type of the kernel's result before the first step
    sums: str
    appends_to_bias: bool
    channels: int | None
    defines: Defines = field(default_factory=dict)
    values: list[float] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    after_bias: list[str] = field(default_factory=list)
    #: operands that are read once per channel: fields of ``EpiOperands``, and the code to read them
    fields: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def arguments(self) -> EpilogueArgs:
        defines = self.defines | {"EPI_WIDTH": 4 if self.kind == "float4" else 1}
        if self.sums != self.kind:
            defines["EPI_SUMS"] = self.sums
        if self.steps:
            defines[STEPS] = " ".join(self.steps)
        if self.fields:
            defines |= {"EPI_FIELDS": " ".join(self.fields), "EPI_READS": " ".join(self.reads)}
        values = self.values + [0.0] * (_MAX_VALUES - len(self.values))
        return EpilogueArgs(
            defines, {"epi_value": values}, tuple(self.tensors), tuple(self.after_bias)
        )

    def add(self, epilogue: Epilogue) -> None:
        """Adds the epilogue's statement, which replaces ``v``, the kernel's result so far.

        It computes four numbers at once if the expression allows it. Raises an error if the
        operator cannot be fused.
        """
        formula = formula_of(epilogue.op)
        if formula is None or not formula.fusable or epilogue.own:
            raise self.op.refuse(
                f"cannot apply '{epilogue.op}' to its result; run it as its own node"
            )
        attributes = [self._value(value) for value in formula.values(epilogue.attrs)]
        operand_values = [self._operand(epilogue, name) for name in epilogue.inputs]
        previous = (self.kind, "v")
        if self.sums != self.kind and not self.steps and lookup(epilogue.op).traits.reads_sums:
            previous = (self.sums, "sums")
        operands = epilogue.operands(operand_values, [previous])
        by_letter = list(zip(LETTERS, operands, strict=False))
        if any(name in formula.hlsl for name in ("cml_requantize", "cml_integer")):
            self.defines["EPI_INTEGER"] = 1
        text = formula.wide_expression(self.kind, attributes)
        if text is not None:
            locals_ = " ".join(
                f"{hlsl_type} {letter} = {value};" for letter, (hlsl_type, value) in by_letter
            )
            self.steps.append(f"{{ {locals_} v = {text}; }}")
            return
        self.defines["EPI_SINGLE"] = 1
        text = formula.expression(attributes)
        for lane in ["[0]", "[1]", "[2]", "[3]"] if self.kind == "float4" else [""]:
            parts = [
                f"float {n} = ({v}){lane if k == self.kind else ''};" for n, (k, v) in by_letter
            ]
            self.steps.append(f"{{ {' '.join(parts)} v{lane} = {text}; }}")

    def _value(self, value: float) -> str:
        self.values.append(value)
        return f"epi_value({len(self.values) - 1})"

    def _read(self, text: str) -> str:
        """Declares a field that the HLSL ``text`` reads once per channel; returns its name."""
        name = f"read{len(self.fields)}"
        self.fields.append(f"{self.kind} {name};")
        self.reads.append(f"operands.{name} = {text};")
        return f"operands.{name}"

    def _bind(self, name: str, hlsl_type: str) -> str:
        tensor = f"T{self.slot + len(self.tensors)}"
        self.tensors.append(name)
        self.defines[f"{tensor}_TYPE"] = hlsl_type
        return tensor

    def _append_to_bias(self, name: str) -> str:
        """Places a constant after the bias; returns HLSL that reads it for a channel.

        For vectors the HLSL reads the four values of a block.
        """
        self.after_bias.append(name)
        block, lane = ("channel", "") if self.kind == "float4" else ("channel / 4", "[channel % 4]")
        return f"{self.kind}(BIAS[{len(self.after_bias)} * ((out_c + 3) / 4) + {block}]{lane})"

    def _lane(self, name: str, positions: int) -> str:
        """Returns HLSL that reads, from an operand in blocks, the element at the plain index."""
        count, number = f"uint({self._value(float(positions))})", "operands.number"
        block = f"{number} / 4 * {count} + at - {number} * {count}"
        return f"float4({self._bind(name, self.op.vector_type(name))}[{block}])[{number} % 4]"

    def _operand(self, epilogue: Epilogue, name: str) -> tuple[str, str]:
        """Binds an operand and returns its HLSL type and the HLSL that reads it."""
        op, graph = self.op, self.op.graph
        result, fact, number = op.outputs[0], op.fact(name), _number(graph, name)
        kernel = lookup(op.node.op).kernel
        kind: Epilogues = kernel.epilogues if kernel else "none"
        channels, value = self.channels, op.constant(name)
        if channels is None:
            channels = result.shape[channel_axis(kind, result)]
        if number is not None:
            return "float", self._value(number)
        if fact.size == 1:
            return self.kind, self._read(f"{self.kind}({self._bind(name, 'float')}[0])")
        by_element = value is None and fact == result
        if not by_element and kind != "columns" and is_by_position(fact, result):
            positions = self._value(float(fact.size))
            tensor = self._bind(name, "float")
            return self.kind, f"{self.kind}({tensor}[at - operands.number * uint({positions})])"
        if not by_element and kind == "columns" and is_one_matrix(fact, result):
            self.defines["EPI_MATRIX"] = 1
            size = f"uint({self._value(float(fact.size))})"
            return self.kind, f"{self._bind(name, 'float')}[at - cml_divide(at, {size}) * {size}]"
        if by_element and op.is_blocked(name) == op.is_blocked(op.out_names[0]):
            return self.kind, f"{self._bind(name, op.vector_type(name))}[at]"
        if by_element and op.is_blocked(name) and reads_blocks(result):
            return self.kind, self._lane(name, fact.size // channels)
        if fact.size == channels and not op.is_blocked(name):
            if value is not None and self.appends_to_bias and _are_exact_integers(value):
                return self.kind, self._read(self._append_to_bias(name))
            if value is not None:
                constant = value
                key = f"{name}.channels{channels}"
                name = op.pack(key, lambda: per_channel(constant, channels))
            return self.kind, self._read(f"{self._bind(name, self.kind)}[channel]")
        raise op.refuse(
            f"cannot apply '{epilogue.op}' with '{name}', {fact} ({op.layout(name)}), to its "
            f"result, {result} ({op.layout(op.out_names[0])}); run it as its own node"
        )


def channel_axis(kind: Epilogues, result: Fact) -> int:
    """Returns the axis of a result whose indices are an epilogue's channels."""
    return result.rank - 1 if kind == "columns" else 1


def is_by_position(operand: Fact, result: Fact) -> bool:
    """Returns True if the operand has one value per position of a single picture, ``[1,1,H,W]``.

    It must not have too many positions for float indices.
    """
    shape = (1, 1, *result.shape[2:])
    single = result.rank > 2 and result.shape[0] == 1
    return single and operand.shape == shape and operand.size <= _MAX_POSITIONS


def is_one_matrix(operand: Fact, result: Fact) -> bool:
    """Returns True if the operand is a matrix for each of the result's, ``[1,…,M,N]``.

    It must not have too many elements for float indices.
    """
    has_rows = result.rank > 1 and operand.rank == result.rank and result.shape[-2] > 1
    shape = (*[1] * (result.rank - 2), *result.shape[-2:])
    return has_rows and operand.shape == shape and 0 < operand.size <= _MAX_POSITIONS


def reads_blocks(result: Fact) -> bool:
    """Returns True if a kernel that stores ``result`` plain can read an operand in blocks of four.

    It can for a single picture whose number of elements is exact in a float.
    """
    return result.rank > 2 and result.shape[0] == 1 and 0 < result.size <= _MAX_POSITIONS


def _number(graph: Graph, name: str) -> float | None:
    """Returns the value of a constant with one element, otherwise None."""
    value = graph.constant(name)
    return float(value.reshape(())) if value is not None and value.size == 1 else None


def _are_exact_integers(value: Array) -> bool:
    """Returns True if all values are integers that a float represents exactly."""
    return bool(((np.abs(value) < FLOAT_BOUND) & (value == np.rint(value))).all())


def per_channel(value: Array, channels: int, multiple: int = 4) -> Array:
    """Returns float32 values for each channel, followed by zeros up to a multiple of ``multiple``.

    ``value`` is one number for all channels, or one per channel.
    """
    filled = np.zeros(-(-channels // multiple) * multiple, np.float32)
    filled[:channels] = value.reshape(-1)
    return filled
