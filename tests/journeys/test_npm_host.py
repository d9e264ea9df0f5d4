"""Tests of the npm package: its content and types, a host in Deno, and a page in Chromium."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from players.build import BuildError
from release import build_npm
from tests.players.deno import ROOT, WEB, find_deno, run_deno

HOSTS = Path(__file__).with_name("hosts")


@pytest.fixture(scope="module")
def package(dist, tmp_path_factory):
    """The folder of the unpacked npm package."""
    folder = tmp_path_factory.mktemp("npm")
    files = list(dist.glob("*.tgz"))
    if not files:
        try:
            build_npm(ROOT, folder)
        except BuildError as error:
            pytest.skip(str(error))
        files = list(folder.glob("*.tgz"))
    (file,) = files
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


@pytest.fixture
def project(package, tmp_path):
    """The folder of a Deno project that depends on the package, with a typed host ``host.ts``."""
    (tmp_path / "package.json").write_text('{"dependencies": {"cml-engine": "*"}}')
    (tmp_path / "deno.json").write_text('{"nodeModulesDir": "manual"}')
    shutil.copytree(package, tmp_path / "node_modules/cml-engine")
    shutil.copy(HOSTS / "host.ts", tmp_path)
    return tmp_path


def test_npm_package_has_only_host_files(package):
    description = json.loads((package / "package.json").read_text())
    files = {path.name for path in package.iterdir()}
    assert files == {
        "LICENSE", "README.md", "package.json", "cml.js", "core.js", "cml.d.ts", "picture.js",
        "picture.d.ts",
    }  # fmt: skip
    targets = [path for entry in description["exports"].values() for path in entry.values()]
    assert {target.removeprefix("./") for target in targets} < files
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", description["version"])
    assert description["version"] != json.loads((WEB / "package.json").read_text())["version"]


def test_npm_package_is_small(package):
    """A page gets the player in 42 KB, as servers compress it."""
    sizes = [len(gzip.compress((package / name).read_bytes(), 9)) for name in ("cml.js", "core.js")]
    assert sum(sizes) <= 42_000, sizes


def test_everything_that_is_declared_is_documented(package):
    declaration = re.compile(r"export |  (?!private )\w.*[;(]$")
    for file in package.glob("*.d.ts"):
        lines = file.read_text().splitlines()
        bare = [
            line
            for before, line in zip(lines, lines[1:], strict=False)
            if declaration.match(line) and not before.endswith("*/")
        ]
        assert bare == [] and len(lines) > 50


def test_the_declarations_agree_with_the_code(tmp_path):
    config = tmp_path / "deno.json"
    config.write_text('{"compilerOptions": {"strictFunctionTypes": false}}')
    run_deno("check", "--config", config, HOSTS / "agreement.ts")
    text = (WEB / "cml.d.ts").read_text()
    (tmp_path / "cml.d.ts").write_text(text.replace("cancel(): void", "cancel(): number"))
    text = (HOSTS / "agreement.ts").read_text().replace("../../..", str(ROOT))
    (tmp_path / "wrong.ts").write_text(text.replace(f"{WEB}/cml.d.ts", "./cml.d.ts"))
    done = run_deno("check", "--config", config, tmp_path / "wrong.ts", check=False)
    assert done.returncode == 1 and "'void' is not assignable to type 'number'" in done.stderr


def test_a_host_is_checked_with_full_types(project):
    run_deno("check", "--config", project / "deno.json", project / "host.ts")
    wrong = (project / "host.ts").read_text().replace("budgetMs: 4", 'budgetMs: "4"')
    (project / "host.ts").write_text(wrong)
    words = ("check", "--config", project / "deno.json", project / "host.ts")
    done = run_deno(*words, check=False)
    assert done.returncode == 1 and "'string' is not assignable to type 'number'" in done.stderr


@pytest.mark.gpu
def test_a_host_runs_in_deno(project, cooked):
    words = ("-A", "--config", project / "deno.json", project / "host.ts", cooked)
    said = run_deno("run", *words).stdout.splitlines()
    assert re.fullmatch(r"loading 0/(\d+)( \d+/\1)* \1/\1", said[0])
    assert said[1] == "done 1,3,32,32 4"
    assert said[2].startswith("InputError network 'twice'")


@pytest.mark.gpu
def test_a_page_runs_in_chromium(package, cooked, tmp_path):
    browser = shutil.which("chromium")
    if browser is None or find_deno() is None:
        pytest.skip("chromium or deno is not installed")
    shutil.copytree(package, tmp_path / "package")
    shutil.copy(HOSTS / "page.html", tmp_path / "index.html")
    shutil.copy(cooked, tmp_path / "net.cml")
    look = ROOT / "tests/players/web/look.js"
    actual = json.loads(run_deno("run", "-A", "--no-check", look, tmp_path, browser).stdout)
    assert actual["error"] == "" and actual["elements"] == 3072 and actual["first"] == 4, actual
    assert actual["loaded"] == 1


def test_the_page_names_the_flags_that_chromium_is_tested_with(environment, tmp_path):
    page = environment.run("cml", "docs", "ship_it", cwd=tmp_path).stdout
    (command,) = re.findall(r"```\n(chromium .*?)```", page, re.DOTALL)
    text = (ROOT / "tests/players/web/browser.js").read_text()
    (tested,) = re.findall(r"const FLAGS = \[(.*?)\];", text, re.DOTALL)
    of_the_test = {"--disable-", "--no-first-run", "--hide-scrollbars", "--remote-debugging-port"}
    flags = {
        flag for flag in re.findall(r'"(.*?)"', tested) if not flag.startswith(tuple(of_the_test))
    }
    assert set(re.findall(r"--\S+", command)) == flags
