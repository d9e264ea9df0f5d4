"""The sea's reflection: the land drawn once more, upside down, at half the size."""

from __future__ import annotations

from typing import Any

import cml_engine as cml
from demo_game.render.pipelines import Pipelines
from demo_game.render.targets import Targets


class Reflection:
    """The texture of the mirrored land and its bind group; zero where sky is reflected."""

    def __init__(self, gpu: cml.Gpu, form: str, pipelines: Pipelines, sampler: Any) -> None:
        self._device, self._pipelines, self._sampler = gpu.device, pipelines, sampler
        self._targets = Targets(gpu, form, samples=1)
        self.group: Any = None

    def make(self, size: tuple[int, int]) -> None:
        """Creates the textures, of half the sides of ``size``, and the bind group."""
        width, height = (max(1, (side + 1) // 2) for side in size)
        self._targets.make((width, height), smaller=True)
        self.group = self._device.create_bind_group(
            layout=self._pipelines.reflection_layout,
            entries=[
                {"binding": 0, "resource": self._targets.smaller},
                {"binding": 1, "resource": self._sampler},
            ],
        )

    def begin(self, encoder: Any, timestamp_writes: Any) -> Any:
        """Begins the pass that draws the reflection, cleared to zero; returns the pass."""
        return self._targets.begin(encoder, self._targets.smaller, timestamp_writes)

    def close(self) -> None:
        """Frees the memory."""
        self._targets.close()
