"""Tests of ``cml selftest``: it passes on this device, and names what was planted wrong."""

import json

import pytest

from cml_engine.gpu.program.preparation import Uniforms
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.gpu.textures import load
from cml_engine.ir.textures import FORMATS, by_channel
from cml_engine.ops.declaration.registry import registered
from cml_engine.runtime.session import session
from cml_engine.runtime.session.inputs import take_words
from cml_engine.testing import kernel_checks
from cml_engine.tools.selftest import networks
from cml_engine.tools.selftest.kernels import selected_checks
from cml_engine.tools.selftest.report import SelfTestReport

pytestmark = pytest.mark.gpu

OPERATOR = """\
import cml_engine as cml
cml.register(cml.OpSpec(
    "own", cml.ops.same_as(0), cpu=lambda attrs, x: x, kernel=cml.Kernel("own.hlsl"),
    cases=[cml.ops.Case(((1, 4, 9, 7),))],
    signature="fragment own(x: tensor<scalar>) -> (y: tensor<scalar>)",
))
"""
STATEMENTS = {
    "right": ("y[thread] = x[thread];", ""),
    "wrong values": ("y[thread] = x[thread] + 1;", "y0: "),
    "wrong slices": (
        "y[thread] = x[thread] + 1e-7 * (cml_first == 0);",
        "of the workgroups gives other bits than the whole run",
    ),
    "does not compile": ("y[thread] = z[thread];", "own.hlsl"),
}


@pytest.fixture
def run_selftest(run_cml, tmp_path, own_operators):
    """Runs ``cml selftest --quick`` with more arguments; returns its output and its report."""

    def run(words, ends=0):
        file = tmp_path / "selftest.json"
        printed = run_cml(f"selftest --quick {words} -o {file}", ends=ends)
        return printed.out, SelfTestReport.read(file)

    return run


def test_the_parts_pass_and_the_file_names_device_and_versions(run_selftest, gpu, monkeypatch):
    """The parts that no other test of this file covers pass, and the report names them."""
    digest = networks.integer_digests()["population"]
    monkeypatch.setattr(networks, "integer_digests", lambda: {"population": digest})
    parts = ("digests", "cooked", "textures", "readbacks", "sliders", "loss", "tuning")
    printed, report = run_selftest(" ".join(f"--only {p}" for p in (*parts, "relu", "box")))
    assert [part.name for part in report.parts] == ["kernels", *parts]
    assert all(part.checks and part.result == "ok" for part in report.parts)
    (note,) = (part.note for part in report.parts if part.name == "cooked")
    assert ("plan 'software" in note) == gpu.limits.software
    assert report.ok and report.quick and not report.running and "no check failed" in printed
    assert report.device["name"] == gpu.name and report.device["limits"]
    assert report.versions["wgpu"] and report.versions["numpy"]


@pytest.mark.parametrize("planted", STATEMENTS)
def test_a_wrong_kernel_is_named(planted, run_selftest, tmp_path):
    statement, reason = STATEMENTS[planted]
    (tmp_path / "own.hlsl").write_text(f"void kernel(uint thread) {{ {statement} }}")
    (tmp_path / "own.py").write_text(OPERATOR)
    printed, report = run_selftest(f"--ops {tmp_path}/own.py --only own", ends=bool(reason))
    (part,) = report.parts
    assert part.failed == bool(reason) and report.ok == (not reason)
    for message in part.failures:
        assert message.startswith("own, case (1,4,9,7)") and "by own.hlsl" in message
        assert reason in message and message.splitlines()[0] in printed


def test_a_wrong_slice_is_found_in_kernels_and_in_frames(run_selftest, monkeypatch):
    """The self-test finds a device that runs every range of workgroups one workgroup too late."""
    take_slot = Uniforms.take_slot
    monkeypatch.setattr(
        Uniforms, "take_slot", lambda self, first, end: take_slot(self, first + 1, end + 1)
    )
    parts = ("leaky_relu", "cooked", "sliders", "tuning")
    printed, report = run_selftest(" ".join(f"--only {part}" for part in parts), ends=1)
    kernels, cooked, sliders, tuning = report.parts
    assert cooked.failed == cooked.checks, cooked.failures
    assert [text.partition(":")[0].endswith("in frames") for text in sliders.failures] == 4 * [True]
    assert "gives other bits than the whole run" in kernels.failures[0]
    assert "output 'y' by other kernels, in frames" in tuning.failures[0]
    assert "something is wrong" in printed


