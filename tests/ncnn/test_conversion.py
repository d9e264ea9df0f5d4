"""Tests of ncnn models: the operators that common layers become, and invalid files.

``tests/ncnn/test_layers.py`` compares every layer's numbers with ncnn's.
"""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.errors import CmlError, InputError, ModelError, UnsupportedOp
from cml_engine.formats.ncnn.ncnn_model import REFUSED
from cml_engine.ir.graph import Fact
from tests.fixtures.messages import raises
from tests.fixtures.models import FileSource
from tests.fixtures.ncnn_models import FLOAT16, FLOAT32, input_line, write
from tests.proofs import ncnn_layers


def raw(*values):
    return np.array(values, "<f4").tobytes()


def counted(count):
    return np.arange(count, dtype="<f4").tobytes()


@pytest.fixture
def convert_lines(tmp_path):
    """A function that loads an ncnn model of these lines, such as ``convert_lines("ReLU r 1 1 in
    out")``.

    The model has the input ``in`` [1,4,8,8]; ``weights`` are the bytes of its ``.bin`` file.
    """

    def run(*lines, weights=b"", **more):
        every = ("Input input 0 1 in 0=8 1=8 2=4", *lines)
        return cml.load(write(tmp_path, every, weights), **more)

    return run


def test_half_weights_are_padded_to_four_bytes(convert_lines):
    halves = np.array([1, 2, 3, 4, 5], "<f2").tobytes() + b"\0\0"
    graph = convert_lines(
        "Convolution a 1 1 in b 0=1 1=1 5=1 6=4",
        "PReLU p 1 1 b out 0=1",
        weights=FLOAT16 + halves[:8] + raw(7) + raw(0.25),
    )
    assert graph.constants["a_filter"].reshape(-1).tolist() == [1, 2, 3, 4]
    assert graph.constants["p_alpha"].tolist() == [[0.25]]


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        ("UnaryOp u 1 1 in out 0=18", np.rint),
        ("BinaryOp r 1 1 in out 0=17 1=1 2=1.0", lambda x: x - np.rint(x)),
    ],
)
def test_rounding_is_exact_at_halves_and_their_neighbours(tmp_path, line, reference):
    halves = np.array([0.5, 1.5, 2.5, 2**22 + 0.5], np.float32)
    around = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
    x = np.concatenate([halves, *around, np.array([2**23 + 1, 1e30], np.float32)])
    x = np.concatenate([x, -x])[None]
    graph = cml.load(write(tmp_path, [f"Input i 0 1 in 0={x.size}", line]))
    result = cml.Session(graph, "cpu").run({"in": x})["out"]
    np.testing.assert_array_equal(result, reference(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", " \n\n").replace(" ", "\t"),
        lambda text: text.replace("7767517\n", "7767517 "),
        lambda text: "\ufeff" + text.strip(),
    ],
)
def test_white_space_of_a_file_does_not_matter(tmp_path, change):
    path = write(tmp_path, ["Input i 0 1 x 0=4", "ReLU r 1 1 x y 0=0.5"])
    path.write_bytes(change(path.read_text()).encode())
    (node,) = cml.load(path).nodes
    assert node.op == "leaky_relu" and node.attrs["alpha"] == 0.5


def test_padding_that_ncnn_computes_otherwise_is_refused(tmp_path):
    lines = ["Input i 0 1 x 0=4 1=4 11=4 2=1", "Convolution3D c 1 1 x y 0=1 1=2 6=8 4=-234"]
    with raises(UnsupportedOp, "odd padding at the start in three dimensions"):
        cml.load(write(tmp_path, lines, FLOAT32 + counted(8)))
    # 3 wide windows need padding, 1 high ones of stride 3 leave rows out: ncnn crops those
    lines = ["Input i 0 1 x 0=5 1=5 2=1", "Convolution c 1 1 x y 0=1 1=3 11=1 3=1 13=3 4=-233 6=3"]
    with raises(UnsupportedOp, "where one stride is larger than its window"):
        cml.load(write(tmp_path, lines, FLOAT32 + counted(3)))


