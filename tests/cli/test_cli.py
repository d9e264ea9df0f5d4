"""Tests of the ``cml`` command as a user runs it: files in and out, messages, exit codes."""

import argparse
import io
import json
import sys

import numpy as np
import pytest
from PIL import Image

from cml_engine.nnef.files.tensor_file import write_tensor
from cml_engine.tools.cli import main
from cml_engine.tools.cli.main import parser
from tests.fixtures.models import MODEL_ABC, inputs_abc, write_model, write_model_abc

#: the blog's model has no version line, which is a notice
pytestmark = pytest.mark.filterwarnings("default")

IMAGE = """\
version 1.0;
graph brighten(image) -> (brighter, flag)
{
    image = external<scalar>(shape = [1, 3, 4, 5]);
    brighter = add(image, 0.25);
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
def image_model(tmp_path):
    return write_model(tmp_path / "image.nnef", IMAGE)


def run_abc(folder, *more, backend="cpu"):
    here = folder.parent
    return main(
        [
            *("run", str(folder), "--backend", backend),
            *("-i", f"input1={here}/input1.npy", "-i", f"input2={here}/input2.npy", *more),
        ]
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_how_far_a_compilation_is(abc, monkeypatch, gpu, terminal):
    shown = io.StringIO()
    shown.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", shown)
    assert run_abc(abc, backend="gpu") == 0
    assert ("kernels" in shown.getvalue()) == terminal


def test_run_writes_npy_and_npz(abc, tmp_path, capsys):
    files = (tmp_path / "o1.npy", tmp_path / "both.npz")
    assert run_abc(abc, "-o", f"output1={files[0]}", "-o", f"output2={files[1]}") == 0
    one = np.load(files[0])
    assert one.shape == (1, 128, 1, 1) and one.dtype == np.float32
    assert np.load(files[1])["output2"].shape == (1, 128, 1, 1)
    assert "output1: scalar[1,128,1,1] ->" in capsys.readouterr().out


def test_run_reads_npz_by_name_and_takes_graph_file_or_folder(abc, tmp_path):
    both = tmp_path / "in.npz"
    np.savez(both, **inputs_abc())
    for model in (abc, abc / "graph.nnef"):
        given = ["-i", f"input1={both}", "-i", f"input2={both}"]
        assert main(["run", str(model), *given, "--backend", "cpu"]) == 0


def test_a_picture_in_and_a_picture_out(image_model, tmp_path):
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3) * 4
    Image.fromarray(pixels).save(tmp_path / "in.png")
    out = tmp_path / "out.png"
    files = ["-i", f"image={tmp_path}/in.png", "-o", f"brighter={out}"]
    assert main(["run", str(image_model), *files, "--backend", "cpu"]) == 0
    got = np.asarray(Image.open(out)).astype(int)
    wanted = np.clip(pixels / 255 + 0.25, 0, 1) * 255
    assert np.abs(got - wanted).max() <= 0.51


def test_info_needs_no_gpu(abc, capsys):
    assert main(["info", str(abc), "--plan"]) == 0
    said = capsys.readouterr().out
    for part in ("input1", "scalar[1,128,4,4]", "conv 1", "lower bound", "predicted", "groups"):
        assert part in said
    assert main(["info", str(abc), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["parameters"] >= 128 * 128 * 9 + 128 and info["arena_ratio"] <= 1.05


def test_rank_prints_the_table(abc, capsys):
    assert main(["rank", str(abc), "--backend", "cpu", "--runs", "2"]) == 0
    said = capsys.readouterr().out
    assert "Total operation count: 5" in said and "mean_reduce" in said
    assert main(["rank", str(abc), "--backend", "cpu", "--runs", "2", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("name,percentage,ms,count")
    assert main(["rank", str(abc), "--backend", "cpu", "--runs", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operations"] == 5


def test_ops_lists_every_operator(capsys):
    assert main(["ops"]) == 0
    said = capsys.readouterr().out
    assert "multilinear_upsample" in said and "max_roi_align" in said


def test_a_model_without_inputs_given_is_refused(abc, capsys):
    assert main(["run", str(abc)]) == 2
    assert "-i NAME=FILE" in capsys.readouterr().err


def write_bad(folder, change, **tensors):
    weight = tensors.get("weight1", np.zeros((128, 128, 3, 3), np.float32))
    bias = tensors.get("bias1", np.zeros((1, 128), np.float32))
    return write_model(folder, change(MODEL_ABC), weight1=weight, bias1=bias)


BAD_TEXT = [
    (lambda t: t.replace("conv(", "convv("), "did you mean 'conv'"),
    (lambda t: t.replace("output1 = sub(mean_reduce1", "output1 = sub(nothing"), "nothing"),
    (lambda t: t.replace("output2 = max", "output1 = max"), "output1"),
    (lambda t: t.replace("stride = [1, 1]", "stride = 1.5"), "stride"),
    (lambda t: t.replace("axes = [2])", "axes = ['two'])"), "axes"),
    (lambda t: t.replace("label = 'bias1'", "label = '../../bias1'"), "label"),
    (lambda t: t.replace("conv1 = conv(", "conv1 = = conv("), "graph.nnef:7"),
    (lambda t: t.replace("shape = [1, 128, 4, 4]", "shape = [1, 64, 4, 4]"), "64"),
    (lambda t: t.replace("shape = [1, 128]", "shape = [1, 127]"), "127"),
    (lambda t: t + "}", "graph.nnef"),
    (lambda t: t[: len(t) // 2], "graph.nnef"),
    (lambda t: "\x00\xff" * 50, "graph.nnef"),
]


@pytest.mark.parametrize(("change", "says"), BAD_TEXT)
def test_bad_models_give_one_message_with_the_place(tmp_path, capsys, change, says):
    folder = write_bad(tmp_path / "bad.nnef", change)
    assert main(["info", str(folder)]) == 2
    said = capsys.readouterr().err
    assert says in said and "Traceback" not in said
    assert "graph.nnef" in said


def test_a_fragment_that_calls_itself_is_named(tmp_path, capsys):
    text = """version 1.0;
    extension KHR_enable_fragment_definitions;
    fragment again(x: tensor<scalar>) -> (y: tensor<scalar>) { y = again(x); }
    graph g(x) -> (y) { x = external<scalar>(shape = [1]); y = again(x); }"""
    assert main(["info", str(write_model(tmp_path / "m", text))]) == 2
    assert "again" in capsys.readouterr().err


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-4])


def _lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0\0\0\0")


def _absurd(path):
    data = bytearray(path.read_bytes())
    data[12:28] = np.array([0xFFFFFFFF] * 4, np.uint32).tobytes()
    path.write_bytes(data)


def _other_type(path):
    write_tensor(path, np.zeros((1, 128), bool))


@pytest.mark.parametrize(
    "damage", [lambda p: p.unlink(), _truncate, _lengthen, _absurd, _other_type,
               lambda p: p.write_bytes(b""), lambda p: p.write_bytes(b"nonsense" * 40)]
)  # fmt: skip
def test_damaged_weights_are_refused_by_name(abc, capsys, damage):
    damage(abc / "bias1.dat")
    assert main(["info", str(abc)]) == 2
    said = capsys.readouterr().err
    assert "bias1" in said and "Traceback" not in said


def test_inputs_are_checked_with_names_and_shapes(abc, tmp_path, capsys):
    one = f"input1={tmp_path}/input1.npy"
    np.save(tmp_path / "short.npy", np.zeros((1, 128), np.float32))
    np.save(tmp_path / "text.npy", np.full((1, 128, 4), "a"))
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00garbage")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    cases = [
        ([one], "input 'input2' is missing"),
        ([one, "input3=x.npy"], "unknown input 'input3'"),
        ([one, f"input2={tmp_path}/short.npy"], "wanted shape [1, 128, 4], got [1, 128]"),
        ([one, f"input2={tmp_path}/text.npy"], "wanted scalar"),
        ([one, f"input2={tmp_path}/none.npy"], "no such file"),
        ([one, f"input2={tmp_path}/broken.npy"], "cannot read"),
        ([one, f"input2={tmp_path}/broken.png"], "a PNG holds scalar[1,C,H,W]"),
        ([one, f"input2={tmp_path}/x.jpeg"], "wanted a file in"),
        ([one, one], "given twice"),
        (["input1"], "wanted NAME=FILE"),
    ]
    for pairs, says in cases:
        flags = [flag for pair in pairs for flag in ("-i", pair)]
        assert main(["run", str(abc), *flags, "--backend", "cpu"]) == 2
        said = capsys.readouterr().err
        assert says in said, said
        assert "Traceback" not in said


def test_an_npy_with_absurd_extents_takes_no_memory(abc, tmp_path, capsys):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999), }"
    header = header.ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    (tmp_path / "huge.npy").write_bytes(data)
    code = main(["run", str(abc), "-i", f"input1={tmp_path}/huge.npy", "--backend", "cpu"])
    assert code == 2 and "huge.npy" in capsys.readouterr().err


def test_outputs_that_cannot_be_written_are_refused_before_the_run(
    abc, image_model, tmp_path, capsys
):
    cases = [
        (f"output1={tmp_path}/no/such/o.npy", "no folder"),
        (f"output1={tmp_path}", "wanted a file in"),
        ("nothing=o.npy", "unknown output"),
        (f"output1={tmp_path}/o.png", "a PNG wants"),
    ]
    for pair, says in cases:
        assert run_abc(abc, "-o", pair) == 2
        assert says in capsys.readouterr().err
    assert main(["run", str(image_model), "-o", f"flag={tmp_path}/f.png"]) == 2
    assert "logical" in capsys.readouterr().err


def test_unknown_commands_and_missing_models_exit_with_two(tmp_path, capsys):
    assert main(["info", str(tmp_path / "none.nnef")]) == 2
    assert "none.nnef" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["frobnicate"])
    assert caught.value.code == 2


def test_our_own_faults_are_kept_apart_from_the_model_s(abc, capsys, monkeypatch):
    monkeypatch.setattr("cml_engine.tools.cli.common.load", lambda path: 1 / 0)
    monkeypatch.delenv("CML_DEBUG", raising=False)
    assert main(["info", str(abc)]) == 1
    said = capsys.readouterr().err
    assert "internal error" in said and "Traceback" not in said


def test_without_a_gpu_auto_falls_back_with_a_notice_and_gpu_refuses(abc, monkeypatch, capsys):
    from cml_engine.errors import DeviceError

    def refuse(_):
        raise DeviceError("no GPU. Install a Vulkan driver")

    device = pytest.importorskip("cml_engine.gpu.device")
    monkeypatch.setattr(device, "_request_device", refuse)
    assert run_abc(abc, backend="auto") == 0
    said = capsys.readouterr().err
    assert "notice: running on the CPU" in said and len(said.strip().splitlines()) <= 2
    assert run_abc(abc, backend="gpu") == 2
    assert "no GPU" in capsys.readouterr().err
    assert main(["validate", str(abc)]) == 2


def test_every_command_that_loads_a_model_takes_shapes():
    names = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    loading = {n for n, sub in names.items() if any(a.dest == "model" for a in sub._actions)}
    assert {"run", "info", "rank", "tune", "validate", "frames", "trace", "simulate"} <= loading
    for name in loading:
        assert "--shape" in names[name]._option_string_actions, name


def test_verbose_says_what_is_loaded(abc, capsys):
    command = ["info", str(abc)]
    assert main(command) == 0
    assert "is loaded" not in capsys.readouterr().err
    assert main([*command, "-v"]) == 0
    assert "cml: info: 'model_abc' is loaded: " in capsys.readouterr().err
    assert main(command) == 0
    assert "is loaded" not in capsys.readouterr().err
