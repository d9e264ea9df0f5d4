"""The options, warnings and result files of the benchmarks that measure networks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cml_engine as cml
from benchmarks.models import MODELS
from examples.upscale import assets

OUT = Path(__file__).resolve().parents[1] / "out"


def make_parser(command: str, about: str | None, name: str, models: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that these benchmarks share.

    ``name`` is that of the result files, ``models`` the default of ``--models``.
    """
    parser = argparse.ArgumentParser(command, description=about)
    add_choices(parser, models)
    parser.add_argument("--json", type=Path, default=OUT / f"{name}.json")
    parser.add_argument("--markdown", type=Path, default=OUT / f"{name}.md")
    return parser


def add_choices(parser: argparse.ArgumentParser, models: str) -> None:
    """Adds the options that choose the networks, by default ``models``, and the rounds."""
    parser.add_argument("--models", nargs="+", choices=[*MODELS, "all"], default=[models])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each measurement")


def chosen_models(options: argparse.Namespace) -> list[str]:
    """Returns the names of the requested networks."""
    return list(MODELS) if "all" in options.models else options.models


def fetch_assets() -> list[str]:
    """Downloads the files of the upscaling network and its photo; returns the credit lines.

    Ends the program with a message if that fails.
    """
    try:
        return assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN, assets.PHOTO)
    except cml.CmlError as error:
        raise SystemExit(f"error: {error}") from None


def open_gpu() -> cml.Gpu:
    """Returns the GPU; ends the program with a message if there is none."""
    try:
        return cml.Gpu()
    except cml.CmlError as error:
        raise SystemExit(f"error: {error}") from None


def write_results(
    options: argparse.Namespace, report: dict[str, Any], texts: Sequence[object]
) -> None:
    """Writes the report as JSON and the tables as Markdown, and prints where they are."""
    for path, text in (
        (options.json, json.dumps(report, indent=1)),
        (options.markdown, "\n\n".join(map(str, texts))),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    print(f"\nall numbers: {options.json}; the tables: {options.markdown}")


def machine() -> dict[str, Any]:
    """Returns the current time, the commit, and the processor and system, for the JSON report.

    The commit ends in "+" if the working tree has changes.
    """
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "-s") else ""),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def warn_if_busy() -> str:
    """Prints and returns a warning if other processes keep half of the cores busy; else ""."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load < 0.5 * cores:
        return ""
    text = f"this machine is busy (load {load:.1f} on {cores} cores): times will be too long"
    print(f"warning: {text}", file=sys.stderr)
    return text


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
