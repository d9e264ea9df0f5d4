"""Random ONNX graphs, compared with ONNX Runtime: ``python -m tests.onnx_graphs --count 1000``.

Every node is made from a row of the importer's table. ONNX's own test cases of the operator supply
the structure of its inputs; extents, element types, values, attributes (as the row declares them)
and the opset are random. A node is kept if ONNX Runtime can run it alone. A new row is therefore
covered as soon as ONNX has a case of it.

A node that ONNX Runtime runs and the importer refuses is a difference, unless the importer reports
it as unsupported.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import cml_engine as cml
from cml_engine.errors import UnsupportedOp
from cml_engine.formats.onnx import operators
from cml_engine.formats.onnx.attributes import Attr
from cml_engine.formats.onnx.op_schemas import FIRST_OPSET, OnnxRow, all_rows, row_for
from tests.fixtures.onnx_models import model, value
from tests.onnx_nodes import cases, data_sets, model_of

Array = np.ndarray[Any, Any]
#: the newest opset that ONNX Runtime supports
LAST_OPSET = 23
_MAX_SIZE = 4096
#: largest magnitude: beyond it one operator's rounding decides the next one's result
_MAX_VALUE = 1e4
TYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "int8", "int16", "bool")
#: the unused input of a network that has only constants
UNUSED: Mapping[str, Array] = {"unused": np.zeros(1, np.float32)}
#: deviations of ONNX Runtime from ONNX, by operator: a pattern in the importer's message or in the
#: description of the difference
EXPECTED = {
    # "theta: input batch of affine matrices with shape (N, 2, 3) for 2D or (N, 3, 4) for 3D"
    "AffineGrid": "matrices",
    # "Its length can be less than the input length along the axis": no word of more
    "Compress": "a condition of",
    # "output_shape[i] = input_shape[i] * strides[i]": less there where windows do not meet
    "ConvTranspose": "SAME.*shape|shape.*SAME",
    # ONNX's evaluator takes the neighbours within the border, as here
    "GridSample": "mode = '(bi)?cubic'",
    # "output_spatial_shape[i] = floor(…)" is 0, which ONNX Runtime rounds towards zero to 1; "SAME:
    # output_shape[i] = ceil(input_shape[i] / strides[i])", whatever the dilations; it pads, where
    # ONNX Runtime cuts off the edges if windows do not meet
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), "does not fit|SAME"),
    # the order of "Y = (X - mean) / sqrt(var + epsilon) * scale + B" counts where the root is 0
    "BatchNormalization": r"wanted \[ *-?(nan|inf)",
    # ONNX's case with an output_shape: the indices are those of the shape that is inferred
    "MaxUnpool": "wanted",
    # the body of ONNX's function adds 1e-9 to the deviation: of one number it is 0
    "MeanVarianceNormalization": r"wanted \[nan",
    # "max_output_boxes_per_class: It is a scalar"
    "NonMaxSuppression": "wanted one",
    # NumPy, by which ONNX defines reductions, refuses an axis that is named twice
    **dict.fromkeys((row.name for row in all_rows() if row.name.startswith("Reduce")), "one twice"),
    # the logarithm of integers is cut off before their maximum is added
    "ReduceLogSumExp": r"one twice|: \[ *-?\d+[\] ]",
    # NaN is unspecified (also 0 over a scale of 0); here it gives 0 for any zero point
    "QuantizeLinear": r"nan|array\(0\., ",
    # ONNX's cases divide by the extent before it is rounded down, less one
    "Resize": "align_corners",
}
#: operators whose second input holds classes: "each element value shall be in range of [0, C)", or
#: the ignored index
_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
#: operators with subgraphs, and one whose second result is the random mask of Dropout
LEFT_OUT = frozenset(operators.CONTROL) | {"Dropout"}


@dataclass(frozen=True)
class Sample:
    """One node of ONNX's own cases and its inputs; an omitted input is ``None``."""

    node: Any
    inputs: tuple[Array | None, ...]


