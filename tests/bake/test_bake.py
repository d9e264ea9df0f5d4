"""Tests that a bake on processes of this machine loses, repeats or mixes up no tile."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cml_engine import CmlError, DeviceError, InputError
from cml_engine.distributed import Layer, Report, StorePlan, bake
from cml_engine.distributed.cluster import PATIENCE_S, THREADS, ClusterMonitor
from cml_engine.distributed.run import ATTEMPTS, Batch, Pace
from cml_engine.distributed.store import KEYS, Store, prepare
from tests.fixtures.bake.work import MANIFEST, Numbers, layer, lines, values

pytest.importorskip("distributed")
pytest.importorskip("zarr")


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "out.zarr")


@pytest.fixture
def work(tmp_path: Path) -> Numbers:
    return Numbers(str(tmp_path / "log"), key=str(tmp_path))


@pytest.fixture
def bake_layer(client: Any, place: str, work: Numbers) -> Callable[..., Report]:
    """A function that bakes one layer into the store ``place`` on the shared cluster."""

    def bake_here(
        made: Layer, by: Numbers = work, manifest: dict[str, Any] = MANIFEST, **more: Any
    ) -> Report:
        return bake(by, place, StorePlan([made], manifest), client=client, **more)

    return bake_here


def stored(place: str, made: Layer) -> dict[str, Any]:
    """Checks that all units of the layer are whole; returns the store's arrays by name."""
    store = Store(place, [made])
    assert {store.state(unit) for unit in made.units()} == {"whole"}
    return {name: np.asarray(store._arrays[made.name][name]) for name in made.arrays}


def check_values(place: str, made: Layer) -> None:
    arrays = stored(place, made)
    for unit in made.units():
        for name, expected in values(made, unit).items():
            assert_array_equal(arrays[name][made.span(unit)], expected)


@pytest.mark.parametrize("chunk", [1, 3])
def test_every_unit_is_computed_and_written_once(bake_layer, place, work, chunk):
    made = layer(4, chunk)
    report = bake_layer(made)
    assert report.complete and report.made == 16 and made.count == len(lines(work.log))
    assert report.device == "paper" and report.nbytes == 16 * (64 * 4 + 4)
    check_values(place, made)


def test_second_start_computes_only_missing_or_damaged_units(bake_layer, place, work):
    made = layer(4)
    bake_layer(made)
    (Path(place) / "L0/sha256/c.0.1.0").unlink()  # a task that did not finish
    (Path(place) / "L0/height/c.1.2.0.0").unlink()
    damaged = Path(place) / "L0/colour/c.3.3.0"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    trusting = bake_layer(made, verify=False)
    assert (trusting.made, trusting.kept, trusting.damaged) == (1, 15, 0)
    report = bake_layer(made)
    assert (report.made, report.kept, report.damaged) == (2, 14, 2)
    assert lines(work.log)[16:] == ["L0 (0, 1)", *sorted(lines(work.log)[17:])]
    assert sorted(lines(work.log)[17:]) == ["L0 (1, 2)", "L0 (3, 3)"]
    check_values(place, made)


@pytest.mark.parametrize("separator", [".", "/"])
def test_chunks_equal_those_written_by_zarr(tmp_path, monkeypatch, separator):
    """The store's own writer makes the same files as Zarr's, byte for byte.

    Also at the grid's end, for chunks of zeros (which have no file) and in nested folders.
    """
    monkeypatch.setitem(KEYS, "separator", separator)
    made = layer(4, 3)
    trees = []
    for name in ("ours", "zarrs"):
        place = tmp_path / name
        prepare(str(place), [made], MANIFEST)
        store = Store(str(place), [made])
        store._folder = store._folder if name == "ours" else None
        for unit in made.units():
            arrays = values(made, unit)
            arrays["colour"] *= unit.at != (0, 1)
            store.write(unit, arrays)
            found = store.whole(unit)
            assert found is not None and store.state(unit) == "whole"
            for array in arrays:
                assert_array_equal(found[array], arrays[array], strict=True)
        assert store.recorded() == set(made.units())
        files = (path for path in place.rglob("*") if path.is_file())
        trees.append({path.relative_to(place): path.read_bytes() for path in files})
    assert trees[0] == trees[1] and len(trees[0]) == 2 + 3 + 3 * 4 - 1


@pytest.mark.parametrize("changed", ["seed", "kind", "more"])
def test_a_store_of_something_else_is_never_mixed_with(bake_layer, work, changed):
    made = layer(2)
    bake_layer(made)
    with pytest.raises(InputError, match=f"another {changed}: .* there, 8 here"):
        bake_layer(made, manifest={**MANIFEST, changed: 8})
    assert len(lines(work.log)) == 4


def test_a_store_of_another_device_is_refused(bake_layer, work):
    bake_layer(layer(2))
    other = replace(work, device="a GPU", key=work.key + "gpu")
    with pytest.raises(InputError, match="another device: paper there, a GPU here"):
        bake_layer(layer(2), by=other)


