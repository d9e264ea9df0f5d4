"""Tests of ``cml cook``, and of cooked files as the model of every command."""

import json
import re

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import PROFILES, export
from cml_engine.gpu.shaders import compilers
from cml_engine.tools.cli import main
from cml_engine.tools.cli.common import load_model
from cml_engine.tools.cli.main import parser
from tests.fixtures.cooked import changed, small_inputs, small_model

pytestmark = pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the model ``small.nnef``, its cooked file ``small.cml``, and an input."""
    made = tmp_path_factory.mktemp("cook")
    cml.save(small_model(), made / "small.nnef")
    np.save(made / "image.npy", small_inputs()["image"])
    assert main(["cook", str(made / "small.nnef"), "-o", str(made / "small.cml")]) == 0
    return made


def test_cook_reports_file_and_profiles(folder, tmp_path, run_cml):
    file = tmp_path / "net.cml"
    out = run_cml(f"cook {folder}/small.nnef -o {file} --devices portable").out
    assert f"{file}: 0.0" in out and "software" not in out
    assert re.search(r"portable: \d steps", out)


def test_16_bit_arithmetic_adds_a_plan_for_hardware_that_has_it(folder, tmp_path, run_cml):
    file = tmp_path / "net.cml"
    words = f"cook {folder}/small.nnef -o {file} --devices discrete,software-portable"
    listed = re.findall(r"^  (\S+): \d+ steps", run_cml(f"{words} --half-arithmetic").out, re.M)
    assert listed == ["discrete-f16", "discrete", "software-portable"]
    plans = [line for line in run_cml(f"info {file}").out.splitlines() if "storage buffers" in line]
    assert [line.endswith(", shader-f16") for line in plans] == [True, False, False]
    assert "f16" not in run_cml(f"{words} --half").out


def test_check_runs_the_golden_pair(folder, run_cml):
    printed = run_cml(f"cook --check {folder}/small.cml --backend cpu").out
    assert "as it was cooked" in printed


def test_check_refuses_options_of_cooking(folder, tmp_path, refused):
    check = f"cook --check {folder}/small.cml"
    assert "leave --half and --write out" in refused(f"{check} --half -o {tmp_path}/new.cml")
    assert not list(tmp_path.iterdir())


def test_check_fails_for_different_results(folder, tmp_path, run_cml):
    def change(content):
        content[-3] ^= 0x40  # of the last output's last number

    wrong = tmp_path / "wrong.cml"
    wrong.write_bytes(changed((folder / "small.cml").read_bytes(), "golden", change))
    out = run_cml(f"cook {wrong} --check --backend cpu", ends=1).out
    assert "sums: " in out and "DIFFERS" in out and "not as it was cooked" in out


def test_info_shows_it(folder, run_cml):
    out = run_cml(f"info {folder}/small.cml --plan").out
    for words in ("cooked small", "image", "software", "WGSL", "golden", "plan for portable"):
        assert words in out
    found = json.loads(run_cml(f"info {folder}/small.cml --json").out)
    assert [p["profile"] for p in found["profiles"]] == list(PROFILES)


def test_cooked_file_runs_like_its_model(folder, tmp_path, run_cml):
    results = []
    for name in ("small.nnef", "small.cml"):
        out = tmp_path / f"{name}.npy"
        words = f"-i image={folder / 'image.npy'} -o scaled={out} --backend cpu"
        run_cml(f"run {folder}/{name} {words}")
        results.append(np.load(out))
    np.testing.assert_array_equal(*results)
    assert "conv" in run_cml(f"rank {folder}/small.cml --backend cpu --runs 2").out


def test_cooked_files_are_trusted_only_by_option(folder):
    """A cooked file's kernels are trusted only with ``--trusted``.

    The file's own claim has no effect. Every command that loads a model has the option, except
    ``convert``.
    """
    file = folder / "small.cml"
    (commands,) = (action.choices for action in parser()._actions if action.choices)
    for name, command in commands.items():
        options = {option for action in command._actions for option in action.option_strings}
        assert ("--trusted" in options) == ("--weights" in options and name != "convert"), name
    for words, trusted in (((), False), (("--trusted",), True)):
        made = load_model(parser().parse_args(["info", str(file), *words])).cooked_form
        assert {kernel.kernel.trusted for kernel in made.kernels.values()} == {trusted}


@pytest.mark.gpu
def test_frames_and_validate_accept_cooked_files(folder, gpu, run_cml):
    assert "all operators agree" in run_cml(f"validate {folder}/small.cml").out
    run_cml(f"cook --check {folder}/small.cml --backend gpu")


def test_invalid_models_and_options_are_refused(folder, tmp_path, refused):
    model, file = folder / "small.nnef", folder / "small.cml"
    assert "-o net.cml" in refused(f"cook {model}")
    assert "discrete" in refused(f"cook {model} -o {tmp_path}/x.cml --devices pc")
    assert "network of floats" in refused(f"cook {model} -o {tmp_path}/x.cml --integer")
    assert "cooked already" in refused(f"cook {file} -o {tmp_path}/x.cml")
    assert "leave --shape out" in refused(f"info {file} --shape image=1,3,8,8")
    assert "with its plans decided: leave --half out" in refused(f"info {file} --half")
    assert "is cooked: save the model" in refused(f"convert {file} {tmp_path}/x.nnef")
    (tmp_path / "broken.cml").write_bytes(file.read_bytes()[:-9])
    assert "damaged" in refused(f"info {tmp_path}/broken.cml")
    assert "No such file" in refused(f"info {tmp_path}/nothing.cml")
    assert "no cooked file" in refused(f"cook --check {model}/graph.nnef")
    nowhere = tmp_path / "no" / "folder"
    nowhere.parent.write_text("a file")
    assert "folder" in refused(f"cook {model} -o {nowhere}")
    assert not (tmp_path / "x.cml").exists()


def test_cook_warns_about_default_host_limits(folder, tmp_path, monkeypatch, run_cml):
    few_steps = cml.cooked.CookedLimits(steps=2)
    monkeypatch.setattr("cml_engine.cooked.schema.CookedLimits", lambda: few_steps)
    file = tmp_path / "net.cml"
    out = run_cml(f"cook {folder}/small.nnef -o {file} --devices portable").out
    assert "steps: a host accepts 2 of a file" in out


def test_kernels_are_dumped_for_backends_of_other_apis(folder, tmp_path, run_cml, refused):
    """Each kernel's HLSL and Metal is found by its digest, and binds what players bind."""
    made, sources = tmp_path / "small.cml", tmp_path / "kernels"
    words = f"cook {folder}/small.nnef -o {made} --devices portable,discrete"
    run_cml(f"{words} --dump-kernels {sources}")
    cooked = cml.cooked.load_cooked(made, trusted=True).cooked_form
    assert cooked.kernels
    for digest, kernel in cooked.kernels.items():
        (hlsl,) = sources.glob(f"*-{digest[:8]}.d3d.hlsl")
        metal = hlsl.with_name(hlsl.name.replace(".d3d.hlsl", ".metal"))
        tensors = range(kernel.kernel.tensors)
        for text, bound in (
            (hlsl.read_text(), ["(b0)", "(b1)", *(f"(u{i})" for i in tensors)]),
            (metal.read_text(), ["buffer(0)", "buffer(1)", *(f"buffer({i + 2})" for i in tensors)]),
        ):
            assert "no translation" not in text and all(name in text for name in bound)
    (tmp_path / "file").touch()
    assert "cannot write into" in refused(f"{words} --dump-kernels {tmp_path}/file")


@pytest.mark.parametrize(
    "library",
    ["libwgpu_native-release.so", "libwgpu_native-release.dylib", "wgpu_native-release.dll"],
)
def test_an_exported_host_finds_its_library(library, tmp_path, monkeypatch):
    """On macOS and Windows the name of wgpu-native inside its library is not that of its file."""
    (tmp_path / library).touch()
    monkeypatch.setattr(export, "_wgpu_folder", lambda: tmp_path)
    command = export.compile_command()
    assert f'"$WGPU/{library}" -Wl,-rpath,"$WGPU"' in command
    change = f"-change @rpath/libwgpu_native.dylib @rpath/{library} host"
    assert (change in command) == library.endswith(".dylib")
    copy = f'cp "$WGPU/{library}" wgpu_native.dll'
    assert (copy in command) == library.endswith(".dll")
