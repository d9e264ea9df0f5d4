"""Runs networks over millions of inputs on a Dask cluster and stores the results in Zarr.

The extra ``bake`` installs Dask (``distributed``) and Zarr. ``import cml_engine`` imports
nothing from this package. See docs/cluster.md.
"""

from __future__ import annotations

from cml_engine.distributed.cluster import default_workers, need_extra
from cml_engine.distributed.map import map_network
from cml_engine.distributed.report import Report, show_progress
from cml_engine.distributed.run import StorePlan, bake
from cml_engine.distributed.sources import InputSource
from cml_engine.distributed.store import Store, manifest_of
from cml_engine.distributed.work import (
    ANY_DEVICE,
    Cell,
    Coordinate,
    Layer,
    Unit,
    UnitClock,
    UnitProducer,
    UnitResult,
    Work,
)
from cml_engine.ir.graph_digest import graph_digest

__all__ = [
    "ANY_DEVICE",
    "Cell",
    "Coordinate",
    "InputSource",
    "Layer",
    "Report",
    "Store",
    "StorePlan",
    "Unit",
    "UnitClock",
    "UnitProducer",
    "UnitResult",
    "Work",
    "bake",
    "default_workers",
    "graph_digest",
    "manifest_of",
    "map_network",
    "need_extra",
    "show_progress",
]
