"""Tests that the Khronos parser reads the same models as the engine, with the same result.

It runs in a child process: it is a C++ extension, and what it cannot read may end the process.
"""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from cml_engine import nnef
from cml_engine.io.model_source import FolderSource, SourceFile
from cml_engine.nnef.expansion.signatures import STDLIB
from cml_engine.nnef.files.writer import to_text
from tests.fixtures.models import write_model

if importlib.util.find_spec("nnef") is None:
    pytest.skip("the nnef package is not installed", allow_module_level=True)

CHILD = """
import json, sys, nnef

def plain(value):
    if isinstance(value, nnef.Identifier):
        return "@" + str(value)
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

def operations(text):
    try:
        graph = nnef.parse_string(text)
    except nnef.Error as error:
        return str(error)
    return [[op.name, *({k: plain(v) for k, v in part.items()}
                        for part in (op.attribs, op.inputs, op.outputs))]
            for op in graph.operations]

print(json.dumps([operations(text) for text in json.load(sys.stdin)]))
"""

SKIPPED = ("external", "variable", "constant", "update")


def khronos(texts):
    """Returns a list with the Khronos parser's result for each text: its operations, or its
    error."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return list(json.loads(done.stdout))


def sample(param):
    """Returns the NNEF text of some value of a parameter's type, such as ``1.0`` or ``xs``."""
    kind = param.type
    tensors = {"integer": "xi", "logical": "xl"}
    if kind.kind == "array":
        item = kind.items[0]
        if item.kind == "tensor":
            return "[xs, xs]"
        return "[(1, 1)]" if item.kind == "tuple" else "[1]"
    if kind.kind == "tensor":
        return tensors.get(kind.name, "xs")
    return {"integer": "1", "scalar": "1.0", "logical": "true"}.get(kind.name, "'symmetric'")


def call_of(sig):
    """Returns the NNEF text of a model that calls one operator with only its required arguments."""
    given = [
        sample(p) if p.is_tensor else f"{p.name} = {sample(p)}" for p in sig.params if p.required
    ]
    results = ["[o0, o1]" if r.type.kind == "array" else f"o{i}" for i, r in enumerate(sig.results)]
    generic = "<integer>" if sig.needs_dtype else ""
    return (
        "version 1.0;\ngraph g(xs, xi, xl) -> (o0)\n{\n"
        "xs = external<scalar>(shape = [1, 2, 4, 4]);\n"
        "xi = external<integer>(shape = [1, 2, 4, 4]);\n"
        "xl = external<logical>(shape = [1, 2, 4, 4]);\n"
        f"{', '.join(results)} = {sig.name}{generic}({', '.join(given)});\n}}\n"
    )


def agree(mine, theirs):
    """Returns True if the engine's value equals the parser's; floats are compared as float32."""
    if isinstance(mine, float):
        return bool(np.float32(mine) == np.float32(theirs))
    return bool(json.loads(json.dumps(mine)) == theirs)


def test_every_signature_and_default():
    signatures = [s for s in STDLIB.signatures.values() if s.name not in SKIPPED]
    for sig, found in zip(signatures, khronos([call_of(s) for s in signatures]), strict=True):
        assert not isinstance(found, str), f"{sig.name}: {found}"
        name, attrs, inputs, outputs = found[-1]
        assert name == sig.name
        assert list(inputs) == [p.name for p in sig.tensors]
        assert list(outputs) == [r.name for r in sig.results]
        assert set(attrs) == {p.name for p in sig.attrs}
        for param in sig.attrs:
            assert param.required or agree(param.default, attrs[param.name]), (name, param.name)


TEXT = """version 1.0;
extension KHR_enable_fragment_definitions;
extension KHR_enable_operator_expressions;
fragment block(x: tensor<scalar>, n: integer) -> (y: tensor<scalar>) { y = relu(x); }
graph net(x) -> (y, z)
{
    x = external<scalar>(shape = [1, 4, 8, 8]);
    w = variable<scalar>(shape = [4, 4, 3, 3], label = 'w');
    c = conv(x, w, 0.5, padding = [(1, 1), (1, 1)]) + 0.1 * x - x / 2.0 ^ 2.0;
    [a, b] = split(c, axis = 1, ratios = [1, 3]);
    m, v = moments(a, axes = [2, 3]);
    d = concat([m, v, -a], axis = 1);
    y = select(and(d < 0.0, not(d == 1.0)), d, block(d, n = 3));
    z = cast<integer>(leaky_relu(b, alpha = 1e-5));
}
"""


def test_operators_and_operands_of_a_model(tmp_path):
    folder = write_model(tmp_path / "m", TEXT, w=np.zeros((4, 4, 3, 3), np.float32))
    graph = nnef.load(folder, lambda op: True)
    original, rewritten = khronos([TEXT, to_text(graph)])
    ours = [node.op for node in graph.nodes]
    for found in (original, rewritten):
        assert not isinstance(found, str), found
        assert [op[0] for op in found if op[0] not in SKIPPED] == ours
    written = [list(op[2].values()) for op in rewritten if op[0] not in SKIPPED]
    assert [_names(operands) for operands in written] == [list(n.inputs) for n in graph.nodes]


def _names(operands):
    """Returns a flat list of the parser's operands by the names that the engine gives them.

    A literal's name is its text.
    """
    flat = [
        o for operand in operands for o in (operand if isinstance(operand, list) else [operand])
    ]
    return [o[1:] if isinstance(o, str) else str(np.float32(o)) for o in flat]


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i4", "<u1", "<i8", "?"])
def test_tensor_files(tmp_path, dtype, rng):
    array = (rng.normal(size=(2, 3)) * 3).astype(dtype) if dtype != "<u1" else np.eye(3, dtype="u1")
    nnef.files.tensor_file.write_tensor(tmp_path / "ours.dat", array)
    np.save(tmp_path / "array.npy", array)
    script = (
        "import sys, numpy, nnef\n"
        "a, folder = numpy.load(sys.argv[1] + '/array.npy'), sys.argv[1]\n"
        "with open(folder + '/ours.dat', 'rb') as f: b = nnef.read_tensor(f)\n"
        "assert numpy.array_equal(a, b), b\n"
        "with open(folder + '/theirs.dat', 'wb') as f: nnef.write_tensor(f, a)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60, check=True)
    theirs = SourceFile(FolderSource(tmp_path, "graph.nnef"), "theirs.dat")
    np.testing.assert_array_equal(nnef.files.tensor_file.read_stored(theirs).values, array)
