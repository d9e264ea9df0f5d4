"""ncnn's Vulkan kernels on AMD's compiler: caught while ncnn runs a network on another driver."""

from __future__ import annotations

import struct
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Workload, ncnn_net, run_ncnn
from benchmarks.hardware.capture import Capture
from benchmarks.hardware.listing import FMA
from benchmarks.hardware.model import Kernel
from benchmarks.hardware.radv import Radv, RadvError, Specialization
from benchmarks.models import MODELS
from benchmarks.table import markdown_table


@dataclass(frozen=True, slots=True)
class PeerKernel:
    """A kernel of ncnn that a run dispatches: how often, its workgroups, and its code."""

    pipeline: int
    dispatches: int
    groups: int
    kernel: Kernel


class NcnnCapture:
    """Catches ncnn's pipelines and dispatches. Make it before any Vulkan device of the process."""

    def __init__(self) -> None:
        self._capture = Capture()

    def kernels(self, model: str, radv: Radv) -> list[PeerKernel]:
        """Returns the kernels of one run of a network of the bench.

        Raises :class:`benchmarks.contenders.Unavailable` if ncnn does not take the network.
        """
        with tempfile.TemporaryDirectory(prefix="cml-peer-") as folder:
            workload = Workload(Path(folder))
            MODELS[model](workload)
            net, _ = ncnn_net(workload, on_gpu=True)
            (self._capture.path / "dispatches").unlink(missing_ok=True)  # of loading
            run_ncnn(net, workload.load_inputs(), net.output_names())
        lines = (self._capture.path / "dispatches").read_text().splitlines()
        dispatches = [tuple(map(int, line.split())) for line in lines]
        counts, groups = Counter(line[0] for line in dispatches), Counter[int]()
        for number, x, y, z in dispatches:
            groups[number] += x * y * z
        kernels = []
        for number, count in counts.items():
            kernels.append(PeerKernel(number, count, groups[number], self._compile(number, radv)))
        return kernels

    def _compile(self, number: int, radv: Radv) -> Kernel:
        stored = (self._capture.path / f"{number:06d}.pipeline").read_bytes()
        module, count, nbytes = struct.unpack_from("3I", stored)
        words = struct.unpack_from(f"{3 * count}I", stored, 12)
        entries = tuple(zip(words[::3], words[1::3], words[2::3], strict=True))
        spirv = (self._capture.path / f"{module:06d}.spv").read_bytes()
        try:
            return radv.compile(spirv, Specialization(entries, stored[len(stored) - nbytes :]))
        except RadvError as error:
            raise RadvError(f"ncnn's pipeline {number}: {error}") from None


_HEAD = ("ncnn's pipeline", "dispatches", "groups", "registers", "spills", "waves", "code",
         "groupshared", "products in the loop", "instructions ÷ product in the loop")  # fmt: skip


def markdown(kernels: list[PeerKernel]) -> str:
    """Returns a Markdown table of the kernels with products, the most workgroups first."""
    rows = []
    for found in sorted(kernels, key=lambda k: -k.groups):
        loop, k = found.kernel.listing.inner_loop(), found.kernel
        if loop[FMA] >= 8:  # others only copy or add
            share = loop[FMA] / sum(loop.values())
            numbers = (found.pipeline, found.dispatches, found.groups, k.registers, k.spills,
                       k.waves, k.code_bytes, k.shared_bytes)  # fmt: skip
            rows.append((*map(str, numbers), f"{share:.0%}", f"{1 / share:.2f}"))
    return markdown_table(_HEAD, "|" + "--:|" * len(_HEAD), rows)
