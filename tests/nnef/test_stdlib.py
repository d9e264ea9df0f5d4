"""The standard library has every operator, and the bodies of compounds compute it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cml_engine.errors import UnsupportedOp
from cml_engine.ir.graph import Graph
from cml_engine.nnef import signature, standard_signatures
from cml_engine.nnef.expansion.signatures import standard_fragments

Load = Callable[..., Graph]
Array = np.ndarray[Any, Any]


def primitive(op: str) -> bool:
    return op in standard_fragments() and standard_fragments()[op].body is None


def left(*arrays: Array) -> list[Array]:
    rank = max(a.ndim for a in arrays)
    return [a.reshape(a.shape + (1,) * (rank - a.ndim)) for a in arrays]


def elementwise(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *arrays: function(*left(*arrays))


def reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def run(x: Array, axes: list[int], normalize: bool = False) -> Array:
        total = function(x, axis=tuple(axes), keepdims=True)
        return total / math.prod(x.shape[a] for a in axes) if normalize else total

    return run


RUN: dict[str, Callable[..., Any]] = {
    "add": elementwise(np.add), "sub": elementwise(np.subtract), "mul": elementwise(np.multiply),
    "div": elementwise(np.divide), "pow": elementwise(np.power), "exp": np.exp, "log": np.log,
    "abs": np.abs, "sign": np.sign, "neg": np.negative, "ceil": np.ceil, "copy": np.copy,
    "round": lambda x: np.floor(x + 0.5), "lt": elementwise(np.less),
    "gt": elementwise(np.greater), "select": elementwise(np.where),
    "sum_reduce": reduce(np.sum), "max_reduce": reduce(np.max),
    "cast": lambda x, dtype: x.astype(np.float32),
    "matmul": lambda a, b, transposeA, transposeB: a @ b.T,
}  # fmt: skip


def run(graph: Graph, x: Array) -> Array:
    values: dict[str, Any] = {**graph.constants, "x": x}
    for node in graph.nodes:
        result = RUN[node.op](*(values[name] for name in node.inputs), **node.attrs)
        values[node.outputs[0]] = np.asarray(result)
    return np.asarray(values[graph.outputs[0]])


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


ALPHA, LAMBDA = 1.67326319, 1.05070102

CASES: list[tuple[str, Callable[[Array], Any]]] = [
    ("sqr(x)", lambda x: x * x),
    ("sqrt(abs(x))", lambda x: np.sqrt(np.abs(x))),
    ("rsqr(x)", lambda x: 1 / (x * x)),
    ("rsqrt(abs(x))", lambda x: 1 / np.sqrt(np.abs(x))),
    ("log2(abs(x))", lambda x: np.log2(np.abs(x))),
    ("min(x, 0.5)", lambda x: np.minimum(x, 0.5)),
    ("max(x, 0.5)", lambda x: np.maximum(x, 0.5)),
    ("clamp(x, -0.5, 0.5)", lambda x: np.clip(x, -0.5, 0.5)),
    ("relu(x)", lambda x: np.maximum(x, 0)),
    ("sigmoid(x)", sigmoid),
    ("softabs(x, epsilon = 0.1)", lambda x: np.sqrt(x * x + 0.1)),
    ("softmax(x)", lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    ("softmax(x, axes = [2, 3])", lambda x: np.exp(x) / np.exp(x).sum((2, 3), keepdims=True)),
    ("softplus(x)", lambda x: np.logaddexp(x, 0)),
    ("softplus(x * 1000.0)", lambda x: np.logaddexp(x * 1000, 0)),
    ("elu(x)", lambda x: np.where(x < 0, np.expm1(x), x)),
    ("elu(x, alpha = 2.0)", lambda x: np.where(x < 0, 2 * np.expm1(x), x)),
    ("selu(x)", lambda x: LAMBDA * np.where(x < 0, ALPHA * np.expm1(x), x)),
    ("gelu(x)", lambda x: x * sigmoid(1.702 * x)),
    ("silu(x)", lambda x: x * sigmoid(x)),
    ("leaky_relu(x, alpha = 0.1)", lambda x: np.where(x < 0, 0.1 * x, x)),
    ("prelu(x, constant(shape = [1, 2], value = [0.1, 0.2]))",
     lambda x: np.where(x < 0, np.array([0.1, 0.2]).reshape(1, 2, 1, 1) * x, x)),
    ("mean_reduce(x, axes = [2])", lambda x: x.mean(2, keepdims=True)),
    ("moments(x, axes = [2, 3])[1]", lambda x: x.var((2, 3), keepdims=True)),
    ("batch_normalization(x, 0.1, 0.2, 0.3, 0.4, epsilon = 0.01)",
     lambda x: 0.3 + 0.4 * (x - 0.1) / np.sqrt(0.21)),
    ("l1_normalization(x, axes = [1], bias = 0.1)",
     lambda x: x / (np.abs(x).sum(1, keepdims=True) + 0.1)),
    ("l2_normalization(x, axes = [1], epsilon = 1.0)",
     lambda x: x / np.maximum(np.sqrt((x * x).sum(1, keepdims=True)), 1)),
    ("min_max_linear_quantize(x, -1.0, 1.0, bits = 4, signed = false, symmetric = false)",
     lambda x: np.floor((np.clip(x, -1, 1) + 1) / 2 * 15 + 0.5) / 15 * 2 - 1),
    ("min_max_linear_quantize(x, -1.0, 1.0, bits = 4, signed = true, symmetric = true)",
     lambda x: np.floor((np.clip(x, -1, 1) + 1) / 2 * 14 + 0.5) / 14 * 2 - 1),
    ("linear_quantize(x, -1.0, 1.0, bits = 4)",
     lambda x: np.floor((np.clip(x, -1, 1) + 1) / 2 * 15 + 0.5) / 15 * 2 - 1),
    ("zero_point_linear_quantize(x, 3, 0.25, bits = 4, signed = true, symmetric = false)",
     lambda x: (np.clip(np.floor(x / 0.25 + 0.5) + 3, -8, 7) - 3) * 0.25),
    ("zero_point_linear_quantize(x, 3, 0.25, bits = 4, signed = false, symmetric = false)",
     lambda x: (np.clip(np.floor(x / 0.25 + 0.5) + 3, 0, 15) - 3) * 0.25),
    ("logarithmic_quantize(x, 2.0, bits = 2)",
     lambda x: np.sign(x) * 2 ** np.floor(np.clip(np.log2(np.abs(x)), -2, 1) + 0.5)),
    ("add_n([x, x, x, x, x])", lambda x: 5 * x),
    ("add_n([x])", lambda x: x),
    ("add_n([])", lambda x: np.zeros(())),
    ("copy_n(x, times = 3)[2]", lambda x: x),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), CASES, ids=[text for text, _ in CASES])
def test_bodies_compute_what_the_standard_says(
    load_body: Load, rng: np.random.Generator, text: str, wanted: Callable[[Array], Any]
) -> None:
    graph = load_body(f"y = {text};", native=primitive)
    assert all(primitive(node.op) for node in graph.nodes)
    x = rng.normal(size=(1, 2, 4, 4)).astype(np.float32)
    with np.errstate(over="ignore"):
        got = run(graph, x)
    np.testing.assert_allclose(got, wanted(x.astype(np.float64)), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "op", "attrs"),
    [
        ("nearest_upsample(x, factor = [2, 3])", "debox",
         {"size": [1, 1, 2, 3], "stride": [1, 1, 2, 3], "padding": [(0, 0)] * 4}),
        ("nearest_downsample(x, factor = [2, 3])", "box",
         {"size": [1, 1, 1, 1], "stride": [1, 1, 2, 3], "padding": [(0, 0)] * 4}),
        ("area_downsample(x, factor = [2, 3])", "box",
         {"size": [1, 1, 2, 3], "stride": [1, 1, 2, 3], "normalize": True}),
        ("avg_pool(x, size = [1, 1, 2, 2], border = 'ignore')", "box",
         {"size": [1, 1, 2, 2], "normalize": True, "border": "ignore", "padding": []}),
        ("avg_roi_align(x, x, 0, output_size = [3, 4], sampling_rate = [2, 2])", "roi_resample",
         {"output_size": [6, 8], "method": "symmetric"}),
        ("max_pool(x, size = [1, 1, 2, 2])", "sample", {"size": [1, 1, 2, 2]}),
    ],
)  # fmt: skip
def test_bodies_that_only_pass_attributes_on(
    load_body: Load, text: str, op: str, attrs: dict[str, Any]
) -> None:
    graph = load_body(f"y = {text};", native=primitive)
    node = next(node for node in graph.nodes if node.op == op)
    assert {key: node.attrs[key] for key in attrs} == attrs


def test_all_operators_are_declared_and_every_compound_expands() -> None:
    names = set(standard_signatures())
    assert len(names) == 119
    assert sum(primitive(name) for name in names) == 73
    for name in names:
        declared = signature(name)
        assert declared.name == name
        assert declared.results
        assert all(not p.required or p.default is p.default for p in declared.params)


def test_signatures_say_what_is_a_tensor() -> None:
    conv = signature("conv")
    assert [p.name for p in conv.tensors] == ["input", "filter", "bias"]
    assert conv.by_name["bias"].default == 0.0
    assert conv.by_name["padding"].is_array
    assert not conv.by_name["padding"].is_tensor
    assert signature("concat").tensors[0].is_array
    assert signature("cast").needs_dtype
    assert not signature("select").needs_dtype
    with pytest.raises(UnsupportedOp, match="did you mean 'softmax'"):
        signature("sofmax")
