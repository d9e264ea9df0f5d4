"""``python -m examples.three_host FOLDER`` writes a page with a three.js scene of generated land.

Networks compute the land on the device that three.js uses. Any web server can serve the folder.
three.js comes from npm by way of Deno (``pip install deno``), or from the folder given to
``--three``, such as ``node_modules/three/build``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cml_engine as cml
from cml_engine.io import write_atomically
from examples.command import run_command
from examples.deno import find_deno
from examples.web_world.__main__ import PROFILES, print_address, write_networks, write_player

VERSION = "0.187.0"
_THREE = ("three.webgpu.js", "three.tsl.js", "three.core.js")
_HERE = Path(__file__).parent


def write_host(folder: Path, profiles: Sequence[str] = PROFILES, three: Path | None = None) -> None:
    """Writes the page, three.js, the player and the cooked networks to ``folder``.

    ``three`` is a folder that contains three.js; without it three.js is downloaded.
    """
    for name, data in (_read(three) if three else fetch_three()).items():
        write_atomically(folder / name, data)
    write_networks(folder, profiles)
    write_player(folder, "cml.js", "core.js", "picture.js", "tiles.js")
    for name in ("index.html", "page.js", "host.js"):
        write_atomically(folder / name, (_HERE / name).read_bytes())
    print_address(folder)


def fetch_three() -> dict[str, bytes]:
    """Downloads three.js with Deno, which caches it, and returns the content of its files by name.

    Raises :class:`cml_engine.CmlError` if Deno is missing or the download fails.
    """
    deno = find_deno()
    if deno is None:
        raise cml.CmlError(
            "three.js is fetched by Deno, which is not here: pip install deno, or "
            "name a folder that has it (--three node_modules/three/build)"
        )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "deno.json").write_text('{"nodeModulesDir": "auto"}')
        done = subprocess.run(
            [deno, "cache", "--quiet", f"npm:three@{VERSION}"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise cml.CmlError(
                f"cannot fetch three@{VERSION} from npm: {reason}\n"
                "Check the network or a proxy, or name a folder that has it (--three)"
            )
        return _read(Path(folder, "node_modules", "three", "build"))


def _read(build: Path) -> dict[str, bytes]:
    try:
        return {name: (build / name).read_bytes() for name in _THREE}
    except OSError as error:
        raise cml.CmlError(f"no three.js in '{build}': {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page to the folder named in ``argv`` and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.three_host", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--three", type=Path, metavar="DIR", help="three.js's folder `build`")
    options = parser.parse_args(argv)
    return run_command(lambda: write_host(options.folder, three=options.three))


if __name__ == "__main__":
    sys.exit(main())
