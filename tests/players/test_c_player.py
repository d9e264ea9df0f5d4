"""Tests that the C player agrees with sessions for any slices, and allocates nothing while it
runs."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.gpu.shaders import compilers
from cml_engine.runtime.session import random_inputs
from cml_engine.scheduler.tools.commands import cooked_guesses
from tests.fixtures.cooked import (
    DEVICES,
    chain,
    changed,
    counter,
    few_bits_model,
    put,
    sections,
    selected_model,
    small_inputs,
    small_model,
    with_code,
)
from tests.players.building import (
    INCLUDES,
    PLAYER,
    SANITIZED,
    STRICT,
    build,
    need_gcc,
    run_compiler,
    sources,
)
from tests.players.playing import play, play_in_slices, run_play
from tests.proofs import cooked_networks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with"),
]
MODELS = Path(__file__).resolve().parents[2] / "demo_game" / "models"


@pytest.fixture(scope="module")
def program(gpu):
    return build("play.c", device=True)


@pytest.fixture(scope="module")
def careful(gpu):
    return build("play.c", *SANITIZED, device=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cooked")


def written(folder, name, graph, devices=DEVICES, **options):
    file = folder / f"{name}.cml"
    file.write_bytes(cook(graph, devices, guesses=cooked_guesses(), **options))
    return file


@pytest.fixture(scope="module")
def small(folder):
    return written(folder, "small", small_model())


def types(outputs):
    return {name: array.dtype for name, array in outputs.items()}


@pytest.fixture(scope="module")
def dawn(tmp_path_factory):
    """The player on Dawn instead of wgpu-native.

    ``CML_DAWN`` names a folder with ``include/webgpu/webgpu.h`` and a library ``libwebgpu*.so``.
    Dawn refuses older versions of Mesa; ``VK_ICD_FILENAMES`` may name SwiftShader.
    """
    folder = Path(os.environ.get("CML_DAWN", "/nowhere"))
    library = next(folder.rglob("libwebgpu*.so"), None)
    if library is None:
        pytest.skip("CML_DAWN names no folder with Dawn's library")
    program = tmp_path_factory.mktemp("dawn") / "play"
    flags = (*STRICT, "-DCML_DAWN", *INCLUDES, f"-isystem{folder / 'include'}")
    files = (PLAYER / "tools" / "play.c", *sources(device=True), library)
    run_compiler(need_gcc(), *flags, *files, f"-Wl,-rpath,{library.parent}", "-lm", "-o", program)
    return program


@pytest.mark.parametrize("program", ["careful", "dawn"])
@pytest.mark.parametrize(
    "words",
    ["--budget 0.001", "--budget 4", "--budget 1e9", "--small"],
    ids=str,
)
def test_c_player_agrees_with_the_session(words, program, small, gpu, request):
    """Outputs agree for every budget, and with WebGPU's default limits (``--small``)."""
    program = request.getfixturevalue(program)
    expected = cml.Session(small_model(), gpu).run(small_inputs())
    kinds, is_trusted = types(expected), words != "--small"
    played = play(program, small, small_inputs(), kinds, *words.split(), trusted=is_trusted)
    for name, array in expected.items():
        assert_allclose(played.outputs[name], array.ravel(), rtol=2e-5, atol=2e-5)


def test_inputs_of_onnx_that_have_defaults_play(program, folder, gpu):
    """An initializer that was made an input is an input of the cooked file, also inside an If."""
    pytest.importorskip("onnx")
    from tests.fixtures.onnx_models import load, model, node, subgraph

    branches = [subgraph(f"b = {op}(h, gain)", "", "b: [1, 4]") for op in ("Mul", "Sub")]
    nodes = [
        "total = ReduceSum(x, keepdims=0)",
        "isup = Greater(total, zero)", "h = Neg(x)",
        node("y = If(isup)", then_branch=branches[0], else_branch=branches[1]),
    ]  # fmt: skip
    weights = {"gain": np.arange(4, dtype=np.float32), "zero": np.float32(0)}
    graph = load(model(nodes, "x: [1, 4], gain: [4]", "y: [1, 4]", weights), inputs=["gain"])
    file = written(folder, "optional", graph, player=True)
    gain = np.array([3, 1, 4, 1], np.float32)
    for x in (np.array([[1, 2, 3, 4]], np.float32), np.array([[1, -2, -3, -4]], np.float32)):
        played = play(program, file, {"x": x, "gain": gain}, {"y": np.dtype("f4")})
        expected = -x * gain if x.sum() > 0 else -x - gain
        assert played.outputs["y"].tolist() == expected.ravel().tolist()


