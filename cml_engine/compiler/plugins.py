"""A game's own operators, from Python files and from installed packages.

>>> load_file("ops/cross.py")                              # doctest: +SKIP
('cross',)

A package that names a module (or a function that registers) in the entry point group
``cml_engine.operators`` needs no call: :func:`cml_engine.load` looks for it.

A file or module may state the version of this interface that it was written for, as a line of its
own: ``CML_API = 1``. Another version than :data:`API_VERSION` is refused.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from cml_engine.compiler.passes.rules import Rule, register_rule, registered_rules, unregister_rule
from cml_engine.errors import CmlError, InputError, OperatorError
from cml_engine.errors.arguments import check_path
from cml_engine.ops.declaration.game_functions import game_line, short
from cml_engine.ops.declaration.registry import add, load_families, registered, unregister
from cml_engine.ops.declaration.spec import OpSpec
from cml_engine.ops.registration import registering

__all__ = [
    "API_VERSION",
    "load_entry_points",
    "load_file",
]

GROUP = "cml_engine.operators"

#: the version of the interface for operator files: ``cml.OpSpec``, ``cml.Kernel``, the arguments of
#: their functions, and the HLSL generated for a kernel
API_VERSION = 1
_VERSION_NAME = "CML_API"


@dataclass(frozen=True, slots=True)
class FileRegistration:
    """The operators and rules that one run of a file registered; ``take_back`` removes them."""

    operators: dict[str, OpSpec]
    rules: tuple[Rule, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.operators, *(rule.name for rule in self.rules))

    def take_back(self) -> None:
        for name in self.operators:
            unregister(name)
        for rule in self.rules:
            unregister_rule(rule)

    def put_back(self) -> None:
        for spec in self.operators.values():
            unregister(spec.name)  # the engine's operator that this one replaced
            add(spec)
        for rule in reversed(self.rules):
            register_rule(rule)


_loaded: dict[Path, FileRegistration] = {}


def load_file(path: str | Path) -> tuple[str, ...]:
    """Runs a Python file that registers operators or rules, and returns their names.

    Loading a file again replaces its earlier registrations; if that fails, the earlier ones
    stay. Any error in the file becomes one :class:`OperatorError` with file and line.

    Examples
    --------
    >>> rule = "cml.ops.register_rule(cml.ops.Rule('one exp', ('exp', 'exp'), lambda match: None))"
    >>> from cml_engine.io.atomic_write import write_atomically
    >>> write_atomically("rules.py", "import cml_engine as cml; " + rule)
    >>> names = load_file("rules.py")
    """
    file = check_path(path, "a file of operators").resolve()
    if not file.is_file():
        raise InputError(f"'{path}': no such file; wanted a Python file that registers operators")
    load_families()
    before = _loaded.pop(file, None)
    if before is not None:
        before.take_back()
    try:
        registration = _registered_by(file)
        if not registration.names:
            raise OperatorError(
                f"{path}: registers no operator; call cml.register(cml.OpSpec(…)), or "
                "cml.ops.register_rule(cml.ops.Rule(…))"
            )
    except BaseException:
        if before is not None:
            before.put_back()
            _loaded[file] = before
        raise
    _loaded[file] = registration
    return registration.names


def loaded_files(files: Iterable[str | Path]) -> Mapping[Path, FileRegistration]:
    """Returns the registrations of the files that :func:`load_file` has loaded."""
    paths = (Path(file).resolve() for file in files)
    return {path: _loaded[path] for path in paths if path in _loaded}


def restore(registrations: Mapping[Path, FileRegistration]) -> None:
    """Restores the registrations of files that :func:`loaded_files` returned."""
    for file, registration in registrations.items():
        if _loaded.get(file) is not registration:
            _loaded[file].take_back()
            registration.put_back()
            _loaded[file] = registration


def _registered_by(file: Path) -> FileRegistration:
    """Runs the file and returns the operators and rules that it registered.

    If the file fails, they are removed, and :class:`OperatorError` with file and line is raised.
    """
    operators, rules = registered(), registered_rules()

    def new() -> FileRegistration:
        return FileRegistration(
            {name: registered()[name] for name in _new_names(operators)},
            tuple(rule for rule in registered_rules() if not any(rule is r for r in rules)),
        )

    try:
        _check_version(_read_registration(file))
        _execute(file)
    except BaseException as error:
        new().take_back()
        if isinstance(error, KeyboardInterrupt):
            raise
        raise OperatorError(_describe(error, file)) from error
    return new()


def _read_registration(file: Path) -> object:
    """Returns the value of the line ``CML_API = …`` of a file, without running it, or None if
    there is no such line."""
    for line in ast.parse(file.read_bytes(), str(file)).body:
        if isinstance(line, ast.Assign) and [ast.unparse(t) for t in line.targets] == [
            _VERSION_NAME
        ]:
            return line.value.value if isinstance(line.value, ast.Constant) else ast.unparse(line)
    return None


def _check_version(stated: object) -> None:
    if stated is not None and (stated != API_VERSION or isinstance(stated, bool)):
        raise OperatorError(
            f"it is written for version {stated!r} of the interface of operators "
            f"({_VERSION_NAME}), this engine has version {API_VERSION}: take the release of it "
            "that is made for this engine, or change it (cml docs custom_operators) and state that "
            "version"
        )


def _new_names(before: Mapping[str, OpSpec]) -> tuple[str, ...]:
    """Returns the names of the operators registered since ``before``, including replaced ones."""
    return tuple(name for name, spec in registered().items() if before.get(name) is not spec)


@cache
def load_entry_points() -> tuple[str, ...]:
    """Loads the operators of installed packages, and returns the names of the entry points that
    loaded.

    Only the first call loads; later calls return the same names. A package that fails is
    reported as a warning.
    """
    load_families()
    loaded = []
    for point in metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist else "unknown"
        try:
            _load_point(point)
        except Exception as error:
            reason = error.message if isinstance(error, CmlError) else short(error)
            message = f"the operators '{point.value}' of package '{package}' are missing: {reason}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        else:
            loaded.append(point.name)
    return tuple(loaded)


def _load_point(point: metadata.EntryPoint) -> None:
    """Imports the module of an entry point, and calls its function if one is named.

    Raises :class:`OperatorError` if the module states another version. Its function is then not
    called, and the registrations of its import are removed.
    """
    operators = registered()
    loaded = point.load()
    module = loaded if isinstance(loaded, ModuleType) else sys.modules.get(loaded.__module__)
    try:
        _check_version(getattr(module, _VERSION_NAME, None))
    except OperatorError:
        for name in _new_names(operators):
            unregister(name)
        raise
    if not isinstance(loaded, ModuleType):
        loaded()


def _execute(file: Path) -> None:
    """Runs the file as a new module, which can import modules from its folder."""
    name = f"cml_operators_{file.stem}_{abs(hash(file)):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise OperatorError("wanted a Python file, its name ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up there
    with _importable(file.parent), registering(file):
        # compile the source: cached byte code looks valid within a second of a change
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _describe(error: BaseException, file: Path) -> str:
    """Returns the message ``file:line: text`` for an error in a game's file; the line is the
    last one of the game's code in the traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {error.msg}"
    text = str(error) if isinstance(error, CmlError) else short(error)
    return f"{game_line(error) or file}: {text}"
