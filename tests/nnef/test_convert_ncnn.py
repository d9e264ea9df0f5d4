"""ncnn models: every layer type's operators, and files that are not right."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cml_engine import nnef
from cml_engine.convert import convert
from cml_engine.errors import CmlError, InputError, ModelError
from cml_engine.graph import Fact, Graph, Node

Array = np.ndarray[Any, Any]
Convert = Callable[..., Graph]

FLOAT32, FLOAT16 = struct.pack("<I", 0), struct.pack("<I", 0x01306B47)


def raw(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def counted(count: int) -> bytes:
    return np.arange(count, dtype="<f4").tobytes()


@pytest.fixture
def convert_lines(tmp_path: Path) -> Convert:
    """``convert_lines("ReLU r 1 1 in out", weights=b"")``: with an input ``in`` of [1,4,8,8]."""

    def run(*lines: str, weights: bytes = b"", **more: Any) -> Graph:
        every = ("Input input 0 1 in 0=8 1=8 2=4", *lines)
        text = f"7767517\n{len(every)} {len(every)}\n" + "\n".join(every) + "\n"
        (tmp_path / "m.param").write_text(text)
        (tmp_path / "m.bin").write_bytes(weights)
        return convert(tmp_path / "m.param", **more)

    return run


LAYERS: list[tuple[str, bytes, str, dict[str, Any]]] = [
    ("Convolution c 1 1 in out 0=2 1=3 4=1 5=1 6=72", FLOAT32 + counted(74), "conv",
     {"padding": [(1, 1), (1, 1)], "stride": [1, 1], "dilation": [1, 1], "groups": 1}),
    ("Convolution c 1 1 in out 0=2 1=3 11=1 2=2 12=3 3=4 13=5 4=1 15=2 14=3 16=4 6=24",
     FLOAT32 + counted(24), "conv",
     {"padding": [(3, 4), (1, 2)], "stride": [5, 4], "dilation": [3, 2], "border": "constant"}),
    ("Convolution c 1 1 in out 0=2 1=3 4=-233 6=72", FLOAT32 + counted(72), "conv",
     {"padding": []}),
    ("ConvolutionDepthWise c 1 1 in out 0=4 1=3 4=1 6=36 7=4", FLOAT32 + counted(36), "conv",
     {"groups": 4}),
    ("Deconvolution c 1 1 in out 0=2 1=4 3=2 4=1 18=1 6=128", FLOAT32 + counted(128), "deconv",
     {"padding": [(1, 1), (1, 0)], "stride": [2, 2]}),
    ("PReLU p 1 1 in out 0=4", counted(4), "prelu", {}),
    ("ReLU r 1 1 in out", b"", "relu", {}),
    ("ReLU r 1 1 in out 0=0.2", b"", "leaky_relu", {"alpha": 0.2}),
    ("Sigmoid s 1 1 in out", b"", "sigmoid", {}),
    ("TanH t 1 1 in out", b"", "tanh", {}),
    ("Clip c 1 1 in out 0=0 1=6", b"", "clamp", {}),
    ("UnaryOp u 1 1 in out 0=7", b"", "exp", {}),
    ("BinaryOp b 2 1 in in out 0=2", b"", "mul", {}),
    ("BinaryOp b 1 1 in out 0=3 1=1 2=2.5", b"", "div", {}),
    ("Eltwise e 3 1 in in in out 0=1", b"", "add", {}),
    ("Concat c 2 1 in in out 0=-3", b"", "concat", {"axis": 1}),
    ("Slice s 1 2 in out b -23300=2,-233,-233 1=0", b"", "split", {"axis": 1, "ratios": [1, 1]}),
    ("Softmax s 1 1 in out 0=0", b"", "softmax", {"axes": [1]}),
    ("Interp i 1 1 in out 0=1 1=2.0 2=3.0", b"", "nearest_upsample", {"factor": [2, 3]}),
    ("Interp i 1 1 in out 0=2 1=2.0 2=2.0", b"", "multilinear_upsample",
     {"factor": [2, 2], "method": "symmetric", "border": "replicate"}),
    ("Pooling p 1 1 in out 0=0 1=2 2=2 5=1", b"", "max_pool",
     {"size": [1, 1, 2, 2], "stride": [1, 1, 2, 2], "border": "ignore", "padding": [(0, 0)] * 4}),
    ("Pooling p 1 1 in out 0=1 1=3 2=1 3=1 5=1 6=1", b"", "avg_pool",
     {"border": "constant", "padding": [(0, 0), (0, 0), (1, 1), (1, 1)]}),
    ("Padding p 1 1 in out 0=1 1=2 2=3 3=4 4=0 5=0.5", b"", "pad",
     {"padding": [(0, 0), (0, 0), (1, 2), (3, 4)], "border": "constant", "value": 0.5}),
    ("Padding p 1 1 in out 0=1 1=1 2=1 3=1 4=2", b"", "pad", {"border": "reflect"}),
    ("Crop c 1 1 in out 0=1 1=2 3=4 4=-233 5=-233 7=3", b"", "slice",
     {"axes": [1, 2, 3], "begin": [0, 2, 1], "end": [0, -3, 5]}),
    ("BatchNorm b 1 1 in out 0=4 1=0.001", counted(16), "batch_normalization",
     {"epsilon": 0.001}),
    ("Scale s 1 1 in out 0=4", counted(4), "mul", {}),
    ("Flatten f 1 1 in out", b"", "reshape", {"shape": [-1], "axis_start": 1}),
    ("Reshape r 1 1 in out 0=16 1=16", b"", "reshape", {"shape": [16, 16]}),
    ("Dropout d 1 1 in out 0=0.5", b"", "mul", {}),
    ("Dropout d 1 1 in a\nNoop n 1 1 a b\nSplit s 1 2 b c d\nBinaryOp e 2 1 c d out 0=0", b"",
     "add", {}),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "weights", "op", "attrs"), LAYERS, ids=[a for a, *_ in LAYERS])
def test_layers(
    convert_lines: Convert,
    tmp_path: Path,
    lines: str,
    weights: bytes,
    op: str,
    attrs: dict[str, Any],
) -> None:
    graph = convert_lines(*lines.split("\n"), weights=weights)
    assert graph.outputs[0] == "out"
    node = graph.nodes[-1]
    assert node.op == op
    assert {key: node.attrs[key] for key in attrs} == attrs
    assert node.source is not None
    assert node.source.line >= 4
    nnef.save(graph, tmp_path / "out")
    again = nnef.load(tmp_path / "out", lambda op: True)
    assert [(n.op, n.inputs, dict(n.attrs)) for n in again.nodes] == [
        (n.op, n.inputs, dict(n.attrs)) for n in graph.nodes
    ]


def test_weights_lie_as_nnef_has_them(convert_lines: Convert) -> None:
    values = np.arange(4 * 2 * 2 * 2, dtype=np.float32).reshape(2, 4, 2, 2)
    weights = FLOAT32 + values.tobytes() + raw(5, 6)
    for layer, wanted in (("Convolution", values), ("Deconvolution", values.swapaxes(0, 1))):
        graph = convert_lines(f"{layer} c 1 1 in out 0=2 1=2 5=1 6=32", weights=weights)
        np.testing.assert_array_equal(graph.constants["c_filter"], wanted)
        assert graph.constants["c_bias"].tolist() == [[5, 6]]
    graph = convert_lines("InnerProduct c 1 1 in out 0=2 1=0 2=512", weights=FLOAT32 + counted(512))
    assert [node.op for node in graph.nodes] == ["reshape", "linear"]
    assert graph.constants["c_filter"].shape == (2, 256)


def test_depthwise_transposed_weights(convert_lines: Convert) -> None:
    values = np.arange(2 * 3 * 2, dtype=np.float32).reshape(2, 3, 2, 1, 1)  # groups, out, in
    graph = convert_lines(
        "DeconvolutionDepthWise c 1 1 in out 0=6 1=1 6=12 7=2", weights=FLOAT32 + values.tobytes()
    )
    found = graph.constants["c_filter"]
    assert found.shape == (4, 3, 1, 1)
    np.testing.assert_array_equal(found[2:, :, 0, 0], values[1, :, :, 0, 0].T)


def test_half_floats_are_padded_to_words(convert_lines: Convert) -> None:
    halves = np.array([1, 2, 3, 4, 5], "<f2").tobytes() + b"\0\0"
    graph = convert_lines(
        "Convolution a 1 1 in b 0=1 1=1 5=1 6=4",
        "PReLU p 1 1 b out 0=1",
        weights=FLOAT16 + halves[:8] + raw(7) + raw(0.25),
    )
    assert graph.constants["a_filter"].reshape(-1).tolist() == [1, 2, 3, 4]
    assert graph.constants["p_alpha"].tolist() == [[0.25]]


@pytest.mark.parametrize(
    ("activation", "op", "attrs"),
    [("1", "relu", {}), ("2 -23310=1,0.1", "leaky_relu", {"alpha": 0.1}), ("4", "sigmoid", {}),
     ("3 -23310=2,0,6", "clamp", {})],
)  # fmt: skip
def test_activations_fused_by_ncnn(
    convert_lines: Convert, activation: str, op: str, attrs: dict[str, float]
) -> None:
    graph = convert_lines(
        f"Convolution c 1 1 in out 0=2 1=1 6=8 9={activation}", weights=FLOAT32 + counted(8)
    )
    assert [node.op for node in graph.nodes] == ["conv", op]
    assert dict(graph.nodes[1].attrs) == attrs


def test_pixel_shuffle_moves_channels_to_pixels(convert_lines: Convert) -> None:
    x = np.arange(1 * 4 * 8 * 8, dtype=np.float32).reshape(1, 4, 8, 8)
    graph = convert_lines("PixelShuffle p 1 1 in out 0=2")
    value = x
    for node in graph.nodes:
        if node.op == "transpose":
            value = value.transpose(node.attrs.axes)
            continue
        start = node.attrs.axis_start
        stop = start + node.attrs.axis_count
        shape = (*value.shape[:start], *node.attrs.shape, *value.shape[stop:])
        value = value.reshape(shape)
    wanted = np.zeros((1, 1, 16, 16), np.float32)
    for i in range(2):
        for j in range(2):
            wanted[0, 0, i::2, j::2] = x[0, 2 * i + j]
    np.testing.assert_array_equal(value, wanted)


def test_global_pooling_and_constants(convert_lines: Convert) -> None:
    graph = convert_lines("Pooling p 1 1 in out 0=1 4=1")
    assert [node.op for node in graph.nodes] == ["mean_reduce", "squeeze"]
    graph = convert_lines(
        "MemoryData m 0 1 k 0=2 1=3", "BinaryOp b 2 1 in k out 0=0", weights=counted(6)
    )
    assert graph.constants["m"].shape == (1, 3, 2)


def test_pooling_that_rounds_up_needs_shapes(convert_lines: Convert) -> None:
    line = "Pooling p 1 1 in out 0=0 1=3 2=2"
    graph = convert_lines(line)
    assert graph.nodes[0].attrs.padding == [(0, 0), (0, 0), (0, 1), (0, 1)]
    with pytest.raises(ModelError, match=r"m\.param:5: ncnn Pooling 'p': pooling that rounds up"):
        convert_lines("ReLU r 1 1 in a", line.replace(" in", " a"))

    def infer(node: Node, facts: Any) -> list[Fact]:
        return [facts[node.inputs[0]]]

    convert_lines("ReLU r 1 1 in a", line.replace(" in", " a"), infer=infer)


def test_the_shape_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "m.param").write_text("7767517\n2 2\nInput i 0 1 in\nReLU r 1 1 in out\n")
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(InputError, match="give --shape"):
        convert(tmp_path / "m.param")
    with pytest.raises(InputError, match="wanted 4, like"):
        convert(tmp_path / "m.param", shape=(3, 8, 8))
    graph = convert(tmp_path / "m.param", shape=(1, 3, 8, 8))
    assert graph.facts[graph.inputs[0]] == Fact("scalar", (1, 3, 8, 8))


@pytest.mark.parametrize(
    ("line", "weights", "message"),
    [
        ("HardSwish h 1 1 in out", b"", "m.param:4: ncnn layer 'HardSwish' cannot be converted"),
        ("PRelu r 1 1 in out", b"", "ncnn layer 'PRelu' cannot be converted (near: PReLU)"),
        ("ReLU r 1 1 nothing out", b"", "its input 'nothing' comes from no layer before it"),
        ("ReLU r 1 1 in in", b"", "blob 'in' is made twice"),
        ("ReLU r 1 1 in out 0", b"", "'0' is no parameter: wanted id=number"),
        ("ReLU r 1 1 in out 0=nan", b"", "'0=nan' is no parameter"),
        ("ReLU r 1 1 in out -23310=2,1", b"", "'-23310=2,1' is no parameter"),
        ("ReLU r 1", b"", "wanted: type, name, number of inputs, number of outputs"),
        ("ReLU r 3 1 in out", b"", "wanted 3 inputs and 1 outputs, the line is too short"),
        ("PReLU p 1 1 in out 0=4", counted(3), "'m.bin' is truncated: PReLU 'p' wants 16 bytes"),
        ("PReLU p 1 1 in out 0=4", counted(5), "has 4 bytes more than its .param takes"),
        ("PReLU p 1 1 in out 0=-4", b"", "-4 weights: export it again"),
        ("PReLU p 1 1 in out 0=0.5", b"", "PReLU: parameter 0 wants an integer"),
        ("PReLU p 1 1 in out 0=99999999999999", b"", "is truncated"),
        ("Convolution c 1 1 in out 0=3 1=3 6=28", b"", "28 weights are no multiple of 27"),
        ("Convolution c 1 1 in out 0=0 1=3 6=28", b"", "0 outputs of kernel (3, 3)"),
        ("Convolution c 1 1 in out 0=1 1=1 6=4 8=1", b"", "int8 weights cannot be converted"),
        ("Convolution c 1 1 in out 0=1 1=1 6=4", raw(1) + counted(4), "weights stored as 0x3f80"),
        ("Convolution c 1 1 in out 0=1 1=1 6=4 9=6", FLOAT32 + counted(4), "the activation 6"),
        ("Interp i 1 1 in out 0=3 1=2.0 2=2.0", b"", "resize type 3 cannot be converted"),
        ("Interp i 1 1 in out 0=1 1=1.5 2=2.0", b"", "resizing by 1.5 x 2 or to a fixed size"),
        ("BinaryOp b 2 1 in in out 0=20", b"", "operation 20 cannot be converted"),
        ("Concat c 2 1 in in out 0=3", b"", "axis 3 of 3: export it again"),
    ],
)
def test_what_cannot_be_converted(
    convert_lines: Convert, line: str, weights: bytes, message: str
) -> None:
    with pytest.raises(ModelError) as error:
        convert_lines(line, weights=weights)
    assert message in str(error.value)


def test_files_that_are_not_ncnns(tmp_path: Path) -> None:
    for data, message in [
        (b"", "not a ncnn .param: wanted 7767517 first, got nothing"),
        (b"hello", "wanted 7767517 first, got hello"),
        (b"7767517\n", "wanted the numbers of layers and blobs in line 2"),
        (b"7767517\n3 3\nInput i 0 1 in\n", "line 2 says 3 layers, got 1"),
        (b"\xff\xfe", "is not text"),
    ]:
        (tmp_path / "m.param").write_bytes(data)
        with pytest.raises(ModelError) as error:
            convert(tmp_path / "m.param")
        assert message in str(error.value)
    (tmp_path / "m.param").write_bytes(b"7767517\n1 1\nInput i 0 1 in\n")
    with pytest.raises(CmlError, match="it belongs beside the .param"):
        convert(tmp_path / "m.param", shape=(1, 1, 1, 1))
    with pytest.raises(InputError, match="the format '.onnx' is unknown"):
        convert(tmp_path / "m.onnx")
