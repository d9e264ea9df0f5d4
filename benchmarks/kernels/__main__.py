"""Compares every kernel of the bench's networks with the driver's peak rates.

Each round times every dispatch of a network by itself, and three controls: products on registers, a
copy of 16 MiB, and a dispatch of one workgroup. The shares of the peaks are medians over the
rounds. The copy goes to memory, so a network whose values fit into a cache can exceed its rate.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict

import cml_engine as cml
from benchmarks import command
from benchmarks.kernels.controls import PeakMeter
from benchmarks.kernels.roofline import KernelTimes, Peaks, markdown
from benchmarks.models import ready_program
from cml_engine.gpu.program import inspect
from cml_engine.gpu.shaders.hlsl import Variant, step_keys


def measure(model: str, gpu: cml.Gpu, meter: PeakMeter, rounds: int) -> list[KernelTimes]:
    """Returns the times of one network's kernel variants; each round also measures the peaks."""
    program, inputs = ready_program(model, gpu)
    times, peaks = [], []
    for _ in range(rounds):
        times.append(1e-3 * inspect.time_steps(program, inputs, 1)[0])
        peaks.append(meter.measure())
    variants: dict[Variant, list[int]] = {}
    for step, key in zip(program.plan.steps, step_keys(program.plan), strict=True):
        variants.setdefault(key, []).append(step.index)
    totals = [float(t.sum()) for t in times]
    return [
        KernelTimes.of(
            model,
            [program.plan.steps[i] for i in mine],
            [max(float(t[mine].sum()), 1e-9) for t in times],
            totals,
            peaks,
        )
        for mine in variants.values()
    ]


def peaks_of(meter: PeakMeter, rounds: int) -> Peaks:
    """Measures the peak rates ``rounds`` times and returns the median of each."""
    peaks = [meter.measure() for _ in range(rounds)]
    return Peaks(*(statistics.median(getattr(p, name) for p in peaks) for name in Peaks.__slots__))


def main(arguments: Sequence[str]) -> int:
    parser = command.make_parser("python -m benchmarks.kernels", __doc__, "kernels", "all")
    options = parser.parse_args(arguments)
    command.fetch_assets()
    gpu = command.open_gpu()
    warning = command.warn_if_busy()
    meter = PeakMeter(gpu)
    peak = peaks_of(meter, options.rounds)
    texts = [
        f"{gpu.name}: products on registers {peak.flops / 1e9:.0f} GFLOPS, copy "
        f"{peak.nbytes / 1e9:.1f} GB/s, a dispatch {1e6 * peak.launch:.0f} µs; "
        f"{options.rounds} rounds"
    ]
    print(texts[0])
    measured: list[KernelTimes] = []
    for model in command.chosen_models(options):
        kernels = measure(model, gpu, meter, options.rounds)
        measured += kernels
        texts.append(f"### {model}\n\n{markdown(kernels)}")
        print(f"\n{texts[-1]}", flush=True)
    report = {
        "machine": {**command.machine(), "gpu": gpu.name},
        "warning": warning,
        "peaks": asdict(peak),
        "kernels": [{**asdict(kernel), "limit": kernel.limit} for kernel in measured],
    }
    command.write_results(options, report, texts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
