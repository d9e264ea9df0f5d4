"""A game's own operators, from Python files and from installed packages.

>>> load_file("ops/cross.py")                              # doctest: +SKIP
('cross',)

A package that names a module (or a function that registers) in the entry point group
``cml_engine.operators`` needs no call: :func:`cml_engine.load` looks for it.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from cml_engine.errors import CmlError, InputError, OperatorError
from cml_engine.ops import OpSpec, load_families, registered, unregister
from cml_engine.ops.registration import registering

__all__ = [
    "load_entry_points",
    "load_file",
]

GROUP = "cml_engine.operators"

#: what each file registered, so that it can be loaded again after a change
_loaded: dict[Path, tuple[str, ...]] = {}


def load_file(path: str | Path) -> tuple[str, ...]:
    """Run a Python file that registers operators; their names. Loaded again, it replaces what it
    registered before. Whatever it raises becomes one :class:`OperatorError` with file and line."""
    file = Path(path).resolve()
    if not file.is_file():
        raise InputError(f"'{path}': no such file; wanted a Python file that registers operators")
    load_families()
    for name in _loaded.pop(file, ()):
        unregister(name)
    before = registered()
    try:
        _execute(file)
    except BaseException as error:
        for name in _new(before):
            unregister(name)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise OperatorError(_described(error, file)) from error
    names = _new(before)
    if not names:
        raise OperatorError(f"{path}: registers no operator; call cml.register(cml.OpSpec(…))")
    _loaded[file] = names
    return names


def _new(before: Mapping[str, OpSpec]) -> tuple[str, ...]:
    """What was registered since, in the place of another operator too."""
    return tuple(name for name, spec in registered().items() if before.get(name) is not spec)


@cache
def load_entry_points() -> tuple[str, ...]:
    """Load the operators of installed packages, once; a package that fails is a warning. The names
    of the entry points that were loaded."""
    load_families()
    loaded = []
    for point in metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist else "unknown"
        try:
            found = point.load()
            if not isinstance(found, ModuleType):
                found()
        except Exception as error:
            what = error.message if isinstance(error, CmlError) else _short(error)
            message = f"the operators '{point.value}' of package '{package}' are missing: {what}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        else:
            loaded.append(point.name)
    return tuple(loaded)


def _execute(file: Path) -> None:
    """Run the file as a module of its own; it can import what lies beside it."""
    name = f"cml_operators_{file.stem}_{abs(hash(file)):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise OperatorError("wanted a Python file, its name ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look for it there
    with _importable(file.parent), registering(file):
        spec.loader.exec_module(module)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _described(error: BaseException, file: Path) -> str:
    """``file:line: what`` for the last line of the game's own code that the error came through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {error.msg}"
    own = Path(__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if own not in Path(frame.filename).parents and Path(frame.filename).is_file()
    ]
    mine = [f for f in frames if file.parent in Path(f.filename).resolve().parents] or frames
    place = f"{mine[-1].filename}:{mine[-1].lineno}" if mine else str(file)
    what = str(error) if isinstance(error, CmlError) else _short(error)
    return f"{place}: {what}"


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