@cache
def samples() -> Mapping[str, Sequence[Sample]]:
    """Returns ONNX's cases of a single node, by operator."""
    found: dict[str, list[Sample]] = {}
    for case in cases().values():
        made = model_of(case)
        if len(made.graph.node) != 1:
            continue
        (node,) = made.graph.node
        inputs, _ = next(data_sets(case))
        given = dict(zip([info.name for info in made.graph.input], inputs, strict=False))
        fitting = all(given[name].size <= _MAX_SIZE for name in node.input if name)
        if fitting and not node.domain:
            arrays = tuple(given[name] if name else None for name in node.input)
            found.setdefault(node.op_type, []).append(Sample(node, arrays))
    return found


def rows_at(opset: int) -> list[OnnxRow]:
    """Returns the importer's rows for ONNX operators that exist in the opset and have samples."""
    names = {row.name for row in all_rows() if not row.domain} - LEFT_OUT
    found = [row_for("", name, opset) for name in sorted(names) if name in samples()]
    return [row for row in found if row is not None and _schema(row.name, opset) is not None]


def _schema(name: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(name, opset, "")
    except onnx.defs.SchemaError:
        return None


def _run_here(data: bytes, feeds: Mapping[str, Array]) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        return ort.InferenceSession(data, options).run(None, feeds)
    except Exception:  # it refuses the node
        return None


@cache
def _worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def run_in_onnxruntime(network: Any, feeds: Mapping[str, Array]) -> Any:
    """Returns ONNX Runtime's outputs; ``None`` if it refuses the network or crashes."""
    try:
        return _worker().submit(_run_here, network.SerializeToString(), feeds).result()
    except BrokenProcessPool:
        _worker.cache_clear()
        return None


# -- one node --------------------------------------------------------------------------------------


@dataclass
class Draft:
    """A candidate node: its attributes and the values of its inputs."""

    rng: np.random.Generator
    row: OnnxRow
    opset: int

    def make(self, mutate: bool) -> tuple[dict[str, Any], list[Array | None]]:
        """Takes the attributes and inputs of a random sample and changes them at random."""
        found = samples()[self.row.name]
        sample = found[self.rng.integers(len(found))]
        attrs = {a.name: helper.get_attribute_value(a) for a in sample.node.attribute}
        inputs = list(sample.inputs)
        if mutate and self.rng.random() < 0.2:
            while len(inputs) > 1 and self.rng.random() < 0.5:
                inputs.pop()
        types = self._types(inputs) if mutate else {}
        extents = self._extents(inputs) if mutate and self.rng.random() < 0.7 else {}
        arrays = [self._array(i, x, types, extents) for i, x in enumerate(inputs)]
        made = self._attributes(attrs, mutate)
        if self.row.name in _LOSSES and len(arrays) > 1 and arrays[1] is not None:
            ignored = arrays[1] == made.get("ignore_index", 0)
            arrays[1] = np.where(ignored, arrays[1], np.abs(arrays[1]))
        return made, arrays

    def _types(self, inputs: Sequence[Array | None]) -> dict[int, str]:
        """Draws a new element type for all inputs that share a type variable."""
        schema, found = _schema(self.row.name, self.opset), {}
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        chosen: dict[str, str] = {}
        for i in range(len(inputs)):
            formal = schema.inputs[min(i, len(schema.inputs) - 1)]
            names = [t for t in TYPES if f"tensor({_ONNX_NAMES.get(t, t)})" in
                     allowed.get(formal.type_str, ())]  # fmt: skip
            if not names:
                continue
            if formal.type_str not in chosen:
                kept = self.rng.random() < 0.5
                chosen[formal.type_str] = "" if kept else str(self.rng.choice(names))
            if chosen[formal.type_str]:
                found[i] = chosen[formal.type_str]
        return found

    def _extents(self, inputs: Sequence[Array | None]) -> dict[int, int]:
        """Draws a new value for each extent of the sample."""
        had = {n for x in inputs if x is not None for n in x.shape if n}
        return {n: int(self.rng.integers(1, 7)) for n in had if self.rng.random() < 0.5}

    def _array(
        self, place: int, x: Array | None, types: Mapping[int, str], extents: Mapping[int, int]
    ) -> Array | None:
        if x is None:
            return None
        shape = tuple(extents.get(n, n) for n in x.shape)
        dtype = np.dtype(types.get(place, x.dtype))
        if dtype.kind == "f":
            numbers = self.rng.standard_normal(shape) * self.rng.choice([0.5, 1, 3])
            numbers = np.round(4 * numbers) / 4 if self.rng.random() < 0.3 else numbers
            was_float = x.dtype.kind == "f" and x.size
            if was_float and (x.min() >= 0 or x.size <= 4) and self.rng.random() < 0.5:
                numbers = self.rng.choice(x.reshape(-1), shape)  # a scale, a probability, a box
            return np.asarray(numbers, dtype)
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        if shape == x.shape and x.dtype.kind in "iu" and self.rng.random() < 0.6:
            return x.astype(dtype)
        low, high = (x.min(), x.max()) if x.dtype.kind in "iu" and x.size else (-4, 9)
        limits = np.iinfo(dtype)
        numbers = self.rng.integers(max(int(low), -9), min(int(high), 99) + 1, shape)
        return np.asarray(numbers.clip(limits.min, limits.max), dtype)

    # -- attributes --

    def _attributes(self, attrs: dict[str, Any], mutate: bool) -> dict[str, Any]:
        known = {name: v for name, v in attrs.items() if name in self.row.attrs}
        if not mutate:
            return known
        for name, attr in self.row.attrs.items():
            chance = self.rng.random()
            if chance < 0.15 and not attr.required:
                known.pop(name, None)
            elif chance < 0.35 and (made := self._attribute(attr, known.get(name))) is not None:
                known[name] = made
        return known

    def _attribute(self, attr: Attr, given: Any) -> Any:
        """Returns a value that the row allows; ``None`` if the row does not specify enough."""
        if attr.among:
            chosen = self.rng.choice(np.array(list(attr.among)))
            return str(chosen) if attr.kind is str else int(chosen)
        if attr.kind not in (int, float):
            return None
        count = 1
        if attr.many:
            count = len(given) if given else int(self.rng.integers(1, 5))
        low = max(int(attr.low), -3) if attr.kind is int else 0
        if attr.kind is int:
            found: list[Any] = [int(n) for n in self.rng.integers(low, low + 4, count)]
        else:
            found = [float(n) for n in self.rng.choice([0.1, 0.25, 0.5, 1.0, 1.5], count)]
        return found if attr.many else found[0]


_ONNX_NAMES = {"float32": "float", "float64": "double"}


# -- a graph ---------------------------------------------------------------------------------------


@dataclass
class Growing:
    """A graph under construction, with the values of its tensors."""

    rng: np.random.Generator
    opset: int
    nodes: list[Any] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    #: results that later nodes may read: their shape does not depend on values
    usable: set[str] = field(default_factory=set)
    rows: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def grow(self, row: OnnxRow) -> bool:
        """Adds a node of that row; returns False if no draft was right."""
        for attempt in range(8):
            try:
                attrs, arrays = Draft(self.rng, row, self.opset).make(attempt < 7)
                if self._add(row, attrs, arrays):
                    return True
            except (ValueError, TypeError, OverflowError):  # ONNX's helpers refuse the draft
                continue
        return False

    def _add(self, row: OnnxRow, attrs: dict[str, Any], arrays: Sequence[Array | None]) -> bool:
        feeds: dict[str, Array] = {}
        known: dict[str, Array] = {}
        names = [self._name(x, feeds, known) for x in arrays]
        schema = _schema(row.name, self.opset)
        most = min(schema.max_output, 3)  # for operators with a variable number of outputs
        count = int(self.rng.integers(max(schema.min_output, 1), most + 1))
        outputs = [f"t{len(self.nodes)}_{i}" for i in range(count)]
        node = helper.make_node(row.name, names, outputs, **attrs)
        all_known = {**self.values, **feeds, **known}
        used = {name: all_known[name] for name in names if name}
        alone = self.model_of([node], {n: a for n, a in used.items() if n not in known}, known)
        given = {n: a for n, a in used.items() if n not in known}
        found = run_in_onnxruntime(alone, given or UNUSED)
        if found is None or any(not self._is_small(array) for array in found):
            return False
        try:
            graph = imported(alone)
        except UnsupportedOp:
            self.refused[row.name] += 1
            return False
        except Exception as error:
            if _is_expected(row.name, str(error)):
                return False
            self.wrong.append(f"{type(error).__name__}: {error}\n{helper.printable_node(node)} of "
                              f"{[f'{a.dtype}{a.shape}' for a in used.values()]}")  # fmt: skip
            return False
        self.nodes.append(node)
        self.inputs |= feeds
        self.weights |= known
        self.values |= {**feeds, **known, **dict(zip(outputs, found, strict=True))}
        fixed = not any(name.endswith("_count") for name in graph.outputs)
        exact = all(array.dtype != np.float16 for array in found)  # ONNX Runtime rounds float16
        self.usable |= {*feeds} | ({*outputs} if fixed and exact else set())
        self.rows[row.name] += 1
        return True

    def _name(self, x: Array | None, feeds: dict[str, Array], known: dict[str, Array]) -> str:
        """Returns a tensor of that type and shape: an existing one, a constant, or an input."""
        if x is None:
            return ""
        same = [n for n in sorted(self.usable)
                if (self.values[n].dtype, self.values[n].shape) == (x.dtype, x.shape)]  # fmt: skip
        is_small = x.dtype.kind != "f" and x.ndim <= 1
        if same and not is_small and self.rng.random() < 0.8:
            return str(self.rng.choice(same))
        number = len(self.weights) + len(self.inputs) + len(feeds) + len(known)
        if self.rng.random() < (0.95 if is_small or x.size <= 4 else 0.3):
            known[f"w{number}"] = x
            return f"w{number}"
        feeds[f"x{number}"] = x
        return f"x{number}"

    def _is_small(self, array: Any) -> bool:
        if not isinstance(array, np.ndarray) or not 0 < array.size <= _MAX_SIZE or array.ndim > 6:
            return False
        if array.dtype.kind in "f":
            finite = array[np.isfinite(array)]
            return not finite.size or bool(np.abs(finite).max() <= _MAX_VALUE)
        return array.dtype.kind in "iub" and (
            array.dtype.kind == "b" or bool(np.abs(array.astype(np.float64)).max() < 2**31)
        )

    def model_of(
        self, nodes: Sequence[Any], inputs: Mapping[str, Array], weights: Mapping[str, Array]
    ) -> Any:
        made = [name for node in nodes for name in node.output]
        types = [value(name, array.shape, str(array.dtype)) for name, array in inputs.items()]
        types = types or [value(name, array.shape) for name, array in UNUSED.items()]
        network = model(nodes, types, [value(o, None) for o in made], weights, self.opset)
        for output in network.graph.output:
            output.type.Clear()
        return network

    def whole(self) -> Any:
        used = {name for node in self.nodes for name in node.input}
        weights = {name: a for name, a in self.weights.items() if name in used}
        return self.model_of(self.nodes, self.inputs, weights)


def imported(network: Any) -> Any:
    with warnings.catch_warnings():  # about integers that are not proven to fit
        warnings.simplefilter("ignore", cml.nnef.NnefWarning)
        return cml.load(network.SerializeToString())


def grown(seed: int, steps: int = 6) -> Growing:
    """Returns a random graph of ``steps`` nodes in one opset."""
    rng = np.random.default_rng(seed)
    g = Growing(rng, int(rng.integers(FIRST_OPSET, LAST_OPSET + 1)))
    rows = rows_at(g.opset)
    for _ in range(4 * steps):
        g.grow(rows[rng.integers(len(rows))])
        if len(g.nodes) >= steps:
            break
    return g


def differences(g: Growing, backend: Any = "cpu") -> Iterator[str]:
    """Yields the nodes whose outputs differ from ONNX Runtime.

    Nodes that read an already differing tensor are skipped.
    """
    yield from g.wrong
    if not g.nodes:
        return
    with np.errstate(all="ignore"):
        got = cml.Session(imported(g.whole()), backend).run(g.inputs or UNUSED)
    spoiled: set[str] = set()
    for node in g.nodes:
        inexact = any(name in spoiled for name in node.input)
        for name in node.output:
            want, count = g.values[name], got.get(f"{name}_count")
            have = got[name]
            if count is not None:
                have = have[tuple(slice(n) for n in want.shape)]
            if inexact:
                spoiled.add(name)
                continue
            if said := _difference(have, want):
                spoiled.add(name)
                said = f"{name}: {said}\n{helper.printable_node(node)} (opset {g.opset}) of "
                said += str([g.values[n] for n in node.input if n])
                if not _is_expected(node.op_type, said) and not _follows(g, node, name, got):
                    yield said


def _follows(g: Growing, node: Any, name: str, got: Mapping[str, Array]) -> bool:
    """Returns True if ONNX Runtime agrees when it is given the engine's inputs of the node.

    The small difference of the inputs then causes the difference of the result.
    """
    used = {n: g.values[n] for n in node.input if n}
    known = {n: a for n, a in used.items() if n in g.weights}
    given = {n: got.get(n, a).astype(a.dtype) for n, a in used.items() if n not in known}
    found = run_in_onnxruntime(g.model_of([node], given, known), given or UNUSED)
    return not _difference(got[name], found[list(node.output).index(name)])


def _is_expected(op: str, said: str) -> bool:
    return op in EXPECTED and re.search(EXPECTED[op], said, re.DOTALL) is not None


def _difference(have: Array, want: Array) -> str:
    if have.shape != want.shape:
        return f"shape {have.shape}, wanted {want.shape}"
    if want.dtype.kind != "f":
        wrong = have.astype(np.int64) != want.astype(np.int64)
    else:
        with np.errstate(over="ignore"):
            have = have.astype(want.dtype)  # computed in 32 bits, where 16 may be infinite
        eps = {2: 4e-3, 4: 1e-4, 8: 1e-4}[want.dtype.itemsize]
        finite = want[np.isfinite(want)].astype(np.float64)
        largest = max(1.0, float(np.abs(finite).max(initial=0.0)))
        close = np.isclose(have.astype(np.float64), want.astype(np.float64), eps, eps * largest,
                           equal_nan=True)  # fmt: skip
        wrong = ~close
    if not wrong.any():
        return ""
    return f"{have[wrong][:4]}, wanted {want[wrong][:4]} ({int(wrong.sum())} of {want.size})"


def compare(seed: int, backend: Any = "cpu") -> Growing:
    """Compares one graph on the engine and on ONNX Runtime."""
    g = grown(seed)
    for said in differences(g, backend):
        raise AssertionError(f"seed {seed}: {said}")
    return g


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_graphs", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--backend", choices=("cpu", "gpu"), default="cpu")
    a = parser.parse_args(argv)
    backend = cml.Gpu() if a.backend == "gpu" else "cpu"
    failed, rows, refused = 0, Counter[str](), Counter[str]()
    for seed in range(a.first, a.first + a.count):
        try:
            g = grown(seed)
            rows, refused = rows + g.rows, refused + g.refused
            found = list(differences(g, backend))
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        failed += bool(found)
        for said in found:
            print(f"seed {seed}: {' '.join(said.split())[:1200]}", flush=True)  # noqa: T201
    missing = {row.name for opset in (7, 11, 13, 18, 21, 23) for row in rows_at(opset)} - {*rows}
    print(  # noqa: T201
        f"{a.count} graphs, {sum(rows.values())} nodes of {len(rows)} operators, {failed} differ; "
        f"never run: {', '.join(sorted(missing)) or 'none'}; refused: {dict(refused)}"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
