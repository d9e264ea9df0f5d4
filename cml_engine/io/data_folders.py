"""The folders of this project's own files on a machine, one function per type of file.

================  ===============================  ===============================
files             default                          override
================  ===============================  ===============================
compiled shaders  the user's cache folder          ``CML_CACHE_DIR``
tuning tables     ``tuning`` in the cache folder   ``CML_TUNING_DIR``
learned costs     ``costs`` in the data folder     ``CML_DATA_DIR``, of the folder
================  ===============================  ===============================

The user's folders are those of the platform. An empty variable counts as unset. These functions
create no folder; the code that writes a file creates its folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from cml_engine.io.output_folder import file_stem

#: the name of this project's folder in the platform's folders
SLUG = "cml_engine"


def bundled_folder(in_package: str, in_checkout: str) -> Path:
    """Returns the path of a folder that a wheel has inside the package and a checkout beside it.

    ``in_package`` is its path from the package, ``in_checkout`` its path from the package's parent.
    """
    package = Path(__file__).parents[1]
    bundled = package / in_package
    return bundled if bundled.is_dir() else package.parent / in_checkout


def cache_folder() -> Path:
    """Returns the folder of files that can be regenerated at any time, such as compiled shaders."""
    return _variable_folder("CML_CACHE_DIR") or Path(
        platformdirs.user_cache_dir(SLUG, appauthor=False)
    )


def data_folder() -> Path:
    """Returns the folder of data that is learned over time."""
    return _variable_folder("CML_DATA_DIR") or Path(
        platformdirs.user_data_dir(SLUG, appauthor=False)
    )


def tuning_file(device: str) -> Path:
    """Returns the path of the table of measured kernels for a device and driver (``gpu.name``)."""
    return (
        _variable_folder("CML_TUNING_DIR") or cache_folder() / "tuning"
    ) / f"{file_stem(device).lower()}.json"


def costs_file(device: str) -> Path:
    """Returns the path of the learned slice costs for a device and driver (``gpu.name``)."""
    return data_folder() / "costs" / f"{file_stem(device).lower()}.json"


def _variable_folder(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None
