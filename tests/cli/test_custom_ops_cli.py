"""Tests of ``--ops``, ``--fragments``, ``--dump-kernels``, ``--debug-kernels`` and ``rank --stub``.

Covers their messages for bad input, and operators from installed packages.
"""

import json
import warnings
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler import plugins
from cml_engine.ops.declaration.registry import registered
from tests.fixtures.models import write_model, write_model_abc
from tests.fixtures.pages import ROOT

CROSS = ROOT / "examples/cross_product"
OPS = f"--ops {CROSS}/cross.py"
MODEL = CROSS / "cross_product.nnef"
pytestmark = pytest.mark.usefixtures("own_operators")

TWICE = """\
import cml_engine as cml
cml.register(cml.OpSpec(
    "twice", cml.ops.same_as(0), cpu=lambda attrs, x: 2 * x,
    signature="fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>)",
))
"""
SEVENFOLD = TWICE.replace("2 * x", "7 * x")
CPU = "cpu=lambda attrs, x: 2 * x"
CALLS_TWICE = """\
version 1.0;
graph g(x) -> (y) { x = external<scalar>(shape = [3]); y = twice(x); }
"""


@pytest.fixture
def calls_twice(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float32))
    return write_model(tmp_path / "twice.nnef", CALLS_TWICE)


@pytest.fixture
def run_to_file(run_cml, tmp_path):
    """Runs a model on 0, 1, 2, writes its output, and returns the printed messages."""

    def run(words, backend="cpu", ends=0):
        files = f"-i x={tmp_path}/x.npy -o y={tmp_path}/y.npy"
        return run_cml(f"run {words} {files} --backend {backend}", ends=ends).err

    return run


@pytest.fixture
def run(run_to_file, tmp_path):
    """Runs a model on 0, 1, 2 and returns its output as a list, or the message if it is refused."""

    def run(words, ends=0, **backend):
        said = run_to_file(words, ends=ends, **backend)
        return said if ends else np.load(tmp_path / "y.npy").tolist()

    return run


@pytest.fixture
def ops(tmp_path):
    """Writes a file of operators and returns the option that loads it."""

    def written(text):
        (tmp_path / "ops.py").write_text(text)
        return f"--ops {tmp_path}/ops.py"

    return written


def test_ops_brings_operators_from_a_file(calls_twice, run, ops):
    assert "unknown operator 'twice'" in run(calls_twice, ends=2)
    for factor in (2, 5):  # a file loaded again replaces what it registered
        given = ops(TWICE.replace("2 * x", f"{factor} * x"))
        assert run(f"{calls_twice} {given}") == [0, factor, 2 * factor]


def test_ops_file_may_be_repeated_and_imports_siblings(calls_twice, tmp_path, run, ops):
    (tmp_path / "neighbour.py").write_text("FACTOR = 3\n")
    (tmp_path / "more.py").write_text(TWICE.replace("twice", "thrice"))
    given = ops("from neighbour import FACTOR\n" + TWICE.replace("2", "FACTOR"))
    assert run(f"{calls_twice} {given} --ops {tmp_path}/more.py") == [0, 3, 6]


def test_an_operator_without_kernel_runs_on_the_cpu_with_a_notice(
    calls_twice, gpu, run, run_to_file, ops, run_cml
):
    assert run(f"{calls_twice} {ops(TWICE)}", backend="gpu") == [0, 2, 4]
    said = run_to_file(f"{calls_twice} {ops(TWICE)}", backend="gpu")
    assert "no kernel, so computed on the CPU: twice 'y'" in said
    assert "on the CPU: twice 'y'" in run_cml(f"info {calls_twice} {ops(TWICE)}").out
    assert "twice" in run_cml(f"rank {calls_twice} {ops(TWICE)} --runs 1").out


def test_an_operator_without_cpu_function_is_not_compared(calls_twice, gpu, run, ops, run_cml):
    kernel = "void kernel(uint thread) { y[thread] = 2 * x[thread]; }"
    given = ops(TWICE.replace(CPU, f"kernel=cml.Kernel(source={kernel!r})"))
    assert run(f"{calls_twice} {given}", backend="gpu") == [0, 2, 4]
    assert "has no CPU function; run it on a GPU" in run(f"{calls_twice} {given}", ends=2)
    assert "has no CPU function to check against" in run_cml(f"validate {calls_twice} {given}").out


BAD_FILES = [
    ("1 / 0\n", "ops.py:1: ZeroDivisionError: division by zero"),
    ("import cml_engine\n\ndef f(:\n", "ops.py:3: invalid syntax"),
    ("x = 3\n", "registers no operator; call cml.register"),
    ("import no_such_module\n", "ops.py:1: ModuleNotFoundError"),
    ("import sys\nsys.exit('stop')\n", "ops.py:2: SystemExit: stop"),
    (TWICE.replace("twice(x", "other(x"), "ops.py:2: operator 'twice': its signature declares"),
    (TWICE.replace('"twice"', '"relu"'), "ops.py:2: operator 'relu'"),
    (TWICE.replace("cpu=", "kernel=cml.Kernel('no.hlsl'), cpu="), "its kernel 'no.hlsl' is not in"),
    (TWICE + TWICE, "ops.py:7: operator 'twice' is registered already"),
]


