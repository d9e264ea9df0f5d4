"""What a model's files are called (NNEF 1.0.5, 3.3)."""

from __future__ import annotations

from pathlib import PurePosixPath

from cml_engine.errors import Source, TensorFileError

GRAPH_FILE = "graph.nnef"
QUANT_FILE = "graph.quant"


def tensor_file_name(label: str, source: Source | None = None) -> str:
    """A label's file below the model's folder; one that could leave it is refused."""
    name = label.lstrip("/")
    parts = PurePosixPath(name).parts
    problem = None
    if not parts:
        problem = "is empty"
    elif ".." in parts:
        problem = "has '..' in it"
    elif any(c in ':\\"<>|?*' or ord(c) < 32 for c in name):
        problem = "has a character that file names must not have"
    elif len(name) > 1000:
        problem = "is too long"
    if problem is not None:
        message = f"label {label[:80]!r} {problem}: wanted a path inside the model's folder"
        raise TensorFileError(message, source)
    return f"{PurePosixPath(*parts)}.dat"
