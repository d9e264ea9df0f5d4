"""Tests that loading damaged models gives a graph or a CmlError, in bounded time and memory.

A few seconds here. A long run:
``CML_FUZZ=200000 python -m pytest tests/io/test_fuzz_load.py``.
"""

import os
import resource
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cml_engine as cml
from tests.fixtures.texts import HEADER, model_text, write_text
from tests.proofs.random_calls import random_call
from tests.reference.calls import OPERATORS, literal

pytestmark = pytest.mark.filterwarnings("ignore")
EXAMPLES = int(os.environ.get("CML_FUZZ", "60"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 1000,
    database=None,
    suppress_health_check=list(HealthCheck),
)
#: limits above the needs of any of these models
SECONDS, MEGABYTES = 10.0, 2000
NUMBERS = [0, -1, 1, 2, 3, 7, 64, 10**6, 2**31 - 1, 2**31, -(2**31), 2**63, 0.5, -0.0, 1e-30, 1e38]
VALUES = (
    st.sampled_from(NUMBERS)
    | st.booleans()
    | st.sampled_from(["", "constant", "reflect", "aligned", "ij,jk->ik", "../x", "\u00e9"])
    | st.lists(st.integers(-3, 9), max_size=9)
    | st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=5)
)
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 70000, 2**31 - 1]), max_size=9)
QUANT = (
    '"x0": min_max_linear_quantize(min = [[0.0], [1.0]], max = 6.0, bits = 8, signed = true,\n'
    '    symmetric = false);\n"y0": zero_point_linear_quantize(zero_point = 3, scale = [0.5, 2.0],'
    " bits = 4, signed = false, symmetric = false);\n"
)
TOKENS = [*"0 1 -1 2 64 65 1e39 0.0 [ ] [[ ( ) , ; : = \" ' true x0 y0 w".split(), "\n", "\x00"]


def load(folder, fake_quantize=False):
    """Returns the loaded graph, or None after a CmlError.

    Other errors and high costs fail the test.
    """
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        graph = cml.load(folder, fake_quantize=fake_quantize)
    except cml.CmlError as error:
        assert str(error)
        graph = None
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert time.process_time() - start < SECONDS and used < MEGABYTES
    return graph


def run(graph):
    """Runs the graph on the CPU if it is small.

    A CmlError is accepted, any other error fails the test. Some faults of a model appear only
    when it runs.
    """
    if graph is None or sum(f.size for f in graph.facts.values()) > 100_000:
        return
    if any(extent > 10_000 for f in graph.facts.values() for extent in f.shape):
        return  # no array can have the shape [0, 2^31, 2^31], although it is empty
    try:
        session = cml.Session(graph, "cpu")
        session.run({n: np.ones(f.shape) > 0 if f.dtype == "logical" else
                     np.ones(f.shape, np.int32) for n, f in session.inputs.items()})  # fmt: skip
    except cml.CmlError as error:
        assert str(error)


@FUZZ
@given(st.data())
def test_every_operator_with_any_attributes(tmp_path, data):
    """A legal call with a wrong attribute or input shape loads and runs, or raises a CmlError."""
    op = data.draw(st.sampled_from(OPERATORS))
    call = random_call(op, data.draw(st.integers(0, 30)))
    attrs = dict(call.attrs)
    if attrs and data.draw(st.booleans()):
        attrs[data.draw(st.sampled_from(sorted(attrs)))] = data.draw(VALUES)
    try:
        count = len(call.answers)
    except ValueError:
        count = 1
    text = type(call)(op, call.arrays, attrs).body(count)
    text = model_text(text, call.inputs, head=call.head())
    if data.draw(st.booleans()):
        shape = data.draw(SHAPES)
        name = data.draw(st.sampled_from(call.names))
        old = f"shape = {list(call.inputs[name].shape)}"
        text = text.replace(old, f"shape = {shape}", 1)
    (tmp_path / "graph.nnef").write_text(text, encoding="utf-8")
    run(load(tmp_path))


@FUZZ
@given(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=6), st.data())
def test_chains_of_operators(tmp_path, ops, data):
    """Random calls on each other's results load and run, or raise a CmlError."""
    lines, names = [], ["x"]
    for i, op in enumerate(ops):
        call = random_call(op, data.draw(st.integers(0, 5)))
        tensors = [data.draw(st.sampled_from([*names, "1.0", "2"])) for _ in call.arrays]
        body = call.body(1).replace("y0", f"t{i}", 1)
        for name, tensor in zip(reversed(call.names), reversed(tensors), strict=True):
            body = body.replace(name, tensor)
        lines.append(body)
        names.append(f"t{i}")
    shape = literal(data.draw(st.lists(st.integers(0, 4), max_size=5)))
    body = "\n".join([f"x = external<scalar>(shape = {shape});", *lines])
    text = f"{HEADER}graph g(x) -> ({names[-1]})\n{{\n{body}\n}}"
    (tmp_path / "graph.nnef").write_text(text)
    run(load(tmp_path))


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 8), st.sampled_from(TOKENS)),
                min_size=1, max_size=5))  # fmt: skip
def test_quantisation_lines(tmp_path, changes):
    folder = write_text(tmp_path, "y0 = x0 * 2.0;", {"x0": np.ones((2, 3))})
    text = QUANT
    for at, length, token in changes:
        at %= len(text)
        text = text[:at] + token + text[at + length :]
    (folder / "graph.quant").write_text(text)
    run(load(folder, fake_quantize=True))
