"""Runs a bake: sends the work to every worker, prepares the store and computes missing units."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cml_engine.distributed.cluster import (
    PATIENCE_S,
    ClusterMonitor,
    check_devices,
    check_versions,
    connect,
    need_extra,
)
from cml_engine.distributed.report import Progress, Report, Trace
from cml_engine.distributed.store import Store, prepare, refuse
from cml_engine.distributed.task_window import TaskWindow
from cml_engine.distributed.work import Layer, Unit, Work
from cml_engine.errors import InputError
from cml_engine.errors.arguments import FloatRange

if TYPE_CHECKING:
    from distributed import Client

PRICE = FloatRange(0.0001, 1_000_000)


@dataclass(frozen=True)
class StorePlan:
    """The layers of a new store, and its manifest: everything that its values depend on.

    A bake refuses a store that has a different ``manifest``.

    Examples
    --------
    >>> cells = {"height": Cell((64, 64), "float32", ("row", "column"))}
    >>> layer = Layer("L0", (4, 4), (2, 2), ("z", "x"), cells)
    >>> plan = StorePlan([layer], {"seed": 7})
    """

    layers: Sequence[Layer]
    manifest: Mapping[str, Any]


def bake(
    work: Work,
    store: str,
    plan: StorePlan | Callable[[Any], StorePlan],
    *,
    client: Client | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    verify: bool = True,
    what: str = "tiles",
    title: str = "",
    price: float | None = None,
    progress: Progress | None = None,
    dashboard: bool = False,
    trace: str | Path | None = None,
) -> Report:
    """Computes all units of a plan that the store lacks, writes them, and returns the report.

    Parameters
    ----------
    work : the work that is sent to every worker.
    store : a folder that all workers can reach, or a URL that Zarr supports.
    plan : the contents of the store, or a function that returns them from the measurements of one
        worker (:meth:`UnitProducer.measure`).
    client : a ``distributed.Client``. Without ``client`` and ``scheduler``, a cluster is started
        on this machine.
    scheduler : the address of a Dask scheduler.
    workers : the number of processes of the cluster on this machine.
    verify : if True, stored units are read and computed again if their checksum differs;
        otherwise a unit with a record counts as complete.
    progress : called with the current report, at most a few times per second.
    trace : a file to write a Perfetto trace of the first thousand units to.

    Raises
    ------
    InputError
        if the store holds something else, versions differ, the cluster is gone or the disk is
        full. Finished units stay in the store, and the same call continues from there.

    Examples
    --------
    >>> report = bake(FlatLand(), "planet.zarr", StorePlan([layer], {"seed": 7}))  # doctest: +SKIP
    """
    if price is not None:
        PRICE.check(price, "price")
    need_extra()
    traced = None if trace is None else Trace(trace)
    if "://" not in store:
        store = str(Path(store).absolute())  # workers may have another working folder
    refuse(
        store, plan.manifest if isinstance(plan, StorePlan) else {}
    )  # before a cluster is started
    with connect(client, scheduler, workers, dashboard) as (found, embedded):
        report = Report(store, what, price=price)
        run = _Run(found, embedded, work, report)
        if dashboard or not embedded:
            report.dashboard = found.dashboard_link or ""
        shown = progress or (lambda report: None)
        try:
            return run.bake(plan, verify, title, shown, traced)
        finally:
            if traced is not None:
                traced.write()


class _Run:
    def __init__(self, client: Client, embedded: bool, work: Work, report: Report) -> None:
        self.client, self.embedded, self.work, self.report = client, embedded, work, report
        #: the run's name on the workers
        self.name = f"cml-{uuid.uuid4().hex[:12]}"

    def bake(
        self,
        plan: StorePlan | Callable[[Any], StorePlan],
        verify: bool,
        title: str,
        progress: Progress,
        trace: Trace | None,
    ) -> Report:
        from distributed import CancelledError
        from distributed.comm import CommClosedError

        report, window = self.report, None
        watch = ClusterMonitor(self.client, self.embedded, report)
        try:
            self._await_workers()
            versions = check_versions(self.client)
            report.device = self._set_up(versions=versions)
            if not isinstance(plan, StorePlan):
                plan = plan(self._measure())
            layers = plan.layers
            report.total = sum(prod(layer.cells) for layer in layers)
            manifest = {**plan.manifest, "device": report.device}
            was_there = prepare(report.store, layers, manifest, title)
            # coordinates may be large, and workers do not need them
            bare = [replace(layer, coordinates={}) for layer in layers]
            self._set_up(versions=versions, place=report.store, layers=bare, device=report.device)
            units: Iterable[Unit] = (unit for layer in layers for unit in layer.units())
            count = sum(layer.count for layer in layers)
            if was_there and not verify:
                recorded = self._recorded_units(layers)
                units = (unit for unit in units if unit not in recorded)
                count -= len(recorded)
            window = TaskWindow(self.client, self.name, layers, watch, progress, trace)
            window.run(iter(units), count)
        except (CommClosedError, CancelledError, TimeoutError) as error:
            raise watch.vanished_error() from error
        finally:
            self._close(window)
        return report

    def _recorded_units(self, layers: Sequence[Layer]) -> set[Unit]:
        """Returns the units that have a record in the store; the report counts them as kept.

        The units' values are not read.
        """
        recorded = Store(self.report.store, layers).recorded()
        sizes = {layer.name: layer for layer in layers}
        self.report.kept = sum(sizes[unit.layer].size(unit) for unit in recorded)
        return recorded

    def _await_workers(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=PATIENCE_S)
        except TimeoutError:
            raise InputError(
                f"no worker has joined the cluster for {PATIENCE_S:g} s: start some, with "
                "'dask worker ADDRESS'"
            ) from None

    def _set_up(self, **more: Any) -> str:
        """Installs the work on every current and future worker; returns the workers' device.

        ``more`` are further arguments of :class:`WorkerSetup`. Raises if a worker was refused.
        """
        from cml_engine.distributed.worker import WorkerSetup, worker_state

        setup = WorkerSetup(self.name, self.work, embedded=self.embedded, **more)
        self.client.register_plugin(setup, name=self.name)
        return check_devices(self.client.run(worker_state, self.name))

    def _measure(self) -> Any:
        from cml_engine.distributed.worker import measure

        future = self.client.submit(measure, self.name, pure=False, key=f"measure-{self.name}")
        return future.result()

    def _close(self, window: TaskWindow | None) -> None:
        if self.client.status != "running" or self.embedded:
            return  # a local cluster stops with its tasks
        with contextlib.suppress(Exception):  # the cluster may be stopping, or the setup failed
            if window is not None:
                window.close()
            self.client.unregister_worker_plugin(self.name)
