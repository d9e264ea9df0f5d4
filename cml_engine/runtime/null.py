"""A backend that computes nothing and remembers everything: for tests above the GPU API."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cml_engine.compiler.plan import Plan
from cml_engine.ir.graph import NUMPY_DTYPE, Array


class NullProgram:
    """A plan whose runs are only written down: ``log`` holds ``(step, first, count)``."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.log: list[tuple[int, int, int]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Zeros of the right shapes; every step is logged whole."""
        self.run_ranges(inputs, [(step.index, 0, step.groups) for step in self.plan.steps])
        return {
            name: np.zeros(place.fact.shape, NUMPY_DTYPE[place.fact.dtype])
            for name, place in self.plan.outputs.items()
        }

    def run_ranges(self, inputs: Mapping[str, Array], ranges: list[tuple[int, int, int]]) -> None:
        """Log ranges of workgroups; a range outside its step is refused as a GPU would not."""
        for step, first, count in ranges:
            if not (first >= 0 and count >= 0 and first + count <= self.plan.steps[step].groups):
                raise ValueError(
                    f"range [{first}, {first + count}) outside step {step} with "
                    f"{self.plan.steps[step].groups} workgroups"
                )
            self.log.append((step, first, count))

    def reset(self) -> None:
        """Forget the log."""
        self.log.clear()
