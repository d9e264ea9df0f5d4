"""Put the tables of the last runs into docs/benchmarks.md: ``python -m benchmarks.write_docs``.

They come from what ``python tasks.py bench --models all`` and ``python -m benchmarks.kernels`` left
in ``out/``; what stands before the mark in the page is written by hand and stays.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
MARK = "<!-- below: python -m benchmarks.write_docs -->"


def page(
    before: str, bench: str, kernels: str, machines: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> str:
    """The page with new tables; :class:`ValueError` where it has no mark."""
    head, mark, _ = before.partition(MARK)
    if not mark:
        raise ValueError(f"no line '{MARK}'")
    first, second = (
        f"{m['time'][:10]}, commit {m['commit']}, {m['cores']} cores of {m['cpu']}"
        for m in machines
    )
    parts = [head.rstrip(), MARK, f"## Beside other engines\n\n{first}.", bench.strip()]
    parts += [f"## Kernels\n\n{second}.", kernels.strip()]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    out = ROOT / "out"
    try:
        bench, kernels = (json.loads((out / f"{n}.json").read_text()) for n in ("bench", "kernels"))
        beside, alone = (
            (out / f"{n}.md").read_text(encoding="utf-8") for n in ("bench", "kernels")
        )
        machines = bench["machine"], kernels["machine"]
        made = page(PAGE.read_text(encoding="utf-8"), beside, alone, machines)
        PAGE.write_text(made, encoding="utf-8")
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}; run the bench and benchmarks.kernels first", file=sys.stderr)
        return 1
    print(f"{PAGE}: new tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
