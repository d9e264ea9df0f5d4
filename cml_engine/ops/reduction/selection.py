"""The operators ``nonzero`` and ``non_max_suppression``, which select a data-dependent number.

A result has room for a fixed number of entries and comes with their count; the entries left over
hold ``fill``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import isqrt, prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.shapes import MAX_RANK
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS, Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    GROUP,
    Case,
    Cost,
    Dispatch,
    OpSpec,
    Random,
    engine_kernel,
    moving_cost,
    truth_values,
)

_kernel = partial(engine_kernel, "reduction/selection.hlsl")
_COUNT = Fact("integer", (1,))


# --- nonzero ------------------------------------------------------------------------------------

#: values that one thread counts at least; more where the blocks would be too many for one thread
_BLOCK = 128


def _nonzero_infer(attrs: Attrs, x: Fact) -> list[Fact]:
    if attrs.capacity < 0:
        raise ShapeError(f"capacity {attrs.capacity}, wanted 0 or more")
    return [Fact("integer", (x.rank, int(attrs.capacity))), _COUNT]


def _nonzero_cpu(attrs: Attrs, x: Array) -> list[Array]:
    indices = np.array(np.nonzero(x.reshape(-1))[0])
    coordinates = np.array(np.unravel_index(indices[: attrs.capacity], x.shape)) if x.ndim else None
    y = np.full((x.ndim, attrs.capacity), attrs.fill, np.int32)
    if coordinates is not None:
        y[:, : coordinates.shape[1]] = coordinates
    return [y, np.array([len(indices)], np.int32)]


def _nonzero_lower(op: Lowering) -> Iterator[Dispatch]:
    """Yields dispatches that count by blocks, sum up the counts, and write the positions."""
    (x,), (y, count) = op.in_names, op.out_names
    fact, capacity = op.inputs[0], int(op.attrs.capacity)
    block = max(_BLOCK, min(isqrt(fact.size), MAX_ITERATIONS // (fact.rank + 1 + LOOP_ITERATIONS)))
    blocks = -(-fact.size // block)
    if blocks > MAX_ITERATIONS:
        raise op.refuse(f"{fact} has too many values, wanted {block * MAX_ITERATIONS} at most")
    starts = op.scratch(blocks + 1)
    params = {
        "size": fact.size,
        "block": block,
        "blocks": blocks,
        # a float is 0 with either sign
        "mask": 0x7FFFFFFF if fact.dtype == "scalar" else 0xFFFFFFFF,
        "room": capacity,
        "rank": fact.rank,
        "fill": op.attrs.fill,
        "extent": fact.shape or [1],
    }

    def step(number: int, threads: int, tensors: Sequence[str], types: str) -> Dispatch:
        return for_each(
            op, threads, params, {"NONZERO": number}, types=types, tensors=tensors,
            writes=2 if number == 2 else 1,
        )  # fmt: skip

    yield step(1, blocks, (x, starts), "uint uint")
    yield step(2, 1, (count, starts), "int uint")
    if fact.rank:
        yield step(3, capacity, (starts, y), "uint int")
        yield step(4, blocks if capacity else 0, (x, starts, y), "uint uint int")


_SPARSE = np.where(np.arange(1200) % 7 == 3, -2.5, 0.0).reshape(2, 3, 200)

define(
    OpSpec(
        "nonzero",
        infer=_nonzero_infer,
        cpu=_nonzero_cpu,
        kernel=_kernel(
            f"n:u size:u block:u blocks:u mask:u room:u rank:u fill:i extent:u{MAX_RANK}",
            lower=_nonzero_lower,
        ),
        cost=lambda attrs, inputs, outputs: Cost.moving(
            inputs[0].size, [*inputs, *inputs], outputs
        ),
        tolerance=EXACT,
        cases=[
            Case((_SPARSE,), {"capacity": 200, "fill": -1}, "room left over"),
            Case((_SPARSE,), {"capacity": 50, "fill": 0}, "more than there is room for"),
            Case((truth_values(5, 7),), {"capacity": 35, "fill": -1}, "logical"),
            Case((np.array([0, -(2**31), 3, 0]),), {"capacity": 3, "fill": 9}, "integers"),
            Case((np.array([0.0, -0.0, np.nan], np.float32),), {"capacity": 2, "fill": -1}),
            Case((np.array(4.0),), {"capacity": 2, "fill": -1}, "rank 0"),
            Case(((0, 3),), {"capacity": 2, "fill": -1}, "nothing"),
            Case(((2, 3),), {"capacity": 0, "fill": -1}, "no room"),
        ],
    )
)


# --- non_max_suppression ------------------------------------------------------------------------


def _nms_infer(attrs: Attrs, boxes: Fact, scores: Fact) -> list[Fact]:
    if boxes.rank != 3 or boxes.shape[2] != 4:
        raise ShapeError(f"boxes are {boxes}, wanted [batch, boxes, 4]")
    if scores.rank != 3 or (scores.shape[0], scores.shape[2]) != boxes.shape[:2]:
        raise ShapeError(
            f"scores are {scores}, wanted [{boxes.shape[0]}, classes, {boxes.shape[1]}]: one for "
            f"each of {boxes}"
        )
    if attrs.max_per_class < 0:
        raise ShapeError(f"max_per_class {attrs.max_per_class}, wanted 0 or more")
    return [Fact("integer", (prod(scores.shape[:2]) * _max_boxes(attrs, scores), 3)), _COUNT]


def _max_boxes(attrs: Attrs, scores: Fact) -> int:
    """Returns the largest number of boxes that may be selected of one class."""
    return min(int(attrs.max_per_class), scores.shape[2])


def _edges(boxes: Array, centers: bool) -> Array:
    """Converts boxes to their least and greatest coordinates: ``y0 x0 y1 x1``.

    With ``centers`` a box is given as its centre and size, otherwise as two opposite corners.
    """
    if centers:
        half = boxes[..., 2:] * np.float32(0.5)
        low, high = boxes[..., :2] - half, boxes[..., :2] + half
    else:
        low = np.minimum(boxes[..., :2], boxes[..., 2:])
        high = np.maximum(boxes[..., :2], boxes[..., 2:])
    return np.concatenate([low, high], -1)


def _overlapping(box: Array, boxes: Array, threshold: float) -> Array:
    """Returns a mask of the others that share more than ``threshold`` of the union with the box.

    Products are compared instead of the quotient, because they are the same on every device.
    """
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    size = high - low
    shared = size[:, 0] * size[:, 1]
    area = np.prod(box[2:] - box[:2])
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    union = area + areas - shared
    overlaps = (size > 0).all(-1) & (shared > 0) & (area > 0) & (areas > 0) & (union > 0)
    return np.asarray(overlaps & (shared > np.float32(threshold) * union))


def _nms_cpu(attrs: Attrs, boxes: Array, scores: Array) -> list[Array]:
    selected = []
    edges = _edges(boxes, attrs.center_point_box)
    for item, label in np.ndindex(*scores.shape[:2]):
        values = scores[item, label]
        alive = values > np.float32(attrs.score_threshold)
        for _ in range(attrs.max_per_class):
            if not alive.any():
                break
            best = int(np.where(alive, values, -np.inf).argmax())
            selected.append((item, label, best))
            alive &= ~_overlapping(edges[item, best], edges[item], attrs.iou_threshold)
            alive[best] = False
    rows = prod(scores.shape[:2]) * min(attrs.max_per_class, scores.shape[2])
    y = np.full((rows, 3), attrs.fill, np.int32)
    y[: len(selected)] = np.array(selected, np.int32).reshape(-1, 3)
    return [y, np.array([len(selected)], np.int32)]


def _nms_lower(op: Lowering) -> Iterator[Dispatch]:
    """Yields dispatches with a workgroup per class and batch item, then one that gathers the boxes.

    A workgroup selects a limited number of boxes in each dispatch.
    """
    (boxes, scores), (y, count) = op.in_names, op.out_names
    fact, attrs = op.inputs[1], op.attrs
    lines, max_boxes = prod(fact.shape[:2]), _max_boxes(attrs, fact)
    alive, chosen, counts = (op.scratch(max(n, 1)) for n in (fact.size, lines * max_boxes, lines))
    params = {
        "lines": lines,
        "classes": fact.shape[1],
        "boxes": fact.shape[2],
        "most": max_boxes,
        "overlap": attrs.iou_threshold,
        "least": attrs.score_threshold,
        "centers": int(attrs.center_point_box),
        "fill": attrs.fill,
    }
    per_round = 2 * (-(-fact.shape[2] // GROUP) + LOOP_ITERATIONS) + 2 * LOOP_ITERATIONS + 6
    rounds = (MAX_ITERATIONS - per_round) // per_round
    if rounds < 1 or lines > MAX_ITERATIONS:
        raise op.refuse(f"too many boxes or classes: {fact}; select from fewer (top_k)")
    for begin in range(0, max(max_boxes, 1), rounds) if lines else ():
        yield Dispatch(
            groups=lines,
            tensors=(boxes, scores, alive, chosen, counts),
            params={"n": lines, "begin": begin, "end": min(begin + rounds, max_boxes), **params},
            defines={"SELECT": 1, "T3_TYPE": "uint", "T4_TYPE": "uint"},
            writes=3,
        )
    rows = max(lines * max_boxes, 1)
    results = (count, y) if lines * max_boxes else (count,)
    yield for_each(
        op, rows, {"begin": 0, "end": 0, **params}, {"ROWS": int(lines * max_boxes > 0)},
        types="uint uint int int", tensors=(chosen, counts, *results), writes=len(results),
    )  # fmt: skip


def _boxes(count: int, seed: int, centers: bool = False) -> Array:
    generator = np.random.default_rng(seed)
    first, size = generator.uniform(0, 4, (2, count, 2)), generator.uniform(0.5, 3, (2, count, 2))
    parts = [first, size] if centers else [first + size, first]  # corners in any order
    return np.concatenate(parts, -1).astype(np.float32)


def _nms_cases() -> Iterator[Case]:
    attrs = {"max_per_class": 5, "iou_threshold": 0.4, "score_threshold": 0.1,
             "center_point_box": False, "fill": -1}  # fmt: skip
    scores = Random((2, 3, 90), 0.0, 1.0)
    yield Case((_boxes(90, 1), scores), attrs, "classes and items")
    yield Case((_boxes(90, 2, True), scores), {**attrs, "center_point_box": True}, "centres")
    equal = np.array([[[1, 1, 1, 0.5, np.nan, 0.05]]], np.float32)
    yield Case((_boxes(6, 3)[:1], equal), {**attrs, "max_per_class": 99}, "equal scores, NaN")
    flat = np.array([[[0, 0, 0, 3], [0, 0, 0, 3], [0, 0, 2, 2], [0, 0, 2, 2]]], np.float32)
    changed = {**attrs, "iou_threshold": 0.0, "score_threshold": -3.4e38, "fill": 0}
    yield Case((flat, np.zeros((1, 2, 4), np.float32)), changed, "no area, equal boxes")
    yield Case((_boxes(4, 4)[:1], Random((1, 1, 4))), {**attrs, "score_threshold": 9.0}, "none")
    yield Case((_boxes(4, 5)[:1], (1, 1, 4)), {**attrs, "max_per_class": 0}, "no room")
    yield Case(((1, 0, 4), (1, 2, 0)), attrs, "no boxes")
    yield Case(((1, 3, 4), (1, 0, 3)), attrs, "no classes")


define(
    OpSpec(
        "non_max_suppression",
        infer=_nms_infer,
        cpu=_nms_cpu,
        kernel=_kernel(
            "n:u lines:u classes:u boxes:u most:u begin:u end:u overlap:f least:f centers:u fill:i",
            lower=_nms_lower,
        ),
        # every selected box is compared with all others of its class
        cost=moving_cost(
            lambda attrs, inputs, outputs: (
                16.0 * inputs[1].size * max(_max_boxes(attrs, inputs[1]), 1)
            )
        ),
        tolerance=EXACT,
        cases=list(_nms_cases()),
    )
)
