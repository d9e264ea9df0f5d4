"""ncnn layers that move, pool or resample elements; the numbers are ncnn's parameter ids."""

from __future__ import annotations

from cml_engine.convert.conversion import MISSING, Conversion, pair
from cml_engine.convert.ncnn_files import Layer

# -- moving elements ---------------------------------------------------------------------------


def concat(layer: Layer, to: Conversion, *inputs: str) -> None:
    if not inputs:
        raise layer.damaged("no inputs")
    axis = to.axis(layer.whole(0), layer)
    to.put(layer, to.builder.node("concat", inputs, layer.outputs[0], axis=axis))


def slice(layer: Layer, to: Conversion, x: str) -> None:
    sizes = layer.values(0)
    if len(sizes) != len(layer.outputs):
        raise layer.damaged(f"{len(sizes)} sizes for {len(layer.outputs)} outputs")
    if MISSING in sizes and set(sizes) != {MISSING}:
        raise layer.unsupported("a last part that takes the rest")
    ratios = [1 if size == MISSING else size for size in sizes]
    axis = to.axis(layer.whole(1), layer)
    to.put(layer, *to.builder.split_node("split", [x], layer.outputs, axis=axis, ratios=ratios))


def pixel_shuffle(layer: Layer, to: Conversion, x: str) -> None:
    """(C r r, H, W) -> (C, H r, W r): three reshapes round one transpose."""
    factor, mode, output = layer.whole(0, 1), layer.whole(1), layer.outputs[0]
    if factor < 1 or mode not in (0, 1):
        raise layer.unsupported(f"factor {factor}, mode {mode}")
    parts = [-1, factor, factor] if mode == 0 else [factor, factor, -1]
    axes = [0, 1, 4, 2, 5, 3] if mode == 0 else [0, 3, 4, 1, 5, 2]
    node = to.builder.node
    x = node("reshape", [x], f"{output}_split", shape=parts, axis_start=1, axis_count=1)
    x = node("transpose", [x], f"{output}_woven", axes=axes)
    x = node("reshape", [x], f"{output}_rows", shape=[-1], axis_start=2, axis_count=2)
    x = node("reshape", [x], output, shape=[-1], axis_start=3, axis_count=2)
    to.put(layer, x, rank=4)


def flatten(layer: Layer, to: Conversion, x: str) -> None:
    to.put(layer, to.flattened(x, layer.outputs[0]), rank=2)


def reshape(layer: Layer, to: Conversion, x: str) -> None:
    shape = [layer.whole(key, MISSING) for key in (2, 1, 0)]
    shape = [extent for extent in shape if extent != MISSING]
    if 11 in layer.params or layer.whole(3):
        raise layer.unsupported("four axes or a permutation")
    if 0 in shape and len(shape) + 1 != to.rank(layer):
        raise layer.unsupported("keeping an extent of a shape with other axes")
    result = to.builder.node("reshape", [x], layer.outputs[0], shape=shape, axis_start=1)
    to.put(layer, result, rank=1 + len(shape))


def padding(layer: Layer, to: Conversion, x: str) -> None:
    kind = layer.whole(4)
    if kind not in (0, 1, 2) or layer.whole(6) or to.rank(layer) != 4:
        raise layer.unsupported(f"padding of type {kind}")
    sides = [(layer.whole(a), layer.whole(b)) for a, b in ((7, 8), (0, 1), (2, 3))]
    border = ("constant", "replicate", "reflect")[kind]
    value = layer.number(5) if kind == 0 else 0.0
    padding = [(0, 0), *sides]
    to.put(
        layer,
        to.builder.node("pad", [x], layer.outputs[0], padding=padding, border=border, value=value),
    )


def crop(layer: Layer, to: Conversion, *inputs: str) -> None:
    if len(inputs) != 1 or to.rank(layer) != 4 or any(k in layer.params for k in (9, 10, 11)):
        raise layer.unsupported("a crop by a second input, or by axes")
    begin = [layer.whole(key) for key in (2, 1, 0)]
    sizes = [layer.whole(key) for key in (5, 4, 3)]
    behind = [layer.whole(key) for key in (8, 7, 6)]
    if any(size <= 0 and size != MISSING for size in sizes):
        raise layer.unsupported(f"sizes {sizes}")
    end = [
        -after if size == MISSING else start + size
        for start, size, after in zip(begin, sizes, behind, strict=True)
    ]
    result = to.builder.node(
        "slice", [inputs[0]], layer.outputs[0], axes=[1, 2, 3], begin=begin, end=end
    )
    to.put(layer, result)


# -- pooling and resampling --------------------------------------------------------------------


def pooling(layer: Layer, to: Conversion, x: str) -> None:
    average, output = layer.whole(0) == 1, layer.outputs[0]
    if layer.whole(7):
        raise layer.unsupported("adaptive pooling")
    if layer.whole(4):
        op = "mean_reduce" if average else "max_reduce"
        x = to.builder.node(op, [x], f"{output}_{op}", axes=[2, 3])
        to.put(layer, to.builder.node("squeeze", [x], output, axes=[2, 3]), rank=2)
        return
    size, stride = pair(layer, 1, 11), pair(layer, 2, 12)
    border = "ignore" if not average or not layer.whole(6) else "constant"
    result = to.builder.node(
        "avg_pool" if average else "max_pool",
        [x],
        output,
        size=[1, 1, *size],
        stride=[1, 1, *stride],
        padding=_pool_padding(layer, to, x, size, stride),
        border=border,
    )
    to.put(layer, result)


def _pool_padding(
    layer: Layer, to: Conversion, x: str, size: list[int], stride: list[int]
) -> list[tuple[int, int]]:
    mode, left = layer.whole(5), layer.whole(3)
    top = layer.whole(13, left)
    if mode == 2:
        return []
    if mode not in (0, 1) or min(stride) < 1:
        raise layer.unsupported(f"padding mode {mode}")
    sides = [(top, layer.whole(15, top)), (left, layer.whole(14, left))]
    if mode == 0 and stride != [1, 1]:
        sides = _rounded_up(layer, to, x, size, stride, sides)
    return [(0, 0), (0, 0), *sides]


def _rounded_up(
    layer: Layer,
    to: Conversion,
    x: str,
    size: list[int],
    stride: list[int],
    sides: list[tuple[int, int]],
) -> list[tuple[int, int]]:
    """ncnn's default mode rounds the output's size up: more padding at the end."""
    fact = to.builder.facts.get(x)
    if fact is None:
        raise layer.unsupported("pooling that rounds up needs the shapes, which are not known:")
    found = []
    for extent, k, step, (before, after) in zip(fact.shape[2:], size, stride, sides, strict=True):
        rest = (extent + before + after - k) % step
        found.append((before, after + (step - rest if rest else 0)))
    return found


def interp(layer: Layer, to: Conversion, x: str) -> None:
    kind, factors = layer.whole(0), [layer.number(1, 1.0), layer.number(2, 1.0)]
    whole = [int(factor) for factor in factors]
    if whole != factors or min(whole) < 1 or layer.whole(3) or layer.whole(4):
        raise layer.unsupported(f"resizing by {factors[0]:g} x {factors[1]:g} or to a fixed size")
    output = layer.outputs[0]
    if kind == 1:
        to.put(layer, to.builder.node("nearest_upsample", [x], output, factor=whole))
    elif kind == 2:
        method = "aligned" if layer.whole(6) else "symmetric"
        to.put(
            layer,
            to.builder.node("multilinear_upsample", [x], output, factor=whole, method=method),
        )
    else:
        raise layer.unsupported(f"resize type {kind}")
