"""The golden pair of a cooked file: inputs, the outputs that NumPy computes for them, and the
tolerance for devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from cml_engine.compiler.integer.quant_params import read_quant_params
from cml_engine.cooked.reader import Container, damaged
from cml_engine.cooked.schema import (
    DTYPES,
    GOLDEN,
    MOST_DIMENSIONS,
    GoldenHead,
    GoldenRow,
    aligned,
    pad,
    padded,
)
from cml_engine.cooked.writer import Sections
from cml_engine.cpu.cpu_program import CpuProgram, convert_to_fact, last_uses, run_node
from cml_engine.errors import CmlError
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact, Graph
from cml_engine.ops.declaration.registry import lookup

_ALIGNMENT = 16
#: the number of inputs tried before a network counts as magnifying every rounding error
_TRIES = 3
#: integer inputs that are no indices have values 0 to 9
_SMALL = 10
#: relative rounding error of an operator on another device: a few roundings of 2**-24 in a sum, or
#: one of 2**-11 where tensors are stored in 16 bits
_NOISE = {"float": 2.0**-20, "half": 2.0**-11}
#: tolerance of a network that does not magnify rounding errors: WGSL lets sin and cos be off by
#: 2**-11
_LEAST = {"float": 1e-3, "half": 2e-2}
#: the tolerance as a multiple of the measured effect of the noise, and the largest useful one
_SAFETY, _MOST = 8.0, 0.25
#: operators whose second operand holds positions in the first
_INDEXING = {"gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd"}


@dataclass(frozen=True)
class Golden:
    """Inputs, the outputs that NumPy computed for them in a first run, and the tolerance for
    devices.

    ``tolerance`` is absolute and relative for each real number. For integers and booleans it is
    the share of elements that may differ.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    tolerance: float

    def differences(self, outputs: Mapping[str, Array]) -> dict[str, float]:
        """Returns, by output, its largest difference as a multiple of the allowed one; up to 1 is
        correct.

        Values that are not finite must be equal.
        """
        return {name: self._difference(name, outputs[name]) for name in self.outputs}

    def _difference(self, name: str, result: Array) -> float:
        expected = self.outputs[name]
        if expected.dtype.kind != "f" or not self.tolerance:
            share = float(np.mean(~_alike(expected, result))) if expected.size else 0.0
            return share / self.tolerance if self.tolerance else np.inf if share else 0.0
        with np.errstate(all="ignore"):
            allowed = self.tolerance * (1 + np.abs(expected, dtype=np.float64))
            error = np.abs(result.astype(np.float64) - expected) / allowed
        error = np.where(_alike(expected, result), 0.0, np.where(np.isfinite(error), error, np.inf))
        return float(error.max(initial=0.0))


def _alike(expected: Array, result: Array) -> Array:
    are_nan = np.isnan(result) & np.isnan(expected) if expected.dtype.kind == "f" else False
    return np.asarray((result == expected) | are_nan)


def make_golden(graph: Graph, source_graph: Graph, storage: str, exact: bool) -> Golden | None:
    """Returns a golden pair: random inputs in the ranges that the network declares, and NumPy's
    outputs.

    ``graph`` is optimized; ``source_graph`` is the same graph as loaded. Networks that are
    ``exact`` have tolerance 0. For others it is measured by comparing the outputs with those of a
    run in which every operator's result is changed by rounding errors. Returns None if an operator
    has no NumPy function, or if the outputs depend on rounding errors alone.
    """
    ops = graph.ops
    if any(lookup(op).cpu is None for op in ops):
        return None
    for seed in range(_TRIES):
        inputs, outputs = _first_run(graph, source_graph, seed)
        if exact:
            return Golden(inputs, outputs, 0.0)
        differences = Golden(inputs, outputs, 1.0).differences(
            _run_with_noise(graph, inputs, _NOISE[storage])
        )
        tolerance = _SAFETY * max(differences.values(), default=0.0)
        if tolerance <= _MOST:
            return Golden(inputs, outputs, max(tolerance, _LEAST[storage]))
    return None


