"""The folder on disk: every phase writes its data, and then the page with all that is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cml_engine.errors import InputError
from cml_engine.files.atomic_write import write_atomically
from cml_engine.report.folder.page import PageSection, page

INDEX = "index.html"
#: says that a folder is a report, and which phases are done
STATE = "report.json"
#: the rooms of the folder; their files are a report's own
PASSES, KERNELS = "passes", "kernels"
FORMAT = "cml report 1"


class ReportFolder:
    """A report on its way. ``titles`` are those of all its sections by key, in their order."""

    def __init__(self, path: str | Path, titles: dict[str, str]) -> None:
        self.path = Path(path)
        self.heading, self.lead = "", ""
        self._titles = titles
        self._sections: dict[str, PageSection] = {}
        self._empty()

    def add(self, section: PageSection) -> None:
        """Put a section into the page, which is written anew."""
        self._sections[section.key] = section
        self._write_page()

    def data(self, name: str, data: Any) -> str:
        """Write data as JSON; its name."""
        return self.text(name, json.dumps(data, indent=1) + "\n")

    def text(self, name: str, text: str) -> str:
        """Write a file; its name."""
        try:
            write_atomically(self.path / name, text)
        except OSError as error:
            raise self._cannot_write(error) from None
        return name

    def _write_page(self) -> None:
        missing = [title for key, title in self._titles.items() if key not in self._sections]
        shown = [self._sections[key] for key in self._titles if key in self._sections]
        self.text(INDEX, page(self.heading, self.lead, shown, missing))
        self._write_state()

    def _write_state(self) -> None:
        files = {key: list(s.files) for key, s in self._sections.items()}
        missing = [key for key in self._titles if key not in self._sections]
        self.data(STATE, {"format": FORMAT, "sections": files, "missing": missing})

    def _empty(self) -> None:
        """Make the folder, or take the files of an earlier report away; nothing else is touched."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise InputError(f"'{self.path}' is a file: name a folder for the report")
            if self.path.is_dir() and any(self.path.iterdir()):
                if not (self.path / STATE).is_file():
                    raise InputError(
                        f"'{self.path}' is not empty and no report: name another folder"
                    )
                _remove(self.path)
            self._write_state()
        except OSError as error:
            raise self._cannot_write(error) from None

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(f"cannot write into '{self.path}': {error.strerror or error}")


def _remove(folder: Path) -> None:
    """What an earlier report wrote."""
    rooms: Sequence[Path] = [folder / PASSES, folder / KERNELS]
    for file in (f for room in rooms if room.is_dir() for f in room.iterdir() if f.is_file()):
        file.unlink()
    own = ("*.json", "plan.txt", INDEX)
    for file in (f for pattern in own for f in folder.glob(pattern) if f.is_file()):
        file.unlink()
