"""Plays real networks in the JavaScript player and compares the results with Python's.

    python -m tests.players.networks                            # all networks available here
    python -m tests.players.networks upres integer-texture
    python -m tests.players.networks --profile portable terrain

Each network is cooked and played in Deno on its golden input: whole, in slices by a budget, and in
random slices. The file contains NumPy's outputs: floats may differ by the file's tolerance, integer
networks must be bit-identical, and slices must be bit-identical to the whole run. Exit code 1 if
one differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cml_engine.cooked import PROFILES, cook
from scheduler.tools.commands import cooked_guesses
from tests.cooked_networks import NETWORKS
from tests.players.deno import WEB, deno_command


def play_golden(files: Sequence[Path], profile: str = "") -> list[dict[str, Any]]:
    """Plays each cooked file on its golden input in Deno; returns what ``check.js`` prints, in
    order.

    Raises ``AssertionError`` at the first file that cannot be played.
    """
    words = ["--profile", profile] if profile else []
    done = subprocess.run(
        **deno_command("run", "-A", "--no-check", WEB / "check.js", *files, *words),
        capture_output=True, text=True,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if len(found) != len(files):
        raise AssertionError(f"{files[len(found)].name}: {done.stderr[-3000:]}")
    return found


def is_right(found: dict[str, Any]) -> bool:
    return bool(found["identical"] and found["error"] <= found["tolerance"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.players.networks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=(*NETWORKS, []), help="all if left out")
    parser.add_argument("--profile", choices=tuple(PROFILES), help="the plan that is played")
    options = parser.parse_args(arguments)
    import demo_game.operators  # noqa: F401 - registers the demo's own operators

    profiles = [options.profile] if options.profile else list(PROFILES)
    good = True
    for name in options.names or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.cml"
            file.write_bytes(cook(NETWORKS[name](), profiles, guesses=cooked_guesses()))
            (found,) = play_golden([file], options.profile or "")
        good &= is_right(found)
        print(
            f"{name:18s} plan '{found['profile']}', off by {found['error']:.1e} of "
            f"{found['tolerance']:.0e} allowed, in {found['frames'][0]} and {found['frames'][1]} "
            f"frames {'the same bits' if found['identical'] else 'OTHER BITS'}"
            f"{'' if is_right(found) else '  WRONG'}",
            flush=True,
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
