"""The part ``cooked``: networks that are cooked, loaded from their files, and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cml_engine.compiler.integer.digest import run_digest
from cml_engine.cooked.cook import cook
from cml_engine.cooked.load import Artifact, load_cooked
from cml_engine.formats.loading import load
from cml_engine.formats.sliders import with_sliders
from cml_engine.ir.graph import Array, Graph
from cml_engine.runtime.node_check import random_words
from cml_engine.runtime.session import Session
from cml_engine.tools.selftest import networks
from cml_engine.tools.selftest.context import SelfTest, expect
from cml_engine.tools.selftest.frame_loop import FrameLoop

#: the profile of integer networks: WebGPU guarantees its limits, so every device can run its plan
_PROFILE = "portable"


def check_cooked(test: SelfTest) -> None:
    """Runs cooked files with and without the driver's run-time checks.

    Integer networks must have their committed digests. A network of floats must give the outputs
    that NumPy computed when it was cooked; the part's note says which plan this device takes.
    """
    digests = networks.integer_digests()
    for name in [*digests][: 1 if test.quick else None]:
        graph = load(networks.models_folder() / "integer" / f"{name}.nnef")

        def check_digest(
            outputs: Mapping[str, Array], graph: Graph = graph, digest: str = digests[name]
        ) -> None:
            got = run_digest(graph, outputs)
            expect(got == digest, f"got {got}, expected {digest}")

        _check(test, f"integer network '{name}'", cook(graph, [_PROFILE], golden=False),
               random_words(graph, 11), check_digest)  # fmt: skip
    data = cook(_network_with_slider())
    artifact = load_cooked(data).cooked_form
    assert isinstance(artifact, Artifact) and artifact.golden
    plan, unfit = artifact.choose(test.gpu.limits)
    if plan is not None:
        test.part.note = "; ".join([f"plan '{plan.profile}'", *unfit])
    golden = artifact.golden

    def check_golden(outputs: Mapping[str, Array]) -> None:
        for name, difference in golden.differences(outputs).items():
            expect(difference <= 1, f"'{name}' differs by {difference:.3g} times the tolerance")

    _check(test, "network with a slider", data, golden.inputs, check_golden)


def _check(
    test: SelfTest,
    subject: str,
    data: bytes,
    inputs: Mapping[str, Array],
    check: Callable[[Mapping[str, Array]], None],
) -> None:
    """Checks the outputs of a cooked file's runs, at once and in frames."""
    test.begin(f"cooked: {subject}")
    for trusted in (False, True):
        how = "without run-time checks" if trusted else "with run-time checks"
        with test.check(f"{subject}, {how}"):
            session = Session(load_cooked(data, trusted=trusted), test.gpu)
            check(session.run(inputs))
            (outputs,) = FrameLoop(test.gpu).run(session, inputs)
            check(outputs)


def _network_with_slider() -> Graph:
    """Returns a convolution, multiplied by a slider, and the means of its channels."""
    builder, conv = networks.one_conv()
    scaled = builder.mul(conv, 2.0)
    graph = builder.graph(scaled=scaled, y=builder.mean_reduce(scaled, axes=[1]))
    return with_sliders(graph, {"strength": "scaled.y"})
