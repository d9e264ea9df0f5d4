"""Compares networks on this engine and on others in interleaved rounds, a table each.

``upres64`` and ``upres128`` are realesr-animevideov3-x4 (18 convolutions, 5.1 and 20.5 GFLOP);
``mobilenet`` and ``unet`` are made by the bench, at 128x128; ``stylegan2`` is its generator at
256x256 with random weights, which has no file of ncnn's; ``vit`` and ``gpt`` are two transformer
blocks each; ``agent-…`` are the trained networks of the demo game. All use 32-bit floats.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import command, contenders, rounds, table
from benchmarks.models import MODELS


@dataclass(frozen=True)
class Benched:
    """The results of one network: its Markdown table, its verdicts and its JSON record.

    ``verdicts`` are (passed, text) for each limit. ``agree`` is True if every engine's output is
    close enough to the reference. ``str()`` is the table and the verdicts.
    """

    text: str
    verdicts: list[tuple[bool, str]]
    agree: bool
    record: dict[str, Any]

    def __str__(self) -> str:
        lines = [f"- {'holds' if holds else 'FAILS'}: {text}" for holds, text in self.verdicts]
        return "\n".join((self.text, "", *lines))


def bench(model: str, options: argparse.Namespace) -> Benched:
    """Measures the network ``model`` on every chosen engine and collects its facts on this one."""
    chosen = [c for c in contenders.CONTENDERS if not options.only or c.key in options.only]
    with tempfile.TemporaryDirectory(prefix="cml-bench-") as folder:
        workload = contenders.Workload(Path(folder))
        MODELS[model](workload)
        results = rounds.run_rounds(chosen, Path(folder), options.rounds)
        differences, tolerance = table.differences(results, workload), table.tolerance(workload)
    verdicts = table.verdicts(model, results, differences, tolerance)
    agree = all(value <= tolerance for value in differences.values())
    record = {
        "model": model,
        "ratios": table.ratios(model, results),
        "results": table.record(results, differences),
        "verdicts": [{"holds": holds, "text": text} for holds, text in verdicts],
    }
    text = f"### {model}, {options.rounds} rounds\n\n{table.markdown(results, differences)}"
    return Benched(text, verdicts, agree, record)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = command.make_parser("python tasks.py bench", __doc__, "bench", "upres64")
    keys = [c.key for c in contenders.CONTENDERS]
    parser.add_argument("--only", nargs="*", choices=keys, default=(), help="these engines")
    parser.add_argument(
        "--against", type=Path, help="an earlier --json: fail where a ratio got worse by a quarter"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    print(*command.fetch_assets(), sep="\n")
    warning = command.warn_if_busy()
    done = []
    for model in command.chosen_models(options):
        done.append(bench(model, options))
        print(f"\n{done[-1]}", flush=True)
    report = {
        "machine": command.machine(),
        "warning": warning,
        "models": [benched.record for benched in done],
    }
    before = json.loads(options.against.read_text("utf-8")) if options.against else None
    command.write_results(options, report, done)
    worse = table.worse(report, before) if before else []
    for text in worse:
        print(f"WORSE: {text}")
    return 0 if all(benched.agree for benched in done) and not worse else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
