"""Variants that are chosen on a real GPU and not on a software driver, run on whichever is here."""

from dataclasses import replace

import pytest

from cml_engine.ops import gather, matmul, movement, padding, resample, slicing  # noqa: F401
from cml_engine.ops.spec import Case, lookup
from cml_engine.testing import check_on_gpu

OPS = ("transpose", "slice", "tile", "concat", "nearest_upsample", "matmul", "linear")
LARGER = {
    "transpose": [
        Case(((100, 67),), {"axes": [1, 0]}),
        Case(((2, 70, 9, 31),), {"axes": [0, 2, 3, 1]}),
        Case(((40, 3, 50),), {"axes": [2, 1, 0]}),
    ],
    "matmul": [
        Case(((300, 70), (70, 260)), {"transposeA": False, "transposeB": False}),
        Case(((9, 4, 65), (9, 33, 65)), {"transposeA": False, "transposeB": True}),
    ],
}
CASES = [
    pytest.param(name, case, id=f"{name}-{i}")
    for name in OPS
    for i, case in enumerate([*lookup(name).cases, *LARGER.get(name, [])])
]


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize(("op", "case"), CASES)
def test_variant(op, case, software, gpu, monkeypatch):
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, software=software))
    for constants in (False, True) if len(case.inputs) > 1 else (False,):
        check_on_gpu(op, case, gpu, constants=constants)
