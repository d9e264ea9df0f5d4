"""Tests of every convertible ncnn layer with many parameters: the engine's results against
ncnn's."""

import struct
from itertools import combinations, product

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.formats.ncnn.conversion import WITHOUT_WEIGHTS
from cml_engine.formats.ncnn.ncnn_model import LAYERS
from tests.fixtures.ncnn_models import input_line, run_ncnn, weight_bytes, write
from tests.proofs.ncnn_layers import ncnn_layers

pytest.importorskip("ncnn")


VOLUME, PLANE, LINE, DEEP = (4, 5, 6), (4, 6), (6,), (4, 3, 4, 5)
SHAPES = (VOLUME, PLANE, LINE, DEEP)


def case(text, *shapes, weights="", values="any"):
    """Returns a test case of one layer: its line, the inputs' shapes, the weights and the values.

    ``"ReLU 0=0.1"`` becomes a line with the inputs ``x0``, ``x1``, … and the output ``out``.
    ``->a,b`` after the type names other outputs. Shapes and weights may be in the text:
    ``"InnerProduct 0=3 2=18 1=1 | 3,2,1 | f18 r3"``.
    """
    line, *parts = text.split(" | ")
    kind, *params = line.split()
    shapes += tuple(tuple(map(int, part.split(","))) for part in parts if part[0].isdigit())
    weights = weights or " ".join(part for part in parts if part[0].isalpha())
    outputs = ["out"]
    if params and params[0].startswith("->"):
        outputs = params.pop(0)[2:].split(",")
    shapes = shapes or (VOLUME,)
    names = [f"x{i}" for i in range(len(shapes))]
    words = [kind, "l", str(len(names)), str(len(outputs)), *names, *outputs, *params]
    return " ".join(words), shapes, weights, values


def activations():
    for line in (
        "AbsVal", "BNLL", "CELU 0=0.7", "Clip", "Clip 0=-0.5 1=0.5", "Clip 0=-0.2", "Clip 1=0.3",
        "Clip 0=-3.402823e+38 1=0.5", "Clip 0=0.5 1=-0.5", "ELU", "ELU 0=0.7",
        "Erf", "GELU", "GELU 0=1", "HardSigmoid",
        "HardSigmoid 0=0.3 1=0.4", "HardSwish", "HardSwish 0=0.16667 1=0.5", "Mish", "ReLU",
        "ReLU 0=0.2", "SELU", "SELU 0=1.2 1=0.8", "Shrink", "Shrink 0=0.1 1=0.3", "Sigmoid",
        "Softplus", "Swish", "TanH", "Threshold 0=0.2",
    ):  # fmt: skip
        yield case(line)
    for shape in SHAPES:
        yield case(f"PReLU 0={shape[0]}", shape, weights=f"r{shape[0]}")
        for axis in range(-len(shape), len(shape)):
            yield case(f"Softmax 0={axis} 1=1", shape)
            if shape[axis] % 2 == 0:
                yield case(f"GLU 0={axis}", shape)
    yield case("PReLU 0=1 | r1")


def arithmetic():
    domains = {5: "positive", 6: "positive", 8: "positive", 11: "small", 12: "small", 13: "small",
               17: "positive", 25: "above 1", 26: "small", 27: "positive"}  # fmt: skip
    for kind in range(28):
        yield case(f"UnaryOp 0={kind}", values=domains.get(kind, "any"))
    yield case("UnaryOp 0=18", values="halves")
    for kind in range(19):
        values = "positive" if kind in (6, 9) else "any"
        yield case(f"BinaryOp 0={kind}", VOLUME, VOLUME, values=values)
        yield case(f"BinaryOp 0={kind} 1=1 2=0.7", values=values)
    for shape, others in (
        ("4,5,6", "4 6 1 4,5 4,1,1 1,5,6 4,1,6"), ("4,6", "4 6"), ("4,3,4,5", "4 5 4,3"),
    ):  # fmt: skip
        for other in others.split():
            yield case(f"BinaryOp 0=7 | {shape} | {other}")
            yield case(f"BinaryOp 0=7 | {other} | {shape}")
    for kind in range(3):
        yield case(f"Eltwise 0={kind}", VOLUME, VOLUME, VOLUME)
    yield case("Eltwise 0=1 -23301=3,1.0,0.5,-2.0", VOLUME, VOLUME, VOLUME)
    for line in ("Power 0=2 1=0.5 2=0.3", "Exp", "Exp 0=2 1=0.5 2=0.3", "Log", "Log 0=2 1=0.5 2=1"):
        yield case(line, values="positive")
    for shape in (VOLUME, PLANE, LINE):
        n = shape[0]
        yield case(f"Scale 0={n}", shape, weights=f"r{n}")
        yield case(f"Scale 0={n} 1=1", shape, weights=f"r{n} r{n}")
        yield case("Scale 0=-233", shape, (n,))
        yield case("CumulativeSum 0=-1", shape)
        yield case("CumulativeSum 0=0", shape)
    yield case("Bias 0=4 | r4")


ACTIVATIONS = ("", "9=1", "9=2 -23310=1,0.1", "9=3 -23310=2,-0.5,0.5", "9=4", "9=5",
               "9=6 -23310=2,0.2,0.5")  # fmt: skip


