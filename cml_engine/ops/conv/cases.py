"""Test cases of ``conv`` and ``deconv``: odd extents, borders, groups, degenerate shapes."""

from __future__ import annotations

from typing import cast

import numpy as np

from cml_engine.ir.graph import AttrValue
from cml_engine.ops.declaration.spec import Case, CaseInput

Shape = tuple[int, ...]
_DEFAULTS: dict[str, AttrValue] = {
    "border": "constant",
    "padding": [],
    "stride": [],
    "dilation": [],
    "groups": 1,
}


def conv_case(
    x: Shape, filter: Shape, bias: object = None, note: str = "", **attrs: AttrValue
) -> Case:
    """Returns a test case of ``conv`` with an input of shape ``x`` and the shape of its filter.

    ``bias`` is a shape, a number, or None for one value per channel; ``attrs`` override the
    defaults.
    """
    return _case(x, filter, (1, filter[0]) if bias is None else bias, note, _DEFAULTS | attrs)


def deconv_case(
    x: Shape, filter: Shape, bias: object = None, note: str = "", **attrs: AttrValue
) -> Case:
    values = {**_DEFAULTS, "output_shape": [], **attrs}
    return _case(x, filter, 0.5 if bias is None else bias, note, values)


def _case(x: Shape, filter: Shape, bias: object, note: str, attrs: dict[str, AttrValue]) -> Case:
    if isinstance(bias, float):
        bias = np.array(bias, np.float32)
    return Case((x, filter, cast("CaseInput", bias)), attrs, note)


_AROUND = {"padding": [(1, 1), (1, 1)]}

CONV_CASES = (
    conv_case((1, 3, 35, 34), (16, 3, 3, 3), note="an image's first layer"),
    conv_case((1, 16, 32, 32), (16, 16, 3, 3), **_AROUND, note="the common layer"),
    conv_case((2, 32, 15, 29), (48, 32, 3, 3), note="odd extents, two images"),
    conv_case((1, 64, 9, 30), (12, 64, 3, 3), 0.25, **_AROUND, note="one bias for all"),
    conv_case((1, 5, 7, 6), (7, 5, 3, 3), (7,), note="channels that fill no block"),
    conv_case((1, 20, 10, 11), (33, 20, 1, 1), note="1x1"),
    conv_case((2, 1, 331), (21, 1, 40), stride=[10], padding=[(0, 0)], note="a spectrum"),
    conv_case((3, 8, 1, 1), (8, 8, 1, 1), note="one pixel"),
    conv_case((1, 8, 1, 9), (4, 8, 3, 3), **_AROUND, note="one row"),
    conv_case((1, 4, 11, 1), (5, 4, 3, 2), padding=[(1, 1), (1, 0)], note="one column"),
    conv_case((1, 6, 15, 14), (8, 6, 5, 5), stride=[2, 3], note="stride, automatic padding"),
    conv_case((1, 8, 16, 16), (8, 8, 2, 2), stride=[2, 2], padding=[(0, 0), (0, 0)], note="even"),
    conv_case((1, 8, 15, 17), (12, 8, 3, 3), dilation=[2, 3], note="dilation"),
    conv_case((1, 8, 19, 18), (4, 8, 3, 2), stride=[2, 1], dilation=[3, 2], note="both"),
    conv_case((1, 9, 9, 9), (8, 9, 4, 4), padding=[(2, 1), (0, 3)], note="uneven padding"),
    conv_case((1, 8, 9, 10), (8, 8, 3, 3), padding=[(-1, 1), (2, -2)], note="negative padding"),
    conv_case((1, 8, 20, 20), (8, 8, 3, 3), padding=[(-3, -4), (-1, -1)], note="crop only"),
    conv_case((1, 8, 6, 7), (8, 8, 3, 3), border="replicate", note="replicate"),
    conv_case((1, 8, 6, 7), (8, 8, 3, 3), border="reflect", note="reflect"),
    conv_case((1, 8, 6, 7), (8, 8, 3, 3), border="reflect-even", note="reflect-even"),
    conv_case(
        (1, 4, 3, 2), (4, 4, 5, 5), border="reflect", padding=[(4, 5), (5, 3)],
        note="reflects twice",
    ),
    conv_case(
        (1, 4, 3, 1), (4, 4, 5, 3), border="reflect-even", padding=[(5, 5), (2, 3)],
        note="reflect-even twice",
    ),
    conv_case((1, 3, 5, 5), (2, 3, 3, 3), border="replicate", padding=[(9, 0), (3, 7)]),
    conv_case((1, 8, 10, 10), (8, 1, 3, 3), groups=0, note="depthwise"),
    conv_case((2, 7, 9, 13), (7, 1, 4, 4), padding=[(1, 1), (2, 0)], groups=0, note="4x4"),
    conv_case((2, 6, 3, 1), (6, 1, 5, 5), border="reflect-even", groups=0, note="depthwise 5x5"),
    conv_case((1, 8, 5, 30), (8, 1, 1, 7), border="reflect", groups=0, note="depthwise, one row"),
    conv_case((1, 4, 6, 6), (4, 1, 3, 3), padding=[(-1, 2), (5, -2)], groups=0, note="depthwise"),
    conv_case((2, 6, 7, 9), (18, 1, 3, 3), groups=0, note="depthwise, three results each"),
    conv_case((1, 12, 9, 9), (12, 1, 5, 3), groups=0, stride=[2, 1], note="depthwise, stride"),
    conv_case((1, 12, 8, 8), (6, 4, 3, 3), groups=3, note="groups"),
    conv_case((1, 32, 8, 9), (32, 8, 3, 3), groups=4, **_AROUND, note="groups of whole blocks"),
    conv_case((1, 10, 8, 8), (10, 5, 1, 1), groups=2, note="groups across blocks"),
    conv_case((2, 8, 21), (6, 8, 5), stride=[2], note="one axis"),
    conv_case((1, 4, 33), (4, 4, 3), border="reflect", dilation=[4], note="one axis, reflect"),
    conv_case((1, 8, 5, 6, 7), (8, 8, 3, 3, 3), note="three axes"),
    conv_case(
        (2, 3, 6, 5, 4), (5, 3, 2, 3, 1), stride=[2, 1, 1], border="replicate", note="three axes"
    ),
    conv_case((1, 24, 4, 5, 6), (4, 24, 2, 3, 3), note="three axes, many channels"),
    conv_case((1, 64, 6, 9), (8, 32, 3, 3), groups=2, dilation=[2, 1], note="wide groups"),
    conv_case((2, 24, 15, 31), (20, 24, 3, 3), border="replicate", note="replicate, wide"),
    conv_case((1, 20, 31, 29), (16, 20, 3, 3), border="reflect", note="reflect, wide"),
    conv_case((1, 16, 30, 28), (18, 16, 3, 3), border="reflect-even", padding=[(1, 3), (2, 1)]),
    conv_case((1, 16, 32, 35), (16, 16, 3, 3), padding=[(-1, 2), (0, -2)], note="crop, wide"),
    conv_case((4, 18, 3, 62), (17, 18, 3, 3), note="low and wide"),
    conv_case((0, 4, 5, 5), (4, 4, 3, 3), note="no images"),
    conv_case((1, 4, 0, 5), (4, 4, 3, 3), note="no rows"),
    conv_case((1, 0, 4, 4), (4, 0, 3, 3), note="no input channels: the bias alone"),
    conv_case((1, 4, 0, 2), (4, 4, 3, 3), padding=[(2, 2), (2, 2)], note="nothing but padding"),
)  # fmt: skip

