"""Tests of CompileOptions(winograd=): values stay in their windows, on every backend and cooked."""

from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import PROFILES, cook
from cml_engine.tools import cli
from cml_engine.tools.report.model_info import CookedInfo
from tests.fixtures.cooked import DEVICES
from tests.fixtures.graphs import Net
from tests.fixtures.texels import texture_of

pytestmark = pytest.mark.gpu

SIDE, CHANNELS = 40, 32
BRIGHT, AT = (0, 5, 20, 21), np.s_[:, :, 18:23, 19:24]
DIRECT = cml.CompileOptions(winograd=False)
TEXT = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(x) -> (y)
{
    x = external(shape = [1, 3, 40, 40]);
    w = variable(shape = [32, 3, 3, 3], label = 'w');
    v = variable(shape = [3, 32, 3, 3], label = 'v');
    u = variable(shape = [32, 32, 3, 3], label = 'u');
    a = relu(conv(x, w));
    b = conv(a, u);
    y = conv(b, v);
}
"""


def picture(count=CHANNELS):
    rng = np.random.default_rng(0)
    return rng.uniform(0.5, 1.5, (1, count, SIDE, SIDE)).astype(np.float32)


def deep(convs):
    """Returns a graph of that many 3x3 convolutions, which Winograd's tiles can compute."""
    net, y = Net(*picture().shape), "x"
    for _ in range(convs):
        y = net.conv(y, CHANNELS)
    return net.graph(y)


def tiled(session):
    """Returns True if the session's plan has Winograd's tiles."""
    return any(Path(step.path).stem == "winograd" for step in session.plan.steps)


def run(session, x):
    return next(iter(session.run({"x": x}).values())).astype(np.float64)


def planted(value, count=CHANNELS):
    x = picture(count)
    x[(*BRIGHT[:1], BRIGHT[1] % count, *BRIGHT[2:])] = value
    return x


def sessions(graph, gpu, options):
    """Yields a session of each kind: on both backends, from a cooked file, and at another shape."""
    yield cml.Session(graph, "cpu", options) if options.storage == "float" else None
    yield cml.Session(graph, gpu, options)
    cooked = cml.load_cooked(cook(graph, DEVICES, options), trusted=True)
    yield cml.Session(cooked, gpu, cml.CompileOptions(storage=options.storage))
    yield cml.Session(cooked, "cpu") if options.storage == "float" else None


@pytest.mark.parametrize("convs", [1, 3])
@pytest.mark.parametrize("storage", ["float", "half"])
def test_without_winograd_values_stay_in_their_windows(convs, storage, gpu):
    """Results that do not depend on a pixel keep their bits, for a NaN and for a bright one."""
    graph, reach = deep(convs), np.s_[:, :, 20 - convs : 21 + convs, 21 - convs : 22 + convs]
    options = cml.CompileOptions(winograd=False, storage=storage)
    for session in filter(None, sessions(graph, gpu, options)):
        assert session.plan is None or not tiled(session)
        before = run(session, picture())
        for value in (np.nan, np.inf, 1e3, 1e4):
            after = run(session, planted(value))
            assert not (after[reach] == before[reach]).any()
            after[reach] = before[reach]
            assert np.array_equal(after, before), (session.backend, value)


def test_the_stated_bound_of_winograd_holds(gpu):
    """Beside a pixel R times as bright the error is at most 2e-6 * R of the results, as documented;
    by windows it is that of sums in another order."""
    graph = deep(1)
    tiles, windows = cml.Session(graph, gpu), cml.Session(graph, gpu, DIRECT)
    assert tiled(tiles) and not tiled(windows)
    typical = np.sqrt(np.mean(run(windows, picture()) ** 2))
    for ratio in (1e3, 1e4, 1e5, 1e6):
        x = picture()
        x[:, :, 20, 21] = ratio
        right = run(cml.Session(graph, "cpu", DIRECT), x)
        outside = np.ones(right.shape, bool)
        outside[:, :, 19:22, 20:23] = False
        errors = [np.abs(run(s, x) - right)[outside].max() / typical for s in (tiles, windows)]
        assert 1e-7 * ratio < errors[0] < 2e-6 * ratio
        assert errors[1] < 1e-5


def test_presets_take_the_option():
    assert cml.CompileOptions.preset("shipping", winograd=False).winograd is False
    assert cml.CompileOptions.preset("shipping").winograd is None
    assert cml.CompileOptions.preset("debug").winograd is False
    with pytest.raises(cml.InputError, match="winograd"):
        cml.CompileOptions(winograd="no")


