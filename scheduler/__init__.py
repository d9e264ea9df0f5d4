"""A budget of milliseconds per frame for neural networks: measured, and kept.

>>> scheduler = FrameScheduler(gpu, frame_ms=1000 / 60, budget_ms=4.0)     # doctest: +SKIP
>>> job = scheduler.submit(session, {"image": array}, deadline_ms=250)      # doctest: +SKIP
>>> frame = scheduler.encode(encoder)       # in the host's loop, every frame # doctest: +SKIP
"""

from scheduler.admission import AdmissionError
from scheduler.budget import FixedBudget, SpareBudget
from scheduler.clock import Clock, RealClock, VirtualClock
from scheduler.cost_model import CostModel
from scheduler.executor import Executor, Network, Slice, StepCost, Timing
from scheduler.frame_scheduler import FrameScheduler
from scheduler.job import Job, JobOutput
from scheduler.policy import by_priority, fair_share, least_laxity
from scheduler.reports import FrameReport, SliceReport
from scheduler.trace import write_trace
from scheduler.tuning import Tuning

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
    "RealClock",
    "Slice",
    "SliceReport",
    "SpareBudget",
    "StepCost",
    "Timing",
    "Tuning",
    "VirtualClock",
    "by_priority",
    "fair_share",
    "least_laxity",
    "write_trace",
]
