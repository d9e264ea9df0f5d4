"""Print a page of the documentation, or list the pages."""

from __future__ import annotations

import argparse
import re
import webbrowser
from pathlib import Path
from textwrap import shorten

from cml_engine.errors.arguments import check_known_names
from cml_engine.io.folders import bundled_folder
from cml_engine.tools.cli.options import OUTPUT, CommandParser

GROUP = "This installation"
EXAMPLE = "cml docs frame_budget"
#: the longest line of the list
_WIDTH = 100


def options(parser: CommandParser) -> None:
    output = parser.group(OUTPUT)
    output.add_argument(
        "page", nargs="?", metavar="PAGE", help="the page to print; a list of all if left out"
    )
    output.add_argument("--open", action="store_true", help="open the page's file instead")


def run(a: argparse.Namespace) -> int:
    pages = _pages()
    if a.page is None:
        for name, path in pages.items():
            print(f"{name:18s} {shorten(_summary(path), _WIDTH - 19, placeholder=' …')}")
        return 0
    name = Path(a.page).stem
    check_known_names((name,), pages, "there is no page", "cml docs")
    if a.open:
        print(pages[name])
        webbrowser.open(pages[name].as_uri())
    else:
        print(pages[name].read_text(encoding="utf-8"))
    return 0


def _pages() -> dict[str, Path]:
    """Returns the documentation's pages (Markdown files) by name, in the order of its index."""
    folder = bundled_folder("docs", "docs")
    index = (folder / "index.md").read_text(encoding="utf-8")
    names = re.findall(r"^(\w+)$", index, re.MULTILINE)
    return {name: path for name in names if (path := folder / f"{name}.md").is_file()}


def _summary(page: Path) -> str:
    """Returns a page's title, followed by its first paragraph if that is prose."""
    title, _, text = page.read_text(encoding="utf-8").partition("\n")
    first = text.strip().partition("\n\n")[0].replace("\n", " ")
    is_prose = re.match(r"\w", first) is not None
    return title.removeprefix("# ") + (f". {first}" if is_prose else "")