def test_cook_states_it_for_every_profile():
    plain = cml.load_cooked(cook(deep(1), list(PROFILES)))
    direct = cml.load_cooked(cook(deep(1), list(PROFILES), DIRECT))
    for cooked, expected in ((plain, True), (direct, False)):
        for form in cooked.cooked_form.plans:
            steps = form.plan(form.profile).steps
            if expected and form.profile != "software":
                continue  # a rule of hardware may choose another kernel for so few channels
            assert any(Path(step.path).stem == "winograd" for step in steps) is expected
        assert ("without Winograd" in str(CookedInfo.of(cooked))) is not expected


def test_a_cooked_file_with_tiles_is_planned_again_without(gpu):
    cooked = cml.load_cooked(cook(deep(1), DEVICES), trusted=True)
    session = cml.Session(cooked, gpu, DIRECT)
    assert not tiled(session)
    assert np.isnan(run(session, planted(np.nan))).any((0, 1)).sum() == 9


# ---------------------------------------------------------------- networks that get it themselves


def model(tmp_path, quant=""):
    """Returns a model of three convolutions on a picture, with a line of ``graph.quant``."""
    cml.save(cml.load(cml.nnef.MemoryModel(TEXT), random_weights=0), tmp_path / "net")
    if quant:
        (tmp_path / "net" / "graph.quant").write_text(quant)
    return tmp_path / "net"


@pytest.mark.parametrize(
    ("quant", "why"),
    [
        ("", ""),
        ('"x": linear_quantize(min = 0.0, max = 1.0, bits = 16);', ""),
        ('"x": linear_quantize(min = 0.0, max = 65504.0, bits = 16);',
         "tensor 'x' is declared from 0 to 65504"),
        ('"x": zero_point_linear_quantize(zero_point = 0, scale = 1.0, bits = 16, signed = true, '
         "symmetric = false);", "tensor 'x' is declared from -65536 to 65536"),
    ],
)  # fmt: skip
def test_a_declared_range_decides(quant, why, tmp_path, gpu, capsys):
    folder = model(tmp_path, quant)
    assert tiled(cml.Session(cml.load(folder), gpu)) is not bool(why)
    assert tiled(cml.Session(cml.load(folder), gpu, cml.CompileOptions(winograd=True)))
    cli.main(["info", str(folder)])
    printed = capsys.readouterr().out
    assert (f"by their windows, without Winograd: {why}" in printed) is bool(why)
    cli.main(["info", str(folder), "--no-winograd"])
    assert "without Winograd: winograd=False" in capsys.readouterr().out


def test_a_slider_of_a_wide_range_decides(gpu):
    for high, expected in ((4.0, True), (5000.0, False)):
        slider = cml.Slider("scaled.y", 0.0, high, "exposure")
        text = TEXT.replace("a = relu(conv(x, w))", "scaled = x * 2.0; a = relu(conv(scaled, w))")
        graph = cml.load(cml.nnef.MemoryModel(text), sliders={"exposure": slider}, random_weights=0)
        assert tiled(cml.Session(graph, gpu)) is expected


def texture(gpu, name):
    kind = {"rgba16float": np.float16, "r32float": np.float32}.get(name, np.uint8)
    texels = np.ones((SIDE, SIDE, 4), kind)
    return texture_of(gpu.device, texels, name)


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [("rgba8unorm", 1.0, True), ("rgba8unorm", 5000.0, False), ("rgba16float", 1.0, False)],
)
def test_a_texture_of_floats_decides(name, scale, expected, gpu, host, tmp_path):
    """The session is compiled again at its first such texture, in a run and in a job."""
    graph = cml.load(model(tmp_path))
    value = cml.TextureInput(texture(gpu, name), scale, channels="rgb")
    by_run = cml.Session(graph, gpu)
    y = run(by_run, value)
    assert tiled(by_run) is expected
    by_job = cml.Session(graph, gpu)
    assert tiled(by_job)
    job = host.submit(by_job, {"x": value})
    found = host.finish(job)
    assert tiled(by_job) is expected
    assert np.array_equal(next(iter(found)), y)
    requested = cml.Session(graph, gpu, cml.CompileOptions(winograd=True))
    run(requested, value)
    assert tiled(requested)


def test_validate_hdr_reports_what_reaches_too_far(tmp_path, gpu, capsys):
    folder = str(model(tmp_path))
    assert cli.main(["validate", folder, "--hdr"]) == 1
    printed = capsys.readouterr().out
    assert "input 'x' at [0, 0, 20, 20]" in printed and "--no-winograd" in printed
    assert "NaN          reaches 147 of 4800 results, and makes" in printed
    assert cli.main(["validate", folder, "--hdr", "--no-winograd"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("reaches 147 of 4800 results and no others") == 4


def test_an_onnx_file_cannot_state_it(tmp_path, capsys):
    command = ["export", str(model(tmp_path)), str(tmp_path / "net.onnx"), "--no-winograd"]
    assert cli.main(command) == 2
    assert "leave --no-winograd out" in capsys.readouterr().err