@pytest.mark.parametrize(("text", "says"), BAD_FILES)
def test_faulty_ops_file_gives_one_message_with_its_line(calls_twice, run, ops, text, says):
    assert says in run(f"{calls_twice} {ops(text)}", ends=2)
    assert "twice" not in registered()


def test_missing_or_non_python_ops_file_is_refused(calls_twice, tmp_path, run):
    (tmp_path / "ops.txt").write_text(TWICE)
    for name, says in (("none.py", "none.py': no such file"), ("ops.txt", "wanted a Python file")):
        assert says in run(f"{calls_twice} --ops {tmp_path}/{name}", ends=2)


def calls_fragment(folder, fragment):
    """Writes a model that declares the fragment and calls ``twice``, and the model's input."""
    extensions = "extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;"
    np.save(folder / "x.npy", np.arange(3, dtype=np.float32))
    text = CALLS_TWICE.replace("graph g", f"{extensions}\n{fragment}\ngraph g")
    return write_model(folder / "m.nnef", text)


@pytest.mark.parametrize("body", ["{ y = x + x; }", ";"])
def test_registered_operator_replaces_the_models_fragment(tmp_path, run, ops, body):
    fragment = f"fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>){body}"
    model = calls_fragment(tmp_path, fragment)
    run(model, ends=2 if body == ";" else 0)
    assert run(f"{model} {ops(SEVENFOLD)}") == [0, 7, 14]


# ---------------------------------------------------------------- fragments

LIBRARY = "fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>) { y = x + x; }\n"


def test_fragments_of_a_library_are_expanded_or_registered(
    calls_twice, tmp_path, run, ops, run_cml
):
    (tmp_path / "lib.nnef").write_text(LIBRARY)
    library = f"{calls_twice} --fragments {tmp_path}/lib.nnef"
    assert run(library) == [0, 2, 4]
    assert "add 1" in run_cml(f"info {library}").out
    assert run(f"{library} {ops(SEVENFOLD)}") == [0, 7, 14]


BAD_LIBRARIES = [
    ("fragment twice(", "lib.nnef:1"),
    (LIBRARY + LIBRARY, "fragment 'twice' is there twice"),
    (LIBRARY.replace("twice", "relu"), "'relu' is NNEF's own"),
    ("\xff\xfe", "lib.nnef"),
]


@pytest.mark.parametrize(("text", "says"), BAD_LIBRARIES)
def test_faulty_fragment_library_gives_one_message(calls_twice, tmp_path, run, text, says):
    (tmp_path / "lib.nnef").write_text(text, encoding="latin-1")
    assert says in run(f"{calls_twice} --fragments {tmp_path}/lib.nnef", ends=2)
    assert "none.nnef" in run(f"{calls_twice} --fragments {tmp_path}/none.nnef", ends=2)


# ---------------------------------------------------------------- kernels and stubs


def test_dump_kernels(tmp_path, gpu, run_cml):
    for command in (f"rank {MODEL} --runs 1", f"validate {MODEL}"):
        folder = tmp_path / command[:4]
        run_cml(f"{command} {OPS} --dump-kernels {folder}")
        assert len(list(folder.glob("cross-*.spv"))) == 1
        assert "void kernel(uint thread)" in next(folder.glob("cross-????????.hlsl")).read_text()


def test_dumped_kernels_come_with_parameters_and_values(tmp_path, gpu, run_cml):
    """A dumped step is complete: its slots' values give the outputs of the run by the formula."""
    folder = tmp_path / "kernels"
    out = tmp_path / "c.npy"
    files = f"--random-inputs --dump-kernels {folder} --dump-values -o c={out}"
    run_cml(f"run {MODEL} {OPS} {files}")
    (step,) = json.loads(next(folder.glob("*.steps.json")).read_text())
    assert (folder / step["kernel"]).is_file() and 1024 in step["parameters"].values()
    assert [t["written"] for t in step["tensors"]] == [False, False, True]
    assert {t["layout"] for t in step["tensors"]} == {"plain"}
    a, b, c = (np.load(folder / f"values/0000_{t['slot']}.npy") for t in step["tensors"])
    shape = np.load(out).shape
    a, b, c = (x[: np.load(out).size].reshape(shape) for x in (a, b, c))
    np.testing.assert_array_equal(c, np.load(out))
    np.testing.assert_allclose(c, np.cross(a, b, axis=1), rtol=1e-5, atol=1e-5)


def test_values_are_dumped_beside_kernels_only(tmp_path, gpu, refused):
    message = refused(f"run {MODEL} {OPS} --random-inputs --dump-values")
    assert "--dump-values" in message and "--dump-kernels DIR" in message