def test_the_shape_of_the_input(tmp_path):
    path = write(tmp_path, ["Input i 0 1 data", "ReLU r 1 1 data out"])
    with pytest.raises(
        InputError, match="does not hold the size of its input 'data': give --shape"
    ):
        cml.load(path)
    with pytest.raises(InputError, match="has 1 numbers: wanted 2 to 5 numbers, like 1,3,64,64"):
        cml.load(path, shapes=(3,))
    graph = cml.load(path, shapes=(1, 3, 8, 8))
    assert graph.facts["data"] == Fact("scalar", (1, 3, 8, 8))
    path = write(tmp_path, ["Input i 0 1 data 0=8 1=8 2=3", "ReLU r 1 1 data out"])
    assert cml.load(path, shapes=(1, 3, 4, 4)).facts["out"].shape == (1, 3, 4, 4)
    with pytest.raises(InputError, match="has 3 numbers: wanted 4 numbers, like 1,3,8,8"):
        cml.load(path, shapes=(3, 8, 8))
    lines = ["Input i 0 1 data", "Convolution c 1 1 data y 0=1 1=1 6=3", "Noop n 1 1 y out"]
    path = write(tmp_path, lines, FLOAT32 + counted(3))
    for shape in ((1, 4, 8, 8), (3, 8, 8)):
        given = ",".join(map(str, shape))
        with pytest.raises(ModelError, match=f"correct the shape .* batch first: data={given}\n"):
            cml.load(path, shapes=shape)


def test_inputs_by_their_names(tmp_path):
    lines = ["Input i 0 1 a", "Input j 0 1 b 0=8", "BinaryOp c 2 1 a b out 0=0"]
    path = write(tmp_path, lines)
    assert cml.load(path, shapes={"a": (1, 4, 8)}).facts["out"].shape == (1, 4, 8)
    with pytest.raises(InputError, match="has the inputs a, b: say which"):
        cml.load(path, shapes=(1, 4, 8))
    with pytest.raises(InputError, match=r"has no input 'c'; its inputs are a: \[\?\], b: \[1,8\]"):
        cml.load(path, shapes={"c": (1, 4, 8)})


def test_blobs_without_a_layer_are_inputs(tmp_path):
    path = write(tmp_path, ["ReLU r 1 1 data out"])
    assert cml.load(path, shapes=(1, 2, 3)).inputs == ("data",)
    with pytest.raises(InputError, match="the size of its input 'data'"):
        cml.load(path)


def test_any_shape_at_run_time(tmp_path):
    """A session and a graph of an ncnn model can be reshaped after the file is deleted."""
    lines = ["Input i 0 1 a/b", "Convolution c 1 1 a/b y 0=2 1=1 6=6", "Pooling p 1 1 y out 4=1"]
    path = write(tmp_path, lines, FLOAT32 + counted(6))
    graph = cml.load(path, shapes=(1, 3, 8, 8))
    assert graph.inputs == ("a/b",)
    session = cml.Session(graph, "cpu")
    path.unlink()
    other = session.reshaped({"a/b": (1, 3, 4, 6)})
    x = np.ones((1, 3, 4, 6), np.float32)
    np.testing.assert_allclose(other.run({"a/b": x})["out"].reshape(-1), [0 + 1 + 2, 3 + 4 + 5])
    assert graph.reshaped({"a/b": (1, 3, 2, 2)}).facts["y"].shape == (1, 2, 2, 2)


def test_a_source_has_both_files(tmp_path):
    path = write(tmp_path, ["Input i 0 1 in 0=4", "PReLU p 1 1 in out 0=4"], counted(4))

    files = {"m.param": path.read_bytes(), "m.bin": path.with_suffix(".bin").read_bytes()}
    pak = FileSource({f"nets/{name}": data for name, data in files.items()}, "nets/m.param")
    assert cml.load(pak).constants["p_alpha"].size == 4
    del pak.files["nets/m.bin"]
    with pytest.raises(CmlError, match="cannot read 'pak:net/nets/m.bin': there is no such file"):
        cml.load(pak)


def test_single_input_shape_needs_no_name(tmp_path):
    path = write(tmp_path, ["Input i 0 1 x", "ReLU r 1 1 x out"])
    cml.save(cml.load(path, shapes=(1, 3, 4)), tmp_path / "m")
    cml.save(cml.load(path, shapes=(1, 3, 4)), tmp_path / "m.onnx")
    for model in (path, tmp_path / "m", tmp_path / "m.onnx"):
        graph = cml.load(model, shapes=(1, 5, 6))
        assert graph.facts["out"].shape == (1, 5, 6)
        assert graph.reshaped({"x": (1, 2, 2)}).facts["out"].shape == (1, 2, 2)
        assert graph.reshaped({}).facts["out"].shape == (1, 5, 6)


