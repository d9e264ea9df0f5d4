"""An operator call as a one-line model: its text, its run, and the formula's answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from cml_engine.cpu.compare import compare
from cml_engine.nnef.expansion.signatures import STDLIB, operator_signatures
from cml_engine.ops.declaration.registry import is_registered, load_families, lookup
from cml_engine.ops.declaration.spec import Tolerance
from cml_engine.testing import case_graph
from tests.fixtures import texts
from tests.reference.formulas import FORMULAS, wanted

Array = np.ndarray[Any, Any]
load_families()
#: resolved at load: no formula, but tests of their own (tests/operators/test_small_models.py)
GRAPH_LEVEL = ("external", "variable", "constant", "update")
SIGNATURES = operator_signatures()
OPERATORS = tuple(op for op in SIGNATURES if op not in GRAPH_LEVEL)
COMPOUND = Tolerance(2e-5, 2e-5, "several operators, each with a tolerance of its own")
#: operators whose results jump at values that they round themselves. Others that jump (floor,
#: comparisons, argmax, nearest neighbours) decide by their unrounded operands or by integers
JUMPS = frozenset(op for op in SIGNATURES if op.endswith(("_quantize", "quantize_linear"))) - {
    "dequantize_linear"
} | {"mod"}
#: the error of the deciding value relative to the largest operand: some roundings, a logarithm
DECIDING = 1e-6


@dataclass(frozen=True)
class SampleCall:
    """A call of ``op``; ``attrs`` and the tensors ``arrays`` are in the order of the
    declaration."""

    op: str
    arrays: tuple[Array, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def names(self):
        return [f"x{i}" for i in range(len(self.arrays))]

    @property
    def inputs(self):
        return dict(zip(self.names, self.arrays, strict=True))

    @property
    def is_nnef(self):
        """True if the tensors have the declared types.

        Some operators accept more types here than a model's text can pass to them.
        """
        params = SIGNATURES[self.op].tensors
        types = [params[0].type.items[0].name] * len(self.arrays) if params[0].is_array else [
            p.type.name for p in params]  # fmt: skip
        known = {"scalar": "f", "integer": "i", "logical": "b"}
        pairs = zip(types, self.arrays, strict=False)
        return all(a.dtype.kind == known.get(t or "", a.dtype.kind) for t, a in pairs)

    @cached_property
    def answers(self):
        """The formula's results in order, in the engine's types."""
        order = [p.name for p in SIGNATURES[self.op].params if p.name in self.attrs]
        extra = [name for name in self.attrs if name not in order]
        return wanted(self.op, self.arrays, {k: self.attrs[k] for k in (*order, *extra)})

    @cached_property
    def beside(self):
        """The answers on both sides of a jump of the operator; empty for operators without jumps.

        The first tensor is moved by the largest rounding error that can occur before the jump.
        """
        if self.op not in JUMPS:
            return []
        x, *others = (np.asarray(a, np.float64) for a in self.arrays)
        size = np.abs(x) + max((np.abs(a).max(initial=0) for a in others), default=0)
        moved = (x - DECIDING * size, x + DECIDING * size)
        return [SampleCall(self.op, (m, *self.arrays[1:]), self.attrs).answers for m in moved]

    def verdicts(self, found):
        """Compares each result with the formula's answer by :func:`judge`."""
        return [
            judge(self.op, got, right, [answers[i] for answers in self.beside])
            for i, (got, right) in enumerate(zip(found, self.answers, strict=True))
        ]

    def body(self, results):
        """Returns the statement that computes the results ``y0``, ``y1``, …."""
        sig = SIGNATURES[self.op]
        tensors = ", ".join(self.names)
        if sig.params[0].is_array:
            tensors = f"[{tensors}]"
        attrs = {k: v for k, v in self.attrs.items() if k != "dtype"}
        given = [tensors, *(f"{k} = {literal(v)}" for k, v in attrs.items())]
        generic = f"<{self.attrs['dtype']}>" if sig.needs_dtype else ""
        left = ", ".join(f"y{i}" for i in range(results))
        if sig.results[0].type.kind == "array":
            left = f"[{left}]"
        return f"{left} = {self.op}{generic}({', '.join(given)});"

    def head(self):
        """Returns the declaration that the model must contain."""
        if self.op in STDLIB.signatures:
            return ""
        return texts.declaration(self.op)

    def run(self, folder, backend, results, *, fixed=False):
        """Writes, loads and runs the call; with ``fixed`` all tensors but the first are weights."""
        names = frozenset(self.names[1:]) if fixed else frozenset()
        return texts.run_text(
            folder, self.body(results), self.inputs, backend, head=self.head(), fixed=names
        )

    def write(self, folder):
        body = self.body(len(self.answers))
        return texts.write_text(folder, body, self.inputs, head=self.head())


def literal(value):
    """Returns a value as NNEF text."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))})"
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, float | np.floating):
        text = repr(float(value))
        return text if re.search(r"[.e]", text) else f"{text}.0"
    return str(value)


def declared_calls(op):
    """Returns the cases of the operator's own declaration."""
    if not is_registered(op):
        return
    for case in lookup(op).cases:
        graph, inputs = case_graph(op, case)
        arrays = tuple(inputs[name] for name in graph.nodes[0].inputs)
        call = SampleCall(op, arrays, dict(graph.nodes[0].attrs), case.note)
        if call.is_nnef:
            yield call


def tolerance_of(op):
    """Returns the operator's declared tolerance plus one rounding of the formula.

    Compound operators have a common tolerance; exact operators keep zero.
    """
    if not is_registered(op):
        return COMPOUND
    own = lookup(op).allowed_error
    if own.rtol == own.atol == 0:
        return own
    return Tolerance(own.rtol + 1e-7, own.atol + 1e-7, own.why)


def judge(op, got, right, beside=()):
    """Compares a result with the formula's answer within the operator's tolerance.

    Each value is compared with the nearest of the right answers (:meth:`SampleCall.beside`).
    """
    if got.shape == right.shape:
        for other in beside:
            with np.errstate(invalid="ignore"):
                nearer = np.abs(got - other) < np.abs(got - right)
            right = np.where(nearer, other, right)
    return compare(got, right, tolerance_of(op))


assert set(OPERATORS) == set(FORMULAS), set(OPERATORS) ^ set(FORMULAS)
