"""Tests that a save over another model leaves the old or the new one, killed at any moment."""

import os
import signal
import sys

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.io import atomic_write

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it forks, and sends a signal")

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
    made = cml.MemoryModel(text, {"w": values, "a/v": -values}, quant=quant if quantized else None)
    return cml.load(made)


def is_whole(path):
    """Loads the model and returns the value of its weights, which tells the old from the new one.

    Asserts that all parts are of the same model.
    """
    for name in (path, path / "graph.nnef"):
        graph = cml.load(name)
        (found,) = set(graph.constants["w"].reshape(-1).tolist())
        assert graph.constants["v"].tolist() == [[-found] * 4]
        assert len(graph.quantization) == (1 if found == 1 else 0)
    return float(found)


def save_until(step, graph, path):
    """Saves a model in a process that is killed at a step; returns True if it was killed.

    Returns False if the save ended before that step.
    """
    child = os.fork()
    if child == 0:
        seen = 0

        def killed(event, arguments):
            nonlocal seen
            seen += event in _STEPS
            if event in _STEPS and seen > step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(killed)
        cml.save(graph, path, overwrite=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_killed_save_leaves_the_old_or_the_new_model(tmp_path, monkeypatch):
    old, new = model(1, quantized=True), model(2, quantized=False)
    monkeypatch.setattr(atomic_write, "_ABANDONED_S", -1.0)
    found = []
    for step in range(200):
        path = tmp_path / str(step)
        cml.save(old, path)
        (path / "notes.txt").write_text("the user's own")
        was_killed = save_until(step, new, path)
        found.append(is_whole(path))
        atomic_write._swept.clear()
        cml.save(new, path, overwrite=True)  # the next start
        assert is_whole(path) == 2
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        assert names == ["a/v.dat", "graph.nnef", "notes.txt", "w.dat"]
        assert not list(path.glob(".cml-*"))
        if not was_killed:
            break
    assert len(found) > 15 and found == sorted(found) and set(found) == {1, 2}
