"""Tests of the ``cml`` command as a user runs it: files in and out, messages, exit codes.

The errors in a model's text and files have their tests in ``tests/nnef``.
"""

import io
import json
import sys
import time

import numpy as np
import pytest

from cml_engine.formats import loading
from cml_engine.io.data_folders import bundled_folder
from cml_engine.tools.cli import terminal as terminal_module
from tests.fixtures.models import inputs_abc, write_model, write_model_abc

#: the blog's model has no version line, which is a notice
pytestmark = pytest.mark.filterwarnings("default")

LOGICAL = """\
version 1.0;
graph bright(image) -> (flag)
{
    image = external<scalar>(shape = [1, 3, 4, 5]);
    flag = gt(image, 0.5);
}
"""


@pytest.fixture
def abc(tmp_path):
    folder = write_model_abc(tmp_path / "model_abc.nnef")
    for name, array in inputs_abc().items():
        np.save(tmp_path / f"{name}.npy", array)
    return folder


@pytest.fixture
def run_abc(abc, tmp_path, run_cml):
    def run(more="", backend="cpu", ends=0):
        inputs = " ".join(f"-i {name}={tmp_path}/{name}.npy" for name in ("input1", "input2"))
        return run_cml(f"run {abc} --backend {backend} {inputs} {more}", ends=ends)

    return run


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_the_progress_of_a_compilation(run_abc, monkeypatch, gpu, terminal):
    shown = io.StringIO()
    shown.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", shown)
    run_abc(backend="gpu")
    assert ("kernels" in shown.getvalue()) == terminal


