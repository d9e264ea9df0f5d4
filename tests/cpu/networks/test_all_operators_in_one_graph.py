"""Tests of a graph with every operator of NNEF and every extension."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.nnef.expansion.signatures import EXTENSIONS
from cml_engine.tools.cli import main
from tests.fixtures import texts
from tests.fixtures.models import write_model
from tests.generate import random_call
from tests.reference.calls import OPERATORS, judge


def chosen_call(op):
    """Returns the operator's first random call that has no empty operand or result."""
    for seed in range(100):
        call = random_call(op, seed)
        if all(a.size for a in (*call.arrays, *call.answers())):
            return call
    raise AssertionError(op)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The model's folder, its inputs, and each output's operator and expected value."""
    folder = tmp_path_factory.mktemp("everything")
    inputs, outputs, lines = {}, {}, []
    for op in OPERATORS:
        call = chosen_call(op)
        body = call.body(len(call.answers()))
        for name, array in reversed(list(call.inputs.items())):
            body = body.replace(name, f"{op}_{name}")
            inputs[f"{op}_{name}"] = array
        for i, right in enumerate(call.answers()):
            left, equals, right_side = body.partition(" = ")
            body = left.replace(f"y{i}", f"{op}_y{i}") + equals + right_side
            outputs[f"{op}_y{i}"] = (op, right)
        lines.append(body)
    kinds = {"f": "scalar", "i": "integer", "b": "logical"}
    given = [
        f"{n} = external<{kinds[a.dtype.kind]}>(shape = {list(a.shape)});"
        for n, a in inputs.items()
    ]
    state = [
        "state = variable<scalar>(shape = [2], label = 'state');",
        "one = constant<scalar>(shape = [2], value = [1.0]);",
        "next = update(state, state + one); state_y0 = state * 1.0;",
    ]
    outputs["state_y0"] = ("mul", np.float32([3, 4]))
    text = "\n    ".join([*given, *state, *lines])
    head = f"{texts.HEADER}{EXTENSIONS.source.text}"
    text = f"{head}graph everything({', '.join(inputs)}) -> ({', '.join(outputs)})\n{{\n{text}\n}}"
    write_model(folder, text, state=np.float32([3, 4]))
    return folder, inputs, outputs


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_graph_of_all_operators_computes_the_formulas(everything, backend, request):
    folder, inputs, outputs = everything
    device = request.getfixturevalue("gpu") if backend == "gpu" else "cpu"
    got = cml.Session(cml.load(folder), device).run(inputs)
    for name, (op, right) in outputs.items():
        assert judge(op, got[name], right).ok, name


@pytest.mark.gpu
def test_a_graph_of_all_operators_passes_validate(everything, tmp_path, capsys):
    folder, inputs, _ = everything
    options = []
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        options += ["-i", f"{name}={tmp_path / name}.npy"]
    code = main(["validate", str(folder), *options])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "all operators agree" in said and "max_roi_align" in said
