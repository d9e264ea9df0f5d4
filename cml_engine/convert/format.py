"""What a converter's package says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cml_engine.convert.engine import Engine
from cml_engine.graph import Graph, Shapes
from cml_engine.model_source import Bytes, ModelSource
from cml_engine.nnef import RandomWeights

Model: TypeAlias = str | Path | Bytes | ModelSource
#: the graph where inputs have these shapes, by name, and else those in the file
Make: TypeAlias = Callable[[Shapes], Graph]


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller of ``cml.load`` says beside the model."""

    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    random: RandomWeights | None = None
    placeholders: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """Files that ``cml.load`` and every command read. A package of this folder that has one as
    ``FORMAT`` is found.

    Parameters
    ----------
    name, suffix : what it is called, and how its files' names end.
    open : reads the model, of a path or of a :class:`ModelSource`, into what makes graphs of it.
    takes : what of ``cml.load``'s arguments it knows: of ``constants``, ``random_weights`` and
        ``placeholders``.
    in_bytes : whether the bytes of its one file are a whole model.
    """

    name: str
    suffix: str
    open: Callable[[Model, Engine, Given], Make]
    takes: frozenset[str] = frozenset()
    in_bytes: bool = False
