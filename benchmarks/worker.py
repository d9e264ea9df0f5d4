"""A contender in a process of its own: ``python -m benchmarks.worker CONTENDER FOLDER``.

Engines bring thread pools, allocators and drivers that disturb each other, and may crash. The
worker answers in lines of JSON: first its description, then the milliseconds of N runs for every
line "N" on its standard input. Output of native code goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.contenders import CONTENDERS, Contender, Inputs, Run, Unavailable, Workload


def own_stdout() -> TextIO:
    """Returns a stream to the parent process and redirects standard output to standard error.

    Native code that writes to standard output then cannot disturb the protocol.
    """
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


def start(contender: Contender, workload: Workload, inputs: Inputs) -> tuple[Run, dict[str, Any]]:
    """Loads the contender and runs it once; returns its run function and its description.

    The output of the run is saved. The description has the device, the version, and the ms of
    loading and the first run.
    """
    begun = time.perf_counter()
    loaded = contender.load(workload)
    output = loaded.run(inputs)
    first = time.perf_counter() - begun
    np.save(workload.output(contender.key), output)
    about = {
        "device": loaded.device,
        "version": version(contender.package),
        "first_ms": round(first * 1000, 1),
    }
    return loaded.run, about


def version(package: str) -> str:
    """Returns the version of an installed package; "" if it is used from its folder."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def measure(run: Run, inputs: Inputs, count: int) -> list[float]:
    """Returns the milliseconds of each of ``count`` runs.

    An earlier run, which wakes threads and warms caches, is not counted.
    """
    run(inputs)
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        run(inputs)
        times.append((time.perf_counter() - begun) * 1000)
    return times


def main(key: str, folder: Path) -> int:
    pipe = own_stdout()
    workload = Workload(folder)
    inputs = workload.load_inputs()
    contender = next(c for c in CONTENDERS if c.key == key)
    try:
        run, about = start(contender, workload, inputs)
    except Exception as error:  # any error becomes a row of the table
        said = str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
        print(json.dumps({"error": said}), file=pipe, flush=True)
        return 1
    print(json.dumps(about), file=pipe, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(run, inputs, int(line))), file=pipe, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
