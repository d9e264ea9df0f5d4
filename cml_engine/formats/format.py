"""The interface between converters and ``cml.load``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from cml_engine.io.model_source import Bytes, ModelSource
from cml_engine.ir.graph import Array, Graph, Shapes
from cml_engine.nnef.files.weights import RandomWeights

Model: TypeAlias = str | Path | Bytes | ModelSource
#: makes the graph at given input shapes, by name; other inputs have the file's shapes
GraphFactory: TypeAlias = Callable[[Shapes], Graph]


@dataclass(frozen=True, slots=True)
class ConverterOptions:
    """The options of ``cml.load`` that a converter can support, beside the model and its shapes.

    ``constants`` are values of inputs by name, ``random_weights`` makes missing weights, and with
    ``placeholders`` unknown operators become declarations. ``inputs`` are constants that become
    inputs. ``outputs`` are the chosen ones; without them all of the file's are loaded. The others
    are those of ``cml.load``.
    """

    constants: Mapping[str, Array] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    random_weights: RandomWeights | None = None
    placeholders: bool = False
    fragments: tuple[str | Path, ...] = ()
    fake_quantize: bool = False
    weights: str | Path | Bytes | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A file format that ``cml.load`` and every command read.

    Packages of this folder register one by defining ``FORMAT``.

    Parameters
    ----------
    name, suffix : the format's name, and the suffix of its files.
    open : reads a model from a path or a :class:`ModelSource`; returns a function that makes its
        graph at given input shapes.
    takes : the names of the :class:`ConverterOptions` that the format supports.
    in_bytes : whether a model may be given as the bytes of its one file.
    """

    name: str
    suffix: str
    open: Callable[[Model, ConverterOptions], GraphFactory]
    takes: frozenset[str] = frozenset()
    in_bytes: bool = False
