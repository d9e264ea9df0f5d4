"""ONNX's own backend node tests. Nothing may give a wrong answer; what is refused is refused by
name, and docs/onnx.md lists it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests import onnx_nodes

#: cases that pass today; more may, fewer may not
PASSING = 1400

#: a few of each family, for a GPU
ON_GPU = (
    "test_add_bcast", "test_and_bcast4v3d", "test_argmax_keepdims_example_select_last_index",
    "test_attention_3d_causal", "test_averagepool_2d_ceil", "test_basic_conv_with_padding",
    "test_batchnorm_example", "test_bitshift_right_int32_negative_input", "test_cast_FLOAT_to_INT8",
    "test_clip_example", "test_convtranspose_pads", "test_cumsum_2d_axis_0",
    "test_depthtospace_crd_mode_example", "test_dequantizelinear_axis", "test_dft_axis",
    "test_einsum_batch_matmul", "test_gather_negative_indices", "test_gelu_tanh_1",
    "test_gemm_all_attributes", "test_gru_defaults", "test_hardmax_example",
    "test_layer_normalization_2d_axis1", "test_lstm_with_peepholes",
    "test_maxpool_2d_ceil", "test_mod_int64_fmod", "test_nllloss_NCd1d2_mean_weight_negative_ii",
    "test_onehot_negative_indices", "test_prelu_broadcast", "test_quantizelinear_axis",
    "test_reduce_log_sum_exp_keepdims_example", "test_resize_downsample_scales_cubic_antialias",
    "test_resize_upsample_sizes_nearest_axes_2_3", "test_rotary_embedding_interleaved",
    "test_round", "test_scatter_elements_with_negative_indices", "test_slice_neg_steps",
    "test_split_variable_parts_1d_opset18", "test_top_k", "test_tril_neg", "test_xor_bcast3v2d",
)  # fmt: skip


@pytest.fixture(scope="module")
def verdicts() -> list[onnx_nodes.Verdict]:
    return onnx_nodes.run("cpu")


def test_no_case_fails(verdicts):
    failed = [f"{v.name}: {v.reason[:200]}" for v in verdicts if v.verdict == "FAIL"]
    assert failed == []


def test_cases_that_pass(verdicts):
    counts = Counter(v.verdict for v in verdicts)
    assert counts["PASS"] >= PASSING, counts


def test_what_is_unsupported_says_why(verdicts):
    for v in verdicts:
        if v.verdict == "UNSUPPORTED":
            assert "'" in v.reason and len(v.reason) > 30, v


def test_a_wrong_answer_is_a_failure(monkeypatch):
    case = onnx_nodes.cases()["test_add_bcast"]
    real: Any = onnx_nodes.data_sets

    def changed(case: Any) -> Any:
        for inputs, outputs in real(case):
            yield inputs, [np.asarray(y) + 1e-2 for y in outputs]

    assert onnx_nodes.run_case(case, "cpu").verdict == "PASS"
    monkeypatch.setattr(onnx_nodes, "data_sets", changed)
    assert onnx_nodes.run_case(case, "cpu").verdict == "FAIL"


@pytest.mark.gpu
def test_a_few_on_the_gpu(gpu):
    found = {name for name in ON_GPU if name in onnx_nodes.cases()}
    wrong = [v for v in onnx_nodes.run(gpu, sorted(found)) if v.verdict != "PASS"]
    assert wrong == []
    assert len(found) >= 35
