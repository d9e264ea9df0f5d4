"""Writes the report folder: every phase adds its data files and updates the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cml_engine.io.output_folder import OutputFolder
from cml_engine.tools.report.folder.page import PageSection, page

INDEX = "index.html"
#: the file that marks a folder as a report and lists its finished phases
STATE = "report.json"
#: folders inside a report
PASSES, KERNELS = "passes", "kernels"
FORMAT = "cml report 1"


class ReportFolder:
    """A report folder that is being written, section by section.

    ``titles`` are the titles of all its sections by key, in order.
    """

    def __init__(self, path: Path, titles: dict[str, str], *, overwrite: bool = False) -> None:
        self.path = path
        self._folder = OutputFolder(path, STATE, overwrite=overwrite)
        self.heading, self.lead = "", ""
        self._titles = titles
        self._sections: dict[str, PageSection] = {}
        self._write_state()

    def add(self, section: PageSection) -> None:
        """Adds a section, or replaces the one of the same key, and writes the page again."""
        self._sections[section.key] = section
        self._write_page()

    def data(self, name: str, data: Any) -> str:
        """Writes data as a JSON file of this name into the folder, and returns the name."""
        return self.text(name, json.dumps(data, indent=1) + "\n")

    def text(self, name: str, text: str) -> str:
        """Writes a text file of this name into the folder, and returns the name."""
        return self._folder.write(name, text)

    def place(self, name: str) -> Path:
        """Returns the path for a file of the report that the caller writes itself."""
        return self._folder.place(name)

    def _write_page(self) -> None:
        missing = [title for key, title in self._titles.items() if key not in self._sections]
        shown = [self._sections[key] for key in self._titles if key in self._sections]
        self.text(INDEX, page(self.heading, self.lead, shown, missing))
        self._write_state()

    def _write_state(self) -> None:
        files = {key: list(s.files) for key, s in self._sections.items()}
        missing = [key for key in self._titles if key not in self._sections]
        self._folder.write_manifest({"format": FORMAT, "sections": files, "missing": missing})
