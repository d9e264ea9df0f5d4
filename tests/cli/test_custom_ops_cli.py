"""Tests of ``--ops``, ``--fragments``, ``--dump-kernels``, ``--debug-kernels`` and ``rank --stub``.

Covers their messages for bad input, and operators from installed packages.
"""

from __future__ import annotations

import json
import warnings
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler import plugins
from cml_engine.ops import registered
from cml_engine.tools.cli import main
from tests.fixtures.models import write_model, write_model_abc

ROOT = Path(__file__).resolve().parents[2]
CROSS = ROOT / "examples/cross_product"
OPS = ["--ops", str(CROSS / "cross.py")]
MODEL = str(CROSS / "cross_product.nnef")
pytestmark = pytest.mark.usefixtures("own_operators")

TWICE = """\
import cml_engine as cml
cml.register(cml.OpSpec(
    "twice", cml.same_as(0), cpu=lambda attrs, x: 2 * x,
    signature="fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>)",
))
"""
CALLS_TWICE = """\
version 1.0;
graph g(x) -> (y) { x = external<scalar>(shape = [3]); y = twice(x); }
"""


@pytest.fixture
def calls_twice(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float32))
    return write_model(tmp_path / "twice.nnef", CALLS_TWICE)


def run(model, *more, backend="cpu"):
    x = model.parent / "x.npy"
    y = model.parent / "y.npy"
    return main(["run", str(model), "-i", f"x={x}", "-o", f"y={y}", "--backend", backend, *more])


def error_of(capsys):
    said = capsys.readouterr().err
    assert "Traceback" not in said and "internal error" not in said
    return said


def test_ops_brings_operators_from_a_file(calls_twice, tmp_path, capsys):
    assert run(calls_twice) == 2
    assert "unknown operator 'twice'" in error_of(capsys)
    (tmp_path / "ops.py").write_text(TWICE)
    for factor in (2, 5):  # a file loaded again replaces what it registered
        (tmp_path / "ops.py").write_text(TWICE.replace("2 * x", f"{factor} * x"))
        assert run(calls_twice, "--ops", str(tmp_path / "ops.py")) == 0
        assert np.load(tmp_path / "y.npy").tolist() == [0, factor, 2 * factor]


def test_ops_may_be_given_again_and_imports_its_neighbours(calls_twice, tmp_path):
    (tmp_path / "neighbour.py").write_text("FACTOR = 3\n")
    (tmp_path / "ops.py").write_text(
        "from neighbour import FACTOR\n" + TWICE.replace("2", "FACTOR")
    )
    (tmp_path / "more.py").write_text(TWICE.replace("twice", "thrice"))
    files = [str(tmp_path / name) for name in ("ops.py", "more.py")]
    assert run(calls_twice, "--ops", files[0], "--ops", files[1]) == 0
    assert np.load(tmp_path / "y.npy").tolist() == [0, 3, 6]


def test_an_operator_without_kernel_is_refused_on_the_gpu(calls_twice, tmp_path, capsys, gpu):
    (tmp_path / "ops.py").write_text(TWICE)
    assert run(calls_twice, "--ops", str(tmp_path / "ops.py"), backend="gpu") == 2
    assert "has no GPU kernel; use the CPU backend" in error_of(capsys)


def test_an_operator_without_cpu_function_says_so(calls_twice, tmp_path, capsys, gpu):
    text = TWICE.replace(
        "cpu=lambda attrs, x: 2 * x",
        'kernel=cml.Kernel(source="void kernel(uint thread) { y[thread] = 2 * x[thread]; }")',
    )
    (tmp_path / "ops.py").write_text(text)
    ops = ["--ops", str(tmp_path / "ops.py")]
    assert run(calls_twice, *ops, backend="gpu") == 0
    assert np.load(tmp_path / "y.npy").tolist() == [0, 2, 4]
    assert run(calls_twice, *ops) == 2
    assert "has no CPU function; run it on a GPU" in error_of(capsys)
    assert main(["validate", str(calls_twice), *ops]) == 0
    assert "has no CPU function to check against" in capsys.readouterr().out


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


@pytest.mark.parametrize(("text", "says"), BAD_FILES, ids=[says for _, says in BAD_FILES])
def test_a_faulty_file_is_one_message_with_its_line(calls_twice, tmp_path, capsys, text, says):
    (tmp_path / "ops.py").write_text(text)
    assert run(calls_twice, "--ops", str(tmp_path / "ops.py")) == 2
    assert says in error_of(capsys)
    assert "twice" not in registered()


