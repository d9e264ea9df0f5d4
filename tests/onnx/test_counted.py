"""Tests of axes whose number of elements is known only at run time, against ONNX Runtime.

Every case computes with a selection. The right value is that of ONNX Runtime, on NumPy, on a GPU,
in slices, and from a cooked file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.testing import assert_array_equal

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from cml_engine.cooked.cook import cook  # noqa: E402
from cml_engine.cooked.load import load_cooked  # noqa: E402
from cml_engine.errors import UnsupportedOp  # noqa: E402
from cml_engine.formats.onnx.counted_statements import STATEMENTS  # noqa: E402
from cml_engine.formats.onnx.op_schemas import all_schemas  # noqa: E402
from cml_engine.runtime.reach_check import check_reach  # noqa: E402
from cml_engine.scheduler import FrameScheduler  # noqa: E402
from tests.fixtures.cooked import DEVICES  # noqa: E402
from tests.fixtures.counted_models import (  # noqa: E402
    NO_ANSWER,
    check_counted_model,
    different_outputs,
)
from tests.fixtures.onnx_models import (  # noqa: E402
    Array,
    function,
    load,
    model,
    node,
    run,
    subgraph,
)
from tests.proofs.onnx_nodes import run_onnx  # noqa: E402

X = np.float32([1, 3, -5, -7])
ROWS = np.float32([[1, 2, 3], [-1, -2, -3], [4, -5, 6], [0.5, 7, 8], [-9, 0, 1]])
#: sums of integers, whose bounds are those of 64 bits
pytestmark = pytest.mark.filterwarnings("ignore::cml_engine.nnef.NnefWarning")
#: the elements v of x that are greater than z, at the places t
SELECT = "m = Greater(x, z); i = NonZero(m); t = Transpose(i); v = GatherND(x, t)"
#: the rows v of x that begin with a positive number
SELECT_ROWS = (
    "c = Gather(x, zero, axis=1); m = Greater(c, z); i = NonZero(m); f = Reshape(i, minus); "
    "v = Gather(x, f)"
)
#: the elements of v as integers of 64 bits whose sums and products fit into 32
WHOLE = "c = Clip(v, least, most); a = Cast(c, to=7)"
#: constants that the cases read
KNOWN = {
    "z": np.float32(0), "zero": np.int64(0), "one": np.int64([1]), "minus": np.int64([-1]),
    "first": np.int64([0]), "second": np.int64([2]), "half": np.float32(0.5), "big": np.float32(99),
    "pads": np.int64([1, 2]), "row": np.int64([1, -1]), "last": np.int64(-1),
    "both": np.int64([1, 0]),
    "unit": np.float32([1]), "scale": np.float32([2, 1, 0.5]), "shift": np.float32([1, 0, 2]),
    "w": np.float32([[1, 2], [3, 4], [5, 6]]), "long": np.float32([9, 8, 7, 6, 5, 4]),
    "far": np.int64([1 << 40]), "near": np.int64([-(1 << 40)]),
    "two": np.int64(2), "to": np.int64([2]),
    "halves": np.int64([-1, 1]), "thrice": np.int64([3]), "unity": np.int64(1),
    "pair": np.int64([2, 1]), "edges": np.int64([0, 0, 1, 0]), "three": np.int64([-1, 3, 1]),
    "least": np.float32(-9), "most": np.float32(9),
    "values": np.float32([0, 1]), "keep": np.int64([0, -1]),
}  # fmt: skip
#: by name: the nodes after a selection, and the type of y
OF_ELEMENTS = {
    **{f"{op} of all": (f"y = {op}(v, keepdims=0)", "float32") for op in (
        "ReduceMean", "ReduceSum", "ReduceMin", "ReduceMax", "ReduceProd", "ReduceL1", "ReduceL2",
        "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")},
    **{f"{op} along it": (f"y = {op}(v, axis=0)", "float32")
       for op in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")},
    "LayerNormalization along it": ("y = LayerNormalization(v, unit, axis=0)", "float32"),
    "centred": ("a = ReduceMean(v); y = Sub(v, a)", "float32"),
    "the values": ("y = Identity(v)", "float32"),
    "shape": ("y = Shape(v)", "int64"),
    "size": ("y = Size(v)", "int64"),
    "cumsum": ("y = CumSum(v, zero)", "float32"),
    "cumsum reversed": ("y = CumSum(v, zero, reverse=1, exclusive=1)", "float32"),
    "concat before": ("y = Concat(v, x, axis=0)", "float32"),
    "concat behind": ("y = Concat(x, v, axis=0)", "float32"),
    "concat of itself": ("y = Concat(v, v, v, x, axis=0)", "float32"),
    "dot product": ("y = MatMul(v, v)", "float32"),
    "outer product": ("a = Unsqueeze(v, one); b = Unsqueeze(v, first); y = MatMul(a, b)",
                      "float32"),
    "outer product, summed": ("a = Unsqueeze(v, one); b = Unsqueeze(v, first); c = MatMul(a, b); "
                              "y = ReduceSum(c, keepdims=0)", "float32"),
    "flattened outer product": ("a = Unsqueeze(v, one); b = Unsqueeze(v, first); c = MatMul(a, b); "
                                "y = Reshape(c, minus)", "float32"),
    "sort": ("n = Shape(v); y, p = TopK(v, n, axis=0, largest=0)", "float32"),
    "top": ("y, p = TopK(v, one, axis=0)", "float32"),
    "argmax": ("y = ArgMax(v, axis=0)", "int64"),
    "argmin": ("y = ArgMin(v, axis=0, keepdims=0)", "int64"),
    "last argmax": ("y = ArgMax(v, axis=0, select_last_index=1)", "int64"),
    "pad": ("y = Pad(v, pads, half)", "float32"),
    "pad by edges": ("y = Pad(v, pads, mode='edge')", "float32"),
    "pad reflected": ("p = Abs(one); q = Concat(p, p, axis=0); y = Pad(v, q, mode='reflect')",
                      "float32"),
    "where": ("a = Greater(v, half); y = Where(a, v, half)", "float32"),
    "slice to the count": ("n = Shape(v); y = Slice(long, first, n)", "float32"),
    "slice": ("y = Slice(v, first, one)", "float32"),
    "slice from the end": ("y = Slice(v, minus, far)", "float32"),
    "slice backwards": ("y = Slice(v, minus, near, first, minus)", "float32"),
    "every second": ("y = Slice(v, first, far, first, to)", "float32"),
    "element": ("y = Gather(v, zero)", "float32"),
    "last element": ("y = Gather(v, last)", "float32"),
    "reversed by indices": ("y = Gather(v, both)", "float32"),
    "column": ("y = Reshape(v, halves)", "float32"),
    "row": ("y = Reshape(v, row)", "float32"),
    "flatten": ("y = Flatten(v, axis=0)", "float32"),
    "tile": ("y = Tile(v, thrice)", "float32"),
    "expand": ("n = Shape(v); y = Expand(half, n)", "float32"),
    "constant of shape": ("n = Shape(v); y = ConstantOfShape(n)", "float32"),
    "range": ("n = Size(v); y = Range(zero, n, unity)", "int64"),
    "range as weights": ("n = Size(v); r = Range(zero, n, unity); a = Cast(r, to=1); y = Mul(a, v)",
                         "float32"),
    "selected again": ("a = Sub(v, half); b = Relu(a); c = NonZero(b); d = Transpose(c); "
                       "y = GatherND(v, d)", "float32"),
    "selected twice alike": ("m2 = Greater(x, z); i2 = NonZero(m2); t2 = Transpose(i2); "
                             "v2 = GatherND(x, t2); y = Mul(v, v2)", "float32"),
    "nothing found": ("a = Greater(v, big); b = NonZero(a); c = Transpose(b); d = GatherND(v, c); "
                      "y = ReduceSum(d, keepdims=0)", "float32"),
    "compress": ("a = Compress(x, m, axis=0); y = ReduceMax(a, keepdims=0)", "float32"),
    "distinct": ("a = Concat(v, v, x, axis=0); y = Unique(a)", "float32"),
    "mean of distinct": ("a = Concat(v, v, axis=0); b = Unique(a); y = ReduceMean(b, keepdims=0)",
                         "float32"),
    "sum of integers": (f"{WHOLE}; y = ReduceSum(a, keepdims=0)", "int64"),
    "mean of integers": (f"{WHOLE}; y = ReduceMean(a, keepdims=0)", "int64"),
    "product of integers": (f"{WHOLE}; y = ReduceProd(a, keepdims=0)", "int64"),
    "norm of integers": (f"{WHOLE}; y = ReduceL2(a, keepdims=0)", "int64"),
    "cumsum of integers": (f"{WHOLE}; y = CumSum(a, zero)", "int64"),
    "largest integer": (f"{WHOLE}; y = ReduceMax(a, keepdims=0)", "int64"),
    "smallest integer": (f"{WHOLE}; y = ReduceMin(a, keepdims=0)", "int64"),
    "sorted integers": (f"{WHOLE}; n = Shape(v); y, p = TopK(a, n, axis=0)", "int64"),
    "sum of 32 bits": ("a = Cast(v, to=6); y = ReduceSum(a, keepdims=0)", "int32"),
    "mean of 32 bits": ("a = Cast(v, to=6); y = ReduceMean(a, keepdims=0)", "int32"),
    "product of 32 bits": ("a = Cast(v, to=6); y = ReduceProd(a, keepdims=0)", "int32"),
    "integers of 32 bits": ("y = Cast(v, to=6)", "int32"),
    "unsigned integers": ("b = Abs(v); y = Cast(b, to=12)", "uint32"),
    "variance": ("s = Shape(v); n = ReduceProd(s, keepdims=0); c = Cast(n, to=1); "
                 "a = ReduceMean(v); d = Sub(v, a); e = Mul(d, d); "
                 "r = ReduceSum(e, keepdims=0); y = Div(r, c)",
                 "float32"),
    "differences": ("a = Slice(v, one, far); b = Slice(v, first, minus); y = Sub(a, b)", "float32"),
    "range from 1": ("s = Shape(v); n = Gather(s, zero); e = Add(n, unity); "
                     "r = Range(unity, e, unity); a = Cast(r, to=1); y = Add(a, v)", "float32"),
    "rest behind the count": ("n = Shape(v); y = Slice(x, n, far)", "float32"),
    "all but the last": ("n = Shape(v); e = Sub(n, one); y = Slice(v, first, e)", "float32"),
    "expanded rows": ("n = Shape(v); s = Concat(thrice, n, axis=0); e = Equal(s, minus); "
                      "o = ConstantOfShape(ranks); "
                      "f = Cast(o, to=7); g = Where(e, f, s); y = Expand(v, g)", "float32"),
    "at most three": ("n = Shape(v); k = Min(n, thrice); y, p = TopK(v, k, axis=0)", "float32"),
    "two selections": ("m2 = Less(x, z); i2 = NonZero(m2); t2 = Transpose(i2); "
                       "v2 = GatherND(x, t2); y = Concat(v, v2, v, axis=0)", "float32"),
    "pairs of two selections": (
        "m2 = Less(x, z); i2 = NonZero(m2); t2 = Transpose(i2); v2 = GatherND(x, t2); "
        "a = Unsqueeze(v, one); b = Unsqueeze(v2, first); c = Mul(a, b); y = Reshape(c, minus)",
        "float32"),
    "histogram": ("j = Squeeze(t, one); b = Mod(j, to); "
                  "y = ScatterElements(bins, b, v, axis=0, reduction='add')", "float32"),
    "embedding": ("j = Cast(v, to=7); k = Mod(j, to); y = Gather(w, k)", "float32"),
    # assignments under a mask
    "y[m] *= 2": ("a = Add(v, v); y = ScatterND(x, t, a)", "float32"),
    "y[m] = w[m]": ("a = Exp(x); b = GatherND(a, t); y = ScatterND(x, t, b)", "float32"),
    "y[m] = w[m] of another mask node": (
        "a = Exp(x); m2 = Greater(x, z); i2 = NonZero(m2); t2 = Transpose(i2); "
        "b = GatherND(a, t2); y = ScatterND(x, t, b)", "float32"),
    "masked_scatter": ("s = Shape(t); n0 = Gather(s, zero); n = Unsqueeze(n0, first); "
                       "u = Slice(long, first, n, first); y = ScatterND(x, t, u)", "float32"),
    "masked_scatter of a short source": (
        "a = Slice(long, first, second); s = Shape(t); n0 = Gather(s, zero); "
        "n = Unsqueeze(n0, first); u = Slice(a, first, n, first); "
        "y = ScatterND(x, t, u)", "float32"),
    "y[m] = value": ("s = Shape(t); n = Gather(s, first); u = Expand(half, n); "
                     "y = ScatterND(x, t, u)", "float32"),
    "y[m] += value": ("y = ScatterND(x, t, v, reduction='add')", "float32"),
    "index_put": ("j = Squeeze(t, one); a = Add(v, v); u = Unsqueeze(j, minus); b = Shape(j); "
                  "s = Shape(x); c = Slice(s, one, far); d = Concat(b, c, axis=0); "
                  "e = Reshape(a, d); y = ScatterND(x, u, e)", "float32"),
    "scatter into a count of zeros": ("n = Shape(v); a = ConstantOfShape(n); "
                                      "y = ScatterElements(a, one, half1, axis=0)", "float32"),
}  # fmt: skip
OF_ROWS = {
    "rows": ("y = Identity(v)", "float32"),
    "mean of rows": ("y = ReduceMean(v, first, keepdims=0)", "float32"),
    "mean within rows": ("y = ReduceMean(v, one, keepdims=0)", "float32"),
    "linear": ("y = MatMul(v, w)", "float32"),
    "gemm": ("y = Gemm(v, w)", "float32"),
    "gram matrix": ("a = Transpose(v); y = MatMul(a, v)", "float32"),
    "distances": ("a = Transpose(v); y = MatMul(v, a)", "float32"),
    "attention": ("a = Transpose(v); b = MatMul(v, a); d = Softmax(b, axis=1); y = MatMul(d, v)",
                  "float32"),
    "layer norm of rows": ("y = LayerNormalization(v, scale, shift)", "float32"),
    "norm over rows": ("a = Unsqueeze(v, first); b = Transpose(a, perm=[0, 2, 1]); "
                       "y = InstanceNormalization(b, scale, shift)", "float32"),
    "batch norm": ("y = BatchNormalization(v, scale, shift, shift, scale)", "float32"),
    "mean variance norm": ("y = MeanVarianceNormalization(v, axes=[0])", "float32"),
    "argmax of each row": ("y = ArgMax(v, axis=1)", "int64"),
    "argmax of each column": ("y = ArgMax(v, axis=0)", "int64"),
    "top rows": ("a = Gather(v, zero, axis=1); b, p = TopK(a, one, axis=0); y = Gather(v, p)",
                 "float32"),
    "sorted rows": ("a = Gather(v, zero, axis=1); n = Shape(a); b, p = TopK(a, n, axis=0); "
                    "y = Gather(v, p)", "float32"),
    "sorted columns": ("s = Shape(v); n = Gather(s, first); y, p = TopK(v, n, axis=0)", "float32"),
    "flattened": ("y = Reshape(v, minus)", "float32"),
    "flattened and back": ("a = Reshape(v, minus); y = Reshape(a, three)", "float32"),
    "kept rows": ("a = Tanh(v); y = Reshape(a, keep)", "float32"),
    "softmax over rows": ("y = Softmax(v, axis=0)", "float32"),
    "cumsum over rows": ("y = CumSum(v, zero)", "float32"),
    "concat of columns": ("y = Concat(v, v, axis=1)", "float32"),
    "concat of rows": ("y = Concat(v, x, v, axis=0)", "float32"),
    "pad of rows": ("y = Pad(v, edges)", "float32"),
    "rows back": ("a = Neg(v); b = Unsqueeze(f, one); y = ScatterND(x, b, a)", "float32"),
    "masked_scatter of rows": (
        "a = Neg(v); b = Unsqueeze(m, one); s = Shape(x); e = Expand(b, s); i2 = NonZero(e); "
        "t2 = Transpose(i2); d = Reshape(a, minus); s2 = Shape(t2); n = Gather(s2, first); "
        "u = Slice(d, first, n, first); y = ScatterND(x, t2, u)", "float32"),
    "pairwise distances": ("a = Unsqueeze(v, one); b = Unsqueeze(v, first); d = Sub(a, b); "
                           "y = ReduceL2(d, minus, keepdims=0)", "float32"),
    "nearest row": ("a = Unsqueeze(v, one); b = Unsqueeze(x, first); d = Sub(a, b); "
                    "e = ReduceL2(d, minus, keepdims=0); y = ArgMin(e, axis=1, keepdims=0)",
                    "int64"),
    "normalized rows": ("a = ReduceL2(v, one); b = Clip(a, half); s = Shape(v); "
                        "d = Expand(b, s); y = Div(v, d)", "float32"),
    "heads": ("s = Shape(v); n = Gather(s, first); h = Concat(n, thrice, one, axis=0); "
              "a = Reshape(v, h); q = Transpose(a, perm=[1, 0, 2]); "
              "k = Transpose(a, perm=[1, 2, 0]); b = MatMul(q, k); p = Softmax(b, axis=2); "
              "o = MatMul(p, q); "
              "r = Transpose(o, perm=[1, 0, 2]); g = Concat(n, minus, axis=0); y = Reshape(r, g)",
              "float32"),
    "flattened columns": ("a = Transpose(v); y = Reshape(a, minus)", "float32"),
    "columns, viewed": ("a = Transpose(v); y = Reshape(a, wide)", "float32"),
    "parts of columns": ("a, b, d = Split(v, axis=1, num_outputs=3); y = Mul(b, a)", "float32"),
    "pooled rows": ("a = Unsqueeze(v, one); b = MaxPool(a, kernel_shape=[2]); "
                    "y = ReduceMean(b, keepdims=0)", "float32"),
    "one hot": ("a = ArgMax(v, axis=1, keepdims=0); y = OneHot(a, thrice, values)", "float32"),
    "shape": ("y = Shape(v)", "int64"),
    "einsum": ("y = Einsum(v, v, equation='nc,nd->cd')", "float32"),
    "einsum of rows": ("y = Einsum(v, w, equation='nc,cd->nd')", "float32"),
    "convolution of rows": ("a = Unsqueeze(v, one); y = Conv(a, kernel)", "float32"),
}  # fmt: skip
KNOWN |= {
    "ranks": np.int64([2]),
    "bins": np.float32([0, 0]),
    "wide": np.int64([3, -1]),
    "half1": np.float32([0.5]),
    "kernel": np.float32([[[1, -1]]]),
}


def _case(select: str, nodes: str, dtype: str, x: Array) -> bytes:
    shape = ", ".join(map(str, x.shape))
    text = f"{select}; {nodes}"
    weights = {name: array for name, array in KNOWN.items() if re.search(rf"\b{name}\b", text)}
    made = model(text, f"x: [{shape}]", f"y: {dtype}", weights, 18)
    return bytes(made.SerializeToString())


CASES = {
    **{f"{name}, elements": (SELECT, *case, X) for name, case in OF_ELEMENTS.items()},
    **{f"{name}, rows": (SELECT_ROWS, *case, ROWS) for name, case in OF_ROWS.items()},
}


def _check(got: Mapping[str, Array], data: bytes, x: Array) -> None:
    assert different_outputs(got, run_onnx(data, {"x": x})) == ""


@pytest.mark.parametrize("name", CASES)
def test_a_case_on_numpy(name):
    select, nodes, dtype, x = CASES[name]
    data = _case(select, nodes, dtype, x)
    session = cml.Session(cml.load(data), "cpu")
    others = [] if "short source" in name else [np.abs(x) + 1]
    for given in (x, x[::-1].copy(), *others):
        _check(session.run({"x": given}), data, given)


@pytest.mark.parametrize("name", CASES)
def test_a_case_on_a_gpu_in_slices_and_cooked(name, gpu):
    select, nodes, dtype, x = CASES[name]
    data = _case(select, nodes, dtype, x)
    graph = cml.load(data)
    session = cml.Session(graph, gpu)
    whole = session.run({"x": x})
    _check(whole, data, x)
    scheduler = FrameScheduler(gpu, budget_ms=2.0)
    job = scheduler.submit(session, {"x": x}, read=True).wait(60)
    cooked = load_cooked(cook(graph, DEVICES), trusted=True)
    from_file = cml.Session(cooked, gpu).run({"x": x})
    for output in whole:
        assert_array_equal(job.read(output), whole[output])
        assert_array_equal(from_file[output], whole[output])


@pytest.mark.parametrize("seed", range(60))
def test_random_models_on_numpy(seed):
    assert check_counted_model(seed, "cpu") in ("", NO_ANSWER)


@pytest.mark.parametrize("seed", range(60, 90))
def test_random_models_on_a_gpu(seed, gpu):
    assert check_counted_model(seed, gpu) in ("", NO_ANSWER)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("a = Reshape(v, image); y = Conv(a, kernel)", "Conv 'y': along axis 2 of its input "
         "float32[1,1,up to 4] the number of elements is known only at run time (NonZero 'i')"),
        ("a = Reshape(v, image); y = MaxPool(a, kernel_shape=[2])", "MaxPool 'y': along axis 2"),
        ("y = Split(v, axis=0, num_outputs=1)", "Split 'y': along axis 0"),
        ("y = Add(v, x)", "Add 'y': along axis 0 of its input float32[up to 4] the number of "
         "elements is known only at run time (NonZero 'i'), and another input has 4 elements"),
        ("m2 = Less(x, z); i2 = NonZero(m2); t2 = Transpose(i2); v2 = GatherND(x, t2); "
         "y = Add(v, v2)", "has a number of its own there (NonZero 'i2')"),
        ("y = MatMul(v, long4)", "the other factor has 4 elements there"),
        ("y = Reshape(v, fixed)", "it does not fit the shape [2, 2]"),
        ("y = Squeeze(v)", "only an axis of one element can be removed"),
        ("y = ReverseSequence(v, one)", "ReverseSequence 'y': along axis 0"),
        ("y = my:Own(v)", "Own 'y': along axis 0"),
    ],
)  # fmt: skip
def test_an_operator_that_is_not_defined_there_is_refused(nodes, message):
    weights = {**KNOWN, "image": np.int64([1, 1, -1]), "fixed": np.int64([2, 2]), "long4": X}
    x = X[:1] if "Squeeze" in nodes else X
    text = f"{SELECT}; {nodes}"
    used = {name: array for name, array in weights.items() if re.search(rf"\b{name}\b", text)}
    made = model(text, f"x: [{x.size}]", "y", used, 18)
    own = "fragment Own(x: tensor<scalar>) -> (y: tensor<scalar>);"
    spec = cml.OpSpec(name="Own", signature=own, infer=cml.ops.same_as(0), cpu=lambda attrs, x: x)
    cml.register(spec)
    try:
        with pytest.raises(UnsupportedOp) as error:
            load(made)
    finally:
        cml.ops.unregister("Own")
    assert message in str(error.value) and "reduce or scatter" in str(error.value)


def test_every_statement_is_of_an_operator():
    names = {row.name for row in all_schemas()}
    assert set(STATEMENTS) <= names


def test_operators_without_a_statement_are_refused():
    """Operators without a rule for counted axes refuse a selection as their first input."""
    silent = {row.qualified: row for row in all_schemas() if row.name not in STATEMENTS}
    assert len(silent) > 20
    for row in silent.values():
        if not row.inputs:
            continue
        domain = f"{row.domain}:" if row.domain else ""
        opset = min(row.until or 18, 18) if not row.domain else 18
        text = f"{SELECT}; y = {domain}{row.name}(v)"
        used = {"z": KNOWN["z"]}
        made = model(text, "x: [4]", "y", used, max(opset, row.since if not row.domain else 0))
        with pytest.raises(cml.CmlError) as error:
            load(made)
        assert "known only at run time" in str(error.value), row.qualified


# -- parts of models -----------------------------------------------------------------------------

#: boxes and scores of x, those of high scores, and boxes that overlap little
DETECT = (
    "s = Slice(x, four, five, one); f = Reshape(s, minus); m = Greater(f, half); i = NonZero(m); "
    "p = Reshape(i, minus); v = Gather(x, p); b = Slice(v, first, four, one); "
    "s1 = Slice(v, four, five, one); b1 = Unsqueeze(b, first); s2 = Reshape(s1, scores); "
    "sel = NonMaxSuppression(b1, s2, ten, half); c = Slice(sel, to, thrice, one); "
    "k = Reshape(c, minus); found = Gather(v, k)"
)


@pytest.mark.parametrize("nodes", [
    "y = Identity(found)",
    "y = ReduceMean(found, first)",
    "a = Slice(found, four, five, one); e = Reshape(a, minus); n = Shape(e); g = Min(n, to); "
    "h, o = TopK(e, g, axis=0, largest=0); y = Gather(found, o)",
    "a = Slice(found, first, four, one); o = Slice(sel, first, one, one); e = Reshape(o, minus); "
    "y = RoiAlign(image, a, e, output_height=2, output_width=3, sampling_ratio=2)",
    "a = Reshape(found, maps); e = Conv(a, tap); y = GlobalMaxPool(e)",
])  # fmt: skip
def test_detections(nodes, rng, gpu):
    corners = rng.uniform(0, 4, (20, 2))
    sizes = rng.uniform(1, 3, (20, 2))
    x = np.concatenate([corners, corners + sizes, rng.permutation(20)[:, None] / 20], 1)
    x = x.astype(np.float32)
    weights = {
        **KNOWN, "four": np.int64([4]), "five": np.int64([5]), "scores": np.int64([1, 1, -1]),
        "ten": np.int64([10]), "maps": np.int64([0, 1, -1]), "tap": np.float32([[[1, -2]]]),
        "image": rng.normal(size=(1, 2, 8, 8)).astype(np.float32),
    }  # fmt: skip
    text = f"{DETECT}; {nodes}"
    used = {name: array for name, array in weights.items() if re.search(rf"\b{name}\b", text)}
    data = bytes(model(text, "x: [20, 5]", "y", used, 18).SerializeToString())
    assert 1 < len(run_onnx(data, {"x": x})["y"]) + (nodes.count("Mean") > 0) < 20
    for backend in ("cpu", gpu):
        _check(cml.Session(cml.load(data), backend).run({"x": x}), data, x)


def test_a_function_and_a_branch_compute_with_a_selection():
    mean = function("Mean", "b = ReduceMean(a); c = Sub(a, b)")
    text = f"{SELECT}; d = my:Mean(v); y = If(yes)"
    branches = {
        "then_branch": subgraph("e = ReduceMax(d, keepdims=0)", "", "e: []"),
        "else_branch": subgraph("g = ReduceMin(d, keepdims=0)", "", "g: []"),
    }
    nodes = [*text.split("; ")[:-1], node("y = If(yes)", **branches)]
    made = model(nodes, "x: [4]", "y", {"z": KNOWN["z"], "yes": np.array(True)}, 17,
                 functions=[mean])  # fmt: skip
    assert run(made, x=X)["y"] == 1


# -- outputs -------------------------------------------------------------------------------------


def test_an_output_with_two_counted_axes_has_two_counts():
    made = model(f"{SELECT}; a = Unsqueeze(v, one); b = Unsqueeze(v, first); y = MatMul(a, b)",
                 "x: [4]", "y", {n: KNOWN[n] for n in ("z", "one", "first")}, 18)  # fmt: skip
    graph = load(made)
    assert graph.outputs == ("y", "y_count0", "y_count1") and graph.facts["y"].shape == (4, 4)
    outputs = run(made, x=X)
    assert_array_equal(outputs["y"], [[1, 3], [3, 9]])
    assert outputs["y_count0"] == outputs["y_count1"] == 2


def test_a_saved_network_has_the_true_lengths(tmp_path):
    made = model(f"{SELECT}; y = Add(v, half)", "x: [4]", "y",
                 {n: KNOWN[n] for n in ("z", "half")}, 18)  # fmt: skip
    cml.save(load(made), tmp_path / "net")
    outputs = cml.Session(cml.load(tmp_path / "net"), "cpu").run({"x": X})
    assert_array_equal(outputs["y"], [1.5, 3.5])
    outputs = cml.Session(cml.load(tmp_path / "net"), "cpu").run({"x": -np.abs(X)})
    assert outputs["y"].shape == (0,)


def test_a_slice_to_a_count_leaves_the_tensor_as_it_is():
    """The slice may be the whole tensor, whose own axis has a fixed extent."""
    made = model(f"{SELECT}; n = Shape(v); a = Slice(x, first, n); y = Concat(a, x, axis=0)",
                 "x: [4]", "y", {n: KNOWN[n] for n in ("z", "first")}, 18)  # fmt: skip
    assert_array_equal(run(made, x=X)["y"], [1, 3, 1, 3, -5, -7])


def test_causal_masks_and_dropout_keep_counts():
    """Trilu and Dropout keep the count of their operand for the constants that they make."""
    text = f"{SELECT}; a = Unsqueeze(v, one); b = Unsqueeze(v, first); c = MatMul(a, b)"
    text += "; d = Trilu(c, upper=0); e, k = Dropout(d); f = Cast(k, to=1); y = Mul(e, f)"
    weights = {n: KNOWN[n] for n in ("z", "one", "first")}
    data = bytes(model(text, "x: [4]", "y", weights, 18).SerializeToString())
    _check(cml.Session(cml.load(data), "cpu").run({"x": X}), data, X)


# -- with what other options do ------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [("i", "int64"), ("t", "int64"), ("v", "float32")])
def test_a_chosen_output_with_a_counted_axis_has_its_number(name, dtype):
    text = f"{SELECT}; a = Neg(v); y = ReduceMean(a, keepdims=0)"
    data = bytes(model(text, "x: [4]", "y", {"z": KNOWN["z"]}, 18).SerializeToString())
    graph = cml.load(data, outputs=[name])
    assert graph.outputs == (name, f"{name}_count")
    inner = model(text, "x: [4]", f"{name}: {dtype}", {"z": KNOWN["z"]}, 18)
    _check(cml.Session(graph, "cpu").run({"x": X}), inner.SerializeToString(), X)


def test_bright_values_reach_a_selection_and_its_number(gpu):
    graph = cml.load(_case(SELECT, "y = Neg(v)", "float32", X))
    report = check_reach(graph, gpu, {"x": X}, cml.CompileOptions())
    assert report.ok and {value.results for value in report.values} == {X.size + 1}
    assert [value.reached for value in report.values] == [1, 1, 1, 3]
