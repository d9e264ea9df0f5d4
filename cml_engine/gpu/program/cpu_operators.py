"""The operators of a GPU program that have no kernel, and run in NumPy within a run."""

from __future__ import annotations

from collections.abc import Mapping

from cml_engine.compiler.plan import CpuPart
from cml_engine.cpu.cpu_program import CpuProgram, Watch
from cml_engine.gpu.memory.allocator import Data
from cml_engine.gpu.memory.tensors import from_words, to_words
from cml_engine.ir.graph import Array


class CpuOperators:
    """The operators of one step on the CPU, ready to run."""

    def __init__(self, part: CpuPart) -> None:
        self.part = part
        self._program = CpuProgram(part.graph)

    def compute(
        self, data: Mapping[str, Data], watch: Watch | None = None, before: Watch | None = None
    ) -> dict[str, tuple[int, Array]]:
        """Returns the byte offset in the arena and the elements of each result, by name.

        ``data`` has the bytes of each operand as the device stores them.
        """
        reads, writes = self.part.reads, self.part.writes
        arrays = {name: from_words(data[name], place) for name, place in reads.items()}
        results = self._program.run(arrays, watch, before)
        return {
            name: (place.binding.offset, to_words(results[name], place))
            for name, place in writes.items()
        }
