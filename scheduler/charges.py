"""GPU time of copies of outputs into textures, which counts in the frame's budget."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.executor import StepCost
from scheduler.planning.cost_model import CostModel
from scheduler.planning.first_guess import FirstGuess


class Charges:
    """The predicted time of the copies into textures since the last frame was planned.

    Their costs are learned apart from the networks' costs, because a host requests a copy at any
    time and no plan depends on it.
    """

    def __init__(self, guess: FirstGuess) -> None:
        self.pending_ms = 0.0
        self._model = CostModel(guess=guess)

    def add(self, cost: StepCost) -> None:
        """Adds the predicted time of a copy that is encoded in this frame or the next one."""
        self.pending_ms += self._model.predict_ms(cost, cost.groups)

    def take(self) -> float:
        """Returns the milliseconds to subtract from the next frame's budget, and resets them."""
        taken, self.pending_ms = self.pending_ms, 0.0
        return taken

    def learn(self, measured: Iterable[tuple[StepCost, float]]) -> None:
        """Learns from the measured times of copies."""
        for cost, ms in measured:
            self._model.learn([(cost, cost.groups)], ms)
