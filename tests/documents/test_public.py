"""Tests of the public names: docs/api.md lists them, and examples and the demo use no others."""

import ast
import importlib
import inspect
import re
import textwrap
from operator import attrgetter

import pytest

import cml_engine
from cml_engine import ops
from tests.fixtures.pages import ROOT

MODULES = re.findall(r"module:: ([\w.]+)", (ROOT / "docs" / "api.md").read_text())
NAMES = {module: set(importlib.import_module(module).__all__) for module in MODULES}
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def programs():
    """Yields the path and the source of every program in examples, demo and documents."""
    for folder in ("examples", "demo_game"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in _BLOCK.findall(path.read_text(encoding="utf-8")):
            yield path.relative_to(ROOT).as_posix(), textwrap.dedent(block)


def is_of_the_engine(module):
    parts = module.split(".")
    return parts[0] == "cml_engine" and "demo_game" not in parts[1:2]


def used(source):
    """Yields ``(module, name)`` for every name of the engine that a source text uses.

    The name is "" for an imported module.
    """
    tree = ast.parse(source)
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_of_the_engine(alias.name):
                    modules[alias.asname or alias.name] = alias.name
                    yield alias.name, ""
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if not is_of_the_engine(module):
                    continue
                if module in NAMES:
                    modules[alias.asname or alias.name] = module
                else:
                    yield node.module, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and f"{module}.{node.attr}" not in NAMES:
                yield module, node.attr


def private(source):
    """Returns the names of the engine that a source text uses although they are not public."""
    dunders = ("__version__", "__file__")
    return [
        f"{module}.{name}".rstrip(".")
        for module, name in used(source)
        if module not in NAMES or (name and name not in NAMES[module] and name not in dunders)
    ]


def public_callables(module):
    """Yields the classes, functions and public methods of a module as ``module:name`` texts."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield f"{module.__name__}:{name}"
        fields = getattr(value, "__dataclass_fields__", ())
        for member, function in vars(value).items() if inspect.isclass(value) else ():
            if inspect.isfunction(function) and not member.startswith("_") and member not in fields:
                yield f"{module.__name__}:{name}.{member}"


def callable_of(name):
    module, _, path = name.partition(":")
    return attrgetter(path)(importlib.import_module(module))


@pytest.mark.parametrize("module", MODULES)
def test_public_name_exists_and_has_a_docstring(module):
    found = importlib.import_module(module)
    assert found.__doc__
    if module == "cml_engine.panel":
        pytest.importorskip("imgui_bundle")
    assert [name for name in public_callables(found) if not inspect.getdoc(callable_of(name))] == []


def test_the_interface_is_small():
    """About thirty names for every host; no module of it is deeper than ``cml_engine.name``."""
    assert len(NAMES["cml_engine"]) <= 32
    assert all(module.count(".") <= 1 for module in MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_dir_lists_the_public_names(module):
    assert set(dir(importlib.import_module(module))) >= NAMES[module]


def test_a_moved_name_says_where_it_is():
    with pytest.warns(DeprecationWarning, match="cml_engine.Case is cml_engine.ops.Case now"):
        assert cml_engine.Case is ops.Case
    for module, names in cml_engine._MOVED.items():
        assert set(names.split()) <= NAMES[f"cml_engine.{module}"]


def test_examples_the_demo_and_the_pages_use_public_names_only():
    found = [f"{place}: {name}" for place, source in programs() for name in private(source)]
    assert found == []


def test_the_programs_are_found():
    places = {place.split("/")[0] for place, _ in programs()}
    assert places == {"examples", "demo_game", "docs", "README.md"}


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import cml_engine as cml\ncml.load('x')", []),
        ("import cml_engine as cml\ncml.inner('x')", ["cml_engine.inner"]),
        ("from cml_engine.gpu.gpu import Gpu", ["cml_engine.gpu.gpu.Gpu"]),
        ("import cml_engine.runtime.session", ["cml_engine.runtime.session"]),
        (
            "from cml_engine.testing import check, case_graph",
            ["cml_engine.testing.case_graph"],
        ),
        (
            "from cml_engine import testing\ntesting.case_graph",
            ["cml_engine.testing.case_graph"],
        ),
    ],
)
def test_the_rule_can_fail(source, expected):
    assert private(source) == expected
