"""``cml.quantize``: turns a float network into an integer network and reports the error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite, prod

import numpy as np

from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.integer.quant_params import (
    assemble_integer_graph,
    check_scale,
    nest_scales,
    quant_attrs,
    word_range,
)
from cml_engine.compiler.integer.quantizer.placement import (
    Placement,
    ValueKind,
    joined_constants,
    place_rounding_points,
)
from cml_engine.compiler.integer.quantizer.scales import (
    ObservedValues,
    QuantScale,
    choose_scale,
    observe_values,
    quantize_bias,
    quantize_weights,
    table_words,
    tabulate,
)
from cml_engine.compiler.optimize import STAGES
from cml_engine.cpu.cpu_program import CpuProgram, keep_results
from cml_engine.errors import InputError, ModelError, RangeError
from cml_engine.errors.arguments import (
    ERROR_SHARE,
    check_instance,
    check_mapping,
    check_name_list,
    check_number_of,
)
from cml_engine.io.json_files import Json
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, AttrValue, Graph, Node
from cml_engine.ir.integer_rule import fraction_of
from cml_engine.ops.conv.shapes import deconv_shape


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The error of one rounding point against the float network, on the samples.

    ``largest`` and ``rms`` are errors of the tensor's values. ``alone`` is the relative error of
    the outputs if this point has 8 bits and all others that may have 16 have these; 0 if such a
    network was not tried or its sums do not fit. ``clipped`` is the share of values that its words
    cannot represent. ``carrier`` is the type that holds its sums, and ``bound`` the proven bound
    of the sums.
    """

    name: str
    title: str
    bits: int
    signed: bool
    scale: float
    largest: float
    rms: float
    alone: float
    clipped: float
    carrier: str
    bound: int


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """The result of a quantization, with the error of every rounding point.

    ``error`` is the largest relative error of any output: the RMS of the difference over the RMS
    of the output. ``wanted`` is the requested error.
    """

    model: str
    samples: int
    error: float
    wanted: float
    nodes: tuple[NodeReport, ...]
    #: the outputs that are computed in floats
    not_identical: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the error is not above the requested one."""
        return self.error <= self.wanted

    @property
    def data(self) -> dict[str, Json]:
        """The whole report as a JSON object."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        rows = [f"{self.model}: {len(self.nodes)} rounding points, {self.samples} samples"]
        rows.append(
            f"{'':32s} {'bits':>5s} {'largest':>10s} {'rms':>10s} {'alone':>9s} {'clipped':>8s} "
            f"{'carrier':8s} {'bound':>13s}"
        )
        for n in self.nodes:
            bits = f"{'' if n.signed else 'u'}{n.bits}"
            rows.append(
                f"{n.title[:32]:32s} {bits:>5s} {n.largest:10.3g} {n.rms:10.3g} "
                f"{100 * n.alone:8.3f}% {100 * n.clipped:7.3f}% {n.carrier:8s} {n.bound:13,d}"
            )
        rows += [
            f"output '{name}' is computed in floats: not identical on all machines"
            for name in self.not_identical
        ]
        verdict = "within" if self.ok else "MORE THAN"
        rows.append(
            f"error of the outputs: {100 * self.error:.3g} % of their size, {verdict} "
            f"{100 * self.wanted:.3g} %"
        )
        return "\n".join(rows)


# -- build graph ----------------------------------------------------------------------------------
# Builds the integer network (integer weights, lines of ``graph.quant`` and lookup tables) for
# given scales.
#: a permutation of weights
Move = Callable[[Array], Array]


