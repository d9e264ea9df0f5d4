"""A backend that computes nothing and logs every dispatch; for tests above the GPU API."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cml_engine.compiler.plan import Plan
from cml_engine.ir.graph import NUMPY_DTYPE, Array


class NullProgram:
    """A program that computes nothing and logs its runs: ``log`` holds ``(step, first, count)``."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.log: list[tuple[int, int, int]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Logs every step as a whole and returns zeros of the outputs' shapes, by name."""
        self.run_ranges(inputs, [(step.index, 0, step.groups) for step in self.plan.steps])
        return {
            name: np.zeros(place.fact.shape, NUMPY_DTYPE[place.fact.dtype])
            for name, place in self.plan.outputs.items()
        }

    def run_ranges(self, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]) -> None:
        """Logs ranges of workgroups; raises ``ValueError`` for a range outside its step."""
        for step, first, count in ranges:
            if not (first >= 0 and count >= 0 and first + count <= self.plan.steps[step].groups):
                raise ValueError(
                    f"range [{first}, {first + count}) outside step {step} with "
                    f"{self.plan.steps[step].groups} workgroups"
                )
            self.log.append((step, first, count))

    def reset(self) -> None:
        """Clears the log."""
        self.log.clear()
