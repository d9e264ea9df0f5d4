"""Tests that a written graph is read back the same, and that a killed save loses no model."""

import errno
import os
import signal
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import CmlError, InputError, ModelError
from cml_engine.io import atomic_write
from cml_engine.io.output_folder import is_device
from cml_engine.ir.graph import Epilogue, Fact, Graph
from cml_engine.nnef import write_tensor
from cml_engine.nnef.files import writer
from cml_engine.nnef.files.writer import save, to_text
from tests.fixtures.graphs import node
from tests.fixtures.messages import raises
from tests.fixtures.pages import ROOT
from tests.nnef.conftest import load_native

TEXT = """version 1.0;
extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;

fragment inner(a: tensor<scalar>) -> (b: tensor<scalar>) { b = a * 2.0; }
fragment custom(a: tensor<scalar>, more: tensor<scalar>[], scale: scalar = 1.0,
                mode: string = 'it\\'s')
    -> (b: tensor<scalar>, rest: tensor<scalar>[]) { b = inner(a); rest = more; }

graph everything(x, m) -> (y, z, k, s_out)
{
    x = external<scalar>(shape = [1, 4, 8, 8]);
    m = external<logical>(shape = [1, 4, 8, 8]);
    w = variable<scalar>(shape = [4, 4, 3, 3], label = 'block/w');
    w2 = variable<scalar>(shape = [4, 4, 3, 3], label = 'BLOCK/w');
    i = variable<integer>(shape = [2], label = '/indices');
    state = variable<scalar>(shape = [1, 4, 8, 8], label = 'state');
    k = constant<scalar>(shape = [1, 4], value = [0.1, 1.0e-5, -3.0, 1.0e30]);
    fill = constant<integer>(shape = [100, 100], value = [7]);
    rank0 = constant<scalar>(shape = [], value = [0.5]);
    c = conv(x, w, k, padding = [(1, 1), (1, 1)], border = 'reflect');
    d = conv(c + 0.1, w2) * rank0;
    parts = split(d, axis = 1, ratios = [1, 3]);
    [p, q] = split(c, axis = 1, ratios = [2, 2]);
    mean, variance = moments(concat([p, q, 1.0], axis = 1), axes = [2, 3]);
    e, [f, g] = custom(mean, [p, q], scale = 3.0);
    j = cast<integer>(select(m, variance + e, 1.0e-7)) ;
    h = gather(x, i, axis = 1);
    fills = cast<scalar>(fill);
    z = clamp(parts[1] + f + g + fills, -1.0, 1.0e999);
    y = cast<scalar>(j) + h;
    s = update(state, add(state, x));
    s_out = copy(s);
}
"""


@pytest.fixture
def everything(write_model):
    rng = np.random.default_rng(1)
    folder = write_model(TEXT, indices=np.array([1, 0]), state=np.zeros((1, 4, 8, 8), np.float32))
    for name in ("block", "BLOCK"):
        filter = rng.normal(size=(4, 4, 3, 3)).astype(np.float32)
        write_tensor(folder / name / "w.dat", filter)
    (folder / "graph.quant").write_text(
        "'y': linear_quantize(min = [0.0, 1.0], max = 1.0, bits = 8);"
    )
    return load_native(folder)


def test_the_text_is_canonical(everything):
    lines = [line.strip() for line in to_text(everything).splitlines()]
    for line in (
        "w = variable<scalar>(shape = [4, 4, 3, 3], label = 'block/w');",
        "k = constant<scalar>(shape = [1, 4], value = [0.1, 1e-05, -3.0, 1e+30]);",
        "fill = constant<integer>(shape = [100, 100], value = [7]);",
        "c = conv(x, w, k, border = 'reflect', padding = [(1, 1), (1, 1)]);",
        "[parts_1, parts_2] = split(d, axis = 1, ratios = [1, 3]);",
        "mean, variance = moments(concat1, axes = [2, 3]);",
        "e, [f, g] = custom(mean, [p, q], scale = 3.0);",
        "j = cast<integer>(select1);",
    ):
        assert line in lines
    assert any(line.startswith("z = clamp(add") and "-1.0, 1e999" in line for line in lines)
    assert lines[-2].startswith("state_update = update(state, add")


