"""Writes a graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby
from types import MappingProxyType

import numpy as np

from cml_engine.compiler.integer.quant_params import QuantParams, read_quant_params
from cml_engine.compiler.integer.quantizer.scales import round_digits
from cml_engine.errors import InputError, InternalError, UnsupportedOp
from cml_engine.formats.onnx.export.call import (
    DEFAULT_OPSET,
    ExportCall,
    ExportOperand,
    ExportRule,
)
from cml_engine.formats.onnx.export.dynamic_axes import (
    Affine,
    DynamicAxes,
    NodeTrace,
    constant_name,
    varying_extents,
)
from cml_engine.formats.onnx.export.game_operators import GAME, export_rule
from cml_engine.formats.onnx.export.wire import (
    ELEMENTS,
    OutNode,
    OutValue,
    body_bytes,
    function_bytes,
    graph_bytes,
    model_bytes,
)
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact, Graph, Node, unused_name
from cml_engine.ir.integer_rule import fraction_of
from cml_engine.ir.single_value import distinct, is_single_value, stored_bytes
from cml_engine.ops.declaration.registry import lookup

#: the domain of the local functions, and the model's producer
DOMAIN = "cml_engine"
#: Protocol Buffers' own limit of a message
MOST_BYTES = 2**31 - 1
#: the suffix of the output with a variable's next value
NEXT = "_next"


class OnnxWriter:
    """Writes one graph as an ONNX model; keeps the nodes, initializers and functions so far.

    With ``half`` weights are stored in 16 bits. ``dynamic`` are the axes whose sizes stay open.
    """

    def __init__(
        self, graph: Graph, opset: int, half: bool = False, dynamic: DynamicAxes | None = None
    ) -> None:
        self._graph, self._opset = graph, opset
        self._half, self._dynamic = half, dynamic
        #: the quantized tensors of an integer network, and the names of their real numbers
        self._quant_params = read_quant_params(graph) if graph.integer else {}
        self._real_names: dict[str, str] = {}
        #: the names of computed lists of extents, by their elements
        self._extents: dict[str, str] = {}
        self._nodes: list[OutNode] = []
        self._tensors: dict[str, Array] = {}
        self._shared_constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        #: local functions by operator, body and number of inputs: the name and the encoded function
        self._functions: dict[tuple[str, bytes, int], tuple[str, bytes]] = {}
        self._reserved = {*graph.facts, *graph.inputs, *graph.outputs}
        #: the variables, and the tensors with their next values
        self._state = dict(graph.updates)

    def parts(self) -> list[bytes]:
        """Writes the graph and returns the bytes of the file, in parts. It is called once."""
        graph = self._graph
        self._check_size()
        if graph.integer:
            _check_integer(graph, self._half)
        for name in self._state:
            self._tensors[name] = graph.constants[name]
        for index, node in enumerate(graph.nodes):
            self._write(index, node)
        next_values = [self._copied(value, f"{name}{NEXT}") for name, value in self._state.items()]
        inputs = [self._value(name) for name in (*graph.inputs, *self._state)]
        outputs = [self._output(name) for name in graph.outputs]
        inner_values = [
            self._value(name)
            for node in self._nodes
            if node.domain == GAME
            for name in node.outputs
            if name not in graph.outputs
        ]
        casts = self._halve() if self._half else []
        body = graph_bytes(
            graph.name,
            [*casts, *self._nodes],
            self._tensors.items(),
            inputs,
            [*outputs, *next_values],
            inner_values,
        )
        domains = dict.fromkeys(node.domain for node in self._nodes if node.domain)
        opsets = {"": self._opset, **dict.fromkeys(domains, 1)}
        functions = (encoded for _, encoded in self._functions.values())
        return model_bytes(body, DOMAIN, opsets, functions)

    # -- the graph's own tensors ----------------------------------------------------------------

    def _value(self, name: str, output_name: str = "") -> OutValue:
        fact = self._graph.facts[name]
        shape = self._dynamic.shape(name, fact.shape) if self._dynamic else fact.shape
        return OutValue(output_name or name, NUMPY_DTYPE[fact.dtype].name, shape)

    def _output(self, name: str) -> OutValue:
        """Returns the declaration of an output.

        An input or a constant is first copied to a tensor of another name.
        """
        graph = self._graph
        if name in graph.inputs or name in graph.constants:
            return self._copied(name, f"{name}_out")
        return self._value(name)

    def _copied(self, name: str, copy_name: str) -> OutValue:
        """Copies a tensor to an output of another name, and returns the output's declaration."""
        operand, copy_name = self._operand(name), self._new_name(copy_name)
        source = name if operand.value is None else self._constant(operand.value, name)
        self._nodes.append(OutNode("Identity", (source,), (copy_name,)))
        return self._value(name, copy_name)

    def _operand(self, name: str) -> ExportOperand:
        if name in self._quant_params:
            return ExportOperand(self._dequantized(name), self._graph.facts[name])
        value = None if name in self._state else self._graph.constants.get(name)
        return ExportOperand(name, self._graph.facts[name], value)

    def _constant(self, array: Array, name: str = "") -> str:
        """Stores an array as an initializer and returns the initializer's name.

        A constant of the graph keeps its name; other constants of equal values are shared.
        """
        if is_single_value(array):
            return self._filled(array, name)
        if name and self._tensors.setdefault(name, array).shape == array.shape:
            return name
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._shared_constants:
            names = (f"{name or 'constant'}_{number}" for number in count(1))
            unique_name = next(new for new in names if new not in self._reserved)
            self._reserved.add(unique_name)
            self._shared_constants[key] = unique_name
            self._tensors[unique_name] = array
        return self._shared_constants[key]

    def _filled(self, array: Array, name: str) -> str:
        """Adds the node that computes a large array of one value; returns the node's result."""
        value = distinct(array).reshape(1)
        key = (f"filled {array.dtype.name}", array.shape, value.tobytes())
        if key not in self._shared_constants:
            self._shared_constants[key] = self._new_name(f"{name or 'constant'}_filled")
            shape = self._constant(np.array(array.shape, np.int64))
            output = self._shared_constants[key]
            self._nodes.append(OutNode("ConstantOfShape", (shape,), (output,), {"value": value}))
        return self._shared_constants[key]

    # -- nodes ----------------------------------------------------------------------------------

    def _write(self, index: int, node: Node) -> None:
        if node.epilogues:
            raise InternalError(f"{node.title} is fused already: export the graph as it was loaded")
        rule = export_rule(node.op, self._graph.declarations)
        sums = {name: self._new_name(f"{name}_sums")
                for name in node.outputs if name in self._quant_params}  # fmt: skip
        operands = [self._operand(name) for name in node.inputs]
        facts = [self._graph.facts[name] for name in node.outputs]
        node = replace(node, outputs=tuple(sums.get(name, name) for name in node.outputs))
        extents = self._varying_extents(index, rule) if self._dynamic else {}
        if all(fact.size == 0 for fact in facts):
            if self._dynamic:
                raise InputError(f"dynamic: {node.title} has no elements at this size", node.source)
            self._write_empty(node, facts)
        elif rule.function and not extents:
            self._write_function(node, rule, operands, facts)
        else:
            self._write_nodes(node, rule, operands, facts, extents)
        for name, source in sums.items():
            self._quantize(name, source, name)

    def _write_nodes(
        self,
        node: Node,
        rule: ExportRule,
        operands: Sequence[ExportOperand],
        facts: Sequence[Fact],
        extents: Mapping[int, Sequence[int | Affine]] = MappingProxyType({}),
    ) -> None:
        """Writes a node as ONNX's; ``extents`` are computed in place of constants by position."""
        position = count()

        def stored(array: Array, name: str = "") -> str:
            varying = extents.get(next(position))
            return self._extent_list(varying) if varying else self._constant(array, name)

        call = ExportCall(
            node=node,
            operands=operands,
            results=facts,
            opset=self._opset,
            constants=stored,
            prefix=f"{node.outputs[0]}/",
            reserved=self._reserved,
            is_integer=bool(self._graph.integer),
        )
        self._nodes += call.write(rule, node.outputs)

    def _write_empty(self, node: Node, facts: Sequence[Fact]) -> None:
        """Writes a node's results, which have no elements, as copies of empty constants.

        Many runtimes fail if they compute empty tensors.
        """
        for name, fact in zip(node.outputs, facts, strict=True):
            empty = self._constant(np.zeros(fact.shape, NUMPY_DTYPE[fact.dtype]))
            self._nodes.append(OutNode("Identity", (empty,), (name,)))

    def _write_function(
        self, node: Node, rule: ExportRule, operands: Sequence[ExportOperand], facts: Sequence[Fact]
    ) -> None:
        """Writes a node as a call of a local function; calls with equal bodies share the function.

        Large constants are initializers that the call passes as arguments; small ones are in the
        body.
        """
        formals, arguments = list[ExportOperand](), list[str]()
        for operand in operands:
            formal = ExportOperand(f"x{len(arguments)}", operand.fact, operand.value, stored=True)
            if operand.value is None:
                arguments.append(operand.name)
            elif operand.value.size > _INLINED:
                arguments.append(self._constant(operand.value, operand.name))
            else:
                formal = operand
            formals.append(formal)
        body = _Body()
        inputs = tuple(f"x{i}" for i in range(len(arguments)))
        results = tuple(f"y{i}" for i in range(len(facts)))
        call = ExportCall(
            node=node,
            operands=formals,
            results=facts,
            opset=self._opset,
            constants=body.constant,
            reserved={*inputs, *results},
            nodes=body.nodes,
        )
        nodes = call.write(rule, results)
        n_operators = sum(inner_node.op != "Constant" for inner_node in nodes)
        # a single node needs no function, and functions do not declare the domain of placeholders
        if n_operators == 1 or any(inner_node.domain == GAME for inner_node in nodes):
            self._write_nodes(node, rule, operands, facts)
            return
        content = body_bytes(nodes)
        key = (node.op, content, len(inputs))
        if key not in self._functions:
            earlier = sum(op == node.op for op, _, _ in self._functions)
            name = f"{node.op}_{earlier + 1}" if earlier else node.op
            encoded = function_bytes(name, inputs, results, content, DOMAIN, self._opset)
            self._functions[key] = name, encoded
        function_name, _ = self._functions[key]
        self._nodes.append(OutNode(function_name, tuple(arguments), node.outputs, {}, DOMAIN))

    def _new_name(self, name: str) -> str:
        """Returns a name that is not taken, the given one if possible, and takes it."""
        name = unused_name(name, self._reserved)
        self._reserved.add(name)
        return name

    # -- integer networks -----------------------------------------------------------------------

    def _dequantized(self, name: str) -> str:
        """Returns the name of a quantized tensor's real numbers; adds their nodes at first use."""
        graph = self._graph
        if name not in graph.inputs and name not in graph.constants:
            return name
        if name not in self._real_names:
            self._real_names[name] = self._new_name(f"{name}_numbers")
            if name in graph.inputs:
                self._quantize(name, name, self._real_names[name])
            else:
                self._dequantize(name, self._constant(graph.constants[name], name))
        return self._real_names[name]

    def _dequantize(self, name: str, source: str) -> None:
        """Adds the node that turns a constant's integers into numbers."""
        line = self._quant_params[name]
        axis = next((i for i, extent in enumerate(line.extents) if extent > 1), 0)
        scales = _scales(line)
        scale = self._constant(scales if line.extents else scales[0].reshape(()))
        attributes = {"axis": axis} if line.extents else {}
        inputs = (source, scale)
        self._nodes.append(
            OutNode("DequantizeLinear", inputs, (self._real_names[name],), attributes)
        )

    def _quantize(self, name: str, source: str, result: str) -> None:
        """Adds the nodes that round numbers to the tensor's words, and turn these into numbers."""
        line = self._quant_params[name]
        dtype_name = f"{'' if line.signed else 'u'}int{line.bits}"
        if line.bits == 16 and self._opset < _OPSET_OF_16_BITS:
            raise UnsupportedOp(
                f"'{name}' has words of 16 bits, which need opset {_OPSET_OF_16_BITS}, got "
                f"{self._opset}: give --opset {_OPSET_OF_16_BITS} (opset={_OPSET_OF_16_BITS})",
                line.source,
            )
        scale = _scales(line)[0].reshape(())
        quantization = (self._constant(scale), self._constant(np.zeros((), dtype_name)))
        integers_name = self._new_name(f"{name}_words")
        if line.signed and source != name:  # ONNX has one more negative integer than words
            limits = [
                self._constant(np.array(bound * scale, np.float32))
                for bound in (line.range.low, line.range.high)
            ]
            clipped = self._new_name(f"{name}_clipped")
            self._nodes.append(OutNode("Clip", (source, *limits), (clipped,)))
            source = clipped
        self._nodes += [
            OutNode("QuantizeLinear", (source, *quantization), (integers_name,)),
            OutNode("DequantizeLinear", (integers_name, *quantization), (result,)),
        ]

    # -- open sizes -----------------------------------------------------------------------------

    def _varying_extents(self, index: int, rule: ExportRule) -> dict[int, list[int | Affine]]:
        """Returns the constants of a node that vary with the open sizes, by position."""
        assert self._dynamic is not None
        graphs = [self._graph, *(probe for _, probe in self._dynamic.probes)]
        trace, *probe_traces = (self._trace(graph, index, rule) for graph in graphs)
        return varying_extents(self._dynamic, self._graph.nodes[index], trace, probe_traces)

    def _trace(self, graph: Graph, index: int, rule: ExportRule) -> NodeTrace:
        """Returns the export of the node at ``index`` of the graph at one size."""
        stored: list[Array] = []

        def record(array: Array, name: str = "") -> str:
            stored.append(array)
            return constant_name(len(stored) - 1)

        node = graph.nodes[index]
        known = graph.constants.keys() - {*self._state, *self._quant_params}
        call = ExportCall(
            node=node,
            operands=[
                ExportOperand(
                    name, graph.facts[name], graph.constants[name] if name in known else None
                )
                for name in node.inputs
            ],
            results=[graph.facts[name] for name in node.outputs],
            opset=self._opset,
            constants=record,
        )
        return NodeTrace(stored, call.write(rule, node.outputs))

    def _extent_list(self, extents: Sequence[int | Affine]) -> str:
        """Adds nodes that compute a list of extents from the inputs' shapes; returns its name."""
        parts = []
        for is_number, group in groupby(extents, lambda extent: isinstance(extent, int)):
            if is_number:
                parts.append(self._constant(np.array(list(group), np.int64)))
            else:
                parts += [self._extent(extent) for extent in group if isinstance(extent, Affine)]
        if len(parts) == 1:
            return parts[0]
        return self._computed(",".join(map(str, extents)), "Concat", parts, axis=0)

    def _extent(self, extent: Affine) -> str:
        assert self._dynamic is not None
        terms = []
        for name, factor in extent.factors.items():
            source, axis = self._dynamic.axes[name][0]
            shape = self._computed(f"shape of {source}", "Shape", [source])
            axis_index = self._constant(np.array([axis], np.int64))
            size = self._computed(name, "Gather", [shape, axis_index], axis=0)
            if factor != 1:
                times = self._constant(np.array([factor], np.int64))
                size = self._computed(f"{factor}*{name}", "Mul", [size, times])
            terms.append(size)
        if extent.offset:
            terms.append(self._constant(np.array([extent.offset], np.int64)))
        total = terms[0]
        for i, term in enumerate(terms[1:], 2):
            total = self._computed(f"{extent} of {i}", "Add", [total, term])
        return total

    def _computed(self, key: str, op: str, inputs: Sequence[str], **attributes: int) -> str:
        """Adds a node once for each key, and returns the name of its result."""
        if key not in self._extents:
            name = self._new_name(f"extent/{key}")
            self._nodes.append(OutNode(op, tuple(inputs), (name,), attributes))
            self._extents[key] = name
        return self._extents[key]

    # -- 16 bits --------------------------------------------------------------------------------

    def _halve(self) -> list[OutNode]:
        """Stores weights in 16 bits and returns the nodes that cast them to 32."""
        casts = []
        for name, array in list(self._tensors.items()):
            if name not in self._state and fits_half(array):
                stored = self._new_name(f"{name}_half")
                del self._tensors[name]
                self._tensors[stored] = array.astype(np.float16)
                casts.append(OutNode("Cast", (stored,), (name,), {"to": ELEMENTS["float32"]}))
        return casts

    def _check_size(self) -> None:
        size = sum(map(stored_bytes, self._graph.constants.values()))
        if size > MOST_BYTES:
            raise InputError(
                f"'{self._graph.name}' has {size:,} bytes of weights, and an ONNX file holds "
                f"{MOST_BYTES:,}: save it as NNEF (cml convert), or split the network"
            )


