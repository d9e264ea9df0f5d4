"""Tests of weights in blocks of 8 or 4 bits: quantizing, tensor files, folding, damaged files."""

import json
import pickle
import struct

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.ir.block_weights import nearest_blocks, weight_blocks
from cml_engine.nnef.files.tensor_file import MemoryBlob, read_header, read_stored, tensor_bytes

TEXT = """\
version 1.0;
extension KHR_enable_operator_expressions;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 12, 6, 5]);
    f = variable<scalar>(shape = [40, 12, 3, 3], label = 'f');
    scale = variable<scalar>(shape = [1, 40], label = 'scale');
    d = variable<scalar>(shape = [40, 20, 2, 2], label = 'd');
    p = variable<scalar>(shape = [24, 70], label = 'p');
    m = variable<scalar>(shape = [70, 33], label = 'm');
    c = mul(conv(x, f, 0.0, padding = [(1, 1), (1, 1)]), scale);
    e = deconv(c, d, 0.0, stride = [2, 2]);
    t = reshape(e, shape = [100, 24]);
    y = matmul(matmul(t, p), m);
}
"""


@pytest.fixture
def graph(rng):
    shapes = {"f": (40, 12, 3, 3), "scale": (1, 40), "d": (40, 20, 2, 2), "p": (24, 70),
              "m": (70, 33)}  # fmt: skip
    arrays = {k: rng.standard_normal(s, np.float32) for k, s in shapes.items()}
    return cml.load(cml.nnef.MemoryModel(TEXT, arrays))


@pytest.fixture
def sample(graph, rng):
    return {"x": rng.standard_normal(graph.facts["x"].shape, np.float32)}


@pytest.mark.parametrize(("bits", "most", "share"), [(8, 0.01, 0.35), (4, 0.11, 0.24)])
def test_quantized_weights(graph, sample, bits, most, share, tmp_path):
    """Filters and matrices shrink with small errors; the saved model has the same weights."""
    made, report = cml.integer.quantize_weights(graph, [sample], bits)
    stored = {n: b for n, a in made.constants.items() if (b := weight_blocks(a))}
    assert {n: (b.axis, b.size) for n, b in stored.items()} == {
        "f": (1, 12), "d": (0, 32), "p": (0, 24), "m": (0, 32),
    }  # fmt: skip
    assert [row.name for row in report.weights] == ["f", "d", "p", "m"]
    assert all(0 < row.error < most for row in report.weights)
    assert 0 < report.error < 3 * most and report.after < share * report.before
    cml.save(made, tmp_path / "net")
    files = {path.stem: path.stat().st_size for path in (tmp_path / "net").glob("*.dat")}
    assert sum(files.values()) == report.after
    assert files["f"] == report.weights[0].after < share * report.weights[0].before
    again = cml.load(tmp_path / "net")
    for name, blocks in stored.items():
        assert_array_equal(again.constants[name], made.constants[name])
        assert_array_equal(weight_blocks(again.constants[name]).codes, blocks.codes)
    expected = cml.Session(made, "cpu").run(sample)["y"]
    assert_array_equal(cml.Session(again, "cpu").run(sample)["y"], expected)
    size = np.sqrt(np.mean(np.square(expected)))
    off = cml.Session(graph, "cpu").run(sample)["y"] - expected
    assert np.sqrt(np.mean(np.square(off))) / size == pytest.approx(report.error, rel=0.1)
    same, unchanged = cml.integer.quantize_weights(again, [sample], bits)
    assert unchanged.error == 0 and unchanged.after == report.after


@pytest.mark.parametrize("bits", [8, 4])
def test_nearest_blocks(rng, bits):
    """No weight is off by more than a step, zeros stay zeros, and a short last block has a scale
    of its own."""
    values = rng.standard_normal((3, 70, 2), np.float32)
    values[0, :32] = 0
    values[:, 64:] *= 1000
    blocks = nearest_blocks(values, 1, 32, bits)
    assert blocks.scales.shape == (3, 3, 2)
    made = blocks.values()
    step = np.abs(blocks.spread(blocks.scales))
    assert (np.abs(made - values) <= 1.3 * step).all() and not made[0, :32].any()
    assert np.abs(blocks.codes.astype(int)).max() <= 2 ** (bits - 1)
    assert np.abs(made - values)[:, :64].max() < 1


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (3, 33, 2, 1), (0, 4)])
def test_tensor_files(rng, shape, bits):
    blocks = nearest_blocks(rng.standard_normal(shape, np.float32), 1, 32, bits)
    data = tensor_bytes(blocks.values())
    found = read_stored(MemoryBlob(data, "w.dat")).values
    assert_array_equal(found, blocks.values())
    back = weight_blocks(found)
    assert_array_equal(back.scales, blocks.scales)
    assert (back.codes.shape, back.axis, back.bits) == (shape, 1, bits)


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (44, 5, "with 5 bits: wanted an axis"),
        (52, 2, "blocks of 32 along axis 2 of 2"),
        (56, 0, "blocks of 0 along axis 1"),
        (56, 4, "takes .* bytes, but the header says"),
        (12, 2**31, "takes .* bytes, but the header says"),
    ],
)
def test_damaged_headers(rng, at, value, says):
    """Sizes are checked before memory is taken."""
    blocks = nearest_blocks(rng.standard_normal((6, 70), np.float32), 1, 32, 8)
    data = bytearray(tensor_bytes(blocks.values()))
    data[at : at + 4] = struct.pack("<I", value)
    with pytest.raises(cml.ModelError, match=says):
        read_header(MemoryBlob(bytes(data), "w.dat"))
    with pytest.raises(cml.ModelError, match="truncated"):
        read_header(MemoryBlob(tensor_bytes(blocks.values())[:-1], "w.dat"))


