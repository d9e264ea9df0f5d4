"""The ``cml`` command. Exit code 2 for bad input, 1 for a failed check, 0 otherwise."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from cml_engine import __version__
from cml_engine.errors.arguments import suggestion
from cml_engine.io import load_limits
from cml_engine.tools.cli.commands import (
    change,
    frames,
    installation,
    look,
    map_inputs,
    run,
    ship,
    validate,
)
from cml_engine.tools.cli.options import COMMANDS, GROUPS, PATTERN, Group
from cml_engine.tools.cli.terminal import exit_code, logging_to_stderr, narrator, print_error

_ABOUT = """\
usage: cml COMMAND [options]

Neural networks inside the frame of a running game: NNEF, ONNX and ncnn, on the GPU or the CPU.
"""
_EPILOG = """
'cml COMMAND --help' shows a command's options, 'cml docs' the documentation,
'cml --version' the version.
"""
_MODULES = (run, validate, map_inputs, look, frames, change, ship, installation)
#: the most unrecognized arguments that a message lists
_MOST_SHOWN = 5
#: the groups of ``cml --help``, in its order
COMMAND_GROUPS = tuple(dict.fromkeys(module.GROUP for module in _MODULES))


class CommandParser(argparse.ArgumentParser):
    """An argument parser with titled groups of options, whose errors take one line.

    ``overview`` is the help of a command line with commands, instead of a list of arguments.
    """

    overview = ""

    def __init__(self, **settings: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(add_help=False, formatter_class=formatter, **settings)
        self._titled = {title: self.add_argument_group(title) for title in GROUPS}
        self.add("general", "-h", "--help", action="help", help="show this help")

    def add(self, group: Group, *flags: str, **settings: Any) -> None:
        """Adds an argument to one of the groups."""
        self._titled[group].add_argument(*flags, **settings)

    def format_help(self) -> str:
        return self.overview or super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"cml: error: {message}; see '{self.prog} --help'\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code and never raises for bad input."""
    warnings.showwarning = lambda message, *_, **__: print_error(f"notice: {message}")
    return exit_code(lambda: _start(argv))


def parser() -> CommandParser:
    """Returns the parser of the whole command line, with a subparser for each command."""
    root = CommandParser(prog="cml")
    root.add("general", "--version", action="version", version=f"cml {__version__}")
    names = root.add_subparsers(required=True, metavar="COMMAND", parser_class=CommandParser)
    rows: dict[str, list[str]] = {group: [] for group in COMMAND_GROUPS}
    for name, command in sorted(COMMANDS.items()):
        example = f"example:\n  {command.example}"
        sub = names.add_parser(name, description=command.help, epilog=example)
        sub.set_defaults(command=command.run, command_name=name)
        for option in command.options:
            sub.add(option.group, *option.flags, **option.settings)
        sub.add(
            "general",
            "-v",
            "--verbose",
            action="count",
            default=0,
            help="log what is loaded, built and evicted; -vv also logs every kernel",
        )
        positionals = [
            f"[{a.metavar}]" if a.nargs == "?" else str(a.metavar)
            for a in sub._get_positional_actions()
        ]
        sub.usage = " ".join([sub.prog, *positionals, "[options]"])
        rows[command.group].append(f"  {name:9s} {command.help}")
    groups = ("\n".join([f"\n{group}:", *lines]) for group, lines in rows.items())
    root.overview = "\n".join(
        [_ABOUT.rstrip(), *groups, f"\nexample:\n  {COMMANDS['info'].example}", _EPILOG]
    )
    return root


def _start(argv: Sequence[str] | None) -> int:
    root, words = parser(), list(sys.argv[1:] if argv is None else argv)
    a, unknown = root.parse_known_args(words)
    if unknown:
        root.prog += f" {a.command_name}"
        hint = _pattern_hint(a, words, unknown[0]) or _hint(a.command_name, unknown[0])
        more = len(unknown) - _MOST_SHOWN
        shown = " ".join(unknown[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
        root.error(f"unrecognized arguments: {shown}{hint and f' ({hint})'}")
    limits = getattr(a, "load_limits", None)
    if limits is not None:
        load_limits.LoadLimits.parse(limits)
    variables = {load_limits.VARIABLE: limits, "CML_ADAPTER": getattr(a, "adapter", None)}
    with (
        logging_to_stderr(a.verbose),
        _environment(variables),
        _collecting_rarely(),
        narrator.running(),
    ):
        if files := getattr(a, "ops", ()):
            from cml_engine.compiler.plugins import load_file

            for file in files:
                load_file(file)
        return int(a.command(a) or 0)


def _pattern_hint(a: argparse.Namespace, words: Sequence[str], unknown: str) -> str:
    """Returns a hint if ``unknown`` is a file that the shell put in place of an option's pattern;
    else "".

    The shell expands a pattern without quotes to several words. Only the first is the option's.
    """
    for option in COMMANDS[a.command_name].options:
        if option.settings.get("metavar") != PATTERN:
            continue
        flag = option.flags[0]
        value = str(getattr(a, flag.strip("-").replace("-", "_")))
        if not any(sign in value for sign in "*?[") and value in words:
            begin = words.index(value)
            following = takewhile(lambda word: not word.startswith("-"), words[begin:])
            if unknown in following:
                return (
                    f"{flag} takes one pattern, and got '{value}' and more: the shell expands a "
                    f"pattern without quotes. Write {flag} '*{Path(value).suffix}', in quotes"
                )
    return ""


def _hint(command: str, word: str) -> str:
    """Returns what the user may have meant by a word that the command does not take, or ""."""
    options = {flag: option for option in COMMANDS[command].options for flag in option.flags}
    if word in ("-o", "--write") and (option := options.get("destination")):
        return f"cml {command} takes {option.settings['metavar']} without -o, after the model"
    if not word.startswith("-") and (option := options.get("-o")):
        return f"did you mean '-o {option.settings['metavar']}'?"
    return suggestion(word, options)


@contextlib.contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Makes Python search for unreachable cycles only after 100 000 new objects.

    By default it does after 700, which takes a tenth of a short command's time.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets environment variables inside the ``with`` block, for a command and its worker processes.

    A variable whose value is None is left as it is. Restores the old values at the end.
    """
    before = dict(os.environ)
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
