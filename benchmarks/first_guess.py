"""Writes the default kernel costs of a device, which apply until its own are measured.

``python -m benchmarks.first_guess`` times every operator of the bench's networks by itself and
writes ``scheduler/planning/defaults/1-software.json``
(see :class:`cml_engine.scheduler.planning.cost_model.FirstGuess`): the ratio of each kernel's time
to its roofline on this device, and the ratios of variants that differ from their kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

import cml_engine as cml
from benchmarks import command
from benchmarks.models import MODELS, ready_program
from cml_engine.compiler.plan import StepCost
from cml_engine.gpu.program import inspect

FILE = (
    Path(__file__).resolve().parents[1] / "scheduler" / "planning" / "defaults" / "1-software.json"
)
#: the roofline that kernels are compared with
_FLOPS_PER_MS, _BYTES_PER_MS, _LAUNCH_MS = 3e7, 3e6, 0.03
#: ms; a shorter step measures only its launch
_LEAST_MS = 0.1
#: the fewest steps that a ratio is computed from
_ENOUGH = 2
#: a variant gets its own ratio if it is faster or slower than its kernel by this factor
_APART = 1.5


def measure(model: str, gpu: cml.Gpu, rounds: int) -> list[tuple[StepCost, float]]:
    """Returns each step of a network with its GPU milliseconds, the median over the rounds."""
    program, inputs = ready_program(model, gpu)
    times = np.median(inspect.time_steps(program, inputs, rounds), axis=0)
    return list(zip(program.step_costs(), times.tolist(), strict=True))


def factors(measured: Sequence[tuple[StepCost, float]]) -> dict[str, float]:
    """Returns the ratio of measured to roofline time, by the name of a kernel or of a variant.

    Each ratio is the geometric mean over the steps, to two digits. A name with too few steps is
    left out, and so is a variant that is close to its kernel.
    """
    logs: dict[str, list[float]] = defaultdict(list)
    for step, ms in measured:
        roof = step.groups * max(step.flops / _FLOPS_PER_MS, step.nbytes / _BYTES_PER_MS)
        if roof > 0 and ms >= _LEAST_MS:
            variant = step.key.split()[1]
            for name in (variant, variant.rpartition("-")[0]):
                logs[name].append(float(np.log((ms - _LAUNCH_MS) / roof)))
    means = {name: fmean(values) for name, values in logs.items() if len(values) >= _ENOUGH}
    return {
        name: float(f"{np.exp(mean):.2g}")
        for name, mean in sorted(means.items())
        if abs(mean - means.get(name.rpartition("-")[0], np.inf)) > np.log(_APART)
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.first_guess", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args(arguments).rounds
    command.fetch_assets()
    gpu = command.open_gpu()
    measured = [row for model in MODELS for row in measure(model, gpu, rounds)]
    where = command.machine()
    kernels = factors(measured)
    written = {
        "devices": "llvmpipe|softpipe|SwiftShader|Software Rasterizer",
        "source": f"measured on such a device: {len(measured)} operators of the bench's networks, "
        f"each alone in a pass by benchmarks.first_guess, on {gpu.name}, {where['cores']} cores of "
        f"{where['cpu']}",
        "flops_per_ms": _FLOPS_PER_MS,
        "bytes_per_ms": _BYTES_PER_MS,
        "launch_ms": _LAUNCH_MS,
        "kernels": kernels,
    }
    FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(f"{FILE}: {len(kernels)} kernels and variants")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
