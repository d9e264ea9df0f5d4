"""Stores a float network's weights in 8 or 4 bits, and reports the error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from cml_engine.compiler.integer.quantizer.quantize import (
    Samples,
    check_samples,
    output_error,
    relative_error,
)
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_instance, check_number_of
from cml_engine.io.json_files import Json
from cml_engine.ir.block_weights import CODE_BITS, nearest_blocks
from cml_engine.ir.graph import Array, Graph
from cml_engine.nnef.files.tensor_file import tensor_file_size
from cml_engine.ops.declaration.registry import lookup

#: the weights that share a scale, as in llama.cpp's Q8_0 and Q4_0
_BLOCK = 32


@dataclass(frozen=True, slots=True)
class WeightReport:
    """A weight tensor's bytes in its file before and after, and its relative RMS error."""

    name: str
    shape: tuple[int, ...]
    before: int
    after: int
    error: float


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """The result of :func:`quantize_weights`.

    ``before`` and ``after`` are the bytes of all tensor files. ``error`` is the largest relative
    error of any output on the samples: the RMS of the difference over the RMS of the output.
    """

    model: str
    bits: int
    samples: int
    before: int
    after: int
    error: float
    weights: tuple[WeightReport, ...]

    @property
    def data(self) -> dict[str, Json]:
        """The whole report as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [f"{self.model}: {len(self.weights)} weight tensors in blocks of {self.bits} bits"]
        rows.append(f"{'':32s} {'shape':>20s} {'bytes':>12s} {'stored':>12s} {'error':>9s}")
        rows += [
            f"{w.name[:32]:32s} {'x'.join(map(str, w.shape)):>20s} {w.before:12,d} {w.after:12,d} "
            f"{100 * w.error:8.3f}%"
            for w in self.weights
        ]
        rows.append(f"all tensor files: {self.before:,} bytes before, {self.after:,} after")
        rows.append(
            f"error of the outputs: {100 * self.error:.3g} % of their size on {self.samples} "
            f"sample{'s' * (self.samples != 1)}"
        )
        return "\n".join(rows)


def quantize_weights(graph: Graph, samples: Samples, bits: int = 8) -> tuple[Graph, WeightsReport]:
    """Returns the network with its filters and matrices in 8 or 4 bits, and a report.

    Blocks of 32 weights share a scale (docs/faster.md). Feature maps and arithmetic stay floats.
    Weights that would not take less than half of their bytes stay floats, too. ``samples`` are one
    or more inputs, ``{name: array}`` each, on which the error of the outputs is measured.

    Examples
    --------
    >>> small, report = cml.integer.quantize_weights(graph, [{"image": image}], bits=8)
    >>> report.after <= report.before
    True
    """
    check_instance(Graph, graph, "the graph to quantize (cml.load gives one)")
    check_number_of(CODE_BITS, bits, "bits")
    if graph.integer or graph.cooked_form is not None:
        state = "cooked" if graph.cooked_form is not None else "an integer network"
        raise InputError(f"'{graph.name}' is {state}: quantize the float network it was made of")
    checked_samples = check_samples(graph, samples, 1)
    graph = infer_facts(graph)
    stored = _stored_weights(graph, bits)
    stored_graph = graph.with_(constants={**graph.constants, **stored})
    before, after = (
        sum(tensor_file_size(g.constants[name]) for name in graph.labels)
        for g in (graph, stored_graph)
    )
    rows = tuple(
        WeightReport(
            name,
            array.shape,
            tensor_file_size(graph.constants[name]),
            tensor_file_size(array),
            relative_error(array, graph.constants[name]),
        )
        for name, array in stored.items()
    )
    runs = [
        [CpuProgram(g).run(sample) for sample in checked_samples] for g in (stored_graph, graph)
    ]
    error = output_error(*runs)
    if not np.isfinite(error):
        raise InputError(
            f"'{graph.name}' gives infinities or NaN of a sample: give samples as the network will "
            "meet them"
        )
    return stored_graph, WeightsReport(
        graph.name, bits, len(checked_samples), before, after, error, rows
    )


def _stored_weights(graph: Graph, bits: int) -> Mapping[str, Array]:
    """Returns the weights in blocks of ``bits``, by name, in the order of their first readers."""
    stored: dict[str, Array] = {}
    for node in graph.nodes:
        axis_of = lookup(node.op).traits.summed_axis
        name = node.inputs[1] if axis_of else ""
        if axis_of is None or not graph.is_constant(name) or name in stored:
            continue
        values = np.asarray(graph.constants[name])
        if values.ndim < 2 or not values.size or not np.isfinite(values).all():
            continue
        axis = axis_of(node.attrs, values.shape)
        size = min(_BLOCK, values.shape[axis])
        blocks = nearest_blocks(values, axis, size, bits)
        block_values = blocks.values()
        if 2 * tensor_file_size(block_values) < tensor_file_size(values):
            stored[name] = block_values
    return stored
