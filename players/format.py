"""Formats sources in C and C++ with clang-format, as ``players/c/.clang-format`` says.

python -m players.format            # writes
python -m players.format --check    # exit code 1 where a file is formatted otherwise
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STYLE = ROOT / "players/c/.clang-format"


def sources() -> list[Path]:
    """Returns the files that clang-format formats."""
    folders = ("players", "tests/players", "examples/vulkan_host")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*")]
    return sorted(f for f in files if f.suffix in (".c", ".h", ".cpp", ".hpp"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m players.format", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    program = Path(sysconfig.get_path("scripts")) / "clang-format"
    how = ("--dry-run", "--Werror") if options.check else ("-i",)
    return subprocess.call([program, f"--style=file:{STYLE}", *how, *sources()])


if __name__ == "__main__":
    sys.exit(main())
