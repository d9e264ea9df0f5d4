"""Tests of commands that fail: every type of fault, and every number out of range."""

import argparse
import errno
import io
import json
import os
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import InputError, InternalError
from cml_engine.errors import arguments as ranges
from cml_engine.tools import cli
from cml_engine.tools.cli.main import parser
from cml_engine.tools.cli.terminal import exit_code
from tests.fixtures.models import write_model
from tests.fixtures.pages import ROOT

SMALL = """version 1.0;
graph small(x) -> (y)
{
    x = external<scalar>(shape = [1, 3, 4, 4]);
    y = relu(x);
}
"""
#: the function in which a fault is planted, by command; for most it loads the model
PLACES = {
    "devices": "cml_engine.gpu.device.device_rows",
    "docs": "cml_engine.tools.cli.commands.installation.bundled_folder",
    "example": "cml_engine.tools.example_programs.bundled_folder",
    "ops": "cml_engine.tools.report.operator_support.operator_table",
    "selftest": "cml_engine.gpu.gpu.Gpu",
}
# a module that is first imported while a fault is planted would keep the fault
for _name in ("tools.selftest.frames", "tools.selftest.run", "tools.selftest.transfers",
              "runtime.live.reloader", "cooked.export", "tools.example_programs"):  # fmt: skip
    import_module(f"cml_engine.{_name}")
REPORT = "please report it"
FAULTS = [
    (InputError("the input is too long"), 2, "error: the input is too long"),
    (cml.ModelError("no line 7"), 2, "error: no line 7"),
    (cml.DeviceError("no GPU"), 2, "error: no GPU"),
    (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 2, "'/x/y': No space left on"),
    (PermissionError(errno.EACCES, "Permission denied", "/x/y"), 2, "'/x/y': Permission denied"),
    (IsADirectoryError(errno.EISDIR, "Is a directory", "/x/y"), 2, "'/x/y': Is a directory"),
    (OSError("no such device"), 2, "error: no such device"),
    (MemoryError("40 GiB"), 2, "not enough memory (40 GiB): close other programs"),
    (MemoryError(), 2, "not enough memory: close other programs"),
    (InternalError("the plan overlaps"), 1, REPORT),
    (ZeroDivisionError("division by zero"), 1, REPORT),
    (RecursionError("too deep"), 1, REPORT),
    (KeyboardInterrupt(), 130, "interrupted"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 0, ""),
    (OSError(errno.EINVAL, "Invalid argument"), 2, "cannot write: Invalid argument"),
]


def commands():
    """Returns the argument parser of every command, by the command's name."""
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return action.choices


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "small", SMALL)


def arguments(command, model):
    """Returns the shortest argument list that the command accepts for the model."""
    more = {
        "run": "MODEL -i x=x.npy", "ops": "", "docs": "", "devices": "", "example": "",
        "selftest": "",
        "convert": "x.param out", "map": "MODEL --inputs x.npy -o out.zarr",
        "cook": "MODEL -o x.cml", "export": "MODEL out.onnx", "report": "MODEL -o report",
        "quantize": "MODEL out -i x=x.npy",
    }.get(command, "MODEL")  # fmt: skip
    return [command, *(str(model) if word == "MODEL" else word for word in more.split())]


def end(capsys, argv):
    """Runs the command; returns its exit code, standard output and standard error."""
    try:
        code = cli.main(argv)
    except SystemExit as left:
        code = left.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize("command", commands())