# -- written models can be read ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "outputs"),
    [
        (["Input i 0 1 a/b:0 0=4", "ReLU r 1 1 a/b:0 c/d:0"], ["c_d_0"]),
        (["Input i 0 1 graph 0=4", "ReLU r 1 1 graph add"], ["add"]),
        (["Input i 0 1 x 0=4", "Split s 1 2 x a b"], ["a", "b"]),
        (["Input i 0 1 x 0=4", "ReLU r 1 1 x y", "Split s 1 3 y a b c"], ["a", "b", "c"]),
        (["Input i 0 1 x 0=4", "MemoryData m 0 1 k 0=2"], ["x_2", "k_2"]),
        (["Input i 0 1 x 0=4", "PReLU P 1 1 x y 0=4", "PReLU p 1 1 y z 0=4"], ["z"]),
        (["Input i 0 1 x 0=4", "ReLU r 1 1 x Y", "ReLU r 1 1 Y y"], ["y_2"]),
        (["Input i 0 1 x 0=4", f"PReLU {'n' * 300} 1 1 x {'n' * 300} 0=4"], ["n" * 100 + "_2"]),
        (["Input i 0 1 x 0=4", "PReLU ../../up 1 1 x длина 0=4"], ["_____"]),
        (["Input i 0 1 inf 0=4", "Clip c 1 1 inf nan"], ["nan"]),
    ],
)  # fmt: skip
def test_invalid_file_and_nnef_names_are_converted(tmp_path, lines, outputs, run_cml):
    count = 4 * sum(line.startswith("PReLU") for line in lines)
    count += 2 * sum(line.startswith("Memory") for line in lines)
    path = write(tmp_path, lines, counted(count))
    run_cml(f"convert {path} {tmp_path}/out")
    graph = cml.load(tmp_path / "out")
    assert list(graph.outputs) == outputs
    (x,) = graph.inputs
    cml.Session(graph, "cpu").run({x: np.zeros(graph.facts[x].shape, np.float32)})


def test_failed_conversion_keeps_the_old_model(tmp_path, monkeypatch, run_cml, refused):
    path = write(tmp_path, ["Input i 0 1 x 0=4", "ReLU r 1 1 x y"])
    words = f"convert {path} {tmp_path}/out --overwrite"
    run_cml(words)
    before = (tmp_path / "out" / "graph.nnef").read_bytes()

    load = cml.load

    def refuse(path, **options):
        if options:  # the model to convert
            return load(path, **options)
        raise ModelError("it cannot be read back")

    monkeypatch.setattr("cml_engine.formats.loading.load", refuse)
    assert "it cannot be read back" in refused(words)
    assert (tmp_path / "out" / "graph.nnef").read_bytes() == before


def test_convert_takes_shapes_by_name(tmp_path, run_cml, refused):
    lines = ["Input i 0 1 a", "Input j 0 1 b", "BinaryOp c 2 1 a b c 0=0",
             "Pooling p 1 1 c out 0=0 1=3 2=2"]  # fmt: skip
    words = f"convert {write(tmp_path, lines)} {tmp_path}/out"
    run_cml(f"{words} --shape a=1,2,8,8 --shape b=1,2,8,8")
    assert cml.load(tmp_path / "out").facts["out"].shape == (1, 2, 4, 4)
    for wrong, message in [
        ("--shape 1,2,8,8 --shape 1,2,8,8", "the only input has a shape already"),
        ("--shape =1,2,8,8", "wanted NAME=1,3,64,64"),
        ("--shape a=1,2,8,8 --shape a=1,2,8,8", "'a' has a shape already"),
        ("--shape 1,2,8,8", "say which has the shape, NAME=1,2,8,8"),
    ]:
        assert message in refused(f"{words} {wrong}")


# -- models that cannot be converted --------------------------------------------------------------


