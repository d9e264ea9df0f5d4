"""The commands about this installation."""

from __future__ import annotations

import json
import re
import webbrowser
from argparse import Namespace
from pathlib import Path
from textwrap import shorten

from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import check_known_names
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.data_folders import bundled_folder
from cml_engine.io.output_folder import check_new_file
from cml_engine.tools.cli.options import command, flag, option, refuse, value_option
from cml_engine.tools.cli.terminal import progress
from cml_engine.tools.example_programs import (
    example_programs,
    is_runnable,
    network_files,
    program_files,
)

GROUP = "This installation"
#: the longest line in the lists of pages and of examples
_WIDTH = 100
#: the name of the example network among the example programs
_NETWORK = "network"


@command(
    GROUP,
    "cml example plain_loop",
    option(
        "output",
        "name",
        nargs="?",
        default=_NETWORK,
        metavar="NAME",
        help="a program of --list; without it the example network and a picture for it",
    ),
    option(
        "output",
        "folder",
        nargs="?",
        default=".",
        metavar="FOLDER",
        help="the current one if left out",
    ),
    flag("output", "--list", "list the example programs instead"),
    "overwrite",
)
def example(a: Namespace) -> None:
    """Copy the example network, or a program of the documentation, into a folder."""
    if a.list:
        if a.name != _NETWORK:
            raise InputError(f"--list lists all programs: leave '{a.name}' or --list out")
        refuse(a, "--list copies no file", "overwrite")
        rows = {_NETWORK: "a network that doubles pictures, and a picture"} | example_programs()
        for name, text in rows.items():
            print(f"{name:18s} {shorten(text, _WIDTH - 19, placeholder=' …')}")
        return
    if Path(a.folder).is_file():
        raise InputError(f"'{a.folder}' is a file: name a folder")
    is_network = a.name == _NETWORK
    files = {f.name: f for f in network_files()} if is_network else program_files(a.name)
    data = {Path(a.folder) / place: file.read_bytes() for place, file in files.items()}
    # programs share modules, so a copy of another program may be there already
    new = {
        path: content
        for path, content in data.items()
        if is_network or not (path.is_file() and path.read_bytes() == content)
    }
    for path in new:
        check_new_file(path, a.overwrite)
    for path, content in new.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        print(path)
    if not is_network and is_runnable(a.name):
        place = "" if a.folder == "." else f" in '{a.folder}'"
        print(f"run it{place}: python -m examples.{a.name} --help")


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
    "cml selftest --quick --only relu --only textures",
    "adapter",
    "ops",
    value_option(
        "model",
        "--model",
        "FILE",
        "a network of your own to check as well, such as StyleGAN2's; its inputs are random",
        repeatable=True,
    ),
    flag("GPU", "--quick", "one minute instead of ten: every kernel with one of its cases"),
    value_option(
        "GPU",
        "--only",
        "NAME",
        "one part of the test, as its table names them, or the kernels of one operator",
        repeatable=True,
    ),
    value_option(
        "output",
        "--write",
        "FILE",
        "the file to write (default: %(default)s)",
        Path,
        "cml-selftest.json",
        short="-o",
    ),
)
def selftest(a: Namespace) -> int:
    """Prove the engine on this GPU: kernels, textures, networks, frames; write a file."""
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.io.arrays import check_place
    from cml_engine.ops.declaration.registry import load_families, registered
    from cml_engine.tools.selftest.context import SelfTest
    from cml_engine.tools.selftest.report import SelfTestReport, describe_device, versions
    from cml_engine.tools.selftest.run import PARTS, run

    load_families()
    check_known_names(a.only, (*PARTS, *registered()), "there is no part or operator", "--only")
    operators = [name for name in a.only if name not in PARTS]
    parts = [name for name in PARTS if name in a.only or not a.only]
    if operators and "kernels" not in parts:
        parts.insert(0, "kernels")
    if "networks" not in parts:
        refuse(a, "--only leaves the part 'networks' out", "model")
    check_place(a.write)
    gpu = Gpu()
    report = SelfTestReport(describe_device(gpu), versions(), a.quick)
    print(f"{gpu.name}; the report is written to {a.write}", flush=True)
    with progress() as show:
        run(SelfTest(a.write, gpu, report, a.quick, operators, a.model, show), parts)
    print(report)
    return 0 if report.ok else 1


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
        refuse(a, f"'cml ops {a.name}' shows its kernels too", "kernels")
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
        help="the page to print; a list of all if left out, or for 'index'",
    ),
    flag("output", "--open", "open the page's file instead; without PAGE, the index"),
)
def docs(a: Namespace) -> None:
    """Print a page of the documentation, or list the pages."""
    pages = documentation_pages()
    name = "index" if a.page is None else Path(a.page).stem
    if name == "index" and not a.open:
        for name, path in pages.items():
            print(f"{name:18s} {shorten(_summary(path), _WIDTH - 19, placeholder=' …')}")
        return
    pages = {"index": bundled_folder("docs", "docs") / "index.md", **pages}
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
