"""Puts the tables of the last benchmark runs into docs/design/benchmarks.md.

``python -m benchmarks.write_docs`` takes the tables from the files that ``python tasks.py bench
--models all`` and ``python -m benchmarks.kernels`` wrote to ``out/``. The text before the mark in
the page is written by hand and is kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cml_engine.io.json_files import Json

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "design" / "benchmarks.md"
MARK = "<!-- below: python -m benchmarks.write_docs -->"


def page(
    before: str, bench: str, kernels: str, reports: tuple[Mapping[str, Json], Mapping[str, Json]]
) -> str:
    """Returns the page ``before`` with new tables after its mark: ``bench`` and ``kernels``.

    ``reports`` are the JSON reports of both; each table states the machine and its load. Raises
    :class:`ValueError` if the page has no mark.
    """
    head, mark, _ = before.partition(MARK)
    if not mark:
        raise ValueError(f"no line '{MARK}'")
    first, second = map(_where, reports)
    parts = [head.rstrip(), MARK, f"## Beside other engines\n\n{first}", bench.strip()]
    parts += [f"## Kernels\n\n{second}", kernels.strip()]
    return "\n\n".join(parts) + "\n"


def _where(report: Mapping[str, Any]) -> str:
    m = report["machine"]
    text = f"{m['time'][:10]}, commit {m['commit']}, {m['cores']} cores of {m['cpu']}."
    return f"{text} Warning: {report['warning']}." if report["warning"] else text


def main() -> int:
    out = ROOT / "out"
    try:
        bench, kernels = (json.loads((out / f"{n}.json").read_text()) for n in ("bench", "kernels"))
        engines_table, kernels_table = (
            (out / f"{n}.md").read_text(encoding="utf-8") for n in ("bench", "kernels")
        )
        text = page(
            PAGE.read_text(encoding="utf-8"), engines_table, kernels_table, (bench, kernels)
        )
        PAGE.write_text(text, encoding="utf-8")
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}; run the bench and benchmarks.kernels first", file=sys.stderr)
        return 1
    print(f"{PAGE}: new tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