def test_a_file_that_is_not_there_or_not_python(calls_twice, tmp_path, capsys):
    assert run(calls_twice, "--ops", str(tmp_path / "none.py")) == 2
    assert "none.py': no such file" in error_of(capsys)
    (tmp_path / "ops.txt").write_text(TWICE)
    assert run(calls_twice, "--ops", str(tmp_path / "ops.txt")) == 2
    assert "wanted a Python file" in error_of(capsys)


def test_a_model_s_own_fragment_is_the_registered_operator(tmp_path, capsys):
    (tmp_path / "ops.py").write_text(TWICE.replace("2 * x", "7 * x"))
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float32))
    for body, factor in (("{ y = x + x; }", 2), (";", None)):
        text = CALLS_TWICE.replace(
            "graph g",
            "extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n"
            f"fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>){body}\ngraph g",
        )
        model = write_model(tmp_path / "m.nnef", text)
        cml.unregister("twice")
        assert run(model) == (0 if factor else 2)
        assert run(model, "--ops", str(tmp_path / "ops.py")) == 0
        assert np.load(tmp_path / "y.npy").tolist() == [0, 7, 14]


def test_another_signature_than_the_registered_one_is_a_notice(tmp_path, capsys):
    (tmp_path / "ops.py").write_text(TWICE)
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float32))
    text = CALLS_TWICE.replace(
        "graph g",
        "extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n"
        "fragment twice(x: tensor<scalar>, k: scalar = 3.0) -> (y: tensor<scalar>)\n"
        "{ y = k * x; }\ngraph g",
    )
    model = write_model(tmp_path / "m.nnef", text)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert run(model, "--ops", str(tmp_path / "ops.py")) == 0
    assert np.load(tmp_path / "y.npy").tolist() == [0, 3, 6]
    assert "'twice' is not the registered twice(" in error_of(capsys)


# ---------------------------------------------------------------- fragments

LIBRARY = "fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>) { y = x + x; }\n"


def test_fragments_of_a_library_are_expanded_or_registered(calls_twice, tmp_path, capsys):
    (tmp_path / "lib.nnef").write_text(LIBRARY)
    library = ["--fragments", str(tmp_path / "lib.nnef")]
    assert run(calls_twice, *library) == 0
    assert np.load(tmp_path / "y.npy").tolist() == [0, 2, 4]
    assert main(["info", str(calls_twice), *library]) == 0
    assert "add 1" in capsys.readouterr().out
    (tmp_path / "ops.py").write_text(TWICE.replace("2 * x", "7 * x"))
    assert run(calls_twice, *library, "--ops", str(tmp_path / "ops.py")) == 0
    assert np.load(tmp_path / "y.npy").tolist() == [0, 7, 14]


BAD_LIBRARIES = [
    ("fragment twice(", "lib.nnef:1"),
    (LIBRARY + LIBRARY, "fragment 'twice' is there twice"),
    (LIBRARY.replace("twice", "relu"), "'relu' is NNEF's own"),
    ("\xff\xfe", "lib.nnef"),
]


@pytest.mark.parametrize(("text", "says"), BAD_LIBRARIES, ids=[says for _, says in BAD_LIBRARIES])
def test_a_faulty_library_is_one_message(calls_twice, tmp_path, capsys, text, says):
    (tmp_path / "lib.nnef").write_text(text, encoding="latin-1")
    assert run(calls_twice, "--fragments", str(tmp_path / "lib.nnef")) == 2
    assert says in error_of(capsys)
    assert run(calls_twice, "--fragments", str(tmp_path / "none.nnef")) == 2
    assert "none.nnef" in error_of(capsys)


# ---------------------------------------------------------------- kernels and stubs


def test_dump_kernels(tmp_path, capsys, gpu):
    for command in (["rank", "--runs", "1"], ["validate"]):
        folder = tmp_path / command[0]
        assert main([command[0], MODEL, *OPS, *command[1:], "--dump-kernels", str(folder)]) == 0
        assert len(list(folder.glob("cross-*.spv"))) == 1
        assert "void kernel(uint thread)" in next(folder.glob("cross-????????.hlsl")).read_text()


def test_dump_kernels_to_where_nothing_can_be_written(tmp_path, capsys, gpu):
    (tmp_path / "file").write_text("")
    assert main(["rank", MODEL, *OPS, "--dump-kernels", str(tmp_path / "file")]) == 2
    assert "--dump-kernels: cannot write into" in error_of(capsys)
    assert main(["rank", MODEL, "--backend", "cpu", "--dump-kernels", str(tmp_path)]) == 2
    assert "--dump-kernels needs a GPU" in error_of(capsys)


