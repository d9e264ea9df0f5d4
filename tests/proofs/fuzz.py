"""Random graphs on every backend, with random passes disabled: all must agree.

    python -m tests.proofs.fuzz --minutes 5 --seed 7   # until the time is up; writes failures
    python -m tests.proofs.fuzz --cases 20 --backends cpu
    python -m tests.proofs.fuzz --seed 7 --first 12 --cases 1   # this case again
    python -m tests.proofs.fuzz --integer --cases 200  # integer networks
    python -m tests.proofs.fuzz --hardware   # kernels that hardware with the limits of WebGPU takes
    python -m tests.proofs.fuzz --strangers --minutes 20   # damaged files: fixtures/strangers.py
    python -m tests.proofs.fuzz --counted --minutes 5   # ONNX: fixtures/counted_models.py

A case is a graph of a dozen operators (fixtures/fuzz_graphs.py), its inputs and the disabled
passes. Every fifth graph is an ONNX model that computes with selections, if ``onnx`` is installed
(fixtures/counted_models.py); with ``--counted`` ONNX Runtime answers these models. The reference is
the unoptimized graph, node by node in NumPy. NumPy and the GPU after the passes are compared with
it, and so is the graph after it was written and loaded, as ONNX with its nodes in several orders.
Every node on the GPU is compared with NumPy on the GPU's own inputs, in 32 and in 16 bits. These
runs must be bit-identical: the whole run, any partition of its workgroups, a run without reuse of
memory, and one whose larger tensors are bound in parts. The accepted rounding error is measured:
the reference runs again with every result moved by the tolerance that its operator declares.

Integer networks (fixtures/integer/random_networks.py) must be bit-identical to the reference: from
a session, from a file, cooked, in slices, in parts, and tensor by tensor.

A failure is minimized, node by node, and printed as NNEF text. Exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.optimize import STAGES
from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.planning.draft import PlanOptions, Storage
from cml_engine.cooked.cook import cook
from cml_engine.cooked.load import load_cooked
from cml_engine.cpu.compare import allowance, node_tolerance
from cml_engine.cpu.cpu_program import run_node
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Graph, Node
from cml_engine.ir.limits import Limits
from cml_engine.nnef.files.writer import save, to_text
from cml_engine.runtime.node_check import check_bits, check_nodes
from cml_engine.runtime.session import CompileOptions, make_plan
from cml_engine.testing import SENTINEL, random_partition
from tests.fixtures import strangers
from tests.fixtures.fuzz_graphs import FuzzCase, random_case
from tests.fixtures.integer.random_networks import random_integer_case
from tests.proofs.campaign import FAILS, Outcome, run_cases

Values = dict[str, Array]
#: passes that may be disabled; "infer" may not
PASSES = (*(name for name, _, _ in STAGES if name not in ("infer", "sweep")), "views")
#: runs with moved results
_MOVED = 6
#: the accepted multiple of the distance of moved results
_ALLOWED = 4.0
#: operators of a graph
_NODES = 12
#: runs of a graph with variables
_RUNS = 2


@dataclass(frozen=True)
class FuzzReference:
    """The right outputs of each run in order, and the accepted difference of each value.

    A difference of NaN accepts any value.
    """

    values: list[Values]
    allowed: list[Values]


@dataclass(frozen=True)
class Failure:
    """A failed check of a case, the problem in words, and the passes that were disabled.

    ``check`` is a name in :data:`CHECKS` or :data:`INTEGER_CHECKS`.
    """

    check: str
    problem: str
    case: FuzzCase
    without: frozenset[str]


# ---------------------------------------------------------------- the reference


def evaluate(graph: Graph, inputs: Values, rng: np.random.Generator | None = None) -> list[Values]:
    """Runs a graph node by node in NumPy and returns the outputs of every run.

    A graph with variables is run ``_RUNS`` times, another one once. With ``rng`` every result is
    moved up or down by its operator's tolerance.
    """
    if graph.integer:
        graph = lower_to_integers(graph).graph
    state = {name: graph.constants[name] for name, _ in graph.updates}
    runs = []
    for _ in range(_RUNS if graph.updates else 1):
        values = computed_values(graph, {**state, **inputs}, rng)
        runs.append({name: np.array(values[name]) for name in graph.outputs})
        state = {variable: values[value] for variable, value in graph.updates}
    return runs


def computed_values(graph: Graph, given: Values, rng: np.random.Generator | None = None) -> Values:
    """Returns the values of all tensors of one run by name."""
    values = {**graph.constants, **given}
    for node in graph.nodes:
        arrays = [values[n] for n in node.reads]
        results = [
            np.asarray(result, NUMPY_DTYPE[graph.facts[name].dtype])
            for name, result in zip(node.outputs, run_node(node, arrays), strict=True)
        ]
        if rng is not None:
            results = [_moved(value, node_tolerance(node), rng) for value in results]
        values.update(zip(node.outputs, results, strict=True))
    return values


def _moved(value: Array, tolerance: Any, rng: np.random.Generator) -> Array:
    if value.dtype.kind != "f" or not value.size:
        return value
    with np.errstate(all="ignore"):
        by = allowance(value, tolerance) * rng.choice([-1.0, 1.0], value.shape)
        return (value + by).astype(np.float32)


def reference(case: FuzzCase) -> FuzzReference:
    """Returns the outputs of the unoptimized graph in NumPy and their accepted differences.

    An integer network's accepted differences are 0.
    """
    values = evaluate(case.graph, case.inputs)
    if case.graph.integer:
        return FuzzReference(values, [{n: np.zeros(a.shape) for n, a in v.items()} for v in values])
    rng = np.random.default_rng(0)
    moved = [evaluate(case.graph, case.inputs, rng) for _ in range(_MOVED)]
    allowed = [
        {name: _allowed(value, [m[run][name] for m in moved]) for name, value in found.items()}
        for run, found in enumerate(values)
    ]
    return FuzzReference(values, allowed)


def _allowed(value: Array, moved: list[Array]) -> Array:
    """Returns the accepted difference of each value, from results with rounding errors (``moved``).

    It is NaN if rounding decides the value, or whether it is a number.
    """
    if value.dtype.kind != "f":
        stays = np.all([m == value for m in moved], 0)
        return np.where(stays, 0.0, np.nan)
    with np.errstate(all="ignore"):
        stays = np.all([_kind(m) == _kind(value) for m in moved], 0)
        exact = value.astype(np.float64)
        spread = np.max([np.abs(m - exact) for m in moved], 0)
        largest = np.abs(np.where(np.isfinite(exact), exact, 0)).max(initial=0)
        limit = _ALLOWED * spread + 2e-6 * (np.abs(exact) + largest) + 1e-6
        # a value that moves by its own size carries no information; above 1e30 sums may overflow
        vague = (spread > 0.1 * (1 + np.abs(exact))) | (np.abs(exact) > 1e30)
        limit = np.where(np.isfinite(exact), limit, 0.0)
        return np.where(stays & ~(vague & np.isfinite(exact)), limit, np.nan)


def _kind(value: Array) -> Array:
    """Returns for each value 0 if it is finite, 1 for NaN, 2 for infinity and 3 for minus
    infinity."""
    return np.where(np.isnan(value), 1, 0) + np.isposinf(value) * 2 + np.isneginf(value) * 3


def difference(runs: Sequence[Values], right: FuzzReference) -> str:
    """Describes the first output that exceeds the accepted difference; "" if there is none."""
    for run, (found, expected, allowed) in enumerate(
        zip(runs, right.values, right.allowed, strict=True)
    ):
        for name, value in expected.items():
            if found[name].shape != value.shape or found[name].dtype != value.dtype:
                return f"{name}: {found[name].dtype}{list(found[name].shape)}, wanted " + (
                    f"{value.dtype}{list(value.shape)}"
                )
            wrong = _wrong(found[name], value, allowed[name])
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                return (
                    f"run {run}, {name} at {list(at)}: got {found[name][at]}, wanted {value[at]}, "
                    f"allowed {allowed[name][at]:.3g}; {int(wrong.sum())} of {wrong.size}"
                )
    return ""


def _wrong(got: Array, wanted: Array, allowed: Array) -> Array:
    if wanted.dtype.kind != "f":
        return np.asarray((got != wanted) & ~np.isnan(allowed))
    with np.errstate(invalid="ignore"):
        far = np.abs(got.astype(np.float64) - wanted) > allowed
    exact = (allowed == 0) & ~np.isnan(wanted)  # bit-identical, because 0 has a sign
    far |= exact & (np.signbit(got) != np.signbit(wanted))
    return np.asarray(((_kind(got) != _kind(wanted)) | far) & ~np.isnan(allowed))


# ---------------------------------------------------------------- comparisons with it


@dataclass
class FuzzBench:
    """A case during its checks, with its disabled passes and a folder for files.

    The reference is computed once, when a check first needs it. Without a GPU ``gpu`` is None.
    """

    case: FuzzCase
    without: frozenset[str]
    gpu: Any
    folder: Path
    _right: FuzzReference | None = None

    @property
    def right(self) -> FuzzReference:
        self._right = self._right or reference(self.case)
        return self._right

    def options(self, **more: Any) -> CompileOptions:
        return CompileOptions(without=self.without, tuned=False, cpu="refuse", **more)

    def session(self, backend: Any) -> cml.Session:
        return cml.Session(self.case.graph, backend, self.options())

    def runs(self, session: cml.Session) -> list[Values]:
        """Returns the outputs of each run; those with a counted axis have their largest extent."""
        given = session.check_inputs(self.case.inputs)
        return [session.program.run(given) for _ in self.right.values]


def _on_cpu(bench: FuzzBench) -> str:
    session = bench.session("cpu")
    problem = difference(bench.runs(session), bench.right)
    session.reset()
    return problem or difference(bench.runs(session), bench.right)


def _written(bench: FuzzBench) -> str:
    """Returns "" if saving and loading the graph keeps its results bit-identical, else the
    problem."""
    save(bench.case.graph, bench.folder, overwrite=True)
    graph = cml.load(bench.folder)
    given = dict(zip(graph.inputs, bench.case.inputs.values(), strict=True))
    for got, expected in zip(evaluate(graph, given), bench.right.values, strict=True):
        found = dict(zip(expected, got.values(), strict=True))
        if problem := _other_bits(found, expected, "after it was written and loaded"):
            return problem
    return ""


def _unsorted(bench: FuzzBench) -> str:
    """Returns "" if the order of nodes in an ONNX file does not matter, else the problem.

    A graph that ONNX cannot express, and a machine without the ``onnx`` package, pass.
    """
    if find_spec("onnx") is None:
        return ""
    import onnx

    from tests.fixtures.onnx_models import load, shuffled

    file = bench.folder / "net.onnx"
    try:
        cml.save(bench.case.graph, file, overwrite=True)
    except cml.CmlError:
        return ""
    model, rng = onnx.load(file), np.random.default_rng(len(bench.case.graph.nodes))
    expected, *others = (
        evaluate(graph, dict(zip(graph.inputs, bench.case.inputs.values(), strict=True)))[0]
        for graph in (load(made) for made in (model, *(shuffled(model, rng) for _ in range(3))))
    )
    for found in others:
        if problem := _other_bits(found, expected, "with the nodes in another order"):
            return problem
    return ""


def _on_gpu(bench: FuzzBench) -> str:
    return difference(bench.runs(bench.session(bench.gpu)), bench.right)


def _facts(bench: FuzzBench) -> str:
    """Returns "" if the optimized graph has the facts that its operators infer, else the tensor
    that has others."""
    graph = bench.session("cpu").graph
    inferred = infer_facts(graph).facts
    names = [name for node in graph.nodes for name in node.outputs]
    wrong = next((name for name in names if graph.facts[name] != inferred[name]), "")
    return f"{wrong} is {graph.facts[wrong]}, inferred {inferred[wrong]}" if wrong else ""


def _any_slices(bench: FuzzBench) -> str:
    """Returns "" if random slices, and unshared memory, give bit-identical results, else the
    problem."""
    session = bench.session(bench.gpu)
    program = session.program
    assert isinstance(program, GpuProgram) and session.plan is not None
    expected = program.run(bench.case.inputs)
    whole = [(step.index, 0, step.groups) for step in session.plan.steps]
    for seed in range(2):
        session.reset()
        inspect.fill_arena(program, SENTINEL + seed)
        inspect.run_ranges(program, bench.case.inputs, random_partition(whole, seed))
        places = session.plan.outputs.items()
        found = {name: inspect.read_tensor(program, place) for name, place in places}
        if problem := _other_bits(found, expected, f"in partition {seed} of the workgroups"):
            return problem
    options = bench.options(plan=PlanOptions(keep=True))
    apart = GpuProgram(make_plan(session.graph, bench.gpu, options), bench.gpu)
    return _other_bits(apart.run(bench.case.inputs), expected, "where no memory is used twice")


def _in_parts(bench: FuzzBench) -> str:
    """Returns "" if binding the larger tensors in parts keeps all bits, else the problem."""
    session = bench.session(bench.gpu)
    assert session.plan is not None
    expected = session.program.run(bench.case.inputs)
    largest = max((b.nbytes for step in session.plan.steps for b in step.bindings), default=0)
    limits = replace(bench.gpu.limits, max_binding_bytes=max(largest // 3, 256))
    device: Any = SimpleNamespace(limits=limits, name=bench.gpu.name)
    try:
        plan = make_plan(session.graph, device, bench.options())
    except cml.DeviceError:
        return ""  # atomic operations, or more parts than the device has bindings
    found = GpuProgram(plan, bench.gpu).run(bench.case.inputs)
    return _other_bits(found, expected, f"where {', '.join(plan.parts)} are bound in parts")


def _other_bits(found: Mapping[str, Array], wanted: Mapping[str, Array], how: str) -> str:
    """Returns the outputs that are not bit-identical, in words; "" if all are."""
    names = [name for name, value in wanted.items() if not _same_bits(found[name], value)]
    return f"{', '.join(names)}: other bits {how}" if names else ""


def _same_bits(a: Array, b: Array) -> bool:
    """Returns True if the arrays are bit-identical; all NaNs count as equal, as drivers differ
    in them."""
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


def _each_node(bench: FuzzBench, storage: Storage = "float") -> str:
    graph = bench.session("cpu").graph
    for check in check_nodes(graph, bench.gpu, bench.case.inputs, storage):
        if check.comparison is not None and not check.ok:
            fused = "+".join(e.op for e in check.node.epilogues)
            return f"{check.node.title} {fused}: {check.comparison.problem}"
    return ""


def _each_tensor(bench: FuzzBench) -> str:
    """Returns the first wrong tensor of an integer network in words; "" if all are bit-identical.

    Each tensor has memory of its own.
    """
    return check_bits(bench.case.graph, bench.gpu, bench.case.inputs).first


def _cooked(bench: FuzzBench) -> str:
    cooked = cook(bench.case.graph, ["portable"], golden=False)
    return difference(bench.runs(cml.Session(load_cooked(cooked), bench.gpu)), bench.right)


_OF_ALL: dict[str, Callable[[FuzzBench], str]] = {
    "cpu": _on_cpu, "written": _written, "gpu": _on_gpu, "slices": _any_slices, "parts": _in_parts,
}  # fmt: skip
CHECKS = {
    **_OF_ALL, "facts": _facts, "unsorted": _unsorted, "nodes": _each_node,
    "half": partial(_each_node, storage="half"),
}  # fmt: skip
INTEGER_CHECKS = {**_OF_ALL, "tensors": _each_tensor, "cooked": _cooked}
ON_CPU = ("cpu", "facts", "written", "unsorted")


def problem_of(check: str, bench: FuzzBench) -> str:
    """Returns the problem that a check finds, or the error that it raises; "" if it passes."""
    try:
        return {**CHECKS, **INTEGER_CHECKS}[check](bench)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def runs_at_all(case: FuzzCase) -> bool:
    """Returns True if NumPy can run the case; it cannot if a random index is out of range."""
    try:
        reference(case)
    except cml.CmlError:
        return False
    return True


# ---------------------------------------------------------------- smaller


def minimized(failure: Failure, gpu: Any, folder: Path, seconds: float = 60.0) -> Failure:
    """Returns a smaller failure of the same check, found by removing nodes, outputs and disabled
    passes.

    The search ends after ``seconds``. The result's problem is that of the smaller case.
    """
    end = time.monotonic() + seconds
    shrunk = True
    while shrunk and time.monotonic() < end:
        shrunk = False
        for case, without in _smaller(failure):
            if time.monotonic() > end:
                break
            if not runs_at_all(case):
                continue
            problem = problem_of(failure.check, FuzzBench(case, without, gpu, folder))
            if problem:
                failure, shrunk = Failure(failure.check, problem, case, without), True
                break
    return failure


def _smaller(failure: Failure) -> Iterator[tuple[FuzzCase, frozenset[str]]]:
    """Yields cases with one change each: without an output, an update, a disabled pass or a node.

    A case comes with its disabled passes.
    """
    case, without, graph = failure.case, failure.without, failure.case.graph
    for name in graph.outputs if len(graph.outputs) > 1 else ():
        yield _swept(case, outputs=tuple(n for n in graph.outputs if n != name)), without
    for update in graph.updates:
        yield _swept(case, updates=tuple(u for u in graph.updates if u != update)), without
    yield from ((case, without - {name}) for name in without)
    made = {name for node in graph.nodes for name in node.outputs}
    for node in reversed(graph.nodes):
        others = [n for n in graph.outputs if n not in node.outputs]
        before = [n for n in node.inputs if n in made]
        if len(others) < len(graph.outputs) and (others or before):
            yield _swept(case, outputs=tuple(dict.fromkeys([*others, *before]))), without
        if others and not graph.integer:
            yield _cut(case, node, tuple(others)), without


def _cut(case: FuzzCase, node: Node, outputs: tuple[str, ...]) -> FuzzCase:
    """Returns the case without a node; the node's results become inputs with the values they had.

    ``outputs`` are the outputs of the new graph.
    """
    values = computed_values(case.graph, case.inputs)
    inputs = (*case.graph.inputs, *node.outputs)
    nodes = tuple(n for n in case.graph.nodes if n is not node)
    given = FuzzCase(case.graph, {n: values[n] for n in inputs})
    return _swept(given, inputs=inputs, nodes=nodes, outputs=outputs)


def _swept(case: FuzzCase, **changes: Any) -> FuzzCase:
    """Returns the case with ``changes`` to its graph, without the nodes and inputs that are then
    unused."""
    swept = eliminate_dead_code(case.graph.with_(**changes))
    read = {n for node in swept.nodes for n in node.reads} | set(swept.roots)
    inputs = tuple(n for n in swept.inputs if n in read)
    return FuzzCase(swept.with_(inputs=inputs), {n: case.inputs[n] for n in inputs})


# ---------------------------------------------------------------- runs


def drawn(
    seed: int, number: int, nodes: int, integer: bool = False
) -> tuple[FuzzCase, frozenset[str]]:
    """Returns a random case and the names of up to three passes to disable.

    The seed and the number determine both. Every fourth case has odd input values, and every
    fifth one computes with selections.
    """
    rng = np.random.default_rng([seed, number])
    odd = number % 4 == 3
    counted = None if integer or number % 5 != 4 else _counted_case(1000 * seed + number)
    case = counted or (random_integer_case if integer else random_case)(rng, nodes, odd)
    left_out = rng.choice(len(PASSES), int(rng.integers(0, 4)), replace=False)
    return case, frozenset(PASSES[i] for i in left_out)


def _counted_case(seed: int) -> FuzzCase | None:
    """Returns the graph of an ONNX model that computes with selections; None without ``onnx``."""
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        return None
    from tests.fixtures.counted_models import random_counted_model

    data, inputs = random_counted_model(seed)
    return FuzzCase(cml.load(data), inputs)


def failures_of(
    seed: int,
    number: int,
    nodes: int,
    gpu: Any,
    folder: Path,
    checks: Sequence[str],
    integer: bool = False,
) -> list[Failure]:
    """Makes the case of a number, runs the checks on it, and returns the failures.

    Returns [] if NumPy cannot run the case.
    """
    case, without = drawn(seed, number, nodes, integer)
    if not runs_at_all(case):
        return []
    bench = FuzzBench(case, without, gpu, folder)
    problems = [(check, problem_of(check, bench)) for check in checks]
    return [Failure(check, problem, case, without) for check, problem in problems if problem]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--cases", type=int, default=0, help="so many instead of some minutes")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backends", nargs="+", choices=("cpu", "gpu"), default=["cpu", "gpu"])
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), metavar="DIR")
    parser.add_argument("--checks", nargs="+", metavar="NAME", help="only these of the checks")
    parser.add_argument("--integer", action="store_true", help="integer networks instead")
    parser.add_argument("--hardware", action="store_true", help="plan as for hardware")
    parser.add_argument("--counted", action="store_true", help="selections, and ONNX Runtime")
    parser.add_argument("--strangers", action="store_true", help="damaged files, and all readers")
    parser.add_argument(
        "--readers", nargs="+", choices=strangers.READERS, default=strangers.READERS, metavar="NAME"
    )
    a = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with ExitStack() as stack:
        gpu = cml.Gpu() if "gpu" in a.backends and not a.strangers else None
        if gpu is not None and a.hardware:
            gpu.limits = Limits()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = partial(_of_counted, gpu) if a.counted else partial(_of_graphs, a, gpu, folder)
        if a.strangers:
            run = strangers.checked(a.seed, stack, a.keep, a.readers)
        numbers = range(a.first, a.first + a.cases) if a.cases else count(a.first)
        return run_cases(map(run, numbers), math.inf if a.cases else a.minutes)


def _of_counted(gpu: Any, number: int) -> Sequence[Outcome]:
    """Compares a random model of selections on each backend with ONNX Runtime."""
    from tests.fixtures.counted_models import NO_ANSWER, check_counted_model

    backends = ["cpu", *([] if gpu is None else [gpu])]
    said = [check_counted_model(number, backend) for backend in backends]
    if said[0] == NO_ANSWER:
        return [(NO_ANSWER, "")]
    ends = [(FAILS, f"case {number}: {problem}") for problem in said if problem]
    return ends or [("agree", "")]


def _of_graphs(a: argparse.Namespace, gpu: Any, work: Path, number: int) -> Sequence[Outcome]:
    """Runs the checks on the graph of a number, and minimizes each failure.

    Returns a pair of ``FAILS`` and a description for each failure, or one pair ``("agree", "")``.
    """
    known = INTEGER_CHECKS if a.integer else CHECKS
    able = [c for c in known if gpu is not None or c in ON_CPU]
    checks = [c for c in able if c in (a.checks or able)]
    ends = []
    for failure in failures_of(a.seed, number, _NODES, gpu, work, checks, a.integer):
        smaller = minimized(failure, gpu, work)
        said = f"case {number}, {failure.check}: {failure.problem}\n  smaller: {smaller.problem}, "
        said += f"without {sorted(smaller.without)}\n{to_text(smaller.case.graph)}"
        ends.append((FAILS, said))
    return ends or [("agree", "")]


if __name__ == "__main__":
    sys.exit(main())
