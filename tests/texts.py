"""One line of NNEF text as a whole model: written, loaded and run, as a user would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.nnef.expansion.extensions import extension_fragments
from cml_engine.nnef.text.printer import print_fragment
from tests.models import write_model

Array = np.ndarray[Any, Any]
_DTYPES = {"f": ("scalar", np.float32), "i": ("integer", np.int32), "b": ("logical", np.bool_)}
HEADER = """version 1.0;
extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;
"""


def declaration(op: str) -> str:
    """An extension's fragment without its body, as a model brings it."""
    text = print_fragment(extension_fragments()[op])
    return text.partition("{")[0].rstrip().rstrip(";") + ";\n"


def engine(array: Any) -> Array:
    """The array in the type that a network holds it in."""
    value = np.asarray(array)
    return np.array(value, _DTYPES[value.dtype.kind][1])


def outputs_of(body: str) -> list[str]:
    """The names that the last statement assigns."""
    left = body.strip().rstrip(";").split(";")[-1].partition("=")[0]
    return [name.strip(" []()\n") for name in left.split(",")]


def model_text(
    body: str, inputs: Mapping[str, Array], *, fixed: frozenset[str] = frozenset(), head: str = ""
) -> str:
    """A graph of these statements; inputs named in ``fixed`` are variables."""
    lines = []
    for name, array in inputs.items():
        kind, shape = _DTYPES[array.dtype.kind][0], list(array.shape)
        if name in fixed:
            lines.append(f"{name} = variable<{kind}>(shape = {shape}, label = '{name}');")
        else:
            lines.append(f"{name} = external<{kind}>(shape = {shape});")
    given = ", ".join(name for name in inputs if name not in fixed)
    results = ", ".join(outputs_of(body))
    text = "\n    ".join([*lines, body.strip()])
    return f"{HEADER}{head}graph one({given}) -> ({results})\n{{\n    {text}\n}}\n"


def write_text(folder: Path, body: str, inputs: Mapping[str, Any], *, head: str = "",
               fixed: frozenset[str] = frozenset()) -> Path:  # fmt: skip
    """The model's folder."""
    arrays = {name: engine(array) for name, array in inputs.items()}
    text = model_text(body, arrays, fixed=fixed, head=head)
    return write_model(folder, text, **{name: arrays[name] for name in fixed})


def run_text(folder: Path, body: str, inputs: Mapping[str, Any], backend: Any, *,
             head: str = "", fixed: frozenset[str] = frozenset()) -> list[Array]:  # fmt: skip
    """What the last statement's names hold after a run; ``backend`` as of a session."""
    write_text(folder, body, inputs, head=head, fixed=fixed)
    session = cml.Session(cml.load(folder), backend)
    given = {name: engine(a) for name, a in inputs.items() if name not in fixed}
    found = session.run(given)
    return [found[name] for name in outputs_of(body)]
