"""Takes a caller's values as NumPy arrays."""

from __future__ import annotations

from os import PathLike

import numpy as np

from cml_engine.errors import InputError
from cml_engine.errors.arguments import shortened
from cml_engine.ir.graph import Array


def as_array(what: str, value: object) -> Array:
    """Returns a value as a NumPy array; raises :class:`InputError` if it holds no numbers.

    The error message begins with ``what``, such as ``input 'image'``.
    """
    try:
        array = np.asarray(value)
    except Exception:  # NumPy calls the object's own methods, which may raise anything
        raise _no_array(what, value) from None
    if array.dtype.kind not in "biufc":
        raise _no_array(what, value)
    return array


def _no_array(what: str, value: object) -> InputError:
    is_path = isinstance(value, str | PathLike)
    hint = ". A file is read first: numpy.load for a .npy" if is_path else ""
    return InputError(
        f"{what}: wanted an array of numbers, got {shortened(repr(value))} "
        f"({type(value).__name__}){hint}"
    )