def test_a_command_says_what_it_does_when_it_takes_long(run_abc, monkeypatch):
    """A command prints the name of each stage that takes long, once."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(terminal_module, "_SILENT_S", 0.01)
    load, give_up = loading.load, time.monotonic() + 20

    def slow_load(*given, **options):
        while "loading" not in shown.getvalue():
            assert time.monotonic() < give_up, "nothing was printed"
            time.sleep(0.01)
        time.sleep(0.1)
        return load(*given, **options)

    monkeypatch.setattr(loading, "load", slow_load)
    run_abc()
    assert shown.getvalue().count("cml: loading '") == 1
    assert "model_abc.nnef' ..." in shown.getvalue()


def test_no_stage_is_printed_after_the_command(run_abc, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(terminal_module, "_SILENT_S", 0.001)
    run_abc()
    before = shown.getvalue()
    time.sleep(0.05)
    assert shown.getvalue() == before


def test_run_writes_npy_and_npz(run_abc, tmp_path):
    printed = run_abc(f"-o output1={tmp_path}/o1.npy -o output2={tmp_path}/both.npz").out
    one = np.load(tmp_path / "o1.npy")
    assert one.shape == (1, 128, 1, 1) and one.dtype == np.float32
    assert np.load(tmp_path / "both.npz")["output2"].shape == (1, 128, 1, 1)
    assert "output1: scalar[1,128,1,1] ->" in printed


def test_info_needs_no_gpu(abc, run_cml):
    printed = run_cml(f"info {abc} --plan").out
    for part in ("input1", "scalar[1,128,4,4]", "conv 1", "lower bound", "predicted", "groups"):
        assert part in printed
    info = json.loads(run_cml(f"info {abc} --json").out)
    assert info["parameters"] >= 128 * 128 * 9 + 128 and info["arena_ratio"] <= 1.05


def test_rank_prints_a_table_csv_or_json(abc, run_cml, refused):
    command = f"rank {abc} --backend cpu --runs 2"
    printed = run_cml(command).out
    assert "Total operation count: 5" in printed and "mean_reduce" in printed
    assert run_cml(f"{command} --csv").out.startswith("name,percentage,ms,count")
    assert json.loads(run_cml(f"{command} --json").out)["operations"] == 5
    assert "leave --json out" in refused(f"{command} --json --csv")


def test_run_without_inputs_is_refused(abc, refused):
    assert "-i NAME=FILE" in refused(f"run {abc}")


def test_inputs_are_checked_with_names_and_shapes(abc, tmp_path, refused):
    one = f"-i input1={tmp_path}/input1.npy"
    np.save(tmp_path / "short.npy", np.zeros((1, 128), np.float32))
    np.save(tmp_path / "text.npy", np.full((1, 128, 4), "a"))
    (tmp_path / "none.npy").write_bytes(b"")
    cases = [
        (one, "input 'input2' is missing"),
        (f"{one} -i input3=x.npy", "unknown input 'input3'"),
        (f"{one} -i input2={tmp_path}/short.npy", "wanted shape [1, 128, 4], got [1, 128]"),
        (f"{one} -i input2={tmp_path}/text.npy", "wanted scalar"),
        (f"{one} -i input2={tmp_path}/nothing.npy", "no such file"),
        (f"{one} -i input2={tmp_path}/none.npy", "it is no .npy file"),
        (f"{one} -i input2={tmp_path}/x.jpeg", "wanted one of .npy"),
        (f"{one} {one}", "given twice"),
        ("-i input1", "wanted NAME=FILE"),
    ]
    for inputs, says in cases:
        assert says in refused(f"run {abc} {inputs} --backend cpu")


@pytest.mark.parametrize("command", ["run MODEL", "quantize MODEL out", "validate MODEL"])
def test_files_of_another_input_are_named_where_a_shape_is_open(command, tmp_path, refused):
    example = bundled_folder("examples", "examples") / "models" / "enlarge.onnx"
    command = command.replace("MODEL", str(example))
    np.save(tmp_path / "x.npy", np.zeros((8, 3, 16, 16), np.float32))
    (tmp_path / "x.png").write_bytes(b"a picture")
    assert "-i has 'img', not 'image'" in refused(f"{command} -i img={tmp_path}/x.npy")
    assert "wanted NAME=FILE" in refused(f"{command} -i {tmp_path}/x.npy")
    if command.startswith("quantize"):
        message = refused(f"{command} -i image={tmp_path}/x.png")
        assert "samples of 'image' are read from a .npz or .npy file" in message


def test_unwritable_outputs_are_refused_before_the_run(run_abc, tmp_path, refused):
    cases = [
        (f"output1={tmp_path}/no/such/o.npy", "no folder"),
        (f"output1={tmp_path}", "wanted one of .npy"),
        ("nothing=o.npy", "unknown output"),
        (f"output1={tmp_path}/o.png", "a PNG wants"),
        (f"output1={tmp_path}/../{tmp_path.name}/input1.npy", "is the file of an input"),
    ]
    for pair, says in cases:
        assert says in run_abc(f"-o {pair}", ends=2).err
    model = write_model(tmp_path / "image.nnef", LOGICAL)
    assert "logical" in refused(f"run {model} -o flag={tmp_path}/f.png")


def test_without_a_gpu_auto_falls_back_with_a_notice_and_gpu_refuses(
    abc, run_abc, monkeypatch, refused
):
    from cml_engine.errors import DeviceError

    def refuse(_):
        raise DeviceError("no GPU. Install a Vulkan driver")

    device = pytest.importorskip("cml_engine.gpu.device")
    monkeypatch.setattr(device, "_request_device", refuse)
    notice = run_abc(backend="auto").err
    assert "notice: running on the CPU" in notice and len(notice.strip().splitlines()) <= 2
    assert "no GPU" in run_abc(backend="gpu", ends=2).err
    assert "no GPU" in refused(f"validate {abc}")


def test_verbose_logs_loading_only_in_its_own_run(abc, run_cml):
    assert "is loaded" not in run_cml(f"info {abc}").err
    assert "cml: info: 'model_abc' is loaded: " in run_cml(f"info {abc} -v").err
    assert "is loaded" not in run_cml(f"info {abc}").err
