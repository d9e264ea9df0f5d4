"""Tests of the commands' options for models: weights, shapes, layouts and 16 bits."""

import json
import re

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.formats.loading import save
from cml_engine.runtime.node_check import measure_errors
from cml_engine.tools.cli.common import compile_options
from cml_engine.tools.cli.main import parser
from tests.fixtures.graphs import Net
from tests.fixtures.models import write_model
from tests.nnef.files.test_tensor_file import safetensors

TEXT = """version 1.0;
graph net(image) -> (out)
{
    image = external<scalar>(shape = [1, 3, 4, 4]);
    f = variable<scalar>(shape = [3, 3, 1, 1], label = 'f');
    out = conv(image, f, 0.0);
}
"""
FILTER = np.arange(9, dtype=np.float32).reshape(3, 3, 1, 1)


@pytest.fixture
def bare(tmp_path):
    """The path of an NNEF folder that has a network's text but not its weights."""
    return str(write_model(tmp_path / "net", TEXT))


def test_weights_of_safetensors(bare, tmp_path, run_cml):
    file = tmp_path / "net.safetensors"
    file.write_bytes(safetensors(f=("F32", FILTER)))
    np.save(tmp_path / "in.npy", np.ones((1, 3, 4, 4), np.float32))
    files = f"-i image={tmp_path / 'in.npy'} -o out={tmp_path / 'out.npy'}"
    run_cml(f"run {bare} --weights {file} --backend cpu {files}")
    assert np.load(tmp_path / "out.npy")[0, :, 0, 0].tolist() == [3, 12, 21]
    run_cml(f"convert {bare} {tmp_path}/baked --weights {file}")
    np.testing.assert_array_equal(cml.load(tmp_path / "baked").constants["f"], FILTER)


def test_files_without_the_weights_are_refused(bare, tmp_path, refused):
    file = tmp_path / "net.safetensors"
    file.write_bytes(safetensors(g=("F32", FILTER)))
    assert "has no tensor 'f'" in refused(f"info {bare} --weights {file}")
    for name, what in (("none", "there is no such file"), (tmp_path, "it is a folder"),
                       ("a\0b", "there is no such file"), ("", "it is a folder")):  # fmt: skip
        err = refused(f"info {bare} --weights", name)
        assert f"cannot read the weights {str(name)!r}: " in err and what in err
    text = f"{bare}/graph.nnef"
    assert "no safetensors file" in refused(f"info {bare} --weights {text}")


def test_random_weights_are_reported(bare, run_cml):
    note = "RANDOM (seed 0): 1 tensors, 9 values"
    for command in (f"info {bare}", f"rank {bare} --runs 1 --backend cpu"):
        out, err = run_cml(f"{command} --random-weights")
        assert out.count(note) == 1 and not err
        out, err = run_cml(f"{command} --json --random-weights 0")
        assert json.loads(out) and (note in out) + (note in err) == 1
    out, err = run_cml(f"rank {bare} --csv --runs 1 --backend cpu --random-weights")
    assert note in err and note not in out


def test_run_refuses_random_weights(bare, refused):
    err = refused(f"run {bare} --random-weights -i image=x.npy")
    assert "their results mean nothing" in err


def test_the_layout_of_textures(tmp_path, run_cml, refused):
    source = write_model(tmp_path / "net", TEXT, f=FILTER)
    made = tmp_path / "made"
    command = f"convert {source} {made}"
    run_cml(f"{command} --layout nhwc --rgba")
    assert cml.load(made).facts["out"].shape == (1, 4, 4, 4)
    assert "is not empty" in refused(f"{command} --layout nhwc")
    assert "--rgba needs --layout nhwc" in refused(f"{command} --rgba")
    (tmp_path / "file").write_text("")
    err = refused(f"convert {source} {tmp_path}/file/m --layout nhwc")
    assert "cannot write" in err


