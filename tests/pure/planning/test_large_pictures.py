"""Tests that networks on pictures from QVGA to 8K are planned for devices of every binding size.

No device is needed to plan. A network is refused only if a tensor is larger than the device's
largest buffer, and the message states both sizes.
"""

import re

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.ir.limits import Limits

FILTER = "f = variable<scalar>(shape = [{shape}], label = 'f');"
#: the operators behind an input ``x`` of 16 channels
OPERATORS = {
    "conv": FILTER.format(shape="16,16,3,3") + "y = conv(x, f, 0.0);",
    "residual": FILTER.format(shape="16,16,3,3")
    + "a = conv(x, f, 0.0); b = relu(a); y = add(b, x);",
    "depthwise conv": FILTER.format(shape="16,1,3,3") + "y = conv(x, f, 0.0, groups = 16);",
    "deconv": FILTER.format(shape="16,4,2,2")
    + "y = deconv(x, f, 0.0, stride = [2, 2], padding = [(0, 0), (0, 0)]);",
    "matmul": "y = matmul(x, x, transposeB = true);",
    "max_pool": "y = max_pool(x, size = [1, 1, 2, 2], stride = [1, 1, 2, 2],"
    " padding = [(0, 0), (0, 0), (0, 0), (0, 0)]);",
    "box": "y = box(x, size = [1, 1, 3, 3], normalize = true);",
    "upsample": "y = multilinear_upsample(x, factor = [2, 2]);",
    "elementwise": "a = exp(x); b = mul(a, x); y = add(b, 1.0);",
    "softmax": "y = softmax(x);",
    "reduce": "y = sum_reduce(x, axes = [2, 3]);",
    "concat": "y = concat([x, x], axis = 1);",
    "pad": "y = pad(x, padding = [(0, 0), (0, 0), (1, 1), (1, 1)], border = 'reflect');",
    "transpose": "y = transpose(x, axes = [0, 2, 3, 1]);",
    "argmax": "y = argmax_reduce(x, axes = [1]);",
}
SIZES = {"QVGA": (240, 320), "8K": (4320, 7680)}
GIB = 1 << 30
#: by the size of a binding: its bytes, those of the largest buffer, storage buffers of a kernel
DEVICES = {
    name: Limits(
        max_binding_bytes=binding, max_buffer_bytes=buffer, max_storage_buffers=storage_buffers
    )
    for name, binding, buffer, storage_buffers in (
        ("guaranteed", 128 << 20, 256 << 20, 8),
        ("128 MiB", 128 << 20, 16 * GIB, 256),
        ("2 GiB", 2 * GIB - 4, 2 * GIB, 16),
        ("4 GiB", 4 * GIB - 4, 16 * GIB, 16),
    )
}


def network(body, height, width):
    shape = re.search(r"shape = \[([\d,]+)\], label", body)
    weights = {"f": np.ones([int(n) for n in shape[1].split(",")], np.float32)} if shape else {}
    text = f"x = external<scalar>(shape = [1, 16, {height}, {width}]); {body}"
    return cml.load(
        cml.MemoryModel(f"version 1.0;\ngraph large(x) -> (y)\n{{\n{text}\n}}\n", weights)
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_network_is_refused_only_if_a_tensor_exceeds_the_largest_buffer(operator, size):
    graph = optimize(network(OPERATORS[operator], *SIZES[size]))
    largest = max(graph.facts[name].nbytes for name in (*graph.inputs, *graph.outputs))
    for limits in DEVICES.values():
        if largest <= limits.max_buffer_bytes:
            assert plan_graph(graph, limits).steps
        else:
            with pytest.raises(cml.DeviceError, match=f"{limits.max_buffer_bytes}"):
                plan_graph(graph, limits)


def test_a_fused_operator_without_tensors_costs_no_binding():
    body = OPERATORS["residual"]
    steps = plan_graph(optimize(network(body, *SIZES["8K"])), DEVICES["4 GiB"]).steps
    assert steps[0].fused[0] == "relu"
