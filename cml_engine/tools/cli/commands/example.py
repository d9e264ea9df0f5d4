"""Copy the example network, which enlarges pictures, and a picture for it into a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.folders import bundled_folder
from cml_engine.io.output_folder import check_new_file
from cml_engine.tools.cli.options import OUTPUT, CommandParser, add_options

GROUP = "This installation"
EXAMPLE = "cml example first"


def options(parser: CommandParser) -> None:
    parser.group(OUTPUT).add_argument(
        "folder", nargs="?", default=".", metavar="FOLDER", help="the current one if left out"
    )
    add_options(parser, "overwrite")


def run(a: argparse.Namespace) -> int:
    files = sorted(bundled_folder("example_models", "examples/models").iterdir())
    copies = {file: Path(a.folder) / file.name for file in files}
    for copy in copies.values():
        check_new_file(copy, a.overwrite)
    for file, copy in copies.items():
        write_atomically(copy, file.read_bytes())
        print(copy)
    return 0