@pytest.mark.parametrize(
    "name", ["upres", "population", pytest.param("texture", marks=pytest.mark.long)]
)
def test_any_slices_give_the_same_bits(program, folder, gpu, name):
    """A demo network gives bit-identical outputs in many frames and in one, close to a
    session's."""
    import cml_engine.demo_game.operators  # noqa: F401 - registers the demo's own operators

    graph = cml.load(MODELS / f"{name}.nnef")
    inputs = random_inputs({n: graph.facts[n] for n in graph.inputs}, seed=3)
    expected = cml.Session(graph, gpu).run(inputs)
    file = written(folder, name, graph, player=True)
    found = play_in_slices(program, file, inputs, expected, ("2", "1e9"))
    assert found.frames[0] > found.frames[1]
    assert found.same_slices and found.off < 2e-5


def test_an_output_with_a_counted_axis_comes_with_its_number(program, folder, gpu):
    """A counted output has its largest shape, with 0 behind the elements, and a number."""
    x = np.float32([[3, -1, 2, 0, -7, 5, -2]])
    expected = cml.Session(selected_model(), gpu).run({"x": x})
    assert expected["found"].tolist() == [[3, 2, 5]]
    file = written(folder, "selected", selected_model())
    played = play(program, file, {"x": x}, types(expected))
    assert played.outputs["found"].tolist() == [3, 2, 5, 0, 0, 0, 0]
    assert played.outputs["count"].tolist() == [3]


@pytest.mark.parametrize(("bits", "share"), [(8, 0.5), (4, 0.35)])
def test_weights_in_few_bits(bits, share, program, folder, gpu):
    """A file for players keeps weights in few bits, and C's results are bit-identical."""
    graph, inputs = few_bits_model(bits)
    expected = cml.Session(graph, gpu).run(inputs)
    options = {"player": True, "golden": False}
    file = written(folder, f"few{bits}", graph, **options)
    assert play_in_slices(program, file, inputs, expected, ("0.5", "1e9")).same_bits
    floats = graph.with_(constants={n: np.array(a) for n, a in graph.constants.items()})
    small, large = (len(cook(one, ["software"], **options)) for one in (graph, floats))
    assert small < large - sum(graph.constants[name].nbytes for name in "fm") * (1 - share)


@pytest.mark.long
@pytest.mark.parametrize("name", ["animevideo", "diffusion", "stylegan2"])
def test_large_networks_play(name, tmp_path, gpu):
    """Large networks give bit-identical outputs for all slice sizes in C, and agree with a session.

    `python -m tests.proofs.cooked_networks --in-c` prints their results.
    """
    assert cooked_networks.check_in_c(name, gpu, tmp_path)


def test_steady_state_allocates_nothing(program, small):
    """Frames of the steady state allocate no host memory and create no GPU object.

    Run the program with ``--frames 10000`` for a longer test.
    """
    told = play(program, small, small_inputs(), {}, "--frames", "400", "--budget", "0.05").told
    assert told["frames"] >= 400
    assert told["made"] == {"host": 0, "buffers": 0, "bind_groups": 0, "pipelines": 0}


def test_ten_slices_encode_within_150_microseconds(program, folder):
    """Encoding ten slices takes less than 150 us (median) and creates no objects.

    It takes some 30 us on an idle machine (docs/ship_it.md).
    """
    file, inputs = (
        written(folder, "chain", chain(), player=True),
        {"y0": np.ones((1, 8), np.float32)},
    )
    # frames wait for the device: costs that are not known yet limit the slices of a frame
    words = ("--slices", "10", "--frames", "500", "--budget", "1e9", "--wait")
    told = play(program, file, inputs, {}, *words).told
    assert len(told["encode_us"]) > 300
    assert np.median(told["encode_us"]) < 150
    assert not any(told["made"].values())


def test_inputs_of_a_wrong_size_are_refused(careful, small):
    file = small.with_suffix(".short")
    np.zeros(7, np.float32).tofile(file)
    run = run_play(careful, small, "--input", f"image={file}")
    assert run.returncode == 1
    assert "input 'image': wanted 432 bytes, got 28" in run.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "nan"), "usage: "),
        (("--frames", "3x"), "usage: "),
        (("--input", "picture=p.bin"), "the network has no such input"),
        (("--output", "enlarged=e.bin"), "the network has no such output"),
    ],
)
def test_words_that_play_cannot_use_are_refused(careful, small, words, said):
    run = run_play(careful, small, *words)
    assert run.returncode in (1, 2) and said in run.stderr


@pytest.fixture(scope="module")
def cooked():
    return cook(counter(), ["portable"], player=True, guesses=cooked_guesses()[:1])