def _first_run(
    graph: Graph, source_graph: Graph, seed: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    inputs = golden_inputs(source_graph, seed)
    try:
        return inputs, CpuProgram(graph).run(inputs)
    except CmlError:  # integers out of the network's range: nearly all networks accept 0 and 1
        integers = {n: a % 2 for n, a in inputs.items() if a.dtype == np.int32}
        if not integers:
            raise
        inputs = {**inputs, **integers}
        return inputs, CpuProgram(graph).run(inputs)


def golden_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    """Returns random inputs of a graph by name; equal seeds give equal inputs.

    An input of an integer network covers the range of its ``graph.quant`` line. Integers that
    are indices cover all positions. Other inputs are uniform in [0, 1), integers 0 to 9, or
    booleans.
    """
    generator = np.random.default_rng(seed)
    lines, limits, inputs = (
        read_quant_params(graph) if graph.integer else {},
        _index_limits(graph),
        {},
    )
    for name in graph.inputs:
        fact = graph.facts[name]
        low, high = 0.0, 1.0
        if name in lines:
            word_range, scale = lines[name].range, float(lines[name].scale)
            low, high = word_range.low * scale, word_range.high * scale
        if fact.dtype == "scalar":
            inputs[name] = generator.uniform(low, high, fact.shape).astype(np.float32)
        else:
            limit = 2 if fact.dtype == "logical" else limits.get(name, _SMALL)
            inputs[name] = generator.integers(0, max(limit, 1), fact.shape).astype(
                NUMPY_DTYPE[fact.dtype]
            )
    return inputs


def _index_limits(graph: Graph) -> dict[str, int]:
    """Returns, for each integer input that is used as an index, the smallest extent that it
    indexes.

    The input may reach the index through other integer tensors.
    """
    index_sources = {name: {name} for name in graph.inputs if graph.facts[name].dtype == "integer"}
    limits: dict[str, int] = {}
    for node in graph.nodes:
        sources = set[str]().union(*(index_sources.get(name, ()) for name in node.reads))
        if node.op in _INDEXING:
            shape, axis = graph.facts[node.inputs[0]].shape, node.attrs.get("axis")
            extent = min(shape, default=1) if axis is None else shape[axis]
            for name in index_sources.get(node.inputs[1], ()):
                limits[name] = min(limits.get(name, extent), extent)
        for name in node.outputs:
            if graph.facts[name].dtype == "integer":
                index_sources[name] = sources
    return limits


def _run_with_noise(graph: Graph, inputs: Mapping[str, Array], noise: float) -> dict[str, Array]:
    """Returns the outputs, by name, of a run in which rounding errors are added to every operator's
    float result.

    An error is up to ``noise`` times the value plus the tensor's RMS, as if sums were reordered.
    """
    generator = np.random.default_rng(0)
    values: dict[str, Array] = {**inputs, **graph.constants}
    for node, unused in zip(graph.nodes, last_uses(graph, ()), strict=True):
        results = run_node(node, [values[name] for name in node.reads])
        for name, result in zip(node.outputs, results, strict=True):
            value = convert_to_fact(node, graph.facts[name], result)
            if value.dtype == np.float32 and name not in graph.words:
                value = _moved(value, noise, generator)
            values[name] = value
        for name in unused:
            values.pop(name, None)
    return {name: values[name] for name in graph.outputs}


def _moved(value: Array, noise: float, generator: np.random.Generator) -> Array:
    finite = value[np.isfinite(value)]
    size = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
    with np.errstate(all="ignore"):
        change = generator.uniform(-noise, noise, value.shape) * (np.abs(value) + size)
        return np.asarray(value + change, np.float32)


def write_golden(golden: Golden, facts: Mapping[str, Fact], sections: Sections) -> None:
    """Adds the section ``golden`` with the golden pair to ``sections``."""
    rows = [(0, n, a) for n, a in golden.inputs.items()]
    rows += [(1, n, a) for n, a in golden.outputs.items()]
    start = aligned(GoldenHead.SIZE + GoldenRow.SIZE * len(rows), _ALIGNMENT)
    head = GoldenHead(tensors=len(rows), tolerance=golden.tolerance)
    records, body = bytearray(head.to_bytes()), bytearray()
    for role, name, array in rows:
        offset = start + pad(body, _ALIGNMENT)
        records += GoldenRow(
            name=sections.strings.put(name),
            role=role,
            type=DTYPES.index(facts[name].dtype),
            rank=array.ndim,
            extents=padded(array.shape),
            offset=offset,
        ).to_bytes()
        data = array.astype(np.uint32) if array.dtype == np.bool_ else array
        body += np.ascontiguousarray(data).tobytes()
    records += bytes(start - len(records))
    sections.add(GOLDEN, bytes(records + body))


def read_golden(file: Container, graph: Graph) -> Golden | None:
    """Returns the golden pair of a file, or None if it has none.

    Raises :class:`CorruptArtifact` if it does not match the inputs and outputs of the graph.
    """
    if not file.count(GOLDEN):
        return None
    section = file.section(GOLDEN)
    head = section.head(GoldenHead)
    count, tolerance = head.tensors, head.tolerance
    if not (isfinite(tolerance) and tolerance >= 0):
        raise damaged("its golden pair has no tolerance")
    names = graph.inputs, graph.outputs
    arrays: tuple[dict[str, Array], dict[str, Array]] = {}, {}
    for row in section.rows(GoldenRow, count, GoldenHead.SIZE, "its golden pair"):
        name = file.string(row.name)
        role, rank = row.role, row.rank
        if role > 1 or row.type >= len(DTYPES) or rank > MOST_DIMENSIONS:
            raise damaged(f"golden tensor '{name}' is none")
        fact = Fact(DTYPES[row.type], row.extents[:rank])
        if name not in names[role] or graph.facts[name] != fact:
            raise damaged(f"golden tensor '{name}' is none of the network's")
        if any(row.extents[rank:]):
            raise damaged(f"golden tensor '{name}' has more extents than dimensions")
        dtype = np.dtype(np.uint32) if fact.dtype == "logical" else NUMPY_DTYPE[fact.dtype]
        data = section.span(row.offset, fact.nbytes, f"golden tensor '{name}'")
        arrays[role][name] = (
            np.frombuffer(data, dtype).reshape(fact.shape).astype(NUMPY_DTYPE[fact.dtype])
        )
    if (tuple(arrays[0]), tuple(arrays[1])) != names or count != sum(map(len, names)):
        raise damaged("its golden pair does not have all inputs, then all outputs, in their order")
    return Golden(*arrays, tolerance)
