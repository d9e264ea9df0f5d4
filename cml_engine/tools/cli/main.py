"""The ``cml`` command. Exit code 2 for bad input, 1 for a failed check, 0 otherwise."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from cml_engine import __version__
from cml_engine.compiler.plugins import load_file
from cml_engine.io import load_limits
from cml_engine.tools.cli import commands
from cml_engine.tools.cli.exit_codes import escaped, exit_code
from cml_engine.tools.cli.logs import add_option, logged
from cml_engine.tools.cli.options import CommandParser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code and never raises for bad input."""
    warnings.showwarning = _notice
    return exit_code(lambda: _started(argv))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line.

    Every module in ``commands/`` and its subpackages is a command of its name.
    """
    made = CommandParser(
        prog="cml",
        description="Run, rank and check networks in NNEF and ONNX on the GPU or the CPU.",
    )
    made.add_argument("--version", action="version", version=f"cml {__version__}")
    names = made.add_subparsers(required=True, metavar="COMMAND")
    found = walk_packages(commands.__path__, f"{commands.__name__}.")
    modules = {m.name.rpartition(".")[2]: m.name for m in found if not m.ispkg}
    for name, module in sorted(modules.items()):
        command = import_module(module)
        sub = names.add_parser(name, help=command.__doc__, description=command.__doc__)
        sub.set_defaults(command=command.run, command_name=name)
        command.options(sub)
        add_option(sub)
    return made


def _started(argv: Sequence[str] | None) -> int:
    made = parser()
    a, unknown = made.parse_known_args(argv)
    if unknown:
        made.prog += f" {a.command_name}"
        made.error(f"unrecognized arguments: {' '.join(unknown)}")
    for file in getattr(a, "ops", ()):
        load_file(file)
    with logged(a.verbose), _limited(getattr(a, "load_limits", None)):
        return int(a.command(a) or 0)


@contextlib.contextmanager
def _limited(limits: str | None) -> Iterator[None]:
    """Sets the limits for all loads of a command, also in its worker processes."""
    if limits is None:
        yield
        return
    load_limits.LoadLimits.parse(limits)
    before = os.environ.get(load_limits.VARIABLE)
    os.environ[load_limits.VARIABLE] = limits
    try:
        yield
    finally:
        if before is None:
            del os.environ[load_limits.VARIABLE]
        else:
            os.environ[load_limits.VARIABLE] = before


def _notice(message: Warning | str, *_: Any, **__: Any) -> None:
    print(escaped(f"cml: notice: {message}"), file=sys.stderr)
