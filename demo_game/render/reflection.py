"""The land as the sea shows it: drawn once more, upside down, at half the size."""

from __future__ import annotations

from typing import Any

import wgpu

import cml_engine as cml
from demo_game.render.pipelines import DEPTH_FORMAT, Pipelines
from demo_game.render.targets import OWNER


class Reflection:
    """A texture of the mirrored land, empty where sky is reflected, and the sea's bindings."""

    def __init__(self, gpu: cml.Gpu, form: str, pipelines: Pipelines, sampler: Any) -> None:
        self._gpu, self._format, self._pipelines = gpu, form, pipelines
        self._sampler = sampler
        self._textures: list[Any] = []
        self._views: list[Any] = []
        self.group: Any = None

    def make(self, size: tuple[int, int]) -> None:
        """For pictures of that size."""
        self.close()
        half = tuple(max(1, (side + 1) // 2) for side in size)
        usage = wgpu.TextureUsage.RENDER_ATTACHMENT
        self._textures = [
            self._gpu.memory.create_texture(size=(*half, 1), format=form, usage=use, owner=OWNER)
            for form, use in (
                (self._format, usage | wgpu.TextureUsage.TEXTURE_BINDING),
                (DEPTH_FORMAT, usage),
            )
        ]
        self._views = [texture.create_view() for texture in self._textures]
        self.group = self._gpu.device.create_bind_group(
            layout=self._pipelines.reflection_layout,
            entries=[
                {"binding": 0, "resource": self._views[0]},
                {"binding": 1, "resource": self._sampler},
            ],
        )

    def begin(self, encoder: Any, timestamp_writes: Any) -> Any:
        """The pass that draws it."""
        timed = {"timestamp_writes": timestamp_writes} if timestamp_writes else {}
        return encoder.begin_render_pass(
            color_attachments=[
                {
                    "view": self._views[0],
                    "clear_value": (0.0, 0.0, 0.0, 0.0),
                    "load_op": "clear",
                    "store_op": "store",
                }
            ],
            depth_stencil_attachment={
                "view": self._views[1],
                "depth_clear_value": 0.0,
                "depth_load_op": "clear",
                "depth_store_op": "discard",
            },
            **timed,
        )

    def close(self) -> None:
        """Give the memory back."""
        for texture in self._textures:
            texture.destroy()
        self._textures.clear()
