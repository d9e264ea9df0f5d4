"""What a bake says of itself at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cml_engine.errors import InputError

#: inputs that are named in a report; of the others it has the number
NAMED = 1000
_SHOWN = 5


@dataclass
class WorkerShare:
    """One worker's part: cells, and seconds of work by activity."""

    made: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Time that was spent."""
        for activity, spent in seconds.items():
            self.seconds[activity] = self.seconds.get(activity, 0.0) + spent

    @property
    def busy_s(self) -> float:
        """Seconds of work."""
        return sum(self.seconds.values())


@dataclass
class Report:
    """A run, in cells (tiles, inputs): those ``made``, those ``kept`` from before, and those that
    were set ``aside`` (the first of them by name, with the reason)."""

    store: str
    what: str = "tiles"
    device: str = ""
    total: int = 0
    made: int = 0
    kept: int = 0
    #: those whose chunks were there with another checksum; they were made again
    damaged: int = 0
    #: attempts after a first one that failed, or whose worker died
    retried: int = 0
    aside: dict[str, str] = field(default_factory=dict)
    aside_count: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    #: seconds of all workers together, from their first unit on
    worker_s: float = 0.0
    #: workers that could not take part, with the reason
    refused: dict[str, str] = field(default_factory=dict)
    workers: dict[str, WorkerShare] = field(default_factory=dict)
    #: the address of Dask's dashboard
    dashboard: str = ""
    #: in any currency, of one worker for an hour
    price: float | None = None

    @property
    def done(self) -> int:
        """Those that are in the store now."""
        return self.made + self.kept

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.done == self.total and not self.aside_count

    @property
    def per_s(self) -> float:
        """Made in a second."""
        return self.made / self.seconds if self.seconds else 0.0

    @property
    def hours_per_million(self) -> float:
        """Hours of one worker for a million."""
        return 1e6 * self.worker_s / 3600 / self.made if self.made else 0.0

    @property
    def rate(self) -> float:
        """Dealt with in a second, those that were there among them."""
        return self.done / self.seconds if self.seconds else 0.0

    def check(self) -> None:
        """:class:`InputError` where something was set aside."""
        if self.aside_count:
            said = "\n  ".join(self.aside_lines())
            raise InputError(
                f"set aside: {self.aside_count:,} of {self.total:,} {self.what}. The others are in "
                f"'{self.store}'; mend these, and the same command makes only them\n  {said}"
            )

    def set_aside(self, name: str, reason: str, cells: int = 1) -> None:
        """A cell more that cannot be made, or several of one name."""
        self.aside_count += cells
        if len(self.aside) < NAMED:
            self.aside[name] = reason

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "store": self.store,
            "device": self.device,
            "total": self.total,
            "made": self.made,
            "kept": self.kept,
            "damaged": self.damaged,
            "retried": self.retried,
            "set_aside": self.aside_count,
            "set_aside_named": self.aside,
            "bytes": self.nbytes,
            "seconds": round(self.seconds, 3),
            "per_s": round(self.per_s, 3),
            "worker_hours_per_million": round(self.hours_per_million, 3),
            "cost_per_million": (
                None if self.price is None else round(self.price * self.hours_per_million, 2)
            ),
            "refused": self.refused,
            "workers": {
                name: {
                    "made": share.made,
                    "busy_s": round(share.busy_s, 3),
                    "seconds": {k: round(v, 3) for k, v in sorted(share.seconds.items())},
                }
                for name, share in sorted(self.workers.items())
            },
        }

    def __str__(self) -> str:
        lines = [
            f"{self.store}: {self.done:,} of {self.total:,} {self.what} ({self.made:,} made, "
            f"{self.damaged:,} of them in the place of damaged ones; {self.kept:,} kept; "
            f"{self.retried:,} further attempts; {self.aside_count:,} set aside)",
            f"  {self.per_s:.1f} {self.what}/s, {self.nbytes / 1e6:.1f} MB in "
            f"{self.seconds:.1f} s, on {self.device}",
            f"  a million {self.what}: {self.hours_per_million:.2f} hours of a worker"
            + ("" if self.price is None else f", {self.price * self.hours_per_million:.2f} in all"),
        ]
        for name, share in sorted(self.workers.items()):
            parts = ", ".join(
                f"{activity} {1e3 * spent / max(1, share.made):.1f}"
                for activity, spent in sorted(share.seconds.items(), key=lambda item: -item[1])
            )
            lines.append(
                f"  {name}: {share.made:,} {self.what}, {share.busy_s:.1f} s busy "
                f"(ms each: {parts})"
            )
        lines += [f"  refused: {name}: {reason}" for name, reason in self.refused.items()]
        lines += [f"  set aside: {said}" for said in self.aside_lines()]
        return "\n".join(lines)

    def aside_lines(self) -> list[str]:
        """The first cells that were set aside, and how many more."""
        lines = [f"{name}: {reason}" for name, reason in list(self.aside.items())[:_SHOWN]]
        more = self.aside_count - len(lines)
        return [*lines, *([f"and {more:,} more"] if more > 0 else [])]
