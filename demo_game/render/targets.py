"""The textures that a picture needs besides the host's: depth, samples, a smaller picture."""

from __future__ import annotations

import wgpu

import cml_engine as cml
from cml_engine.demo_game.render.binding import Descriptor, bind
from cml_engine.demo_game.render.pipelines import DEPTH_FORMAT, Pipelines

OWNER = "picture"


def target_format(gpu: cml.Gpu, preferred: str) -> str:
    """Returns the target's format: the preferred one, without ``-srgb`` on a software driver.

    A software driver encodes sRGB for each pixel and for four texels of each sample, so there the
    shaders encode it.
    """
    return preferred.removesuffix("-srgb") if gpu.limits.software else preferred


class Targets:
    """The textures of the size that is drawn; :meth:`make` replaces them."""

    def __init__(self, gpu: cml.Gpu, target_format: str, samples: int) -> None:
        self._gpu, self._format, self._samples = gpu, target_format, samples
        self._textures: list[wgpu.GPUTexture] = []
        self._views: list[wgpu.GPUTextureView] = []

    def make(self, size: tuple[int, int], smaller: bool) -> None:
        """Frees the present textures and creates those for pictures of that size.

        ``smaller`` says that they are smaller than the target: then there is a texture
        :attr:`smaller` to draw to.
        """
        self.close()
        formats = [DEPTH_FORMAT, *([self._format] if self._samples > 1 else [])]
        self._textures = [self._texture(size, format, self._samples) for format in formats]
        if smaller:
            self._textures.append(self._texture(size, self._format, 1))
        self._views = [texture.create_view() for texture in self._textures]

    def _texture(self, size: tuple[int, int], texture_format: str, samples: int) -> wgpu.GPUTexture:
        sampled = samples == 1 and texture_format != DEPTH_FORMAT
        usage = wgpu.TextureUsage
        return self._gpu.memory.create_texture(
            size=(*size, 1),
            format=texture_format,
            sample_count=samples,
            usage=usage.RENDER_ATTACHMENT | (usage.TEXTURE_BINDING if sampled else 0),
            owner=OWNER,
        )

    @property
    def smaller(self) -> wgpu.GPUTextureView:
        """The view of the smaller picture; only if :meth:`make` was called with ``smaller``."""
        return self._views[-1]

    def begin(
        self,
        encoder: wgpu.GPUCommandEncoder,
        target_view: wgpu.GPUTextureView,
        timestamp_writes: Descriptor | None,
    ) -> wgpu.GPURenderPassEncoder:
        """Begins the render pass that clears a view and draws the picture to it.

        Returns the pass.
        """
        colour = {"view": target_view, "load_op": "clear", "store_op": "store"}
        if self._samples > 1:
            colour.update(view=self._views[1], resolve_target=target_view, store_op="discard")
        return encoder.begin_render_pass(
            color_attachments=[colour],
            depth_stencil_attachment={
                "view": self._views[0],
                "depth_clear_value": 0.0,
                "depth_load_op": "clear",
                "depth_store_op": "discard",
            },
            timestamp_writes=timestamp_writes,
        )

    def close(self) -> None:
        """Destroys the textures."""
        for texture in self._textures:
            texture.destroy()
        self._textures.clear()


class Reflection:
    """The sea's reflection: the land drawn once more, upside down, at half the size.

    The texture is zero where sky is reflected. ``group`` is its bind group.
    """

    def __init__(
        self, gpu: cml.Gpu, target_format: str, pipelines: Pipelines, sampler: wgpu.GPUSampler
    ) -> None:
        self._gpu, self._layout, self._sampler = gpu, pipelines.picture_layout, sampler
        self._targets = Targets(gpu, target_format, samples=1)
        self.group: wgpu.GPUBindGroup | None = None

    def make(self, size: tuple[int, int]) -> None:
        """Creates the textures, of half the sides of ``size``, and the bind group."""
        width, height = (max(1, (side + 1) // 2) for side in size)
        self._targets.make((width, height), smaller=True)
        self.group = bind(self._gpu, self._layout, self._targets.smaller, self._sampler)

    def begin(
        self, encoder: wgpu.GPUCommandEncoder, timestamp_writes: Descriptor | None
    ) -> wgpu.GPURenderPassEncoder:
        """Begins the pass that draws the reflection, cleared to zero; returns the pass."""
        return self._targets.begin(encoder, self._targets.smaller, timestamp_writes)

    def close(self) -> None:
        """Frees the memory."""
        self._targets.close()
