"""Tests that every operator refuses wrong shapes, types and attributes, and names them."""

import numpy as np
import pytest

from cml_engine.compiler.passes.infer import infer_node
from cml_engine.errors import InputError, ModelError
from cml_engine.ir.graph import Attrs, Node
from cml_engine.ops.declaration.registry import load_families, lookup
from cml_engine.testing import full_attrs
from tests.fixtures.texts import operator_call

load_families()


#: calls of operands with these types and shapes, and a part of the message
WRONG = [
    ("conv(f[1, 128, 8, 8], f[32, 64, 3, 3], f[()])",
     r"filter has 64 input channels, input has 128 \(groups=1"),
    ("conv(f[1, 8], f[8, 8], f[()])", "rank 3, 4 or 5"),
    ("conv(f[1, 8, 4, 4], f[8, 8, 3], f[()])", "wanted rank 4"),
    ("conv(f[1, 8, 4, 4], f[8, 8, 3, 3], f[1, 9])", "bias"),
    ("conv(f[1, 8, 4, 4], f[8, 8, 3, 3], f[()], stride=[1])", "has 1 values, wanted 2"),
    ("conv(f[1, 8, 4, 4], f[8, 8, 3, 3], f[()], dilation=[0, 1])", "wanted 1 or more"),
    ("conv(f[1, 8, 4, 4], f[8, 8, 3, 3], f[()], padding=[(1, 1)])", "wanted 2 pairs"),
    ("conv(f[1, 8, 4, 4], f[8, 4, 3, 3], f[()], groups=3)", "do not divide into groups=3"),
    ("conv(f[1, 8, 4, 4], f[8, 8, 3, 3], f[()], groups=-1)", "groups=-1"),
    ("deconv(f[1, 8, 4, 4], f[4, 8, 3, 3], f[()])", "filter is for 4 input channels, input has 8"),
    ("deconv(f[1, 8, 4, 4], f[8, 8, 3, 3], f[()], border='reflect')", "no meaning for deconv"),
    ("deconv(f[1, 8, 4, 4], f[8, 4, 3, 3], f[()], output_shape=[1, 8, 4, 4])",
     "output_shape begins"),
    ("deconv(f[1, 8, 4, 4], f[8, 4, 3, 3], f[()], stride=[2, 2], output_shape=[1, 4, 12, 8])",
     "output_shape 12 goes back to 6"),
    ("add(f[2, 3], f[3])", r"\[2,.?3\] and \[3\].*dimension 0 is 2 and 3.*unsqueeze"),
    ("add(i[()], f[()])", "x is integer.*wanted tensor<scalar>.*cast"),
    ("select(b[()], i[()], f[()])", "false_value is scalar"),
    ("relu()", "wanted 1 operands, got 0"),
    ("gather(f[3, 4], f[2], axis=0)", "indices is .*wanted tensor<integer>"),
    ("gather(f[0, 4], i[2], axis=0)", "is empty"),
    ("cast(f[1], dtype='float')", "cast to 'float'"),
    ("matmul(f[2, 3], f[4, 5])", "3 columns but B has 4 rows"),
    ("matmul(f[2, 3], f[1, 3, 5])", "equal ranks"),
    ("linear(f[2, 3], f[5, 4], f[()])", "3 channels in, but the filter takes 4"),
    ("linear(f[2, 3], f[5, 3], f[1, 4])", r"wanted \[1,5\]"),
    ("reshape(f[2, 3], shape=[5])", "5 elements, wanted 6"),
    ("reshape(f[2, 3], shape=[-1, 4])", "the other extents make 4"),
    ("reshape(f[2, 3], shape=[-1, -1])", "one -1"),
    ("reshape(f[2, 3], shape=[6], axis_start=3)", "reach past"),
    ("transpose(f[2, 3], axes=[0, 0])", "wanted each of 0 to"),
    ("transpose(f[2, 3], axes=[1, 2])", "wanted each of 0 to"),
    ("transpose(f[2, 3], axes=[0, 1, 2])", "wanted each of 0 to"),
    ("concat(f[2, 3], f[3, 3], axis=1)", "agree in every axis but 1"),
    ("concat(f[2, 3], axis=-1)", "axis -1"),
    ("concat(axis=0)", "at least one"),
    ("concat(f[2], i[2], axis=0)", "cast"),
    ("stack(f[2, 3], f[2, 4], axis=0)", "in every axis"),
    ("split(f[4], axis=0, ratios=[1, 2])", "ratios, not sizes"),
    ("split(f[4], axis=0, ratios=[])", "wanted ratios"),
    ("unstack(f[()], axis=0)", "rank 0"),
    ("tile(f[2, 3], repeats=[0, 1])", "1 or more"),
    ("add(f[2, 3], f[2, 4])", "dimension 1 is 3 and 4, wanted equal extents or 1; change one"),
    ("add(f[2, 3], f[3])", "dimension 0 is 2 and 3, .* NNEF aligns shapes from the left"),
    ("slice(f[3, 4], axes=[2], begin=[0], end=[1])", "axis 2"),
    ("slice(f[3, 4], axes=[0, 0], begin=[0, 0], end=[1, 1])", "twice"),
    ("slice(f[3, 4], axes=[0], begin=[0, 0], end=[1])", "'begin' has 2 values"),
    ("slice(f[3, 4], axes=[0], begin=[0], end=[1], stride=[0])", "stride is 0"),
    ("slice(f[3, 4], axes=[0], begin=[0], end=[1], stride=[1, 1])", "'stride' has 2 values"),
    ("pad(f[3, 4], padding=[(-2, -2), (0, 0)])", "leaves -1"),
    ("pad(f[0, 4], padding=[(1, 0), (0, 0)], border='reflect')", "nothing to repeat"),
    ("max_pool(f[1, 8, 4, 4], size=[2, 2])", "size=.* has 2 values, wanted 4: one for each extent"),
    ("max_pool(f[1, 8, 4, 4], size=[1, 1, 9, 2], padding=[(0, 0), (0, 0), (0, 0), (0, 0)])",
     "axis 2: a window of 9 .* does not fit"),
    ("max_pool(f[1, 8, 4, 4], size=[1, 1, 2, 2], border='mirror')",
     "border 'mirror', wanted one of constant"),
    ("sample(f[1, 8, 4, 4], i[1, 8, 4, 4], size=[1, 1, 2, 2], stride=[1, 1, 2, 2])",
     r"index has shape \[1, 8, 4, 4\], wanted \[1, 8, 2, 2\]"),
    ("desample(f[1, 8, 4, 4], f[1, 8, 4, 4], size=[1, 1, 2, 2], stride=[1, 1, 2, 2])",
     "index is .*wanted tensor<integer>"),
    ("debox(f[1, 8, 4, 4], size=[1, 1, 2, 2], stride=[1, 1, 2, 2], output_shape=[1, 8, 11, 8])",
     "output_shape 11 goes back to 6 .* the input has 4"),
    ("sum_reduce(f[2, 3], axes=[2])", "axis 2 .* wanted 0 to 1"),
    ("sum_reduce(f[2, 3], axes=[-1])", "axis -1 .* from 0"),
    ("argmax_reduce(f[2, 0], axes=[1])", "no position in nothing"),
    ("nearest_upsample(f[1, 2], factor=[])", "1 to 3 spatial axes"),
    ("area_downsample(f[1, 2, 5], factor=[2])", "5 / 2 leaves 1"),
    ("nearest_downsample(f[1, 2, 4, 5], factor=[2, 3])", "axis 3"),
    ("multilinear_upsample(f[1, 2, 3], factor=[2], method='cubic')", "method 'cubic'"),
    ("avg_roi_pool(f[1, 1, 4], f[2, 4], i[2], output_size=[1])", r"wanted \[number of rois, 2\]"),
    ("avg_roi_pool(f[1, 1, 4, 4], f[2, 4], i[2], output_size=[1, 0])", "wanted 1 or more"),
    ("avg_roi_pool(f[0, 1, 4, 4], f[2, 4], i[2], output_size=[1, 1])", "no batch item"),
    ("gather_elements(f[1, 2, 4, 4], i[2, 3], axis=1)", "wanted rank 4"),
    ("scatter_elements(i[2, 3], i[2, 3], i[2, 3], axis=1, reduction='sum')",
     "reduction 'sum', wanted one of none, add"),
    ("scatter_nd(b[2, 3], i[2, 1], b[2, 3], reduction='add')", "cast it"),
    ("scatter_nd(i[2, 3], i[2, 3], i[2, 3])", "rows of at most 2 numbers"),
    ("grid_sample(f[1, 2, 4, 4], f[1, 2, 2, 3])", "a position of 2 numbers"),
    ("grid_sample(f[1, 2, 4, 4], f[1, 2, 2, 2], method='bilinear')",
     "method 'bilinear', wanted one of nearest, linear, cubic"),
    ("roi_align(f[1, 2, 4, 4], f[1, 4], i[2], output_size=[2, 2])", "one for each roi"),
    ("non_max_suppression(f[1, 3, 4], f[1, 2, 4], max_per_class=1)", r"wanted \[1, classes, 3\]"),
    ("nonzero(f[1, 2, 4, 4], capacity=-1)", "capacity -1"),
    ("col2im(f[1, 4, 8], size=[2, 2], padding=[(0, 0), (0, 0)], output_size=[4, 4])",
     r"wanted \[batch, channels \* 4, 9\]"),
    ("deform_columns(f[1, 2, 4, 4], f[1, 8, 4, 4], f[()], size=[2, 2], padding=[(0, 0), (0, 0)])",
     r"wanted \[1,8,3,3\]"),
    ("int_conv(f[1, 2, 4, 4], f[1, 2, 4, 4])", "input is .*scalar"),
    ("reverse_sequence(f[1, 2, 4, 4], i[3], time_axis=2, batch_axis=1)", r"wanted integer\[2\]"),
    ("cumprod(i[2, 3], axis=0)", "cast<scalar>"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_call_is_refused(text, message):
    op, operands, attrs = operator_call(text)
    facts = {f"x{i}": fact for i, fact in enumerate(operands)}
    with pytest.raises(ModelError, match=message):
        infer_node(Node(op, tuple(facts), ("y",), full_attrs(op, attrs)), facts)


@pytest.mark.parametrize(
    ("op", "index", "low"),
    [("gather", -1, 0), ("gather", 3, 0), ("gather_elements", -4, -3), ("gather_elements", 3, -3)],
)
def test_an_index_outside_the_tensor_is_refused(op, index, low):
    indices = np.array([[0, index]], np.int32)
    with pytest.raises(InputError, match=f"^{op} index {index} .*wanted {low} to 2 .1 of 2"):
        lookup(op).cpu(Attrs(axis=0), np.zeros((3, 2)), indices)