def test_convert_refuses_unsupported_options(tmp_path, refused):
    err = refused(f"convert m.param {tmp_path}/m --weights w.safetensors")
    assert "'m.param': weights cannot be given for ncnn" in err
    more = "--placeholders --weights w.safetensors"
    err = refused(f"convert m.onnx {tmp_path}/m {more}")
    assert "--placeholders keeps the model as its file has it: leave --weights out" in err
    assert "there is no 'none'" in refused(f"convert none {tmp_path}/m")


OPEN = """version 1.0;
extension tract_symbol H;
graph net(image, other) -> (out)
{
    image = external<scalar>(shape = [1, 3, H, 5]);
    other = external<scalar>(shape = [1, 3, H, 5]);
    out = image + other;
}
"""


def test_open_extent_is_taken_from_the_input_file(tmp_path, run_cml, refused):
    net = str(write_model(tmp_path / "net", OPEN))
    image = np.arange(60, dtype=np.float32).reshape(1, 3, 4, 5)
    np.savez(tmp_path / "both.npz", image=image, other=2 * image)
    np.save(tmp_path / "short.npy", image[:, :2])
    np.save(tmp_path / "flat.npy", image[0])
    (tmp_path / "none.npy").write_bytes(b"no array")
    both, out = f"{tmp_path / 'both.npz'}", tmp_path / "out.npy"
    inputs = f"-i image={both} -i other={both}"
    run_cml(f"run {net} {inputs} -o out={out} --backend cpu")
    assert np.array_equal(np.load(out), 3 * image)
    for name, said in {
        "short": "is [1, 2, 4, 5]; the model wants [1, 3, ?, 5]",
        "flat": "is [3, 4, 5]; the model wants [1, 3, ?, 5]",
        "none": "cannot read",
        "absent": "no such file",
    }.items():
        assert said in refused(f"run {net} -i image={tmp_path / name}.npy")
    assert "leaves 'H' open: say --shape" in refused(f"run {net} -i wrong=x.npy")
    taller = "is [1, 3, 4, 5]; the model wants"
    assert taller not in refused(f"run {net} --shape image=1,3,6,5 {inputs}")


def write(folder, scale=1.0, channels=8):
    """Writes a model of three convolutions to a folder, and returns the folder's path as text.

    The results of the second convolution are multiplied by ``scale``.
    """
    net = Net(1, 3, 12, 12)
    h = net.op("tanh", net.conv("x", channels))
    h = net.op("mul", net.op("tanh", net.conv(h, channels)), net.constant(scale))
    graph = net.graph(net.conv(h, 3))
    save(graph, folder)
    return str(folder)


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "small.nnef")


def test_info_plans_for_16_bits(model, run_cml):
    told = []
    for half in ("", "--half"):
        told.append(json.loads(run_cml(f"info {model} --json {half}").out))
    full, half = told
    assert (full["storage"], half["storage"]) == ("float", "half")
    for what in ("arena_bytes", "weights_bytes", "moved_bytes"):
        assert half[what] < full[what]
    assert "16 bits" in run_cml(f"info {model} --half").out


def test_run_and_rank(model, tmp_path, gpu, run_cml):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.standard_normal((1, 3, 12, 12), np.float32))
    results = []
    for i, half in enumerate(("", "--half")):
        out = tmp_path / f"{i}.npy"
        given = f"-i x={tmp_path / 'x.npy'} -o t5={out} --backend gpu"
        run_cml(f"run {model} {given} {half}")
        results.append(np.load(out))
    full, half = results
    assert 0 < np.abs(full - half).max() < 1e-2 * np.abs(full).max()
    run_cml(f"rank {model} --half --runs 1 --backend gpu")


def test_validate_reports_half_storage_errors(model, gpu, run_cml):
    printed = run_cml(f"validate {model} --half").out
    assert "all operators agree" in printed and "16-bit storage against 32 bits" in printed
    *_, output = (line.split() for line in printed.splitlines() if line.startswith("t5 "))
    assert "outputs on the GPU" in printed and 0 < float(output[2]) < 1e-2
    assert "16-bit storage" not in run_cml(f"validate {model}").out


