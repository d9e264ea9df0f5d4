"""Runs the example in the docstring of every public class and function.

docs/api.md says which names the examples may use without defining them.
"""

import doctest
import importlib.util
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.passes import rules
from tests.fixtures.texels import create_texture

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
#: modules whose examples need a package of an extra
EXTRAS = {"cml_engine.panel": "imgui_bundle", "cml_engine.distributed": "zarr"}
#: what draws within a frame of imgui has no example
MODULES = [
    name
    for name in re.findall(r"module:: ([\w.]+)", (ROOT / "docs" / "api.md").read_text())
    if name != "cml_engine.panel.drawing" and importlib.util.find_spec(EXTRAS.get(name, "numpy"))
]
TEXT = """version 1.0;
graph net(image) -> (out)
{
image = external<scalar>(shape = [1, 3, 8, 8]);
filter = variable<scalar>(shape = [4, 3, 3, 3], label = 'filter');
c = conv(image, filter, 0.0);
out = relu(c);
}
"""
AFTER = """version 1.0;
graph after(x) -> (y) { x = external<scalar>(shape = [1, 4, 8, 8]); y = mul(x, 0.5); }"""
#: names of an example that need a device
ON_GPU = re.compile(r"\b(gpu|network|after|scheduler|encoder|texture)\b|cml\.Gpu\(")


def public():
    """Returns the public classes and functions by full name, each as (module, object)."""
    public_names = {}
    seen = set()
    for module in MODULES:
        for name in getattr(importlib.import_module(module), "__all__", []):
            thing = getattr(importlib.import_module(module), name)
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing not in seen:
                seen.add(thing)
                public_names[f"{module}.{name}"] = module, thing
    return public_names


PUBLIC = public()


@pytest.fixture
def names(request, tmp_path, monkeypatch):
    """The names that docs/api.md promises to an example, with their values.

    Those that need a device exist only if the example mentions one.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rules, "_REGISTERED", [])
    module, thing = PUBLIC[request.param]
    random = np.random.default_rng(0)
    filter = random.standard_normal((4, 3, 3, 3), np.float32)
    cml.save(cml.load(cml.nnef.MemoryModel(TEXT, {"filter": filter})), "net.nnef")
    graph = cml.load("net.nnef")
    image = random.random((1, 3, 8, 8), np.float32)
    namespace = vars(cml) | vars(importlib.import_module(module)) | {
        "cml": cml, "np": np, "Path": Path, "graph": graph, "image": image,
        "picture": random.random((1, 3, 20, 30), np.float32),
        "session": cml.Session(graph, "cpu"),
    }  # fmt: skip
    if ON_GPU.search(thing.__doc__ or ""):
        gpu = request.getfixturevalue("gpu")
        namespace |= {
            "gpu": gpu, "network": cml.Session(graph, gpu), "scheduler": cml.FrameScheduler(gpu),
            "after": cml.Session(cml.load(cml.nnef.MemoryModel(AFTER)), gpu),
            "encoder": gpu.device.create_command_encoder(),
            "texture": create_texture(gpu.device, "rgba8unorm", 8, 8),
        }  # fmt: skip
    if "integer" in (thing.__doc__ or ""):
        namespace["integer"], _ = cml.quantize(graph, [{"image": image * k / 8} for k in range(8)])
    return namespace


@pytest.mark.parametrize("names", PUBLIC, indirect=True, ids=str)
def test_the_example_of_a_public_name(names, request):
    name = request.node.callspec.id
    thing = PUBLIC[name][1]
    text = inspect.getdoc(thing) or ""
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert example.examples, f"{name} has no example"
    messages = []
    # doctest would take the -v of pytest's command line as its own
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(example, out=messages.append)
    assert not messages, "".join(messages)