def test_every_fault_gives_a_message_at_every_command(
    command, model, capsys, monkeypatch, tmp_path
):
    monkeypatch.delenv("CML_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    for fault, code, says in FAULTS:

        def fail(*_, fault=fault, **__):
            raise fault

        monkeypatch.setattr(PLACES.get(command, "cml_engine.formats.loading.load"), fail)
        found, out, err = end(capsys, arguments(command, model))
        assert (found, out) == (code, ""), fault
        assert says in err and "Traceback" not in err and bool(err) == bool(says)
        assert (REPORT in err) == (code == 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small"]


def test_a_reader_that_has_exited_is_no_error_on_windows(monkeypatch, capsys):
    def fail():
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("sys.platform", "win32")
    assert exit_code(fail) == 0
    assert capsys.readouterr() == ("", "")


def test_cml_debug_raises_internal_errors(model, monkeypatch):
    monkeypatch.setenv("CML_DEBUG", "1")
    monkeypatch.setattr("cml_engine.formats.loading.load", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["info", str(model)])


HOSTILE = ["-1", "0", "nan", "inf", "-inf", "1e999", "1e300", "9" * 30, "9" * 5000, "", "x", "0x10",
           "1,5", "٣x"]  # fmt: skip


def test_every_number_of_every_command_is_checked(model, capsys):
    options = [
        (name, action.option_strings[-1], action.type)
        for name, command in commands().items()
        for action in command._actions
        if isinstance(action.type, ranges.NumberRange)
    ]
    assert len(options) >= 24
    for command, option, numbers in options:
        is_seed = option in ("--seed", "--random-weights", "--random-inputs", "--overlap")
        for text in HOSTILE:
            if not (is_seed and text == "0"):
                with pytest.raises(InputError, match="^wanted .* to ") as refused:
                    numbers.parse(text)
                assert len(refused.value.message) < 120, (option, text)
        code, out, err = end(capsys, [*arguments(command, model), f"{option}=nan"])
        assert (code, out) == (2, ""), (command, option)
        assert err.startswith(f"cml: error: argument {option}: wanted "), err
        assert len(err.splitlines()) == 1 and f"see 'cml {command} --help'" in err


@pytest.mark.parametrize("shape", ["1,3,nan,4", "0", "-1,3", "1,,3", "x", "1.5", "9" * 30])
def test_invalid_shapes_are_refused(shape, capsys):
    code, _, err = end(capsys, ["convert", "x.param", "out", f"--shape={shape}"])
    assert code == 2
    assert f"--shape '{shape}': wanted a whole number of 1 to 2,147,483,647" in err


def test_ranges_parse_and_check_alike():
    assert ranges.TIMES.parse("7") == 7 and ranges.TIMES.check(np.int64(7)) == 7
    assert ranges.SPEED.parse("1e-2") == 0.01 and ranges.SPEED.check(np.float32(2)) == 2.0
    for value in (0, 2.5, "7", None, float("nan"), [7]):
        with pytest.raises(InputError, match=r"^runs: wanted a whole number of 1 to 1,000,000, "):
            ranges.TIMES.check(value, "runs")
    for value in (0, "7", None, float("nan"), float("inf"), 10**400, [7]):
        with pytest.raises(InputError, match="^budget: wanted milliseconds of 0.001 to 60,000"):
            ranges.BUDGET_MS.check(value, "budget")


@pytest.mark.parametrize(
    ("option", "hint"), [("--bakend", " (did you mean '--backend'?)"), ("--qqq", "")]
)
def test_a_similar_option_is_suggested(option, hint, capsys):
    code, _, err = end(capsys, ["run", "MODEL", option, "cpu"])
    assert code == 2 and f"unrecognized arguments: {option} cpu{hint}; see 'cml run --help'" in err


@pytest.mark.parametrize("line", ["MODEL --inputs FILES", "--inp FILES MODEL"])
@pytest.mark.parametrize("count", [2, 3, 1000])
def test_a_pattern_that_the_shell_expanded_is_explained(line, count, capsys):
    files = " ".join(f"tiles/{i}.npy" for i in range(count))
    code, _, err = end(capsys, f"map -o out.zarr {line}".replace("FILES", files).split())
    assert code == 2 and "the shell expands a pattern without quotes" in err
    assert "Write --inputs '*.npy', in quotes" in err and len(err) < 400


def test_a_word_after_a_quoted_pattern_is_just_unknown(capsys):
    words = ["map", "MODEL", "--inputs", "tiles/*.npy", "more", "-o", "out.zarr"]
    code, _, err = end(capsys, words)
    assert code == 2 and "unrecognized arguments: more" in err and "quotes" not in err


#: command lines with an option that would have no effect, by what the message says of it
WITHOUT_EFFECT = {
    "info MODEL --frame-ms 8": "--frame-ms needs --budget-ms MS",
    "info MODEL --adapter x": "--adapter needs --budget-ms MS or --decisions FILE",
    "info MODEL --gas --arena-limit-mib 1": "leave --arena-limit-mib out",
    "info MODEL --integer --frame-ms 8": "leave --frame-ms out",
    "report MODEL -o report --runs 3": "--runs needs --run: give that too",
    "validate MODEL --passes --adapter x": "leave --adapter out",
    "cook MODEL -o x.cml --backend cpu": "--backend needs --check: give that too",
    "cook MODEL -o x.cml --adapter x": "--adapter needs --check: give that too",
    "quantize MODEL out --weights 8 --weight-bits 4": "leave --weight-bits out",
    "map MODEL --inputs x.npy -o out.zarr --backend cpu --adapter x": "--adapter needs a GPU",
    "run MODEL -i x=x.npy --backend cpu --arena-limit-mib 1": "--arena-limit-mib needs a GPU",
    "ops conv --kernels": "leave --kernels out",
    "run MODEL -i x=x.npy --random-inputs": "every input has a file: leave --random-inputs out",
    "selftest --only relu --model MODEL": "leave --model out",
    "example plain_loop --list": "leave 'plain_loop' or --list out",
    "example --list --overwrite": "leave --overwrite out",
}


@pytest.mark.parametrize("line", WITHOUT_EFFECT)
def test_options_without_effect_are_refused(line, model, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((1, 3, 4, 4), np.float32))
    assert WITHOUT_EFFECT[line] in refused(line.replace("MODEL", str(model)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small", "x.npy"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("convert MODEL out.cml", "'out.cml': cooked files are written by cml cook"),
        ("example network x.npy", "'x.npy' is a file: name a folder"),
    ],
)
def test_places_of_another_kind_are_refused(line, said, model, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros(1))
    assert said in refused(line.replace("MODEL", str(model)))


@pytest.mark.parametrize(
    "command",
    [name for name, made in commands().items() if "--trusted" in made._option_string_actions],
)
def test_only_cooked_files_are_trusted(command, model, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((1, 3, 4, 4), np.float32))
    message = refused(*arguments(command, model), "--trusted")
    assert "is not cooked, so its kernels are the engine's own: leave --trusted out" in message


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("convert MODEL -o out", "cml convert takes DST without -o, after the model"),
        ("quantize MODEL -o out", "cml quantize takes OUT without -o, after the model"),
        ("export MODEL --write out.onnx", "cml export takes DST without -o, after the model"),
        ("cook MODEL net.cml", "did you mean '-o FILE.cml'?"),
        ("run MODEL out.png", "did you mean '-o NAME=FILE'?"),
    ],
)
def test_a_destination_in_the_wrong_place_is_put_right(line, hint, model, refused):
    assert hint in refused(line.replace("MODEL", str(model)))


