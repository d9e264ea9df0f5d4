"""Samples of a network's inputs in files, for ``cml quantize``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cml_engine.budget import OverBudget, current
from cml_engine.errors import InputError
from cml_engine.files.arrays import Known, Shape, charge_member
from cml_engine.graph import Fact

Array = np.ndarray[Any, Any]


def read_samples(files: Mapping[str, Path], facts: Mapping[str, Fact]) -> list[dict[str, Array]]:
    """All samples: the first of every input, the second, …. An input of which there is but one
    value has it in all of them."""
    if missing := [name for name in facts if name not in files]:
        raise InputError(f"no samples of {', '.join(missing)}: give -i {missing[0]}=FILE.npz")
    values = {name: _of_input(path, name, facts[name]) for name, path in files.items()}
    count = max(len(found) for found in values.values())
    for name, found in values.items():
        if len(found) not in (1, count):
            raise InputError(
                f"'{files[name]}': {len(found)} samples of '{name}', others have {count}; wanted "
                "as many, or one for all"
            )
    return [
        {name: found[i if len(found) > 1 else 0] for name, found in values.items()}
        for i in range(count)
    ]


def _of_input(path: Path, name: str, fact: Fact) -> list[Array]:
    """The samples of one input: the arrays of a ``.npz``, or one array with an axis in front of the
    input's own (or in the place of its first, where that is one)."""
    found = [s for array in _arrays(path, name) for s in _split(array, path, name, fact)]
    if not found:
        raise InputError(f"'{path}': no samples of '{name}' in it")
    return found


def sample_shape(path: str, name: str, known: Known) -> Shape | None:
    """The shape that samples give to an input of which only some extents are ``known``; None where
    they do not say."""
    first = None if known is None else next(_arrays(Path(path), name), None)
    if first is None or known is None or not 0 <= first.ndim - len(known) <= 1:
        return None
    shape = first.shape
    return shape[1:] if len(shape) > len(known) else (known[0] or 1, *shape[1:])


def _arrays(path: Path, name: str) -> Iterator[Array]:
    if not path.is_file():
        raise InputError(f"samples of '{name}': no such file: {path}")
    try:
        current().charge_bytes(path.stat().st_size, f"'{path}'")
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            yield loaded
        else:
            for member in loaded.zip.infolist():
                charge_member(member, path)
            yield from (loaded[key] for key in loaded.files)
    except OverBudget:
        raise
    except Exception as error:  # whatever NumPy says of a damaged file
        said = str(error) or type(error).__name__
        raise InputError(f"samples of '{name}': cannot read {path}: {said}") from None


def _split(array: Array, path: Path, name: str, fact: Fact) -> list[Array]:
    shape = fact.shape
    if array.shape == shape:
        return [array]
    if array.shape[1:] == shape:
        return list(array)
    if shape[:1] == (1,) and array.shape[1:] == shape[1:]:
        return list(array[:, None])
    raise InputError(
        f"'{path}': samples of '{name}' have shape {list(array.shape)}, wanted {list(shape)} or "
        f"[count, {', '.join(map(str, shape))}]"
    )
