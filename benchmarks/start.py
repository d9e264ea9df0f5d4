"""Where a start's time goes before the network runs: ``python -m benchmarks.start MODEL``.

From a warm shader cache. What the driver takes for its own start and for its pipelines is shown
apart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any


def main(model: str) -> None:
    """Print milliseconds by phase."""
    begin = time.perf_counter()
    import cml_engine as cml

    rows = [("import cml_engine", _since(begin))]
    graph, took = _timed(lambda: cml.load(model))
    rows.append(("load the model", took))
    gpu, took = _timed(cml.Gpu)
    rows.append(("device (the driver's own start included)", took))
    driver = _Clock(gpu.device.create_compute_pipeline)
    gpu.device.create_compute_pipeline = driver
    _, took = _timed(lambda: cml.Session(graph, gpu))
    rows.append(("session without the driver's pipelines", took - driver.ms))
    rows.append(("  the driver's pipelines", driver.ms))
    for name, ms in rows:
        print(f"{name:44s} {ms:8.1f} ms")
    print(f"{'sum without the pipelines':44s} {sum(ms for _, ms in rows[:-1]):8.1f} ms")


class _Clock:
    """A function that counts the milliseconds it takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.ms = function, 0.0

    def __call__(self, **arguments: Any) -> Any:
        result, took = _timed(lambda: self._function(**arguments))
        self.ms += took
        return result


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = function()
    return result, _since(begin)


def _since(begin: float) -> float:
    return 1e3 * (time.perf_counter() - begin)


if __name__ == "__main__":
    main(sys.argv[1])
