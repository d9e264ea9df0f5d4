"""Lays out the wheel: every package lies inside ``cml_engine``.

A checkout has ``scheduler/``, ``shaders_hlsl/`` and ``demo_game/`` beside ``cml_engine/``. Names as
general as these must not become top-level modules of an installation, so the wheel holds them as
parts of ``cml_engine``, and the imports that name them are rewritten as they are copied.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
#: folders of a checkout, and where their files lie in the wheel
PLACES = {
    "docs": "cml_engine/docs",
    "cml_engine": "cml_engine",
    "scheduler": "cml_engine/scheduler",
    "shaders_hlsl": "cml_engine/shaders_hlsl",
    "demo_game": "cml_engine/demo_game",
    "players/web": "cml_engine/cooked/players/web",
    "players/c": "cml_engine/cooked/players/c",
    "examples": "cml_engine/examples",
}
_FROM = re.compile(r"^(\s*from )((?:scheduler|demo_game)\b[\w.]* import )", re.MULTILINE)
_IMPORT = re.compile(r"^(\s*)(import (?:scheduler|demo_game))$", re.MULTILINE)


class WheelLayout(BuildHookInterface):  # type: ignore[type-arg]
    """The build hook that copies the packages into a temporary folder in the wheel's layout.

    An editable installation is left as it is.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the checkout itself is imported
            return
        self._staged = Path(tempfile.mkdtemp())
        for source, target in PLACES.items():
            # of the documentation only the pages that `cml docs` prints
            for path in sorted((ROOT / source).glob("*.md" if source == "docs" else "**/*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    place = self._staged / target / path.relative_to(ROOT / source)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, place)
                    if path.suffix == ".py":
                        place.write_text(nested(path.read_text("utf-8")), "utf-8")
        build_data["force_include"][str(self._staged)] = "/"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._staged)


def nested(source: str) -> str:
    """Returns a module's source with imports of the nested packages naming ``cml_engine``."""
    return _IMPORT.sub(r"\1from cml_engine \2", _FROM.sub(r"\1cml_engine.\2", source))
