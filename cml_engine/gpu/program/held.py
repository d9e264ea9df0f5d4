"""What a program's memory holds of the run before."""

from __future__ import annotations

from cml_engine.gpu.memory.allocation import Allocation
from cml_engine.gpu.program.residency import Residency


class Held:
    """Whether the results of a whole run lie in the memory of a program: not before there was one,
    nor while the next is under way, nor when the memory was taken away or used by another."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._arena: Allocation | None = None

    @property
    def results(self) -> bool:
        """Whether they are there."""
        there = self._residency
        return self._arena is not None and self._arena is there.arena and there.wrote_last

    def begin(self) -> None:
        """The memory is being written to."""
        self._arena = None
        self._residency.claim()

    def end(self) -> None:
        """A run has been encoded to its end."""
        self._arena = self._residency.arena
