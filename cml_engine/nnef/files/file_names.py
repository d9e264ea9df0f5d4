"""The names of a model's files (NNEF 1.0.5, 3.3)."""

from __future__ import annotations

from pathlib import PurePosixPath

from cml_engine.errors import Source, TensorFileError
from cml_engine.io.output_folder import name_problem

GRAPH_FILE = "graph.nnef"
QUANT_FILE = "graph.quant"


def tensor_file_name(label: str, source: Source | None = None) -> str:
    """Returns the path of a label's tensor file (``.dat``) relative to the model's folder.

    Raises :class:`TensorFileError` if the label leads out of the folder.
    """
    name = label.lstrip("/")
    if problem := name_problem(name):
        raise TensorFileError(
            f"label {label[:80]!r} {problem}: wanted a path inside the model's folder", source
        )
    return f"{PurePosixPath(name)}.dat"
