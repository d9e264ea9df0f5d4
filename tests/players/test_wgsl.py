"""Tests that untrusted WGSL that would crash a compiler is refused before a compiler reads it.

The rules are the same in Python and C.
"""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook, wgsl
from cml_engine.cooked.kernels import read_kernels
from cml_engine.cooked.reader import Container
from cml_engine.cooked.wgsl import check_wgsl
from cml_engine.gpu.shaders import compilers
from tests.fixtures.cooked import counter, small_inputs, small_model, with_wgsl
from tests.fixtures.frames.turns import turns
from tests.fixtures.hostile_wgsl import FEW, HOSTILE, MANY, kernel
from tests.players.building import SANITIZED, build
from tests.players.playing import run_play

needs_compiler = pytest.mark.skipif(
    compilers.version() is None, reason="no HLSL compiler to cook with"
)


def is_taken(text):
    try:
        check_wgsl(text, "kernel")
    except cml.CorruptArtifact:
        return False
    return True


@pytest.fixture(scope="module")
def own():
    """The WGSL of a small network's kernels."""
    file = Container(memoryview(cook(small_model())), None)
    return [kernel.kernel.code() for kernel in read_kernels(file, trusted=False)]


@pytest.mark.parametrize("name", HOSTILE)
def test_shaders_that_crash_the_compiler_are_refused(name):
    assert is_taken(HOSTILE[name](FEW)) == (name not in REFUSED_ALWAYS)
    assert not is_taken(HOSTILE[name](MANY))


REFUSED_ALWAYS = ("arrays that double", "constants that wait", "hidden separators")


@needs_compiler
def test_kernels_of_our_own_are_far_from_the_limits(own, monkeypatch):
    for name in ("WGSL", "DEPTH", "PENDING", "NAMES", "ELEMENTS", "EXPANDED"):
        monkeypatch.setattr(wgsl, f"MOST_{name}", getattr(wgsl, f"MOST_{name}") // 3)
    assert own and all(is_taken(text) for text in own)


PLAIN = ("4", "4u", "i32(4)", " u32(4) ", "4096")
NOT_PLAIN = ("", "n", "2 * 2", "1 << 31", "4,", "0x4", "4097", "9999999999")


@pytest.mark.parametrize("size", [*PLAIN, *NOT_PLAIN])
def test_array_sizes_are_plain_numbers(size):
    text = kernel("", f"var<workgroup> a: array<f32, {size}>;")
    assert is_taken(text) == (size in PLAIN)


def mutated(texts, count, seed=0):
    """Yields ``count`` random texts from ``texts``, with tokens removed, repeated or inserted."""
    chance = random.Random(seed)
    tokens = [*"()[]{}<>;,.+-/*&|=!@:_0", "array<", "array", "else", "fn f", "struct S", "const c",
              "S", "f(", "c", "//", "\n", "ä", "<=", "->", ">>", "i32(", "array<S, 9>"]  # fmt: skip
    for _ in range(count):
        parts = re.split(r"(\W)", chance.choice(texts))
        for _ in range(chance.randint(1, 4)):
            at, end = sorted(chance.randrange(len(parts)) for _ in range(2))
            change = chance.randrange(4)
            if change == 0:
                del parts[at : min(end, at + chance.choice((1, 5, 100)))]
            elif change == 1:
                parts[at:at] = parts[at : min(end, at + 400)] * chance.choice((1, 2, 40))
            else:
                parts.insert(at, chance.choice(tokens) * chance.choice((1, 1, 80)))
        yield "".join(parts)


@needs_compiler
def test_all_players_give_equal_verdicts_on_wgsl(own, tmp_path):
    lengths = (FEW, 60, 70, 130, 300, 513, 4097, 30_000)
    texts = [text(n) for text in HOSTILE.values() for n in lengths]
    texts += [*mutated([*texts[:: len(lengths)], *own], 600)]
    expected = [is_taken(text) for text in texts]
    assert 100 < sum(expected) < len(texts) - 100
    program = build("check.c", "-O1", *SANITIZED)
    files = [tmp_path / str(i) for i in range(len(texts))]
    for path, text in zip(files, texts, strict=True):
        path.write_text(text)
    run = run_play(program, "--wgsl", *files)
    assert run.returncode == 0, run.stderr
    assert [line == "taken" for line in run.stdout.splitlines()] == expected


@needs_compiler
@pytest.mark.gpu
def test_a_session_and_the_c_player_refuse_the_file(gpu, tmp_path):
    data = with_wgsl(cook(small_model(), ["portable"], golden=False), HOSTILE["a sum"](10_000))
    with pytest.raises(cml.CorruptArtifact, match="its WGSL"):
        cml.Session(cml.load_cooked(data), gpu).run(small_inputs())
    file = tmp_path / "hostile.cml"
    file.write_bytes(data)
    run = run_play(build("play.c", *SANITIZED, device=True), file)
    assert run.returncode == 1 and "the WGSL of kernel" in run.stderr, run.stderr


@pytest.fixture(scope="module")
def too_large():
    """The bytes of a cooked file whose kernels declare an array larger than its tensor.

    Players detect that when they encode.
    """
    text = kernel("").replace("array<f32>", "array<f32, 4096>")
    return with_wgsl(cook(counter(), ["portable"], golden=False, player=True), text)


@needs_compiler
@pytest.mark.gpu
def test_a_kernel_that_the_device_refuses_fails_before_the_frame(too_large, gpu, tmp_path):
    x = {"x": np.zeros((1, 4), np.float32)}
    graph = cml.load_cooked(too_large)
    with pytest.raises(
        cml.DeviceError, match="(?s)kernel .* size 16 where the shader expects 16384"
    ):
        cml.Session(graph, gpu)
    session = cml.Session(graph, gpu, deferred=True)
    scheduler = cml.FrameScheduler(gpu, budget_ms=4.0)
    job = scheduler.submit(session, x)
    for _ in turns():
        encoder = gpu.device.create_command_encoder()
        scheduler.encode(encoder)
        gpu.device.queue.submit([encoder.finish()])
        scheduler.end_frame()
        if job.state == "failed":
            break
    assert job.state == "failed"
    file = tmp_path / "large.cml"
    file.write_bytes(too_large)
    run = run_play(build("play.c", *SANITIZED, device=True), file)
    assert run.returncode == 1 and "panicked" not in run.stderr
    assert "the device refused" in run.stderr and "16384" in run.stderr