def test_units_that_always_fail_are_set_aside_and_named(bake_layer, work):
    bad = replace(work, bad=((1, 1),), broken=((0, 1),), key=work.key + "bad")
    report = bake_layer(layer(2), by=bad)
    assert not report.complete and (report.made, report.aside_count, report.retried) == (2, 2, 2)
    assert report.aside == {
        "L0 (1, 1)": "it cannot be",
        "L0 (0, 1)": "RuntimeError: a fault (3 attempts)",
    }
    assert "L0 (1, 1): it cannot be" in str(report) and report.to_json()["set_aside"] == 2
    mended = bake_layer(layer(2))
    assert mended.complete and (mended.made, mended.kept) == (2, 2)


def test_store_plan_may_depend_on_measured_results(client, place, work):
    report = bake(work, place, lambda chunk: StorePlan([layer(4, chunk)], MANIFEST), client=client)
    assert report.made == 16 and len(lines(work.log)) == 4


def test_the_cluster_has_no_more_than_a_window_of_tasks(bake_layer, client, work):
    """The scheduler never has more than the tasks in flight: three per thread and few more."""
    held = []

    def look(_: Any) -> None:
        held.append(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))

    slow = replace(work, seconds=0.02, key=work.key + "slow")
    assert bake_layer(layer(8), by=slow, progress=look).complete
    assert len(held) > 2 and max(held) <= 2 * THREADS * 3 + 2


def test_tasks_are_sized_to_half_a_second():
    pace = Pace()
    assert pace.units(remaining=10_000, tasks=3) == 1, "nothing was seen yet"
    pace.record(units=1, seconds=0.05)
    assert pace.units(remaining=10_000, tasks=3) == 10
    assert pace.units(remaining=12, tasks=3) == 4, "towards the end fewer, for all workers"
    assert pace.units(remaining=2, tasks=3) == 1
    pace.record(units=10, seconds=0.001)
    assert 10 < pace.units(remaining=10_000, tasks=3) < 100, "one task does not decide"


def test_units_that_a_task_has_no_time_for_are_sent_again(bake_layer, place, work, monkeypatch):
    """Units that a task has no time for go into another task; each unit is made exactly once."""
    monkeypatch.setattr(Pace, "units", lambda self, left, tasks: 4)
    slow = replace(work, seconds=0.6, key=work.key + "slow")
    tasks = []
    monkeypatch.setattr(Pace, "record", lambda self, units, seconds: tasks.append(units))
    assert bake_layer(layer(2), by=slow).complete
    assert max(tasks) <= 2 and sum(tasks) == len(lines(work.log)) == 4
    check_values(place, layer(2))


def test_slow_writes_run_in_background_threads(place, work, monkeypatch):
    """After slow writes in the first task, the second task writes in background threads.

    All units of a task are written when it ends.
    """
    from cml_engine.distributed import worker

    made, threads, write = layer(2), [], Store.write

    def slow_write(self: Store, *what: Any) -> int:
        time.sleep(0.05)
        threads.append(threading.current_thread() is threading.main_thread())
        return write(self, *what)

    prepare(place, [made], MANIFEST)
    opened = worker.OpenRun(work.open(), Store(place, [made]))
    monkeypatch.setattr(Store, "write", slow_write)
    monkeypatch.setattr(worker, "get_worker", lambda: SimpleNamespace(address="here"))
    monkeypatch.setitem(worker._opened, "run", opened)
    for row in (0, 1):
        done = worker.run_batch(Batch("run", "L0", ((row, 0), (row, 1)), traced=False))
        assert [outcome.kind for outcome in done.outcomes] == ["made", "made"]
        assert threads == [True, True, False, False][: 2 + 2 * row]
    check_values(place, made)


@pytest.mark.slow
def test_dead_worker_loses_only_unfinished_units(place, work):
    made = layer(4)
    dying = replace(work, once=((0, 1),), seconds=0.01)
    report = bake(dying, place, StorePlan([made], MANIFEST), workers=2)
    # one unit was being made, and one was being written
    assert report.complete and 16 + 1 <= len(lines(work.log)) <= 16 + 2
    (lost,) = report.lost
    assert lost.startswith("tcp://127.0.0.1") and f"lost: {lost}: its process" in str(report)
    check_values(place, made)


@pytest.mark.long
def test_unit_that_kills_workers_is_skipped(place, work):
    """A unit that kills its worker each time is set aside with a reason.

    All other units are made.
    """
    made = layer(4)
    dying = replace(work, deadly=((3, 0),), seconds=0.01)
    report = bake(dying, place, StorePlan([made], MANIFEST), workers=2)
    assert report.done == 15 and set(report.aside) == {"L0 (3, 0)"}
    assert "the process that makes it ends each time" in report.aside["L0 (3, 0)"]
    others = [line for line in lines(work.log) if line != "L0 (3, 0)"]
    assert 15 <= len(others) <= 15 + ATTEMPTS  # one unit was being written
    store = Store(place, [made])
    assert sum(store.state(unit) == "whole" for unit in made.units()) == 15


