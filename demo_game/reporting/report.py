"""The report of a headless run: as JSON, and as a table of several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import cml_engine as cml
from cml_engine.panel import percentile


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns ``p50``, ``p95``, ``p99`` and ``max`` of the values, rounded to three decimals."""
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values, share), 3) for name, share in shares.items()}


@dataclass
class RunReport:
    """The report of one headless run.

    Times are in ms unless a name says otherwise; ``None`` is what the device could not measure.
    """

    mode: str
    device: str
    driver: str
    quality: str
    width: int
    height: int
    seed: int
    clock: str
    target_ms: float
    frames: int
    #: seconds from the program's start to the first picture (a draft without networks), to the
    #: first picture with the networks' ground everywhere, and of loading all tiles
    first_picture_s: float
    ground_s: float
    load_s: float
    #: seconds after the flight until every tile of its last picture was there
    settle_s: float
    frame_ms: dict[str, float]
    frame_times_ms: list[float]
    cpu_ms: dict[str, float]
    render_ms: dict[str, float] | None
    inference_ms: dict[str, float] | None
    frames_over: int
    frames_over_budget: int | None
    budget_used: float | None
    tiles: int
    tiles_cancelled: int
    #: tiles that came before they were needed; they count as 0 s in ``latency_s``
    tiles_ahead: int
    tiles_per_s: float
    jobs_per_s: dict[str, float]
    latency_s: dict[str, float]
    memory_peak_bytes: int
    memory_bytes_by_owner: dict[str, int]
    world: str
    #: the number, time and cause of each frame over the target, and its milliseconds by activity
    late_frames: list[dict[str, object]] = field(default_factory=list)
    #: the largest share of a late frame that no activity explains
    unexplained_share: float = 0.0
    #: what was chosen for this machine and why; "" if the preset was requested
    notice: str = ""
    #: a sentence if frames were late for the networks' guaranteed work
    guarantee: str = ""
    #: the most tiles of a view, and the kilometres of view
    max_tiles: int = 0
    view_km: float = 0.0
    operators: list[dict[str, object]] = field(default_factory=list)
    #: for each frame: milliseconds before the networks, their predicted milliseconds, milliseconds
    #: of the frame, tiles that were needed so far, tiles that were finished so far
    flight: list[list[float]] = field(default_factory=list)
    #: for each network: the networks whose outputs it takes, its finished jobs, and workgroups and
    #: milliseconds of each step
    networks: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def over_share(self) -> float:
        """The share of frames that took longer than the target, 0 to 1."""
        return self.frames_over / self.frames if self.frames else 0.0

    def to_json(self) -> dict[str, object]:
        """Returns all fields and ``frames_over_share`` as a dict for JSON."""
        return {**asdict(self), "frames_over_share": round(self.over_share, 4)}

    def row(self) -> str:
        """Returns the run's line in :func:`table`."""
        ms = self.frame_ms
        used = "-" if self.budget_used is None else f"{100 * self.budget_used:.0f} %"
        over_budget = "-" if self.frames_over_budget is None else str(self.frames_over_budget)
        return (
            f"{self.mode:18s} {ms['p50']:7.1f} {ms['p95']:7.1f} {ms['p99']:7.1f} {ms['max']:7.1f} "
            f"{100 * self.over_share:8.1f} % {over_budget:>8s} {used:>7s} {self.tiles:6d} "
            f"{self.tiles_per_s:8.1f} {self.latency_s['p50']:8.2f}  {self.world[:_SHOWN]}"
        )


#: number of letters of a world's hash in the table
_SHOWN = 23
#: number of causes of late frames in the table
_CAUSES = 4
HEADER = (
    f"{'mode':18s} {'P50 ms':>7s} {'P95 ms':>7s} {'P99 ms':>7s} {'max ms':>7s} {'over':>10s} "
    f"{'>budget':>8s} {'used':>7s} {'tiles':>6s} {'tiles/s':>8s} {'wait s':>8s}  world"
)


def table(runs: Sequence[RunReport]) -> str:
    """Returns a text table with a line per run; "over" is the share of frames beyond the target."""
    return "\n".join([HEADER, *(run.row() for run in runs)])


#: descriptions of the modes for readers who do not know them
WORDS = {
    "off": "no networks, the picture alone",
    "sliced": "networks in slices, in the time left",
    "layer": "one whole operator per frame",
    "unsliced": "a whole network in one frame",
}


def player_table(runs: Sequence[RunReport]) -> str:
    """Returns a text table for players: tiles made, latency and frames over the target of each run.

    If there are runs without networks, sliced and unsliced, a sentence compares them.
    """
    target = runs[0].target_ms
    head = f"{'':38s} {'tiles made':>10s} {'latency':>11s} {'over target':>12s} {'longest':>9s}"
    lines = [f"{runs[0].frames} frames of one flight, each to take {target:.1f} ms:", head]
    for run in runs:
        latency = f"{run.latency_s['p50']:.1f} s" if run.tiles else "-"
        lines.append(
            f"{WORDS[run.mode]:38s} {run.tiles:10d} {latency:>11s} {100 * run.over_share:10.1f} % "
            f"{run.frame_ms['max']:6.0f} ms"
        )
    for run in runs:
        causes = Counter(str(frame["cause"]) for frame in run.late_frames)
        if causes:
            usual = ", ".join(f"{cause} ({count})" for cause, count in causes.most_common(_CAUSES))
            lines.append(f"late frames, {run.mode}: {usual}")
        if run.guarantee:
            lines.append(f"{run.mode}: {run.guarantee}")
    by_mode = {run.mode: run for run in runs}
    if {"off", "sliced", "unsliced"} <= set(by_mode):
        without, sliced, unsliced = (
            by_mode[mode].over_share for mode in ("off", "sliced", "unsliced")
        )
        lines.append(
            f"Against the picture alone, {100 * (sliced - without):+.1f} percentage points of the "
            f"frames are over the target in slices, {100 * (unsliced - without):+.1f} unsliced; "
            + ("the world is the same." if len({r.world for r in runs}) == 1 else "WORLDS DIFFER.")
        )
    return "\n".join(lines)


def bytes_by_owner(gpu: cml.Gpu) -> dict[str, int]:
    """Returns the bytes of memory on the GPU by owner."""
    owners: Counter[str] = Counter()
    for (owner, _), holding in gpu.memory.stats().holdings.items():
        owners[owner] += holding.nbytes
    return owners