def test_a_wrong_digest_names_the_network(run_selftest, monkeypatch):
    wrong = "sha256:" + 64 * "0"
    monkeypatch.setattr(networks, "integer_digests", lambda: {"population": wrong})
    _, report = run_selftest("--only digests", ends=1)
    (part,) = report.parts
    assert part.failed == 3
    assert part.failures[0].startswith("integer network 'population': got sha256:")
    assert f"expected {wrong}" in part.failures[0]


def test_lost_bytes_are_found(run_selftest, monkeypatch):
    digest = networks.integer_digests()["population"]
    monkeypatch.setattr(networks, "integer_digests", lambda: {"population": digest})

    def take_zeros(*arguments):
        return {name: 0 * words for name, words in take_words(*arguments).items()}

    monkeypatch.setattr(session, "take_words", take_zeros)
    _, report = run_selftest("--only digests", ends=1)
    (failure,) = report.parts[0].failures
    assert failure.startswith("integer network 'population' from bytes: ")


def test_wrong_texels_are_found_in_every_format(run_selftest, monkeypatch):
    """The self-test finds a device that reads twice the values of a texture."""

    def doubled(*arguments):
        return tuple(2 * number for number in by_channel(*arguments))

    monkeypatch.setattr(load, "by_channel", doubled)
    _, report = run_selftest("--only textures", ends=1)
    (part,) = report.parts
    assert [text.partition(",")[0] for text in part.failures] == [*FORMATS]


def test_a_slider_that_does_not_move_is_found(run_selftest, monkeypatch):
    monkeypatch.setattr(GpuProgram, "_move_sliders", lambda *_: None)
    _, report = run_selftest("--only sliders", ends=1)
    (part,) = report.parts
    moved = [text.partition(":")[0] for text in part.failures]
    assert moved == [
        f"strength {strength}, border {border}, {when}"
        for strength, border in (("0.5", "-3"), ("-4", "0"))
        for when in ("at once", "in frames")
    ]


@pytest.mark.slow
def test_networks_keep_their_bits_in_frames_beside_a_picture(timed_gpu, run_selftest):
    _, report = run_selftest("--only frames")
    budgets = report.parts[0].facts["budgets"]
    assert [row["budget_ms"] for row in budgets.values()] == [1.0, 2.0, 4.0]
    assert all(row["identical"] and row["frames"] for row in budgets.values())


def test_an_unknown_part_is_refused(refused):
    message = refused("selftest --only kernel")
    assert "there is no part or operator 'kernel'; did you mean 'kernels'" in message


def test_every_kernel_runs_every_case_and_layout(gpu):
    """The whole test has each pair of kernel and case, and of kernel and layouts; the quick one has
    each kernel."""
    for name in ("conv", "sum_reduce", "relu"):
        every = list(kernel_checks(registered()[name], gpu.limits))
        full = list(selected_checks([name], gpu.limits, quick=False))
        quick = list(selected_checks([name], gpu.limits, quick=True))

        def pairs(checks):
            of_case = {(c.option, c.case.id) for c in checks}
            return of_case | {(c.option, str(c.layouts), bool(c.graph.constants)) for c in checks}

        assert pairs(full) == pairs(every)
        assert sorted(c.option for c in quick) == sorted({c.option for c in every})


def test_the_file_of_a_crashed_test_says_where_it_was(gpu, tmp_path, monkeypatch, run_selftest):
    def crash(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(networks, "load", crash)
    file = tmp_path / "selftest.json"
    with pytest.raises(AssertionError):  # the exit code is that of an interrupt
        run_selftest("--only digests")
    data = json.loads(file.read_text())
    assert data["running"] == "digests" and not data["ok"]