def convolutions():
    rng = np.random.default_rng(7)
    for i in range(28):
        yield from _windowed(rng, ACTIVATIONS[i % 7], i)
    yield case("Convolution 0=3 1=1 6=18 5=1 | 6 | f18 r3")
    yield from _with_computed_weights()
    yield case("Convolution 0=3 1=1 6=12 5=1 | h12 r3")
    # pnnx states the group of a padded convolution, and rounds the largest number up
    yield case("Convolution 0=3 1=1 6=12 5=1 7=1 9=3 -23310=2,0.1,3.40282347e38 | f12 r3")


def _with_computed_weights():
    """Yields convolutions whose filters, and biases, are inputs."""
    for sides in ("4=0", "4=1 15=2 14=0 16=1", "4=-233", "4=-234", "4=2 18=0.5"):
        line = f"Convolution 19=1 2=1 12=2 3=2 13=1 {sides}"
        yield case(f"{line} | 4,9,11 | 8,4,3,2")
        yield case(f"{line} 5=1 9=2 -23310=1,0.1 | 4,9,11 | 8,4,3,2 | 8")
        yield case(f"ConvolutionDepthWise 7=4 19=1 {sides} | 4,9,11 | 4,1,3,3")
        yield case(f"Convolution1D 19=1 3=2 {sides.split(' 14')[0]} | 4,11 | 6,4,3")
    for sides in ("4=0", "4=1", "4=1 15=0 14=2", "4=-234 18=1"):  # the last crops nothing
        line = f"3=2 13=1 {sides}"
        yield case(f"Deconvolution 28=1 {line} | 4,5,6 | 4,3,3,2")
        yield case(f"Deconvolution 28=1 5=1 9=1 {line} | 4,5,6 | 4,3,3,2 | 3")
        yield case(f"DeconvolutionDepthWise 28=1 7=4 {line} | 4,5,6 | 4,1,3,3")
        yield case(f"Deconvolution1D 28=1 3=2 {sides.split(' 14')[0]} | 4,6 | 4,3,3")


def _windowed(rng, activation, i):
    """Yields random convolutions and deconvolutions on one and two axes; every fourth ``i`` also
    on three."""
    kw, kh, kd = rng.integers(1, 5, 3)
    stride, dilation = rng.integers(1, 4, 3), rng.integers(1, 3, 3)
    before, behind = rng.integers(0, 3, 3), rng.integers(0, 3, 3)
    groups, count = int(rng.choice([1, 2, 4])), int(rng.choice([4, 8]))
    same = [None, None, -233, -234][i % 4]
    deep = "DepthWise" if groups > 1 else ""
    group = f"7={groups}" if deep else ""
    wide = f"1={kw} 2={dilation[0]} 3={stride[0]}"
    high = f"11={kh} 12={dilation[1]} 13={stride[1]}"
    sides = [f"4={before[0]} 15={behind[0]}", f"14={before[1]} 16={behind[1]}",
             f"24={before[2]} 17={behind[2]}"]  # fmt: skip
    if same:
        sides = [f"4={same}"]
    value = "18=0.5" if i % 3 == 0 else ""
    size = count * 4 // groups
    end = f"5=1 {group} {activation}"
    made = [count, size * kw, size * kw * kh, size * kw * kh * kd]
    weights = [f"f{n} r{count}" for n in made]
    yield case(f"Convolution{deep}1D 0={count} {wide} {sides[0]} 6={made[1]} {value} {end}",
               (4, 13), weights=weights[1])  # fmt: skip
    yield case(f"Convolution{deep} 0={count} {wide} {high} {' '.join(sides[:2])} "
               f"6={made[2]} {value} {end}", (4, 11, 13), weights=weights[2])  # fmt: skip
    more, less = int(rng.integers(0, 2)), int(rng.integers(0, 2))
    output_sizes = [(n - 1) * s + (k - 1) * d + 1 + more - less for n, s, k, d in
              zip((6, 5), stride, (kw, kh), dilation, strict=False)]  # fmt: skip
    extra = ["", "18=1", "18=1 19=0", "19=1"][i % 3] if not same else f"18={more}"
    fixed = [f"20={output_sizes[0]}", f"21={output_sizes[1]}"] if same else ["", ""]
    yield case(f"Deconvolution{deep}1D 0={count} {wide} {sides[0]} {fixed[0]} "
               f"{'' if '19' in extra else extra} 6={made[1]} {end}",
               (4, 6), weights=weights[1])  # fmt: skip
    yield case(f"Deconvolution{deep} 0={count} {wide} {high} {' '.join(sides[:2])} "
               f"{' '.join(fixed)} {extra} 6={made[2]} {end}",
               (4, 5, 6), weights=weights[2])  # fmt: skip
    if i % 4 == 0:
        depth = f"21={kd} 22={dilation[2]} 23={stride[2]}"
        every = f"{wide} {high} {depth} {' '.join(sides)} 6={made[3]} {end}"
        yield case(f"Convolution{deep}3D 0={count} {every}", (4, 6, 7, 8), weights=weights[3])
        every += " 18=1 20=0"
        yield case(f"Deconvolution{deep}3D 0={count} {every}", (4, 4, 5, 6), weights=weights[3])


