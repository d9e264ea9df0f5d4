"""Which kernels a ``conv`` or ``deconv`` can have, and which it gets where nothing was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cml_engine.ops.conv.kernels import depthwise, winograd
from cml_engine.ops.conv.kernels import long as conv_long
from cml_engine.ops.conv.kernels import phases as conv_weave
from cml_engine.ops.conv.kernels import plain as conv_plain
from cml_engine.ops.conv.kernels import row_tile as conv_slide
from cml_engine.ops.conv.kernels import tile as conv_tile
from cml_engine.ops.conv.kernels.tile import Tile
from cml_engine.ops.conv.node import GROUP, SOFTWARE_GROUP, Conv, is_depthwise
from cml_engine.ops.declaration.choice import about
from cml_engine.ops.declaration.spec import Dispatch

#: a variant that computes more than so many results for one that is asked for is not worth a try
_MOST_WASTE = 4.0
#: rows and columns of the tiles worth a try; a CPU holds more sums than a GPU's registers do
_SOFTWARE_TILES = ((4, 4), (8, 4), (8, 8), (16, 4), (16, 8), (32, 4))
_TILES = ((4, 4), (8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (16, 4))
_SLIDES = ((4, 4), (8, 4), (8, 8), (16, 4), (16, 8))
_SOFTWARE_PRODUCTS = ((8, 4), (16, 4), (16, 8))
_PRODUCTS = ((8, 2), (8, 4), (16, 2), (16, 4))
_DEPTHWISE = ((1, 4), (2, 2), (2, 4), (4, 4))
#: threads of the workgroups worth a try on hardware, with the tile that the rules take
_GROUPS = (32, 128)


@dataclass(frozen=True, slots=True)
class ConvVariant:
    """A kernel and its tile: output channels by positions for each thread (of a depthwise tile,
    rows by columns), by the threads of a workgroup."""

    kernel: str
    tile: Tile

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.tile}"

    def lower(self, conv: Conv) -> Iterator[Dispatch]:
        """The node's dispatches."""
        return _LOWER[self.kernel](conv, self.tile)


_LOWER: dict[str, Callable[[Conv, Tile], Iterator[Dispatch]]] = {
    "tile": conv_tile.lower_tile,
    "long": conv_long.lower_long,
    "slide": conv_slide.lower_slide,
    "weave": conv_weave.lower_weave,
    "plain": conv_plain.lower_plain,
    "winograd": winograd.lower_winograd,
    "depthwise": depthwise.lower_depthwise,
}


def chosen_variant(conv: Conv) -> ConvVariant:
    """The variant that is fastest on the device as far as it was measured, else the usual one."""
    if conv_long.is_needed(conv):
        return ConvVariant("long", conv_tile.usual_tile(conv))
    usual = usual_variant(conv)
    options = {variant.name: variant for variant in (usual, *_others(conv))}
    return conv.op.choose(conv_key(conv), options, usual.name)


def usual_variant(conv: Conv) -> ConvVariant:
    """Winograd tiles where they gain, tiles of positions for depthwise windows that overlap, else
    a register tile of output channels by positions: a run of neighbours where that saves loads, of
    all phases of a deconv, any positions where not; of a plain input where it has few channels."""
    if winograd.is_possible(conv) and winograd.gains(conv):
        return ConvVariant("winograd", winograd.usual_tile(conv))
    if depthwise.is_possible(conv):
        return ConvVariant("depthwise", depthwise.usual_tile(conv))
    if conv_plain.gains(conv):
        return ConvVariant("plain", conv_slide.usual_tile(conv))
    if conv_slide.gains(conv):
        return ConvVariant("slide", conv_slide.usual_tile(conv))
    if conv_weave.gains(conv):
        return ConvVariant("weave", conv_weave.usual_tile(conv))
    return ConvVariant("tile", conv_tile.usual_tile(conv))


def _others(conv: Conv) -> Iterator[ConvVariant]:
    """The other variants that could be faster, in some order."""
    software = conv.op.limits.software
    group = SOFTWARE_GROUP if software else GROUP
    if is_depthwise(conv):
        if depthwise.is_possible(conv):
            yield from (ConvVariant("depthwise", Tile(*size, GROUP)) for size in _DEPTHWISE)
        yield from (ConvVariant("tile", Tile(4, columns, group)) for columns in (1, 2, 4))
        return
    sizes = _SOFTWARE_TILES if software else _TILES
    yield from (ConvVariant("tile", tile) for tile in _fitting(conv, sizes, group))
    if not software:
        usual = conv_tile.usual_tile(conv)
        for threads in _GROUPS:
            yield ConvVariant("tile", Tile(usual.rows, usual.columns, threads))
    for kernel, possible in (("slide", conv_slide.is_possible), ("plain", conv_plain.is_possible)):
        if possible(conv):
            tiles = _fitting(conv, _SLIDES, group)
            yield from (ConvVariant(kernel, tile) for tile in tiles if conv_slide.takes(conv, tile))
    if conv_weave.is_possible(conv):
        yield from (ConvVariant("weave", tile) for tile in conv_weave.tiles(conv, group))
    if winograd.is_possible(conv):
        for tile in _fitting(conv, _SOFTWARE_PRODUCTS if software else _PRODUCTS, group):
            if winograd.waste(conv, tile) <= _MOST_WASTE:
                yield ConvVariant("winograd", tile)


def _fitting(conv: Conv, sizes: Iterable[tuple[int, int]], group: int) -> Iterator[Tile]:
    """Tiles of these rows and columns, without those of which half or more would be padding."""
    for rows, columns in sizes:
        if rows < 2 * max(conv.shape.out_channels, 4):
            yield Tile(rows, columns, group)


def conv_key(conv: Conv) -> str:
    """What decides which variant is fastest, in words: ``conv 3x3 64>64 at ~4096, c4>c4``."""
    op, shape = conv.op, conv.shape
    words = [op.node.op, _extents(axis.kernel for axis in shape.axes)]
    for word, values in (
        ("stride", [axis.stride for axis in shape.axes]),
        ("dilation", [axis.dilation for axis in shape.axes]),
    ):
        if any(value != 1 for value in values):
            words.append(f"{word} {_extents(values)}")
    words.append(f"{shape.in_channels}>{shape.out_channels}")
    if shape.groups != 1:
        words.append(f"in {shape.groups} groups")
    positions = op.outputs[0].size // shape.out_channels
    layouts = f"{op.layout(op.in_names[0])}>{op.layout(op.out_names[0])}"
    words.append(f"at ~{about(positions)}, {layouts}")
    return " ".join(words) + ("" if conv.constant else ", computed filter")


def _extents(values: Iterable[int]) -> str:
    return "x".join(map(str, values))
