"""ONNX models, against ONNX Runtime and the ``onnx`` package's own reading of the files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from cml_engine.cli import main  # noqa: E402
from tests.onnx_models import exported_cnn, saved  # noqa: E402

Array = np.ndarray[Any, Any]


def reference(made: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.fixture
def cnn(rng: np.random.Generator, tmp_path: Path) -> Any:
    return saved(exported_cnn(rng), tmp_path / "cnn.onnx")


SHAPE = (1, 3, 8, 8)


def test_exported_network(rng, cnn):
    made = exported_cnn(rng)
    graph = cml.load(made.SerializeToString(), shapes={"image": SHAPE})
    x = rng.standard_normal(SHAPE).astype(np.float32)
    wanted = reference(made, {"image": x})
    got = cml.Session(graph, "cpu").run({"image": x})
    assert got.keys() == wanted.keys()
    np.testing.assert_allclose(got["output"], wanted["output"], rtol=1e-5, atol=1e-6)
    assert {n.op for n in graph.nodes} >= {"conv", "prelu", "deconv", "linear", "softmax"}
    assert "conv1_Conv" in graph.facts
    assert str(graph.nodes[0].source).endswith("<bytes>: Conv '/conv1/Conv'")


def test_shapes_are_asked_for_by_name(cnn):
    with pytest.raises(cml.InputError, match="'image'.*'batch', 'height', 'width'.*--shape image="):
        cml.load(cnn)
    with pytest.raises(cml.InputError, match="no input 'picture'.*image"):
        cml.load(cnn, shapes={"picture": SHAPE})
    with pytest.raises(cml.InputError, match="3 extents"):
        cml.load(cnn, shapes={"image": (1, 3, 8)})


def test_a_converted_model_gives_the_same(rng, cnn, tmp_path, capsys):
    folder = tmp_path / "cnn.nnef"
    assert main(["convert", str(cnn), str(folder), "--shape", "image=1,3,8,8"]) == 0
    assert "weight files" in capsys.readouterr().out
    x = rng.standard_normal(SHAPE).astype(np.float32)
    direct = cml.Session(cml.load(cnn, shapes={"image": SHAPE}), "cpu").run({"image": x})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = cml.Session(cml.load(folder), "cpu").run({"image": x})
    np.testing.assert_array_equal(written["output"], direct["output"])


def test_every_command_takes_it(cnn, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros(SHAPE, np.float32))
    shape = ["--shape", "image=1,3,8,8"]
    run = ["run", str(cnn), *shape, "-i", f"image={tmp_path / 'x.npy'}", "--backend", "cpu"]
    assert main(run) == 0
    assert main(["info", str(cnn), *shape]) == 0
    assert main(["rank", str(cnn), *shape, "--backend", "cpu", "--runs", "1"]) == 0
    assert "model cnn" in capsys.readouterr().out
    assert main(["info", str(cnn)]) == 2
    assert "--shape image=" in capsys.readouterr().err
    assert main(["info", str(cnn), "--shape", "1,3,8,8"]) == 2
    assert "wanted NAME=1,3,64,64" in capsys.readouterr().err


# -- the table against the operators' schemas ------------------------------------------------------


def test_rows_have_the_attributes_and_defaults_of_every_opset():
    """Every attribute of every version that an opset has, with its default."""
    import onnx

    from cml_engine.convert.onnx import operators  # noqa: F401
    from cml_engine.convert.onnx.rows import FIRST_OPSET, LAST_OPSET, row_for, rows_of

    assert onnx.defs.onnx_opset_version() <= LAST_OPSET
    wrong = []
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.deprecated or not rows_of("", schema.name):
            continue
        opset = max(schema.since_version, FIRST_OPSET)
        newest = onnx.defs.get_schema(schema.name, opset, "")
        if newest.since_version != schema.since_version:
            continue  # of opsets before the first that is read
        row = row_for("", schema.name, opset)
        if row is None:
            wrong.append(f"{schema.name} {opset}: no row")
            continue
        for name, attribute in schema.attributes.items():
            default = onnx.helper.get_attribute_value(attribute.default_value)
            has_default = attribute.default_value.type != 0
            if (schema.name, name) in EXCEPTIONS:
                continue
            if name not in row.attrs:
                wrong.append(f"{schema.name} {opset}: lacks {name}")
            elif has_default and not _same(row.attrs[name], default):
                wrong.append(f"{schema.name} {opset}: {name}={row.attrs[name]}, wanted {default}")
            elif attribute.required and not isinstance(row.attrs[name], type):
                wrong.append(f"{schema.name} {opset}: {name} must be given")
    assert wrong == []


#: Constant has its value by any of its attributes; Clip's bounds are none; an RNN's activations are
#: one for each direction; Scan of opset 8 is refused
EXCEPTIONS = {
    ("Constant", "value"), ("Clip", "min"), ("Clip", "max"), ("RNN", "activations"),
    ("Scan", "directions"),
}  # fmt: skip


def _same(ours: Any, theirs: Any) -> bool:
    theirs = theirs.decode() if isinstance(theirs, bytes) else theirs
    if isinstance(theirs, float):
        return bool(np.float32(ours) == np.float32(theirs))
    return bool(ours == theirs)
