"""GPU time that hosts ask for besides: copies of outputs into textures, which the frame's budget
pays for."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.executor import StepCost
from scheduler.planning.cost_model import CostModel
from scheduler.planning.first_guess import FirstGuess


class Charges:
    """The predicted time of host requests (copies into textures) since the last frame was planned.

    Their costs are learned apart from the networks', because a host asks for a copy at any time and
    no plan depends on it.
    """

    def __init__(self, guess: FirstGuess) -> None:
        self.pending_ms = 0.0
        self._model = CostModel(guess=guess)

    def add(self, cost: StepCost) -> None:
        """A copy is appended to this frame's commands, or the next one's."""
        self.pending_ms += self._model.predict_ms(cost, cost.groups)

    def take(self) -> float:
        """Milliseconds that the next frame has to leave."""
        taken, self.pending_ms = self.pending_ms, 0.0
        return taken

    def learn(self, measured: Iterable[tuple[StepCost, float]]) -> None:
        """Learns from the measured times of copies."""
        for cost, ms in measured:
            self._model.learn([(cost, cost.groups)], ms)
