"""The long proof, in addition to the suite: ``python -m tests.proof``, or some of its parts.

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
fuzz      random graphs and integer networks on every backend, in any slices; damaged files
faults    faults planted into a copy of the tree, which the suite must notice
========  ==========================================================================================

Exit code 1 if a part fails; all of them run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: pytest's options, as for the suite
_WORKERS = ("-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal")
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "variants": (("pytest", "-m", "long", *_WORKERS, "tests/gpu/kernels"),),
    "long": (("pytest", "-m", "long", "--ignore=tests/gpu/kernels"),),
    "calls": (("tests.prove", "--no-write"),),
    "onnx": (
        ("tests.onnx_nodes", "--backend", "cpu"),
        ("tests.onnx_nodes", "--backend", "gpu"),
        ("tests.onnx_export", "--calls", "20"),
    ),
    "fuzz": (
        ("tests.fuzz", "--minutes", "10"),
        ("tests.fuzz", "--integer", "--cases", "2000", "--checks", "cpu", "gpu", "cooked"),
        ("tests.fuzz", "--strangers", "--minutes", "20"),
    ),
    "faults": (("tests.plant", "--jobs", "2"),),
}


def main(arguments: Sequence[str]) -> int:
    unknown = [name for name in arguments if name not in PARTS]
    if unknown:
        print(f"wanted some of {', '.join(PARTS)}, got {unknown[0]}", file=sys.stderr)
        return 2
    failed = []
    for name in arguments or PARTS:
        for command in PARTS[name]:
            print(f"---- {' '.join(command)}", flush=True)
            started = time.perf_counter()
            code = subprocess.call([sys.executable, "-m", *command], cwd=ROOT)
            print(f"---- exit code {code} after {time.perf_counter() - started:.0f} s", flush=True)
            failed += [" ".join(command)] if code else []
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
