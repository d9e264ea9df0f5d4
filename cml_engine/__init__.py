"""Neural networks that run inside the frame of a running game.

>>> import cml_engine as cml
>>> graph = cml.load("upres.nnef")                       # doctest: +SKIP
>>> session = cml.Session(graph, cml.Gpu())              # doctest: +SKIP
>>> outputs = session.run({"image": array})              # doctest: +SKIP

The names here are what every host needs. Those for one task are in its modules: ``ops`` (operators
of one's own), ``scheduler``, ``panel``, ``cooked``, ``integer``, ``nnef``, ``io``, ``gpu``,
``tuning``, ``testing`` and ``distributed``.

Importing this package is fast: a public name is imported when it is first used. Only :class:`Gpu`
imports wgpu.
"""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cml_engine.lazy import lazy_names

if TYPE_CHECKING:
    from cml_engine import cooked as cooked
    from cml_engine import distributed as distributed
    from cml_engine import errors as errors
    from cml_engine import formats as formats
    from cml_engine import gpu as gpu
    from cml_engine import integer as integer
    from cml_engine import io as io
    from cml_engine import nnef as nnef
    from cml_engine import ops as ops
    from cml_engine import panel as panel
    from cml_engine import scheduler as scheduler
    from cml_engine import testing as testing
    from cml_engine import tuning as tuning
    from cml_engine.compiler.integer.quantizer.quantize import quantize as quantize
    from cml_engine.cooked.load import load_cooked as load_cooked
    from cml_engine.errors import (
        CmlError as CmlError,
        CorruptArtifact as CorruptArtifact,
        DeviceError as DeviceError,
        InputError as InputError,
        ModelError as ModelError,
        StaleArtifact as StaleArtifact,
    )
    from cml_engine.formats.graph_builder import (
        GraphBuilder as GraphBuilder,
        Tensor as Tensor,
        edit as edit,
    )
    from cml_engine.formats.loading import load as load, save as save
    from cml_engine.gpu.gpu import Gpu as Gpu
    from cml_engine.io.load_limits import LoadLimits as LoadLimits
    from cml_engine.io.model_source import ModelSource as ModelSource
    from cml_engine.ir.graph import Graph as Graph, Slider as Slider
    from cml_engine.ir.textures import TextureInput as TextureInput
    from cml_engine.ops.declaration.spec import Kernel as Kernel, OpSpec as OpSpec
    from cml_engine.ops.registration import register as register
    from cml_engine.runtime.live.reloader import Reloader as Reloader
    from cml_engine.runtime.session import CompileOptions as CompileOptions, Session as Session
    from cml_engine.runtime.tiling import run_tiled as run_tiled
    from cml_engine.scheduler import (
        FixedBudget as FixedBudget,
        FrameReport as FrameReport,
        FrameScheduler as FrameScheduler,
        Job as Job,
        SpareBudget as SpareBudget,
        Tuning as Tuning,
    )

#: what is logged is shown where a program says so, not by default
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"
#: the packages that are attributes without an import of their own, as ``cml.nnef.NnefWarning``
_PACKAGES = frozenset(
    "compiler cooked cpu distributed errors formats gpu integer io ir nnef ops panel runtime "
    "scheduler testing tuning".split()
)
#: names that were here once, by the module that has them; they go with version 0.2
_MOVED = {
    "ops": (
        "Attrs Case Cost Dispatch Fact Match Random Rule Tolerance register_rule same_as unregister"
    ),
    "scheduler": (
        "AdmissionError Clock CostModel Executor JobOutput Network Planner RealClock Slice "
        "SliceReport StepCost TiledJob Timing VirtualClock by_priority fair_share least_laxity "
        "operators_per_frame plan_frame write_trace"
    ),
    "cooked": "CookedLimits",
    "integer": "Words quantize_weights",
    "nnef": "MemoryModel",
}

_get, __dir__, __all__ = lazy_names(
    __name__,
    {
        "cml_engine.compiler.integer.quantizer.quantize": "quantize",
        "cml_engine.cooked.load": "load_cooked",
        "cml_engine.errors": (
            "CmlError CorruptArtifact DeviceError InputError ModelError StaleArtifact"
        ),
        "cml_engine.formats.graph_builder": "GraphBuilder Tensor edit",
        "cml_engine.formats.loading": "load save",
        "cml_engine.gpu.gpu": "Gpu",
        "cml_engine.io.load_limits": "LoadLimits",
        "cml_engine.io.model_source": "ModelSource",
        "cml_engine.ir.graph": "Graph Slider",
        "cml_engine.ir.textures": "TextureInput",
        "cml_engine.ops.declaration.spec": "Kernel OpSpec",
        "cml_engine.ops.registration": "register",
        "cml_engine.runtime.live.reloader": "Reloader",
        "cml_engine.runtime.session": "CompileOptions Session",
        "cml_engine.runtime.tiling": "run_tiled",
        "cml_engine.scheduler": "FixedBudget FrameReport FrameScheduler Job SpareBudget Tuning",
    },
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return import_module(f"cml_engine.{name}")
        for module, names in _MOVED.items():
            if name in names.split():
                warnings.warn(
                    f"cml_engine.{name} is cml_engine.{module}.{name} now", DeprecationWarning, 2
                )
                return getattr(import_module(f"cml_engine.{module}"), name)
        return _get(name)
