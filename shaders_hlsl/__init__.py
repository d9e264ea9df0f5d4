"""The kernels: a folder per family of operators, named as its package in ``cml_engine/ops/``."""

from pathlib import Path

#: the folder that holds them
FOLDER = Path(__file__).parent


def own(path: str | Path) -> Path | None:
    """The file of one of our kernels, named from :data:`FOLDER` (``conv/conv.hlsl``); else None."""
    path = Path(path)
    found = FOLDER / path
    return found if not path.is_absolute() and ".." not in path.parts and found.is_file() else None
