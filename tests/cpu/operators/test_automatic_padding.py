"""Tests of the automatic padding of windows, for convolutions and for deconvolutions."""

import pytest

from cml_engine.ops.common.window import resolve_reverse, resolve_window


@pytest.mark.parametrize(
    ("extent", "size", "stride", "padding", "extent_out"),
    [
        (7, 3, 2, (1, 1), 4),  # total padding (4-1)*2+3-7 = 2
        (6, 3, 2, (0, 1), 3),  # the odd one at the end
        (5, 2, 2, (0, 1), 3),
        (4, 1, 3, (0, 0), 2),
        (8, 2, 2, (0, 0), 4),
    ],
)
def test_automatic_padding(extent, size, stride, padding, extent_out):
    (axis,) = resolve_window([extent], [size], [], [stride], [])
    assert ((axis.before, axis.after), axis.narrow) == (padding, extent_out)
    (back,) = resolve_reverse([extent_out], [size], [], [stride], [], [extent])
    assert ((back.before, back.after), back.wide) == (padding, extent)
