"""Tests that damaged nodes of every ONNX operator raise no error but the engine's own.

Each attribute gets wrong types and values, and each input is removed.
"""

import copy
from functools import cache

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper

from cml_engine.errors import CmlError
from cml_engine.formats.onnx import operators  # noqa: F401
from cml_engine.formats.onnx.op_schemas import all_schemas, find_schema
from tests.fixtures.onnx_models import load, node, subgraph
from tests.fixtures.onnx_models import model as onnx_model
from tests.proofs import onnx_nodes

_TENSOR = onnx.numpy_helper.from_array(np.array([1.5, -2], np.float32))
_GRAPH = subgraph("y = Relu(x)", "", "")
WRONG = (
    -(2**63), -(2**31), -3, -1, 0, 1, 2, 3, 7, 2**31, 2**63 - 1, float("nan"), float("inf"), -1e38,
    0.0, "", "no such word", b"\xff\xfe", [], [0], [-1], [1, 1], [2**40], [1, 2, 3],
    [-1, 2**62, 0, 0], [0.5], ["", "Tanh"], _TENSOR, _GRAPH,
)  # fmt: skip


@cache
def smallest():
    """Returns ONNX's own case with the smallest inputs for each row of the importer, by the row's
    key.

    A case is its number of elements, its model and its inputs. Rows without a case are missing.
    """
    found = {}
    for case in onnx_nodes.cases().values():
        model = case.model
        if len(model.graph.node) != 1:
            continue
        only = model.graph.node[0]
        opset = next((o.version for o in model.opset_import if o.domain == only.domain), 1)
        row = find_schema(only.domain, only.op_type, opset)
        inputs, _ = next(onnx_nodes.data_sets(case))
        size = sum(array.size for array in inputs)
        if row is not None and (key_of(row) not in found or size < found[key_of(row)][0]):
            found[key_of(row)] = size, model, inputs
    return found


def key_of(row):
    return row.domain, row.name, row.since


def survives(model, inputs, what, is_known):
    """Fails if loading or running the model raises anything but an error of the engine.

    If ``is_known``, the inputs are constants and the node is computed when it is loaded. ``what``
    is shown in the failure.
    """
    names = [info.name for info in model.graph.input]
    try:
        if is_known:
            constants = dict(zip(names, inputs, strict=False))
            load(model, constants=constants)
        else:
            onnx_nodes.outputs_of(model, inputs, "cpu")
    except CmlError as error:
        assert len(str(error)) < 2000, what
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def undamaged(row):
    """Returns a model of one node of the importer's row, and inputs for it.

    It is valid if ONNX has a case of the row; otherwise its inputs are a guess.
    """
    if key_of(row) in smallest():
        return smallest()[key_of(row)][1:]
    names = [f"x{i}" for i in range(min(row.inputs, 4))]
    call = node(f"y = {row.domain}:{row.name}({', '.join(names)})")
    inputs = ", ".join(f"{name}: [2, 4, 8]" for name in names)
    opset = {row.domain: row.since} if row.domain else {"": max(row.since, 7)}
    network = onnx_model([call], inputs, domains=opset)
    return network, [np.ones((2, 4, 8), np.float32) for _ in names]


def damaged(row):
    model, inputs = undamaged(row)
    for name in row.attrs:
        for wrong in WRONG:
            made = copy.deepcopy(model)
            only = made.graph.node[0]
            kept = [a for a in only.attribute if a.name != name]
            del only.attribute[:]
            kinds = {} if wrong != [] else {"attr_type": onnx.AttributeProto.INTS}
            only.attribute.extend([*kept, helper.make_attribute(name, wrong, **kinds)])
            shown = wrong if isinstance(wrong, int | float | str | bytes | list) else type(wrong)
            yield made, inputs, f"{row.qualified} {row.since}: {name}={shown}"
    if row.runs_graphs:
        return  # without a number of iterations a loop is as long as it may be
    for i in range(len(model.graph.node[0].input)):
        made = copy.deepcopy(model)
        made.graph.node[0].input[i] = ""
        yield made, inputs, f"{row.qualified} {row.since}: without input {i + 1}"


@pytest.mark.parametrize("row", all_schemas(), ids=lambda row: f"{row.qualified}-{row.since}")
@pytest.mark.filterwarnings("ignore")
def test_damaged_nodes(row):
    with np.errstate(all="ignore"):
        for number, (made, inputs, what) in enumerate(damaged(row)):
            survives(made, inputs, what, is_known=number % 2 == 1)
