"""Tests the way from a PyTorch export to frames, by the commands of the installed wheel."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tests.fixtures.pages import examples

#: pixels of a side of the pictures
SIDE = 32
SHAPE = f"--shape=image=1,3,{SIDE},{SIDE}"


@pytest.fixture(scope="module")
def folder(compiler_environment, tmp_path_factory):
    """A folder with the files of ``cml example``, and samples and a small picture cut from them."""
    made = tmp_path_factory.mktemp("onnx")
    output = compiler_environment.run("cml", "example", cwd=made).stdout
    assert output.split() == ["bricks.png", "enlarge.onnx", "enlarge.tgz"]
    picture = planes(made / "bricks.png")
    places = [(y, x) for y in (0, 32, 64) for x in (0, 32, 64)]
    crops = {f"a{y}_{x}": picture[:, :, y : y + SIDE, x : x + SIDE] for y, x in places}
    np.savez(made / "samples.npz", **crops)
    Image.open(made / "bricks.png").crop((0, 0, SIDE, SIDE)).save(made / "small.png")
    return made


def planes(file):
    with Image.open(file) as picture:
        return np.asarray(picture, np.float32).transpose(2, 0, 1)[None] / 255


@pytest.mark.gpu
def test_the_readme_runs_as_printed(compiler_environment, folder):
    (printed,) = examples("README.md")
    (folder / "host.py").write_text(printed)
    compiler_environment.run("python", "host.py", cwd=folder)
    assert planes(folder / "enlarged.png").shape == (1, 3, 256, 256)


@pytest.mark.gpu
def test_info_says_how_many_frames_a_run_takes(compiler_environment, folder):
    command = ("cml", "info", "enlarge.onnx", SHAPE, "--budget-ms=2")
    output = compiler_environment.run(*command, cwd=folder).stdout
    assert "conv 6, relu 5" in output and "frames at 2 ms" in output


@pytest.mark.gpu
def test_rank_names_the_nodes_of_the_file(compiler_environment, folder):
    command = ("cml", "rank", "enlarge.onnx", SHAPE, "--runs=2")
    output = compiler_environment.run(*command, cwd=folder).stdout
    assert "Operation ranking:" in output and "Conv '/details/details.2/Conv'" in output


@pytest.mark.gpu
def test_the_quantized_network_agrees_with_the_floats(compiler_environment, folder):
    command = ("cml", "quantize", "enlarge.onnx", "whole.nnef", SHAPE, "-i", "image=samples.npz")
    assert "within 1 %" in compiler_environment.run(*command, cwd=folder).stdout
    for model in ("enlarge.onnx", "whole.nnef"):
        files = ("-i", "image=small.png", "-o", f"enlarged={model}.npy")
        compiler_environment.run("cml", "run", model, *files, cwd=folder)
    floats, whole = (np.load(folder / f"{m}.npy") for m in ("enlarge.onnx", "whole.nnef"))
    assert np.sqrt(np.mean((floats - whole) ** 2)) < 0.01


@pytest.mark.gpu
def test_the_cooked_network_plays_in_frames_without_the_compiler(
    compiler_environment, environment, folder
):
    cook = ("cml", "cook", "enlarge.onnx", SHAPE, "--devices=portable", "-o", "enlarge.cml")
    compiler_environment.run(*cook, cwd=folder)
    command = ("cml", "frames", "enlarge.cml", "--trusted", "--budget-ms=4", "--frames=20")
    output = environment.run(*command, "--json", cwd=folder).stdout
    assert json.loads(output)["identical"]
    files = ("-i", "image=small.png", "-o", "enlarged=cooked.png")
    environment.run("cml", "run", "enlarge.cml", "--trusted", *files, cwd=folder)
    enlarged, small = planes(folder / "cooked.png"), planes(folder / "small.png")
    assert enlarged.shape == (1, 3, 2 * SIDE, 2 * SIDE)
    means = enlarged.reshape(1, 3, SIDE, 2, SIDE, 2).mean(axis=(3, 5))
    assert np.abs(means - small).mean() < 0.02
