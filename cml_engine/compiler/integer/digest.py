"""Digests of integer networks and of their outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cml_engine.errors import InputError
from cml_engine.ir.graph import Array, Graph
from cml_engine.ir.integer_rule import RULE_VERSION
from cml_engine.nnef.files.writer import model_files

__all__ = ["RULE_VERSION", "model_digest", "run_digest"]


def model_digest(graph: Graph) -> bytes:
    """Returns the SHA-256 digest of an integer network, taken over the files that NNEF export
    writes.

    The digest covers the text, the constants and the quantization. It does not depend on the
    path or the notes of the model, nor on saving and reading it back. A cooked graph returns the
    digest of the integer network that it was cooked from, and raises :class:`InputError` if that
    was none.

    Examples
    --------
    >>> len(model_digest(integer))
    32
    """
    if graph.ready is not None:
        if graph.ready.integer_digest is None:
            raise InputError(
                f"'{graph.name}' is cooked: a digest is of the model itself, give that"
            )
        return graph.ready.integer_digest
    found = hashlib.sha256()
    # constants as they are read back: numbers in the text before those in files
    constants = dict(sorted(graph.constants.items(), key=lambda item: item[0] in graph.labels))
    for name, data in model_files(graph.with_(notes=(), constants=constants)):
        _add(found, name.encode(), data)
    return found.digest()


def nonidentical_outputs(graph: Graph) -> tuple[str, ...]:
    """Returns the names of the outputs of an integer network that are computed in floats."""
    from cml_engine.compiler.integer.lowering.lower_network import (
        lower_to_integers,  # which the passes import first
    )

    return lower_to_integers(graph).not_identical if graph.float_tail else ()


def run_digest(graph: Graph, outputs: Mapping[str, Array]) -> str:
    """Returns ``sha256:<hex>`` of a run, equal for every run of one integer network on equal
    inputs.

    Outputs that are computed in floats are left out. Raises :class:`InputError` if all of them are.

    Examples
    --------
    >>> outputs = cml.Session(integer, "cpu").run({"image": image})
    >>> run_digest(integer, outputs)[:7]
    'sha256:'
    """
    floats = nonidentical_outputs(graph)
    if floats and len(floats) == len(graph.outputs):
        raise InputError(
            f"'{graph.name}': all of its outputs are computed in floats and may differ from "
            "machine to machine: there is nothing to take a digest of"
        )
    found = hashlib.sha256()
    _add(found, b"cml", str(RULE_VERSION).encode(), model_digest(graph))
    for name in graph.outputs:
        if name in floats:
            continue
        array = np.asarray(outputs[name])
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
        shape = ",".join(map(str, array.shape))
        _add(found, name.encode(), shape.encode(), little.dtype.str.encode(), little.tobytes())
    return f"sha256:{found.hexdigest()}"


def _add(found: Any, *parts: bytes) -> None:
    """Updates the hash object ``found`` with the length and the bytes of each part, so that no
    two lists of parts give the same digest."""
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
