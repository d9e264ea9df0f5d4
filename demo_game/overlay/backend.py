"""Draws imgui's triangles with wgpu into a picture of their own, and that picture over the game's.

The triangles change a few times a second, and copying their picture costs a fraction of drawing
them: on a software driver the overlay would otherwise take a quarter of a frame.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import wgpu
from imgui_bundle import imgui

import cml_engine as cml
from cml_engine.demo_game.render.binding import (
    COLOURS,
    SAMPLER,
    UNIFORM,
    Descriptor,
    bind,
    make_layout,
    make_pipeline,
    vertices,
)
from cml_engine.panel import palette

_SHADER = Path(__file__).with_name("overlay.hlsl")
_OWNER = "overlay"
_OVER = {
    "color": {"src_factor": "src-alpha", "dst_factor": "one-minus-src-alpha", "operation": "add"},
    "alpha": {"src_factor": "one", "dst_factor": "one-minus-src-alpha", "operation": "add"},
}
_CORNERS = vertices(
    imgui.VERTEX_SIZE, ("float32x2", 0, 0), ("float32x2", 8, 1), ("unorm8x4", 16, 2)
)
#: x, y, width and height
Rectangle = tuple[float, float, float, float]
_INDEX_FORMAT = "uint16" if imgui.INDEX_SIZE == 2 else "uint32"
#: the initial bytes of a buffer; it doubles when it is too small
_FIRST_BYTES = 1 << 18


class Backend:
    """Draws imgui's triangles with wgpu. imgui's context must be current whenever it is called.

    ``target_format`` is the format of the textures that :meth:`copy` is given, ``ground`` the
    colour of windows, which imgui itself does not draw: filling them is half of the work on a
    software driver, and clearing the picture costs little. ``scale`` is pixels per point. A GPU
    object is created only for a new glyph or size, or when there is more to draw than ever before.
    """

    def __init__(
        self, gpu: cml.Gpu, target_format: str, ground: palette.Colour, scale: float
    ) -> None:
        # without conversion: imgui blends encoded colours, and a copy leaves the bytes as they are
        self._format = target_format.removesuffix("-srgb")
        self._gpu, self._ground = gpu, ground
        stage = wgpu.ShaderStage
        self._layout = make_layout(
            gpu, (stage.VERTEX, UNIFORM), (stage.FRAGMENT, SAMPLER), (stage.FRAGMENT, COLOURS)
        )
        target = {"format": self._format, "blend": _OVER}
        self._pipeline = make_pipeline(gpu, _SHADER, {}, [self._layout], [_CORNERS], target)
        self._picture: wgpu.GPUTexture | None = None
        #: x, y, width and height in pixels of the windows in the picture
        self._rectangles: list[tuple[int, int, int, int]] = []
        # at whole scales every texel of a glyph meets a pixel, and filters only cost
        filtering = "nearest" if scale == round(scale) else "linear"
        self._sampler = gpu.device.create_sampler(mag_filter=filtering, min_filter=filtering)
        self._screen = gpu.device.create_buffer(
            label=_OWNER, size=16, usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        )
        self._screen_written = np.zeros(4, np.float32)
        self._corners = _Growing(gpu, wgpu.BufferUsage.VERTEX)
        self._indices = _Growing(gpu, wgpu.BufferUsage.INDEX)
        self._textures: dict[int, tuple[wgpu.GPUTexture, wgpu.GPUBindGroup]] = {}
        self._next_texture = 1
        io = imgui.get_io()
        io.backend_flags |= imgui.BackendFlags_.renderer_has_vtx_offset.value
        io.backend_flags |= imgui.BackendFlags_.renderer_has_textures.value

    def draw(
        self,
        encoder: wgpu.GPUCommandEncoder,
        draw_data: imgui.ImDrawData,
        windows: Iterable[Rectangle],
        timestamp_writes: Descriptor | None = None,
    ) -> None:
        """Encodes one pass that draws imgui's ``draw_data`` into the overlay's picture.

        ``windows`` are the places of the windows without a background, in points.
        """
        for texture in draw_data.textures:
            if texture.status != imgui.ImTextureStatus.ok:
                self._update_texture(texture)
        self._upload(draw_data)
        self._resize(draw_data)
        places = [*windows, *self._popups(draw_data)]
        self._rectangles = [r for place in places if (r := _pixels_of(place, draw_data))]
        target = {
            "view": self._picture_view,
            "load_op": "clear",
            "store_op": "store",
            "clear_value": self._ground,
        }
        render = encoder.begin_render_pass(
            color_attachments=[target], timestamp_writes=timestamp_writes
        )
        if draw_data.total_idx_count:
            self._record(render, draw_data)
        render.end()

    def copy(
        self,
        encoder: wgpu.GPUCommandEncoder,
        target: wgpu.GPUTexture,
        timestamp_writes: Descriptor | None = None,
    ) -> None:
        """Encodes the copies of the windows in the overlay's picture to ``target``.

        ``target`` needs the usage ``COPY_DST``. The timestamps are those of a pass behind them.
        """
        for x, y, width, height in self._rectangles:
            encoder.copy_texture_to_texture(
                {"texture": self._picture, "origin": (x, y, 0)},
                {"texture": target, "origin": (x, y, 0)},
                (width, height, 1),
            )
        if timestamp_writes is not None:
            marker = {"view": self._picture_view, "load_op": "load", "store_op": "store"}
            encoder.begin_render_pass(
                color_attachments=[marker], timestamp_writes=timestamp_writes
            ).end()

    def close(self) -> None:
        """Frees the buffers and textures."""
        self._corners.close()
        self._indices.close()
        if self._picture is not None:
            self._picture.destroy()
        for texture, _ in self._textures.values():
            texture.destroy()

    def _resize(self, draw_data: imgui.ImDrawData) -> None:
        """Creates the overlay's picture if there is none of the screen's size."""
        size = _pixels(draw_data)
        if self._picture is not None:
            if self._picture.size[:2] == size:
                return
            self._picture.destroy()
        usage = wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC
        self._picture = self._gpu.memory.create_texture(
            owner=_OWNER, label="overlay", size=(*size, 1), format=self._format, usage=usage
        )
        self._picture_view = self._picture.create_view()

    def _popups(self, draw_data: imgui.ImDrawData) -> Iterator[Rectangle]:
        """Yields the places of tooltips and of opened lists: the first rectangle that they draw."""
        first = 0
        for commands in draw_data.cmd_lists:
            count = commands.vtx_buffer.size()
            if count >= 4 and commands._owner_name.startswith("##"):
                corners = self._corners.items(np.float32, first, 4, imgui.VERTEX_SIZE)[:, :2]
                (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
                yield float(left), float(top), float(right - left), float(bottom - top)
            first += count

    def _record(self, render: wgpu.GPURenderPassEncoder, draw_data: imgui.ImDrawData) -> None:
        (width, height), scale = _pixels(draw_data), draw_data.framebuffer_scale.x
        render.set_pipeline(self._pipeline)
        render.set_vertex_buffer(0, *self._corners.range)
        buffer, offset, nbytes = self._indices.range
        render.set_index_buffer(buffer, _INDEX_FORMAT, offset, nbytes)
        first_corner = first_index = 0
        bound = None
        for commands in draw_data.cmd_lists:
            for command in commands.cmd_buffer:
                clip = command.clip_rect
                left, top = max(0, int(clip.x * scale)), max(0, int(clip.y * scale))
                right, bottom = min(width, int(clip.z * scale)), min(height, int(clip.w * scale))
                if right <= left or bottom <= top or not command.elem_count:
                    continue
                texture = command.tex_ref.get_tex_id()
                if texture != bound:
                    render.set_bind_group(0, self._textures[texture][1])
                    bound = texture
                render.set_scissor_rect(left, top, right - left, bottom - top)
                render.draw_indexed(
                    command.elem_count,
                    1,
                    first_index + command.idx_offset,
                    first_corner + command.vtx_offset,
                )
            first_corner += commands.vtx_buffer.size()
            first_index += commands.idx_buffer.size()

    def _upload(self, draw_data: imgui.ImDrawData) -> None:
        size = draw_data.display_size
        screen = np.array([2 / size.x, -2 / size.y, -1, 1], np.float32)
        if not np.array_equal(screen, self._screen_written):
            self._gpu.queue.write_buffer(self._screen, 0, screen)
            self._screen_written = screen
        lists = draw_data.cmd_lists
        self._corners.write([c.vtx_buffer for c in lists], imgui.VERTEX_SIZE)
        self._indices.write([c.idx_buffer for c in lists], imgui.INDEX_SIZE)

    # --- the font's texture, which imgui fills as glyphs are needed

    def _update_texture(self, texture: imgui.ImTextureData) -> None:
        status = imgui.ImTextureStatus
        if texture.status == status.want_create:
            self._create_texture(texture)
            self._write_texture(texture, 0, 0, texture.width, texture.height)
        elif texture.status == status.want_updates:
            part = texture.update_rect
            self._write_texture(texture, part.x, part.y, part.w, part.h)
        elif texture.status == status.want_destroy and texture.unused_frames > 0:
            self._textures.pop(texture.tex_id)[0].destroy()
            texture.set_tex_id(0)
            texture.set_status(status.destroyed)

    def _create_texture(self, texture: imgui.ImTextureData) -> None:
        font_texture = self._gpu.memory.create_texture(
            owner=_OWNER,
            label="overlay font",
            size=(texture.width, texture.height, 1),
            format="rgba8unorm",
            usage=wgpu.TextureUsage.COPY_DST | wgpu.TextureUsage.TEXTURE_BINDING,
        )
        screen = {"buffer": self._screen, "offset": 0, "size": 16}
        group = bind(self._gpu, self._layout, screen, self._sampler, font_texture.create_view())
        self._textures[self._next_texture] = font_texture, group
        texture.set_tex_id(self._next_texture)
        self._next_texture += 1

    def _write_texture(
        self, texture: imgui.ImTextureData, x: int, y: int, width: int, height: int
    ) -> None:
        row = 4 * texture.width
        pixels = texture.get_pixels_array().reshape(-1)[y * row + 4 * x :]
        self._gpu.queue.write_texture(
            {"texture": self._textures[texture.tex_id][0], "origin": (x, y, 0)},
            np.ascontiguousarray(pixels),
            {"bytes_per_row": row},
            (width, height, 1),
        )
        texture.set_status(imgui.ImTextureStatus.ok)


def _pixels(draw_data: imgui.ImDrawData) -> tuple[int, int]:
    """Returns the width and the height of the screen in pixels."""
    size, scale = draw_data.display_size, draw_data.framebuffer_scale.x
    return max(1, round(size.x * scale)), max(1, round(size.y * scale))


def _pixels_of(place: Rectangle, draw_data: imgui.ImDrawData) -> tuple[int, int, int, int] | None:
    """Returns the pixels whose centres a rectangle of points covers; None if there are none."""
    scale, (x, y, width, height) = draw_data.framebuffer_scale.x, place
    screen_width, screen_height = _pixels(draw_data)
    left, top = max(0, math.ceil(scale * x - 0.5)), max(0, math.ceil(scale * y - 0.5))
    right = min(screen_width, math.ceil(scale * (x + width) - 0.5))
    bottom = min(screen_height, math.ceil(scale * (y + height) - 0.5))
    return (left, top, right - left, bottom - top) if right > left and bottom > top else None


class _Growing:
    """A GPU buffer with a copy of its bytes in memory; a larger one replaces it when needed."""

    def __init__(self, gpu: cml.Gpu, usage: int) -> None:
        self._gpu, self._usage = gpu, usage | wgpu.BufferUsage.COPY_DST
        self._reserve(_FIRST_BYTES)

    def _reserve(self, nbytes: int) -> None:
        self._bytes = np.zeros(nbytes, np.uint8)
        self._made = self._gpu.memory.allocate(nbytes, self._usage, owner=_OWNER, category="render")

    @property
    def range(self) -> tuple[wgpu.GPUBuffer, int, int]:
        """The buffer, the offset in bytes, and the size in bytes."""
        return self._made.buffer, self._made.offset, self._bytes.nbytes

    def items(
        self, item_type: type[np.generic], first: int, count: int, item_bytes: int
    ) -> npt.NDArray[Any]:
        """Returns the items from ``first`` on that were written last, as rows of ``item_type``."""
        part = self._bytes[first * item_bytes : (first + count) * item_bytes]
        return part.view(item_type).reshape(count, -1)

    def close(self) -> None:
        """Frees the buffer."""
        self._made.free()

    def write(self, vectors: list[Any], item_bytes: int) -> None:
        """Uploads imgui's vectors one after the other to the buffer, and grows it if needed."""
        total = sum(vector.size() for vector in vectors) * item_bytes
        if total > self._bytes.nbytes:
            self._made.free()
            self._reserve(1 << total.bit_length())
        end = 0
        for vector in vectors:
            start, end = end, end + vector.size() * item_bytes
            if end > start:
                ctypes.memmove(self._bytes.ctypes.data + start, vector.data_address(), end - start)
        if total:
            padded = -(-total // 4) * 4
            self._gpu.queue.write_buffer(self._made.buffer, self._made.offset, self._bytes[:padded])