def test_all_unknown_layers_are_named_at_once(convert_lines):
    with pytest.raises(ModelError) as error:
        convert_lines(
            "PRelu a 1 1 in a", "PRelu b 1 1 a b", "Yolov3DetectionOutput d 1 1 b c",
            "Frobnicate f 1 1 c d", "F.softplus s 1 1 d out",
        )  # fmt: skip
    lines = str(error.value).split("\n")
    assert lines[0].endswith("has 4 layer types of ncnn's that cannot be converted:")
    assert [line.strip() for line in lines[1:]] == [
        "PRelu, 2 x, first in line 4: did you mean PReLU?",
        f"Yolov3DetectionOutput, 1 x, first in line 6: {REFUSED['Yolov3DetectionOutput']}",
        "Frobnicate, 1 x, first in line 7: export the network without it, or bring it as an "
        "operator of your own 'Frobnicate' (--ops FILE.py)",
        "F.softplus, 1 x, first in line 8: PyTorch's, which ncnn lacks: export the network without "
        "it, or bring it as an operator of your own 'F_softplus' (--ops FILE.py)",
    ]


def test_ncnn_page_is_generated():
    assert ncnn_layers.PAGE.read_text(encoding="utf-8") == ncnn_layers.page(), (
        "run python -m tests.proofs.ncnn_layers --write"
    )