#: the bits of a bias
_BIAS_BITS = 32
#: the first opset with QuantizeLinear to 16 bits
_OPSET_OF_16_BITS = 21
#: tensors of fewer values stay in 32 bits
_LEAST_HALVED = 32


def default_opset(graph: Graph) -> int:
    """Returns the opset of a file for which none is requested."""
    lines = read_quant_params(graph).values() if graph.integer else ()
    return _OPSET_OF_16_BITS if any(line.bits == 16 for line in lines) else DEFAULT_OPSET


def fits_half(array: Array) -> bool:
    """Returns True if an array is of 32-bit floats that none becomes infinite in 16 bits."""
    if array.dtype != np.float32 or array.size < _LEAST_HALVED:
        return False
    with np.errstate(over="ignore"):
        return bool(np.array_equal(np.isinf(array), np.isinf(array.astype(np.float16))))


def half_error(graph: Graph) -> tuple[float, list[str]]:
    """Returns the largest error of weights in 16 bits, and those that do not fit, which stay.

    An error is relative to the largest value of its tensor.
    """
    largest_error, unfit = 0.0, []
    for name, array in graph.constants.items():
        if fits_half(array):
            finite = array[np.isfinite(array)]
            largest = np.abs(finite).max(initial=0)
            error = np.abs(finite.astype(np.float16) - finite).max(initial=0)
            largest_error = max(largest_error, float(error / largest) if largest else 0.0)
        elif array.dtype == np.float32 and array.size >= _LEAST_HALVED:
            unfit.append(name)
    return largest_error, unfit