def test_dump_kernels_into_an_unwritable_place_is_refused(tmp_path, gpu, refused):
    (tmp_path / "file").write_text("")
    message = refused(f"rank {MODEL} {OPS} --dump-kernels {tmp_path}/file")
    assert "--dump-kernels: cannot write into" in message
    message = refused(f"rank {MODEL} --backend cpu --dump-kernels {tmp_path}")
    assert "--dump-kernels needs a GPU" in message


def test_debug_kernels_shows_prints(calls_twice, tmp_path, gpu, run_to_file, ops, run_cml):
    kernel = 'void kernel(uint thread) { CML_PRINT("x", x[thread]); y[thread] = 2 * x[thread]; }'
    given = ops(TWICE.replace(CPU, f"kernel=cml.Kernel(source={kernel!r})"))
    assert "workgroup" not in run_to_file(f"{calls_twice} {given}", backend="gpu")
    lines = run_to_file(f"{calls_twice} {given} --debug-kernels", backend="gpu").splitlines()
    where = f"g twice 'y' ({calls_twice}/graph.nnef:2:60)"
    assert lines == [f"{where} x = {t}.0  workgroup 0 thread {t}" for t in range(3)]
    assert np.load(tmp_path / "y.npy").tolist() == [0, 2, 4]
    said = run_to_file(f"{calls_twice} {given} --debug-kernels", ends=2)
    assert "--debug-kernels needs a GPU" in said
    cooked = tmp_path / "twice.cml"
    run_cml(f"cook {calls_twice} {given} -o {cooked}")
    said = run_to_file(f"{cooked} --debug-kernels", backend="gpu", ends=2)
    assert "were cooked without CML_PRINT" in said


@pytest.mark.filterwarnings("ignore:.*version")
def test_stub_reports_the_end_to_end_cost_of_an_operator(tmp_path, gpu, monkeypatch, run_cml):
    def counted(session, _inputs):
        """Returns a function that returns the session's FLOPs in place of a varying time."""
        work = sum(step.cost.flops for step in session.plan.steps)
        return lambda: work

    stub = f"rank {write_model_abc(tmp_path / 'abc')} --stub conv"
    with monkeypatch.context() as patch:
        patch.setattr(cml.Session, "timer", counted)
        report = json.loads(run_cml(f"{stub} --runs 3 --json").out)
    assert report["with_ms"] > report["without_ms"] > 0 and report["count"] == 1
    assert 50 < report["share"] < 100
    printed = run_cml(f"{stub} --runs 2").out
    assert "with conv" in printed and "without conv" in printed and "to be gained" in printed
    table = run_cml(f"{stub} --runs 2 --csv").out
    assert table.startswith("operator,count,with_ms")


def test_stubs_of_fused_and_of_missing_operators(tmp_path, gpu, run_cml, refused):
    text = """version 1.0;
    graph g(x) -> (z) {
        x = external<scalar>(shape = [1, 8, 8, 8]);
        w = constant<scalar>(shape = [8, 8, 3, 3], value = [0.1]);
        c = conv(x, w);
        y = relu(c);
        z = reshape(y, shape = [1, 512]);
    }"""
    model = str(write_model(tmp_path / "m.nnef", text))
    assert "relu (1 of them)" in run_cml(f"rank {model} --stub relu --runs 2").out
    cases = [
        ("--stub tanh", "no operator 'tanh' in model 'g'; it has conv, relu, reshape"),
        ("--stub reshape", "runs nothing on the GPU"),
        ("--stub relu --backend cpu", "on a GPU only"),
    ]
    for more, says in cases:
        assert says in refused(f"rank {model} {more}")


# ---------------------------------------------------------------- installed packages


def entry_point(monkeypatch, value, folder):
    monkeypatch.syspath_prepend(str(folder))
    point = metadata.EntryPoint("noise", value, plugins.GROUP)
    object.__setattr__(point, "dist", SimpleNamespace(name="some-game"))
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    plugins.load_entry_points.cache_clear()


@pytest.fixture
def _no_memory_of_packages():
    yield
    plugins.load_entry_points.cache_clear()


@pytest.mark.usefixtures("_no_memory_of_packages")
def test_operators_of_installed_packages_load_by_themselves(
    calls_twice, tmp_path, monkeypatch, run
):
    lines = TWICE.splitlines(keepends=True)
    function = lines[0] + "def register():\n" + "".join(f"    {line}" for line in lines[1:])
    (tmp_path / "some_game_ops.py").write_text(function)
    entry_point(monkeypatch, "some_game_ops:register", tmp_path)
    assert run(calls_twice) == [0, 2, 4]


@pytest.mark.usefixtures("_no_memory_of_packages")
def test_failing_plugin_package_gives_a_notice(tmp_path, monkeypatch, run_cml):
    (tmp_path / "broken_game_ops.py").write_text("1 / 0\n")
    entry_point(monkeypatch, "broken_game_ops", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        notice = run_cml("ops").err
    assert "package 'some-game'" in notice and "ZeroDivisionError" in notice


def test_ops_lists_game_operators(run_cml):
    assert "cross" in run_cml(f"ops {OPS}").out
