"""Dear ImGui over the loop's picture, with the engine's panel in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wgpu
from imgui_bundle import imgui
from wgpu.utils.imgui import ImguiRenderer

import cml_engine as cml
from cml_engine import FrameReport, FrameScheduler
from cml_engine.panel import Panel


class Overlay:
    """The Dear ImGui renderer of a game's canvas, with the engine's panel for one network."""

    def __init__(
        self, canvas: Any, device: Any, scheduler: FrameScheduler, session: cml.Session
    ) -> None:
        self._imgui = ImguiRenderer(device, canvas)
        imgui.get_io().set_ini_filename("")
        self._name = session.graph.name
        self.panel = Panel(scheduler, {self._name: session})

    def draw(self, encoder: wgpu.GPUCommandEncoder, view: wgpu.GPUTextureView) -> None:
        """Records a pass that draws the panel over the picture in ``view``."""
        imgui.set_current_context(self._imgui.imgui_context)
        imgui.new_frame()
        self.panel.draw()
        imgui.render()
        target = {"view": view, "load_op": "load", "store_op": "store"}
        render = encoder.begin_render_pass(color_attachments=[target])
        self._imgui.backend.render(imgui.get_draw_data(), render)
        render.end()

    def watch(self, report: FrameReport, measured: list[FrameReport]) -> None:
        """Passes a frame's report, and the reports whose times have arrived, to the panel."""
        self.panel.watch(report, measured)

    @property
    def values(self) -> Mapping[str, object]:
        """The current values of the sliders, by input name."""
        return self.panel.values(self._name)
