"""``cml.quantize``: turns a float network into an integer network and reports the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.integer.quant_params import check_scale
from cml_engine.compiler.integer.quantizer.build_graph import QuantizedGraphBuilder
from cml_engine.compiler.integer.quantizer.placement import Placement, place_rounding_points
from cml_engine.compiler.integer.quantizer.ranges import (
    ObservedValues,
    QuantScale,
    choose_scale,
    observe_values,
)
from cml_engine.compiler.integer.quantizer.report import NodeReport, QuantizeReport
from cml_engine.compiler.optimize import STAGES
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import InputError, ModelError
from cml_engine.errors.arguments import check_instance
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Graph, Node
from cml_engine.ir.integer_rule import fraction_of

Samples = Sequence[Mapping[str, Array]]

_LEAST_SAMPLES = 8
#: the number of samples on which a choice of bits is evaluated
_TRIED = 4
#: the share of the requested error allowed on those: the other samples have slightly more
_TRIED_SHARE = 0.9
#: the default error, a share of the outputs' RMS
_DEFAULT_ERROR = 0.01
#: stages that run after quantization: they fuse nodes, or apply a game's own rules
_LATER = frozenset({"rules", "fuse", "chains"})


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
    outputs, a share of their root mean square, is below ``max_error`` (default 0.01). With
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
    work = _Quantizer.of(graph, samples, max_error, float_tail)
    for name, scale in (scales or {}).items():
        work.fixed_scales[work.group_of(name, "scales")] = _check_scale(name, scale)
    if bits not in (8, 16):
        raise InputError(f"bits {bits}: wanted 8 or 16")
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
    made = work.build(chosen)
    return made, work.report(made)


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
        if graph.ready is not None:
            raise InputError(f"'{graph.name}' is cooked: quantize the model that it was made of")
        if max_error is not None and not max_error > 0:
            raise InputError(f"max_error {max_error}: wanted a share above 0")
        given = _check_samples(graph, samples)
        folded = _fold_graph(graph)
        placement = place_rounding_points(folded, float_tail)
        names = {*placement.points, *(n for node in folded.nodes if node.op in ("neg", "abs")
                                      for n in node.outputs)}  # fmt: skip
        seen = observe_values(folded, given, names)
        program = CpuProgram(folded)
        outputs = [program.run(sample) for sample in given]
        wanted = _DEFAULT_ERROR if max_error is None else float(max_error)
        return cls(folded, given, wanted, placement, seen, outputs)

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
            self.placement.root(node.inputs[1])
            for node in self.graph.nodes
            if node.op == "matmul" and node.inputs[1] in computed
        }
        return frozenset(self.groups) - seconds

    def group_of(self, name: str, where: str = "sixteen") -> str:
        """Returns the group of a tensor that the caller named in the argument ``where``.

        Raises :class:`InputError` if the tensor is not rounded.
        """
        if name in self.placement.kinds or name in self.placement.points:
            return self.placement.root(name)
        near = ", ".join(list(self.placement.points)[:8])
        raise InputError(f"{where}: '{name}' is no tensor that is rounded; some are {near}")

    def scales(self, sixteen: frozenset[str]) -> dict[str, QuantScale]:
        return {
            root: self._scale(root, points, 16 if root in sixteen else 8)
            for root, points in self.groups.items()
        }

    def _scale(self, root: str, points: Sequence[str], bits: int) -> QuantScale:
        seen, given = self._joined(root, points), self.fixed_scales.get(root)
        unseen = [name for name in points if name in self.graph.inputs]
        if unseen and given is None and not seen.low < seen.high:
            raise InputError(
                f"input '{unseen[0]}' is 0 in all samples, and its range is taken from them: give "
                "samples as the network will meet them"
            )
        found = choose_scale(seen, bits, given)
        try:
            check_scale(root, fraction_of(found.scale))
        except (ModelError, ValueError):
            raise InputError(
                f"'{root}' is up to {max(-seen.low, seen.high):.3g} in the samples: words of "
                f"{bits} bits want a scale of {found.scale:.3g}, and scales are 2^-40 to 2^40. "
                "Give it in another unit"
            ) from None
        return found

    def _joined(self, root: str, points: Sequence[str]) -> ObservedValues:
        members = [n for n in self.observed if n in points or self.placement.root(n) == root]
        return ObservedValues().joined(self.observed[n] for n in members)

    def build(self, sixteen: frozenset[str]) -> Graph:
        """Returns the integer network in which the groups ``sixteen``, and the weights that
        produce them, have 16 bits, all others 8."""
        weights = {
            name: 16 if self.placement.root(name) in sixteen else 8
            for name in self.placement.points
        }
        makers = _makers(self.graph, weights)
        return QuantizedGraphBuilder(
            self.graph, self.placement, self.scales(sixteen), makers
        ).build()

    # -- bits -----------------------------------------------------------------------------------

    def choose_sixteen(self) -> frozenset[str]:
        """Returns the smallest set of groups with 16 bits that reaches the requested error.

        Groups whose 8 bits alone cause the largest error are taken first; the number of groups
        is found by bisection. Returns all eligible groups if the error cannot be reached. Sets
        ``alone``.
        """
        every = self.eligible
        for root in every:
            self.alone[root] = self.error(every - {root})
        order = sorted(every, key=lambda root: (-self.alone[root], root))
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if self.error(frozenset(order[:middle])) <= _TRIED_SHARE * self.max_error:
                high = middle
            else:
                low = middle + 1
        return frozenset(order[:low])

    def error(self, sixteen: frozenset[str]) -> float:
        """Builds and runs the network with 16 bits for the groups ``sixteen``, and returns its
        relative error.

        Only some of the samples are run.
        """
        program = CpuProgram(lower_to_integers(self.build(sixteen)).graph)
        step = max(1, len(self.samples) // _TRIED)
        return self._error(
            [program.run(sample) for sample in self.samples[::step]], self.outputs[::step]
        )

    def _error(self, got: Sequence[Mapping[str, Array]], wanted: Sequence[Any]) -> float:
        """Returns the largest relative error of any output over all samples.

        The error is the RMS of the difference divided by the RMS of the wanted output.
        """
        worst = 0.0
        for name in self.graph.outputs:
            off = np.concatenate(
                [(g[name] - w[name]).reshape(-1) for g, w in zip(got, wanted, strict=True)]
            )
            size = np.concatenate([w[name].reshape(-1) for w in wanted])
            worst = max(worst, _rms(off) / (_rms(size) or 1.0))
        return worst

    # -- report ---------------------------------------------------------------------------------

    def report(self, made: Graph) -> QuantizeReport:
        network = lower_to_integers(made)
        program = CpuProgram(network.graph)
        points = {_words(network.graph, p.name): p for p in network.points}
        errors: dict[str, list[float]] = {p.name: [0.0, 0.0, 0.0] for p in network.points}
        got = []
        floats = CpuProgram(self.graph)
        for sample in self.samples:
            real: dict[str, Array] = dict(sample)

            def keep(node: Node, results: Sequence[Array], real: dict[str, Array] = real) -> None:
                real.update(zip(node.outputs, results, strict=True))

            def watch(node: Node, results: Sequence[Array], real: dict[str, Array] = real) -> None:
                for name, value in zip(node.outputs, results, strict=True):
                    if name in points:
                        point = points[name]
                        off = value * float(point.scale) - real[point.name]
                        kept = errors[point.name]
                        kept[0] = max(kept[0], float(np.abs(off).max(initial=0.0)))
                        kept[1] += float(np.square(off, dtype=np.float64).sum())
                        kept[2] += off.size

            floats.run(sample, keep)
            got.append(program.run(sample, watch))
        nodes = []
        for point in network.points:
            scale = QuantScale(float(point.scale), point.bits, point.signed)
            largest, squares, count = errors[point.name]
            nodes.append(
                NodeReport(
                    point.name,
                    f"input '{point.name}'" if point.title == "input" else point.title,
                    point.bits,
                    point.signed,
                    float(point.scale),
                    largest,
                    float(np.sqrt(squares / max(count, 1))),
                    self.alone.get(self.placement.root(point.name), 0.0),
                    scale.clipped(self.observed[point.name].all),
                    point.carrier,
                    point.bound,
                )
            )
        error = self._error(got, self.outputs)
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


def _words(graph: Graph, name: str) -> str:
    """Returns the name that the words of rounding point ``name`` have in the lowered graph."""
    found = f"{name}.words"
    made = {out for node in graph.nodes for out in node.outputs}
    return found if found in made else name


def _makers(graph: Graph, bits: Mapping[str, int]) -> dict[str, int]:
    """Returns the bits of each node's weights, by the node's first result.

    ``bits`` has the bits of each rounding point. A node has the bits of the point that its
    result reaches through single readers, or 8.
    """
    consumers = graph.consumers()
    found: dict[str, int] = {}
    for node in graph.nodes:
        name = node.outputs[0]
        while name not in bits and len(consumers.get(name, [])) == 1:
            name = consumers[name][0].outputs[0]
        found[node.outputs[0]] = bits.get(name, 8)
    return found


def _fold_graph(graph: Graph) -> Graph:
    """Returns the graph after those optimization passes that must run before quantization,
    because they work on floats only."""
    for name, stage, _ in STAGES:
        if name not in _LATER:
            graph = stage(graph)
    return graph


def _check_samples(graph: Graph, samples: Samples) -> list[dict[str, Array]]:
    if isinstance(samples, Mapping) or not isinstance(samples, Sequence):
        raise InputError("samples: wanted a list of {name: array}")
    if len(samples) < _LEAST_SAMPLES:
        raise InputError(
            f"{len(samples)} sample{'' if len(samples) == 1 else 's'}: wanted at least "
            f"{_LEAST_SAMPLES}, as the network will meet them; ranges are taken from them"
        )
    return [_check_sample(graph, i, sample) for i, sample in enumerate(samples)]


def _check_sample(graph: Graph, i: int, sample: object) -> dict[str, Array]:
    if not isinstance(sample, Mapping) or set(sample) != set(graph.inputs):
        got = sorted(sample) if isinstance(sample, Mapping) else type(sample).__name__
        raise InputError(f"sample {i}: wanted the inputs {list(graph.inputs)}, got {got}")
    found = {}
    for name in graph.inputs:
        fact, array = graph.facts[name], np.asarray(sample[name])
        if array.shape != fact.shape or array.dtype.kind not in "fiub":
            raise InputError(
                f"sample {i}: '{name}' is {array.dtype}{list(array.shape)}, wanted {fact}"
            )
        found[name] = array.astype(NUMPY_DTYPE[fact.dtype])
        if not np.isfinite(found[name]).all():
            at = np.argwhere(~np.isfinite(found[name]))[0].tolist()
            raise InputError(
                f"sample {i}: '{name}' has infinities or NaN, the first at {at}: leave that sample "
                "out"
            )
    return found


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0
