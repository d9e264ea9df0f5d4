"""The parts ``digests``, ``networks`` and ``tuning``: whole networks on the device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

import numpy as np

from cml_engine.compiler.integer.digest import run_digest
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.formats.graph_builder import GraphBuilder, Tensor
from cml_engine.formats.loading import load
from cml_engine.io.json_files import read_json
from cml_engine.ir.graph import Array, Graph
from cml_engine.ops.declaration.choice import TunedChoice, VariantTable
from cml_engine.runtime.node_check import check_bits, check_nodes, random_words
from cml_engine.runtime.session import CompileOptions, Session, random_inputs
from cml_engine.runtime.session.inputs import Words, quantized_inputs
from cml_engine.tools.selftest import random_networks
from cml_engine.tools.selftest.context import CheckFailed, SelfTest, expect
from cml_engine.tools.selftest.frame_loop import FrameLoop
from cml_engine.tools.selftest.random_networks import RandomNetwork
from cml_engine.tuning import Bench, tune

#: the demo's networks with floats that need no operators of the demo
_AGENTS = ("upres", "texture", "population")
#: networks with random weights, by name; those of the quick test first
_RANDOM: dict[str, Callable[[], RandomNetwork]] = {
    "mobilenet": random_networks.mobilenet,
    "gpt": random_networks.gpt,
    "unet": random_networks.unet,
    "rrdb": random_networks.rrdb,
    "vit": random_networks.vit,
}
_QUICK_AGENTS, _QUICK_RANDOM = 1, 2
#: the largest difference of tuned kernels' outputs, as a share of the largest value
_TUNED_ERROR = 1e-3
_RUNS = 5


def models_folder() -> Path:
    """Returns the folder of the demo's trained networks."""
    return Path(__file__).parents[2] / "demo_game" / "models"


def integer_digests() -> dict[str, str]:
    """Returns the digests of the demo's integer networks by name, equal on every device.

    The inputs are ``random_words(graph, 11)``.
    """
    found: dict[str, str] = read_json(models_folder() / "integer" / "digests.json")
    return found


def check_digests(test: SelfTest) -> None:
    """Compares integer networks' outputs with committed digests: at once, in frames, from bytes.

    Where they differ, the message names the first tensor that differs from NumPy.
    """
    for name, digest in integer_digests().items():
        graph = load(models_folder() / "integer" / f"{name}.nnef")
        session, inputs = Session(graph, test.gpu), random_words(graph, 11)
        with test.check(f"integer network '{name}'"):
            outputs = session.run(inputs)
            got = run_digest(graph, outputs)
            if got != digest:
                problem = check_bits(graph, test.gpu, inputs)
                raise CheckFailed(f"got {got}, expected {digest}; {problem}")
        with test.check(f"integer network '{name}' in frames"):
            (outputs,) = FrameLoop(test.gpu).run(session, inputs)
            expect(run_digest(graph, outputs) == digest, "the digest differs from that of a run")
        with test.check(f"integer network '{name}' from bytes"):
            outputs = session.run(_as_words(session, inputs))
            expect(run_digest(graph, outputs) == digest, "the digest differs from that of numbers")


def _as_words(session: Session, inputs: Mapping[str, Array]) -> dict[str, Array | Words]:
    """Returns inputs of an integer network as the bytes that they round to."""
    given: dict[str, Array | Words] = dict(inputs)
    for name, conversion in quantized_inputs(session.graph).items():
        words = np.rint(inputs[name] * np.float32(conversion.inverse))
        dtype = np.int8 if conversion.low < 0 else np.uint8
        given[name] = Words(words.clip(conversion.low, conversion.high).astype(dtype))
    return given


def check_networks(test: SelfTest) -> None:
    """Compares every operator of networks with NumPy, and times the networks."""
    times: dict[str, float] = {}
    for name, graph in _networks(test):
        test.begin(f"networks: {name}")
        session = Session(graph, test.gpu)
        inputs = random_inputs(session.inputs)
        for done, node in enumerate(check_nodes(session.graph, test.gpu, inputs)):
            with test.check(f"{name}, {node.node.title}"):
                expect(node.ok, f"{node.comparison and node.comparison.problem}; {node.advice}")
            test.show(f"networks: {name}", done + 1, len(session.graph.nodes))
        run = session.timer(inputs)
        times[name] = round(median(run() for _ in range(_RUNS)), 3)
    test.part.facts["ms"] = times
    test.part.note = ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())


def _networks(test: SelfTest) -> Iterator[tuple[str, Graph]]:
    """Yields the names and graphs of the networks to check."""
    agents = _AGENTS[-_QUICK_AGENTS:] if test.quick else _AGENTS
    for name in agents:
        yield f"agent-{name}", load(models_folder() / f"{name}.nnef")
    for name in [*_RANDOM][: _QUICK_RANDOM if test.quick else None]:
        yield name, random_graph(_RANDOM[name]())
    for model in test.models:
        yield Path(model).name, load(model)


def random_graph(network: RandomNetwork) -> Graph:
    """Returns the graph of a network with random weights."""
    with tempfile.TemporaryDirectory(prefix="cml-selftest-") as folder:
        param = Path(folder, "network.param")
        network.save(param, param.with_suffix(".bin"))
        return load(param)


def check_tuning(test: SelfTest) -> None:
    """Measures all kernels of a network, and runs it by the fastest that the rules do not choose.

    Its outputs must be near those of the default kernels, and bit-identical in frames. No table is
    written.
    """
    builder, conv = one_conv()
    graph = builder.graph(y=conv) if test.quick else random_graph(random_networks.mobilenet())
    plain = Session(graph, test.gpu, CompileOptions(tuned=False))
    count = len(Bench(plain).candidates)
    report = tune(
        plain, rounds=2 if test.quick else 5, dry_run=True,
        progress=lambda done: test.show("tuning", done, count),
    )  # fmt: skip
    picks = {}
    for measured in report.measured:
        times = {n: ms for n, ms in measured.trial.ms().items() if n != measured.trial.default}
        if times:
            picks[measured.candidate.key] = TunedChoice(min(times, key=times.__getitem__))
    options = CompileOptions(plan=PlanOptions(variants=VariantTable(picks)))
    tuned, inputs = Session(graph, test.gpu, options), random_inputs(plain.inputs)
    expected, got = plain.run(inputs), tuned.run(inputs)
    (sliced,) = FrameLoop(test.gpu).run(tuned, inputs)
    for name, values in got.items():
        with test.check(f"output '{name}' by other kernels"):
            _assert_near(values, expected[name])
        with test.check(f"output '{name}' by other kernels, in frames"):
            np.testing.assert_array_equal(sliced[name], values)
    won = {m.candidate.key: m.record.chosen for m in report.won if m.record is not None}
    test.part.facts |= {"network": graph.name, "won": won, "ratio": round(report.ratio, 3)}
    test.part.note = (
        f"{len(won)} of {len(report.measured)} choices are faster by another kernel, the network "
        f"{report.ratio:.2f} times as long"
    )


def one_conv() -> tuple[GraphBuilder, Tensor]:
    """Returns a builder with a convolution of its input, and the result."""
    builder = GraphBuilder("conv")
    weights = np.random.default_rng(1).standard_normal((24, 16, 3, 3), np.float32)
    return builder, builder.conv(builder.input("x", (1, 16, 33, 47)), weights, 0.5)


def _assert_near(values: Array, expected: Array) -> None:
    largest = float(np.abs(expected).max())
    error = float(np.abs(values - expected).max())
    expect(
        bool(error <= _TUNED_ERROR * largest),
        f"differs by {error:.3g}, the largest is {largest:.3g}",
    )
