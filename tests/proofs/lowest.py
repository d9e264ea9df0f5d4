"""Runs tests with the oldest packages that pyproject.toml allows.

    python -m tests.proofs.lowest

Makes a virtual environment with every package at its lower bound, and runs the tests of what uses
it. The bounds are those of the oldest Python: a newer one has no wheels of such old packages.
Exit code 1 if a test fails, or a bound names a version that does not exist.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.proofs.__main__ import ROOT, WORKERS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: extras that are installed together ("" is the package itself), and the tests that use them;
#: numcodecs of `bake` needs a newer NumPy than the package
STAGES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("", "compiler", "game", "onnxruntime", "images", "plot", "test"),
        (
            "tests/sessions", "tests/panel", "tests/demo/test_overlay.py",
            "tests/io/test_load_budget.py", "tests/cli/test_images.py",
            "tests/cli/test_array_files.py", "tests/cli/test_cli.py",
        ),
    ),
    (("bake",), ("tests/bake",)),
)  # fmt: skip
_BOUND = re.compile(r"(?P<name>[\w-]+)>=(?P<version>[\d.]+)")


def lowest(extras: Sequence[str]) -> Iterator[str]:
    """Yields ``name==version`` with the lower bound of each package of these extras."""
    for extra in extras:
        listed = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
        for requirement in listed:
            bound = _BOUND.match(requirement)
            if bound is None:
                raise SystemExit(f"pyproject.toml: '{requirement}' has no lower bound (name>=1.2)")
            yield f"{bound['name']}=={bound['version']}"


def oldest_python() -> tuple[int, ...]:
    return tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))


def main() -> int:
    if sys.version_info[:2] != oldest_python():
        print(f"not run: it needs Python {'.'.join(map(str, oldest_python()))}", flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="cml-lowest-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        for extras, tests in STAGES:
            packages = list(lowest(extras))
            print(f"---- {' '.join(packages)}", flush=True)
            pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            if subprocess.call([*pip, *packages], cwd=ROOT):
                return 1
            pytest = (python, "-m", "pytest", "-p", "no:cacheprovider", *WORKERS, *tests)
            if subprocess.call(pytest, cwd=ROOT):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
