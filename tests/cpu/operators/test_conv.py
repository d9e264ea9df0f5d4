"""Tests that a large convolution in NumPy is computed in blocks of rows."""

import numpy as np

from cml_engine.ir.graph import Attrs
from cml_engine.ops.conv.cases import conv_case
from cml_engine.ops.conv.cpu import conv_cpu


def test_a_large_image_is_done_in_stretches(rng):
    """A large convolution, computed in blocks of rows, equals convolutions of its parts."""
    x = rng.standard_normal((1, 16, 256, 40)).astype(np.float32)
    filter = rng.standard_normal((4, 16, 3, 3)).astype(np.float32)
    attrs = Attrs(conv_case(x.shape, filter.shape, padding=[(0, 0), (0, 0)]).attrs)
    zero = np.zeros((), np.float32)
    whole = conv_cpu(attrs, x, filter, zero)
    parts = [conv_cpu(attrs, x[:, :, i : i + 18], filter, zero) for i in (0, 100, 238)]
    for i, part in zip((0, 100, 238), parts, strict=True):
        np.testing.assert_allclose(whole[:, :, i : i + 16], part, rtol=1e-5, atol=1e-4)
