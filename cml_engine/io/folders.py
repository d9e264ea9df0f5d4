"""Where this project keeps files of its own on a machine: one function for each kind of folder.

================  ===============================  ===============================
what              where                            another place
================  ===============================  ===============================
compiled shaders  the user's cache folder          ``CML_CACHE_DIR``
tuning tables     ``tuning`` in the cache folder   ``CML_TUNING_DIR``
learned costs     ``costs`` in the data folder     ``CML_DATA_DIR``, of the folder
================  ===============================  ===============================

The user's folders are those of the platform. A variable that is empty counts as unset. No folder
is made here: who writes a file makes its folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from cml_engine.io.output_folder import file_stem

#: the name of this project's folder among the platform's
SLUG = "cml_engine"


def cache_folder() -> Path:
    """For what can be made again at any time: compiled shaders."""
    return _named("CML_CACHE_DIR") or Path(platformdirs.user_cache_dir(SLUG, appauthor=False))


def data_folder() -> Path:
    """For what was learned over time and would be missed."""
    return _named("CML_DATA_DIR") or Path(platformdirs.user_data_dir(SLUG, appauthor=False))


def tuning_file(device: str) -> Path:
    """The table of kernels that were measured on a device and driver (``gpu.name``)."""
    return (
        _named("CML_TUNING_DIR") or cache_folder() / "tuning"
    ) / f"{file_stem(device).lower()}.json"


def costs_file(device: str) -> Path:
    """What slices were learned to cost on a device and driver (``gpu.name``)."""
    return data_folder() / "costs" / f"{file_stem(device).lower()}.json"


def _named(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None
