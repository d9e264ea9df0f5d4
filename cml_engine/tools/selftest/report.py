"""The report of a self-test: a table for people, and a file to attach to an issue."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine import __version__
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.json_files import Json, read_json

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu

FORMAT = "cml selftest 1"
#: the most failures of a part that the file has, and that the table shows
_KEPT, _SHOWN = 200, 8


@dataclass
class PartResult:
    """The result of a part: the number of checks, and a message for each that failed.

    ``skipped`` is the reason why the part did not run, ``note`` a summary in one line, and
    ``facts`` are measured values by name.
    """

    name: str
    checks: int = 0
    failed: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    skipped: str = ""
    note: str = ""
    facts: dict[str, Json] = field(default_factory=dict)

    @property
    def result(self) -> str:
        """``"ok"``, ``"FAILED"`` or ``"skipped"``."""
        return "FAILED" if self.failed else "skipped" if self.skipped else "ok"

    def fail(self, subject: str, error: object) -> None:
        """Counts a failed check and keeps its message."""
        self.failed += 1
        if len(self.failures) < _KEPT:
            self.failures.append(f"{subject}: {error or type(error).__name__}")


@dataclass
class SelfTestReport:
    """The results of a self-test, with the device and the versions.

    ``running`` names the check in progress, so that the file of a test whose driver crashed says
    where; it is "" at the end.
    """

    device: Mapping[str, Json]
    versions: Mapping[str, Json]
    quick: bool = False
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    parts: list[PartResult] = field(default_factory=list)
    running: str = "start"
    format: str = FORMAT

    @property
    def ok(self) -> bool:
        """True if the test is complete and no check failed."""
        return not self.running and not any(part.failed for part in self.parts)

    def save(self, path: Path) -> None:
        """Writes the report to a JSON file, which :meth:`read` reads."""
        write_atomically(path, json.dumps({"ok": self.ok, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> SelfTestReport:
        """Returns the report in a file; raises ``ValueError`` if the file is no report."""
        data = read_json(path)
        if data.get("format") != FORMAT:
            raise ValueError(f"'{path}' is not a report of cml selftest")
        del data["ok"]
        return cls(**{**data, "parts": [PartResult(**part) for part in data["parts"]]})

    def __str__(self) -> str:
        rows = [f"{'part':10s} {'checks':>7s} {'failed':>7s} {'seconds':>8s}  result"]
        for part in self.parts:
            note = part.skipped or part.note
            rows.append(
                f"{part.name:10s} {part.checks:7d} {part.failed:7d} {part.seconds:8.1f}  "
                f"{part.result}{f' ({note})' if note else ''}"
            )
        for part in self.parts:
            rows += [f"{part.name}: {text}" for text in part.failures[:_SHOWN]]
            if part.failed > _SHOWN:
                rows.append(f"{part.name}: {part.failed - _SHOWN} more, in the file")
        verdict = "no check failed" if self.ok else "something is wrong"
        return "\n".join([*rows, f"{self.device['name']}: {verdict}"])


def describe_device(gpu: Gpu) -> dict[str, Json]:
    """Returns the adapter, the driver, the limits and the features of a device."""
    device = gpu.device
    return {
        "name": gpu.name,
        **{str(key): str(value) for key, value in gpu.info.items()},
        "software": gpu.limits.software,
        "timestamps": gpu.has_timestamps,
        "timestamp_period_ns": gpu.timestamp_period_ns,
        "subgroup_size": gpu.limits.subgroup_size,
        "features": sorted(map(str, device.features)),
        "limits": {str(key): value for key, value in dict(device.limits).items()},
    }


def versions() -> dict[str, Json]:
    """Returns the versions of the engine, of what it runs on, and of the system."""
    found: dict[str, Json] = {
        "cml-engine": __version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "processor": platform.machine(),
    }
    for name in ("wgpu", "numpy", "slangpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
