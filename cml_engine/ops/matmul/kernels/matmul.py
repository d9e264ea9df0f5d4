"""Matrix products on the GPU: the kernel variants, their tiles, and the order of the operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from cml_engine.ir.block_weights import Blocks, weight_blocks
from cml_engine.ir.graph import Array, Attrs, AttrValue, Epilogue, Fact, Node
from cml_engine.ir.layout import C4, C4H, HALF, VECTOR_TYPE
from cml_engine.ir.limits import Limits
from cml_engine.ops.common.shapes import collapse, common_batch, contiguous_strides
from cml_engine.ops.declaration.choice import about
from cml_engine.ops.declaration.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.declaration.epilogue import epilogue_of
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.lowering import MAX_ITERATIONS, Lowering
from cml_engine.ops.declaration.packing import BlockFormat, Packing, pack_blocks
from cml_engine.ops.declaration.spec import Case, Cost, Defines, Dispatch, engine_kernel
from cml_engine.ops.declaration.variant import KernelFamily, KernelVariant
from cml_engine.ops.movement.strided_copy import box, copy_regions


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """The tile of a workgroup: ``rows`` x ``cols`` sums per thread, and ``group`` threads.

    The threads form a rectangle that is ``lanes`` wide.
    """

    rows: int
    cols: int
    group: int
    lanes: int
    #: GFLOPS measured on llvmpipe
    speed: float = 0.0

    @property
    def height(self) -> int:
        return self.rows * (self.group // self.lanes)

    @property
    def width(self) -> int:
        return self.cols * self.lanes

    @property
    def reads_vectors(self) -> bool:
        """True if a thread reads four columns of B at once."""
        return self.cols % 4 == 0

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols} by {self.group // self.lanes}x{self.lanes}"


#: 128 sums stay in vector registers and the first cache of a CPU, but leave a GPU without threads
_SOFTWARE_TILES = (
    MatmulTile(16, 8, 32, 8, 27),
    MatmulTile(8, 8, 32, 8, 18),
    MatmulTile(4, 8, 32, 8, 16),
    MatmulTile(1, 8, 32, 32, 6),
)
#: rows and columns of the tiles whose lanes pass rows of A to each other, and their GFLOPS
_SHARING = ((16, 8, 28), (16, 4, 25), (8, 4, 20))
#: the same of a single row, which each lane reads for itself
_ROW = MatmulTile(1, 8, 32, 32, 2)
#: the tiles of hardware; with 64 lanes to a row, A is the same for a wave and loaded as scalars
_GPU_TILES = (
    MatmulTile(8, 8, 64, 8),
    MatmulTile(4, 8, 64, 8),
    MatmulTile(4, 4, 64, 16),
    MatmulTile(2, 1, 64, 64),
    MatmulTile(4, 1, 64, 64),
    MatmulTile(8, 1, 64, 64),
    MatmulTile(1, 4, 64, 64),
    MatmulTile(4, 4, 64, 64),
    MatmulTile(8, 4, 64, 64),
    MatmulTile(16, 4, 64, 64),
)


def tiles_for(limits: Limits) -> tuple[MatmulTile, ...]:
    """Returns the tiles that the tuner should try on a device with these limits."""
    if shares_rows(limits):
        lanes = limits.subgroup_size
        sharing = (MatmulTile(rows, cols, lanes, lanes, speed) for rows, cols, speed in _SHARING)
        return (*sharing, _ROW)
    return _SOFTWARE_TILES if limits.software else _GPU_TILES


def steps_ahead(tile: MatmulTile) -> int:
    """Returns the steps of k whose loads of B are under way at once, on hardware.

    A single column takes few registers.
    """
    return 8 if tile.cols == 1 else 2


def shares_rows(limits: Limits) -> bool:
    """Returns True on a software driver with at least eight lanes.

    Eight lanes then load the rows of A together, because every load costs as much as some twenty
    products.
    """
    return limits.software and limits.subgroup_size >= 8


def expected_time(
    tile: MatmulTile,
    rows: int,
    columns: int,
    inner: int,
    batch: int,
    limits: Limits,
    is_constant: bool = True,
) -> float:
    """Returns the expected time with a tile: in relative units, on hardware the modelled seconds.

    It counts the results past the edges that are computed in vain, and the tile's speed. A constant
    B is packed for the tile.
    """
    groups = batch * -(-rows // tile.height) * -(-columns // tile.width)
    if limits.software:
        return groups * tile.rows * tile.cols / tile.speed
    # four of k in each step; the first turn stands before the loop
    turns = [max(inner / (4 * steps_ahead(tile)) - 1, 0)]
    kind = "matmul" if is_constant else "computed matmul"
    return hardware_table(limits).seconds(f"{kind} tile {tile}", groups, turns)


PARAMS = (
    "rows:u columns:u tiles_m:u tiles_n:u k_begin:u k_end:u accumulate:u last:u a_m:u a_k:u "
    "b_n:u b_k:u b_vectors:u bias_stride:u heads:u batch_shape:u6 a_batch:u6 b_batch:u6 "
    + EPILOGUE_PARAMS
)


#: a CPU runs 8 threads as one vector: with no others to wait for, a barrier costs it nothing
_REDUCE_GROUP, _SOFTWARE_REDUCE_GROUP = 64, 8
#: shorter sums leave the lanes of a reducing workgroup without work
_LONG_SUM = 64
#: so few results with so long sums leave a device without threads, unless workgroups reduce
_FEW_RESULTS, _MANY_PRODUCTS = 1024, 8 * _LONG_SUM
#: every tile adds as many products in one dispatch, by _GROUP_FLOPS
_LEAST_STEP = 1024
#: the most results for which the tuner tries workgroups that reduce
_MAX_REDUCED = 1 << 14
#: the fewest rows of A that repay a copy of a computed B
_LEAST_ROWS = 8
#: results of one product; with A, B, bias and scale as many tensors as every device of WebGPU binds
MAX_PARTS = 4
#: a bias and a scale that change no bit of a sum
NEUTRAL = (-0.0, 1.0)
#: work of a workgroup, so that a slice of a frame can hold one: about 0.3 ms on llvmpipe
_GROUP_FLOPS = 1 << 23


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand of a matrix product, by its strides in elements.

    ``outer`` leads from row to row of A (column to column of B), ``inner`` from k to k + 1;
    ``batch`` has a stride for each leading axis of the result.
    """

    name: str
    outer: int
    inner: int
    batch: tuple[int, ...]
    #: True if k is the tensor's last axis
    k_last: bool = False

    def vectors(self, along: int, across: int) -> bool:
        """Returns True if reads can be ``float4``.

        The stride ``along`` must be 1, all others multiples of four.
        """
        return along == 1 and all(s % 4 == 0 for s in (across, *self.batch))


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A batch of matrix products: rows x columns sums over ``inner``, with a bias per column.

    With ``windows``, the columns of B overlap and are read in place; the rows are channels.
    ``blocks`` is the format of B if it is packed with few bits. ``heads`` of the columns are stored
    before the rows, with 0 those of the last batch axis in the columns. The columns are ``parts``
    results of equal width, each with ``heads``.
    """

    op: Lowering
    a: Matrix
    b: Matrix
    batch: tuple[int, ...]
    rows: int
    columns: int
    inner: int
    bias: str | None = None
    windows: bool = False
    blocks: BlockFormat | None = None
    heads: int | None = None
    parts: int = 1

    @property
    def results(self) -> int:
        return prod(self.batch) * self.rows * self.columns


def takes_packed_weights(node: Node, facts: Mapping[str, Fact]) -> bool:
    """Returns True if the product can read its right matrix in few bits, four elements at a time.

    A is not transposed, and the length of the sums is a multiple of four.
    """
    if node.attrs.get("transposeA"):
        return False
    shape = facts[node.inputs[0]].shape
    return bool(shape) and shape[-1] % 4 == 0 and facts[node.outputs[0]].size > 0


def adds_alike(rows: int, inner: int, columns: int) -> bool:
    """Returns True if the rules add the products of a sum by constants in the same order for these
    columns as for several times as many.

    Longer sums continue in a later dispatch, sooner in a larger tile.
    """
    if inner > _LEAST_STEP or columns <= 4:
        return False
    return rows <= 4 or rows * columns > _FEW_RESULTS or inner < _MANY_PRODUCTS


def lower_matmul(op: Lowering) -> Iterator[Dispatch]:
    yield from _lower(_matmul(op, op.attrs.get("heads")))


def lower_parts(op: Lowering) -> Iterator[Dispatch]:
    """Yields one product of all parts, or one for each if the device is a software driver.

    A launch costs little there, and a choice between the results at every store much.
    """
    parts, heads = op.attrs.parts, op.attrs.heads
    if op.limits.software and all(op.constant(name) is not None for name in op.in_names[1:]):
        for part in range(parts):
            own = _lowering_of_part(op, part)
            product = _linear(own) if _joins_linear(op) else _matmul(own, heads or None)
            yield from _lower(product)
        return
    product = _matmul(_with_epilogues(op), heads or 1)
    yield from _lower(replace(product, parts=parts))


def _joins_linear(op: Lowering) -> bool:
    """Returns True if the parts of ``matmul_parts`` were ``linear``, whose bias is no epilogue."""
    return bool(op.attrs.get("linear"))


def _lowering_of_part(op: Lowering, part: int) -> Lowering:
    """Returns the lowering of a part of ``matmul_parts``, whose other operands are constants."""
    facts, constants = dict(op.graph.facts), dict(op.graph.constants)
    layouts = dict(op.layouts)

    def slice_of(name: str, axis: int) -> str:
        value = np.asarray(op.constant(name))
        width = value.shape[axis] // op.attrs.parts
        own = np.take(value, range(part * width, (part + 1) * width), axis)
        if own.ndim == 1 and np.all(own == own[:1]) and not _joins_linear(op):
            own = own[:1]  # a parameter of the kernel
        key = op.pack(f"{name}.part{part}", lambda: own)
        facts[key], constants[key] = Fact("scalar", own.shape), own
        layouts[key] = op.layout(name)
        return key

    x, weights, bias, scale = op.in_names
    columns = -2 if op.attrs.transposeB else -1
    names = (x, slice_of(weights, columns), slice_of(bias, -1), slice_of(scale, -1))
    node = replace(op.node, inputs=names, outputs=op.out_names[part : part + 1])
    graph = op.graph.with_(facts=facts, constants=constants)
    own = replace(op, graph=graph, layouts=layouts, node=node)
    if _joins_linear(op):
        own = replace(own, node=replace(node, op="linear", attrs=Attrs()))
        return _with_epilogues(own, inputs=3)
    return _with_epilogues(own)


def _with_epilogues(op: Lowering, inputs: int = 2) -> Lowering:
    """Returns the lowering of ``matmul_parts`` with its operands after the first ``inputs``, bias
    and scale or the scale alone, as epilogues, unless neutral."""
    epilogues = []
    steps = zip(op.in_names[2:], ("add", "mul"), NEUTRAL, strict=True)
    for name, step, neutral in list(steps)[inputs - 2 :]:
        value = op.constant(name)
        if value is None or value.tobytes() != np.full_like(value, neutral).tobytes():
            epilogues.append(Epilogue(step, (name,)))
    node = replace(op.node, inputs=op.in_names[:inputs], epilogues=tuple(epilogues))
    return replace(op, node=node)


def _matmul(op: Lowering, heads: int | None) -> MatrixProduct:
    a, b = op.inputs[:2]
    flip_a, flip_b = op.attrs.transposeA, op.attrs.transposeB
    batch = common_batch("matmul", a, b)
    return MatrixProduct(
        op,
        a=_matrix(op, 0, batch, k_last=not flip_a),
        b=_matrix(op, 1, batch, k_last=bool(flip_b)),
        batch=batch,
        rows=a.shape[-1] if flip_a else a.shape[-2],
        columns=b.shape[-2] if flip_b else b.shape[-1],
        inner=a.shape[-2] if flip_a else a.shape[-1],
        heads=heads,
    )


def lower_linear(op: Lowering) -> Iterator[Dispatch]:
    yield from _lower(_linear(op))


def _linear(op: Lowering) -> MatrixProduct:
    (x, weights, _), names = op.inputs, op.in_names
    return MatrixProduct(
        op,
        a=_matrix(op, 0, (), k_last=True),
        b=_matrix(op, 1, (), k_last=True),
        batch=(),
        rows=x.shape[0],
        columns=weights.shape[0],
        inner=x.shape[1],
        bias=names[2],
    )


def _matrix(op: Lowering, index: int, batch: tuple[int, ...], k_last: bool) -> Matrix:
    shape = op.inputs[index].shape
    *leading, row, column = contiguous_strides(shape)
    steps = _batch_steps(shape[: len(batch)], leading)
    outer, inner = (row, column) if k_last else (column, row)
    return Matrix(op.in_names[index], outer, inner, steps, k_last)


def _batch_steps(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a batch's axes, 0 where one matrix serves all."""
    return tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