@pytest.mark.parametrize(
    ("line", "weights", "message"),
    [
        ("ReLU r 2 1 in in out", b"", "ReLU 'r' has 2 inputs: wanted 1"),
        ("ReLU r 1 1 in out 5=1", b"", "m.param:4: ncnn ReLU 'r': the parameter 5 is unknown"),
        ("ReLU r 1 1 in out 0=0.1 0=0.2", b"", "parameter 0 stands twice"),
        ("ReLU r 1 1 in out 0=1e39", b"", "'0=1e39' is no parameter"),
        ("ReLU r 1 1 in out 0=0_1", b"", "'0=0_1' is no parameter"),
        ("ReLU r 1 1 in out 0=１", b"", "'0=１' is no parameter"),
        ("ReLU r １ 1 in out", b"", "wanted: type, name, number of inputs"),
        ("ReLU r ² 1 in out", b"", "wanted: type, name, number of inputs"),
        ('Reshape r 1 1 in out 6="0w,"', b"", "the formula '0w,' lacks a term"),
        ('Reshape r 1 1 in out 6="1w,-1"', b"", "'1w' of 1 inputs"),
        ('Reshape r 1 1 in out 6="//(0w,0)"', b"", "the formula '//(0w,0)' has no value"),
        ('Reshape r 1 1 in out 6="0w,1,1,1,1"', b"", "the shape [1, 1, 1, 1, 8]"),
        ("Reshape r 1 1 in out 0=8 1=8 2=4 12=0 13=1", b"", "a reshape to a batch of 8 cannot"),
        ("Reshape r 1 1 in out 0=-1 1=128 12=0 13=1", b"", "a reshape to a batch of 2 cannot"),
        ("Reshape r 1 1 in out 0=-1 1=128 12=0 13=2", b"", "batch axis 2 of 2"),
        ('Reshape r 1 1 in out 6="0,0,0,0,-1" 13=0', b"", "the shape [-1, 0, 0, 0, 0] from [4"),
        ("Convolution c 1 1 in out 0=1 1=1 6=4 7=2", b"", "groups in a layer that has none"),
        ("SDPA s 3 1 in in in out 5=1", b"", "3 inputs: export it again"),
        ("Einsum e 2 1 in in out -23300=4,105,45,62,105", b"", "the equation 'i->i' of 2 inputs"),
        ("Flip f 1 1 in out -23300=1,3", b"", "axis 3 of 3"),
        ("ArgMax a 1 1 in out 1=257", b"", "257 of 256 elements"),
        ("Unfold u 1 1 in out 1=9", b"", "a kernel of [9, 9] over [8, 8]"),
        ("Spectrogram s 1 1 in out 0=4", b"", "an input of 3 axes"),
        ("pnnx.Expression e 1 1 in out0", b"", "a formula that is not in the file"),
        ("pnnx.Expression e 1 1 in out expr=size(@0,1)", b"", "'size' of 2 operands in a formula"),
        ("pnnx.Expression e 1 1 in out expr=add(@0,@1)", b"", "'@1' in a formula"),
        ("Scale s 2 1 in in out 0=4", b"", "2 inputs and 4 factors"),
        ("MemoryData m 0 1 out", counted(1), "the shape []"),
        ("Slice s 1 2 in out b -23300=2,1,1", b"", "parts that end at [1, 2] of 4"),
        ("Slice s 1 2 in out b -23300=3,1,1,2", b"", "3 parts for 2 outputs"),
        ("LSTM l 1 1 in out 0=4 1=80 2=3", b"", "80 weights for 4 outputs in direction 3"),
        ("RNN l 1 1 in out 0=1 1=1", bytes(24), "an input of [4, 8, 8]: wanted rows of 1"),
        ("LSTM l 2 1 in in out 0=1 1=4", bytes(60), "a state without its memory"),
        ("Embed e 1 1 in out 0=3 1=7 3=20", b"", "20 weights for 7 words of 3"),
        ("Pooling p 1 1 in out 0=2 1=2", b"", "pooling type 2 cannot be converted"),
        ("Pooling p 1 1 in out 0=1 1=3 5=2 15=1", b"", "'same' padding beside a stated one"),
        ("Pooling p 1 1 in out 0=0 1=9 5=1", b"", "a kernel of 9 over 8 values"),
        ("ReLU r 1 1 nothing out", b"", "its input 'nothing' comes from no layer before it"),
        ("ReLU r 1 1 in in", b"", "blob 'in' is made twice"),
        ("ReLU r 3 1 in out", b"", "wanted 3 inputs and 1 outputs, the line is too short"),
        ("PReLU p 1 1 in out 0=4", counted(3), "'m.bin' is truncated: PReLU 'p' wants 16 bytes"),
        ("PReLU p 1 1 in out 0=4", counted(5), "has 4 bytes more than its .param takes"),
        ("PReLU p 1 1 in out 0=0.5", b"", "parameter 0 wants an integer, got 0.5"),
        (
            "Convolution c 1 1 in out 0=3 1=3 6=28",
            b"",
            "28 weights where 4 channels to 3 by a kernel of 3x3 want 108",
        ),
        ("Convolution c 1 1 in out 0=1 1=1 6=4 8=1", b"", "int8 weights cannot be converted"),
        ("Convolution c 1 1 in out 0=1 1=1 6=4", raw(1) + counted(4), "stored as 0x3f80"),
        (
            "Convolution c 1 1 in out 0=1 1=1 6=4 9=6",
            FLOAT32 + counted(4),
            "the activation 6 with 0",
        ),
        ("Softmax s 1 1 in out 0=1", b"", "the old format (parameter 1 is not 1)"),
        ("Reduction r 1 1 in out 1=0 -23303=1,0", b"", "the old format (parameter 5 is not 1)"),
        ("CELU c 1 1 in out 0=0.0", b"", "alpha 0: wanted more than 0"),
        ('Interp i 1 1 in out 0=1 9="0"', b"", "a size of [8, 0]: export it again"),
        ("CopyTo c 2 1 in in out 0=5", b"", "from [0, 0, 5] to [4, 8, 13] of [4, 8, 8]"),
        (
            "Deconvolution d 1 1 in out 0=1 1=1 6=4 20=5",
            FLOAT32 + counted(4),
            "an output of [5, 5] without 'same' padding: export it again",
        ),
        ("Interp i 1 1 in out 0=4 1=2.0 2=2.0", b"", "resize type 4 cannot be converted"),
        ("Convolution c 2 1 in in out 19=1", b"", "weights of [4, 8, 8]: export it again"),
        ("Convolution c 1 1 in out 0=1 1=1 6=4 19=1", b"", "1 inputs: export it again"),
        ("Deconvolution c 2 1 in in out 0=1 1=1 6=4", b"", "2 inputs: export it again"),
        ("BinaryOp b 2 1 in in out 0=20", b"", "operation 20 cannot be converted"),
        ("Concat c 2 1 in in out 0=3", b"", "axis 3 of 3: export it again"),
    ],
)
def test_unsupported_layers_are_refused(convert_lines, line, weights, message):
    with raises(ModelError, message):
        convert_lines(line, weights=weights)