def poolings():
    rng = np.random.default_rng(8)
    for i in range(32):
        kind, mode, divisor = i % 2, (i // 2) % 4, (i // 8) % 2
        stride = rng.integers(1, 4, 2)
        # ncnn itself reads past its memory where "same" windows are smaller than strides
        kernel = np.maximum(rng.integers(2, 5, 2), stride)
        sides = [] if mode > 1 else [f"{key}={rng.integers(0, k)}" for key, k in
                 zip((3, 13, 14, 15), (*kernel, *kernel), strict=True)]  # fmt: skip
        window = f"0={kind} 5={mode} 6={divisor} 1={kernel[0]} 2={stride[0]}"
        lines = [s for s in sides if s.startswith(("3=", "14="))]
        yield case(f"Pooling1D {window} {' '.join(lines)}", (4, 11))
        yield case(f"Pooling {window} 11={kernel[1]} 12={stride[1]} {' '.join(sides)}", (4, 9, 11))
        if mode != 3:
            more = f"11={kernel[1]} 12={stride[1]} 21=2 22=2 23=0 16=0"
            yield case(f"Pooling3D {window} {more} {' '.join(sides)}", (4, 5, 6, 7))
    yield case("Pooling 0=0 1=1 2=3 | 1,9,11")
    for kind in range(2):
        for sizes in ("8=3 18=2 | 3,7,9", "8=4 | 3,8,8", "8=7 | 3,5,5", "8=-233 18=2 | 3,5,5",
                      "8=1 | 3,5,6"):  # fmt: skip
            yield case(f"Pooling 0={kind} 7=1 {sizes}")
        yield case(f"Pooling1D 0={kind} 7=1 8=3 | 3,7")
        yield case(f"Pooling3D 0={kind} 7=1 8=3 18=2 28=1 | 3,4,5,7")
        for name, shape in (("Pooling1D", PLANE), ("Pooling", VOLUME), ("Pooling3D", DEEP)):
            yield case(f"{name} 0={kind} 4=1", shape)


def normalizations():
    for shape in (VOLUME, PLANE, LINE, DEEP):
        n = shape[0]
        if shape != DEEP:
            yield case(f"BatchNorm 0={n} 1=0.01", shape, weights=f"r{n} r{n} p{n} r{n}")
        yield case(f"GroupNorm 0=2 1={n} 2=0.01", shape, weights=f"r{n} r{n}")
        yield case(f"GroupNorm 0={n} 1={n} 3=0", shape)
        for count in (1, 2):
            size = int(np.prod(shape[-count:]))
            if len(shape) <= count:
                continue
            yield case(f"LayerNorm 0={size} 1=0.01", shape, weights=f"r{size} r{size}")
            yield case(f"LayerNorm 0={size} 2=0", shape)
            yield case(f"RMSNorm 0={size} 1=0.01", shape, weights=f"r{size}")
            yield case(f"RMSNorm 0={size} 2=0", shape)


def other_normalizations():
    for line in ("MVN", "MVN 0=1", "LRN", "InstanceNorm 2=0", "GroupNorm 1=4 3=0",
                 "LayerNorm 0=6 2=0", "RMSNorm 0=6 2=0", "InstanceNorm 0=4 1=0.01 | r4 r4",
                 "InstanceNorm 0=0 2=0", "Normalize 3=4 | r4"):  # fmt: skip
        yield case(line)
    for variance, across in product(range(2), repeat=2):
        yield case(f"MVN 0={variance} 1={across} 2=0.01")
    for mode, over in product(range(3), ("0=1 4=0", "0=0 4=1", "0=1 4=1")):
        for shared, count in ((0, 4), (1, 1)):
            yield case(f"Normalize {over} 1={shared} 2=0.01 3={count} 9={mode} | r{count}")
    for region, size in product(range(2), (1, 3, 4, 5)):
        yield case(f"LRN 0={region} 1={size} 2=0.9 3=0.6 4=1.5 | 5,6,7")


def reductions():
    axes = {1: ("1,0",), 2: ("1,0", "1,-1", "2,0,1"), 3: ("1,0", "2,1,2", "2,-1,-2", "3,0,1,2"),
            4: ("2,0,-1", "2,1,2")}  # fmt: skip
    yield case("Reduction")
    for kind in range(11):
        values = "positive" if kind > 8 else "any"
        for shape in SHAPES:
            yield case(f"Reduction 0={kind} 1=1 2=0.5 4={kind % 2} 5=1", shape, values=values)
            for found in axes[len(shape)]:
                line = f"Reduction 0={kind} 1=0 2=0.5 -23303={found} 4={(kind + 1) % 2} 5=1"
                yield case(line, shape, values=values)


def resizings():
    sizes = ("1=2.0 2=2.0", "1=3.0 2=2.0", "1=0.5 2=0.5", "1=1.5 2=2.5", "1=0.7 2=0.4", "3=5 4=4",
             "3=14 4=18", "3=1 4=1", "3=13 4=7")  # fmt: skip
    for kind in (1, 2, 3):
        for shape, size in product(("3,7,9", "2,4,3", "5,7"), sizes):
            yield case(f"Interp 0={kind} {size} | {shape}")
            if kind > 1:
                yield case(f"Interp 0={kind} {size} 6=1 | {shape}")
        yield case(f"Interp 0={kind} 3=4 4=5 | 3")
        for reference in ("1,9,7", "9,7", "7"):
            yield case(f"Interp 0={kind} 5=1 | 3,4,5 | {reference}")
        yield case(f"Interp 0={kind} 5=1 | 4 | 6")


def samplings():
    for kind, border, aligned in product((1, 2, 3), (1, 2), range(2)):
        line = f"GridSample 0={kind} 1={border} 2={aligned}"
        yield case(f"{line} | 3,6,7 | 4,5,2")
        yield case(f"{line} 3=1 | 3,6,7 | 2,4,5")
        if kind < 3:
            yield case(f"{line} | 2,4,5,6 | 3,4,5,3")


def parts():
    for shape in SHAPES:
        for axis in range(-len(shape), len(shape)):
            yield case(f"Concat 0={axis}", shape, shape)
            for ends in ("b 1={} -23300=2,-233,-233", "b,c 1={} -23300=3,1,-233,-233",
                         "b 1={} -23300=2,2,-233", "b,c 1={} -23302=2,1,-1"):  # fmt: skip
                yield case(f"Slice ->out,{ends.format(axis)}", shape)
            if axis >= 0:
                yield case(f"Tile 0={axis} 1=3", shape)
        for count in range(1, min(5, len(shape) + 2)):
            yield case(f"Tile -23302={count},{','.join('2312'[:count])}", shape)
    for crop, shapes in (
        ("0=1 1=1 2=1 3=3 4=2 5=2", "4,6,7 6,7 7"),
        ("0=1 1=1 3=-233 4=-233 5=-233 6=1 7=1", "4,6,7 6,7 7"),
        ("0=1 3=9 4=3 5=1", "4,6,7 6,7 7"),
        ("0=1 1=1 2=1 13=1 14=2 3=2 4=2 5=1", "3,4,6,7"),
        ("-23309=1,-3 -23310=1,-1 -23311=1,-1", "4,6,7 3,4,6,7"),
        ("-23309=1,1 -23310=1,100 -23311=1,-1", "4,6,7 3,4,6,7"),
        ("-23309=2,1,0 -23310=2,3,-233 -23311=2,0,1", "4,6,7 3,4,6,7"),
        ("-23309=3,1,1,1 -23310=3,3,-1,-233", "4,6,7"),
    ):
        for shape in shapes.split():
            yield case(f"Crop {crop} | {shape}")
    yield case("Crop 0=1 1=2 2=1 | 4,6,7 | 2,3,4")
    yield case("Crop 0=1 1=2 | 4,6,7 | 3,4")
    yield case("Padding")
    for kind in range(3):
        for more in (" | 4,5,6", " | 4,5", " | 5", " 7=1 8=2 | 4,5,6", " 7=1 8=2 | 2,3,4,5"):
            yield case(f"Padding 0=1 1=2 2=3 3=1 4={kind} 5=0.5{more}")


def moves():
    for shape, orders in ((PLANE, 2), (VOLUME, 6), (DEEP, 24)):
        for order in range(orders):
            yield case(f"Permute 0={order}", shape)
    for shape in (VOLUME, PLANE, DEEP):
        yield case("Flatten", shape)
        for reverse in range(2):
            yield case(f"ShuffleChannel 0=2 1={reverse}", shape)
    for mode in range(2):
        yield case(f"ShuffleChannel 0=3 1={mode} | 12,3,4")
        yield case(f"PixelShuffle 0=2 1={mode} | 12,3,4")
        yield case(f"Reorg 0=2 1={mode} | 3,4,6")
    for line in (
        "0=30 1=4", "0=6 1=-1", "0=0 1=-1", "0=-1 1=0 2=2", "0=-1", "0=0 1=0 2=0",
        "0=3 1=2 2=-1 | 4,6", "0=0 1=2 2=2 | 4,6", "0=6 1=4 2=0 | 4,6",
        "0=2 1=3 2=4 | 24", "0=2 1=3 11=2 2=-1 | 24",
        "0=0 1=0 11=-1 2=1 | 2,3,4,5", "0=20 1=-1 | 2,3,4,5",
        "12=0 0=-1", "13=0 0=-1 1=1", "12=0 13=0 0=0 1=0 11=-1 2=0", "12=1 13=1 0=6 1=1 2=20",
        "12=-1 13=-1 0=-1 1=24 2=5", '12=0 13=0 6="1,1,//(4,0n),0n" | 4',
        '12=1 13=0 6="0w,0h,2,2,0n"', "12=0 13=-2 0=0 1=1 2=0 | 1,4", '6="0,0,*(0n,4)"',
    ):  # fmt: skip
        yield case(f"Reshape {line}")


def axes():
    for shape, line in product(
        ("1,5,1", "1,1,6", "4,1", "1", "1,3,1,5", "2,3"),
        ("0=1", "1=1", "2=1", "11=1", "0=1 1=1 2=1", "-23303=1,0", "-23303=1,-1"),
    ):
        yield case(f"Squeeze {line} | {shape}")
    for shape, line in product(("4,5,6", "5,6", "6"), ("1,0", "1,-1", "1,1")):
        yield case(f"ExpandDims -23303={line} | {shape}")
    for line in ("2,0,-1", "2,0,1"):
        yield case(f"ExpandDims -23303={line} | 4,6")
    for line in ("Dropout 0=0.4", "Dropout", "DeepCopy", "Noop", "Cast 0=1 1=1", "Split ->out,b"):
        yield case(line)


def products():
    for more in ("| 6 | f18 r3", "| 5,6 | f18 r3", "| 1,6 | f18 r3",
                 *(f"{activation} | 3,2,1 | f18 r3" for activation in ACTIVATIONS)):  # fmt: skip
        yield case(f"InnerProduct 0=3 2=18 1=1 {more}")
    yield case("InnerProduct 0=3 2=18 | 2,3 | h18")
    for factors in ("3,4 | 4,5", "2,3,4 | 2,4,5", "2,3,4 | 1,4,5", "2,3,4 | 4,5", "3,4 | 2,4,5",
                    "4 | 4,5", "2,2,3,4 | 2,2,4,5", "2,2,3,4 | 4,5"):  # fmt: skip
        yield case(f"MatMul 0=0 | {factors}")
        yield case(f"MatMul 0=1 | {factors.removesuffix('4,5')}5,4")
    for turned, shape in product(range(2), ("3,4", "4", "2,3,4")):
        yield case(f"MatMul 0={turned} | {shape} | 4")
    for line in ("| 3,4", "14=1 | 3,4", "11=1 | 3,4", "14=1 11=1 | 3,4"):
        yield case(f"Gemm {line} | 4,5")
    yield case("Gemm 2=1 3=1 0=0.5 | 4,3 | 5,4")
    for c in ("1", "3", "5", "3,5", "1,5", "3,1"):
        yield case(f"Gemm 0=0.5 1=2.0 | 3,4 | 4,5 | {c}")
    for weights in ("-1 1=0.7", "0 1=0.7 | f1", "1 1=0.7 | f3", "2 1=0.7 | f3", "3 1=0.7 | f15",
                    "4 1=0.7 | f5"):  # fmt: skip
        yield case(f"Gemm 6=1 7=3 8=5 9=4 10={weights}", (3, 4), (4, 5))
    yield case("Gemm | 4,5 | 5,4 | 4")  # a row, not a column
    yield case("Gemm 5=1 7=3 8=5 9=4 | 3,4 | f20")
    yield case("Gemm 4=1 2=1 7=3 8=5 9=4 | 4,5 | h12")
    yield case("Gemm 3=1 5=1 6=1 8=5 9=4 10=4 | 3,4 | f20 f5")
    yield case("Gemm 3=1 5=1 6=1 8=5 9=4 10=4 11=1 | 3,1,4 | f20 f5")
    same = "f64 r8 f64 r8 f64 r8 f64 r8"
    for line in (
        f"1=2 2=64 | 5,8 | {same}",
        f"1=2 2=64 5=1 | 5,8 | 5,5 | {same}",
        "1=2 2=64 3=6 4=6 | 5,8 | 7,6 | f64 r8 f48 r8 f48 r8 f64 r8",
        "1=4 2=64 3=6 4=5 | 5,8 | 7,6 | 7,5 | f64 r8 f48 r8 f40 r8 f64 r8",
        f"1=2 2=64 5=1 6=0.3 | 5,8 | 7,8 | 7,8 | 2,5,7 | {same}",
        "1=2 2=48 3=6 4=6 | 5,6 | f48 r8 f48 r8 f48 r8 f48 r6",
    ):
        yield case(f"MultiHeadAttention 0=8 {line}")


def recurrent():
    """Yields cases of LSTM, GRU and RNN layers from rows of 5 to rows of 4 or more.

    Some have their states as inputs and outputs.
    """
    for kind, gates, biases in (("LSTM", 4, 4), ("GRU", 3, 4), ("RNN", 1, 1)):
        for direction in range(3):
            dirs = 2 if direction == 2 else 1
            total = dirs * gates * 4 * 5
            weights = f"f{total} f{dirs * biases * 4} f{dirs * gates * 16}"
            line = f"{kind} 0=4 1={total} 2={direction}"
            states = [(dirs, 4)] * (2 if kind == "LSTM" else 1)
            names = ",".join(["out", "h", "c"][: 1 + len(states)])
            yield case(line, (3, 5), weights=weights)
            if direction == 1:
                continue
            named = line.replace(kind, f"{kind} ->{names}")
            yield case(named, (3, 5), *states, weights=weights)
            yield case(named, (1, 5), weights=weights)
    yield case("LSTM 0=4 1=120 2=0 3=6 | 3,5 | f120 f24 h96 f24")
    yield case("LSTM 0=4 1=240 2=2 3=6 | 3,5 | f240 f48 h192 f48")


def attention():
    """Yields cases of attention whose projections are other layers, and of rotated rows."""
    for shapes in ("3,5,8 | 3,7,8 | 3,7,6", "4,5,8 | 2,7,8 | 2,7,8", "4,1,6 | 1,1,6 | 1,1,3"):
        yield case(f"SDPA | {shapes}")
        yield case(f"SDPA 6=0.3 | {shapes}")
    yield case("SDPA 5=1 | 3,5,8 | 3,7,8 | 3,7,6 | 5,7")
    yield case("SDPA 5=1 | 4,5,8 | 2,7,8 | 2,7,6 | 4,5,7")
    yield case("SDPA 5=1 | 4,5,8 | 2,7,8 | 2,7,6 | 1,5,7")
    for interleaved in range(2):
        for tables in ("5,4", "1,5,4", "7,4"):
            yield case(f"RotaryEmbed 0={interleaved} | 3,5,8 | {tables} | {tables}")
    yield case("RotaryEmbed | 3,5,8 | 5,8 | 5,8")


def columns():
    """Yields cases of windows as columns, and back, and of moved windows."""
    rng = np.random.default_rng(9)
    for i in range(16):
        kernel, stride, dilation = (rng.integers(1, 4, 2) for _ in range(3))
        before, behind = rng.integers(0, 3, 2), rng.integers(0, 3, 2)
        window = (f"1={kernel[0]} 11={kernel[1]} 2={dilation[0]} 12={dilation[1]} "
                  f"3={stride[0]} 13={stride[1]}")  # fmt: skip
        sides = f"4={before[0]} 15={behind[0]} 14={before[1]} 16={behind[1]}"
        same = f"4={-233 - i % 2} 18=0.5"
        size = (9, 11)  # height, width
        counts = [
            (n + a + b - (k - 1) * d - 1) // s + 1
            for n, a, b, k, d, s in zip(
                size[::-1], before, behind, kernel, dilation, stride, strict=True
            )
        ]
        taps = int(np.prod(kernel))
        yield case(f"Unfold {window} {sides} 18=0.25", (3, *size))
        yield case(f"Unfold {window} {same}", (2, *size))
        yield case(
            f"Fold {window} {sides} 20={size[1]} 21={size[0]}", (3 * taps, int(np.prod(counts)))
        )
        maps = (int(counts[1]), int(counts[0]))
        line = f"DeformableConv2D 0=4 {window} {sides} 5={i % 2} 6={12 * taps} {ACTIVATIONS[i % 7]}"
        weights = f"f{12 * taps}" + " r4" * (i % 2)
        yield case(line, (3, *size), (2 * taps, *maps), (taps, *maps), weights=weights)


def spectra():
    """Yields cases of transforms of signals of 40 samples, and of the inverse."""
    for power, window in product(range(3), range(3)):
        more = f"1={power} 4={window} 7={(power + window) % 3} 8={window % 2}"
        yield case(f"Spectrogram 0=12 {more} | 40")
        yield case(f"Spectrogram 0=9 2=4 3=6 6={window} {more} | 40")
        yield case(f"Spectrogram 0=12 2=5 5=0 {more} | 40")
        parts = f"1={power} 4={2 - window % 2 * 2} 7={(power + window) % 3}"
        yield case(f"InverseSpectrogram 0=12 {parts} | 7,6,2")
        yield case(f"InverseSpectrogram 0=12 2=5 5=0 {parts} | 12,6,2")
        yield case(f"InverseSpectrogram 0=9 2=2 {parts} | 5,6,2")
        yield case(f"InverseSpectrogram 0=9 3=7 5=0 {parts} | 5,6,2")


def statistics():
    for shape in SHAPES:
        for with_deviation in range(2):
            yield case(f"StatisticsPooling 0={with_deviation}", shape)


def replacements():
    for offsets, shapes in (
        ("0=1", "6 | 3"),
        ("0=3", "6 | 3"),
        ("0=1 1=2", "4,6 | 2,3"),
        ("1=3", "4,6 | 6"),
        ("0=1 1=2 2=1", "4,5,6 | 2,3,2"),
        ("0=1 2=3", "4,5,6 | 5,2"),
        ("0=1 1=1 13=2 2=1", "3,4,5,6 | 2,1,3,4"),
        ("0=2", "3,4,5,6 | 3,4,5,3"),
        ("", "4,5,6 | 4,5,6"),
        ("-23309=1,2 -23311=1,1", "4,5,6 | 4,2,6"),
        ("-23309=2,1,-3 -23311=2,0,-1", "4,5,6 | 2,5,2"),
        ("-23309=3,1,-233,2", "4,5,6 | 2,3,4"),
    ):
        yield case(f"CopyTo {offsets} | {shapes}")


def flips():
    for shape in SHAPES:
        rank = len(shape)
        for count in range(1, rank + 1):
            for found in combinations(range(rank), count):
                for chosen in (found, tuple(axis - rank for axis in found)):
                    listed = ",".join(map(str, (count, *chosen)))
                    yield case(f"Flip -23300={listed}", shape)
    for distance in range(-3, 4):
        yield case(f"Diag 0={distance} | 5")
        yield case(f"Diag 0={distance} | 5,4")
        yield case(f"Diag 0={distance} | 4,6")


def equations():
    for equation, shapes in (
        ("ik,kj->ij", "3,4 | 4,5"),
        ("ij,ij->i", "3,4 | 3,4"),
        ("i,j->ij", "3 | 4"),
        ("ji->ij", "3,4"),
        ("ijl,ijkl->ijk", "2,3,4 | 2,3,5,4"),
        ("ikl,jl->ijk", "2,3,4 | 5,4"),
        ("ijl,ikl->ijk", "2,3,5 | 2,4,5"),
        ("ijk->i", "2,3,4"),
        ("ii,ij->ij", "3,3 | 3,4"),
        ("iji->ij", "3,4,3"),
        ("il,jl,kl->ijk", "2,5 | 3,5 | 4,5"),
        ("ijkl,ijkl->ijkl", "2,3,4,5 | 2,3,4,5"),
        ("ijkm,ijlm->ijkl", "1,2,3,5 | 1,2,4,5"),
        ("im,mnj->ij", "2,3 | 3,4,5"),
    ):
        codes = ",".join(map(str, (len(equation), *map(ord, equation))))
        yield case(f"Einsum -23300={codes} | {shapes}")


def formulas():
    """Yields cases whose sizes and positions are formulas of the inputs' extents."""
    for formula, shapes in (
        ("/(0w,2),*(0h,2),0c", "4,5,6"),
        ("0w,-1", "4,5,6"),
        ("//(0w,4),0,-1", "4,5,6"),
        ("1w,-1", "4,5,6 | 4,2"),
        ("*(0w,0h),0c", "4,5,6"),
        ("-(+(0w,0h),1),-1", "2,5,6"),
        ("max(0w,0h),min(0w,0h),0c", "4,5,6"),
        ("abs(neg(0w)),sign(0h),-1", "4,5,6"),
        ("round(*(0w,0.9)),-1", "4,5,6"),
        ("ceil(/(0w,4)),floor(/(0h,2)),trunc(1.9),-1", "3,4,5,6"),
        ("sqrt(square(0w)),-1", "4,5,6"),
        ("and(0w,4),or(0h,1),xor(0c,1),-1", "8,3,5,6"),
        ("lshift(1,1),rshift(0h,1),-1", "4,4,6"),
        ("remainder(0w,4),-1", "4,5,6"),
        ("pow(2,reciprocal(0.5)),-1", "4,5,6"),
    ):
        yield case(f'Reshape 6="{formula}" | {shapes}')
    for line in (
        'Crop 19="1,0" 20="//(0c,2),-(0h,1)" 21="0,1" | 5,4,6',
        'Crop 19="1" 20="-233" 21="-1" | 4,6',
        'Crop 19="-(1c,1)" 20="0c" 21="0" | 5,4,6 | 3,1,1',
        'Interp 0=1 9="*(0w,2),*(0h,3)" | 3,4,5',
        'Interp 0=2 9="//(0w,2),0h" | 3,4,6',
        'Interp 0=3 9="1w,1h" | 3,4,6 | 1,7,9',
        'Interp 0=2 9="*(0w,2)" | 3,6',
        "Interp 0=2 1=1.5 2=2.0 9=2 | 3,4,6",
        "Reshape 0=24 1=-1 6=-1 | 4,5,6",
    ):
        yield case(line)


FAMILIES = (
    attention, columns, spectra, statistics, replacements, flips, equations, formulas,
    activations, arithmetic, convolutions, poolings, normalizations,
    other_normalizations, reductions, resizings, samplings, parts,
    moves, axes, products, recurrent,
)  # fmt: skip

#: Another test checks the numbers of each.
ELSEWHERE = {"ArgMax", "Embed", "Input", "MemoryData", "Packing", "SPP", "pnnx.Expression"}


def test_every_layer_type_is_compared():
    compared = {line.split()[0] for family in FAMILIES for line, *_ in family()}
    assert compared | ELSEWHERE == set(LAYERS)


def test_the_table_has_every_layer_of_ncnns_own_list():
    """The table names every layer number of ncnn, also those that this build of ncnn lacks."""
    import ncnn

    numbers = {ncnn.layer_to_index(name) for name in ncnn_layers()}
    created = [number for number in range(400) if ncnn.create_layer(number) is not None]
    assert len(created) > 100
    assert set(range(max(created) + 1)) == numbers


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_numbers_are_ncnns(family, tmp_path, rng):
    wrong = []
    for line, shapes, weights, values in family():
        assert not weights or line.split()[0] not in WITHOUT_WEIGHTS
        fault = compare(tmp_path, rng, line, shapes, weights, values)
        wrong += [f"{line} {shapes}: {fault}"] if fault else []
    assert not wrong, "\n".join(wrong)


def test_ncnn_comparison_detects_a_wrong_number(tmp_path, rng, monkeypatch):
    right = run_ncnn
    monkeypatch.setitem(globals(), "run_ncnn", lambda *given: [1.001 * v for v in right(*given)])
    line, *rest = case("ReLU")
    assert "differs by" in compare(tmp_path, rng, line, *rest)


def test_weights_as_a_table(tmp_path, rng):
    """Weights stored as bytes that are indices of a table of 256 values give ncnn's result.

    An unknown type flag announces the table.
    """
    table, places = rng.standard_normal(256).astype("<f4"), rng.integers(0, 256, 18)
    weights = struct.pack("<I", 1) + table.tobytes() + places.astype(np.uint8).tobytes() + bytes(2)
    path = write(tmp_path, [input_line("x", LINE), "InnerProduct i 1 1 x out 0=3 2=18"], weights)
    x = rng.standard_normal(6, np.float32)
    (expected,) = run_ncnn(path, {"x": x}, ["out"])
    actual = cml.Session(cml.load(path), "cpu").run({"x": x[None]})["out"]
    np.testing.assert_allclose(actual[0], expected, rtol=1e-5)


def test_stored_tensors(tmp_path, rng):
    for line, shape, weights in (("0=6 1=5 2=4", VOLUME, "r120"), ("0=6 1=4", PLANE, "r24"),
                                 ("0=6 1=5 2=4 21=0", VOLUME, "h120"),
                                 ("0=5 1=4 11=3 2=4", DEEP, "r240")):  # fmt: skip
        lines = f"MemoryData m 0 1 k {line}\nBinaryOp b 2 1 x0 k out 0=0"
        assert compare(tmp_path, rng, lines, (shape,), weights, "any") == ""


@pytest.mark.parametrize("bias", [0, 1])
def test_rows_of_a_table(tmp_path, rng, bias):
    """An Embed layer gives ncnn's rows, also for indices out of range.

    The indices are floats in the engine and integers in ncnn.
    """
    line = f"Embed e 1 1 x out 0=3 1=7 2={bias} 3=21"
    path = write(
        tmp_path, [input_line("x", LINE), line], weight_bytes("f21 r3"[: 3 + 3 * bias], rng)
    )
    words = np.array([0, 6, 3, 3, -2, 9], np.int32)
    (expected,) = run_ncnn(path, {"x": words}, ["out"])
    actual = cml.Session(cml.load(path), "cpu").run({"x": words[None].astype(np.float32)})["out"]
    np.testing.assert_allclose(actual[0], expected, rtol=1e-6)


def run_both(folder, rng, line, shape, weights=""):
    """Returns the input, the weights, and the result of a layer in the engine and in ncnn."""
    text, (shape,), _, _ = case(line, shape)
    x, stored = rng.standard_normal(shape, np.float32), weight_bytes(weights, rng)
    path = write(folder, [input_line("x0", shape), text], stored)
    (theirs,) = run_ncnn(path, {"x0": x}, ["out"])
    ours = cml.Session(cml.load(path), "cpu").run({"x0": x[None]})["out"][0]
    return x, np.frombuffer(stored, np.float32), ours, theirs


@pytest.mark.parametrize("shape", [PLANE, (6, 1), (3, 5), VOLUME])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_a_norm_over_all_axes_is_not_ncnns(kind, shape, tmp_path, rng):
    """The weights say all axes, as in PyTorch; ncnn goes over each row or channel."""
    size, is_layer_norm = int(np.prod(shape)), kind == "LayerNorm"
    weights = f"r{size} r{size}" if is_layer_norm else f"r{size}"
    x, stored, ours, theirs = run_both(tmp_path, rng, f"{kind} 0={size} 1=0.01", shape, weights)
    scale, offset = np.split(stored, 2) if is_layer_norm else (stored, np.zeros(size))
    centred = x - x.mean() if is_layer_norm else x
    expected = centred / np.sqrt(np.square(centred).mean() + 0.01)
    expected = expected * scale.reshape(shape) + offset.reshape(shape)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(ours - theirs).max() > 0.1
    assert LAYERS[kind].differences


def test_the_nearest_position_of_a_half_is_the_even_one(tmp_path):
    line = "GridSample g 2 1 x0 x1 out 0=2 2=1"
    arrays = {"x0": np.arange(9, dtype=np.float32).reshape(1, 1, 9)}
    arrays["x1"] = np.zeros((1, 8, 2), np.float32)
    arrays["x1"][0, :, 0] = (np.arange(8) + 0.5) / 4 - 1
    path = write(tmp_path, [input_line(name, x.shape) for name, x in arrays.items()] + [line])
    (theirs,) = run_ncnn(path, arrays, ["out"])
    ours = cml.Session(cml.load(path), "cpu").run({name: x[None] for name, x in arrays.items()})
    assert ours["out"].ravel().tolist() == [0, 2, 2, 4, 4, 6, 6, 8]
    assert theirs.ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "nearest" in LAYERS["GridSample"].differences


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_sample_is_reflected_at_both_borders(kind, aligned, tmp_path, rng):
    """The positions are a mirror image, which ncnn samples too, and others a period away."""
    line = f"GridSample g 2 1 x0 x1 out 0={kind} 1=3 2={aligned}"
    grid = rng.uniform(-1, 1, (4, 5, 2)).astype(np.float32)
    arrays = {"x0": rng.standard_normal((3, 6, 7), np.float32), "x1": grid}
    path = write(tmp_path, [input_line(name, x.shape) for name, x in arrays.items()] + [line])
    session = cml.Session(cml.load(path), "cpu")
    (expected,) = run_ncnn(path, arrays, ["out"])
    for positions in (2 - grid, 4 + grid, -6 - grid):
        arrays["x1"] = positions
        actual = session.run({name: x[None] for name, x in arrays.items()})["out"][0]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-4)
    assert LAYERS["GridSample"].differences


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("Pooling1D 0=1 1=1 2=3", (2, 5)),
        ("Pooling1D 0=1 1=2 2=1 3=3 5=1", (2, 5)),
        ("Pooling 0=1 1=1 2=3", (2, 5, 8)),
        ("Pooling 0=1 1=2 2=2 3=2 5=1", (2, 4, 6)),
    ],
)
def test_an_average_over_padding_alone_is_0(line, shape, tmp_path, rng):
    """ncnn divides by 0 there; all other averages agree."""
    _, _, ours, theirs = run_both(tmp_path, rng, line, shape)
    is_empty = np.isnan(theirs)
    assert is_empty.any() and not is_empty.all() and not ours[is_empty].any()
    np.testing.assert_allclose(ours[~is_empty], theirs[~is_empty], rtol=1e-5)
    assert LAYERS[line.split()[0]].differences


