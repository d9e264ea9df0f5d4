"""What converters ask of the engine, so that they need not import it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cml_engine.convert.builder import Infer
from cml_engine.graph import Graph, Node

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Engine:
    """``infer``: the facts of a node's outputs; ``expand``: a graph in NNEF's text, its compounds
    expanded to operators that the engine has; ``run``: a node's results in NumPy;
    ``declarations``: what a game's own operators take and give, by name, as NNEF fragments."""

    infer: Infer
    expand: Callable[[str], Graph]
    run: Callable[[Node, Sequence[Array]], Sequence[Array]]
    declarations: Mapping[str, str] = field(default_factory=dict)