def test_blocks_of_any_size_take_memory_of_the_weights_only(rng):
    """A block size beyond the axis gives one block per row, and takes no more memory."""
    blocks = nearest_blocks(rng.standard_normal((2, 8), np.float32), 1, 8, 8)
    data = bytearray(tensor_bytes(blocks.values()))
    data[56:60] = struct.pack("<I", 2**32 - 1)
    found = read_stored(MemoryBlob(bytes(data), "w.dat")).values
    assert_array_equal(found, blocks.values())


def test_folding_keeps_blocks(graph, sample):
    """Folding a factor per channel into a filter changes its blocks' scales, not their codes."""
    made, _ = cml.integer.quantize_weights(graph, [sample], 8)
    small = optimize(made)
    (conv,) = [node for node in small.nodes if node.op == "conv"]
    blocks = weight_blocks(small.constants[conv.inputs[1]])
    before = weight_blocks(made.constants["f"])
    assert blocks is not None and blocks.codes is before.codes
    scale = made.constants["scale"].reshape(-1, 1, 1, 1)
    assert_allclose(blocks.scales, before.scales * scale, rtol=1e-6)


def test_pickled_weights_keep_their_blocks(graph, sample):
    """A worker of a cluster, which gets a pickled graph, runs the same kernels."""
    made, _ = cml.integer.quantize_weights(graph, [sample], 4)
    again = pickle.loads(pickle.dumps(made))
    for name, array in made.constants.items():
        assert_array_equal(again.constants[name], array)
        assert (weight_blocks(again.constants[name]) is None) == (weight_blocks(array) is None)
    assert_array_equal(pickle.loads(pickle.dumps(made.constants["m"][:2])),
                                  made.constants["m"][:2])  # fmt: skip


def test_command(graph, tmp_path, run_cml, refused):
    model, out = tmp_path / "net", tmp_path / "small"
    cml.save(graph, model)
    words = f"quantize {model} {out} --overwrite --weight-bits"
    report = json.loads(run_cml(f"{words} 4 --json").out)
    assert report["bits"] == 4 and report["after"] < report["before"]
    assert weight_blocks(cml.load(out).constants["m"]).bits == 4
    same = run_cml(f"quantize {model} {out} --overwrite --json --weights 4").out
    assert json.loads(same) == report
    message = run_cml(f"{words} 4 --max-error 0.001", ends=1).out
    assert "error of the outputs: " in message
    message = refused(f"{words} 8 --bits 16")
    assert "leaves all but the weights in floats: leave --bits out" in message


def test_info_says_which_weights_are_unpacked(graph, sample, tmp_path, run_cml):
    made, _ = cml.integer.quantize_weights(graph, [sample], 8)
    cml.save(made, tmp_path / "net")
    printed = run_cml(f"info {tmp_path}/net").out
    assert "3 of 4 operators read their weights in 8 or 4 bits" in printed
    assert "unpacked when loaded: matmul 'y'" in printed  # its sums have 70 products
    cml.save(graph, tmp_path / "floats")
    assert "8 or 4 bits" not in run_cml(f"info {tmp_path}/floats").out


def test_wrong_arguments(graph, sample, tmp_path):
    with pytest.raises(cml.InputError, match="bits: wanted 8 or 4, got 5"):
        cml.integer.quantize_weights(graph, [sample], 5)
    huge = [{name: np.full_like(x, 3e38) for name, x in sample.items()}]
    with pytest.raises(cml.InputError, match="gives infinities or NaN of a sample: give samples"):
        cml.integer.quantize_weights(graph, huge)
    with pytest.raises(cml.InputError, match="0 samples: wanted at least 1"):
        cml.integer.quantize_weights(graph, [])