def _lower(product: MatrixProduct) -> Iterator[Dispatch]:
    if product.results:
        yield from MATMUL.lower(product)


def _is_half(p: MatrixProduct) -> bool:
    """Returns True if B is stored in 16 bits."""
    return p.op.layout(p.b.name) == HALF


def _stored_blocks(p: MatrixProduct) -> Blocks | None:
    """Returns the blocks of a constant B that the kernels can read: along k, in a single matrix."""
    blocks = weight_blocks(p.op.constant(p.b.name))
    if blocks is None:
        return None
    *batch, _, _ = blocks.codes.shape
    is_along_k = blocks.axis == len(batch) + p.b.k_last
    by_fours = blocks.size % 4 == 0 or blocks.size >= p.inner
    fits = prod(batch) == 1 and takes_packed_weights(p.op.node, p.op.graph.facts)
    return blocks if is_along_k and by_fours and fits else None


def _pack(p: MatrixProduct, key: str, value: Array, k_last: bool, width: int) -> MatrixProduct:
    """Returns the product with the constant B packed, in 32 or 16 bits or in blocks.

    ``key`` names the order. ``k_last`` is True for rows of k, ``width`` is the length of a row.
    """
    count = prod(value.shape[:-2])
    k, n = (2, 1) if p.b.k_last else (1, 2)

    def packing(array: Array, inner: int, width: int, dtype: DTypeLike | None = None) -> Packing:
        source = array.reshape(count, *array.shape[-2:])
        rows = ((p.columns, n, 1), (inner, k, 1)) if k_last else ((inner, k, 1), (width, n, 1))
        return Packing(source, ((count, 0, 1), *rows), dtype or array.dtype)

    half, blocks = _is_half(p), _stored_blocks(p)
    key = f"{p.b.name}.{key}{int(p.b.k_last)}"
    if blocks is None:
        inner = width if k_last else p.inner
        stored_dtype = np.float16 if half else value.dtype
        name = p.op.pack(key + ".half" * half, lambda: packing(value, inner, width, stored_dtype))
        return replace(p, b=replace(p.b, name=name))
    size = -(-blocks.size // 4) * 4
    steps = -(-p.inner // size)
    inner = steps * size if k_last else p.inner
    name = p.op.pack(
        f"{key}.bits{blocks.bits}",
        lambda: pack_blocks(
            packing(blocks.codes, inner, width), packing(blocks.scales, steps, width), blocks.bits
        ),
    )
    count = inner * (p.columns if k_last else width)
    block_format = BlockFormat(blocks.bits, size, -(-count * blocks.bits // 128))
    return replace(p, b=replace(p.b, name=name), blocks=block_format)


def _key(p: MatrixProduct) -> str:
    """Returns the key under which a tuning table stores the product's fastest variant.

    It has everything that decides which variant is fastest: ``matmul ~64x512 by 512x256, AB``.
    """
    op = p.op
    rows, inner, columns = (about(x) for x in (p.rows, p.inner, p.columns))
    parts = [f"{op.node.op.partition('_')[0]} ~{rows}x{inner} by {inner}x{columns}"]
    if (batch := prod(p.batch)) != 1:
        parts.append(f"~{about(batch)} times")
    parts.append(("A" if p.a.k_last else "A^T") + ("B^T" if p.b.k_last else "B"))
    constant = ", B constant" if op.constant(p.b.name) is not None else ""
    blocks = _stored_blocks(p)
    bits = blocks.bits if blocks else 16 if _is_half(p) else 32
    return ", ".join(parts) + constant + (f" in {bits} bits" if bits != 32 else "")


def _may_reduce(p: MatrixProduct) -> bool:
    """Returns True if the tuner should try workgroups that compute each sum together."""
    return p.inner >= _LONG_SUM and (p.results <= _MAX_REDUCED or _reduces(p))


def _reduces(p: MatrixProduct) -> bool:
    """Returns True if a workgroup should compute each sum together: few results with long sums.

    Register tiles would give too few threads.
    """
    by_rows = p.b.inner == 1 or p.op.constant(p.b.name) is not None
    if p.rows <= 4 or p.columns <= 4:
        return by_rows or p.columns <= 1024
    return p.results <= _FEW_RESULTS and p.inner >= _MANY_PRODUCTS


def _columns_last(p: MatrixProduct) -> tuple[MatrixProduct, list[Dispatch]]:
    """Returns the product with adjacent columns in B, and the dispatches that reorder B.

    The columns are padded to whole vectors. A constant B is packed. A computed B is copied by
    the dispatch if A has enough rows to repay the copy, otherwise the product is unchanged.
    """
    op, value = p.op, p.op.constant(p.b.name)
    if value is None and p.rows < _LEAST_ROWS:
        return p, []
    shape = op.fact(p.b.name).shape[: len(p.batch)]
    width = -(-p.columns // 4) * 4
    leading = [prod(shape[i + 1 :]) * p.inner * width for i in range(len(shape))]
    steps = _batch_steps(shape, leading)
    if value is not None:
        p = _pack(p, "columns", value, k_last=False, width=width)
        return replace(p, b=Matrix(p.b.name, 1, width, steps)), []
    name = op.scratch(prod(shape) * p.inner * width)
    walk = contiguous_strides(op.fact(p.b.name).shape)[: len(p.batch)]
    extents = (*shape, p.inner, p.columns)
    copy = box(extents, (*walk, p.b.inner, p.b.outer), (*leading, width, 1))
    return replace(p, b=Matrix(name, 1, width, steps)), [*copy_regions(op, p.b.name, name, copy)]


def _in_tiles(p: MatrixProduct, tile: MatmulTile) -> MatrixProduct:
    """Returns the product with the constant B packed by tiles of ``tile.lanes`` columns.

    A lane then reads four k of its column at once, and the next four at a constant distance.
    """
    value, (k, n) = np.asarray(p.op.constant(p.b.name)), (2, 1) if p.b.k_last else (1, 2)
    tiles, lanes = -(-p.columns // tile.lanes), tile.lanes
    shape = value.shape[:-2]
    dims = ((prod(shape), 0, 1), (tiles, n, lanes), (p.inner // 4, k, 4), (lanes, n, 1), (4, k, 1))
    source = value.reshape(-1, *value.shape[-2:])
    name = p.op.pack(
        f"{p.b.name}.tiles{lanes}{int(p.b.k_last)}", lambda: Packing(source, dims, value.dtype)
    )
    of_tile = p.inner * lanes
    leading = contiguous_strides((*shape, tiles * of_tile))[: len(shape)]
    steps = _batch_steps(shape, leading)
    return replace(p, b=Matrix(name, of_tile, 4 * lanes, steps))


def default_tile(p: MatrixProduct) -> MatmulTile:
    """Returns the tile with the least expected time, a copy of B included on hardware."""

    limits, is_constant = p.op.limits, p.op.constant(p.b.name) is not None

    def time(tile: MatmulTile) -> float:
        seconds = expected_time(
            tile, p.rows, p.columns, p.inner, prod(p.batch), limits, is_constant
        )
        is_counted = not limits.software and _is_copied(p, tile)
        return seconds + is_counted * hardware_table(limits).launch

    return min(_tiles_of(p), key=time)


def _k_last(p: MatrixProduct) -> MatrixProduct:
    """Returns the product with k as the last axis of B, after packing a constant B.

    If B is computed, or already so and in 32 bits, the product is unchanged.
    """
    value, blocks = p.op.constant(p.b.name), _stored_blocks(p)
    if value is None or (p.b.k_last and not _is_half(p) and blocks is None):
        return p
    size = -(-blocks.size // 4) * 4 if blocks else 1
    width = -(-p.inner // size) * size
    p = _pack(p, "rows", value, k_last=True, width=width)
    return replace(p, b=Matrix(p.b.name, width, 1, p.b.batch))


def _loads_ahead(tile: MatmulTile, whole_turns: bool) -> Defines:
    return {"AHEAD": steps_ahead(tile), **({"WHOLE_TURNS": 1} if whole_turns else {})}


def _reads_columns(p: MatrixProduct, tile: MatmulTile) -> bool:
    """Returns True if the tile can read adjacent columns of B where they are."""
    if tile.reads_vectors:
        return p.b.vectors(p.b.outer, p.b.inner)
    return p.b.outer == 1


def _is_copied(p: MatrixProduct, tile: MatmulTile) -> bool:
    """Returns True if a dispatch copies B before the products."""
    is_computed = p.op.constant(p.b.name) is None
    return is_computed and p.rows >= _LEAST_ROWS and not (p.windows or _reads_columns(p, tile))


def _tiles_of(p: MatrixProduct) -> list[MatmulTile]:
    """Returns the tiles that can read B: four columns of it, if it is stored in few bits."""
    few_bits = _is_half(p) or _stored_blocks(p) is not None
    return [tile for tile in tiles_for(p.op.limits) if tile.reads_vectors or not few_bits]


def lower_tiles(p: MatrixProduct, tile: MatmulTile) -> Iterator[Dispatch]:
    half, share = _is_half(p), shares_rows(p.op.limits)
    few_bits = half or _stored_blocks(p) is not None
    by_fours = p.inner % 4 == 0
    if share and by_fours:
        p = _k_last(p)
    is_packed = p.inner > 0 and not p.windows and p.op.constant(p.b.name) is not None
    b_tiles = not p.op.limits.software and by_fours and tile.cols == 1 and is_packed
    if b_tiles:
        p = _in_tiles(p, tile)
    b_inner = (share or p.windows) and by_fours and p.b.vectors(p.b.inner, p.b.outer)
    b_inner |= b_tiles
    if not (b_inner or p.windows) and (few_bits or not _reads_columns(p, tile)):
        p, copies = _columns_last(p)
        yield from copies
    a_vector = by_fours and p.a.vectors(p.a.inner, p.a.outer)
    b_vector = not b_inner and tile.reads_vectors and p.b.vectors(p.b.outer, p.b.inner)
    turn = steps_ahead(tile) * (4 if a_vector or b_inner else 1)
    vector = VECTOR_TYPE[C4H if half else C4]
    defines: Defines = {
        "ROWS": tile.rows,
        "COLS": tile.cols,
        "COLUMN_LANES": tile.lanes,
        "GROUP": tile.group,
        **({} if p.op.limits.software else _loads_ahead(tile, p.inner % turn == 0)),
        **({"SHARE": 1} if share and tile.lanes == tile.group else {}),
        **({"A_VECTOR": 1, "T0_TYPE": "float4"} if a_vector else {}),
        **({"B_VECTOR": 1, "T1_TYPE": vector} if b_vector else {}),
        **({"B_INNER": 1, "T1_TYPE": vector} if b_inner else {}),
        **({"B_TILES": 1} if b_tiles else {}),
    }
    if "SHARE" in defines and p.op.limits.int64:
        if a_vector:
            defines |= {"T0_TYPE": "uint64_t2", "WIDE_INPUT": 1}
        if (b_vector or b_inner) and not few_bits:
            defines |= {"T1_TYPE": "uint64_t2", "WIDE_FILTER": 1}
    yield from _launches(
        p,
        defines,
        tiles=(-(-p.rows // tile.height), -(-p.columns // tile.width)),
        widths=(4 if a_vector else 1, 4 if b_vector or b_inner else 1),
        step=_steps(tile.height * tile.width, a_turn=4 if a_vector or b_inner else 1),
    )


def _reduce(p: MatrixProduct, _: None) -> Iterator[Dispatch]:
    half, p = _is_half(p), _k_last(p)
    vector = p.inner % 4 == 0 and all(m.vectors(m.inner, m.outer) for m in (p.a, p.b))
    rows, cols = (1 if x == 1 else 4 for x in (p.rows, p.columns))
    width = 4 if vector else 1
    group = _SOFTWARE_REDUCE_GROUP if p.op.limits.software else _REDUCE_GROUP
    types: Defines = {}
    if vector:
        types = {"A_VECTOR": 1, "T0_TYPE": "float4", "T1_TYPE": VECTOR_TYPE[C4H if half else C4]}
    yield from _launches(
        p,
        {"REDUCE": 1, "ROWS": rows, "COLS": cols, "GROUP": group, **types},
        tiles=(-(-p.rows // rows), -(-p.columns // cols)),
        widths=(width, width),
        step=_steps(rows * cols, a_turn=group * width),
        k_unit=width,
    )


def _steps(results: int, a_turn: int) -> int:
    """Returns how many products one launch adds to each result of a workgroup.

    ``results`` is the number of results of the workgroup; the loop adds ``a_turn`` products to
    each per iteration.
    """
    products = max(256, _GROUP_FLOPS // (2 * results) // 256 * 256)
    return min(products, MAX_ITERATIONS // 2 // 256 * 256 * a_turn)


def _launches(
    p: MatrixProduct,
    defines: Defines,
    tiles: tuple[int, int],
    widths: tuple[int, int],
    step: int,
    k_unit: int = 1,
) -> Iterator[Dispatch]:
    """Yields dispatches that each add at most ``step`` products to every result.

    Each but the first adds to the results that the previous one stored.
    """
    op, tensors = p.op, [p.a.name, p.b.name] + ([p.bias] if p.bias else [])
    channels = p.rows if p.windows else p.columns
    epilogue = epilogue_of(op, len(tensors), channels=channels)
    first_result = len(tensors) + len(epilogue.tensors)
    tensors += [*epilogue.tensors, *op.out_names]
    batch_defines, batch_params = _batch(p, widths)
    shared = {**_params(p, tiles, widths), **batch_params, **epilogue.params}
    shared |= p.blocks.params if p.blocks else {}
    defines = {
        **defines,
        **batch_defines,
        **epilogue.defines,
        **({"BIAS": 1} if p.bias else {}),
        **({"ROW_CHANNELS": 1} if p.windows else {}),
        **({} if p.heads is None else {"SPLIT_HEADS": 1} if p.heads else {"JOIN_HEADS": 1}),
        **({"PARTS": p.parts} if p.parts > 1 else {}),
        **({"ONE_LAUNCH": 1} if "AHEAD" in defines and p.inner <= step else {}),
        **{f"OUT{i or ''}": f"T{first_result + i}" for i in range(p.parts)},
        **(p.blocks.defines if p.blocks else {}),
    }
    for begin in range(0, max(p.inner, 1), step):
        end = min(begin + step, p.inner)
        is_complete = (begin, end) == (0, p.inner)
        yield Dispatch(
            groups=prod(p.batch) * prod(tiles),
            tensors=tuple(tensors),
            writes=p.parts,
            params={
                **shared,
                "k_begin": begin // k_unit,
                "k_end": end // k_unit,
                "accumulate": int(begin > 0),
                "last": int(end == p.inner),
            },
            defines=defines,
            cost=None if is_complete and not op.scratch_words else _part(p, begin, end),
        )


def _params(
    p: MatrixProduct, tiles: tuple[int, int], widths: tuple[int, int]
) -> dict[str, AttrValue]:
    a_width, b_width = widths
    return {
        "rows": p.rows,
        "columns": p.columns,
        "tiles_m": tiles[0],
        "tiles_n": tiles[1],
        # the stride of 1 stays 1: it is the one that vectors run along
        "a_m": p.a.outer if p.a.outer == 1 else p.a.outer // a_width,
        "a_k": p.a.inner if p.a.inner == 1 else p.a.inner // a_width,
        "b_n": p.b.outer if p.b.outer == 1 else p.b.outer // b_width,
        "b_k": p.b.inner if p.b.inner == 1 else p.b.inner // b_width,
        "b_vectors": -(-p.columns // 4),
        "bias_stride": int(p.bias is not None and p.op.fact(p.bias).size > 1),
        "heads": p.heads or (p.batch[-1] if p.batch else 1),
    }


def _batch(
    p: MatrixProduct, widths: tuple[int, int]
) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Returns the defines and the parameters of the leading axes: merged, innermost first.

    Strides are in vectors of ``widths`` elements of A and of B.
    """
    walk = collapse(p.batch, (p.a.batch, p.b.batch))
    rank = len(walk.extents)
    a_batch, b_batch = (
        [s // width for s in steps[::-1]] for steps, width in zip(walk.strides, widths, strict=True)
    )
    shape = [*walk.extents[::-1], *[1] * (6 - rank)]
    defines = {"BATCH_RANK": 1 if rank < 2 else 6}
    return defines, {"batch_shape": shape, "a_batch": a_batch, "b_batch": b_batch}


def _part(p: MatrixProduct, begin: int, end: int) -> Cost:
    """Returns the cost of adding the products ``begin`` to ``end`` to every result.

    It includes reading earlier partial sums.
    """
    k = end - begin
    read = prod(p.batch) * (p.rows + p.columns) * k + (p.results if begin else 0)
    return Cost(2.0 * p.results * k, 4.0 * read, 4.0 * p.results)


MATMUL = KernelFamily[MatrixProduct]("matmul, linear", _key)
KERNEL = engine_kernel("matmul/matmul.hlsl", PARAMS)
_PLAIN = {"transposeA": False, "transposeB": False}
MATMUL.add(
    KernelVariant(
        name="tile",
        about="register tiles: rows by columns of the result",
        kernel=KERNEL,
        lower=lower_tiles,
        default_tile=default_tile,
        tiles=_tiles_of,
        examples=(("matmul", Case(((9, 40), (40, 33)), _PLAIN, "rows")),),
    )
)
MATMUL.add(
    KernelVariant(
        name="reduce",
        about="workgroups that reduce: few results with a long sum",
        kernel=KERNEL,
        lower=_reduce,
        is_possible=_may_reduce,
        is_faster=_reduces,
        before=("tile",),
        tiles=lambda p: (None,),
        examples=(("matmul", Case(((1, 512), (512, 10)), _PLAIN, "one row")),),
    )
)
