"""The source files of the kernels in ``shaders_hlsl/``."""

from __future__ import annotations

from pathlib import Path

from cml_engine.io.data_folders import bundled_folder

#: the folder of the kernels: inside this package in a wheel, beside it in a checkout
KERNEL_FOLDER = bundled_folder("shaders_hlsl", "shaders_hlsl")


def kernel_file(path: str | Path) -> Path | None:
    """Returns the path of the engine's kernel ``path`` (``conv/conv.hlsl``), or None."""
    path = Path(path)
    file = KERNEL_FOLDER / path
    return file if not path.is_absolute() and ".." not in path.parts and file.is_file() else None
