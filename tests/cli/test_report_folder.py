"""Tests of ``cml report``: the folder with its page and data, and errors for unsuitable folders."""

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.planning.plan_graph import PLAN_STAGES
from cml_engine.tools.cli import main
from cml_engine.tools.report.report_folder import SECTIONS
from tests.fixtures.models import write_model
from tests.fixtures.pages import ROOT
from tests.players.deno import find_deno, run_deno

MODEL = """\
version 1.0;
graph tiny(image) -> (result)
{
    image = external<scalar>(shape = [1, 4, 8, 8]);
    filter = variable<scalar>(shape = [8, 4, 3, 3], label = 'filter');
    made = conv(image, filter, 0.5, padding = [(1, 1), (1, 1)]);
    result = relu(made);
}
"""


class Page(HTMLParser):
    """An HTML parser that collects a page's ids and addresses, and asserts that its tags nest.

    ``open`` are the tags that are not closed.
    """

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.keys = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.addresses += [v for k, v in given.items() if k in ("href", "src")]
        self.keys |= {given["id"]} if "id" in given else set()
        if tag not in ("meta", "link", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "tiny.nnef", MODEL)


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """The path of a model folder that contains its weights."""
    folder = tmp_path_factory.mktemp("weighted")
    graph = cml.load(write_model(folder / "tiny.nnef", MODEL), random_weights=0)
    cml.save(graph, folder / "net.nnef")
    return folder / "net.nnef"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a report that several tests read."""
    folder = tmp_path_factory.mktemp("made")
    assert report(write_model(folder / "tiny.nnef", MODEL), folder / "report") == 0
    return folder / "report"


def report(model, folder, *more):
    return main(["report", str(model), "--random-weights", "-o", str(folder), *more])


def test_report_is_complete_and_offline(made):
    text = (made / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    sections = {"summary", "graph", "operators", "memory", "decisions", "passes", "planning"}
    assert sections <= page.keys
    for address in page.addresses:
        assert address == "data:," or address.startswith("#") or (made / address).is_file()
    assert "default-src 'none'" in text and "not finished" not in text
    state = json.loads((made / "report.json").read_text(encoding="utf-8"))
    assert state["missing"] == []
    assert all((made / name).is_file() for names in state["sections"].values() for name in names)


def test_a_fused_operator_opens_to_its_lines(made):
    (node,) = json.loads((made / "graph.json").read_text())["nodes"]
    assert node["op"] == "conv+relu"
    assert [line["title"] for line in node["made_of"]] == ["conv 'made'", "relu 'result'"]
    lines = [re.search(r"graph\.nnef:(\d+)", line["place"])[1] for line in node["made_of"]]
    assert lines == ["6", "7"]


def test_the_arena_has_every_tensor_within_its_peak(made):
    arena = json.loads((made / "arena.json").read_text())
    assert {t["tensor"] for t in arena["tensors"]} == {"image", "result"}
    assert max(t["offset"] + t["nbytes"] for t in arena["tensors"]) <= arena["peak"]
    assert arena["bound"] <= arena["peak"]


def test_planning_has_every_stage_with_what_it_changed(made):
    stages = json.loads((made / "planning.json").read_text())
    assert [stage["stage"] for stage in stages] == [name for name, _, _ in PLAN_STAGES]
    changed = {stage["stage"]: stage["changed"] for stage in stages}
    assert changed["dispatches"] == {"dispatches": 1} and changed["steps"] == {"steps": 1}
    arena = json.loads((made / "arena.json").read_text())
    assert changed["arena"] == {"arena bytes": arena["peak"]}
    assert changed["views"] == changed["bands"] == {}


def test_the_listing_has_every_tensor_of_every_step(made):
    rows = json.loads((made / "listing.json").read_text())
    assert [row["slot"] for row in rows] == ["T0", "T1", "T2", "T3"]
    assert {row["operator"] for row in rows} == {"conv 'result'+relu"}
    image, result = rows[0], rows[-1]
    assert (image["tensor"], image["written"], image["type"]) == ("image", False, "scalar[1,4,8,8]")
    assert (result["tensor"], result["written"], result["layout"]) == ("result", True, "plain")
    places = {t["tensor"]: t for t in json.loads((made / "arena.json").read_text())["tensors"]}
    for row in (image, result):
        place = places[row["tensor"]]
        assert (row["space"], row["offset"], row["nbytes"]) == (
            "arena", place["offset"], place["nbytes"]
        )  # fmt: skip
    assert rows[1]["space"] == "weights" and rows[1]["type"].startswith("float32[")


def test_the_log_says_what_was_done(made):
    log = (made / "log.txt").read_text()
    assert "is loaded: 2 operators" in log and "fuse, 2 to 1 nodes" in log
    assert "is planned: 1 steps" in log


#: what a reader does in the browser: sorts the listing by its offsets, and opens an operator
READ = """<script>
const section = document.getElementById("listing"), column = () =>
  [...section.querySelectorAll("tbody tr")].map((row) => Number(row.cells[9].dataset.value));