def test_debug_kernels_shows_what_they_print(calls_twice, tmp_path, capsys, gpu):
    kernel = 'void kernel(uint thread) { CML_PRINT("x", x[thread]); y[thread] = 2 * x[thread]; }'
    (tmp_path / "ops.py").write_text(
        TWICE.replace("cpu=lambda attrs, x: 2 * x", f"kernel=cml.Kernel(source={kernel!r})")
    )
    ops = ["--ops", str(tmp_path / "ops.py")]
    assert run(calls_twice, *ops, backend="gpu") == 0
    assert "workgroup" not in error_of(capsys)
    assert run(calls_twice, *ops, "--debug-kernels", backend="gpu") == 0
    assert np.load(tmp_path / "y.npy").tolist() == [0, 2, 4]
    lines = error_of(capsys).splitlines()
    where = f"g twice 'y' ({calls_twice}/graph.nnef:2:60)"
    assert lines == [f"{where} x = {t}.0  workgroup 0 thread {t}" for t in range(3)]
    assert run(calls_twice, *ops, "--debug-kernels") == 2
    assert "--debug-kernels needs a GPU" in error_of(capsys)
    cooked = tmp_path / "twice.cml"
    assert main(["cook", str(calls_twice), *ops, "-o", str(cooked)]) == 0
    capsys.readouterr()
    assert run(cooked, "--debug-kernels", backend="gpu") == 2
    assert "were cooked without CML_PRINT" in error_of(capsys)


def test_stub_shows_what_an_operator_costs_end_to_end(tmp_path, capsys, gpu, monkeypatch):
    def counted(session, _inputs):
        """Returns a function that returns the session's FLOPs in place of a varying time."""
        work = sum(step.cost.flops for step in session.plan.steps)
        return lambda: work

    model = str(write_model_abc(tmp_path / "abc"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the blog's model has no version line
        with monkeypatch.context() as patch:
            patch.setattr(cml.Session, "timer", counted)
            assert main(["rank", model, "--stub", "conv", "--runs", "3", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["with_ms"] > report["without_ms"] > 0 and report["count"] == 1
        assert 50 < report["share"] < 100
        assert main(["rank", model, "--stub", "conv", "--runs", "2"]) == 0
        said = capsys.readouterr().out
        assert "with conv" in said and "without conv" in said and "to be gained" in said
        assert main(["rank", model, "--stub", "conv", "--runs", "2", "--csv"]) == 0
        assert capsys.readouterr().out.startswith("operator,count,with_ms")


def test_a_stub_for_what_is_fused_and_for_what_is_not_there(tmp_path, capsys, gpu):
    text = """version 1.0;
    graph g(x) -> (z) {
        x = external<scalar>(shape = [1, 8, 8, 8]);
        w = constant<scalar>(shape = [8, 8, 3, 3], value = [0.1]);
        c = conv(x, w);
        y = relu(c);
        z = reshape(y, shape = [1, 512]);
    }"""
    model = str(write_model(tmp_path / "m.nnef", text))
    assert main(["rank", model, "--stub", "relu", "--runs", "2"]) == 0
    assert "relu (1 of them)" in capsys.readouterr().out
    cases = [
        (["--stub", "tanh"], "no operator 'tanh' in model 'g'; it has conv, relu, reshape"),
        (["--stub", "reshape"], "runs nothing on the GPU"),
        (["--stub", "relu", "--backend", "cpu"], "on a GPU only"),
    ]
    for more, says in cases:
        assert main(["rank", model, *more]) == 2
        assert says in error_of(capsys)


def test_a_stubbed_network_still_runs(tmp_path, gpu):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = cml.load(write_model_abc(tmp_path / "abc"))
    report = cml.Session(graph, gpu).rank_without("min_reduce", runs=2)
    assert report.count == 1 and report.runs == 2


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
def test_operators_of_installed_packages_load_by_themselves(calls_twice, tmp_path, monkeypatch):
    lines = TWICE.splitlines(keepends=True)
    function = lines[0] + "def register():\n" + "".join(f"    {line}" for line in lines[1:])
    (tmp_path / "some_game_ops.py").write_text(function)
    entry_point(monkeypatch, "some_game_ops:register", tmp_path)
    assert run(calls_twice) == 0
    assert np.load(tmp_path / "y.npy").tolist() == [0, 2, 4]


@pytest.mark.usefixtures("_no_memory_of_packages")
def test_a_package_that_fails_is_a_notice_with_its_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_game_ops.py").write_text("1 / 0\n")
    entry_point(monkeypatch, "broken_game_ops", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["ops"]) == 0
    said = error_of(capsys)
    assert "package 'some-game'" in said and "ZeroDivisionError" in said


def test_ops_lists_a_game_s_own(capsys):
    assert main(["ops", *OPS]) == 0
    said = capsys.readouterr().out
    assert "cross" in said
