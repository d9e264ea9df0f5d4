"""The part ``frames``: budgets beside a picture, and sliced runs against unsliced ones."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from cml_engine.gpu.gpu import Gpu
from cml_engine.io.json_files import Json
from cml_engine.runtime.session import Session, random_inputs
from cml_engine.scheduler.planning.cost_model import CostModel, FirstGuess
from cml_engine.scheduler.tools.measure import measure_frames
from cml_engine.tools.selftest import random_networks
from cml_engine.tools.selftest.context import SelfTest, expect
from cml_engine.tools.selftest.networks import random_graph

_BUDGETS_MS = (1.0, 2.0, 4.0)
_FRAMES, _QUICK_FRAMES = 600, 40
#: milliseconds of the picture
_PICTURE_MS = 4.0
#: extents of the network's picture; the first that takes three times the largest budget is chosen
_SIDES = (16, 32, 64, 128, 256, 384, 512)
_LEAST_RUNS = 3
#: the largest share of frames over budget on hardware; on a software driver other programs take
#: the cores, so frames over budget say nothing about the engine there
_MOST_OVER = 0.05


def check_frames(test: SelfTest) -> None:
    """Runs a network in frames under each budget, beside a picture that takes some milliseconds.

    Sliced runs must be bit-identical to unsliced ones; hardware must keep the budget.
    """
    gpu = test.gpu
    if not gpu.has_timestamps:
        test.part.skipped = "the device has no timestamp queries"
        return
    session = _long_network(gpu)
    inputs = random_inputs(session.inputs)
    picture = Picture(gpu, _PICTURE_MS)
    model = CostModel(guess=FirstGuess.for_device(gpu.name))
    count = _QUICK_FRAMES if test.quick else _FRAMES
    rows: dict[str, Json] = {}
    notes = []
    for budget_ms in _BUDGETS_MS:
        name = f"{budget_ms:g} ms"

        def show(done: int, name: str = name) -> None:
            test.show(f"frames: {name}", done, count)

        test.begin(f"frames: {name}")
        report = measure_frames(
            session, inputs, budget_ms=budget_ms, frames=count,
            cost_model=model, render=picture.record, progress=show,
        )  # fmt: skip
        share = report.frames_over_budget / max(1, report.frames)
        with test.check(f"{name}, sliced against unsliced"):
            expect(report.identical, f"the bits of '{report.model}' differ")
        if not gpu.limits.software:
            with test.check(f"{name}, budget"):
                expect(share <= _MOST_OVER, f"{100 * share:.1f} % of the frames took longer")
        rows[name] = asdict(report)
        notes.append(
            f"{name}: P99 {report.slices_ms.p99:.2f}, {100 * share:.1f} % over, "
            f"{report.sliced_over_unsliced:.2f} of unsliced"
        )
    test.part.facts |= {"picture_turns": picture.turns, "budgets": rows}
    test.part.note = "; ".join(notes)


def _long_network(gpu: Gpu) -> Session:
    """Returns a session whose run takes some frames of the largest budget on this device."""
    for side in _SIDES:
        session = Session(random_graph(random_networks.rrdb(side)), gpu)
        run = session.timer()
        run()
        if min(run(), run()) > _LEAST_RUNS * max(_BUDGETS_MS):
            break
    return session


class Picture:
    """A full-screen pass whose length is adjusted, like the picture of a game."""

    #: a triangle that covers the target, and arithmetic for each of its pixels
    _WGSL = """
        @group(0) @binding(0) var<uniform> turns: vec4<u32>;
        @vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
            return vec4<f32>(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
        }
        @fragment fn pixel(@builtin(position) at: vec4<f32>) -> @location(0) vec4<f32> {
            var colour = fract(at.xyxy * 0.013);
            for (var i = 0u; i < turns.x; i++) {
                colour = fract(colour * 1.7 + colour.wxyz * 0.3);
            }
            return colour;
        }"""
    _SIZE = (512, 512, 1)
    _FORMAT = "rgba8unorm"
    _MOST_TURNS = 1 << 20

    def __init__(self, gpu: Gpu, ms: float) -> None:
        device = gpu.device
        module = device.create_shader_module(code=self._WGSL)
        self._pipeline: Any = device.create_render_pipeline(
            layout="auto",
            vertex={"module": module, "entry_point": "corner", "buffers": []},
            primitive={"topology": "triangle-list"},
            fragment={
                "module": module, "entry_point": "pixel", "targets": [{"format": self._FORMAT}]
            },
        )  # fmt: skip
        texture = device.create_texture(
            size=self._SIZE, format=self._FORMAT, usage="RENDER_ATTACHMENT"
        )
        self._view: Any = texture.create_view()
        self._gpu = gpu
        self._uniform: Any = device.create_buffer(size=16, usage="UNIFORM|COPY_DST")
        self._group: Any = device.create_bind_group(
            layout=self._pipeline.get_bind_group_layout(0),
            entries=[{"binding": 0, "resource": {"buffer": self._uniform, "size": 16}}],
        )
        self.turns = 1
        self._ms()  # the driver compiles at the first draw
        while self._ms() < ms and self.turns < self._MOST_TURNS:
            self.turns *= 2
        self.turns = max(1, round(self.turns * ms / max(self._ms(), ms)))
        self._ms()

    def _ms(self) -> float:
        """Returns the shortest of three pictures' milliseconds, by the host's clock."""
        self._gpu.queue.write_buffer(self._uniform, 0, np.array([self.turns, 0, 0, 0], np.uint32))
        times = []
        for _ in range(3):
            encoder = self._gpu.device.create_command_encoder()
            self.record(encoder)
            start = time.perf_counter()
            self._gpu.queue.submit([encoder.finish()])
            self._gpu.wait()
            times.append(1e3 * (time.perf_counter() - start))
        return min(times)

    def record(self, encoder: Any) -> None:
        """Records the pass with a frame's encoder."""
        target = {
            "view": self._view, "load_op": "clear", "store_op": "store",
            "clear_value": (0, 0, 0, 1),
        }  # fmt: skip
        draw = encoder.begin_render_pass(color_attachments=[target])
        draw.set_pipeline(self._pipeline)
        draw.set_bind_group(0, self._group)
        draw.draw(3)
        draw.end()
