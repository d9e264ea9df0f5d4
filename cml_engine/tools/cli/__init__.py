"""The ``cml`` command: one module per command, and shared code."""

from __future__ import annotations

from cml_engine.tools.cli.main import main

__all__ = ["main"]
