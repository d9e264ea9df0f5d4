"""Records a scheduler's inputs and decisions as data, to inspect and to replay.

Every decision is a function of the jobs, the clock, the budget and the timings that came back, or,
on a device without timestamps, of the times at which the host ended its frames. A
:class:`Recording` holds exactly these, so ``scheduler/tools/replay.py`` on the virtual clock must
decide the same; otherwise the scheduler depends on something that it should not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cml_engine.compiler.plan import StepCost, Timing
from cml_engine.io import write_atomically
from cml_engine.io.json_files import JsonObject, read_json
from cml_engine.scheduler.executor import Network
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.planning.plan import FrameInputs
from cml_engine.scheduler.reports import FrameReport

_FORMAT = "cml recording 7"
#: its decisions count steps without the loads before them, which are below 0
_FORMAT_6 = "cml recording 6"


@dataclass
class Recording:
    """A recorded run of a scheduler: its options, networks, events and decisions.

    ``events`` are JSON objects with a ``kind``, in order. ``decisions`` has for each frame its
    slices as ``[job, index, first, count]``, see :class:`SliceReport`.

    Examples
    --------
    >>> recording = scheduler.record()
    >>> frame = scheduler.encode(encoder)
    >>> recording.save("run.json")
    >>> cml.scheduler.Recording.load("run.json").decisions
    [[]]
    """

    options: JsonObject = field(default_factory=dict)
    networks: list[JsonObject] = field(default_factory=list)
    events: list[JsonObject] = field(default_factory=list)
    decisions: list[list[list[int]]] = field(default_factory=list)

    def save(self, path: str | Path) -> None:
        """Writes the recording to a JSON file, atomically."""
        write_atomically(path, json.dumps({"format": _FORMAT, **asdict(self)}))

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Returns the recording in a file of :meth:`save`; raises ``ValueError`` for others."""
        try:
            data = read_json(path)
        except ValueError as error:
            raise ValueError(f"'{path}' is not a recording: {error}") from None
        found = data.pop("format", None) if isinstance(data, dict) else None
        if found not in (_FORMAT, _FORMAT_6):
            raise ValueError(f"'{path}' is not a recording (wanted format '{_FORMAT}')")
        field_types = {key: type(value) for key, value in asdict(cls()).items()}
        if not all(isinstance(value, field_types.get(key, ())) for key, value in data.items()):
            raise ValueError(f"'{path}' is not a recording: wanted {', '.join(field_types)}")
        recording = cls(**data)
        if found == _FORMAT_6:
            try:
                recording._count_loads()
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"'{path}' is not a recording: {error!r}") from None
        return recording

    def _count_loads(self) -> None:
        """Adds the number of its job's loads to the step of each decision."""
        submits = [event for event in self.events if event["kind"] == "submit"]
        loads = {event["job"]: len(event["loads"]) for event in submits}
        self.decisions = [
            [[job, loads[job] + step, *workgroups] for job, step, *workgroups in slices]
            for slices in self.decisions
        ]


class Recorder:
    """Adds the events of a running scheduler to :attr:`recording`, which grows with every frame."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        #: the networks' numbers
        self._networks: dict[Network, int] = {}
        self._held: set[int] = set()
        self._after_frame: list[JsonObject] = []

    def submitted(self, job: Job) -> None:
        self.recording.events.append(
            {
                "kind": "submit",
                "job": job.number,
                "now": job.submitted_ms,
                "network": self._network(job),
                "priority": job.priority,
                "deadline": job.deadline_at_ms,
                "slot": job.slot,
                "needs": [p.number for p in job.producers if p.owner is job.owner],
                "loads": [_row(cost) for cost in job.costs[: job.loads]],
                "steps": None if job.steps is None else list(job.steps),
            }
        )

    def refused(self, job: Job) -> None:
        """Records a job that was refused after the costs of its network had been learned."""
        job.slot = None  # it superseded no job
        self.submitted(job)
        self.changed(job, "cancelled", job.submitted_ms)

    def has_work(self, job: Job) -> None:
        """Records the new steps of a job, which changed because its network retains its inputs."""
        steps = None if job.steps is None else list(job.steps)
        self.recording.events.append({"kind": "work", "job": job.number, "steps": steps})

    def changed(self, job: Job, event: str, now: float) -> None:
        """Records an ``event`` of a job: "cancelled", "paused", "resumed" or "failed"."""
        self.recording.events.append({"kind": event, "job": job.number, "now": now})

    def held(self, job: Job, waits: bool, now: float) -> None:
        """Records that a job is paused, or resumed, if that has changed."""
        if waits != (job.number in self._held):
            self._held ^= {job.number}
            self.changed(job, "paused" if waits else "resumed", now)

    def failed_in_frame(self, job: Job, now: float) -> None:
        """Records a job that the frame under way failed; in a replay it fails after the frame."""
        self._after_frame.append({"kind": "failed", "job": job.number, "now": now})

    def encoded(
        self,
        inputs: FrameInputs,
        report: FrameReport,
        ready: Mapping[Network, bool],
        refused_jobs: list[int],
        back_from_cpu: list[int],
    ) -> None:
        """Records an encoded frame: its inputs, the state of the jobs, and the decisions.

        ``ready`` says which networks of waiting jobs were prepared. ``refused_jobs`` has the jobs
        that could not begin or lacked memory; the list grows until the frame ends.
        ``back_from_cpu`` has a job for each step on the CPU that was done. The decisions of a
        planner other than the default are recorded as ``given``, and a replay repeats them.
        """
        ready_networks = {str(self._networks[key]): value for key, value in ready.items()}
        self.recording.events.append(
            {
                "kind": "frame",
                "now": inputs.now_ms,
                "budget": inputs.budget_ms,
                "ready": ready_networks,
                "waiting": inputs.gpu_behind,
                "given": not report.planned,
                "aim": inputs.aim_ms,
                "rests": inputs.aim_ms > 0 and inputs.rests,
                "held": refused_jobs,
                "back_from_cpu": back_from_cpu,
                "copied": inputs.copied_ms,
            }
        )
        self.recording.decisions.append(decisions_of(report))
        self.recording.events += self._after_frame
        self._after_frame.clear()

    def ended_frame(self, timings: Sequence[Timing], now: float) -> None:
        arrived = [[t.frame, t.group, t.ms] for t in timings]
        self.recording.events.append({"kind": "end", "now": now, "timings": arrived})

    def abandoned_frame(self) -> None:
        self.recording.events.append({"kind": "abandoned"})

    def _network(self, job: Job) -> int:
        network = job.network
        if network not in self._networks:
            self._networks[network] = len(self._networks)
            steps = [_row(cost) for cost in network.step_costs()]
            self.recording.networks.append(
                {
                    "name": job.name,
                    "group": network.exclusive_group,
                    "steps": steps,
                    "load_ms": list(network.load_times_ms),
                    "retains": network.retains,
                }
            )
        return self._networks[network]


def _row(cost: StepCost) -> list[str | float]:
    return [cost.key, cost.op, cost.title, cost.groups, cost.flops, cost.nbytes]


def decisions_of(report: FrameReport) -> list[list[int]]:
    """Returns the slices of a frame as lists ``[job, index, first, count]``, in order."""
    return [[part.job, part.index, part.first, part.count] for part in report.slices]
