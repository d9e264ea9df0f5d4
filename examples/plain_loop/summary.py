"""A summary of an example's frames in four lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from cml_engine import FrameReport


class Summary:
    """Collects a loop's frame reports and describes them in four lines."""

    def __init__(self, budget_ms: float, timestamps: bool) -> None:
        self.budget_ms, self.timestamps = budget_ms, timestamps
        self.reports: list[FrameReport] = []
        self.times: list[FrameReport] = []

    def encoded(self, report: FrameReport) -> None:
        """Adds the report returned by :meth:`FrameScheduler.encode`."""
        self.reports.append(report)

    def measured(self, reports: Sequence[FrameReport]) -> None:
        """Adds the reports returned by :meth:`FrameScheduler.end_frame`."""
        self.times += reports

    @property
    def runs(self) -> int:
        """The number of finished runs of the network."""
        return sum(len(report.finished) for report in self.reports)

    def text(self, device: str) -> str:
        """Returns four lines: frames and runs, why frames stopped, GPU times, CPU time."""
        reasons = Counter(report.reason for report in self.reports)
        stopped = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        return "\n".join(
            (
                f"{len(self.reports)} frames, {self.runs} runs of the network, on {device}",
                f"frames stopped at: {stopped}",
                self._times(),
                f"scheduler and encoding: {self._cpu_ms():.2f} ms of CPU per frame (median)",
            )
        )

    def _times(self) -> str:
        if not self.times:
            compiling = "none yet: kernels were still being compiled. The next run has them cached"
            why = compiling if self.timestamps else "the device has no timestamps"
            return f"GPU time of the network's slices: {why}"
        spent = [report.measured_ms or 0.0 for report in self.times]
        over = sum(report.over_budget for report in self.times)
        return (
            f"GPU time of the network's slices: median {median(spent):.2f} ms, "
            f"most {max(spent):.2f} ms; {over} of {len(spent)} frames over {self.budget_ms:g} ms"
        )

    def _cpu_ms(self) -> float:
        return median(report.cpu_ms for report in self.reports) if self.reports else 0.0