def test_non_ncnn_files_are_refused(tmp_path):
    for data, message in [
        (b"\n", "no ncnn .param: wanted 7767517 first, got nothing"),
        (b"hello", "wanted 7767517 first, got hello"),
        (b"7767517\n", "wanted the numbers of layers and blobs after 7767517, got nothing"),
        (
            b"7767517\n\n2\n",
            "m.param:3: wanted the numbers of layers and blobs after 7767517, got 2",
        ),
        (b"7767517\n3 3\nInput i 0 1 in\n", "line 2 says 3 layers, got 1"),
        (b"\xff\xfe", "is not text"),
        (
            b"7767517\n1 1\npnnx.Input in 0 1 x #x=(1,3)f32\n",
            "the file is pnnx's own, not ncnn's: give the .ncnn.param",
        ),
    ]:
        (tmp_path / "m.param").write_bytes(data)
        with raises(ModelError, message):
            cml.load(tmp_path / "m.param")
    (tmp_path / "m.param").write_bytes(b"7767517\n1 1\nInput i 0 1 in\n")
    with pytest.raises(CmlError, match="it belongs beside the .param"):
        cml.load(tmp_path / "m.param", shapes=(1, 1, 1, 1))
    with pytest.raises(CmlError, match=r"cannot read '.*n\.param': there is no such file"):
        cml.load(tmp_path / "n.param")
    with pytest.raises(InputError, match="fragments and weights cannot be given for ncnn"):
        cml.load(tmp_path / "m.param", fragments=["f.nnef"], weights="w.safetensors")


# -- what ncnn itself does not run ----------------------------------------------------------------


def test_argmax_gives_the_last_of_equal_elements_first(convert_lines):
    x = np.zeros((1, 4, 8, 8), np.float32)
    x[0, 1, 2, 3] = x[0, 3, 7, 7] = 5
    x[0, 2, 0, 0] = 7
    places = [128.0, 255.0, 83.0]
    session = cml.Session(convert_lines("ArgMax a 1 1 in out 1=3"), "cpu")
    np.testing.assert_array_equal(session.run({"in": x})["out"], [[places]])
    session = cml.Session(convert_lines("ArgMax a 1 1 in out 0=1 1=3"), "cpu")
    np.testing.assert_array_equal(session.run({"in": x})["out"], [[[7, 5, 5], places]])


@pytest.mark.parametrize("kind", [0, 1])
def test_pyramid_pooling_pads_with_zeros(tmp_path, rng, kind):
    path = write(tmp_path, ["Input i 0 1 in 0=5 1=6 2=2", f"SPP s 1 1 in out 0={kind} 1=2"])
    x = rng.standard_normal((2, 6, 5), np.float32) - 3
    reduce = np.mean if kind else np.max
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0)))  # two windows of 3 x 3 cover 6 of 7 columns
    quarters = padded.reshape(2, 2, 3, 2, 3)
    expected = [reduce(x, axis=(1, 2)).ravel(), reduce(quarters, axis=(2, 4)).ravel()]
    actual = cml.Session(cml.load(path), "cpu").run({"in": x[None]})["out"]
    np.testing.assert_allclose(actual[0], np.concatenate(expected), rtol=1e-6)