DECONV_CASES = (
    deconv_case((1, 8, 6, 7), (8, 4, 4, 4), stride=[2, 2], padding=[(1, 1), (1, 1)], note="twice"),
    deconv_case((1, 16, 9, 8), (16, 3, 4, 4), stride=[2, 2], padding=[(3, 3), (3, 3)]),
    deconv_case((2, 5, 4, 5), (5, 7, 3, 3), (1, 7), note="automatic padding"),
    deconv_case((1, 8, 5, 5), (8, 8, 3, 3), stride=[2, 2], note="automatic padding, stride"),
    deconv_case((1, 8, 5, 6), (8, 20, 2, 2), (20,), stride=[2, 2], note="no overlap"),
    deconv_case((1, 4, 4, 4), (4, 4, 2, 2), stride=[3, 3], note="gaps"),
    deconv_case((1, 4, 5, 4), (4, 6, 3, 3), stride=[2, 3], dilation=[2, 1]),
    deconv_case(
        (1, 4, 5, 5), (4, 4, 3, 3), stride=[2, 2], padding=[(1, 0), (0, 1)], note="uneven padding"
    ),
    deconv_case(
        (1, 4, 5, 5), (4, 4, 3, 3), padding=[(-1, -2), (0, -1)], note="negative padding widens"
    ),
    deconv_case(
        (1, 4, 5, 5), (4, 4, 3, 3), stride=[2, 2], output_shape=[1, 4, 9, 10], note="output_shape"
    ),
    deconv_case(
        (1, 6, 5, 4), (6, 2, 3, 3), stride=[2, 2], padding=[(1, 1), (1, 1)],
        output_shape=[1, 2, 10, 8], note="output_shape past the last window",
    ),
    deconv_case((1, 8, 6, 6), (8, 1, 3, 3), stride=[2, 2], groups=0, note="depthwise"),
    deconv_case(
        (1, 8, 6, 6), (8, 1, 3, 3), groups=0, output_shape=[1, 4, 6, 6], note="depthwise, reversed"
    ),
    deconv_case((1, 12, 5, 5), (12, 2, 3, 3), groups=3, stride=[2, 1], note="groups"),
    deconv_case((1, 32, 5, 4), (32, 16, 2, 2), groups=2, stride=[2, 2], note="wide groups"),
    deconv_case((2, 8, 9), (8, 6, 4), stride=[3], note="one axis"),
    deconv_case((1, 8, 3, 4, 3), (8, 4, 3, 2, 3), stride=[2, 1, 2], note="three axes"),
    deconv_case((1, 4, 1, 1), (4, 4, 4, 4), padding=[(0, 0), (0, 0)], note="one pixel"),
    deconv_case((1, 64, 6, 6), (64, 40, 3, 3), (1, 40), stride=[1, 2], note="many channels"),
    deconv_case((0, 4, 3, 3), (4, 4, 3, 3), note="no images"),
    deconv_case((1, 4, 0, 3), (4, 4, 3, 3), note="no rows"),
    deconv_case((1, 0, 3, 3), (0, 4, 3, 3), note="no input channels: the bias alone"),
)  # fmt: skip
