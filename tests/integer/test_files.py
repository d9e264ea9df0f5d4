"""Tests of integer networks as files, and of messages for other files."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import RangeError
from cml_engine.ir.graph import Attrs
from cml_engine.nnef.files.tensor_file import ItemType, MemoryBlob, read_header
from tests.fixtures.integer.networks import IntegerNet, line


def small_net(**changes):
    """Returns an integer network of conv, relu and tanh by a table.

    ``changes`` replace attributes of its lines by name; None deletes a line.
    """
    net = IntegerNet()
    x = net.input("x", (1, 2, 5, 5), 0.5)
    w = net.weight("w", np.arange(-8, 10).reshape(1, 2, 3, 3) * 13, 0.01)
    b = net.weight("b", [[1 << 20]], 0.005, 32)
    sums = net.op("conv", x, w, b, padding=[(1, 1)] * 2)
    y = net.op("relu", sums, to=line(64.0, signed=False))
    entries = [min(v, 127) for v in range(256)]
    z = net.op("tanh", y, to=line(0.01, table=entries))
    for name, attrs in changes.items():
        if attrs is None:
            del net.lines[name]
        else:
            net.lines[name] = Attrs({**net.lines[name], **attrs})
    return net.graph(z)


INPUT = {"x": np.linspace(-60, 60, 50, dtype=np.float32).reshape(1, 2, 5, 5)}


def test_integer_network_round_trips(tmp_path):
    graph = small_net()
    cml.save(graph, tmp_path / "net")
    text = (tmp_path / "net/graph.nnef").read_text()
    assert "extension CML_integer_1;" in text
    headers = {p.stem: read_header(MemoryBlob(p.read_bytes(), p.name))
               for p in (tmp_path / "net").glob("*.dat")}  # fmt: skip
    assert (headers["w"].item, headers["w"].bits) == (ItemType.QUANTIZED_INT, 8)
    assert (headers["b"].item, headers["b"].bits) == (ItemType.QUANTIZED_INT, 32)
    again = cml.load(tmp_path / "net")
    assert again.integer == 1 and again.constants["w"].dtype == np.int8
    before, after = (cml.Session(g, "cpu").run(INPUT) for g in (graph, again))
    np.testing.assert_array_equal(*before.values(), *after.values())
    reshaped = again.reshaped({"x": (1, 2, 7, 7)})
    assert cml.Session(reshaped, "cpu").outputs["t2"].shape == (1, 1, 7, 7)
    cml.save(again, tmp_path / "again.tgz")
    assert cml.load(tmp_path / "again.tgz").quantization == again.quantization


def test_integer_file_loads_as_floats_without_the_extension(tmp_path):
    """Without the extension's line the file loads as a float network with equal weights."""
    cml.save(small_net(), tmp_path)
    text = tmp_path / "graph.nnef"
    text.write_text(text.read_text().replace("extension CML_integer_1;", ""))
    floats = cml.load(tmp_path)
    assert floats.constants["w"].dtype == np.float32
    assert floats.constants["b"].item() == pytest.approx(5242.88)


def test_other_rule_version_is_refused(tmp_path):
    cml.save(small_net(), tmp_path)
    text = tmp_path / "graph.nnef"
    text.write_text(text.read_text().replace("CML_integer_1", "CML_integer_2"))
    with pytest.raises(cml.ModelError, match="another rule than this engine's, CML_integer_1"):
        cml.load(tmp_path)


def test_fake_quantization_is_for_floats(tmp_path):
    cml.save(small_net(), tmp_path)
    with pytest.raises(cml.InputError, match="leave fake_quantize out"):
        cml.load(tmp_path, fake_quantize=True)


