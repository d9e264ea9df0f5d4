"""The ``cml`` command. Exit code 2 for bad input, 1 for a failed check, 0 otherwise."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

from cml_engine import __version__
from cml_engine.compiler.plugins import load_file
from cml_engine.io import load_limits
from cml_engine.tools.cli import commands
from cml_engine.tools.cli.exit_codes import escaped, exit_code
from cml_engine.tools.cli.logs import add_option, logging_to_stderr
from cml_engine.tools.cli.options import GENERAL, CommandParser

_ABOUT = """\
usage: cml COMMAND [options]

Neural networks inside the frame of a running game: NNEF, ONNX and ncnn, on the GPU or the CPU.\
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code and never raises for bad input."""
    warnings.showwarning = _notice
    return exit_code(lambda: _start(argv))


def parser() -> CommandParser:
    """Returns the parser of the whole command line, with a subparser for each command.

    Every module in ``commands/`` and its subpackages is a command of its name.
    """
    made = CommandParser(prog="cml")
    made.group(GENERAL).add_argument("--version", action="version", version=f"cml {__version__}")
    names = made.add_subparsers(required=True, metavar="COMMAND", parser_class=CommandParser)
    found = walk_packages(commands.__path__, f"{commands.__name__}.")
    modules = {m.name.rpartition(".")[2]: m.name for m in found if not m.ispkg}
    loaded = {name: import_module(module) for name, module in sorted(modules.items())}
    for name, command in loaded.items():
        example = f"example:\n  {command.EXAMPLE}"
        sub = names.add_parser(name, description=command.__doc__, epilog=example)
        sub.set_defaults(command=command.run, command_name=name)
        command.options(sub)
        add_option(sub)
        places = [
            f"[{a.metavar}]" if a.nargs == "?" else str(a.metavar)
            for a in sub._get_positional_actions()
        ]
        sub.usage = " ".join([sub.prog, *places, "[options]"])
    made.overview = _overview(loaded)
    return made


def _overview(loaded: Mapping[str, ModuleType]) -> str:
    """Returns the text of ``cml --help``: the commands by group, each with its one-line help."""
    lines = [_ABOUT]
    for group in commands.GROUPS:
        rows = [f"  {n:9s} {c.__doc__}" for n, c in loaded.items() if group == c.GROUP]
        lines += [f"\n{group}:", *rows]
    lines.append(f"\nexample:\n  {loaded['info'].EXAMPLE}\n")
    lines.append("'cml COMMAND --help' shows a command's options, 'cml docs' the documentation,")
    lines.append("'cml --version' the version.\n")
    return "\n".join(lines)


def _start(argv: Sequence[str] | None) -> int:
    made = parser()
    a, unknown = made.parse_known_args(argv)
    if unknown:
        made.prog += f" {a.command_name}"
        made.error(f"unrecognized arguments: {' '.join(unknown)}")
    limits = getattr(a, "load_limits", None)
    if limits is not None:
        load_limits.LoadLimits.parse(limits)
    variables = {load_limits.VARIABLE: limits, "CML_ADAPTER": getattr(a, "adapter", None)}
    with logging_to_stderr(a.verbose), _environment(variables):
        for file in getattr(a, "ops", ()):
            load_file(file)
        return int(a.command(a) or 0)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets environment variables inside the ``with`` block, for a command and its worker processes.

    A variable whose value is None is left as it is. Restores the old values at the end.
    """
    given = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _notice(message: Warning | str, *_: Any, **__: Any) -> None:
    print(escaped(f"cml: notice: {message}"), file=sys.stderr)
