"""Tests of the sample inputs and outputs in a cooked file: their ranges and their tolerance."""

from dataclasses import replace

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from tests.fixtures.integer.networks import IntegerNet, line

#: networks that magnify rounding errors, each in a different operator
MAGNIFYING = {
    "a mean of equal terms": """
        x = external<scalar>(shape = [2, 512]);
        one = add(mul(x, 0.0), 0.1);
        y = mul(sub(mean_reduce(one, axes = [1]), 0.1), 100000.0);""",
    "a normalisation of nearly equal terms": """
        x = external<scalar>(shape = [1, 4, 16, 16]);
        near = add(mul(x, 0.01), 1.0);
        m, v = moments(near, axes = [2, 3]);
        y = div(sub(near, m), sqrt(add(v, 0.00001)));""",
    "a normalisation of a few integers": """
        n = external<integer>(shape = [1, 64]);
        x = mul(cast<scalar>(n), 0.1);
        m, v = moments(x, axes = [1]);
        y = mul(div(sub(x, m), sqrt(add(v, 0.00001))), 1000.0);""",
    "a long product": """
        x = external<scalar>(shape = [4, 2048]);
        y = mul(sub(matmul(x, x, transposeB = true), 680.0), 10.0);""",
    "large windows": """
        x = external<scalar>(shape = [1, 2, 40, 40]);
        m = avg_pool(x, size = [1, 1, 33, 33], padding = [(0,0), (0,0), (0,0), (0,0)]);
        y = mul(sub(m, 0.5), 1000.0);""",
}


def built(text, **variables):
    inputs = ", ".join(name for name in ("x", "n") if f"{name} = external" in text)
    operators = "extension KHR_enable_operator_expressions;"
    document = f"version 1.0;\n{operators}\ngraph net({inputs}) -> (y)\n{{{text}\n}}\n"
    return cml.load(cml.MemoryModel(document, variables))


def worst(cooked, gpu):
    golden = cooked.cooked_form.golden
    return max(golden.differences(cml.Session(cooked, gpu).run(golden.inputs)).values())


@pytest.mark.parametrize("name", MAGNIFYING)
def test_wrong_results_are_found(name, gpu):
    cooked = cml.load_cooked(cook(built(MAGNIFYING[name]), ["software"]))
    golden = cooked.cooked_form.golden
    wrong = {n: a + 0.3 * (1 + np.abs(a)) for n, a in golden.outputs.items()}
    assert max(golden.differences(wrong).values()) > 1


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_indices_reach_every_row(rows, gpu):
    text = f"""
        n = external<integer>(shape = [20, 50]);
        t = variable<scalar>(shape = [{rows}, 4], label = 't');
        y = gather(t, reshape(n, shape = [1000]), axis = 0);"""
    table = np.random.default_rng(0).standard_normal((rows, 4), np.float32)
    cooked = cml.load_cooked(cook(built(text, t=table), ["software"]))
    indices = cooked.cooked_form.golden.inputs["n"]
    assert (indices.min(), indices.max()) == (0, rows - 1)
    assert worst(cooked, gpu) <= 1


def test_golden_check_tolerates_few_class_changes(gpu):
    """A float network may give another class at 1 of 10,000 positions, but not at 20.

    Some positions lie on a class boundary, so the golden pair bounds the share of differences.
    """
    text = """
        x = external<scalar>(shape = [1, 2, 100, 100]);
        y = argmax_reduce(x, axes = [1]);"""
    golden = cml.load_cooked(cook(built(text), ["software"])).cooked_form.golden
    few, many = golden.outputs["y"].copy(), golden.outputs["y"].copy()
    few[0, 0, 0, :2] ^= 1
    many[0, 0, :20] ^= 1
    assert golden.differences({"y": few})["y"] <= 1 < golden.differences({"y": many})["y"]
    strict = replace(golden, tolerance=0.0)
    assert strict.differences({"y": few})["y"] == np.inf


def test_golden_inputs_cover_the_range_of_integer_networks():
    net = IntegerNet()
    x = net.input("x", (1, 4, 50, 50), 0.5)
    w = net.weight("w", np.arange(-8, 8).reshape(4, 4, 1, 1), 0.01)
    model = net.graph(net.op("conv", x, w, net.weight("b", [[0]], 0.005, 32), to=line(0.5)))
    values = cml.load_cooked(cook(model, ["software"])).cooked_form.golden.inputs["x"]
    assert values.min() < -63 and values.max() > 62
