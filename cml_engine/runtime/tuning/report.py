"""The report of ``cml tune``: the measured choices and the effect on the whole network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from cml_engine.compiler.tuning_tables import Record
from cml_engine.io.json_files import Json
from cml_engine.runtime.tuning.trial import Trial

if TYPE_CHECKING:
    from cml_engine.runtime.tuning.bench import TrialNode


@dataclass(frozen=True)
class MeasuredChoice:
    """A choice with its trial and the resulting table entry, None if no option could be timed."""

    candidate: TrialNode
    trial: Trial
    record: Record | None

    def lines(self) -> list[str]:
        """Returns text lines: the key, options from fastest to slowest, excluded options."""
        candidate, trial = self.candidate, self.trial
        nodes = f"{candidate.count} node{'s' if candidate.count != 1 else ''}"
        rows = [f"{candidate.key}  ({nodes}, {candidate.choice.node})"]
        for name, ms in sorted(trial.ms().items(), key=lambda item: trial.ratio(item[0])):
            ratio = "" if name == trial.default else f"{trial.ratio(name):6.2f}"
            notes = ["default"] * (name == trial.default) + ["kept"] * (name == trial.winner)
            rows.append(f"  {name:28s} {ms:9.3f} ms {ratio:6s}  {', '.join(notes)}".rstrip())
        return rows + [f"  {name:28s} left out: {why}" for name, why in trial.dropped.items()]


@dataclass(frozen=True)
class TuneReport:
    """The result of :func:`cml_engine.runtime.tuning.tune`.

    ``before_after`` has the ms of whole runs by the engine's rules and by the table, ``[runs,
    2]``. It is empty if both select the same kernels.

    Examples
    --------
    >>> report = tune(network, rounds=2, dry_run=True)  # doctest: +SKIP
    """

    model: str
    device: str
    clock: str
    rounds: int
    measured: Sequence[MeasuredChoice]
    before_after: Sequence[Sequence[float]]
    file: Path | None

    @property
    def won(self) -> list[MeasuredChoice]:
        """The choices whose default was beaten by another option."""
        return [m for m in self.measured if m.record is not None and m.record.won]

    @property
    def ratio(self) -> float:
        """The network's time with the tuned kernels, divided by its time with the default ones.

        This is the median over pairs of consecutive runs; 1 if both select the same kernels.
        """
        return median(b / a for a, b in self.before_after) if self.before_after else 1.0

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.device}: {len(self.measured)} choices, {self.rounds} rounds "
            f"for each option in turns with the default, clock: {self.clock}",
            "times are the default's median, and that times an option's median ratio to it",
        ]
        lines += [line for m in self.measured for line in m.lines()]
        lines.append(
            f"{len(self.won)} of {len(self.measured)} choices are faster by another option"
        )
        lines.append(self._network())
        lines.append(f"table: {self.file}" if self.file else "nothing was written (dry run)")
        return "\n".join(lines)

    def _network(self) -> str:
        if not self.before_after:
            return "the network: nothing changes"
        usual, tuned = (min(run[i] for run in self.before_after) for i in (0, 1))
        faster = sum(b < a for a, b in self.before_after)
        return (
            f"the network: {usual:.3f} ms by the engine's rules, {tuned:.3f} ms tuned; "
            f"median ratio {self.ratio:.3f}, tuned faster in {faster} of {len(self.before_after)} "
            "runs in turns"
        )

    def json(self) -> str:
        """Returns the report as the text of a JSON object."""
        found: dict[str, Json] = {
            "model": self.model,
            "device": self.device,
            "clock": self.clock,
            "choices": {
                m.candidate.key: {"nodes": m.candidate.count, **m.record.to_json()}
                for m in self.measured
                if m.record is not None
            },
            "network_ms": self.before_after,
            "network_ratio": self.ratio,
            "file": None if self.file is None else str(self.file),
        }
        return json.dumps(found, indent=2)
