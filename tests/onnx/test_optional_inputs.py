"""Tests of initializers that are inputs too: constants that a caller may make inputs."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

onnx = pytest.importorskip("onnx")

import cml_engine as cml  # noqa: E402
from cml_engine.cooked.cook import cook  # noqa: E402
from cml_engine.cooked.load import load_cooked  # noqa: E402
from cml_engine.scheduler import FrameScheduler  # noqa: E402
from tests.fixtures.onnx_models import load, model, node, saved, subgraph  # noqa: E402
from tests.proofs.onnx_nodes import run_onnx  # noqa: E402

GAIN = np.arange(4, dtype=np.float32)
X = np.array([[1, -2, 3, -4]], np.float32)
OTHER = np.array([3, 1, 4, 1], np.float32)


def tunable(**weights):
    """A model whose ``gain`` is folded into ``w`` while it is a constant."""
    every = {"gain": GAIN, "w": np.full(4, 10, np.float32), **weights}
    return model("h = Mul(gain, w); y = Add(x, h)", "x: [1, 4], gain: [4]", "y", every)


def expected(gain):
    return X + 10 * gain


def test_defaults_stay_constants_unless_they_are_named(backend):
    plain = cml.Session(load(tunable()), backend)
    assert set(plain.inputs) == {"x"}
    assert_array_equal(plain.run({"x": X})["y"], expected(GAIN))
    named = cml.Session(load(tunable(), inputs=["gain"]), backend)
    assert list(named.inputs) == ["x", "gain"]
    for given, gain in (({}, GAIN), ({"gain": OTHER}, OTHER), ({}, GAIN)):
        assert_array_equal(named.run({"x": X, **given})["y"], expected(gain))


def test_a_run_may_give_a_default_that_was_not_named(backend):
    session = cml.Session(load(tunable()), backend)
    for gain in (OTHER, 2 * OTHER):
        found = session.run({"x": X, "gain": gain})["y"]
        assert_array_equal(
            found, run_onnx(tunable().SerializeToString(), {"x": X, "gain": gain})["y"]
        )
        assert_array_equal(session.run({"x": X})["y"], expected(GAIN))
    shown = []
    session.run({"x": X, "gain": OTHER}, watch=lambda made, results: shown.append(made.op))
    assert "mul" in shown  # it is not folded
    with pytest.raises(cml.InputError, match=r"the shape \[2, 3\] of 'gain' has 2 extents"):
        session.run({"x": X, "gain": np.zeros((2, 3))})
    with pytest.raises(cml.InputError, match="'gain': wanted an array of numbers, got 'loud'"):
        session.run({"x": X, "gain": "loud"})


def test_constants_override_a_default():
    session = cml.Session(load(tunable(), constants={"gain": OTHER}), "cpu")
    assert (set(session.inputs), session.source_graph.optional) == ({"x"}, frozenset())
    assert_array_equal(session.run({"x": X})["y"], expected(OTHER))


def test_a_shape_names_a_default_too():
    network = model("y = Add(x, bias)", "x: [1, 4], bias: [n, 4]", weights={"bias": X})
    other = cml.Session(load(network, shapes={"bias": (3, 4)}), "cpu")
    assert other.outputs["y"].shape == (3, 4)
    with pytest.raises(cml.InputError, match="'bias' is missing"):
        other.run({"x": X})  # the file's value has another shape
    same = cml.Session(load(network, shapes={"bias": (1, 4)}), "cpu")
    assert_array_equal(same.run({"x": X})["y"], 2 * X)


@pytest.mark.filterwarnings("ignore:.*is float64")
@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "int32", "uint8", "bool"])
def test_defaults_of_every_type(dtype):
    values = np.array([1, 0, 1, 1]).astype(dtype)
    network = model(
        "g = Cast(gain, to=1); y = Mul(x, g)", f"x: [1, 4], gain: {dtype}[4]",
        weights={"gain": values},
    )  # fmt: skip
    session = cml.Session(load(network, inputs=["gain"]), "cpu")
    assert_array_equal(session.run({"x": X})["y"], X * values.astype(np.float32))


def test_a_default_beyond_32_bits_must_be_given():
    network = model("g = Cast(n, to=1); y = Mul(x, g)", "x: [1, 4], n: int64[1]",
                    weights={"n": np.array([2**40])})  # fmt: skip
    session = cml.Session(load(network, inputs=["n"]), "cpu")
    with pytest.raises(cml.InputError, match="'n' is missing"):
        session.run({"x": X})
    assert_array_equal(session.run({"x": X, "n": [2]})["y"], 2 * X)


def test_inner_graphs_read_the_given_value(rng):
    branches = [subgraph(f"z = {op}(x, gain)", "", "z: [1, 4]") for op in ("Mul", "Sub")]
    nodes = [node("y = If(true)", then_branch=branches[0], else_branch=branches[1])]
    weights = {"gain": GAIN, "true": np.array(True)}
    session = cml.Session(load(model(nodes, "x: [1, 4], gain: [4]", weights=weights)), "cpu")
    assert_array_equal(session.run({"x": X, "gain": OTHER})["y"], X * OTHER)


def test_an_input_that_decides_a_shape_stays_a_constant():
    network = model("y = Reshape(x, shape)", "x: [1, 4], shape: int64[2]",
                    weights={"shape": np.array([2, 2])})  # fmt: skip
    assert load(network).facts["y"].shape == (2, 2)
    assert load(network, constants={"shape": np.array([4, 1])}).facts["y"].shape == (4, 1)
    with pytest.raises(cml.ModelError, match="must be known.*--constant shape="):
        load(network, inputs=["shape"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["gian"], "has no input 'gian'; did you mean 'gain'"),
        (["w"], "has no input 'w'"),
        ("gain", "wanted names in parentheses"),
        (["gain", 3], "wanted names in parentheses"),
    ],
)
def test_wrong_names_are_refused(names, message):
    with pytest.raises(cml.InputError, match=message):
        load(tunable(), inputs=names)
    with pytest.raises(cml.InputError, match="inputs cannot be given for NNEF"):
        cml.load(cml.nnef.MemoryModel("version 1.0;\n"), inputs=["x"])


def test_cooked_files_have_named_defaults_as_inputs(backend):
    """A cooked file has no default values: a run must give an input that was an initializer."""
    network = load_cooked(cook(load(tunable(), inputs=["gain"]), ["portable"], golden=False))
    session = cml.Session(network, backend)
    assert_array_equal(session.run({"x": X, "gain": OTHER})["y"], expected(OTHER))
    with pytest.raises(cml.InputError, match="'gain' is missing"):
        session.run({"x": X})
    constant = load_cooked(cook(load(tunable()), ["portable"], golden=False))
    assert_array_equal(cml.Session(constant, backend).run({"x": X})["y"], expected(GAIN))


def test_jobs_take_named_defaults(gpu):
    scheduler = FrameScheduler(gpu, budget_ms=8.0)
    session = cml.Session(load(tunable(), inputs=["gain"]), gpu)
    for given, gain in (({}, GAIN), ({"gain": OTHER}, OTHER), ({}, GAIN)):
        job = scheduler.submit(session, {"x": X, **given}, read=True).wait(60)
        assert_array_equal(job.read("y"), expected(gain))
    with pytest.raises(cml.InputError, match=r"Load the model with inputs=\['gain'\]"):
        scheduler.submit(cml.Session(load(tunable()), gpu), {"x": X, "gain": OTHER})


def test_files_of_the_command_line_name_defaults(tmp_path, run_cml, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tunable(), "m.onnx")
    np.save("x.npy", X)
    np.save("gain.npy", OTHER)
    words = "run m.onnx -i x=x.npy -o y=y.npy --backend cpu"
    for more, gain in (("", GAIN), ("-i gain=gain.npy", OTHER), ("--shape gain=4", GAIN),
                       ("--constant gain=[3,1,4,1]", OTHER)):  # fmt: skip
        run_cml(f"{words} {more}")
        assert_array_equal(np.load("y.npy"), expected(gain))
    assert "'gain': constants that may be inputs" in run_cml("info m.onnx").out
    run_cml("cook m.onnx -o m.cml --shape gain=4 --devices portable")
    run_cml("run m.cml -i x=x.npy -i gain=gain.npy -o y=y.npy --backend cpu")
    assert_array_equal(np.load("y.npy"), expected(OTHER))


def test_weights_that_old_files_list_as_inputs_are_not_reported():
    old = tunable()
    old.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [4]))
    old.ir_version = 3
    assert not any("may be inputs" in note for note in load(old).notes)
