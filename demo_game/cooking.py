"""Cooks the game's networks to files in ``cooked/``, so that a first start compiles no kernels.

``python -m demo_game.cooking`` cooks them for a wheel. In a checkout a background process cooks
them after the first run, and again when their sources have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cml_engine as cml
from cml_engine.io import write_atomically

FOLDER = Path(__file__).resolve().parent
MODELS = FOLDER / "models"
COOKED = FOLDER / "cooked"
_ROOT = FOLDER.parent
#: folders with the sources of the cooked networks, in a checkout
_MADE_OF = ("demo_game/models", "demo_game/operators", "cml_engine", "shaders_hlsl")
_KINDS = (".py", ".hlsl", ".hlsli", ".nnef", ".dat", ".json")
#: seconds after which a lock is considered abandoned
_PATIENCE_S = 1800


def cooked_set() -> Path | None:
    """Returns the folder of the cooked networks; None if there are none or they are out of date."""
    state = _state()
    usable = "of" in state and "error" not in state
    return COOKED if usable and (not _is_checkout() or state["of"] == _fingerprint()) else None


def make(report: Callable[[str], object] = lambda line: None) -> None:
    """Cooks every network of the game to ``cooked/`` and then writes the manifest.

    ``report`` is called with the name and size of each file.
    """
    from cml_engine.cooked import cook
    from cml_engine.demo_game import operators  # noqa: F401 - registers the game's own operators

    before = _fingerprint()
    _manifest().unlink(missing_ok=True)
    for model in sorted(MODELS.glob("*.nnef")):
        data = cook(cml.load(model), golden=False)
        write_atomically(COOKED / f"{model.stem}.cml", data)
        report(f"{model.stem}: {len(data) / 1e6:.2f} MB")
    write_atomically(_manifest(), json.dumps({"of": before}))


def cook_in_background(report: Callable[[str], object]) -> None:
    """Starts a background process that cooks the networks, in a checkout without current ones.

    The process outlives this one. A failed attempt is repeated only when a source has changed.
    """
    if not _is_checkout() or _state().get("of") == _fingerprint() or not _begin():
        return
    report("the networks are cooked in the background, once: the next start compiles none of them")
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    env = {**os.environ, "CML_COMPILERS": "1"}
    command = [sys.executable, "-m", f"{__package__}.cooking", "--behind"]
    with suppress(OSError):  # it is only slower then
        subprocess.Popen(command, cwd=_ROOT, env=env, start_new_session=True, **quiet)


def _is_checkout() -> bool:
    """Returns True in a checkout, whose files may change, and False in a package."""
    return (_ROOT / "pyproject.toml").is_file()


def _fingerprint() -> str:
    """Returns a hash of all source files that determine the cooked networks."""
    hasher = hashlib.sha256()
    for folder in _MADE_OF:
        for path in sorted((_ROOT / folder).rglob("*")):
            if path.suffix in _KINDS and path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                hasher.update(f"{path.relative_to(_ROOT).as_posix()} {content}\n".encode())
    return hasher.hexdigest()


def _manifest() -> Path:
    return COOKED / "made_of.json"


def _lock() -> Path:
    """Returns the path of the lock file that exists while the networks are being cooked."""
    name = hashlib.sha256(str(COOKED).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"cml-cooking-{name}"


def _state() -> dict[str, str]:
    """Returns the manifest: the sources' fingerprint ``of`` and an ``error`` if cooking failed.

    Empty if there is no manifest.
    """
    try:
        state = json.loads(_manifest().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _begin() -> bool:
    """Creates the lock file; returns False if another process is cooking.

    A lock older than ``_PATIENCE_S`` seconds is taken over.
    """
    lock = _lock()
    with suppress(OSError):
        if time.time() - lock.stat().st_mtime < _PATIENCE_S:
            return False
        lock.unlink()
    try:
        lock.touch(exist_ok=False)
    except OSError:  # another process was quicker, or the folder is read-only
        return False
    return True


def _start_cooking() -> None:
    with suppress(AttributeError, OSError):
        os.nice(15)
    before = _fingerprint()
    try:
        make()
    except Exception as error:  # whoever reads the file learns why
        write_atomically(_manifest(), json.dumps({"of": before, "error": str(error)}))
    finally:
        _lock().unlink(missing_ok=True)


if __name__ == "__main__":
    if "--behind" in sys.argv:
        _start_cooking()
    else:
        make(lambda line: sys.stderr.write(f"[demo] cooked {line}\n"))
