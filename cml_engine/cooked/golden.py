"""One input and the outputs that belong to it: does a device give what was meant?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from cml_engine.cooked.form import (
    DTYPES,
    GOLDEN,
    GOLDEN_HEADER,
    GOLDEN_TENSOR,
    MOST_DIMENSIONS,
    aligned,
)
from cml_engine.cooked.reader import Container, damaged
from cml_engine.cooked.writer import Sections
from cml_engine.graph import NUMPY_DTYPE, Fact, Graph

Array = np.ndarray[Any, Any]
_ALIGNMENT = 16


@dataclass(frozen=True)
class Golden:
    """Inputs, the outputs of the first run on them, and how far a device may be from these:
    ``tolerance`` is absolute, and relative to each value."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    tolerance: float

    def differences(self, outputs: Mapping[str, Array]) -> dict[str, float]:
        """How far each output is from its own, as a part of what it may be; 1 and less is right.
        Values that are not finite must be the same."""
        return {name: self._difference(name, outputs[name]) for name in self.outputs}

    def _difference(self, name: str, got: Array) -> float:
        wanted = self.outputs[name]
        if wanted.dtype.kind != "f":
            return 0.0 if np.array_equal(wanted, got) else np.inf
        with np.errstate(all="ignore"):
            allowed = self.tolerance * (1 + np.abs(wanted, dtype=np.float64))
            off = np.abs(got.astype(np.float64) - wanted) / allowed
        alike = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        off = np.where(alike, 0.0, np.where(np.isfinite(off), off, np.inf))
        return float(off.max(initial=0.0))


def write_golden(golden: Golden, facts: Mapping[str, Fact], sections: Sections) -> None:
    """The section ``golden``."""
    rows = [(0, n, a) for n, a in golden.inputs.items()]
    rows += [(1, n, a) for n, a in golden.outputs.items()]
    start = aligned(GOLDEN_HEADER.size + GOLDEN_TENSOR.size * len(rows), _ALIGNMENT)
    records, body = bytearray(GOLDEN_HEADER.pack(len(rows), golden.tolerance)), bytearray()
    for role, name, array in rows:
        body += bytes(aligned(len(body), _ALIGNMENT) - len(body))
        shape = array.shape
        records += GOLDEN_TENSOR.pack(
            *sections.strings.put(name),
            role,
            DTYPES.index(facts[name].dtype),
            len(shape),
            *shape,
            *[0] * (MOST_DIMENSIONS - len(shape)),
            0,
            start + len(body),
        )
        words = array.astype(np.uint32) if array.dtype == np.bool_ else array
        body += np.ascontiguousarray(words).tobytes()
    records += bytes(start - len(records))
    sections.add(GOLDEN, bytes(records + body))


def read_golden(file: Container, graph: Graph) -> Golden | None:
    """The golden pair of a file that has one, of all inputs and outputs of the graph."""
    if not file.count(GOLDEN):
        return None
    section = file.section(GOLDEN)
    count, tolerance = section.unpack(GOLDEN_HEADER, 0)
    if not (isfinite(tolerance) and tolerance >= 0):
        raise damaged("its golden pair has no tolerance")
    found: tuple[dict[str, Array], dict[str, Array]] = {}, {}
    for i in range(count):
        record = section.unpack(GOLDEN_TENSOR, GOLDEN_HEADER.size + i * GOLDEN_TENSOR.size)
        name = file.string(record[0], record[1])
        role, dtype, rank, *extents, reserved, offset = record[2:]
        if role > 1 or dtype >= len(DTYPES) or rank > MOST_DIMENSIONS or reserved:
            raise damaged(f"golden tensor '{name}' is none")
        fact = Fact(DTYPES[dtype], tuple(extents[:rank]))
        if name not in _ends(graph)[role] or graph.facts[name] != fact:
            raise damaged(f"golden tensor '{name}' is none of the network's")
        if any(extents[rank:]):
            raise damaged(f"golden tensor '{name}' has more extents than dimensions")
        kind = np.dtype(np.uint32) if fact.dtype == "logical" else NUMPY_DTYPE[fact.dtype]
        data = section.span(offset, fact.nbytes, f"golden tensor '{name}'")
        found[role][name] = (
            np.frombuffer(data, kind).reshape(fact.shape).astype(NUMPY_DTYPE[fact.dtype])
        )
    if any({*names} != {*given} for names, given in zip(_ends(graph), found, strict=True)):
        raise damaged("its golden pair does not have all inputs and outputs")
    return Golden(*found, tolerance)


def _ends(graph: Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return graph.inputs, graph.outputs
