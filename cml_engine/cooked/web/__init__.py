"""Exports a web page that runs a network in a browser (docs/ship_it.md)."""

from __future__ import annotations

from cml_engine.cooked.web.export import Picture, export_web, picture_of

__all__ = ["Picture", "export_web", "picture_of"]
