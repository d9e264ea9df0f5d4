"""The exit codes of the demo's programs."""

from __future__ import annotations

import sys
from collections.abc import Callable

import cml_engine as cml


def exit_code_of(run: Callable[[], int]) -> int:
    """Runs a program and returns its exit code: 2 after an error, and 130 after an interrupt.

    Prints the error, or what an interrupted program says of its state.
    """
    try:
        return run()
    except (cml.CmlError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"interrupted. {interrupt}".strip(), file=sys.stderr)
        return 130
