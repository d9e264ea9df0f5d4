"""Tests of large constants of one value, which are kept as one value."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.ir.single_value import is_single_value
from cml_engine.runtime.session import CompileOptions

#: the elements of a constant that would take 240 MB, and the number of such constants
MANY, COUNT = 60_000_000, 60
#: the elements of a constant that tests compute with
SOME = (1 << 16) + 3
LITTLE = 64 << 20
#: the limit for what is read, in which a quarter of one constant fits
LIMITS = cml.LoadLimits(memory=1 << 30)


def chain(count, size, constant="constant(shape = [{size}], value = [{value}])"):
    """Returns NNEF text that adds ``count`` constants to x."""
    lines, last = [], "x"
    for i in range(count):
        lines.append(f"c{i} = {constant.format(size=size, value=f'{i}.5')};")
        lines.append(f"s{i} = add({last}, c{i});")
        last = f"s{i}"
    text = f"version 1.0; graph g(x) -> (y) {{ x = external<scalar>(shape = [1]); {' '.join(lines)}"
    return f"{text} y = relu({last}); }}"


def loaded_in_little_memory(model):
    start = time.process_time()
    tracemalloc.start()
    try:
        graph = cml.load(model, limits=LIMITS)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 30
    return graph


def test_many_large_constants_of_one_value_take_little():
    """Constants that would take 14 GB are stored as one value each, also in the optimized graph."""
    graph = loaded_in_little_memory(cml.nnef.MemoryModel(chain(COUNT, MANY)))
    assert graph.facts["y"].shape == (MANY,)
    assert all(array.strides == (0,) for array in graph.constants.values())
    tracemalloc.start()
    try:
        optimized = optimize(graph)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()
    assert sum(array.size > 1 for array in optimized.constants.values()) == 1


def test_one_constant_beyond_the_limit_is_refused():
    with pytest.raises(cml.ModelError, match="a constant of 60,000,000 elements needs 240,000,000"):
        cml.load(cml.nnef.MemoryModel(chain(1, MANY)), limits=cml.LoadLimits(memory=100 << 20))


def test_results_are_those_of_written_out_constants(backend):
    graph = cml.load(cml.nnef.MemoryModel(chain(3, SOME)))
    plain = graph.with_(constants={n: np.array(a) for n, a in graph.constants.items()})
    found, expected = (
        cml.Session(made, backend).run({"x": np.float32([0.25])})["y"] for made in (graph, plain)
    )
    assert_array_equal(found, expected)
    assert found.shape == (SOME,) and (found == 4.75).all()


@pytest.mark.parametrize(
    "call",
    [
        "max(c, x)", "select(gt(c, x), c, x)", "pow(c, x)", "clamp(x, c, c)", "sub(c, x)",
        "concat([c, x], axis = 0)", "sum_reduce(c, axes = [0]) + x", "select(lt(x, c), x, c)",
        "reshape(c, shape = [1, -1])", "slice(c, axes = [0], begin = [3], end = [5])", "copy(c)",
        "pad(c, padding = [(1, 2)])",
    ],
)  # fmt: skip
def test_every_kind_of_reader_sees_the_value(call, backend):
    shape = [1] if "+" in call else [SOME]
    text = (
        "version 1.0; extension KHR_enable_operator_expressions; graph g(x) -> (y) { "
        f"x = external<scalar>(shape = {shape}); c = constant(shape = [{SOME}], value = [1.5]); "
        f"y = {call}; }}"
    )
    graph = cml.load(cml.nnef.MemoryModel(text))
    plain = graph.with_(constants={n: np.array(a) for n, a in graph.constants.items()})
    x = np.linspace(-2, 3, shape[0], dtype=np.float32)
    for options in (CompileOptions(), CompileOptions(without=frozenset({"single_values"}))):
        found = cml.Session(graph, backend, options).run({"x": x})["y"]
        assert_array_equal(found, cml.Session(plain, backend).run({"x": x})["y"])


def test_a_variable_that_is_updated_is_no_constant():
    text = chain(1, SOME).replace("s0 = add", "n = add(c0, 1.0); s0 = add")
    graph = cml.load(cml.nnef.MemoryModel(text))
    graph = graph.with_(updates=(("c0", "n"),))
    session = cml.Session(graph, "cpu")
    for expected in (0.5, 1.5, 2.5):
        assert (session.run({"x": np.zeros(1, np.float32)})["y"] == expected).all()


@pytest.mark.parametrize("suffix", ["nnef", "onnx"])
def test_written_models_stay_small(tmp_path, suffix):
    graph = cml.load(cml.nnef.MemoryModel(chain(3, SOME)))
    path = tmp_path / f"m.{suffix}"
    cml.save(graph, path)
    files = [path] if path.is_file() else list(path.iterdir())
    assert sum(file.stat().st_size for file in files) < 20_000
    reloaded = cml.load(path)
    assert sum(map(is_single_value, reloaded.constants.values())) == 3
    x = {"x": np.zeros(1, np.float32)}
    assert_array_equal(*(cml.Session(g, "cpu").run(x)["y"] for g in (graph, reloaded)))


@pytest.mark.parametrize(
    "nodes",
    [
        "c{i} = ConstantOfShape(shape)",
        "c{i} = Expand(one, shape)",
        "c{i} = Tile(single, shape)",
        "h{i} = ConstantOfShape(shape); c{i} = Cast(h{i}, to=1)",
        "h{i} = Expand(whole, shape); c{i} = Cast(h{i}, to=1)",
        "h{i} = Expand(double, shape); c{i} = Cast(h{i}, to=1)",
        "h{i} = Expand(one, shape); g{i} = Reshape(h{i}, square); c{i} = Reshape(g{i}, shape)",
    ],
)
def test_constants_of_onnx(nodes):
    pytest.importorskip("onnx")
    from tests.fixtures.onnx_models import model

    weights = {
        "shape": np.array([MANY]), "square": np.array([10_000, 6_000]), "one": np.float32(1),
        "single": np.ones(1, np.float32), "whole": np.array(3), "double": np.array(0.5),
    }  # fmt: skip
    lines = [nodes.format(i=i) + f"; s{i} = Add({f's{i - 1}' if i else 'x'}, c{i})"
             for i in range(COUNT)]  # fmt: skip
    made = model("; ".join([*lines, f"y = Relu(s{COUNT - 1})"]), "x: [1]", weights=weights)
    graph = loaded_in_little_memory(made.SerializeToString())
    assert graph.facts["y"].shape == (MANY,)


def test_constants_of_other_values_are_stored_as_they_are():
    text = chain(1, 4).replace("value = [0.5]", "value = [1.0, 2.0, 3.0, 4.0]")
    graph = cml.load(cml.nnef.MemoryModel(text))
    assert graph.constants["c0"].tolist() == [1, 2, 3, 4]