@pytest.mark.parametrize("heads", [2, 4])
def test_attention_with_past_keys(tmp_path, rng, heads):
    """ncnn reads past keys only from memory of its own, so the reference is the definition."""
    shapes = {"q": (heads, 3, 4), "k": (2, 1, 4), "v": (2, 1, 5), "pk": (2, 6, 4), "pv": (2, 6, 5)}
    lines = [input_line(name, shape) for name, shape in shapes.items()]
    lines.append("SDPA s 5 3 q k v pk pv out nk nv 7=1")
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    session = cml.Session(cml.load(write(tmp_path, lines)), "cpu")
    results = session.run({name: x[None] for name, x in arrays.items()})
    keys, values = (
        np.concatenate([arrays[f"p{name}"], arrays[name]], axis=1).repeat(heads // 2, axis=0)
        for name in "kv"
    )
    scores = np.exp(arrays["q"] @ keys.swapaxes(1, 2) / 2)
    expected = scores / scores.sum(axis=2, keepdims=True) @ values
    np.testing.assert_allclose(results["out"][0], expected, rtol=1e-4, atol=1e-6)
    assert results["nk"].shape == (1, 2, 7, 4) and results["nv"].shape == (1, 2, 7, 5)


@pytest.mark.parametrize(
    ("shape", "parameters", "expected"),
    [
        ((2, 3, 4), "0=24", lambda x: x.transpose(1, 2, 0).ravel()),
        ((2, 3, 4), "0=-1 1=3", lambda x: x.transpose(1, 2, 0).reshape(8, 3).T),
        ((2, 3, 4), "0=2 1=3 2=-1", lambda x: x.transpose(1, 2, 0).reshape(3, 2, 4)
            .transpose(2, 0, 1)),
        ((2, 3, 4), "0=3 1=4 2=2", lambda x: x.reshape(2, 4, 3)),  # the channels stay
        ((6, 4), "0=3 1=8", lambda x: x.T.reshape(3, 8).T),
        ((2, 3, 2, 2), "0=6 1=4", lambda x: x.transpose(1, 2, 3, 0).reshape(6, 4).T),
        ((24,), "0=4 1=6", lambda x: x.reshape(4, 6).T),
    ],
)  # fmt: skip
def test_reshape_with_the_channels_innermost(tmp_path, rng, shape, parameters, expected):
    """``3=1``, which ncnn dropped in 2025, is the order of elements of TensorFlow's models."""
    path = write(tmp_path, [input_line("in", shape), f"Reshape r 1 1 in out {parameters} 3=1"])
    x = rng.standard_normal(shape, np.float32)
    result = cml.Session(cml.load(path), "cpu").run({"in": x[None]})["out"]
    np.testing.assert_array_equal(result[0], expected(x))


def test_a_part_that_does_not_fit_is_refused(convert_lines):
    with raises(ModelError, "from [0, 0, 6] to [4, 8, 10] of [4, 8, 8]"):
        convert_lines("Crop c 1 1 in part 3=4 4=8 5=4", "CopyTo t 2 1 in part out 0=6")


# -- what pnnx writes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "outputs"),
    [
        (["Split s 1 2 in a b", "ReLU r 1 1 a y"], ["y"]),
        (["ReLU q 1 1 in x", "Split s 1 3 x a b c", "BinaryOp r 2 1 a b y 0=0"], ["y"]),
        (["Split s 1 2 in a b", "Split t 1 2 b c d", "ReLU r 1 1 c y"], ["y"]),
        (["Split s 1 2 in a b"], ["a", "b"]),
        (["Input j 0 1 unread 0=4", "ReLU r 1 1 in y"], ["y"]),
        (["pnnx.Expression e 0 1 n", "ReLU r 1 1 in y"], ["y"]),
        (["ReLU r 1 1 in y", "pnnx.Expression e 1 1 y n", "pnnx.Expression f 1 1 n m"], ["y"]),
        (["SherpaMetaData m 0 0 0=2 -23316=2,1,2", "ReLU r 1 1 in y"], ["y"]),
    ],
)
def test_layers_that_compute_nothing(convert_lines, lines, outputs):
    assert list(convert_lines(*lines).outputs) == outputs


def test_pnnx_names_its_outputs(tmp_path):
    lines = ["Input in0 0 1 in0 0=4", "ReLU a 1 1 in0 out1", "Split s 1 2 out1 x y",
             "TanH b 1 1 x z", "BinaryOp c 2 1 y z out0 0=0"]  # fmt: skip
    graph = cml.load(write(tmp_path, lines))
    assert graph.outputs == ("out1", "out0")
    results = cml.Session(graph, "cpu").run({"in0": np.float32([[-1, 0, 1, 2]])})
    np.testing.assert_array_equal(results["out1"], [[0, 0, 1, 2]])


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("add(@0,@1)", lambda x, y: x + y),
        ("sub(1,mul(@0,0.5))", lambda x, y: 1 - x * 0.5),
        ("sqrt(add(square(@0),square(@1)))", np.hypot),
        ("maximum(@0,neg(@1))", lambda x, y: np.maximum(x, -y)),
        ("floor_divide(@0,2)", lambda x, y: x // 2),
        ("reciprocal(exp(@1))", lambda x, y: np.exp(-y)),
        ("atan2(@0,@1)", np.arctan2),
    ],
)
def test_formulas_of_pnnx(convert_lines, rng, formula, expected):
    graph = convert_lines("TanH t 1 1 in y", f"pnnx.Expression e 2 1 in y out expr={formula}")
    x = rng.standard_normal((1, 4, 8, 8), np.float32)
    result = cml.Session(graph, "cpu").run({"in": x})["out"]
    np.testing.assert_allclose(result, expected(x, np.tanh(x)), rtol=1e-5, atol=1e-5)


# -- layers of one's own --------------------------------------------------------------------------