const title = [...section.querySelectorAll("th")].find((cell) => cell.textContent === "offset");
title.click();
const rising = column();
title.click();
document.querySelector("#graph summary").click();
globalThis.page = {
  error: "", runs: 1, rising, falling: column(),
  open: document.querySelector("#graph details").open,
  sections: [...document.querySelectorAll("section")].map((one) => one.id),
  dead: [...document.querySelectorAll("nav a")].map((a) => a.hash)
    .filter((hash) => !document.querySelector(hash)).length,
};
</script></body>"""


def test_the_page_works_in_a_browser(made, tmp_path):
    browser = shutil.which("chromium")
    if browser is None or find_deno() is None:
        pytest.skip("chromium or deno is not installed")
    site = tmp_path / "site"
    shutil.copytree(made, site)
    index = site / "index.html"
    index.write_text(index.read_text(encoding="utf-8").replace("</body>", READ), encoding="utf-8")
    look, picture = ROOT / "tests/players/web/look.js", tmp_path / "page.png"
    words = ("60", "true", picture, "1480x720,390x844")
    found = json.loads(run_deno("run", "-A", "--no-check", look, site, browser, *words).stdout)
    assert found["log"] == [] and found["dead"] == 0 and found["open"], found
    assert set(found["sections"]) == {*SECTIONS, "frames", "kernels", "log"}
    assert found["rising"] == sorted(found["rising"]) == found["falling"][::-1]
    assert "conv 'result'+relu" in found["text"] and "EPI_" not in found["text"]
    for layout in found["layouts"]:  # wide tables scroll by themselves
        assert layout["scrollWidth"] <= layout["clientWidth"], layout
    assert picture.stat().st_size > 10_000


def test_text_of_a_model_is_escaped_on_the_page(tmp_path):
    hostile = MODEL.replace("version 1.0;", "version 1.0; # <script>alert(1)</script>").replace(
        "relu(made);", "relu(made); # <img src='http://x'>"
    )
    report(write_model(tmp_path / "m.nnef", hostile), tmp_path / "report")
    text = (tmp_path / "report/index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text and "<img" not in text


def test_interrupted_report_lists_missing_parts(model, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(SECTIONS, "memory", interrupted)
    assert report(model, tmp_path / "report") == 130
    text = (tmp_path / "report/index.html").read_text(encoding="utf-8")
    assert "not finished. Still to come: Memory, Decisions" in text
    assert (tmp_path / "report/plan.json").is_file()


def test_decisions_are_written_and_read(model, tmp_path, run_cml):
    mine, out, again = (tmp_path / name for name in ("mine.json", "out.json", "again.json"))
    mine.write_text('{"made": {"kernel": "plain"}}')
    info = f"info {model} --random-weights --decide"
    run_cml(f"{info} {mine} --decisions {out}")
    (kernel,) = (d for d in json.loads(out.read_text()) if d["kind"] == "kernel")
    assert (kernel["subject"], kernel["by"]) == ("result", "user")
    assert kernel["chosen"].startswith("plain")
    run_cml(f"{info} {out} --decisions {again}")
    assert kernel in json.loads(again.read_text())


@pytest.mark.parametrize(
    "words",
    [
        "run {model} -i image={image}",
        "rank {model} --runs 1",
        "tune {model} --rounds 1 --dry-run",
        "frames {model} -i image={image} --frames 1 --operators 1",
        "trace {model} --runs 1 -o {trace}",
        "simulate {model}",
        "validate {model}",
    ],
    ids=lambda words: words.split()[0],
)
def test_every_command_that_runs_kernels_obeys_decisions(
    weighted, tmp_path, words, run_cml, refused
):
    """Every command that runs kernels obeys ``--decide`` and reports "user" as the source.

    A kernel that is not available is refused.
    """
    image, mine, out = (tmp_path / name for name in ("image.npy", "mine.json", "out.json"))
    np.save(image, np.zeros((1, 4, 8, 8), np.float32))
    mine.write_text('{"result": {"kernel": "plain", "parts": "2"}}')
    line = words.format(model=weighted, image=image, trace=tmp_path / "trace.json")
    line += f" --decide {mine} --decisions {out}"
    run_cml(line)
    found = {(d["subject"], d["kind"]): d for d in json.loads(out.read_text())}
    assert found["result", "kernel"]["chosen"].startswith("plain")
    assert {found["result", kind]["by"] for kind in ("kernel", "parts")} == {"user"}
    mine.write_text('{"result": {"kernel": "fast"}}')
    assert "cannot have the kernel 'fast'" in refused(line)


def test_cook_obeys_decisions(weighted, tmp_path, run_cml):
    mine, cooked = tmp_path / "mine.json", tmp_path / "net.cml"
    mine.write_text('{"result": {"kernel": "plain", "parts": "2"}}')
    cook = f"cook {weighted} --devices software -o {cooked} --decide"
    run_cml(f"{cook} {mine}")
    (step,) = cml.load_cooked(cooked).cooked_form.plans[0].plan("net").steps[-1:]
    assert "conv_plain" in step.cooked.kernel.label
    assert [b.nbytes for b in step.written] == [1024, 1024]


def test_decisions_are_refused_on_the_cpu(weighted, tmp_path, refused):
    (tmp_path / "mine.json").write_text("{}")
    for option in ("--decide", "--decisions"):
        file = str(tmp_path / "mine.json")
        message = refused(f"rank {weighted} --backend cpu {option} {file}")
        assert "leave --backend cpu out" in message


@pytest.mark.parametrize(
    "text, words",
    [
        ("[", "is not valid JSON"),
        (None, "cannot read"),
    ],
)
def test_invalid_files_of_decisions_are_refused(model, tmp_path, text, words, refused):
    file = tmp_path / "mine.json"
    if text is not None:
        file.write_text(text)
    assert words in refused(f"info {model} --random-weights --decide {file}")
