"""Tests of GPU sessions that retain inputs: only steps whose inputs changed are executed."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.scheduler.tools.replay import replay
from tests.fixtures.frames.host import Host
from tests.fixtures.texels import texture_of, write_texels
from tests.live.test_retain import check_retained
from tests.live.test_taps import graph_of, inputs

pytestmark = pytest.mark.gpu

TEXT = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(x, z) -> (y)
{
    x = external(shape = [1, 8, 12, 12]);
    z = external(shape = [1, 8, 12, 12]);
    w0 = variable(shape = [8, 8, 3, 3], label = 'w0');
    w1 = variable(shape = [8, 8, 3, 3], label = 'w1');
    c0 = conv(x, w0, padding = [(1, 1), (1, 1)]);
    encoded = conv(relu(c0), w0, padding = [(1, 1), (1, 1)]);
    mixed = add(encoded, z);
    c1 = conv(mixed, w1, padding = [(1, 1), (1, 1)]);
    y = relu(c1);
}
"""
STATE = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(x, z) -> (y)
{
    x = external(shape = [4]); z = external(shape = [4]);
    s = variable(shape = [4], label = 's');
    t = s + sqrt(x); u = update(s, t);
    y = relu(t) + z;
}
"""
ENCODED = """version 1.0;
graph net(x, z) -> (y)
{
    x = external<scalar>(shape = [1, 4, 3, 5]);
    z = external<scalar>(shape = [1, 4, 3, 5]);
    encoded = abs(x);
    y = mul(encoded, z);
}
"""


def graph():
    return graph_of(TEXT)


def array(seed):
    return inputs(seed)["x"]


def expected(gpu, x, z):
    """Returns the output ``y`` of a new session for these inputs, which runs all steps."""
    return cml.Session(graph(), gpu, retain=True).run({"x": x, "z": z})["y"]


@pytest.mark.parametrize("seed", range(6))
def test_retained_run_equals_a_full_run(seed, gpu):
    check_retained(seed, gpu, 5)


def first_job(gpu):
    """Returns a session and a host after a job of ``array(1)`` and ``array(0)``."""
    session, host = cml.Session(graph(), gpu, retain=True), Host(gpu, budget_ms=20.0)
    host.run(session, {"x": array(1), "z": array(0)})
    return session, host


def titles(session, *changed):
    steps = session.program.steps_for(changed, behind=True)  # type: ignore[attr-defined]
    return [session.plan.steps[i].title for i in steps]


def test_only_the_decoder_runs_if_the_encoder_is_unchanged(gpu):
    session = cml.Session(graph(), gpu, retain=True)
    assert titles(session, "x") == [step.title for step in session.plan.steps]
    assert titles(session, "z") == ["add 'mixed'", "conv 'y'"]
    assert titles(session) == []
    # rank() times only these steps
    report = session.rank(runs=1, given=["z"])
    assert sum(row.count for row in report.rows) == 2


@pytest.mark.parametrize("lost_by", ["an eviction", "another run in the arena"])
def test_session_that_lost_its_values_runs_completely(gpu, lost_by):
    one, two = (cml.Session(graph(), gpu, retain=True, arena="shared:retain") for _ in range(2))
    x, z = array(1), array(2)
    one.run({"x": x, "z": array(0)})
    if lost_by == "an eviction":
        one.program.evict()  # type: ignore[attr-defined]
    else:
        two.run({"x": array(5), "z": array(6)})
    assert one.program.steps_for({"z"}) is None  # type: ignore[attr-defined]
    assert_array_equal(one.run({"z": z})["y"], expected(gpu, x, z))
    assert one.program.steps_for({"z"}) is not None  # type: ignore[attr-defined]


def test_retaining_jobs_run_only_dependent_steps(gpu, host):
    session = cml.Session(graph(), gpu, retain=True)
    submit, recording = host.scheduler.submit, host.scheduler.record()
    with pytest.raises(cml.InputError, match="input 'x' is missing"):
        submit(session, {"z": array(0)})
    x, steps = array(1), len(session.plan.steps)
    jobs = [submit(session, {"x": x, "z": array(0)})]
    jobs += [submit(session, {"z": array(seed)}) for seed in (2, 3)]
    jobs.append(submit(session, {}))
    results = host.finish(*jobs)
    assert [len(job.costs) for job in jobs] == [steps, 2, 2, 0]
    slices = [part for report in host.reports for part in report.slices]
    decoder = {"add 'mixed'", "conv 'y'"}
    assert {part.title for part in slices if part.job == jobs[1].number} == decoder
    assert all(part.title == session.plan.steps[part.step].title for part in slices)
    for result, seed in zip(results, (0, 2, 3, 3), strict=True):
        assert_array_equal(result, expected(gpu, x, array(seed)), str(seed))
    assert replay(recording) == recording.decisions


def test_a_second_scheduler_waits_for_the_first(gpu):
    """Jobs of a session build on the one before, so two schedulers cannot have them at once."""
    session, first = first_job(gpu)
    second = Host(gpu, budget_ms=20.0)
    job = first.submit(session, {"x": array(2)})
    with pytest.raises(cml.InputError, match="submitted to another scheduler have not ended"):
        second.submit(session, {"z": array(5)})
    assert_array_equal(*first.finish(job), expected(gpu, array(2), array(0)))
    later = second.submit(session, {"z": array(5)})
    assert_array_equal(*second.finish(later), expected(gpu, array(2), array(5)))
    plain = cml.Session(graph(), gpu)
    jobs = [host.submit(plain, {"x": array(1), "z": array(2)}) for host in (first, second)]
    for host, job in zip((first, second), jobs, strict=True):
        assert_array_equal(*host.finish(job), expected(gpu, array(1), array(2)))


def test_a_paused_job_holds_those_that_build_on_it(gpu):
    session, host = first_job(gpu)
    jobs = [host.submit(session, {"x": array(2)}), host.submit(session, {"z": array(3)})]
    jobs[0].pause()
    for _ in range(5):
        host.frame()
    assert [job.state for job in jobs] == ["queued", "queued"]
    assert f"job {jobs[0].number} '{jobs[0].name}'" in jobs[1].waiting_for
    with pytest.raises(cml.InputError, match="is paused and will not end"):
        jobs[1].wait(timeout=60)
    jobs[0].resume()
    for result, z in zip(host.finish(*jobs), (array(0), array(3)), strict=True):
        assert_array_equal(result, expected(gpu, array(2), z))


def test_texture_input_is_retained():
    """A session retains a texture's values from the time of the job, and loses them when
    evicted."""
    own = cml.Gpu()
    texture = texture_of(own.device, np.zeros((3, 5, 4), np.float32), "rgba32float")

    def fill(seed):
        texels = np.random.default_rng(seed).standard_normal((3, 5, 4), np.float32)
        write_texels(own.device, texture, texels)
        return np.abs(texels.transpose(2, 0, 1)[None])

    session = cml.Session(cml.load(cml.nnef.MemoryModel(ENCODED)), own, retain=True)
    host, texture_input = Host(own, budget_ms=20.0), {"x": cml.TextureInput(texture)}

    def check(inputs, steps, expected):
        job = host.run(session, inputs)
        assert len(job.costs) == steps
        assert_array_equal(job.tensor("y").read(), expected)

    x, z = fill(1), np.ones((1, 4, 3, 5), np.float32)
    check({**texture_input, "z": z}, 3, x)
    fill(2)
    check({"z": 2 * z}, 1, 2 * x)
    x = fill(3)
    check(texture_input, 3, 2 * x)
    assert_array_equal(session.run({"z": z})["y"], x)
    session.program.evict()  # type: ignore[attr-defined]
    lost = host.run(session, {"z": z})
    assert "input 'x' is left out, and its value, which came from the GPU" in lost.error
    assert_array_equal(session.run({**texture_input, "z": z})["y"], x)


def test_cancelled_job_invalidates_retained_values(gpu):
    session, host = first_job(gpu)
    half = host.submit(session, {"x": array(4)})
    host.scheduler.budget.ms = 1e-9  # one slice per frame
    host.until(lambda: half.state == "running")
    half.cancel()
    host.scheduler.budget.ms = 20.0
    last = host.run(session, {"z": array(2)})
    assert len(last.costs) == len(session.plan.steps)
    # the cancelled job had begun, so its input was uploaded
    assert_array_equal(last.tensor("y").read(), expected(gpu, array(4), array(2)))


@pytest.mark.parametrize("cancelled", [False, True])
def test_abandoned_frame_restores_retained_state(gpu, cancelled):
    session, host = first_job(gpu)
    job = host.submit(session, {"x": array(4)})
    host.encode()
    host.scheduler.abandon_frame()
    if cancelled:
        job.cancel()
    last = host.run(session, {"z": array(2)})
    x = array(1 if cancelled else 4)
    assert_array_equal(last.tensor("y").read(), expected(gpu, x, array(2)))


def test_variables_always_advance(gpu, host):
    model = cml.nnef.MemoryModel(STATE, {"s": np.zeros(4, np.float32)})
    four, one = np.full(4, 4, np.float32), np.ones(4, np.float32)
    session = cml.Session(cml.load(model), gpu, retain=True)
    assert_array_equal(session.run({"x": four, "z": one})["y"], [3] * 4)
    job = host.run(session, {"z": four})
    assert_array_equal(job.tensor("y").read(), [8] * 4)
    assert_array_equal(session.run({"x": one})["y"], [9] * 4)
    assert not any(title.startswith("sqrt") for title in titles(session, "z"))
