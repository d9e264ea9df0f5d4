"""Checks the digests of the demo's integer agents on every device of this machine.

``python -m tests.gpu.integer.digests`` computes them in NumPy, on the default GPU, and on
Chromium's SwiftShader if it is installed (``--icd FILE.json`` names another Vulkan driver), each
in a process of its own. The exit code is 1 if one differs from the committed digest. ``--here``
runs one such process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import cml_engine as cml
from cml_engine.compiler.integer.digest import run_digest
from cml_engine.runtime.integer_check import random_words
from demo_game.training.integer import INTEGER
from tests.fixtures.integer.agents import DIGESTS

ROOT = Path(__file__).resolve().parents[3]
#: paths of Chromium's driver on Debian and other systems
SWIFTSHADER = (
    Path("/usr/lib/chromium/vk_swiftshader_icd.json"),
    Path("/usr/lib64/chromium-browser/vk_swiftshader_icd.json"),
    Path("/opt/google/chrome/vk_swiftshader_icd.json"),
)


def swiftshader() -> Path | None:
    """Returns the Vulkan ICD file of Chromium's SwiftShader, if it is installed."""
    return next((path for path in SWIFTSHADER if path.is_file()), None)


def digests(backend: str | cml.Gpu, names: Sequence[str]) -> dict[str, str]:
    """Returns the digests of the committed networks on a backend, by network name."""
    found = {}
    for name in names:
        graph = cml.load(INTEGER / f"{name}.nnef")
        outputs = cml.Session(graph, backend).run(random_words(graph, 11))
        found[name] = run_digest(graph, outputs)
    return found


def on_driver(icd: Path | None, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Returns the device's name and the digests from a process with this Vulkan driver only."""
    more = {} if icd is None else {"VK_ICD_FILENAMES": str(icd), "VK_DRIVER_FILES": str(icd)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.integer.digests", "--here", *names],
        cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{icd}: {done.stderr.strip().splitlines()[-1:]}")
    device, *lines = done.stdout.splitlines()
    return device, dict(line.split(" ", 1) for line in lines)


def _told(device: str, found: Mapping[str, str]) -> bool:
    """Prints a device's digests and returns True if all of them equal the committed ones."""
    right = True
    for name, digest in found.items():
        same = digest == DIGESTS[name]
        right &= same
        print(f"{device[:48]:48s} {name:12s} {digest} {'' if same else 'DIFFERS'}".rstrip())
    return right


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(DIGESTS), help="agents, all if left out")
    parser.add_argument("--icd", type=Path, action="append", default=[], metavar="FILE.json")
    parser.add_argument("--here", action="store_true", help="on this process's GPU, and no other")
    a = parser.parse_args(argv)
    if a.here:
        gpu = cml.Gpu()
        print(gpu.name)
        for name, digest in digests(gpu, a.names).items():
            print(name, digest)
        return 0
    right = _told("NumPy", digests("cpu", a.names))
    found = swiftshader()
    for icd in dict.fromkeys([None, *([found] if found else []), *a.icd]):
        right &= _told(*on_driver(icd, a.names))
    print("all are the committed ones" if right else "NOT all are the committed ones")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
