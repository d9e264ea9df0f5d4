"""A bake: every worker gets the work, the store is made or refused, and what it lacks is made."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from cml_engine.distributed.cluster import check_devices, connected, need_extra
from cml_engine.distributed.report import Report
from cml_engine.distributed.store import Store, prepare, refuse
from cml_engine.distributed.trace import Trace
from cml_engine.distributed.versions import check_versions
from cml_engine.distributed.watch import PATIENCE_S, Watch
from cml_engine.distributed.window import Progress, Window
from cml_engine.distributed.work import Layer, Unit, Work
from cml_engine.errors import InputError
from cml_engine.errors.arguments import Real

PRICE = Real(0.0001, 1_000_000)


@dataclass(frozen=True)
class StorePlan:
    """What a store holds: its layers, and all that every value in it depends on. A store with
    another ``manifest`` is refused."""

    layers: Sequence[Layer]
    manifest: Mapping[str, Any]


def bake(
    work: Work,
    store: str,
    plan: StorePlan | Callable[[Any], StorePlan],
    *,
    client: Any = None,
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
    """Make all units of a plan that the store lacks.

    Parameters
    ----------
    work : what the workers do.
    store : a folder that all workers see, or a URL that Zarr knows.
    plan : what the store holds; or a function that says so, of what one worker has measured.
    client : a ``distributed.Client``; or
    scheduler : the address of one; or neither, for a cluster of
    workers : so many processes of this machine.
    verify : read what is there and make it again where its checksum is another; else a unit that
        has a record counts as whole.
    progress : called with the report so far, several times a second at most.
    trace : a file for Perfetto, with what the first thousand units took.

    Raises
    ------
    InputError
        for a store of something else, versions that differ, a cluster that has gone, a full disk.
        What was made is there; the same call goes on from it.
    """
    if price is not None:
        PRICE.check(price, "price")
    need_extra()
    traced = None if trace is None else Trace(trace)
    refuse(
        store, plan.manifest if isinstance(plan, StorePlan) else {}
    )  # before a cluster is started
    with connected(client, scheduler, workers, dashboard) as (found, embedded):
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
    def __init__(self, client: Any, embedded: bool, work: Work, report: Report) -> None:
        self.client, self.embedded, self.work, self.report = client, embedded, work, report
        #: what the workers call this run
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
        watch = Watch(self.client, self.embedded, report)
        try:
            self._await_workers()
            versions = check_versions(self.client)
            report.device = self._set_up(versions=versions)
            if not isinstance(plan, StorePlan):
                plan = plan(self._measured())
            layers = plan.layers
            report.total = sum(prod(layer.cells) for layer in layers)
            manifest = {**plan.manifest, "device": report.device}
            was_there = prepare(report.store, layers, manifest, title)
            bare = [replace(layer, coordinates={}) for layer in layers]  # which may be large
            self._set_up(versions=versions, place=report.store, layers=bare, device=report.device)
            units: Iterable[Unit] = (unit for layer in layers for unit in layer.units())
            count = sum(layer.count for layer in layers)
            if was_there and not verify:
                recorded = self._recorded(layers)
                units = (unit for unit in units if unit not in recorded)
                count -= len(recorded)
            window = Window(self.client, self.name, layers, watch, progress, trace)
            window.run(iter(units), count)
        except (CommClosedError, CancelledError, TimeoutError) as error:
            raise watch.vanished() from error
        finally:
            self._close(window)
        return report

    def _recorded(self, layers: Sequence[Layer]) -> set[Unit]:
        """The units that are there, if their records are to be trusted: they count as kept."""
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
        """Every worker has the work, and those that join later too; the device of all."""
        from cml_engine.distributed.worker import Setup, state

        setup = Setup(self.name, self.work, embedded=self.embedded, **more)
        self.client.register_plugin(setup, name=self.name)
        return check_devices(self.client.run(state, self.name))

    def _measured(self) -> Any:
        from cml_engine.distributed.worker import measure

        future = self.client.submit(measure, self.name, pure=False, key=f"measure-{self.name}")
        return future.result()

    def _close(self, window: Window | None) -> None:
        if self.client.status != "running" or self.embedded:
            return  # an own cluster ends anyway, with what is under way
        with contextlib.suppress(Exception):  # it may be going, or the work never got there
            if window is not None:
                window.close()
            self.client.unregister_worker_plugin(self.name)
