"""Records the frame times of this machine beside a steady load of networks.

``python -m benchmarks.frames.noise OUT.json --frames 1500`` runs frames of some milliseconds (a
network in place of a renderer, and Python's own work) with a few milliseconds of another network
under the scheduler. It writes a line per frame: the milliseconds of the whole frame, and the
predicted and measured milliseconds of its networks. ``tests/scheduler/budgets/frame_budgets.py``
replays the recording against the scheduler's budget on a virtual clock.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.compiler.plan import Slice
from cml_engine.io import write_atomically

_TEXT = """version 1.0;
graph net(x) -> (y)
{{
    x = external<scalar>(shape = [1, 8, {size}, {size}]);
    w = constant<scalar>(shape = [8, 8, 3, 3], value = [0.01]);
{lines}
    y = relu(t{layers});
}}
"""
#: the networks' budget, the host's own work, and the size of the network in place of a renderer
_BUDGET_MS, _HOST_MS, _RENDERER_LAYERS = 4.0, 2.0, 6
#: frames until costs are learned, and until the last timings have arrived
_WARM_UP, _DRAIN = 150, 12


def network(gpu: cml.Gpu, size: int, layers: int) -> cml.Session:
    """Returns a session on a chain of ``layers`` convolutions of maps of ``size`` x ``size``."""
    names = ["x", *(f"t{k}" for k in range(1, layers + 1))]
    lines = [f"    {b} = conv({a}, w, 0.1);" for a, b in zip(names, names[1:], strict=False)]
    text = _TEXT.format(size=size, lines="\n".join(lines), layers=layers)
    return cml.Session(cml.load(cml.nnef.MemoryModel(text, {})), gpu)


class Frames:
    """A host whose frames have fixed work: busy Python, a renderer's network, and two jobs.

    The jobs are networks under the scheduler. ``rows`` has for each frame number its ms, the
    predicted ms of its networks and, once known, the measured ms.
    """

    def __init__(self) -> None:
        self.gpu = gpu = cml.Gpu()
        self.scheduler = FrameScheduler(gpu, budget_ms=_BUDGET_MS)
        self.session = network(gpu, 128, 40)
        self.inputs = {"x": np.ones((1, 8, 128, 128), np.float32)}
        self.renderer = network(gpu, 128, _RENDERER_LAYERS)
        self.renderer.run({"x": np.ones((1, 8, 128, 128), np.float32)})
        program: Any = self.renderer.program
        self.drawing = [Slice(program, i, 0, c.groups) for i, c in enumerate(program.step_costs())]
        self.executor = gpu.executor()
        self.jobs: list[cml.Job] = []
        self.rows: dict[int, list[float]] = {}

    def frame(self) -> None:
        """Runs one frame and adds its row to ``rows``."""
        start = time.perf_counter()
        while time.perf_counter() < start + _HOST_MS / 1e3:
            pass
        self.jobs = [job for job in self.jobs if not job.ended]
        while len(self.jobs) < 2:
            self.jobs.append(self.scheduler.submit(self.session, self.inputs))
        encoder = self.gpu.device.create_command_encoder()
        report = self.scheduler.encode(encoder)
        self.executor.encode(encoder, report.frame, [self.drawing])
        self.gpu.queue.submit([encoder.finish()])
        self.gpu.wait()
        self.executor.end_frame(report.frame)
        measured = self.scheduler.end_frame()
        self.rows[report.frame] = [1e3 * (time.perf_counter() - start), report.predicted_ms]
        for done in measured:
            if done.measured_ms is not None:
                self.rows[done.frame].append(done.measured_ms)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.frames.noise", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--frames", type=int, default=1500)
    a = parser.parse_args()
    frames = Frames()
    for _ in range(a.frames + _WARM_UP + _DRAIN):
        frames.frame()
    complete = [row for row in list(frames.rows.values())[_WARM_UP:] if len(row) == 3]
    rows = [[round(ms, 3) for ms in row] for row in complete]
    about = f"{frames.gpu.name}, {len(rows)} frames, a busy host, a steady load of networks"
    text = json.dumps({"about": about, "frame, predicted, measured": rows})
    write_atomically(a.out, text.replace("], [", "],\n["))
    print(about)
    print("medians:", [round(float(ms), 2) for ms in np.median(np.array(rows), axis=0)])


if __name__ == "__main__":
    main()
