"""Tests of tuning on a device: networks of one node, the report, and sessions that use the
table."""

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import Tuning
from cml_engine.compiler import tuning_tables as tables
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.tuning_tables import Record, save
from cml_engine.gpu.device import PipelineCache
from cml_engine.io.data_folders import tuning_file
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.tuning import Bench, tune
from tests.fixtures.frames.host import Host
from tests.fixtures.frames.turns import turns
from tests.fixtures.graphs import Net, check_session
from tests.fixtures.models import write_model
from tests.fixtures.operators import declare

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CML_TUNING_DIR", str(tmp_path))
    monkeypatch.setattr(tables, "_shipped_records", lambda device: {})
    return tmp_path


def net(layers=2, channels=8, size=12):
    """Returns a graph of ``layers`` 3x3 convolutions, a depthwise one, and a sum over each
    channel."""
    made, h = Net(1, channels, size, size), "x"
    for _ in range(layers):
        h = made.conv(h, channels)
    return made.graph(made.op("sum_reduce", made.conv(h, channels, groups=0), axes=[2, 3]))


def record_for(choice, option):
    return Record(
        choice.key, choice.default, option, {choice.default: 2.0, option: 1.0}, 0.5, 9, ""
    )


def other_option(choice):
    return next(name for name in choice.options if name != choice.default)


def test_tuned_session_gives_reference_results(gpu, rng):
    graph = net()
    plain = cml.Session(graph, gpu)
    assert plain.plan.choices and not any(c.tuned for c in plain.plan.choices)
    save(gpu.name, [record_for(c, other_option(c)) for c in plain.plan.choices])
    tuned = check_session(graph, gpu, {"x": rng.standard_normal((1, 8, 12, 12), np.float32)}, 1e-4)
    assert all(c.tuned for c in tuned.plan.choices)
    assert str(tuned.plan) != str(plain.plan)
    assert f"{len(tuned.plan.choices)} tuned" in str(tuned.plan)


def work(steps):
    return [(s.path, repr(s.defines), repr(s.params), s.groups) for s in steps]


def test_node_planned_alone_equals_the_node_in_the_plan(gpu):
    """A node that is planned alone has the key and the steps that it has in the whole plan.

    Equal kernels are planned once.
    """
    session = cml.Session(net(), gpu)
    bench = Bench(session)
    keys = {choice.key for choice in session.plan.choices}
    assert {c.key for c in bench.candidates} == keys != set()
    assert sum(c.count for c in bench.candidates) == len(session.plan.choices)
    for candidate in bench.candidates:
        plans = bench.plans(candidate)
        assert len({repr(work(plan.steps)) for plan in plans.values()}) == len(plans)
        assert next(iter(plans)) == candidate.choice.default
        alone = plans[candidate.choice.default]
        assert [c.key for c in alone.choices] == [candidate.key]
        inside = [s for s in session.plan.steps if s.title == candidate.choice.node]
        assert work(alone.steps) == work(inside)


def test_tune_measures_every_choice_and_writes_the_table(gpu):
    session = cml.Session(net(size=8), gpu)
    done = []
    report = tune(session, rounds=2, progress=done.append)
    assert done == list(range(1, len(Bench(session).candidates) + 1))
    assert report.file == tuning_file(gpu.name)
    kept = tables.measured(gpu.name)
    assert set(kept) == {choice.key for choice in session.plan.choices}
    for record in kept.values():
        assert record.default in record.ms and record.chosen in record.ms
        assert all(ms > 0 for ms in record.ms.values())
        assert record.source.startswith("net, ")
    text = str(report)
    assert all(key in text for key in kept) and "default" in text and str(report.file) in text
    assert bool(report.before_after) == bool(report.won)
    tuned = cml.Session(net(size=8), gpu)
    assert {c.key: c.chosen for c in tuned.plan.choices} == {
        key: record.chosen for key, record in kept.items()
    }


def test_known_choices_are_not_measured_again(gpu):
    session = cml.Session(net(), gpu)
    first, *rest = Bench(session).candidates
    save(gpu.name, [record_for(first.choice, other_option(first.choice))])
    session = cml.Session(net(), gpu)
    assert [c.key for c in Bench(session, again=False).candidates] == [c.key for c in rest]
    changed = replace(record_for(first.choice, other_option(first.choice)), default="another")
    save(gpu.name, [changed])
    assert len(Bench(session, again=False).candidates) == 1 + len(rest), "the rules have changed"


