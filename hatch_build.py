"""Makes the links in ``cml_engine/`` before a build, where git wrote text files for them."""

from __future__ import annotations

import runpy
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LinkPackages(BuildHookInterface):
    """A hook of hatchling, so that ``pip install .`` needs no links either."""

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        runpy.run_path(str(Path(self.root, "tasks.py")))["link_packages"]()
