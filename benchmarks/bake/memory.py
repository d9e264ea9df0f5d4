"""Whether memory grows with the number of tiles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.bake.cluster import of_each, resident_mb, separate_cluster
from benchmarks.bake.small import Small, small_layer
from cml_engine.distributed import StorePlan, bake

#: tiles at which memory is compared with that of the end, and how much more that may be
FIRST, MOST = 1000, 0.05


def memory(folder: Path, last: int) -> tuple[str, bool]:
    """MB resident in each process, by the tiles that were made, as a table; whether no process
    grew by more than :data:`MOST`."""
    due = sorted({FIRST, last // 4, last // 2, last})
    held: dict[int, dict[str, float]] = {}
    with separate_cluster(2) as client:

        def look(report: Any) -> None:
            if len(held) < len(due) and report.done >= due[len(held)]:
                held[due[len(held)]] = found = of_each(client, resident_mb)
                shown = ", ".join(f"{name} {mb:.1f} MB" for name, mb in found.items())
                print(f"{report.done:,} tiles, {report.seconds:.0f} s: {shown}", file=sys.stderr)

        plan = StorePlan([small_layer(last)], {})
        bake(Small(), str(folder / "small.zarr"), plan, client=client, progress=look)
    growth = {name: held[last][name] / mb - 1 for name, mb in held[FIRST].items()}
    lines = ["| MB resident | " + " | ".join(f"{n:,} tiles" for n in due) + " | growth |",
             "|---|" + "--:|" * (len(due) + 1)]  # fmt: skip
    for name, more in growth.items():
        sizes = " | ".join(f"{held[n][name]:.1f}" for n in due)
        lines.append(f"| {name} | {sizes} | {100 * more:+.1f} % |")
    return "\n".join(lines), all(abs(more) <= MOST for more in growth.values())
