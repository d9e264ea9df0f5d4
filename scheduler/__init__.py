"""Runs neural networks beside a renderer, within a budget of milliseconds per frame.

>>> scheduler = FrameScheduler(gpu, frame_ms=1000 / 60, budget_ms=4.0)     # doctest: +SKIP
>>> job = scheduler.submit(session, {"image": array}, deadline_ms=250)      # doctest: +SKIP
>>> frame = scheduler.encode(encoder)       # in the host's loop, every frame # doctest: +SKIP
"""

import logging
import sys
from importlib import import_module

from cml_engine.compiler.plan import Slice, StepCost, Timing
from cml_engine.scheduler.clock import Clock, RealClock, VirtualClock
from cml_engine.scheduler.executor import Executor, Network
from cml_engine.scheduler.frame_scheduler import FrameScheduler, Periodic
from cml_engine.scheduler.jobs.job import Job, JobOutput
from cml_engine.scheduler.jobs.lifecycle import AdmissionError
from cml_engine.scheduler.planning.controller import FixedBudget, SpareBudget
from cml_engine.scheduler.planning.cost_model import CostModel, FirstGuess
from cml_engine.scheduler.planning.plan import Planner, operators_per_frame, plan_frame
from cml_engine.scheduler.planning.policy import by_priority, fair_share, least_laxity
from cml_engine.scheduler.recording import Recording
from cml_engine.scheduler.reports import FrameReport, SliceReport
from cml_engine.scheduler.tiling import TiledJob
from cml_engine.scheduler.tools.replay import replay
from cml_engine.scheduler.tools.trace import write_trace
from cml_engine.scheduler.tuning import Tuning

if __name__ == "scheduler":
    # a checkout's folder: its modules exist once, in cml_engine
    sys.modules[__name__] = import_module("cml_engine.scheduler")

#: by default log messages are not shown
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "AdmissionError",
    "Clock",
    "CostModel",
    "Executor",
    "FirstGuess",
    "FixedBudget",
    "FrameReport",
    "FrameScheduler",
    "Job",
    "JobOutput",
    "Network",
    "Periodic",
    "Planner",
    "RealClock",
    "Recording",
    "Slice",
    "SliceReport",
    "SpareBudget",
    "StepCost",
    "TiledJob",
    "Timing",
    "Tuning",
    "VirtualClock",
    "by_priority",
    "fair_share",
    "least_laxity",
    "operators_per_frame",
    "plan_frame",
    "replay",
    "write_trace",
]
