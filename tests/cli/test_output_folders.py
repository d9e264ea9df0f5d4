"""Tests that commands which fill a folder keep files of others and follow no link inside it."""

import json

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.plan import KernelCode
from cml_engine.gpu.shaders.dump import dump_kernel
from cml_engine.io.atomic_write import COMPLETE
from cml_engine.io.output_folder import OutputFolder, file_below, file_stem, is_device, name_problem
from tests.fixtures.models import write_model
from tests.players.deno import need_core

TEXT = """\
version 1.0;
graph net(image) -> (y)
{
    image = external<scalar>(shape = [1, 4, 4, 4]);
    weights = variable<scalar>(shape = [4, 4, 1, 1], label = 'inner/weights');
    made = conv(image, weights, 0.5);
    y = relu(made);
}
"""
#: by command: its arguments, one of its files, and a file that an earlier run would have listed
COMMANDS = {
    "report": ("report {model} -o {folder}", "plan.json", "report.json"),
    "dump": ("run {model} --backend cpu -i image={image} --dump-tensors {folder}", "index.json",
             "index.json"),
    "convert": ("convert {model} {folder}", "inner/weights.dat", None),
    "quantize": ("quantize {model} {folder} -i image={samples}", "graph.nnef", None),
    "export": ("export {model} {folder} --to web", "page.js", "model.json"),
}  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    graph = cml.load(write_model(folder / "made.nnef", TEXT), random_weights=0)
    cml.save(graph, folder / "net.nnef")
    np.save(folder / "image.npy", np.ones((1, 4, 4, 4), np.float32))
    np.save(folder / "samples.npy", np.random.default_rng(0).random((8, 4, 4, 4), np.float32))
    return {name: folder / f"{name}.npy" for name in ("image", "samples")} | {
        "model": folder / "net.nnef"
    }


def line(command, given, folder):
    if command == "export":
        need_core()
    return COMMANDS[command][0].format(folder=folder, **given)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_foreign_files_are_kept(command, given, tmp_path, run_cml, refused):
    """A filled folder is refused.

    With ``--overwrite`` only files of an earlier run are replaced or deleted. A manifest of
    another program, or one that lists paths outside the folder, deletes nothing.
    """
    folder = tmp_path / "out"
    words, (_, made, manifest) = line(command, given, folder), COMMANDS[command]
    foreign = {"passes/notes.md": b"n", "kernels/my.hlsl": b"k", "data.json": b"{}", "plan.md": b"",
               "report.json": b'{"files": ["data.json"], "format": "cml report 1"}'}  # fmt: skip
    for name, data in foreign.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    assert "is not empty: name another folder, or allow to overwrite" in refused(words)
    assert files(folder) == foreign
    run_cml(f"{words} --overwrite")
    assert (folder / made).is_file()
    kept = foreign if manifest != "report.json" else {**foreign, manifest: None}
    assert {n for n, data in kept.items() if data in (None, files(folder).get(n))} == set(foreign)
    if manifest is None:
        return
    listed = json.loads((folder / manifest).read_text())
    (folder / "old.txt").write_text("of an earlier run")
    outside = tmp_path / "outside.txt"
    outside.write_text("another's")
    listed["cml_files"] += ["old.txt", "../outside.txt", str(outside), "passes", "", "\0", 7]
    (folder / manifest).write_text(json.dumps(listed))
    run_cml(f"{words} --overwrite")
    assert not (folder / "old.txt").exists()
    assert outside.read_text() == "another's"
    assert set(foreign) <= set(files(folder))


@pytest.mark.parametrize("command", COMMANDS)
def test_links_are_not_followed(command, given, tmp_path, run_cml, refused):
    folder, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    run_cml(line(command, given, folder))
    made = folder / COMMANDS[command][1]
    target = outside / made.name
    target.write_bytes(b"another's")
    made.unlink()
    made.symlink_to(target)
    for name in ("passes", "kernels", "inner"):
        if (folder / name).is_dir():
            (folder / name).rename(outside / name)
        (folder / name).symlink_to(outside / name)
    before = files(outside)
    assert "is a link, or lies behind" in refused(f"{line(command, given, folder)} --overwrite")
    assert files(outside) == before


def test_link_in_place_of_a_finished_model_is_refused(given, tmp_path, run_cml, refused):
    """A link in the place of a model that a killed process finished is refused, not followed."""
    folder, outside = tmp_path / "out", tmp_path / "outside"
    run_cml(line("convert", given, folder))
    run_cml(line("convert", given, outside))
    (folder / COMPLETE).symlink_to(outside)
    before = files(outside)
    assert "is a link, or lies behind" in refused(f"{line('convert', given, folder)} --overwrite")
    assert files(outside) == before


def test_dump_kernels_does_not_follow_links(given, tmp_path, gpu, run_cml, refused):
    folder, outside = tmp_path / "out", tmp_path / "outside"
    words = f"rank {given['model']} --runs 1 --dump-kernels {folder}"
    run_cml(words)
    made = next(folder.glob("*.hlsl"))
    outside.write_bytes(b"another's")
    made.unlink()
    made.symlink_to(outside)
    assert "is a link, or lies behind one" in refused(words)
    assert outside.read_bytes() == b"another's"


@pytest.mark.parametrize(
    "label", ["", " ", "\0", "../../evil", "/evil", "a" * 4096, "conv.hlsl X=1"]
)
def test_cooked_kernel_label_is_not_used_as_a_path(label, tmp_path):
    key = KernelCode(label, 1, 16, False, "0123456789", lambda: "fn main() {}")
    made = dump_kernel(key, tmp_path / "dump")
    assert made.parent == tmp_path / "dump" and made.read_text() == "fn main() {}"
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]


@pytest.mark.parametrize("name", ["con", "AUX", "nul.json", "com1", "lpt9.a.b"])
def test_a_stem_is_no_device_of_windows(name):
    assert is_device(name) and is_device(f"a/{name}") and not is_device(f"{name.split('.')[0]}2")
    assert not is_device(file_stem(name)) and file_stem(name).startswith("_")


def test_a_cooked_file_does_not_replace_its_model(given, tmp_path, refused):
    model = tmp_path / "net.tgz"
    cml.save(cml.load(given["model"]), model)
    before = model.read_bytes()
    assert "is the model's own: name another file" in refused(f"cook {model} -o {model}")
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../evil", "a/../../evil", "/etc/evil", "a\0b", "a\nb", "C:evil",
             "a\\b", "\ud800", "a" * 1001]
)  # fmt: skip
def test_names_outside_of_the_folder_are_refused(name, tmp_path):
    assert name_problem(name)
    with pytest.raises(cml.InputError, match="wanted a path inside of"):
        file_below(tmp_path, name)
    with pytest.raises(cml.InputError):
        OutputFolder(tmp_path / "out", "made.json").write(name, b"")
    assert not list(tmp_path.parent.glob("evil*"))
    assert not name_problem(file_stem(name))
