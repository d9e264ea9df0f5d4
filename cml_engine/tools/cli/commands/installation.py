"""The commands about this installation."""

from __future__ import annotations

import json
import re
import webbrowser
from argparse import Namespace
from pathlib import Path
from textwrap import shorten

from cml_engine.errors import DeviceError
from cml_engine.errors.arguments import check_known_names
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.data_folders import bundled_folder
from cml_engine.io.output_folder import check_new_file
from cml_engine.tools.cli.options import command, flag, option

GROUP = "This installation"
#: the longest line in the list of pages
_WIDTH = 100


@command(
    GROUP,
    "cml example first",
    option(
        "output",
        "folder",
        nargs="?",
        default=".",
        metavar="FOLDER",
        help="the current one if left out",
    ),
    "overwrite",
)
def example(a: Namespace) -> None:
    """Copy the example network, which enlarges pictures, and a picture for it into a folder."""
    files = sorted(bundled_folder("example_models", "examples/models").iterdir())
    copies = {file: Path(a.folder) / file.name for file in files}
    for copy in copies.values():
        check_new_file(copy, a.overwrite)
    for file, copy in copies.items():
        write_atomically(copy, file.read_bytes())
        print(copy)


@command(GROUP, "cml devices", "json")
def devices(a: Namespace) -> None:
    """List the GPUs of this machine: limits, and names for --adapter."""
    try:
        from cml_engine.gpu.device import device_rows, request_adapter
    except ImportError as error:
        raise DeviceError(f"wgpu is not installed ({error}); pip install wgpu") from None
    rows = device_rows()
    if a.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{'* ' if row['chosen'] else '  '}{row['name']}")
        print(
            f"    {row['kind']}; buffers up to {row['buffer_mib']} MiB, of a kernel "
            f"{row['binding_mib']} MiB; timestamps {'yes' if row['timestamps'] else 'no'}, "
            f"subgroups {'yes' if row['subgroups'] else 'no'}"
        )
    if any(row["chosen"] for row in rows):
        print("* is the default; --adapter NAME takes another")
    else:
        request_adapter(None)  # raises the reason


@command(
    GROUP,
    "cml ops conv",
    "ops",
    option("model", "name", nargs="?", metavar="NAME", help="an operator to show; all if left out"),
    flag("output", "--kernels", "list the kernel variants of operators instead"),
)
def ops(a: Namespace) -> None:
    """List every operator, or show one: signature, meaning, kernels and limits."""
    from cml_engine.compiler.plugins import load_entry_points
    from cml_engine.tools.report import operator_support

    load_entry_points()
    if a.name:
        print(operator_support.operator_text(a.name))
    elif a.kernels:
        print(operator_support.kernel_table())
    else:
        print(operator_support.operator_table())


@command(
    GROUP,
    "cml docs frame_budget",
    option(
        "output",
        "page",
        nargs="?",
        metavar="PAGE",
        help="the page to print; a list of all if left out",
    ),
    flag("output", "--open", "open the page's file instead"),
)
def docs(a: Namespace) -> None:
    """Print a page of the documentation, or list the pages."""
    pages = documentation_pages()
    if a.page is None:
        for name, path in pages.items():
            print(f"{name:18s} {shorten(_summary(path), _WIDTH - 19, placeholder=' …')}")
        return
    name = Path(a.page).stem
    check_known_names((name,), pages, "there is no page", "cml docs")
    if a.open:
        print(pages[name])
        webbrowser.open(pages[name].as_uri())
    else:
        print(pages[name].read_text(encoding="utf-8"))


def documentation_pages() -> dict[str, Path]:
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
