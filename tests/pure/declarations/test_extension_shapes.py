"""Tests that operators beyond NNEF refuse wrong shapes with a message that states what is
expected."""

import numpy as np
import pytest

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs
from cml_engine.ops import load_families, lookup
from cml_engine.ops.common.shapes import fact_from

load_families()
F = np.float32
IMAGE, WHOLE = np.zeros((1, 2, 4, 4), F), np.zeros((2, 3), np.int32)
WINDOWS = {"padding": [(0, 0)] * 2, "stride": [], "dilation": []}
SAMPLE = {"method": "linear", "border": "constant", "align_corners": False}
ALIGN = {"output_size": [2, 2], "sampling_ratio": 0, "scale": 1.0, "half_pixel": True,
         "mode": "avg"}  # fmt: skip
NMS = {"max_per_class": 1, "iou_threshold": 0.5, "score_threshold": 0.0, "center_point_box": False,
       "fill": -1}  # fmt: skip
REFUSED = [
    ("gather_elements", (IMAGE, WHOLE), {"axis": 1}, "wanted rank 4"),
    ("scatter_elements", (WHOLE, WHOLE, WHOLE), {"axis": 1, "reduction": "sum"},
     "reduction 'sum', wanted one of none, add"),
    ("scatter_nd", (WHOLE > 0, WHOLE[:, :1], WHOLE > 0), {"reduction": "add"}, "cast it"),
    ("scatter_nd", (WHOLE, WHOLE, WHOLE), {"reduction": "none"}, "rows of at most 2 numbers"),
    ("grid_sample", (IMAGE, np.zeros((1, 2, 2, 3), F)), SAMPLE, "a position of 2 numbers"),
    ("grid_sample", (IMAGE, np.zeros((1, 2, 2, 2), F)), {**SAMPLE, "method": "bilinear"},
     "method 'bilinear', wanted one of nearest, linear, cubic"),
    ("roi_align", (IMAGE, np.zeros((1, 4), F), np.zeros(2, np.int32)), ALIGN, "one for each roi"),
    ("non_max_suppression", (np.zeros((1, 3, 4), F), np.zeros((1, 2, 4), F)), NMS,
     r"wanted \[1, classes, 3\]"),
    ("nonzero", (IMAGE,), {"capacity": -1, "fill": 0}, "capacity -1"),
    ("col2im", (np.zeros((1, 4, 8), F),), {**WINDOWS, "output_size": [4, 4], "size": [2, 2]},
     r"wanted \[batch, channels \* 4, 9\]"),
    ("deform_columns", (IMAGE, np.zeros((1, 8, 4, 4), F), np.array(1, F)),
     {**WINDOWS, "size": [2, 2], "offset_groups": 1}, r"wanted \[1,8,3,3\]"),
    ("int_conv", (IMAGE, IMAGE), {**WINDOWS, "groups": 1}, "input is scalar"),
    ("reverse_sequence", (IMAGE, np.zeros(3, np.int32)), {"time_axis": 2, "batch_axis": 1},
     r"wanted integer\[2\]"),
    ("cumprod", (WHOLE,), {"axis": 0, "exclusive": False, "reverse": False}, "cast<scalar>"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attrs", "message"), REFUSED)
def test_refused(op, arrays, attrs, message):
    with pytest.raises(ShapeError, match=message):
        lookup(op).infer(Attrs(attrs), *map(fact_from, arrays))