def test_unknown_arguments_are_refused_in_one_line(capsys):
    for argv in (["frobnicate"], [], ["info"], ["info", "a", "b"], ["run", "m", "--backend", "x"]):
        code, out, err = end(capsys, argv)
        assert (code, out) == (2, "") and err.startswith("cml: error: "), argv
        assert len(err.splitlines()) == 1 and "--help" in err
    assert "see 'cml info --help'" in end(capsys, ["info", "a", "--to", "web"])[2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_named(capsys, monkeypatch):
    with Path("/dev/full").open("w") as full:  # closing it would raise the error again
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "argv", ["cml", "ops"])
        with pytest.raises(SystemExit, match="2"):
            runpy.run_module("cml_engine", run_name="__main__")
    assert capsys.readouterr().err == "cml: error: cannot write: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="needs a pipe of POSIX")
@pytest.mark.parametrize("word", ["ops", "--help"])
def test_a_closed_pipe_ends_without_an_error(word, capsys, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert cli.main([word]) == 0
    assert capsys.readouterr().err == ""


def test_output_that_cannot_be_encoded_is_escaped(model, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 4, 4), np.float32))
    files = ["-i", f"x={tmp_path}/x.npy", "-o", f"y={tmp_path}/größe.npy", "--backend", "cpu"]
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert cli.main(["run", str(model), *files]) == 0
    assert b"gr\\xf6\\xdfe.npy" in stdout.buffer.getvalue() and (tmp_path / "größe.npy").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="paths have no bytes of their own")
@pytest.mark.parametrize("name", ["größe.onnx", "日本.onnx"])
def test_a_path_keeps_its_bytes_in_a_locale_without_utf8(name, tmp_path):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (["info", name], ["example", "network", name]):
        command = [sys.executable, "-m", "cml_engine", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT), **plain}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
        assert name.encode() in done.stdout + done.stderr


def test_a_missing_plot_library_is_named_before_the_simulation(model, monkeypatch, refused):
    monkeypatch.setattr("cml_engine.formats.loading.load", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "--plot needs matplotlib" in refused(f"simulate {model} --plot x.png")


def test_the_shortest_frames_end_soon(model, run_cml):
    """``simulate`` ends also if jobs are submitted twenty times as fast as frames can run them."""
    printed = run_cml(f"simulate {model} --frame-ms 0.1 --budget-ms 0.1").out
    assert printed.count("operators per frame") == 1


NOTHING = """version 1.0;
graph nothing(x) -> (y)
{
    x = external<scalar>(shape = [1, 0, 4]);
    y = relu(x);
}
"""


@pytest.mark.gpu
def test_networks_of_empty_tensors(tmp_path, gpu, run_cml, refused):
    """Commands succeed for a network of empty tensors; only ``frames`` refuses it."""
    model = str(write_model(tmp_path / "nothing", NOTHING))
    assert json.loads(run_cml(f"rank {model} --json").out)["total_ms"] == 0
    for command, options in (
        ("simulate", ""), ("trace", f"-o {tmp_path}/t.json"), ("info", "--plan"), ("validate", ""),
        ("tune", "--dry-run"), ("info", "--budget-ms 4"),
    ):  # fmt: skip
        run_cml(f"{command} {model} {options}")
    assert "'nothing' has nothing to run on the GPU" in refused(f"frames {model}")


def test_info_as_json_has_a_forecast_only_on_request(model, run_cml):
    info = json.loads(run_cml(f"info {model} --json --budget-ms 4").out)
    assert info["forecast"]["frames"] >= 1
    assert "forecast" not in json.loads(run_cml(f"info {model} --json").out)


def test_numbers_of_the_demo_are_checked(capsys):
    from cml_engine.demo_game.command import main, parser

    typed = [a for a in parser()._actions if isinstance(a.type, ranges.NumberRange)]
    assert len(typed) == 5
    for action in typed:
        for text in ("nan", "inf", "-1", "x", "9" * 30):
            with pytest.raises(SystemExit):
                main([f"{action.option_strings[-1]}={text}"])
            assert f"argument {action.option_strings[-1]}: wanted " in capsys.readouterr().err