def test_validate_reports_errors_of_16_bit_arithmetic(tmp_path, gpu, run_cml):
    """A product that 16 bits cannot hold fails the check only if 16-bit arithmetic is requested."""
    if not gpu.limits.half_arithmetic:
        pytest.skip("the device has no shader-f16")
    model, large = (write(tmp_path / f"{scale}.nnef", scale, 32) for scale in (1.0, 4e4))
    for half in ("--half", "--half-arithmetic"):
        printed = run_cml(f"validate {model} {half}").out
        stored, multiplied = printed.split("multiplied in 16 bits")
        of_storage, of_both = (
            [float(x) for x in re.findall(r"^t5 +1 +(\S+) +(\S+)", text, re.M)[-1]]
            for text in (stored, multiplied)
        )
        assert of_storage != of_both and 0 < of_both[1] < of_both[0] < 1e-2
    for half, ends in (("--half", 0), ("--half-arithmetic", 1)):
        printed = run_cml(f"validate {large} {half}", ends=ends).out
        assert "output 't5' is not finite" in printed and "too large" not in printed


def test_16_bit_arithmetic_is_measured_where_it_is_used(model, gpu, set_limits):
    x = {"x": np.ones((1, 3, 12, 12), np.float32)}
    set_limits(half_arithmetic=False)
    found = measure_errors(optimize(cml.load(model)), gpu, x)
    assert found.stored and not found.multiplied and "has no shader-f16" in found.why_not
    set_limits(half_arithmetic=True)
    net = Net(1, 3, 12, 12)
    found = measure_errors(net.graph(net.op("tanh", "x")), gpu, x)
    assert not found.multiplied and "no convolution" in found.why_not


def test_every_command_that_stores_in_16_bits_can_multiply_in_them():
    (commands,) = (action.choices for action in parser()._actions if action.choices)
    taking = {
        flag: {n for n, c in commands.items() if flag in c._option_string_actions}
        for flag in ("--half", "--half-arithmetic")
    }
    assert "cook" in taking["--half"] and taking["--half"] == taking["--half-arithmetic"]
    options = compile_options(parser().parse_args(["cook", "m.onnx", "--half-arithmetic"]))
    assert (options.storage, options.arithmetic) == ("half", "half")


def test_info_says_which_arithmetic_is_used(tmp_path, run_cml):
    model = write(tmp_path / "m.nnef", 1.0, 32)
    convolutions = sum(node.op == "conv" for node in cml.load(model).nodes)
    said = f"up to {convolutions} convolutions multiply in 16 bits on hardware with shader-f16"
    assert said in run_cml(f"info {model} --half-arithmetic").out
    for options in ("", "--half"):
        assert "multiply in 16 bits" not in run_cml(f"info {model} {options}").out
    net = Net(1, 3, 12, 12)
    plain = tmp_path / "plain.nnef"
    cml.save(net.graph(net.op("tanh", "x")), plain)
    assert "multiply in 16 bits" not in run_cml(f"info {plain} --half-arithmetic").out


def test_16_bit_arithmetic_is_of_gpu_kernels(model, tmp_path, refused):
    given = f"{model} --random-inputs --half-arithmetic --backend cpu"
    assert "--half-arithmetic needs a GPU" in refused(f"run {given}")
    words = f"--half-arithmetic --backend cpu --inputs x.npy -o {tmp_path}/out.zarr"
    assert "--half-arithmetic needs a GPU" in refused(f"map {model} {words}")
    assert "leave --half-arithmetic out" in refused(f"export {model} x.onnx --half-arithmetic")


def test_validate_names_the_operator_that_overflows_half(tmp_path, gpu, run_cml):
    printed = run_cml("validate", write(tmp_path / "large.nnef", 1e6), "--half", ends=1).out
    assert (
        "first value too large for 16 bits" in printed
        and "graph.nnef:" in printed
        and "mul" in printed
    )
    run_cml(f"validate {tmp_path}/large.nnef")


def test_half_storage_is_refused_on_the_cpu(model, tmp_path, refused):
    given = f"-i x={tmp_path / 'x.npy'}"
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 12, 12), np.float32))
    assert "--half needs a GPU" in refused(f"run {model} {given} --half --backend cpu")
