"""Tests of reloading files of operators, and of the API version that they state."""

import sys
import types

import pytest

import cml_engine as cml
from cml_engine.compiler import plugins
from cml_engine.compiler.passes.rules import registered_rules
from cml_engine.ops.declaration.registry import registered

FILE = """
import cml_engine as cml

{version}
cml.register(cml.OpSpec(
    name="{name}", signature="fragment {name}( x: tensor<scalar> ) -> ( y: tensor<scalar> );",
    expression="x * {factor}",
))
"""
RULE = """
cml.ops.register_rule(cml.ops.Rule("{rule}", ("abs",), lambda match: None))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "doubled.py"
    yield path
    found = plugins._loaded.pop(path.resolve(), None)
    if found is not None:
        found.take_back()


def write(path, name="doubled", factor="2.0", version="", more=""):
    path.write_text(FILE.format(name=name, factor=factor, version=version) + more)


def names():
    return {name for name in registered() if name.startswith("doubled")}, [
        rule.name for rule in registered_rules()
    ]


def test_reloaded_plugin_replaces_its_registrations(file):
    write(file, more=RULE.format(rule="one"))
    assert plugins.load_file(file) == ("doubled", "one")
    write(file, name="doubled_twice", factor="4.0", more=RULE.format(rule="two"))
    assert plugins.load_file(file) == ("doubled_twice", "two")
    assert names() == ({"doubled_twice"}, ["two"])


@pytest.mark.parametrize(
    "text, said",
    [
        ("import cml_engine as cml\nboom", r"doubled.py:2: NameError"),
        ("def f(:", r"doubled.py:1: "),
        ("x = 1", "registers no operator"),
        ("CML_API = 7", r"doubled.py: it is written for version 7 of the interface"),
    ],
)
def test_failing_plugin_keeps_previous_registrations(file, text, said):
    write(file, more=RULE.format(rule="one"))
    plugins.load_file(file)
    before = names()
    spec = registered()["doubled"]
    file.write_text(text)
    with pytest.raises(cml.errors.OperatorError, match=said):
        plugins.load_file(file)
    assert names() == before == ({"doubled"}, ["one"]) and registered()["doubled"] is spec
    write(file, factor="3.0")
    assert plugins.load_file(file) == ("doubled",)
    assert names() == ({"doubled"}, [])


def test_plugin_may_contain_only_rules(file):
    file.write_text("import cml_engine as cml\n" + RULE.format(rule="alone"))
    assert plugins.load_file(file) == ("alone",)


@pytest.mark.parametrize("stated", ["2", "0", "'1'", "True", "1.5", "one()"])
def test_plugin_of_another_api_version_is_not_executed(file, stated):
    write(file, version=f"CML_API = {stated}", more="\nraise SystemExit('it ran')")
    with pytest.raises(cml.errors.OperatorError, match="this engine has version 1"):
        plugins.load_file(file)
    assert names() == (set(), [])


def test_this_version_is_taken(file):
    write(file, version=f"CML_API = {plugins.API_VERSION}")
    assert plugins.load_file(file) == ("doubled",)


class Point:
    """A stand-in for an entry point of an installed package."""

    name, dist = "plug", None

    def __init__(self, module, function=None):
        self.module, self.value, self.found = module.__name__, module.__name__, function or module

    def load(self):
        return self.found


@pytest.mark.parametrize("named", ["module", "function"])
@pytest.mark.parametrize("version, loaded", [(1, True), (9, False), (None, True)])
def test_an_installed_package_states_its_version_too(monkeypatch, named, version, loaded):
    module = types.ModuleType("a_plug_in")
    calls = []

    def install():
        calls.append(1)

    install.__module__ = module.__name__
    if version is not None:
        module.CML_API = version
    monkeypatch.setitem(sys.modules, module.__name__, module)
    point = Point(module, install if named == "function" else None)
    monkeypatch.setattr(plugins.metadata, "entry_points", lambda group: [point])
    load = plugins.load_entry_points.__wrapped__
    if loaded:
        assert load() == ("plug",)
        assert calls == [1] * (named == "function")
    else:
        with pytest.warns(RuntimeWarning, match="a_plug_in.*written for version 9 .* version 1"):
            assert load() == ()
        assert calls == []
