"""Tests that a strided copy moves the same words after dimensions are merged or exchanged."""

import random
from itertools import product

import pytest

from cml_engine.ops.common.shapes import contiguous_strides
from cml_engine.ops.movement import strided_copy
from cml_engine.ops.movement.strided_copy import Copy, Dim, box


def moves(copy, width=1):
    """Returns a list of (source, target) indices, one for every word that the copy moves.

    Each item of the copy has ``width`` words.
    """
    pairs = []
    for at in product(*(range(d.extent) for d in copy.dims)):
        src = copy.src_offset + sum(i * d.src for i, d in zip(at, copy.dims, strict=True))
        dst = copy.dst_offset + sum(i * d.dst for i, d in zip(at, copy.dims, strict=True))
        pairs += [(src * width + k, dst * width + k) for k in range(width)]
    return pairs


@pytest.mark.parametrize("seed", range(50))
def test_strided_copy_moves_the_same_elements(seed):
    generator = random.Random(seed)
    shape = [generator.choice([1, 2, 3, 4, 8]) for _ in range(generator.randrange(5))]
    order = generator.sample(range(len(shape)), len(shape))
    walk = contiguous_strides(shape)
    dst = contiguous_strides([shape[a] for a in order])
    dims = [Dim(shape[a], walk[a], dst[i]) for i, a in enumerate(order)]
    plain = Copy(tuple(dims), 8, 4)
    wanted = moves(plain)
    merged = box([d.extent for d in dims], [d.src for d in dims], [d.dst for d in dims], 8, 4)
    assert moves(merged) == wanted
    assert sorted(moves(strided_copy._lengthen_rows(merged))) == sorted(wanted)
    for words in (4, 2, 1):
        if strided_copy._moves_vectors(merged, words):
            assert moves(strided_copy._in_vectors(merged, words), words) == wanted
    if tiled := strided_copy._tile_order(merged):
        assert sorted(moves(Copy(tiled, 8, 4))) == sorted(wanted)


def test_a_matrix_transpose_is_tiled():
    rows = box((65, 33), (1, 65), (33, 1))
    assert strided_copy._tile_order(rows) == (Dim(65, 1, 33), Dim(33, 65, 1))
    # rows of three channels are no matrix transpose
    assert strided_copy._tile_order(box((512, 3), (1, 512), (3, 1))) is None
