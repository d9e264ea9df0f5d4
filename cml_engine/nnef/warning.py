"""The warning category for reading and writing models."""

from __future__ import annotations

import warnings

from cml_engine.errors import Source


class NnefWarning(UserWarning):
    """The warning that a part of a model does not conform to the standard, or values were changed.

    The model was read nevertheless.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("error", NnefWarning)  # refuse models that do not conform
    """


def warn(message: str, source: Source | None = None) -> None:
    """Issues a :class:`NnefWarning` with the message, after the source position if there is one."""
    text = message if source is None else f"{source}: {message}"
    warnings.warn(text, NnefWarning, stacklevel=3)