def compare(folder, rng, line, shapes, weights, values):
    """Runs a case in the engine and in ncnn; returns the first difference in words, "" if there
    is none."""
    last = line.split("\n")[-1].split()
    outputs = last[4 + int(last[2]) : 4 + int(last[2]) + int(last[3])]
    arrays = {f"x{i}": _values(rng, shape, values) for i, shape in enumerate(shapes)}
    lines = [input_line(name, x.shape) for name, x in arrays.items()] + line.split("\n")
    path = write(folder, lines, weight_bytes(weights, rng))
    theirs = run_ncnn(path, arrays, outputs)
    session = cml.Session(cml.load(path), "cpu")
    ours = session.run({name: x[None] for name, x in arrays.items()})
    for name, expected in zip(outputs, theirs, strict=True):
        actual = ours[name][0]
        if actual.shape != expected.shape:
            return f"{name} is {actual.shape}, wanted {expected.shape}"
        apart = np.abs(actual - expected)
        if not (apart <= 2e-5 * (1 + np.abs(expected).max())).all():
            return f"{name} differs by {apart.max()}"
    return ""


def _values(rng, shape, values):
    x = rng.standard_normal(shape, np.float32)
    if values == "positive":
        return np.abs(x) + np.float32(0.1)
    if values == "above 1":
        return np.abs(x) + np.float32(1)
    if values == "small":
        return (np.tanh(x) * np.float32(0.95)).astype(np.float32)
    return np.round(4 * x) / 2 if values == "halves" else x