WRONG = {
    "no line of an input": ({"x": None}, "input 'x' has no line in graph.quant"),
    "no line of a filter": ({"w": None}, r"constant 'w' is int8.*wanted scalar"),
    "no line of a sum": ({"t1": None}, "reads 't1', which is not rounded: conv 't0', relu"),
    "another bias": ({"b": {"scale": 0.006}}, r"scale of its bias 'b' is 0\.006 at channel 0"),
    "a scale of nothing": ({"x": {"scale": 0.0}}, "wanted one above 0"),
    "a tiny scale": ({"x": {"scale": 1e-30}}, r"wanted 2\^-40 to 2\^40"),
    "a scale far too fine": ({"t1": {"scale": 1e-9}}, "a word would be .* make its scale larger"),
    "many scales": ({"t1": {"scale": [1.0, 2.0]}}, "2 scales: wanted one"),
    "a zero point": ({"x": {"zero_point": 3}}, "zero_point 3: wanted 0"),
    "32 bits": ({"t1": {"bits": 32}}, "bits 32 are for a bias"),
    "another operator": ({"x": {"op": "linear_quantize"}}, "quantised by linear_quantize"),
    "a short table": ({"t2": {"table": [1, 2]}}, "a table of 2 entries: wanted 256"),
    "a wide table": ({"t2": {"table": [0] * 1025}}, "for words of 16 bits; those of .* have 8"),
    "a large entry": ({"t2": {"table": [999] * 256}}, "wanted words of -127 to 127"),
    "no table": ({"t2": {"table": []}}, "a function of one tensor wants a table"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_invalid_quantization_is_refused(case):
    changes, message = WRONG[case]
    with pytest.raises(cml.ModelError, match=message):
        cml.Session(small_net(**changes), "cpu")


@pytest.mark.parametrize(
    "case", ["a scale of nothing", "a tiny scale", "many scales", "32 bits", "a large entry"]
)
def test_errors_in_graph_quant_name_the_line(case, tmp_path):
    changes, message = WRONG[case]
    cml.save(small_net(**changes), tmp_path)
    (name,) = changes
    lines = (tmp_path / "graph.quant").read_text().splitlines()
    (number,) = (i for i, text in enumerate(lines, 1) if text.startswith(f'"{name}"'))
    with pytest.raises(cml.ModelError, match=message) as raised:
        cml.Session(cml.load(tmp_path), "cpu")
    assert str(raised.value).startswith(f"graph.quant:{number}:1: the line of '{name}'")


def test_sums_that_may_overflow_are_refused():
    net = IntegerNet()
    x = net.input("x", (1, 9, 4, 4), 0.5, bits=16)
    w = net.weight("w", np.full((1, 9, 3, 3), 32767), 0.01, 16)
    y = net.op("conv", x, w, net.weight("zero", 0.0, None), to=line(1.0))
    with pytest.raises(
        RangeError, match=r"conv 't0': channel 0 sums to 86,967,\d+,\d+ at most, wanted below"
    ):
        cml.Session(net.graph(y), "cpu")


def test_floats_in_an_integer_network_are_named():
    net = IntegerNet()
    x = net.input("x", (1, 4), 0.5)
    y = net.op("softmax", x, axes=[1], to=line(0.01))
    with pytest.raises(cml.ModelError, match="softmax 't0' has no integer form"):
        cml.Session(net.graph(y), "cpu")


@pytest.mark.parametrize(("value", "found"), [(np.inf, 63.5), (-np.inf, -63.5), (np.nan, 0)])
def test_a_border_that_is_not_finite_is_rounded_as_an_input(value, found):
    net = IntegerNet()
    y = net.op("pad", net.input("x", (3,), 0.5), padding=[(1, 0)], border="constant", value=value)
    got = cml.Session(net.graph(y), "cpu").run({"x": np.float32([1, -2, 3])})
    assert got[y].tolist() == [found, 1, -2, 3]


def test_a_slope_that_is_not_finite_is_refused():
    net = IntegerNet()
    y = net.op("leaky_relu", net.input("x", (3,), 0.5), alpha=np.inf, to=line(0.5))
    with pytest.raises(RangeError, match="leaky_relu 't0', leaky_relu: a word would be 1.8e\\+308"):
        cml.Session(net.graph(y), "cpu")


def test_concat_needs_operands_of_one_scale():
    net = IntegerNet()
    a, b = net.input("a", (1, 4), 0.5), net.input("b", (1, 4), 0.25)
    y = net.op("concat", a, b, axis=1)
    with pytest.raises(cml.ModelError, match="operands have scales 0.5 and 0.25"):
        cml.Session(net.graph(y), "cpu")


@pytest.mark.parametrize("float_tail", [False, True])
def test_no_shorter_graph_quant_is_read(tmp_path, float_tail):
    """A file that was cut off after any byte is refused, and never another network."""
    cml.save(small_net().with_(float_tail=float_tail), tmp_path / "net.nnef")
    file = tmp_path / "net.nnef/graph.quant"
    text = file.read_text().rstrip()
    ends = {at + 1 for at, letter in enumerate(text) if letter in "\n;(=,"} | {0}
    for end in sorted(ends - {len(text)}):
        file.write_text(text[:end])
        with pytest.raises(cml.CmlError):
            cml.Session(cml.load(tmp_path / "net.nnef"), "cpu")


def test_kept_tensors_are_returned_as_real_numbers():
    graph = small_net()
    session = cml.Session(graph, "cpu", cml.CompileOptions(keep=("t1",)))
    session.run(INPUT)
    kept = session.tensor("t1").read()
    assert set(np.unique(kept % 64)) == {0} and kept.max() > 64
    with pytest.raises(cml.ModelError, match="'t0' of conv 't0' is read after a run"):
        cml.Session(graph, "cpu", cml.CompileOptions(keep=("t0",)))
