"""The one kind of warning that reading or writing a model gives."""

from __future__ import annotations

import warnings

from cml_engine.errors import Source


class NnefWarning(UserWarning):
    """The model was read, but not everything in it is as the standard says, or as the file does."""


def warn(message: str, source: Source | None = None) -> None:
    """Warn of something in a model that is bent but readable."""
    shown = message if source is None else f"{source}: {message}"
    warnings.warn(shown, NnefWarning, stacklevel=3)
