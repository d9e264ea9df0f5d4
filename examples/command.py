"""Runs an example's command; its errors take one line each."""

from __future__ import annotations

import sys
from collections.abc import Callable

import cml_engine as cml


def run_command(command: Callable[[], object]) -> int:
    """Runs a command and returns the exit code: 2, after the message, for errors of its input."""
    try:
        command()
    except (cml.CmlError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