def test_interrupted_store_creation_is_repeated(bake_layer, place):
    import zarr

    bake_layer(layer(2))
    zarr.open_group(place, mode="r+").attrs["cml"] = {"kind": "unfinished"}
    assert bake_layer(layer(2)).made == 4


def test_a_worker_of_another_device_is_refused(client, place, work, monkeypatch):
    from cml_engine.distributed import worker

    setup = worker.WorkerSetup("other", work, embedded=False, device="a GPU")
    setup.setup(None)
    try:
        refused = "it runs on paper, the others on a GPU: floats would not be equal bit by bit"
        assert worker.worker_state("other") == ("paper", refused)
    finally:
        setup.teardown(None)


def test_workers_of_two_devices_are_refused() -> None:
    from cml_engine.distributed.cluster import check_devices

    with pytest.raises(DeviceError, match="worker a runs on CPU, worker b on GPU"):
        check_devices({"b": ("GPU", ""), "a": ("CPU", "")})
    with pytest.raises(DeviceError, match="worker b: no GPU adapter"):
        check_devices({"a": ("GPU", ""), "b": ("", "no GPU adapter")})
    assert check_devices({"a": ("GPU", ""), "b": ("GPU", "")}) == "GPU"


def test_other_versions_are_refused_with_both_named(bake_layer, place, monkeypatch):
    import cml_engine

    monkeypatch.setattr(cml_engine, "__version__", "9.9")
    with pytest.raises(
        InputError, match=r"worker tcp://.* has cml_engine 0\.\d+\.\d+, the client 9"
    ):
        bake_layer(layer(2))
    assert not Path(place).exists()


@pytest.mark.parametrize(
    "place, message",
    [
        ("{tmp}/no/out.zarr", "no folder '.*no'; make it first"),
        ("{tmp}/file", "is a file: a store is a folder"),
        ("{tmp}/full", "is a folder of something else"),
        ("{tmp}/other.zarr", "is a Zarr store of something else"),
    ],
)
def test_paths_that_are_not_stores_are_refused(client, work, tmp_path, place, message):
    import zarr

    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("")
    zarr.open_group(str(tmp_path / "other.zarr"), mode="w").create_array(
        "mine", shape=(1,), dtype="f4"
    )
    with pytest.raises(InputError, match=message):
        bake(work, place.format(tmp=tmp_path), StorePlan([layer(2)], MANIFEST), client=client)
    assert lines(work.log) == []


def test_a_full_disk_ends_the_run_with_one_message(bake_layer, work):
    """A full disk ends the bake with one error.

    The next bake completes it and repeats at most one unit.
    """
    full = replace(work, full=((1, 2),), key=work.key + "full")
    with pytest.raises(InputError, match=r"No space left on device. \d+ of 16 tiles are in"):
        bake_layer(layer(4), by=full)
    assert bake_layer(layer(4)).complete
    assert 16 <= len(lines(work.log)) <= 16 + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "tcp://127.0.0.1:9"}, "no scheduler answers at 'tcp://127.0.0.1:9'"),
        ({"client": "tcp://127.0.0.1:9"}, "wanted a distributed.Client, got str"),
        (
            {"scheduler": "tcp://127.0.0.1:9", "workers": 2},
            "--workers is for a cluster of this machine",
        ),
        ({"workers": 0}, "wanted a whole number of 1 to 100,000, got 0"),
    ],
)
def test_missing_cluster_gives_one_message(place, work, monkeypatch, options, message):
    monkeypatch.setattr("cml_engine.distributed.cluster._ANSWER_S", 0.5)
    with pytest.raises(CmlError, match=message):
        bake(work, place, StorePlan([layer(2)], MANIFEST), **options)


def test_lost_cluster_gives_one_message() -> None:
    report = Report("out.zarr", total=9, made=4)
    gone = ClusterMonitor(SimpleNamespace(status="closed"), False, report)
    with pytest.raises(InputError, match=r"does not answer any more\. 4 of 9 tiles are in 'out"):
        gone.check()
    idle = ClusterMonitor(SimpleNamespace(status="running", nthreads=dict), False, report)
    idle._last_alive -= 2 * PATIENCE_S
    with pytest.raises(InputError, match="no worker for 60 s. 4 of 9 tiles are"):
        idle.check()


@pytest.mark.parametrize("size", [17, 1 << 26])
def test_chunk_that_unpacks_to_more_is_damaged(tmp_path, size):
    """Reading a chunk that unpacks to more than its shape fails without allocating a megabyte."""
    from cml_engine.distributed.store import _encode, read_chunk

    (tmp_path / "c").write_bytes(_encode(np.ones(size, np.uint8), packed=True))
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, RuntimeError)):
            read_chunk(tmp_path / "c", (4,), np.float32)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
