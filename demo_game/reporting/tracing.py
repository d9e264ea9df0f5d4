"""Records the game's frames as a trace for Perfetto; the overlay starts and stops it."""

from __future__ import annotations

import time
from pathlib import Path

from cml_engine import FrameReport, write_trace
from demo_game.game import Game

OUT = Path("out")
#: a minute of frames; a longer trace is cut there
_MOST = 3600


class Tracing:
    """Collects frame reports while ``controls.recording`` is on, then writes a trace.

    The trace's path is then in ``controls.trace_path``.
    """

    def __init__(self, game: Game) -> None:
        self._game = game
        self._reports: list[FrameReport] = []
        self._names: dict[int, str] = {}

    def write_if_stopped(self) -> None:
        """Writes the trace if the recording has been switched off."""
        if self._reports and not self._game.controls.recording:
            self.stop()

    def add(self) -> None:
        """Records the last frame's report while the recording is on.

        Switches it off after a minute of frames.
        """
        report = self._game.log.last_report
        if not self._game.controls.recording or report is None:
            return
        self._reports.append(report)
        for part in report.slices:
            self._names[part.job] = part.name
        if len(self._reports) >= _MOST:
            self._game.controls.recording = False

    def stop(self) -> None:
        """Writes the trace of the recorded frames to ``out/``; does nothing if there are none."""
        if not self._reports:
            return
        OUT.mkdir(exist_ok=True)
        path = OUT / time.strftime("demo-%Y%m%d-%H%M%S.trace.json")
        memory = self._game.gpu.memory.stats().to_json()["owners"]
        held = {owner: float(sum(of.values())) for owner, of in memory.items()}
        write_trace(path, self._reports, self._names, held, {"device": self._game.gpu.name})
        self._game.controls.trace_path = path
        self._reports = []
