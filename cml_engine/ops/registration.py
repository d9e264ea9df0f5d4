"""A game's own operators: checked, completed, and known from then on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from cml_engine.ops.declaration.checks import checked
from cml_engine.ops.declaration.registry import own, put
from cml_engine.ops.declaration.spec import OpSpec
from cml_engine.ops.elementwise.expressed import expressed
from cml_engine.ops.families import load_families

_PACKAGE = Path(__file__).parents[1]
#: the file of operators that is run now
_file: ContextVar[Path | None] = ContextVar("file of operators", default=None)


def register(spec: OpSpec, file: str | Path | None = None) -> OpSpec:
    """Make an operator known by its name; a name may be taken only once.

    The declaration is checked here and now: :class:`OperatorError` says what is wrong with it.
    ``file``, usually ``__file__``, is where relative kernel paths start and where messages look
    for the lines of an inline kernel. Where it is not given, it is the file of operators that is
    being loaded (``--ops``), else the one that has the operator's functions. Returns the operator
    as it is known from now on.
    """
    load_families()  # so that a name which the engine has is taken already
    if own(getattr(spec, "name", "")) is spec:
        return put(spec)
    spec = checked(spec, Path(file) if file else _place(spec))
    return put(expressed(spec) if spec.expression else spec)


@contextmanager
def registering(file: Path) -> Iterator[None]:
    """In the ``with`` block, relative kernel paths start beside this file."""
    before = _file.set(file)
    try:
        yield
    finally:
        _file.reset(before)


def _place(spec: Any) -> Path | None:
    """The file that the operator comes from, if that can be told."""
    if _file.get() is not None:
        return _file.get()
    kernel = getattr(spec, "kernel", None)
    for function in (
        *(getattr(spec, name, None) for name in ("cpu", "infer", "prepare", "cost")),
        *(getattr(kernel, name, None) for name in ("lower", "threads")),
    ):
        while isinstance(function, partial):
            function = function.func
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if code is not None and _PACKAGE not in (file := Path(code.co_filename)).parents:
            return file
    return None