@dataclass
class QuantizedGraphBuilder(GraphRewriter):
    """Builds the integer network of ``graph`` from the placement of its rounding points and their
    scales.

    ``lines`` (of ``graph.quant``) are those of the integer network so far.
    """

    graph: Graph
    placement: Placement
    #: the scale of each group of tensors, by the group's root
    scales: Mapping[str, QuantScale]
    #: the bits of each node's weights, by the node's first result
    weight_bits: Mapping[str, int]
    lines: dict[str, Attrs] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__(self.graph)

    def scale(self, name: str) -> QuantScale:
        return self.scales[self.placement.ties.find(name)]

    def build(self) -> Graph:
        graph = self.graph
        floats = [node for node in graph.nodes if node.outputs[0] in self.placement.floats]
        self.used.update(name for node in floats for name in node.inputs)
        for node in graph.nodes:
            self.nodes.append(node if node in floats else self._quantize_weights(node))
        for name, role in self.placement.points.items():
            table = self._table(name) if role == "function" else {}
            word_type = self.scale(name)
            self.lines[name] = quant_attrs(
                word_type.scale, word_type.bits, word_type.signed, **table
            )
        return assemble_integer_graph(
            graph, self.nodes, self.constants, self.lines, float_tail=bool(floats)
        )

    def _table(self, name: str) -> dict[str, AttrValue]:
        base = self.placement.bases[name]
        base_type, result_type = self.scale(base), self.scale(name)
        numbers = table_words(base_type.bits, base_type.signed) * base_type.scale
        return {"table": tabulate(self.graph, base, name, numbers, result_type)}

    # -- weights --------------------------------------------------------------------------------

    def _quantize_weights(self, node: Node) -> Node:
        if node.op in ("conv", "linear"):
            return self._quantize_product(node, lambda w: w, lambda w: w, 0)
        if node.op == "deconv":
            facts = self.graph.facts_of(node.inputs)
            shape = deconv_shape(node.attrs, *facts)
            if shape.groups == 1:
                return self._quantize_product(node, _swap_axes, _swap_axes, 1)
            return self._quantize_product(node, lambda w: w[None], lambda w: w[0], None)
        if node.op == "matmul" and node.inputs[1] in self.graph.constants:
            axis = -2 if node.attrs["transposeB"] else -1
            return self._quantize_product(
                node, lambda w: np.moveaxis(w, axis, 0), lambda w: np.moveaxis(w, 0, axis), axis
            )
        if self.placement.kinds.get(node.outputs[0]) == ValueKind("words", node.outputs[0]):
            for name in joined_constants(self.graph, node):
                node = self._quantize_joined(node, name)
        return node

    def _quantize_joined(self, node: Node, name: str) -> Node:
        """Returns the node with the constant ``name`` as words of its result's scale."""
        word_type = self.scale(node.outputs[0])
        ends = word_range(word_type.bits, word_type.signed)
        words = np.floor(self._weight_constant(node, name) / word_type.scale + 0.5)
        stored = np.dtype(f"{'i' if word_type.signed else 'u'}{word_type.bits // 8}")
        words_name = self._add_constant(name, words.clip(ends.low, ends.high).astype(stored))
        self.lines[words_name] = quant_attrs(**asdict(word_type))
        return replace(node, inputs=tuple(words_name if n == name else n for n in node.inputs))

    def _quantize_product(
        self, node: Node, to_rows: Move, from_rows: Move, axis: int | None
    ) -> Node:
        """Returns the node with integer weights and an integer bias, and adds these with their
        lines.

        The weights have one scale for each index of ``axis``, or one scale if ``axis`` is None.
        ``to_rows`` permutes the weights so that output channels come first; ``from_rows`` is the
        inverse.
        """
        weights = self._weight_constant(node, node.inputs[1])
        bias = self._weight_constant(node, node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1)
        input_type = self.scale(node.inputs[0])
        input_range = word_range(input_type.bits, input_type.signed)
        weight_rows = to_rows(weights)
        flat = bias.reshape(-1)
        per_row = flat if axis is not None else np.abs(flat).max(keepdims=True)
        per_row = np.broadcast_to(per_row, (len(weight_rows),))
        bits = self.weight_bits.get(node.outputs[0], 8)
        integer_rows, scales = quantize_weights(
            weight_rows, per_row, input_range, input_type.scale, bits
        )
        filter_ = self._add_constant(node.inputs[1], from_rows(integer_rows))
        self.lines[filter_] = quant_attrs(
            scales[0] if axis is None else nest_scales(scales, axis, weights.ndim), bits
        )
        inputs = [node.inputs[0], filter_, *node.inputs[2:]]
        if bias.any():
            if axis is None:
                scales = scales * self.graph.facts[node.outputs[0]].shape[1]
            integers, products = quantize_bias(bias, input_type.scale, scales)
            inputs[2] = self._add_constant(node.inputs[2], integers)
            self.lines[inputs[2]] = quant_attrs([products], 32)
        return replace(node, inputs=tuple(inputs))

    def _weight_constant(self, node: Node, name: str) -> Array:
        constant = self.graph.constants.get(name)
        if constant is None:
            raise ModelError(
                f"{node.title}: its weights '{name}' are computed; an integer network's are known",
                node.source,
            )
        if not np.isfinite(constant).all():
            raise ModelError(f"{node.title}: its weights '{name}' are not finite", node.source)
        return constant

    def _add_constant(self, name: str, value: Array) -> str:
        """Stores a constant under ``name``, and returns the name that it got.

        It gets another, unused name if ``name`` is taken or is no identifier.
        """
        if not (name[0].isalpha() or name[0] == "_") or name in self.used:
            base = name if name[0].isalpha() or name[0] == "_" else "bias"
            name = self.unused_name(f"{base}_")
        self.used.add(name)
        self.constants[name] = value
        return name


