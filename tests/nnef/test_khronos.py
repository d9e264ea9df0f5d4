"""Tests of every operator against the interpreter of Khronos's own ``nnef`` package, call by call.

The interpreter runs in a child process, because some calls crash it. Operators that it lacks, or
that differ from the specification, are listed here with the reason; all other answers must agree.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.nnef.expansion.signatures import STDLIB
from tests.fixtures import texts
from tests.fixtures.models import MODEL_ABC, inputs_abc, write_model_abc
from tests.proofs.random_calls import random_call
from tests.reference.calls import GRAPH_LEVEL, JUMPS, declared_calls, judge

if importlib.util.find_spec("nnef") is None:
    pytest.skip("the nnef package is not installed", allow_module_level=True)

CHILD = Path(__file__).with_name("khronos_child.py")
RANDOM = 12
#: operators that the interpreter lacks
MISSING = {
    "argmax_pool": "not implemented", "max_pool_with_index": "needs argmax_pool",
    "sample": "not implemented", "desample": "not implemented",
    **dict.fromkeys(("avg_roi_pool", "max_roi_pool", "roi_resample", "avg_roi_align",
                     "max_roi_align"), "not implemented"),
}  # fmt: skip
#: operators whose answers differ on purpose
DIFFERENT = {
    "round": "it rounds halves away from zero; the specification says floor(x + 0.5)",
    "min_max_linear_quantize": "by round", "zero_point_linear_quantize": "by round",
    "linear_quantize": "by round", "logarithmic_quantize": "by round",
    "add_n": "its definition calls itself without end", "copy_n": "not an operator there",
}  # fmt: skip
OPERATORS = [op for op in STDLIB.signatures if op not in (*GRAPH_LEVEL, *MISSING, *DIFFERENT)]
#: compounds that the interpreter expands, in its own way
LOWERED = [
    op for op, fragment in STDLIB.fragments.items()
    if fragment.body is not None and op not in (*MISSING, "copy_n", "add_n", "max_pool")
]  # fmt: skip


def refused(call):
    """Returns the reason why the interpreter's answer to a call may be wrong; "" if it is right."""
    attrs, arrays = call.attrs, call.arrays
    checks = {
        "an extent of 0": any(a.size == 0 for a in arrays),
        "a border other than constant": attrs.get("border", "constant") != "constant"
        and call.op not in ("pad", "multilinear_upsample"),
        "batches that broadcast: it reads beyond them": call.op == "matmul"
        and arrays[0].shape[:-2] != arrays[1].shape[:-2],
        "an end of 0 beside other strides than 1": call.op == "slice"
        and 0 in attrs["end"]
        and len(set(attrs.get("stride", [1]))) > 1,
        "reflections of reflections: it reads beyond": call.op == "pad"
        and any(max(p) >= e for p, e in zip(attrs["padding"], arrays[0].shape, strict=True)),
        "an exponential that overflows": call.op == "softplus" and arrays[0].max(initial=0) > 80,
        "normalize of debox": call.op == "debox" and attrs.get("normalize", False),
        "NaN and infinities": not all(np.isfinite(a).all() for a in arrays if a.dtype.kind == "f"),
    }
    return next((why for why, found in checks.items() if found), "")


def calls_of(op):
    small = (c for c in declared_calls(op) if sum(a.size for a in c.arrays) < 20_000)
    random = (random_call(op, seed) for seed in range(RANDOM))
    yield from (c for c in (*small, *random) if not refused(c))


def write(call, folder):
    """Writes a call's model and its inputs to a folder in the format that the child reads.

    Returns the folder.
    """
    right = call.answers
    inputs = {n: texts.engine(a) for n, a in call.inputs.items()}
    texts.write_text(folder, call.body(len(right)), inputs)
    for i, array in enumerate(inputs.values()):
        np.save(folder / f"input_{i:03}.npy", np.ascontiguousarray(array))
    return folder


def run(folders):
    """Returns the child's line for each model, in order: ``done N``, ``error …`` or ``died``.

    After a crash a new child takes the remaining models.
    """
    said = []
    while len(said) < len(folders):
        child = subprocess.run(
            [sys.executable, str(CHILD), ",".join(LOWERED)],
            input="\n".join(map(str, folders[len(said) :])),
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        said += [line for line in child.stdout.splitlines() if line.startswith(("done", "error"))]
        if len(said) < len(folders):
            assert child.returncode != 0, child.stderr
            said.append("died")
    return said


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """A list of (call, folder, child's line) for each operator, by the operator's name."""
    base = tmp_path_factory.mktemp("khronos")
    work = [(op, call) for op in OPERATORS for call in calls_of(op)]
    folders = [write(call, base / str(i)) for i, (_, call) in enumerate(work)]
    found = {op: [] for op in OPERATORS}
    for (op, call), folder, line in zip(work, folders, run(folders), strict=True):
        found[op].append((call, folder, line))
    return found


def test_the_blogs_network(backend, tmp_path):
    """The network of the CML blog, with the version line that Khronos's parser demands."""
    folder = write_model_abc(tmp_path / "model_abc.nnef")
    (folder / "graph.nnef").write_text("version 1.0;\n" + MODEL_ABC)
    for i, array in enumerate(inputs_abc().values()):
        np.save(folder / f"input_{i}.npy", array)
    assert run([folder]) == ["done 2"]
    outputs = cml.Session(cml.load(folder), backend).run(inputs_abc())
    for i, name in enumerate(("output1", "output2")):
        theirs = np.load(folder / f"result_{i}.npy")
        np.testing.assert_allclose(outputs[name], theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("op", OPERATORS)
def test_khronos_interpreter_agrees(op, verdicts, tmp_path):
    compared = 0
    for call, folder, said in verdicts[op]:
        if not said.startswith("done"):
            continue
        theirs = [np.load(folder / f"result_{i}.npy") for i in range(int(said.split()[1]))]
        ours = call.run(tmp_path, "cpu", len(theirs))
        pairs = [(a, b.astype(a.dtype)) for a, b in zip(ours, theirs, strict=True)]
        # if rounding decides, the two may differ, and both are right by the formula
        jumps = call.verdicts([b for _, b in pairs]) if op in JUMPS else []
        for verdict in jumps or [judge(op, a, b) for a, b in pairs]:
            assert verdict.ok, f"{op} {dict(call.attrs)}: {verdict.problem}"
        compared += 1
    said = {line for _, _, line in verdicts[op]}
    assert compared, f"{op}: {compared} of {len(verdicts[op])} calls compared: {said}"
