"""The ``cml`` command: a module for each of its commands, and what they share."""

from __future__ import annotations

from cml_engine.tools.cli.main import main

__all__ = ["main"]