def _swap_axes(weights: Array) -> Array:
    return weights.swapaxes(0, 1)


# -- quantize -------------------------------------------------------------------------------------

Samples = Sequence[Mapping[str, Array]]

_MIN_SAMPLES = 8
#: the number of samples on which a choice of bits is evaluated
_TRIAL_SAMPLES = 4
#: the share of the requested error allowed on those: the other samples have slightly more
_TRIAL_ERROR = 0.9
#: the default error, a share of the outputs' RMS
_DEFAULT_ERROR = 0.01
#: stages that run after quantization: they fuse nodes, or apply a game's own rules
_LATER_STAGES = frozenset({"rules", "fuse", "chains"})


def quantize(
    graph: Graph,
    samples: Samples,
    bits: int = 8,
    sixteen: str | Sequence[str] = "auto",
    max_error: float | None = None,
    *,
    float_tail: bool = False,
    scales: Mapping[str, float] | None = None,
) -> tuple[Graph, QuantizeReport]:
    """Returns the integer network of a float network, and a report (docs/integer.md).

    ``samples`` are at least 8 typical inputs, ``{name: array}`` each; the ranges are taken from
    them. Words have ``bits`` bits. ``sixteen`` names the tensors whose words have 16 bits
    instead. With ``"auto"`` the tensors that matter most get 16 bits until the error of the
    outputs, a share of their root mean square, is below ``max_error`` (default 0.01), as far as
    the sums fit into 32 bits. With
    ``float_tail`` operators without an integer form and their readers are computed in floats;
    outputs of these may differ between machines, and the report names them. ``scales`` fixes the
    scales of tensors whose words the host writes or reads itself.

    Examples
    --------
    >>> samples = [{"image": image * k / 8} for k in range(8)]
    >>> integer, report = cml.quantize(graph, samples)
    >>> integer.integer > 0
    True
    """
    check_number_of((8, 16), bits, "bits")
    if not isinstance(sixteen, str):
        check_name_list(sixteen, "sixteen")
    scales = {} if scales is None else scales
    check_mapping("scales by tensor, {'image': 0.01}", scales, "scales")
    work = _Quantizer.of(graph, samples, max_error, float_tail)
    for name, scale in scales.items():
        work.fixed_scales[work.group_of(name, "scales")] = _check_scale(name, scale)
    if bits == 16 and sixteen != "auto":
        raise InputError("sixteen names tensors among those of 8 bits: leave it out, or bits=16")
    if bits == 16:
        chosen = work.eligible
    elif sixteen == "auto":
        chosen = work.choose_sixteen()
    elif isinstance(sixteen, str):
        raise InputError(f"sixteen '{sixteen}': wanted \"auto\" or names of tensors")
    else:
        chosen = frozenset(map(work.group_of, sixteen))
    integer = work.build(chosen)
    return integer, work.report(integer)


