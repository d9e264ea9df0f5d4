"""The ``cml`` command: one function for each of its commands, and what they share."""

from __future__ import annotations

from cml_engine.cli.commands import main

__all__ = ["main"]
