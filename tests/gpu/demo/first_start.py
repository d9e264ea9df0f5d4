"""Measures the first start of the demo's agents, with all caches of the engine empty.

    python -m tests.gpu.demo.first_start

Two processes start with an empty ``CML_CACHE_DIR``. One loads the models, the other the cooked set,
which is built first if it is missing. The columns are seconds of wall-clock time; ``code`` and
``driver`` are summed over the threads that build pipelines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ROWS = ("load", "sessions", "code", "driver", "all")


class Stopwatch:
    """The seconds spent in wrapped functions, summed over all threads."""

    def __init__(self) -> None:
        self.seconds, self._lock = 0.0, Lock()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                with self._lock:
                    self.seconds += time.perf_counter() - start

        return timed


def measure(cooked: bool) -> dict[str, float]:
    """Returns the seconds until the agents can run, measured in this process."""
    import cml_engine as cml
    from cml_engine.compiler.plan import KernelCode
    from cml_engine.gpu import device
    from cml_engine.gpu.shaders.hlsl import ShaderKey
    from demo_game.agents import Agents
    from demo_game.chain import load_chain

    gpu, code, driver = cml.Gpu(), Stopwatch(), Stopwatch()
    ShaderKey.code = code.around(ShaderKey.code)  # type: ignore[method-assign]
    unpack = code.around(lambda kernel: kernel.unpack())
    KernelCode.code = unpack  # type: ignore[method-assign]
    device.create_shader_module = driver.around(device.create_shader_module)
    kind: Any = type(gpu.device)
    kind.create_compute_pipeline = driver.around(kind.create_compute_pipeline)
    start = time.perf_counter()
    chain = load_chain(cooked=cooked)
    loaded = time.perf_counter()
    sessions = Agents(gpu, chain).sessions.values()
    made = time.perf_counter()
    for session in sessions:
        session.build_ahead()
    for session in sessions:
        session.program.load()  # type: ignore[attr-defined]
    end = time.perf_counter()
    return {
        "load": loaded - start, "sessions": made - loaded, "code": code.seconds,
        "driver": driver.seconds, "all": end - start,
    }  # fmt: skip


def in_a_process(what: str) -> dict[str, float]:
    """Runs ``measure`` in a new process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.demo.first_start", what],
            cwd=ROOT,
            env={**os.environ, "CML_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout)


def main() -> int:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1] == "cooked")))
        return 0
    from demo_game.cooking import cooked_set, make

    if cooked_set() is None:
        make()
    found = {what: in_a_process(what) for what in ("models", "cooked")}
    print(f"{'seconds':10s}" + "".join(f"{row:>10s}" for row in ROWS) + "   outside the driver")
    for what, row in found.items():
        outside = row["load"] + row["sessions"] + row["code"]
        print(f"{what:10s}" + "".join(f"{row[name]:10.2f}" for name in ROWS) + f"{outside:10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