class _ScaleError(InputError):
    """Raised if a tensor's values need a scale that integer networks do not have."""


@dataclass
class _Quantizer:
    """The state of quantizing one float network.

    ``observed`` has the ranges of its tensors on the samples, ``outputs`` its float outputs for
    each sample. ``alone`` is filled by :meth:`choose_sixteen`: the error if only that group has
    8 bits. A group is named by the tensor that identifies it.
    """

    graph: Graph
    samples: Samples
    max_error: float
    placement: Placement
    observed: Mapping[str, ObservedValues]
    outputs: list[dict[str, Array]]
    alone: dict[str, float] = field(default_factory=dict)
    #: scales fixed by the caller, by group
    fixed_scales: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: Graph, samples: Samples, max_error: float | None, float_tail: bool
    ) -> _Quantizer:
        check_instance(Graph, graph, "the graph to quantize (cml.load gives one)")
        if graph.integer:
            raise InputError(
                f"'{graph.name}' is an integer network already: run it as it is, or quantize the "
                "network of floats that it was made of"
            )
        if graph.cooked_form is not None:
            raise InputError(f"'{graph.name}' is cooked: quantize the model that it was made of")
        requested_error = ERROR_SHARE.check(
            _DEFAULT_ERROR if max_error is None else max_error, "max_error"
        )
        checked_samples = check_samples(graph, samples, _MIN_SAMPLES)
        folded = graph
        for name, stage, _ in STAGES:
            if name not in _LATER_STAGES:
                folded = stage(folded)
        placement = place_rounding_points(folded, float_tail)
        others = (
            node.outputs[0]
            for node in folded.nodes
            if node.op in ("neg", "abs") or joined_constants(folded, node)
        )
        names = {*placement.points, *others}
        observed = observe_values(folded, checked_samples, names)
        program = CpuProgram(folded)
        outputs = [program.run(sample) for sample in checked_samples]
        return cls(folded, checked_samples, requested_error, placement, observed, outputs)

    @property
    def groups(self) -> Mapping[str, list[str]]:
        return self.placement.groups

    @property
    def eligible(self) -> frozenset[str]:
        """The groups of tensors that may have 16 bits.

        The second operand of a product of two computed matrices is excluded: its sums would not
        fit.
        """
        computed = self.placement.kinds
        seconds = {
            self.placement.ties.find(node.inputs[1])
            for node in self.graph.nodes
            if node.op == "matmul" and node.inputs[1] in computed
        }
        return frozenset(self.groups) - seconds

    def group_of(self, name: str, argument: str = "sixteen") -> str:
        """Returns the group of a tensor that the caller named in the argument ``argument``.

        Raises :class:`InputError` if the tensor is not rounded.
        """
        if name in self.placement.kinds or name in self.placement.points:
            return self.placement.ties.find(name)
        examples = ", ".join(list(self.placement.points)[:8])
        raise InputError(f"{argument}: '{name}' is no tensor that is rounded; some are {examples}")

    def scales(self, sixteen: frozenset[str]) -> dict[str, QuantScale]:
        return {
            root: self._scale(root, points, 16 if root in sixteen else 8)
            for root, points in self.groups.items()
        }

    def _scale(self, root: str, points: Sequence[str], bits: int) -> QuantScale:
        members = [n for n in self.observed if n in points or self.placement.ties.find(n) == root]
        values = ObservedValues().joined(self.observed[n] for n in members)
        fixed_scale = self.fixed_scales.get(root)
        unseen = [name for name in points if name in self.graph.inputs]
        if unseen and fixed_scale is None and not values.low < values.high:
            raise InputError(
                f"input '{unseen[0]}' is 0 in all samples, and its range is taken from them: give "
                "samples as the network will meet them"
            )
        chosen_scale = choose_scale(values, bits, fixed_scale)
        try:
            check_scale(root, fraction_of(chosen_scale.scale))
        except (ModelError, ValueError):
            raise _ScaleError(
                f"'{root}' is up to {max(-values.low, values.high):.3g} in the samples: words of "
                f"{bits} bits want a scale of {chosen_scale.scale:.3g}, and scales are 2^-40 to "
                "2^40. Give it in another unit"
            ) from None
        return chosen_scale

    def build(self, sixteen: frozenset[str]) -> Graph:
        """Returns the integer network in which the groups ``sixteen``, and the weights that
        produce them, have 16 bits, all others 8."""
        weights = {
            name: 16 if self.placement.ties.find(name) in sixteen else 8
            for name in self.placement.points
        }
        makers = _weight_bits(self.graph, weights)
        return QuantizedGraphBuilder(
            self.graph, self.placement, self.scales(sixteen), makers
        ).build()

    # -- bits -----------------------------------------------------------------------------------

    def choose_sixteen(self) -> frozenset[str]:
        """Returns the smallest set of groups with 16 bits that reaches the requested error.

        Groups whose 8 bits alone cause the largest error are taken first; the number of groups
        is found by bisection. Returns all candidates if the error cannot be reached. Sets
        ``alone``.
        """
        candidates = self.candidates()
        errors = {root: self.error(candidates - {root}) for root in candidates}
        self.alone = {root: error for root, error in errors.items() if isfinite(error)}
        order = sorted(candidates, key=lambda root: (-errors[root], root))
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if self.error(frozenset(order[:middle])) <= _TRIAL_ERROR * self.max_error:
                high = middle
            else:
                low = middle + 1
        return frozenset(order[:low])

    def candidates(self) -> frozenset[str]:
        """Returns groups that can have 16 bits all at once.

        These are all eligible groups if that network fits. Otherwise they are collected one by
        one, first those whose 16 bits alone give the smallest error. Raises the error of the
        network of 8 bits if it does not fit, and none with 16 bits does.
        """
        eligible = self.eligible
        if self.lower(eligible) is not None:
            return eligible
        errors = {root: self.error(frozenset({root})) for root in eligible}
        collected: frozenset[str] = frozenset()
        for root in sorted(eligible, key=lambda root: (errors[root], root)):
            if self.lower(collected | {root}) is not None:
                collected |= {root}
        if not collected:
            lower_to_integers(self.build(collected))
        return collected

    def lower(self, sixteen: frozenset[str]) -> Graph | None:
        """Returns the network of words with 16 bits for the groups ``sixteen``; None if it does
        not fit, because of a sum or a scale."""
        try:
            return lower_to_integers(self.build(sixteen)).graph
        except (RangeError, _ScaleError):
            return None

    def error(self, sixteen: frozenset[str]) -> float:
        """Runs the network with 16 bits for the groups ``sixteen``, and returns its relative error;
        infinity if it does not fit.

        Only some of the samples are run.
        """
        graph = self.lower(sixteen)
        if graph is None:
            return inf
        program = CpuProgram(graph)
        step = max(1, len(self.samples) // _TRIAL_SAMPLES)
        return output_error(
            [program.run(sample) for sample in self.samples[::step]], self.outputs[::step]
        )

    # -- report ---------------------------------------------------------------------------------

    def report(self, integer: Graph) -> QuantizeReport:
        network = lower_to_integers(integer)
        program, floats = CpuProgram(network.graph), CpuProgram(self.graph)
        largest = dict.fromkeys((point.name for point in network.points), 0.0)
        squares, results = dict(largest), []
        for sample in self.samples:
            real: dict[str, Array] = dict(sample)
            word_values: dict[str, Array] = {}
            floats.run(sample, keep_results(real))
            results.append(program.run(sample, keep_results(word_values)))
            for point in network.points:
                errors = word_values[point.words] * float(point.scale) - real[point.name]
                largest[point.name] = max(
                    largest[point.name], float(np.abs(errors).max(initial=0.0))
                )
                squares[point.name] += float(np.square(errors, dtype=np.float64).sum())
        nodes = []
        for point in network.points:
            scale = QuantScale(float(point.scale), point.bits, point.signed)
            count = len(self.samples) * max(prod(point.shape), 1)
            nodes.append(
                NodeReport(
                    point.name,
                    f"input '{point.name}'" if point.title == "input" else point.title,
                    **asdict(scale),
                    largest=largest[point.name],
                    rms=float(np.sqrt(squares[point.name] / count)),
                    alone=self.alone.get(self.placement.ties.find(point.name), 0.0),
                    clipped=scale.clipped(self.observed[point.name].all),
                    carrier=point.carrier,
                    bound=point.bound,
                )
            )
        error = output_error(results, self.outputs)
        return QuantizeReport(
            self.graph.name,
            len(self.samples),
            error,
            self.max_error,
            tuple(nodes),
            network.not_identical,
        )


def _check_scale(name: str, scale: float) -> float:
    try:
        check_scale(name, fraction_of(scale))
    except (ModelError, ValueError, TypeError):
        raise InputError(f"scales: '{name}' has {scale!r}, wanted 2^-40 to 2^40") from None
    return float(scale)


def _weight_bits(graph: Graph, bits: Mapping[str, int]) -> dict[str, int]:
    """Returns the bits of each node's weights, by the node's first result.

    ``bits`` has the bits of each rounding point. A node has the bits of the point that its
    result reaches through single readers, or 8.
    """
    consumers = graph.consumers
    weight_bits: dict[str, int] = {}
    for node in graph.nodes:
        name = node.outputs[0]
        while name not in bits and len(consumers.get(name, [])) == 1:
            name = consumers[name][0].outputs[0]
        weight_bits[node.outputs[0]] = bits.get(name, 8)
    return weight_bits


def check_samples(graph: Graph, samples: Samples, minimum: int) -> list[dict[str, Array]]:
    """Returns the samples in the types of the inputs; raises :class:`InputError` if they do not fit
    the graph, or are fewer than ``minimum``."""
    if isinstance(samples, Mapping) or not isinstance(samples, Sequence):
        raise InputError("samples: wanted a list of {name: array}")
    if len(samples) < minimum:
        raise InputError(
            f"{len(samples)} sample{'' if len(samples) == 1 else 's'}: wanted at least "
            f"{minimum}, as the network will meet them"
        )
    return [_check_sample(graph, i, sample) for i, sample in enumerate(samples)]


def _check_sample(graph: Graph, i: int, sample: object) -> dict[str, Array]:
    if not isinstance(sample, Mapping) or set(sample) != set(graph.inputs):
        description = sorted(sample) if isinstance(sample, Mapping) else type(sample).__name__
        raise InputError(f"sample {i}: wanted the inputs {list(graph.inputs)}, got {description}")
    arrays = {}
    for name in graph.inputs:
        fact, array = graph.facts[name], np.asarray(sample[name])
        if array.shape != fact.shape or array.dtype.kind not in "fiub":
            raise InputError(
                f"sample {i}: '{name}' is {array.dtype}{list(array.shape)}, wanted {fact}"
            )
        arrays[name] = array.astype(NUMPY_DTYPE[fact.dtype])
        if not np.isfinite(arrays[name]).all():
            index = np.argwhere(~np.isfinite(arrays[name]))[0].tolist()
            raise InputError(
                f"sample {i}: '{name}' has infinities or NaN, the first at {index}: leave that "
                "sample out"
            )
    return arrays


def output_error(
    outputs: Sequence[Mapping[str, Array]], expected: Sequence[Mapping[str, Array]]
) -> float:
    """Returns the largest relative error of any output over all samples.

    It is the RMS of the difference divided by the RMS of the expected output.
    """
    return max(
        relative_error(
            *(np.concatenate([run[name].ravel() for run in runs]) for runs in (outputs, expected))
        )
        for name in expected[0]
    )


def relative_error(values: Array, expected: Array) -> float:
    """Returns the RMS of the difference of two arrays divided by the RMS of the second."""
    return _rms(values - expected.astype(np.float64)) / (_rms(expected) or 1.0)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0
