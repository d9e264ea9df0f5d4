"""Inspects a run: tensor statistics, the first NaN or infinity, dumps, and checks of the passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.compiler.optimize import STAGES
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.cpu.compare import (
    Comparison,
    cancellation_error,
    compare,
    node_tolerance,
    propagated_error,
)
from cml_engine.cpu.cpu_program import convert_to_fact, run_node
from cml_engine.errors import CmlError, InputError, Source
from cml_engine.io.output_folder import OutputFolder, file_stem
from cml_engine.io.pictures import can_hold, write_png
from cml_engine.ir.graph import Array, Fact, Graph, Node
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Tolerance


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """The extremes and the mean of a tensor, and its numbers of NaN, infinities and zeros.

    ``low``, ``high`` and ``mean`` cover the finite values; they are None if there are none.
    """

    low: float | None
    high: float | None
    mean: float | None
    nan: int
    inf: int
    zeros: int

    @classmethod
    def of(cls, array: Array) -> TensorStatistics:
        nan = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
        inf = int(np.isinf(array).sum()) if array.dtype.kind == "f" else 0
        finite = array[np.isfinite(array)] if nan or inf else array
        zeros = int(array.size - np.count_nonzero(array))
        if not finite.size:
            return cls(None, None, None, nan, inf, zeros)
        mean = float(finite.mean(dtype=np.float64))
        return cls(float(finite.min()), float(finite.max()), mean, nan, inf, zeros)

    def row(self) -> dict[str, Any]:
        """Returns extremes, mean, and numbers of NaN and infinities as a dict for an index."""
        return {
            "min": self.low,
            "max": self.high,
            "mean": self.mean,
            "nan": self.nan,
            "inf": self.inf,
        }

    def __str__(self) -> str:
        extremes = [] if self.low is None else [f"min {self.low:.6g}, max {self.high:.6g}"]
        counts = ((self.zeros, "zeros"), (self.nan, "NaN"), (self.inf, "infinite"))
        return ", ".join([*extremes, *(f"{count} {label}" for count, label in counts if count)])


class NotFinite(CmlError):
    """Raised if the result of an operator contains NaN or an infinity."""


class StopAtNan:
    """A watch, called per node, that raises :class:`NotFinite` at the first NaN or infinity.

    :meth:`before` takes the node's operands, so that the message can show them.
    """

    _operands: dict[str, Array]

    def before(self, node: Node, operands: Sequence[Array]) -> None:
        """Stores copies of the operands of a node that is about to run."""
        self._operands = dict(zip(node.reads, map(np.array, operands), strict=True))

    def __call__(self, node: Node, results: Sequence[Array]) -> None:
        for name, array in zip(node.outputs, results, strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise NotFinite(self._describe(node, name, array), node.source)

    def _describe(self, node: Node, name: str, array: Array) -> str:
        statistics = TensorStatistics.of(array)
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        counts = ((statistics.nan, "NaN"), (statistics.inf, "infinite"))
        nonfinite = " and ".join(f"{count} {label}" for count, label in counts if count)
        lines = [
            f"{node.title}: of {array.size} values of '{name}' {nonfinite}; the first, "
            f"{array[index]}, at {list(index)}. It was made of"
        ]
        for read, value in self._operands.items():
            element = _operand_element(node, value, array, index)
            element_text = "" if element is None else f"; there {element:.7g}"
            lines.append(
                f"  {read} {list(value.shape)}: {TensorStatistics.of(value)}{element_text}"
            )
        if node.attrs:
            lines.append(f"  with {node.attrs!r}")
        return "\n".join(lines)


def _operand_element(node: Node, value: Array, result: Array, index: tuple[int, ...]) -> Any:
    """Returns the operand's element that an element-wise operator read for the result at ``index``.

    Returns None if the operator is not element-wise.
    """
    fits = value.ndim <= result.ndim and all(
        extent in (1, result.shape[axis]) for axis, extent in enumerate(value.shape)
    )
    if lookup(node.op).formula is None or not fits:
        return None
    return value[tuple(0 if n == 1 else i for i, n in zip(index, value.shape, strict=False))]


INDEX = "index.json"


class Dump:
    """A watch, called per node, that writes the tensors whose names match a pattern to files.

    The folder receives an ``.npy`` file per tensor, a picture if the tensor's shape allows one,
    and an index at the end. ``only`` has the patterns; without them every tensor is written.
    """

    def __init__(
        self, folder: Path, graph: Graph, only: Sequence[str] = (), *, overwrite: bool = False
    ) -> None:
        self._graph = graph
        self._only = only or ["*"]
        self._rows: list[dict[str, Any]] = []
        names = [name for node in graph.nodes for name in node.outputs]
        for pattern in self._only:
            if not any(fnmatchcase(name, pattern) for name in names):
                computed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
                raise InputError(
                    f"--only '{pattern}': no tensor of '{graph.name}' matches; it computes "
                    f"{computed}"
                )
        self._folder = OutputFolder(folder, INDEX, overwrite=overwrite)

    def __call__(self, node: Node, results: Sequence[Array]) -> None:
        for name, array in zip(node.outputs, results, strict=True):
            if any(fnmatchcase(name, pattern) for pattern in self._only):
                self._add(node, name, array)

    def fixed(self, constants: Mapping[str, Array]) -> None:
        """Writes the matching tensors of nodes that were computed when the model was loaded."""
        for node in self._graph.nodes:
            if all(name in constants for name in node.outputs):
                self(node, [constants[name] for name in node.outputs])

    def close(self) -> Path:
        """Writes the index, which lists all written tensors, and returns its path."""
        return self._folder.write_manifest({"model": self._graph.name, "tensors": self._rows})

    def __len__(self) -> int:
        return len(self._rows)

    def _add(self, node: Node, name: str, array: Array) -> None:
        stem = f"{len(self._rows):04d}_{file_stem(name)[:80]}"
        file = self._folder.write(f"{stem}.npy", partial(np.save, arr=array, allow_pickle=False))
        statistics = TensorStatistics.of(array)
        row = {"tensor": name, "file": file, "shape": list(array.shape), "type": array.dtype.name}
        row |= {"operator": node.op, **_line(node.source), **statistics.row()}
        fact = Fact("scalar" if array.dtype.kind == "f" else "", array.shape)
        if can_hold(fact) and statistics.low is not None and statistics.high is not None:
            low, high = min(statistics.low, 0.0), max(statistics.high, 1.0)
            if low < 0 or high > 1:  # values outside [0, 1] are scaled to the tensor's own range
                low, high = statistics.low, statistics.high
            scale = (array - np.float32(low)) / np.float32(high - low or 1)
            planes = scale[0].transpose(1, 2, 0)
            picture = self._folder.write(f"{stem}.png", partial(write_png, planes, bits=8))
            row |= {"picture": picture, "black": low, "white": high}
        self._rows.append(row)


def _line(source: Source | None) -> dict[str, Any]:
    return {"line": str(source), "text": source.text.strip()} if source else {}


@dataclass(frozen=True)
class PassReport:
    """The result of :func:`check_passes`.

    ``fault`` names the first pass and node that differ; it is empty if there is none. ``passes``
    lists the passes that changed the graph, with the number of nodes before and after. ``worst``
    is the largest error as a fraction of the tolerance.
    """

    model: str
    passes: tuple[tuple[str, int, int], ...]
    compared: int
    worst: float
    fault: str

    @property
    def ok(self) -> bool:
        return not self.fault

    def __str__(self) -> str:
        lines = [f"passes of '{self.model}' against the graph as written, both in NumPy"]
        lines += [f"{name:16s} {was:5d} -> {now:5d} nodes" for name, was, now in self.passes]
        agree = (
            f"all agree: {self.compared} tensors, the worst at {100 * self.worst:.1f} % of what "
        )
        lines.append(self.fault or agree + "rounding may change")
        return "\n".join(lines)


def check_passes(graph: Graph, inputs: Mapping[str, Array]) -> PassReport:
    """Runs the graph as written and as optimized, in NumPy, and reports if their tensors agree.

    If they do not, the report names the first pass after which a tensor differs.
    """
    written = infer_facts(graph)
    values = {**written.constants, **inputs}
    for node in written.nodes:
        values |= _results(written, node, values)
    stages, passes = [(STAGES[0][0], written)], []
    for name, stage, _ in STAGES[1:]:
        before = stages[-1][1]
        after = stage(before)
        stages.append((name, after))
        if after.nodes != before.nodes:
            passes.append((name, len(before.nodes), len(after.nodes)))
    checks = list(_checks(written, stages[-1][1], values))
    worst = max((comparison.worst for _, comparison in checks), default=0.0)
    fault = ""
    if not all(comparison.ok for _, comparison in checks):
        fault = _fault(written, stages, values)
    return PassReport(graph.name, tuple(passes), len(checks), worst, fault)


def _fault(written: Graph, stages: list[tuple[str, Graph]], values: Mapping[str, Array]) -> str:
    """Returns a message that names the first pass after which a tensor differs, and the node."""
    for name, graph in stages:
        for node, comparison in _checks(written, graph, values):
            if not comparison.ok:
                location = f"{node.source}: " if node.source else ""
                return f"pass '{name}': {location}{node.title}: {comparison.problem}"
    return "the passes differ, but none of them alone"


def _checks(
    written: Graph, graph: Graph, values: Mapping[str, Array]
) -> Iterator[tuple[Node, Comparison]]:
    """Yields the node and the comparison of every tensor that both graphs compute.

    Every node of ``graph`` reads the values of ``written``, so errors do not accumulate.
    """
    producers_of = written.producers
    operands: dict[str, Array] = {**graph.constants, **{n: values[n] for n in graph.inputs}}
    for name in graph.constants:
        if name in producers_of:  # folded by a pass
            tolerance = _tolerance(producers_of, name, frozenset(), producers_of[name])
            yield producers_of[name], compare(operands[name], values[name], tolerance)
    for node in graph.nodes:
        arrays = [operands[name] for name in node.reads]
        read = frozenset(n for n in node.reads if n in producers_of)
        for name, result in _results(graph, node, operands).items():
            operands[name] = result
            if name in producers_of:
                operands[name] = values[name]
                tolerance = _tolerance(producers_of, name, read, node)
                comparison = compare(result, values[name], tolerance)
                if not comparison.ok:
                    comparison = compare(
                        result, values[name], tolerance, _extra_error(node, arrays)
                    )
                yield node, comparison


def _results(graph: Graph, node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
    arrays = run_node(node, [values[name] for name in node.reads])
    named = zip(node.outputs, arrays, strict=True)
    return {name: convert_to_fact(node, graph.facts[name], value).copy() for name, value in named}


def _extra_error(node: Node, arrays: list[Array]) -> Array | float:
    error: Array | float = propagated_error(node, arrays) if node.epilogues else 0.0
    return error + cancellation_error(node, arrays) if lookup(node.op).traits.is_sum else error


def _tolerance(
    makers: Mapping[str, Node], name: str, read: frozenset[str], node: Node
) -> Tolerance:
    """Returns the summed tolerance of the operators that compute ``name`` from ``read``.

    It includes the tolerance of ``node``, which replaces them.
    """
    between: dict[str, Node] = {}
    pending = [name]
    while pending:
        maker = makers.get(pending.pop())
        if maker is not None and maker.outputs[0] not in between:
            between[maker.outputs[0]] = maker
            pending += [n for n in maker.reads if n not in read]
    parts = [node_tolerance(one) for one in (*between.values(), node)]
    return Tolerance(
        sum(t.rtol for t in parts),
        sum(t.atol for t in parts),
        "all operators in between",
        sum(t.of_largest for t in parts),
    )
