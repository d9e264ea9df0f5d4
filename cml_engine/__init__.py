"""Neural networks that run inside the frame of a running game.

>>> import cml_engine as cml
>>> graph = cml.load("upres.nnef")                       # doctest: +SKIP
>>> session = cml.Session(graph, cml.Gpu())              # doctest: +SKIP
>>> outputs = session.run({"image": array})              # doctest: +SKIP

Importing this package imports neither wgpu nor the shader compiler; :class:`Gpu` does, when it is
first asked for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cml_engine.budget import LoadLimits
from cml_engine.cooked.form import CookedLimits
from cml_engine.cooked.load import load_cooked
from cml_engine.errors import (
    CmlError,
    CorruptArtifact,
    DeviceError,
    InputError,
    ModelError,
    StaleArtifact,
)
from cml_engine.graph import Attrs, Fact, Graph, Slider
from cml_engine.integer.quantizer.quantize import quantize
from cml_engine.loading import load, save
from cml_engine.model_source import ModelSource
from cml_engine.nnef import MemoryModel
from cml_engine.ops import (
    Case,
    Cost,
    Dispatch,
    Kernel,
    OpSpec,
    Random,
    Tolerance,
    register,
    same_as,
    unregister,
)
from cml_engine.passes.rules import Match, Rule, register_rule
from cml_engine.session import CompileOptions, Session
from cml_engine.textures.inputs import TextureInput
from cml_engine.tiling.run import run_tiled

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu

#: what is logged is shown where a program says so, not by default
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"
__all__ = [
    "Attrs",
    "Case",
    "CmlError",
    "CompileOptions",
    "CookedLimits",
    "CorruptArtifact",
    "Cost",
    "DeviceError",
    "Dispatch",
    "Fact",
    "Gpu",
    "Graph",
    "InputError",
    "Kernel",
    "LoadLimits",
    "Match",
    "MemoryModel",
    "ModelError",
    "ModelSource",
    "OpSpec",
    "Random",
    "Rule",
    "Session",
    "Slider",
    "StaleArtifact",
    "TextureInput",
    "Tolerance",
    "load",
    "load_cooked",
    "quantize",
    "register",
    "register_rule",
    "run_tiled",
    "same_as",
    "save",
    "unregister",
]


def __getattr__(name: str) -> Any:
    if name == "Gpu":
        from cml_engine.gpu.gpu import Gpu

        return Gpu
    raise AttributeError(f"module 'cml_engine' has no attribute '{name}'")
