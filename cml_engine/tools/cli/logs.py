"""Prints the engine's log on standard error: warnings always, more with ``-v``."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from cml_engine.tools.cli.exit_codes import escaped
from cml_engine.tools.cli.options import GENERAL, CommandParser

_PACKAGES = ("cml_engine", "scheduler")
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _ToStderr(logging.Handler):
    """A log handler that prints one line per record to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        said = f"cml: {record.levelname.lower()}: {record.getMessage()}"
        print(escaped(said), file=sys.stderr)


def add_option(parser: CommandParser) -> None:
    """Adds the option ``-v`` to a command's parser; ``a.verbose`` counts its uses."""
    parser.group(GENERAL).add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log what is loaded, built and evicted; -vv also logs every kernel",
    )


@contextlib.contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Prints the engine's log messages to standard error inside the ``with`` block.

    ``verbose`` is the number of ``-v`` options: the more, the lower the level.
    """
    level = _LEVELS[min(verbose, len(_LEVELS) - 1)]
    handler = _ToStderr()
    loggers = [logging.getLogger(name) for name in _PACKAGES]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(was)
