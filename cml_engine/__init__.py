"""Neural networks that run inside the frame of a running game.

>>> import cml_engine as cml
>>> graph = cml.load("upres.nnef")                       # doctest: +SKIP
>>> session = cml.Session(graph, cml.Gpu())              # doctest: +SKIP
>>> outputs = session.run({"image": array})              # doctest: +SKIP

Importing this package is fast: a public name is imported when it is first used. Only :class:`Gpu`
imports wgpu.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cml_engine.errors import (
    CmlError,
    CorruptArtifact,
    DeviceError,
    InputError,
    ModelError,
    StaleArtifact,
)

if TYPE_CHECKING:
    from cml_engine.compiler.integer.quantizer.quantize import quantize
    from cml_engine.compiler.integer.quantizer.weights import quantize_weights
    from cml_engine.compiler.passes.rules import Match, Rule, register_rule
    from cml_engine.cooked.load import load_cooked
    from cml_engine.cooked.schema import CookedLimits
    from cml_engine.formats.graph_builder import GraphBuilder, Tensor, edit
    from cml_engine.formats.loading import load, save
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.io.load_limits import LoadLimits
    from cml_engine.io.model_source import ModelSource
    from cml_engine.ir.graph import Attrs, Fact, Graph, Slider
    from cml_engine.ir.textures import TextureInput
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
    from cml_engine.runtime.session import CompileOptions, Session, Words
    from cml_engine.runtime.tiling import run_tiled
    from cml_engine.scheduler import (
        AdmissionError,
        Clock,
        CostModel,
        Executor,
        FixedBudget,
        FrameReport,
        FrameScheduler,
        Job,
        JobOutput,
        Network,
        Planner,
        RealClock,
        Slice,
        SliceReport,
        SpareBudget,
        StepCost,
        TiledJob,
        Timing,
        Tuning,
        VirtualClock,
        by_priority,
        fair_share,
        least_laxity,
        operators_per_frame,
        plan_frame,
        submit_tiled,
        write_trace,
    )

#: what is logged is shown where a program says so, not by default
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"
__all__ = [
    "AdmissionError",
    "Attrs",
    "Case",
    "Clock",
    "CmlError",
    "CompileOptions",
    "CookedLimits",
    "CorruptArtifact",
    "Cost",
    "CostModel",
    "DeviceError",
    "Dispatch",
    "Executor",
    "Fact",
    "FixedBudget",
    "FrameReport",
    "FrameScheduler",
    "Gpu",
    "Graph",
    "GraphBuilder",
    "InputError",
    "Job",
    "JobOutput",
    "Kernel",
    "LoadLimits",
    "Match",
    "MemoryModel",
    "ModelError",
    "ModelSource",
    "Network",
    "OpSpec",
    "Planner",
    "Random",
    "RealClock",
    "Rule",
    "Session",
    "Slice",
    "SliceReport",
    "Slider",
    "SpareBudget",
    "StaleArtifact",
    "StepCost",
    "Tensor",
    "TextureInput",
    "TiledJob",
    "Timing",
    "Tolerance",
    "Tuning",
    "Words",
    "VirtualClock",
    "by_priority",
    "edit",
    "fair_share",
    "least_laxity",
    "load",
    "load_cooked",
    "operators_per_frame",
    "plan_frame",
    "quantize",
    "quantize_weights",
    "register",
    "register_rule",
    "run_tiled",
    "same_as",
    "save",
    "submit_tiled",
    "unregister",
    "write_trace",
]


#: the public names that are imported at their first use, by module; others are the scheduler's
_MODULES = {
    "cml_engine.compiler.integer.quantizer.quantize": ("quantize",),
    "cml_engine.compiler.integer.quantizer.weights": ("quantize_weights",),
    "cml_engine.compiler.passes.rules": ("Match", "Rule", "register_rule"),
    "cml_engine.cooked.load": ("load_cooked",),
    "cml_engine.cooked.schema": ("CookedLimits",),
    "cml_engine.formats.graph_builder": ("GraphBuilder", "Tensor", "edit"),
    "cml_engine.formats.loading": ("load", "save"),
    "cml_engine.gpu.gpu": ("Gpu",),
    "cml_engine.io.load_limits": ("LoadLimits",),
    "cml_engine.io.model_source": ("ModelSource",),
    "cml_engine.ir.graph": ("Attrs", "Fact", "Graph", "Slider"),
    "cml_engine.ir.textures": ("TextureInput",),
    "cml_engine.nnef": ("MemoryModel",),
    "cml_engine.ops": (
        *("Case", "Cost", "Dispatch", "Kernel", "OpSpec", "Random", "Tolerance"),
        *("register", "same_as", "unregister"),
    ),
    "cml_engine.runtime.session": ("CompileOptions", "Session", "Words"),
    "cml_engine.runtime.tiling": ("run_tiled",),
}


#: the packages that are attributes without an import of their own, as ``cml.nnef.NnefWarning``
_PACKAGES = frozenset("compiler cooked cpu formats io ir nnef ops runtime".split())


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"cml_engine.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'cml_engine' has no attribute '{name}'")
    places = [module for module, names in _MODULES.items() if name in names]
    if places:
        value = getattr(import_module(places[0]), name)
    else:
        value = getattr(import_module("cml_engine.scheduler"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