def test_save_refuses_to_overwrite_by_default(everything, tmp_path):
    for name in ("out", "out.tgz", "PACKED.TGZ"):
        save(everything, tmp_path / name)
        with pytest.raises(InputError, match=r"overwrite it \(--overwrite, overwrite=True\)"):
            save(everything, tmp_path / name)
        save(everything, tmp_path / name, overwrite=True)
    assert (tmp_path / "PACKED.TGZ").is_file()
    (tmp_path / "empty").mkdir()
    save(everything, tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: name a folder"):
        save(everything, tmp_path / "file")
    with pytest.raises(InputError, match="cannot write"):
        save(everything, tmp_path / "file" / "below")


@pytest.mark.parametrize("second", [np.ones(2, np.float32), np.zeros(2, np.int32)])
def test_different_tensors_get_different_files(tmp_path, second):
    """Tensors with labels that differ only in case are written to different files.

    Two equal tensors with one label stay one array.
    """
    first = np.zeros(2, np.float32)
    kinds = {"a": first, "b": second, "c": first}
    facts = {n: Fact("scalar" if v.dtype == np.float32 else "integer", (2,))
             for n, v in kinds.items()}  # fmt: skip
    graph = small(constants=kinds, labels=dict.fromkeys("ac", "w") | {"b": "W"})
    save(graph.with_(facts={**graph.facts, **facts}), tmp_path / "out")
    loaded = load_native(tmp_path / "out")
    for name, values in kinds.items():
        assert loaded.constants[name].dtype == values.dtype
        np.testing.assert_array_equal(loaded.constants[name], values)
    assert loaded.constants["a"] is loaded.constants["c"]
    assert dict(loaded.labels) == {"a": "w", "b": "b", "c": "w"}


@pytest.mark.parametrize("label", ["aux", "head/AUX/w", "nul.w", "com1"])
def test_no_file_has_the_name_of_a_device_of_windows(tmp_path, label):
    """Its tensor gets another label, and integers of ``graph.quant`` stay such."""
    graph = cml.load(ROOT / "demo_game/models/integer/population.nnef")
    name = next(name for name in graph.quantization if name in graph.labels)
    renamed = graph.with_(labels={**graph.labels, name: label})
    for saved, path in ((graph, "before"), (renamed, "after")):
        save(saved, tmp_path / path)
    before, after = tree(tmp_path / "before"), tree(tmp_path / "after")
    assert not any(is_device(file) for file in after)
    assert before.pop(f"{graph.labels[name]}.dat") == after.pop(f"{name}.dat")
    assert {**before, "graph.nnef": b""} == {**after, "graph.nnef": b""}
    loaded = load_native(tmp_path / "after")
    np.testing.assert_array_equal(loaded.constants[name], graph.constants[name])


def tree(folder):
    """Returns the bytes of every file below a folder, by relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if not p.is_dir()}


@pytest.mark.parametrize("name", ["out", "out.tgz"])
@pytest.mark.parametrize("failing", ["block/w.dat", "graph.nnef"])
def test_failed_save_keeps_the_old_model(everything, tmp_path, monkeypatch, name, failing):
    def files(composed):
        for file, data in original(composed):
            if file == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            yield file, data

    original = writer._files
    save(small(), tmp_path / name)
    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_files", files)
        for target in (tmp_path / name, tmp_path / f"new_{name}"):
            with pytest.raises(InputError, match=f"cannot write '{target}': No space left"):
                save(everything, target, overwrite=True)
    assert tree(tmp_path) == before
    assert {p.name for p in tmp_path.iterdir()} == {name, "model"}  # the fixture wrote that


def test_blocked_path_is_found_before_replacing(everything, tmp_path):
    save(small(), tmp_path / "out")
    (tmp_path / "out" / "block" / "w.dat").mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(InputError, match=r"w\.dat': it is a folder"):
        save(everything, tmp_path / "out", overwrite=True)
    assert tree(tmp_path) == before
    (tmp_path / "folder.tgz").mkdir()
    with pytest.raises(InputError, match="is a folder: name a file"):
        save(everything, tmp_path / "folder.tgz", overwrite=True)


def test_archives_store_the_graph_last_without_owner(everything, tmp_path):
    save(everything, tmp_path / "out.tgz")
    with tarfile.open(tmp_path / "out.tgz") as tar:
        members = tar.getmembers()
    assert members[-1].name == "graph.nnef"
    assert "block/w.dat" in [member.name for member in members]
    assert {member.uid for member in members} == {0}


def small(**changes):
    facts = {"x": Fact("scalar", (2,)), "y": Fact("scalar", (2,))}
    return Graph("g", ("x",), ("y",), (node("y = relu(x)"),), facts).with_(**changes)


def test_invalid_identifiers_are_renamed(tmp_path):
    big = np.arange(300, dtype=np.float32)
    graph = small(
        inputs=("a/b:0",),
        outputs=("7",),
        nodes=(node("a_b_0 = add(a/b:0, graph)"), node("7 = mul(a_b_0, weights é)")),
        facts={"a/b:0": Fact("scalar", (300,))},
        constants={"graph": np.ones(2, np.float32), "weights é": big},
    )
    save(graph, tmp_path / "out")
    again = load_native(tmp_path / "out")
    assert again.inputs == ("a_b_0_2",)
    assert again.outputs == ("t_7",)
    assert again.nodes[0].inputs == ("a_b_0_2", "t_graph")
    np.testing.assert_array_equal(again.constants["weights__"], big)
    assert (tmp_path / "out" / "weights__.dat").is_file()


def test_constants_unrepresentable_in_text_become_files(tmp_path):
    graph = small(
        nodes=(node("y = add(x, nan)"),),
        constants={"nan": np.array(np.nan, np.float32)},
    )
    save(graph, tmp_path / "out")
    assert (tmp_path / "out" / "nan.dat").is_file()
    again = load_native(tmp_path / "out")
    assert np.isnan(again.constants["nan"])


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (small(nodes=(node("y = rleu(x)"),)), "unknown operator 'rleu'"),
        (small(nodes=(node("y = relu(x, x)"),)), "relu 'y' has 2 inputs: wanted 1"),
        (small(nodes=(node("y = concat()"),)), "concat 'y' has no attribute 'axis'"),
        (small(nodes=(node("y = leaky_relu(x)", alpha=float("nan")),)),
         "nan cannot be written as NNEF"),
        (small(nodes=(replace(node("y = relu(x)"), epilogues=(Epilogue("relu"),)),)),
         "is fused already"),
        (small(outputs=("x",)), "'x' is both input and output"),
        (small(constants={"x2": np.zeros(2)}), "a constant of float64"),
        (small(constants={"a": np.zeros(2, np.float32)}, labels={"a": "../a"}), "has '..' in it"),
    ],
)  # fmt: skip
def test_unsupported_values_are_refused_on_writing(graph, message, tmp_path):
    with raises(CmlError, message) as error:
        save(graph, tmp_path / "out")
    assert isinstance(error.value, (InputError, ModelError))
    assert not (tmp_path / "out").exists()


#: functions that change files; the process is killed at each of them
_STEPS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")


def model(value, quantized):
    text = (
        "version 1.0;\ngraph g(x) -> (y)\n{\n    x = external(shape = [1, 4]);\n"
        "    w = variable(shape = [1, 4], label = 'w');\n"
        "    v = variable(shape = [1, 4], label = 'a/v');\n    y = x + w; z = y + v;\n}\n"
    ).replace("y = x + w; z = y + v;", "u = add(x, w);\n    y = add(u, v);")
    values = np.full((1, 4), value, np.float32)
    quant = '"u": zero_point_linear_quantize(zero_point = 0, scale = 1.0, bits = 8);\n'
    source = cml.nnef.MemoryModel(
        text, {"w": values, "a/v": -values}, quant=quant if quantized else None
    )
    return cml.load(source)


def is_whole(path):
    """Loads the model and returns the value of its weights, which tells the old from the new one.

    Asserts that all parts are of the same model.
    """
    for name in (path, path / "graph.nnef"):
        graph = cml.load(name)
        (weight,) = set(graph.constants["w"].reshape(-1).tolist())
        assert graph.constants["v"].tolist() == [[-weight] * 4]
        assert len(graph.quantization) == (1 if weight == 1 else 0)
    return float(weight)


def save_until(step, graph, path):
    """Saves a model in a process that is killed at a step; returns True if it was killed.

    Returns False if the save ended before that step.
    """
    child = os.fork()
    if child == 0:
        steps = 0

        def killed(event, arguments):
            nonlocal steps
            steps += event in _STEPS
            if event in _STEPS and steps > step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(killed)
        cml.save(graph, path, overwrite=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.skipif(sys.platform == "win32", reason="it forks, and sends a signal")
def test_killed_save_leaves_the_old_or_the_new_model(tmp_path, monkeypatch):
    old, new = model(1, quantized=True), model(2, quantized=False)
    monkeypatch.setattr(atomic_write, "_ABANDONED_S", -1.0)
    versions = []
    for step in range(200):
        path = tmp_path / str(step)
        cml.save(old, path)
        (path / "notes.txt").write_text("the user's own")
        was_killed = save_until(step, new, path)
        versions.append(is_whole(path))
        atomic_write._swept.clear()
        cml.save(new, path, overwrite=True)  # the next start
        assert is_whole(path) == 2
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        assert names == ["a/v.dat", "graph.nnef", "notes.txt", "w.dat"]
        assert not list(path.glob(".cml-*"))
        if not was_killed:
            break
    assert len(versions) > 15 and versions == sorted(versions) and set(versions) == {1, 2}
