"""Registers a game's own operators, after checking and completing their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from cml_engine.ops.declaration.checks import check_spec
from cml_engine.ops.declaration.registry import find_builtin, load_families, replace
from cml_engine.ops.declaration.spec import OpSpec
from cml_engine.ops.elementwise.from_expression import expressed

_PACKAGE = Path(__file__).parents[1]
#: the file of operators that is being loaded
_file: ContextVar[Path | None] = ContextVar("file of operators", default=None)


def register(spec: OpSpec, file: str | Path | None = None) -> OpSpec:
    """Registers an operator by its name and returns it as registered; a name may be used only once.

    Raises :class:`OperatorError` if the declaration is invalid. ``file``, usually ``__file__``,
    is the base of relative kernel paths and the file in which messages locate the lines of an
    inline kernel. The default is the operator file that is being loaded (``--ops``), otherwise
    the file that defines the operator's functions.

    Examples
    --------
    >>> spec = cml.register(
    ...     cml.OpSpec(
    ...         name="halve",
    ...         signature="fragment halve(x: tensor<scalar>) -> (y: tensor<scalar>);",
    ...         infer=cml.same_as(0),
    ...         cpu=lambda attrs, x: x / 2,
    ...     )
    ... )
    >>> cml.unregister("halve")
    """
    load_families()  # so that a name which the engine has is taken already
    if find_builtin(getattr(spec, "name", "")) is spec:
        return replace(spec)
    spec = check_spec(spec, Path(file) if file else _place(spec))
    return replace(expressed(spec) if spec.expression else spec)


@contextmanager
def registering(file: Path) -> Iterator[None]:
    """Makes ``file`` the base of relative kernel paths within the ``with`` block."""
    before = _file.set(file)
    try:
        yield
    finally:
        _file.reset(before)


def _place(spec: object) -> Path | None:
    """Returns the file that declares the operator, or None if it is not known.

    It is the file that is being loaded, or the one that defines one of the operator's functions.
    """
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
