"""The warning category for reading and writing models."""

from __future__ import annotations

import warnings

from cml_engine.errors import Source


class NnefWarning(UserWarning):
    """A model was read, but part of it does not conform to the standard, or values were changed.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("error", NnefWarning)  # refuse models that do not conform
    """


def warn(message: str, source: Source | None = None) -> None:
    """Warns of a part of a model that is not valid but can be read."""
    shown = message if source is None else f"{source}: {message}"
    warnings.warn(shown, NnefWarning, stacklevel=3)
