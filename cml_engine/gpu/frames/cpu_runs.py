"""Steps of a job on the CPU: a readback, a worker thread, and an upload over several frames."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import wgpu

from cml_engine.compiler.plan import pack_places
from cml_engine.gpu.frames.outputs import Readback
from cml_engine.gpu.memory.allocator import Allocation
from cml_engine.gpu.program.memory import Chunks, chunks, write_chunks
from cml_engine.gpu.program.preparation import upload_limit
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.io.frame_gate import frame_gate, yield_to_frame
from cml_engine.ir.graph import Array, Node
from cml_engine.ops.common.once import Once

#: seconds that frames may hold up a step on the CPU: those of a host that never waits for a display
#: leave no gap
_LONGEST_PAUSE_S = 0.05


class CpuRun(Readback):
    """One step on the CPU of a running job, begun in ``frame``. No call blocks.

    The operands are read back, a worker computes the operators, and the results are uploaded.
    """

    def __init__(self, network: GpuProgram, step: int, frame: int) -> None:
        self._operators, self._residency = network.on_cpu[step], network.residency
        operands, nbytes = pack_places(self._operators.part.reads)
        super().__init__(network.gpu.memory, network.name, operands, nbytes)
        self.step, self.frame = step, frame
        self._cancelled = self._uploaded = False
        self._computing: Future[dict[str, tuple[int, Array]]] | None = None
        self._results: Chunks | None = None

    @property
    def is_freed(self) -> bool:
        """True if the job has ended, or does not run the step."""
        return self._cancelled

    def record_copies(self, encoder: wgpu.GPUCommandEncoder, target: Allocation) -> None:
        """Records the copies of the operands into mappable memory."""
        for name, place in self._operators.part.reads.items():
            source = self._residency.place(place.binding)
            destination = target.at(self.places[name].binding.offset)
            encoder.copy_buffer_to_buffer(*source, *destination, place.binding.nbytes)

    def start_when_read(self) -> None:
        """Starts the worker once the operands have arrived."""
        if self._data is not None and self._computing is None and not self._cancelled:
            self._computing = _worker().submit(self._compute)

    def _compute(self) -> dict[str, tuple[int, Array]]:
        data = {name: self.bytes_of(name) or b"" for name in self.places}
        with frame_gate.background(_LONGEST_PAUSE_S):
            return self._operators.compute(data, self._pause)

    def _pause(self, node: Node, results: Sequence[Array]) -> None:
        yield_to_frame()
        if self._cancelled:
            raise CancelledError

    def upload(self, budget_ms: float) -> bool:
        """Uploads a part of the results; returns True once all are on the device.

        Raises the error of the readback or of an operator.
        """
        if self.error is not None:
            raise self.error
        if self._computing is None or not self._computing.done():
            return False
        if self._results is None:
            self._results = chunks(self._computing.result())
        if not self._uploaded:
            assert self._residency.arena is not None
            limit = upload_limit(budget_ms)
            self._uploaded = write_chunks(self._residency.arena, self._results, limit) > 0
        return self._uploaded

    def cancel(self) -> None:
        """Ends the step: what the worker still computes is discarded."""
        self._cancelled = True
        self.stop_reading()
        if self._computing is not None:
            self._computing.cancel()


@Once
def _worker() -> ThreadPoolExecutor:
    """Returns the thread that computes the CPU steps of all jobs, one after the other.

    One, because the other cores belong to the game.
    """
    return ThreadPoolExecutor(1, "cml-operators")
