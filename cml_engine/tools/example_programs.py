"""The example programs that ``cml example NAME`` copies, and the files that each needs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from cml_engine.errors.arguments import check_known_names
from cml_engine.io.data_folders import bundled_folder

#: the folder of the example network and its picture, which several programs read
_MODELS = "models"
_IMPORT = re.compile(r"^\s*from examples\.(\w+)", re.MULTILINE)


def example_programs() -> dict[str, str]:
    """Returns the first line that describes each program, by the program's name."""
    folder = _folder()
    return {
        path.parent.name: (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
        .partition("\n")[0]
        .partition(": ``python")[0]
        .rstrip(".")
        for path in sorted(folder.glob("*/__init__.py"))
    }


def network_files() -> list[Path]:
    """Returns the paths of the example network's files, and of a picture for it."""
    return sorted((_folder() / _MODELS).iterdir())


def program_files(name: str) -> dict[str, Path]:
    """Returns the files of a program and of the examples that it imports, by their places.

    A place begins with ``examples/``: below the folder of that, ``python -m examples.NAME`` runs
    the program. Raises :class:`InputError` for an unknown name.
    """
    check_known_names((name,), example_programs(), "there is no example", "cml example")
    folder, pending, found = _folder(), [name], dict[str, Path]()
    while pending:
        part = pending.pop()
        inside = folder / part
        paths = sorted(inside.rglob("*")) if inside.is_dir() else [inside.with_suffix(".py")]
        for path in paths:
            place = f"examples/{path.relative_to(folder).as_posix()}"
            if not path.is_file() or "__pycache__" in path.parts or place in found:
                continue
            found[place] = path
            if path.suffix == ".py":
                text = path.read_text("utf-8")
                pending += _IMPORT.findall(text)
                pending += [_MODELS] if f'"{_MODELS}"' in text else []
    return found


def is_runnable(name: str) -> bool:
    """Returns True if the program has a command line; operators for other commands have none."""
    return (_folder() / name / "__main__.py").is_file()


def _folder() -> Path:
    return bundled_folder("examples", "examples")
