"""The long proof, in addition to the suite: ``python -m tests.proofs``, or some of its parts.

========  ==========================================================================================
part      what it does
========  ==========================================================================================
variants  every kernel that an operator can have, in every layout, tuned or not, against the
          reference
long      all other tests marked `long`: large networks in the players, long simulations, another
          driver's bits
calls     some five thousand calls of the operators on both backends, against their formulas
onnx      every supported case of ONNX's own backend tests on the CPU and on the GPU, and random
          calls of every operator, written as ONNX, in ONNX Runtime
fuzz      random graphs and integer networks on every backend, in any slices, and with the kernels
          of hardware; damaged files
lowest    tests with the oldest packages that pyproject.toml allows
faults    faults planted into a copy of the tree, which the suite must notice
========  ==========================================================================================

With ``--cold`` the parts are others, on a machine on which every cache is empty, that of the driver
too: ``demo``, the demo's first picture, and ``suite``.

Prints the wall-clock seconds, the processor seconds, and the memory of the largest process (Linux)
of each command. Exit code 1 if one fails, or takes longer than its limit; all of them run.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: pytest's options, as for the suite
WORKERS = ("-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal")
_FUZZ = ("-m", "tests.proofs.fuzz")
#: the arguments of Python by part
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "variants": (("-m", "pytest", "-m", "long", *WORKERS, "tests/operators"),),
    "long": (("-m", "pytest", "-m", "long", "--ignore=tests/operators"),),
    "calls": (("-m", "tests.proofs.operator_calls", "--no-write"),),
    "onnx": (
        ("-m", "tests.proofs.onnx_nodes", "--backend", "cpu"),
        ("-m", "tests.proofs.onnx_nodes", "--backend", "gpu"),
        ("-m", "tests.proofs.onnx_nodes", "--calls", "20"),
    ),
    "fuzz": (
        (*_FUZZ, "--minutes", "5"),
        (*_FUZZ, "--hardware", "--minutes", "5"),
        (
            "-m",
            "tests.proofs.fuzz",
            "--integer",
            "--cases",
            "2000",
            "--checks",
            "cpu",
            "gpu",
            "cooked",
        ),
        (*_FUZZ, "--strangers", "--minutes", "20"),
    ),
    "lowest": (("-m", "tests.proofs.lowest"),),
    "faults": (("-m", "tests.proofs.plant", "--jobs", "2"),),
}
COLD = {
    "demo": (("tasks.py", "demo", "--headless", "--frames", "60"),),
    "suite": (("tasks.py", "test"),),
}
#: seconds that a command with empty caches may take on two cores
_LIMITS = {"suite": 600.0}
_CACHES = ("CML_CACHE_DIR", "CML_DATA_DIR", "CML_TUNING_DIR", "MESA_SHADER_CACHE_DIR",
           "XDG_CACHE_HOME", "XDG_DATA_HOME")  # fmt: skip


def succeeds(command: Sequence[str], env: Mapping[str, str] | None, most_s: float | None) -> bool:
    """Runs Python with these arguments and prints its times and memory.

    Returns True if it succeeds, within ``most_s`` seconds if that is given.
    """
    print(f"---- {' '.join(command)}", flush=True)
    before, started = os.times(), time.perf_counter()
    code = subprocess.call([sys.executable, *command], cwd=ROOT, env=env)
    seconds, after = time.perf_counter() - started, os.times()
    worked = sum(after[2:4]) - sum(before[2:4])
    largest_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"---- exit code {code} after {seconds:.1f} s, {worked:.0f} s of processor, the largest "
        f"process {largest_mb:.0f} MB",
        flush=True,
    )
    return code == 0 and (most_s is None or seconds <= most_s)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.proofs", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="all if left out")
    parser.add_argument("--cold", action="store_true", help="the parts with empty caches")
    a = parser.parse_args(arguments)
    known = COLD if a.cold else PARTS
    if unknown := [name for name in a.parts if name not in known]:
        parser.error(f"wanted some of {', '.join(known)}, got {unknown[0]}")
    failed = []
    for name in a.parts or known:
        for command in known[name]:
            with tempfile.TemporaryDirectory(prefix="cml-cold-") as folder:
                caches = {cache: f"{folder}/{cache}" for cache in _CACHES if a.cold}
                if not succeeds(command, {**os.environ, **caches}, _LIMITS.get(name)):
                    failed.append(" ".join(command))
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
