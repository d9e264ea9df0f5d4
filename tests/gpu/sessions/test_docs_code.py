"""The code in docs/in_your_engine.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine.gpu.native import limit_instance
from scheduler import FrameScheduler
from tests.fixtures.models import write_model

PAGE = Path(__file__).resolve().parents[3] / "docs/in_your_engine.md"
#: as small as a texture's row may be: 16 texels of 16 bytes
UPRES = """version 1.0;
graph upres(image) -> (enlarged)
{
    image = external<scalar>(shape = [1, 4, 8, 8]);
    doubled = nearest_upsample(image, factor = [2, 2]);
    enlarged = transpose(doubled, axes = [0, 2, 3, 1]);
}
"""
TONE = """version 1.0;
graph tone(image) -> (toned)
{
    image = external<scalar>(shape = [1, 16, 16, 4]);
    toned = sqrt(image);
}
"""


def blocks():
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return {text.partition("\n")[0]: text for text in found}


def block(start):
    (found,) = (text for first, text in blocks().items() if first.startswith(start))
    return compile(found, str(PAGE), "exec")


def test_twenty_lines_are_twenty():
    first = next(iter(blocks().values()))
    assert len([line for line in first.splitlines() if line.strip()]) <= 20


def test_the_page_runs(tmp_path, monkeypatch, capsys, rng):
    write_model(tmp_path / "upres.nnef", UPRES)
    monkeypatch.chdir(tmp_path)
    limit_instance()
    device = wgpu.gpu.request_adapter_sync().request_device_sync()
    usage = wgpu.TextureUsage.COPY_DST | wgpu.TextureUsage.COPY_SRC
    texture = device.create_texture(size=(16, 16, 1), format="rgba32float", usage=usage)
    image = rng.random((1, 4, 8, 8), np.float32)
    page = {"device": device, "image": image, "texture": texture}
    page["render"] = lambda encoder: None
    exec(block("def show"), page)
    exec(block("import cml_engine"), page)
    first = page["job"]
    while page["job"] is first and first.state != "failed":
        page["frame"]()
    assert first.state == "done"
    for _ in range(20):
        page["frame"]()
    seen = read_texture(device, texture)
    np.testing.assert_array_equal(seen, image.repeat(2, 2).repeat(2, 3).transpose(0, 2, 3, 1)[0])

    page["tone"] = cml.Session(cml.load(write_model(tmp_path / "tone.nnef", TONE)), page["gpu"])
    exec(block("newest ="), page)
    assert page["toned"].state == "cancelled" and "queued" in capsys.readouterr().out
    exec(block("def frame_of_a_window"), page)
    page["render"] = failing_every_other_time()
    for _ in range(100):
        page["frame_of_a_window"]()
        if page["newest"].ended:
            break
    assert page["newest"].state == "done"


def test_the_renderer_s_own_time_becomes_the_budget():
    limit_instance()
    adapter = wgpu.gpu.request_adapter_sync()
    if "timestamp-query" not in adapter.features:
        pytest.skip("no timestamp queries")
    device = adapter.request_device_sync(required_features=["timestamp-query"])
    page = {"gpu": cml.Gpu(device=device), "device": device, "FrameScheduler": FrameScheduler}
    page["draw"] = lambda encoder, writes: encoder.begin_compute_pass(timestamp_writes=writes).end()
    exec(block("scheduler ="), page)
    before = page["scheduler"].budget.next_ms()
    for _ in range(30):
        page["timed_frame"]()
    assert page["scheduler"].budget.next_ms() > 2 * before


def failing_every_other_time():
    calls = iter(range(1 << 30))

    def render(encoder):
        if next(calls) % 2 == 0:
            raise RuntimeError("the window was resized")

    return render


def read_texture(device, texture):
    data = device.queue.read_texture({"texture": texture}, {"bytes_per_row": 256}, (16, 16, 1))
    return np.frombuffer(data, np.float32).reshape(16, 16, 4)
