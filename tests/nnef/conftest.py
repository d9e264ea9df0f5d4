"""Fixtures that write NNEF models and load them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cml_engine import nnef
from cml_engine.ir.graph import Graph
from cml_engine.nnef.expansion.signatures import STDLIB
from tests.fixtures import models

HEADER = (
    "version 1.0;\nextension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n"
)


def primitive(op: str) -> bool:
    """Returns True if the standard's operator has no body, so that an engine must implement it."""
    return op in STDLIB.fragments and STDLIB.fragments[op].body is None


def everything(op: str) -> bool:
    return True


def load_native(model: Any, **more: Any) -> Graph:
    """Loads a model in which every operator is one of the engine's."""
    return nnef.load(model, everything, **more)


def plain(graph: Graph) -> dict[str, Any]:
    """Returns the graph's contents as a dictionary without source positions, for comparison."""
    return {
        "name": graph.name,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "nodes": [(n.op, n.inputs, n.outputs, dict(n.attrs)) for n in graph.nodes],
        "facts": dict(graph.facts),
        "constants": {k: (v.dtype.str, v.shape, v.tobytes()) for k, v in graph.constants.items()},
        "labels": dict(graph.labels),
        "updates": graph.updates,
        "quantization": {k: dict(v) for k, v in graph.quantization.items()},
        "declarations": dict(graph.declarations),
    }


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """A function ``write_model(text, label=array, ...)`` that writes a model and returns its
    folder."""

    def write(text: str, /, **tensors: np.ndarray[Any, Any]) -> Path:
        return models.write_model(tmp_path / "model", text, **tensors)

    return write


@pytest.fixture
def load_body(write_model: Callable[..., Path]) -> Callable[..., Graph]:
    """A function that loads a graph of statements, such as ``load_body("y = relu(x);")``.

    The graph has the input ``x`` [1,2,4,4] and the output ``y``.
    """

    def load(body: str, *, fragments: str = "", native: Any = everything, **more: Any) -> Graph:
        text = (
            f"{HEADER}{fragments}\n"
            "graph g(x) -> (y)\n{\n"
            "x = external<scalar>(shape = [1, 2, 4, 4]);\n"
            f"{body}\n}}\n"
        )
        return nnef.load(write_model(text), native, **more)

    return load