def _scales(line: QuantParams) -> Array:
    """Returns the scales of a tensor as float32; raises an error if that changes their value.

    The scale of a bias may change, because it follows from those of its operands.
    """
    scales = np.array([float(scale) for scale in line.scales], np.float32)
    read_back = [fraction_of(round_digits(float(scale))) for scale in scales]
    if line.bits != _BIAS_BITS and read_back != list(line.scales):
        raise line.error("a scale has more digits than 32 bits of ONNX hold: quantize it again")
    return scales


def _check_integer(graph: Graph, half: bool) -> None:
    """Raises an error if an integer network cannot be written such that it is read as one."""
    if half:
        raise InputError(f"'{graph.name}' is an integer network, without weights in floats: leave "
                         "half out")  # fmt: skip
    game_node = next((node for node in graph.nodes if lookup(node.op).is_custom), None)
    if graph.float_tail or game_node is not None:
        part = f"the operator of a game {game_node.title}" if game_node else "a float tail"
        raise UnsupportedOp(
            f"'{graph.name}' has {part}, which a QDQ model has no form for: save it as NNEF",
            game_node.source if game_node else None,
        )


#: constants of up to this many values are stored in a function, larger ones are arguments
_INLINED = 16


class _Body:
    """The nodes of a local function under construction, including nodes for its constants."""

    def __init__(self) -> None:
        self.nodes: list[OutNode] = []
        self._shared_constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def constant(self, array: Array, name: str = "") -> str:
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._shared_constants:
            self._shared_constants[key] = f"c{len(self._shared_constants)}"
            self.nodes.append(
                OutNode("Constant", (), (self._shared_constants[key],), {"value": array})
            )
        return self._shared_constants[key]