def test_option_refused_by_the_driver_is_skipped(gpu, monkeypatch):
    session = cml.Session(net(layers=1, size=8), gpu)
    bench = Bench(session)
    refused = other_option(bench.candidates[0].choice)
    build = Bench.program

    def program(self, plan, **options):
        if plan.choices[0].chosen == refused:
            raise cml.DeviceError("the driver refused the kernel")
        return build(self, plan, **options)

    monkeypatch.setattr(Bench, "program", program)
    report = tune(session, rounds=1, dry_run=True)
    (first,) = [m for m in report.measured if m.candidate.key == bench.candidates[0].key]
    assert "refused" in first.trial.dropped[refused] and refused not in first.record.ms
    assert "left out: the driver refused the kernel" in str(report)


def test_tune_command_prints_the_path_of_its_table(tmp_path, folder, gpu, run_cml):
    text = (
        "version 1.0; graph m(x) -> (y) { x = external<scalar>(shape = [1, 4, 9, 9]); "
        "w = constant<scalar>(shape = [4, 4, 1, 1], value = [0.5]); y = conv(x, w); }"
    )
    model = str(write_model(tmp_path / "m", text))
    printed = run_cml("tune", model, "--rounds", "1", "--dry-run").out
    assert "nothing was written" in printed and not tuning_file(gpu.name).exists()
    told = json.loads(run_cml("tune", model, "--rounds", "1", "--json").out)
    assert set(told["choices"]) == set(tables.measured(gpu.name)) != set()
    assert told["file"] == str(tuning_file(gpu.name))


@pytest.fixture
def game(timed_gpu):
    """A session, a tuning, a host, and a function ``frame`` that runs one frame.

    ``frame`` returns what the tuning reports.
    """
    session, host = cml.Session(net(layers=1, size=16), timed_gpu), Host(timed_gpu, budget_ms=2.0)
    tuning = Tuning(host.scheduler, Bench(session, again=False), rounds=2)

    def frame():
        before = len(host.measured)
        host.frame()
        time.sleep(1e-3)  # the rest of a frame, in which other threads run
        return tuning.observe(host.measured[before:])

    return SimpleNamespace(session=session, tuning=tuning, frame=frame, host=host)


def test_tuning_in_frames_never_waits_or_builds(game, gpu, monkeypatch):
    """Tuning decides and saves every choice, and the game's thread never waits or builds a
    pipeline.

    No frame with several slices is planned beyond its budget.
    """
    builders, waits = set(), []
    build, read = gpu._build, gpu.queue.read_buffer

    def building(key, make_uniforms):
        builders.add(threading.current_thread() is threading.main_thread())
        return build(key, make_uniforms)

    monkeypatch.setattr(gpu, "_build", building)
    monkeypatch.setattr(gpu, "_pipelines", PipelineCache())
    monkeypatch.setattr(gpu, "wait", lambda: waits.append("wait"))
    monkeypatch.setattr(gpu.queue, "read_buffer", lambda *a: waits.append("read") or read(*a))
    for _ in turns(300.0):
        if game.frame():
            break
    assert game.tuning.done and game.tuning.decided == game.tuning.total > 1
    assert builders == {False} and waits == []
    busy = [r for r in game.host.reports if r.slices]
    assert all(r.predicted_ms <= r.aim_ms for r in busy if len(r.slices) > 1)
    kept = tables.measured(gpu.name)
    assert set(kept) == {c.key for c in game.session.plan.choices}
    assert all(len(record.ms) > 1 and min(record.ms.values()) > 0 for record in kept.values())


SCALE = """
void kernel(uint thread) {
    for (uint i = 0; i < WIDTH; i++) {
        uint at = thread * WIDTH + i;
        if (at < x_size) { y[at] = 2.0 * x[at]; }
    }
}
"""


def test_tuner_measures_choices_of_game_operators(gpu, own_operators):
    """The tuner measures a choice stated by an operator's ``lower``; all its options are right."""

    def lower_scale(op):
        size = op.inputs[0].size
        width = op.choose(f"doubled {size}", {"narrow": 1, "wide": 8}, "narrow")
        reads, writes = {"x": op.in_names[0]}, {"y": op.out_names[0]}
        yield op.launch(-(-size // width), reads=reads, writes=writes, defines={"WIDTH": width})

    declare(SCALE, "doubled", kernel={"lower": lower_scale}, cpu=lambda attrs, x: 2 * x)
    doubled = Net(1, 1000)
    graph = doubled.graph("doubled(x)")
    report = tune(cml.Session(graph, gpu), rounds=2)
    assert {key: set(r.ms) for key, r in tables.measured(gpu.name).items()} == {
        "doubled 1000": {"narrow", "wide"}
    }
    assert len(report.measured) == 1
    for option in ("narrow", "wide"):
        plan = PlanOptions(variants=VariantTable.forcing("doubled 1000", option))
        session = check_session(graph, gpu, doubled.input(), plan=plan)
        assert session.plan.choices[0].chosen == option
