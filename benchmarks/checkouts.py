"""Runs a benchmark of two checkouts in turns, so that other load affects both equally."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parents[1]


class Worker:
    """A process that runs a script of this checkout with the packages of ``checkout``.

    The script must print its device's name, and then a line of JSON for each line of JSON that it
    reads.
    """

    def __init__(self, checkout: Path, script: Path, *arguments: str) -> None:
        folder = checkout.resolve()
        self._process = subprocess.Popen(
            [sys.executable, str(script), *arguments], cwd=folder, text=True,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        self.device = self._answers.readline().strip()
        if not self.device:
            raise SystemExit(f"error: {script.name} does not start with the packages of {folder}")

    def ask(self, request: object) -> Any:
        """Sends a request and returns the answer to it."""
        print(json.dumps(request), file=self._requests, flush=True)
        return json.loads(self._answers.readline())
