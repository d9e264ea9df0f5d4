"""Tests that every operator refuses wrong shapes, types and attributes, and names them."""

import numpy as np
import pytest

from cml_engine.compiler.passes.infer import infer_node
from cml_engine.errors import InputError, ModelError
from cml_engine.ir.graph import Attrs, Fact, Node
from cml_engine.ops import load_families
from cml_engine.ops.declaration.registry import lookup
from cml_engine.tools.testing import full_attrs

load_families()


def integers(*shape):
    return Fact("integer", shape)


def logicals(*shape):
    return Fact("logical", shape)


IMAGE, FILTER = (1, 8, 4, 4), (8, 8, 3, 3)
ANY = [(0, 0)] * 4
ROI = [(1, 1, 4, 4), (2, 4), integers(2)]
TWO = {"size": [1, 1, 2, 2]}
HALVE = {**TWO, "stride": [1, 1, 2, 2]}
PLANES, WHOLE = (1, 2, 4, 4), integers(2, 3)
BLOCK = {"size": [2, 2], "padding": [(0, 0)] * 2}

WRONG = [
    ("conv", [(1, 128, 8, 8), (32, 64, 3, 3), ()], {},
     r"filter has 64 input channels, input has 128 \(groups=1"),
    ("conv", [(1, 8), (8, 8), ()], {}, "rank 3, 4 or 5"),
    ("conv", [IMAGE, (8, 8, 3), ()], {}, "wanted rank 4"),
    ("conv", [IMAGE, FILTER, (1, 9)], {}, "bias"),
    ("conv", [IMAGE, FILTER, ()], {"stride": [1]}, "has 1 values, wanted 2"),
    ("conv", [IMAGE, FILTER, ()], {"dilation": [0, 1]}, "wanted 1 or more"),
    ("conv", [IMAGE, FILTER, ()], {"padding": [(1, 1)]}, "wanted 2 pairs"),
    ("conv", [IMAGE, (8, 4, 3, 3), ()], {"groups": 3}, "do not divide into groups=3"),
    ("conv", [IMAGE, FILTER, ()], {"groups": -1}, "groups=-1"),
    ("deconv", [IMAGE, (4, 8, 3, 3), ()], {}, "filter is for 4 input channels, input has 8"),
    ("deconv", [IMAGE, FILTER, ()], {"border": "reflect"}, "no meaning for deconv"),
    ("deconv", [IMAGE, (8, 4, 3, 3), ()], {"output_shape": [1, 8, 4, 4]}, "output_shape begins"),
    ("deconv", [IMAGE, (8, 4, 3, 3), ()], {"stride": [2, 2], "output_shape": [1, 4, 12, 8]},
     "output_shape 12 goes back to 6"),
    ("add", [(2, 3), (3,)], {}, r"\[2,.?3\] and \[3\].*dimension 0 is 2 and 3.*unsqueeze"),
    ("add", [integers(), ()], {}, "x is integer.*wanted tensor<scalar>.*cast"),
    ("select", [logicals(), integers(), ()], {}, "false_value is scalar"),
    ("relu", [], {}, "wanted 1 operands, got 0"),
    ("gather", [(3, 4), (2,)], {"axis": 0}, "indices is .*wanted tensor<integer>"),
    ("gather", [(0, 4), integers(2)], {"axis": 0}, "is empty"),
    ("cast", [(1,)], {"dtype": "float"}, "cast to 'float'"),
    ("matmul", [(2, 3), (4, 5)], {}, "3 columns but B has 4 rows"),
    ("matmul", [(2, 3), (1, 3, 5)], {}, "equal ranks"),
    ("linear", [(2, 3), (5, 4), ()], {}, "3 channels in, but the filter takes 4"),
    ("linear", [(2, 3), (5, 3), (1, 4)], {}, r"wanted \[1,5\]"),
    ("reshape", [(2, 3)], {"shape": [5]}, "5 elements, wanted 6"),
    ("reshape", [(2, 3)], {"shape": [-1, 4]}, "the other extents make 4"),
    ("reshape", [(2, 3)], {"shape": [-1, -1]}, "one -1"),
    ("reshape", [(2, 3)], {"shape": [6], "axis_start": 3}, "reach past"),
    *(("transpose", [(2, 3)], {"axes": axes}, "wanted each of 0 to")
      for axes in ([0, 0], [1, 2], [0, 1, 2])),
    ("concat", [(2, 3), (3, 3)], {"axis": 1}, "agree in every axis but 1"),
    ("concat", [(2, 3)], {"axis": -1}, "axis -1"),
    ("concat", [], {"axis": 0}, "at least one"),
    ("concat", [(2,), integers(2)], {"axis": 0}, "cast"),
    ("stack", [(2, 3), (2, 4)], {"axis": 0}, "in every axis"),
    ("split", [(4,)], {"axis": 0, "ratios": [1, 2]}, "ratios, not sizes"),
    ("split", [(4,)], {"axis": 0, "ratios": []}, "wanted ratios"),
    ("unstack", [()], {"axis": 0}, "rank 0"),
    ("tile", [(2, 3)], {"repeats": [0, 1]}, "1 or more"),
    *(("slice", [(3, 4)], {"axes": [0], "begin": [0], "end": [1], **change}, said)
      for change, said in (
          ({"axes": [2]}, "axis 2"),
          ({"axes": [0, 0], "begin": [0, 0], "end": [1, 1]}, "twice"),
          ({"begin": [0, 0]}, "'begin' has 2 values"),
          ({"stride": [0]}, "stride is 0"),
          ({"stride": [1, 1]}, "'stride' has 2 values"))),
    ("pad", [(3, 4)], {"padding": [(-2, -2), (0, 0)]}, "leaves -1"),
    ("pad", [(0, 4)], {"padding": [(1, 0), (0, 0)], "border": "reflect"}, "nothing to repeat"),
    ("max_pool", [IMAGE], {"size": [2, 2]}, "size=.* has 2 values, wanted 4: one for each extent"),
    ("max_pool", [IMAGE], {"size": [1, 1, 9, 2], "padding": ANY},
     "axis 2: a window of 9 .* does not fit"),
    ("max_pool", [IMAGE], {**TWO, "border": "mirror"}, "border 'mirror', wanted one of constant"),
    ("sample", [IMAGE, integers(*IMAGE)], HALVE,
     r"index has shape \[1, 8, 4, 4\], wanted \[1, 8, 2, 2\]"),
    ("desample", [IMAGE, IMAGE], HALVE, "index is .*wanted tensor<integer>"),
    ("debox", [IMAGE], {**HALVE, "output_shape": [1, 8, 11, 8]},
     "output_shape 11 goes back to 6 .* the input has 4"),
    ("sum_reduce", [(2, 3)], {"axes": [2]}, "axis 2 .* wanted 0 to 1"),
    ("sum_reduce", [(2, 3)], {"axes": [-1]}, "axis -1 .* from 0"),
    ("argmax_reduce", [(2, 0)], {"axes": [1]}, "no position in nothing"),
    ("nearest_upsample", [(1, 2)], {"factor": []}, "1 to 3 spatial axes"),
    ("area_downsample", [(1, 2, 5)], {"factor": [2]}, "5 / 2 leaves 1"),
    ("nearest_downsample", [(1, 2, 4, 5)], {"factor": [2, 3]}, "axis 3"),
    ("multilinear_upsample", [(1, 2, 3)], {"factor": [2], "method": "cubic"}, "method 'cubic'"),
    ("avg_roi_pool", [(1, 1, 4), (2, 4), integers(2)], {"output_size": [1]},
     r"wanted \[number of rois, 2\]"),
    ("avg_roi_pool", ROI, {"output_size": [1, 0]}, "wanted 1 or more"),
    ("avg_roi_pool", [(0, 1, 4, 4), *ROI[1:]], {"output_size": [1, 1]}, "no batch item"),
    ("max_roi_align", ROI, {"output_size": [1, 1], "sampling_rate": [2]}, "sampling_rate"),
    ("gather_elements", [PLANES, WHOLE], {"axis": 1}, "wanted rank 4"),
    ("scatter_elements", [WHOLE] * 3, {"axis": 1, "reduction": "sum"},
     "reduction 'sum', wanted one of none, add"),
    ("scatter_nd", [logicals(2, 3), integers(2, 1), logicals(2, 3)], {"reduction": "add"},
     "cast it"),
    ("scatter_nd", [WHOLE] * 3, {}, "rows of at most 2 numbers"),
    ("grid_sample", [PLANES, (1, 2, 2, 3)], {}, "a position of 2 numbers"),
    ("grid_sample", [PLANES, (1, 2, 2, 2)], {"method": "bilinear"},
     "method 'bilinear', wanted one of nearest, linear, cubic"),
    ("roi_align", [PLANES, (1, 4), integers(2)], {"output_size": [2, 2]}, "one for each roi"),
    ("non_max_suppression", [(1, 3, 4), (1, 2, 4)], {"max_per_class": 1},
     r"wanted \[1, classes, 3\]"),
    ("nonzero", [PLANES], {"capacity": -1}, "capacity -1"),
    ("col2im", [(1, 4, 8)], {**BLOCK, "output_size": [4, 4]},
     r"wanted \[batch, channels \* 4, 9\]"),
    ("deform_columns", [PLANES, (1, 8, 4, 4), ()], BLOCK, r"wanted \[1,8,3,3\]"),
    ("int_conv", [PLANES, PLANES], {}, "input is .*scalar"),
    ("reverse_sequence", [PLANES, integers(3)], {"time_axis": 2, "batch_axis": 1},
     r"wanted integer\[2\]"),
    ("cumprod", [WHOLE], {"axis": 0}, "cast<scalar>"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "attrs", "message"), WRONG)
def test_a_wrong_call_is_refused(op, operands, attrs, message):
    facts = {
        f"x{i}": fact if isinstance(fact, Fact) else Fact("scalar", fact)
        for i, fact in enumerate(operands)
    }
    with pytest.raises(ModelError, match=message):
        infer_node(Node(op, tuple(facts), ("y",), full_attrs(op, attrs)), facts)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_the_tensor_is_refused(index):
    with pytest.raises(InputError, match=f"index {index} .*wanted 0 to 2.*1 of 2"):
        lookup("gather").cpu(Attrs(axis=0), np.zeros((3, 2)), np.array([0, index], np.int32))
