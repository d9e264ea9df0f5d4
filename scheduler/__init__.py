"""Runs neural networks beside a renderer, within a budget of milliseconds per frame.

>>> scheduler = FrameScheduler(gpu, frame_ms=1000 / 60, budget_ms=4.0)     # doctest: +SKIP
>>> job = scheduler.submit(session, {"image": array}, deadline_ms=250)      # doctest: +SKIP
>>> frame = scheduler.encode(encoder)       # in the host's loop, every frame # doctest: +SKIP
"""

import logging

from cml_engine.compiler.plan import Slice, StepCost, Timing
from scheduler.clock import Clock, RealClock, VirtualClock
from scheduler.executor import Executor, Network
from scheduler.frame_scheduler import FrameScheduler
from scheduler.jobs.job import Job, JobOutput
from scheduler.jobs.lifecycle import AdmissionError
from scheduler.planning.controller import FixedBudget, SpareBudget
from scheduler.planning.cost_model import CostModel
from scheduler.planning.plan import Planner, operators_per_frame, plan_frame
from scheduler.planning.policy import by_priority, fair_share, least_laxity
from scheduler.reports import FrameReport, SliceReport
from scheduler.tiling import TiledJob, submit_tiled
from scheduler.tools.trace import write_trace
from scheduler.tuning import Tuning

#: by default log messages are not shown
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "AdmissionError",
    "Clock",
    "CostModel",
    "Executor",
    "FixedBudget",
    "FrameReport",
    "FrameScheduler",
    "Job",
    "JobOutput",
    "Network",
    "Planner",
    "RealClock",
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
    "submit_tiled",
    "write_trace",
]