def _focus_shape(attrs, x):
    n, channels, height, width = x.shape
    return Fact("scalar", (n, 4 * channels, height // 2, width // 2))


def _focus(attrs, x):
    parts = [x[:, :, a::2, b::2] for b in range(2) for a in range(2)]
    return np.concatenate(parts, axis=1)


FOCUS = cml.OpSpec(
    name="YoloV5Focus",
    signature="fragment YoloV5Focus(x: tensor<scalar>) -> (y: tensor<scalar>);",
    infer=_focus_shape,
    cpu=_focus,
)
WARP = cml.OpSpec(
    name="rife_Warp",
    signature="fragment rife_Warp(image: tensor<scalar>, flow: tensor<scalar>, mode: integer = 0,"
    " gain: scalar = 1.0, axes: integer[] = [], mirrored: logical = false)"
    " -> (y: tensor<scalar>);",
    infer=ops.same_as(0),
    cpu=lambda attrs, image, flow: image + attrs.gain * flow.mean(axis=1, keepdims=True),
)


@pytest.fixture
def own_layers():
    for spec in (FOCUS, WARP):
        cml.register(spec)
    yield
    for spec in (FOCUS, WARP):
        ops.unregister(spec.name)


def test_own_layers_are_registered_operators(own_layers, convert_lines, rng, tmp_path):
    graph = convert_lines("YoloV5Focus f 1 1 in out")
    x = rng.standard_normal((1, 4, 8, 8), np.float32)
    result = cml.Session(graph, "cpu").run({"in": x})["out"]
    np.testing.assert_array_equal(result, _focus(None, x))
    cml.save(graph, tmp_path / "m.nnef")
    assert "fragment YoloV5Focus(" in (tmp_path / "m.nnef" / "graph.nnef").read_text()
    saved = cml.Session(cml.load(tmp_path / "m.nnef"), "cpu")
    np.testing.assert_array_equal(saved.run({saved.graph.inputs[0]: x})["out"], result)


def test_parameters_of_own_layers_are_attributes_in_order(own_layers, convert_lines, rng):
    graph = convert_lines("TanH t 1 1 in flow",
                          "rife.Warp w 2 1 in flow out 0=3 1=2 -23302=2,1,2 3=1")  # fmt: skip
    (node,) = (node for node in graph.nodes if node.op == "rife_Warp")
    assert dict(node.attrs) == {"mode": 3, "gain": 2.0, "axes": [1, 2], "mirrored": True}
    x = rng.standard_normal((1, 4, 8, 8), np.float32)
    expected = x + 2 * np.tanh(x).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(cml.Session(graph, "cpu").run({"in": x})["out"], expected, 1e-5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rife.Warp w 1 1 in out", "1 inputs and 1 outputs, wanted rife_Warp(image: tensor"),
        ("rife.Warp w 2 2 in in out b", "2 inputs and 2 outputs, wanted rife_Warp(image: tensor"),
        ("rife.Warp w 2 1 in in out 4=1", "parameter 4 of an operator with 4 attributes"),
        ("rife.Warp w 2 1 in in out 0=0.5", "attribute 'mode' wants integer, got scalar 0.5"),
        ("rife.Warp w 2 1 in in out 2=1", "attribute 'axes' wants integer[], got integer 1"),
        ('rife.Warp w 2 1 in in out 1="0w"', "attribute 'gain' wants scalar, got"),
        ("rife.warp w 2 1 in in out", "operator of your own 'rife_warp' (--ops FILE.py)"),
    ],
)
def test_own_layers_that_do_not_fit(own_layers, convert_lines, line, message):
    with raises(ModelError, message):
        convert_lines(line)


@pytest.mark.parametrize("method", [2, 3], ids=["linear", "cubic"])
def test_a_nan_stays_in_the_windows_of_a_resize(method, convert_lines):
    """A NaN reaches exactly the results of a resize to which its element contributes."""
    graph = convert_lines(f"Interp i 1 1 in out 0={method} 1=1.37 2=0.6")
    session, reached = cml.Session(graph, "cpu"), 0
    for at in ((0, 0), (3, 5), (7, 7)):
        x = np.zeros((1, 4, 8, 8), np.float32)
        x[0, 1, *at] = 1
        weights = session.run({"in": x})["out"]
        x[0, 1, *at] = np.nan
        found = session.run({"in": x})["out"]
        np.testing.assert_array_equal(np.isnan(found), weights != 0)
        reached += np.isnan(found).sum()
    assert 0 < reached < 100  # of 3 times 160
