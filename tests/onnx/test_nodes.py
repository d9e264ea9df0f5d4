"""Tests with ONNX's own backend node tests: no wrong answers.

An unsupported case is refused by name, and docs/onnx_operators.md lists it.
"""

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.proofs import onnx_nodes

#: a few of each family, for a GPU
ON_GPU = (
    "test_add_bcast", "test_argmax_keepdims_example_select_last_index", "test_attention_3d_causal",
    "test_bitshift_right_int32_negative_input",
    "test_convtranspose_pads", "test_dft_axis", "test_gridsample_bilinear",
    "test_gather_negative_indices", "test_gru_defaults", "test_maxpool_2d_ceil",
    "test_quantizelinear_axis", "test_resize_downsample_scales_cubic_antialias", "test_round",
    "test_scatter_elements_with_negative_indices", "test_slice_neg_steps", "test_top_k",
    "test_unique_not_sorted_without_axis", "test_unique_sorted_with_axis_3d",
)  # fmt: skip


@pytest.fixture(scope="module")
def verdicts():
    return onnx_nodes.run("cpu")


def test_no_case_fails(verdicts):
    failed = [f"{v.name}: {v.reason[:200]}" for v in verdicts if v.verdict == "FAIL"]
    assert failed == []


def test_unsupported_node_cases_state_a_reason(verdicts):
    for v in verdicts:
        if v.verdict == "UNSUPPORTED":
            assert "'" in v.reason and len(v.reason) > 30, v


def test_onnx_page_states_the_passing_cases(verdicts):
    text = onnx_nodes.PAGE.read_text(encoding="utf-8")
    assert onnx_nodes.conformance(verdicts) in text, "run python -m tests.proofs.onnx_nodes --write"


def test_unknown_attribute_values_are_refused():
    """An attribute that has a fixed set of texts refuses "nonsense" with a message that names
    it."""
    import onnx

    taken, seen = [], set[tuple[str, str]]()
    for case in onnx_nodes.cases().values():
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for node in model.graph.node:
            for attribute in node.attribute:
                key = (node.op_type, attribute.name)
                if attribute.type != onnx.AttributeProto.STRING or key in seen:
                    continue
                seen.add(key)
                attribute.s, old = b"nonsense", attribute.s
                other = onnx_nodes.with_model(case, model)
                if "nonsense" not in onnx_nodes.run_case(other, "cpu").reason:
                    taken.append(key)
                attribute.s = old
    known = {"ImageDecoder", "TfIdfVectorizer", "Einsum"}  # refused for other reasons
    assert [key for key in taken if key[0] not in known] == [] and len(seen) > 25


def test_a_sample_through_nnef_and_back():
    """In a round trip through NNEF to ONNX Runtime, none of every 14th case fails; over 90 % pass.

    ``python -m tests.proofs.onnx_nodes --round-trip`` runs all cases.
    """
    pytest.importorskip("onnxruntime")
    names = sorted(onnx_nodes.cases())[::14]
    actual = onnx_nodes.run("cpu", names, onnx_nodes.round_trip)
    assert [v for v in actual if v.verdict == "FAIL"] == []
    assert sum(v.verdict == "PASS" for v in actual) > 0.9 * len(names)


def test_a_wrong_answer_is_a_failure(monkeypatch):
    case = onnx_nodes.cases()["test_add_bcast"]
    real = onnx_nodes.data_sets

    def changed(case):
        for inputs, outputs in real(case):
            yield inputs, [np.asarray(y) + 1e-2 for y in outputs]

    assert onnx_nodes.run_case(case, "cpu").verdict == "PASS"
    monkeypatch.setattr(onnx_nodes, "data_sets", changed)
    assert onnx_nodes.run_case(case, "cpu").verdict == "FAIL"


@pytest.mark.gpu
def test_a_few_on_the_gpu(gpu):
    assert [v for v in onnx_nodes.run(gpu, ON_GPU) if v.verdict != "PASS"] == []


#: ONNX Runtime loses a NaN in comparisons, extremes and quantizers, multiplies no initial state of
#: zeros, leaves out a neighbour of weight 0, and takes a NaN among indices for another one
LOSES_NAN = (
    "ArgMin", "DynamicQuantizeLinear", "GRU", "GlobalMaxPool", "GridSample", "Hardmax", "LSTM",
    "MaxPool", "MaxUnpool", "NonMaxSuppression", "OneHot", "QLinearMatMul", "RNN", "ReduceMax",
    "ReduceMin", "ScatterElements", "ScatterND", "Unique",
)  # fmt: skip


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_nan_reaches_no_further_than_in_onnx_runtime(step):
    """A NaN in the middle of an input changes no result that ONNX Runtime does not change."""
    pytest.importorskip("onnxruntime")
    beyond, planted = [], 0
    for name, case in list(onnx_nodes.cases().items())[::step]:
        ops = {node.op_type for node in case.model.graph.node}
        if "expanded" in name or ops & set(LOSES_NAN):
            continue
        inputs = next(onnx_nodes.data_sets(case))[0]
        for number, array in enumerate(inputs):
            if array.dtype != np.float32 or array.ndim < 2 or not array.size:
                continue
            changed = [*inputs]
            changed[number] = array.copy()
            changed[number].reshape(-1)[array.size // 2] = np.nan
            try:
                masks = [differences(case.model, run, inputs, changed) for run in (ours, runtime)]
            except Exception:  # one of the two does not compute it
                continue
            planted += 1
            for got, allowed in zip(*masks, strict=False):  # counts are outputs of ours alone
                if got.shape == allowed.shape and (got & ~allowed).any():
                    beyond.append(f"{name}, input {number}")
    assert beyond == [] and planted > 400 / step


def ours(model, inputs):
    return [*onnx_nodes.outputs_of(model, inputs, "cpu")[0].values()]


def runtime(model, inputs):
    names = [value.name for value in model.graph.input]
    given = dict(zip(names, inputs, strict=False))
    return [*onnx_nodes.run_onnx(model.SerializeToString(), given).values()]


def differences(model, run, inputs, changed):
    """Returns a mask of each output's elements that differ for other inputs; NaN equals NaN."""
    with np.errstate(all="ignore"):
        pairs = zip(run(model, inputs), run(model, changed), strict=True)
        return [np.asarray(~((a == b) | ((a != a) & (b != b)))) for a, b in pairs]
