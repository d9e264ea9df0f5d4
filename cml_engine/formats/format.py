"""What converters ask of the engine, so that they need not import it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from cml_engine.formats.builder import Infer
from cml_engine.io.model_source import Bytes, ModelSource
from cml_engine.ir.graph import Array, Graph, Node, Shapes
from cml_engine.nnef import RandomWeights


@dataclass(frozen=True, slots=True)
class Engine:
    """``infer``: the facts of a node's outputs; ``expand``: a graph in NNEF's text, its compounds
    expanded to operators that the engine has; ``run``: a node's results in NumPy;
    ``declarations``: what a game's own operators take and give, by name, as NNEF fragments."""

    infer: Infer
    expand: Callable[[str], Graph]
    run: Callable[[Node, Sequence[Array]], Sequence[Array]]
    declarations: Mapping[str, str] = field(default_factory=dict)


Model: TypeAlias = str | Path | Bytes | ModelSource
#: the graph where inputs have these shapes, by name, and else those in the file
Make: TypeAlias = Callable[[Shapes], Graph]


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller of ``cml.load`` says beside the model."""

    constants: Mapping[str, Array] = field(default_factory=dict)
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
