"""The part ``sliders``: values of a model that a host changes while it runs."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.loading import load
from cml_engine.nnef import MemoryModel
from cml_engine.runtime.session import Session
from cml_engine.tools.selftest.context import SelfTest
from cml_engine.tools.selftest.frame_loop import FrameLoop

_MODEL = """version 1.0;
graph sliders(x) -> (y)
{
    x = external<scalar>(shape = [1, 6, 17, 33]);
    scaled = mul(x, 2.0);
    y = pad(scaled, padding = [(0, 0), (0, 0), (1, 1), (2, 2)], value = 0.25);
}
"""
#: an operand, which a kernel reads from memory, and an attribute, which is a kernel's parameter
_SLIDERS = {"strength": "scaled.y", "border": "y.value"}
#: values of the sliders; powers of two multiply without rounding, the first are the defaults
_VALUES = ((2.0, 0.25), (0.5, 0.25), (0.5, -3.0), (-4.0, 0.0))


def check_sliders(test: SelfTest) -> None:
    """Moves sliders between runs, and between jobs that wait at once."""
    session = Session(load(MemoryModel(_MODEL), sliders=_SLIDERS), test.gpu)
    x = np.random.default_rng(5).standard_normal((1, 6, 17, 33), np.float32)
    inputs = [{"x": x, **dict(zip(_SLIDERS, values, strict=True))} for values in _VALUES]
    inputs[0] = {"x": x}
    jobs = FrameLoop(test.gpu).run(session, *inputs)
    for given, (strength, border), job in zip(inputs, _VALUES, jobs, strict=True):
        widths = ((0, 0), (0, 0), (1, 1), (2, 2))
        expected = np.pad(np.float32(strength) * x, widths, constant_values=border)
        subject = f"strength {strength:g}, border {border:g}"
        with test.check(f"{subject}, at once"):
            np.testing.assert_array_equal(session.run(given)["y"], expected)
        with test.check(f"{subject}, in frames"):
            np.testing.assert_array_equal(job["y"], expected)
    test.part.note = "an operand and an attribute"