def test_device_below_requirements_names_the_limit(careful, cooked, tmp_path):
    file = tmp_path / "needs.cml"
    file.write_bytes(changed(cooked, "plan", put(64, "<I", 1 << 30)))
    run = run_play(careful, file)
    assert run.returncode == 1
    assert "needs maxComputeInvocationsPerWorkgroup 1073741824" in run.stderr


def test_damaged_plan_bytes_are_memory_safe(careful, cooked, tmp_path):
    """A wrong byte in the plan gives an error or a run, but no memory error and no panic."""
    chance = random.Random(1)
    size = next(n for tag, _, n in sections(cooked) if tag == "plan")
    file = tmp_path / "stranger.cml"
    for _ in range(4):
        file.write_bytes(changed(cooked, "plan", put(chance.randrange(size), "B", 0x41)))
        run = run_play(careful, file, "--most", "40")  # it may request endless work
        assert run.returncode in (0, 1), run.stderr
        assert "Sanitizer" not in run.stderr and "panicked" not in run.stderr


@pytest.mark.parametrize(
    ("language", "trust", "said"),
    [
        ("WGSL", (), "the device refused"),
        ("WGSL", ("--trusted",), "the device refused"),
        # wgpu-native would end the process, because untrusted SPIR-V is not validated
        ("SPIR-V", (), "needs kernels in WGSL"),
    ],
)
def test_invalid_shader_code_is_an_error(careful, cooked, tmp_path, language, trust, said):
    """A cooked file whose kernels are not valid shader code gives an error and no panic.

    Its hashes match.
    """
    nonsense = {"SPIR-V": b"\x03\x02\x23\x07" + 60 * b"no", "WGSL": b"this is no WGSL"}[language]
    file = tmp_path / "nonsense.cml"
    code = (nonsense, b"") if language == "SPIR-V" else (b"", nonsense)
    file.write_bytes(with_code(cooked, *code))
    run = run_play(careful, file, *trust)
    assert run.returncode == 1
    assert said in run.stderr and "panicked" not in run.stderr


CASES = (
    "runs", "chain", "slots", "abandoned", "dropped", "harmed", "many", "nonsense", "unloads",
    "taken", "requirements", "lost",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_host_behaviour_cases_end_as_expected(case, folder, gpu):
    """Each case of ``tests/players/behaviour.c``, which describes them, ends as expected."""
    program = build("behaviour.c", *SANITIZED, device=True)
    run = run_play(program, case, written(folder, "counter", counter(), player=True))
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{case}: as wanted\n"


def test_the_wrapper_for_cpp(folder, gpu):
    program = build("wrapper.cpp", *SANITIZED, device=True)
    run = run_play(program, written(folder, "counter", counter(), player=True))
    assert (run.returncode, run.stdout) == (0, "as wanted\n"), run.stderr


@pytest.mark.parametrize("calls", [4000, pytest.param(100_000, marks=pytest.mark.long)])
def test_random_call_sequences_are_memory_safe(calls, folder, gpu):
    """Random calls, also with stale handles or without memory, cause no leak or invalid access.

    ``tests/players/random_calls.c`` has the calls.
    """
    program = build("random_calls.c", *SANITIZED, device=True)
    file = written(folder, "counter", counter(), player=True)
    run = run_play(program, str(calls), "1", file)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"{calls} calls, ")


TWICE = """version 1.0;
graph twice(image) -> (larger)
{
image = external<scalar>(shape = [1, 3, 48, 80]);
filter = variable<scalar>(shape = [3, 3, 1, 1], label = 'filter');
mixed = conv(image, filter, 0.0);
larger = nearest_upsample(mixed, factor = [2, 2]);
}
"""


def test_c_example_shows_the_network_output(folder, gpu):
    """The C example's picture shows the scene on the left and the network's output on the right.

    The network swaps red and blue.
    """
    swap = np.eye(3, dtype=np.float32)[::-1].reshape(3, 3, 1, 1)
    graph = cml.load(cml.nnef.MemoryModel(TWICE, {"filter": np.ascontiguousarray(swap)}))
    file, picture = written(folder, "twice", graph, player=True), folder / "scene.ppm"
    run = run_play(build("scene.c", device=True), file, picture, "40", "2")
    assert run.returncode == 0, run.stderr
    assert "pictures in 40 frames" in run.stdout
    _, size, _, texels = picture.read_bytes().split(b"\n", 3)
    width, height = map(int, size.split())
    found = np.frombuffer(texels, np.uint8).reshape(height, width, 3).astype(int)
    left, right = found[10, 10], found[10, -10]  # the sky is the same everywhere
    assert left[2] > left[0] + 50
    assert_allclose(right, left[::-1], atol=2)
