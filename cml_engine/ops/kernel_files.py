"""The source files of the kernels in ``shaders_hlsl/``."""

from __future__ import annotations

from pathlib import Path

#: the folder of the kernels; in a checkout a link to the folder beside the package
KERNEL_FOLDER = Path(__file__).parents[1] / "shaders_hlsl"


def kernel_file(path: str | Path) -> Path | None:
    """Returns the path of the engine's kernel ``path`` (``conv/conv.hlsl``), or None."""
    path = Path(path)
    file = KERNEL_FOLDER / path
    return file if not path.is_absolute() and ".." not in path.parts and file.is_file() else None
