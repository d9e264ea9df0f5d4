"""Cooks the game's networks to files in ``cooked/``, which a wheel brings along.

``python -m demo_game.cooking`` cooks them. A checkout does not use them: its models and kernels may
have changed since, and its cache of compiled kernels makes a later start as fast.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import cml_engine as cml
from cml_engine.io import write_atomically

FOLDER = Path(__file__).resolve().parent
MODELS = FOLDER / "models"
COOKED = FOLDER / "cooked"
_ROOT = FOLDER.parent


def cooked_set() -> Path | None:
    """Returns the folder of the cooked networks; None in a checkout, or if there are none."""
    return COOKED if COOKED.is_dir() and not _is_checkout() else None


def make(report: Callable[[str], object] = lambda line: None) -> None:
    """Cooks every network of the game to ``cooked/``, in place of those that were there.

    ``report`` is called with the name and size of each file.
    """
    from cml_engine.cooked import cook
    from cml_engine.demo_game import operators  # noqa: F401 - registers the game's own operators

    shutil.rmtree(COOKED, ignore_errors=True)
    for model in sorted(MODELS.glob("*.nnef")):
        data = cook(cml.load(model), golden=False)
        write_atomically(COOKED / f"{model.stem}.cml", data)
        report(f"{model.stem}: {len(data) / 1e6:.2f} MB")


def _is_checkout() -> bool:
    """Returns True in a checkout, whose files may change, and False in a package."""
    return (_ROOT / "pyproject.toml").is_file()


if __name__ == "__main__":
    make(lambda line: sys.stderr.write(f"[demo] cooked {line}\n"))
