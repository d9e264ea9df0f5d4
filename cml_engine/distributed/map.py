"""Runs one network over many inputs.

Row ``i`` of each output array holds the network's result for input ``i``, identical to the
result of ``cml run``. Several inputs run as one batch if that is faster on the device and
bit-identical. The batch size is measured once, on one worker, and recorded in the store.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from cml_engine import __version__
from cml_engine.compiler.plugins import load_file
from cml_engine.cooked import load_cooked
from cml_engine.distributed.cluster import default_workers, need_extra
from cml_engine.distributed.report import Progress, Report
from cml_engine.distributed.run import StorePlan, bake
from cml_engine.distributed.sources import (
    InputSource,
    names_digest,
    names_of,
    open_source,
    read_checked,
)
from cml_engine.distributed.store import RECORD, manifest_of
from cml_engine.distributed.work import (
    ANY_DEVICE,
    Cell,
    Coordinate,
    Layer,
    Unit,
    UnitClock,
    UnitResult,
    Watch,
)
from cml_engine.errors import CmlError, InputError
from cml_engine.errors.arguments import BATCH, check_choice, check_instance
from cml_engine.io.output_folder import name_problem
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Graph
from cml_engine.ir.graph_digest import graph_digest
from cml_engine.runtime.session import CompileOptions, Session, random_inputs

if TYPE_CHECKING:
    from distributed import Client

#: the batch sizes that are measured
BATCHES = (1, 2, 4, 8, 16)
#: a batch is used if an input takes less than this share of its time alone
_WORTH = 0.95
#: the target duration (s) and size (bytes) of a task; Dask's overhead is about 1 ms per task
_TASK_S, _TASK_BYTES = 0.1, 1 << 24
#: the least number of tasks, so that every worker gets some
_TASKS = 16
_ROW = "input"
#: the name of the store's array of input names
NAMES = "input_names"


@dataclass(frozen=True)
class NetworkWork:
    """A network and its inputs, as sent to a worker.

    ``graphs`` maps batch sizes to the network at that batch size; it always contains 1. ``ops``
    are files that register the network's operators. ``cooked`` is the network as a cooked file,
    whose kernels a worker need not compile. ``trusted`` is True if the cooked file is one of the
    caller's own.
    """

    graphs: Mapping[int, Graph]
    source: InputSource
    backend: str
    options: CompileOptions
    key: str
    ops: tuple[str, ...] = ()
    cooked: bytes | None = None
    trusted: bool = False

    def open(self) -> NetworkProducer:
        for file in self.ops:
            load_file(file)
        return NetworkProducer(self)


@dataclass(frozen=True)
class BatchTiming:
    """The measured seconds per input for each batch size that was tried; size 1 is always there."""

    seconds: dict[int, float]

    def batch(self, limit: int) -> int:
        """Returns the fastest batch size up to ``limit``, or 1 if batching saves little."""
        best = min((n for n in self.seconds if n <= max(1, limit)), key=lambda n: self.seconds[n])
        return best if self.seconds[best] < _WORTH * self.seconds[1] else 1


class NetworkProducer:
    """Computes the units of a map on a worker's device, with one session per batch size."""

    def __init__(self, work: NetworkWork) -> None:
        self.work = work
        if work.cooked is None:
            graph = work.graphs[1]
        else:
            graph = load_cooked(work.cooked, trusted=work.trusted)
        self.session = Session(graph, work.backend, work.options)
        # integer results are bit-identical on all devices
        self.device = (
            ANY_DEVICE if graph.integer and not graph.float_tail else device_name(self.session)
        )
        self._batched: dict[int, Session | None] = {1: self.session}

    def measure(self) -> BatchTiming:
        """Measures and returns the seconds per input at increasing batch sizes.

        Stops before the first size that is not bit-identical, and after the first size whose
        inputs take clearly longer than at half the size.
        """
        seconds: dict[int, float] = {}
        for count in self.work.graphs:
            session = self._batched_session(count)
            if session is None:
                break
            inputs = random_inputs(session.inputs)
            session.run(inputs)
            seconds[count] = min(_seconds(session, inputs) for _ in range(3)) / count
            if count > 1 and seconds[count] > _WORTH * seconds[count // 2]:
                break
        return BatchTiming(seconds)

    def _batched_session(self, count: int) -> Session | None:
        """Returns a session for a batch of ``count`` inputs.

        Returns None if the network has no such shape, or if the batch is not bit-identical to
        single inputs.
        """
        if count not in self._batched:
            graph, backend = self.work.graphs.get(count), self.session.gpu or "cpu"
            session = graph and Session(graph, backend, self.work.options)
            usable = session if session and self._is_bit_identical(session, count) else None
            self._batched[count] = usable
        return self._batched[count]

    def _is_bit_identical(self, session: Session, count: int) -> bool:
        inputs = random_inputs(session.inputs, seed=count)
        batched = session.run(inputs)
        for row in {0, count - 1}:
            single = self.session.run({n: a[row : row + 1] for n, a in inputs.items()})
            if any(a[row : row + 1].tobytes() != single[n].tobytes() for n, a in batched.items()):
                return False
        return True

    def make(self, layer: Layer, unit: Unit, clock: UnitClock) -> UnitResult:
        (span,) = layer.span(unit)
        results = {
            name: np.zeros((span.stop - span.start, *cell.shape), cell.dtype)
            for name, cell in layer.arrays.items()
        }
        aside: dict[str, str] = {}
        batch = int(layer.attributes["batch"])
        pending: list[tuple[int, dict[str, Array]]] = []
        for number in range(span.start, span.stop):
            try:
                with clock("read"):
                    inputs = read_checked(self.work.source, number, self.session.inputs)
                pending.append((number - span.start, inputs))
            except InputError as error:
                aside[self.work.source.name(number)] = error.message
            if pending and (len(pending) == batch or number == span.stop - 1):
                with clock("run") as watch:
                    self._run(pending, batch, results, None if self.session.gpu else watch)
                pending = []
        return UnitResult(results, aside)

    def _run(
        self,
        pending: Sequence[tuple[int, dict[str, Array]]],
        batch: int,
        results: dict[str, Array],
        watch: Watch | None,
    ) -> None:
        session = self._batched_session(batch) if len(pending) == batch else None
        if session is None or batch == 1:
            for row, inputs in pending:
                for name, value in self.session.run(inputs, watch=watch).items():
                    # an output with a counted axis is shorter; its number is an output too
                    filled = tuple(slice(n) for n in value.shape)
                    results[name][row : row + 1][(slice(None), *filled)] = value
            return
        batched = {n: np.concatenate([inputs[n] for _, inputs in pending]) for n in session.inputs}
        for name, values in session.run(batched, watch=watch).items():
            for i, (row, _) in enumerate(pending):
                results[name][row] = values[i : i + 1]


def device_name(session: Session) -> str:
    """Returns the name of a session's device for the store: the GPU's, or "CPU (NumPy)"."""
    if session.gpu is not None:
        return session.gpu.name
    return f"CPU ({'ONNX Runtime' if session.options.cpu == 'onnxruntime' else 'NumPy'})"


def _seconds(session: Session, inputs: dict[str, Array]) -> float:
    start = time.perf_counter()
    session.run(inputs)
    return time.perf_counter() - start


def map_network(
    graph: Graph | str | Path,
    source: Any,
    store: str | Path,
    client: Client | None = None,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    backend: str = "auto",
    options: CompileOptions | None = None,
    batch: int | None = None,
    per_task: int | None = None,
    verify: bool = True,
    ops: Sequence[str | Path] = (),
    trusted: bool = False,
    price: float | None = None,
    progress: Progress | None = None,
    dashboard: bool = False,
    trace: str | Path | None = None,
) -> Report:
    """Runs a network over many inputs and writes the results to a Zarr store.

    Array ``NAME`` of the store has one row per input: the result of :meth:`Session.run` for
    output ``NAME``. A second call computes only rows that are missing or damaged. Inputs that do
    not fit the network are skipped and named in the report.

    Parameters
    ----------
    graph : from :func:`cml_engine.load`, or the path of a cooked file.
    source : a pattern of files (``"tiles/*.npy"``), a list of files, a Zarr array or its path
        (each chunk is an input), a sequence of arrays or of dictionaries of arrays, or an
        :class:`InputSource`.
    store : a folder that all workers can reach, or a URL that Zarr supports.
    client : a ``distributed.Client``. Without ``client`` and ``scheduler``, a cluster is started
        on this machine.
    scheduler : the address of a Dask scheduler.
    workers : the number of processes of the cluster on this machine; each has its own session.
    backend : ``"auto"``, ``"gpu"`` or ``"cpu"``, for every worker.
    batch : the number of inputs that run through the network at once; measured by default.
    per_task : the number of inputs in one task, and in one chunk of the store.
    verify : if True, the checksums of stored units are verified; otherwise a unit with a record
        counts as complete.
    ops : files that register the network's operators; every worker must be able to read them.
    trusted : True if ``graph`` is a cooked file of your own (:func:`cml_engine.load_cooked`).
    price : the price of one worker for an hour, in any currency, for the report.
    trace : a file to write a Perfetto trace of the first thousand units to.

    Example
    -------
    >>> report = map_network(cml.load("m.nnef"), "tiles/*.npy", "out.zarr")    # doctest: +SKIP
    >>> zarr.open("out.zarr")["output"][17]                                    # doctest: +SKIP
    """
    need_extra()
    cooked = None
    if isinstance(graph, str | Path):
        file = Path(graph)
        graph, cooked = load_cooked(file, trusted=trusted), file.read_bytes()
    check_instance(Graph, graph, "the graph to map (cml.load gives one)")
    if graph.cooked_form is not None and cooked is None:
        raise InputError("a cooked network is sent to workers as its file: give its place instead")
    check_choice(("auto", "gpu", "cpu"), backend, "backend")
    store_path, options = str(store), options or CompileOptions()
    _check_graph(graph)
    facts = {name: graph.facts[name] for name in graph.inputs}
    inputs = open_source(source, facts)
    for count, option in ((batch, "batch"), (per_task, "per_task")):
        if count is not None:
            BATCH.check(count, option)
    stored = _read_manifest(store_path)
    batch, per_task = batch or stored.get("batch"), per_task or stored.get("per_task")
    manifest = {
        "kind": "map",
        "engine": __version__,
        "shape": "; ".join(f"{name}={','.join(map(str, f.shape))}" for name, f in facts.items()),
        "model": graph_digest(graph) if cooked is None else hashlib.sha256(cooked).hexdigest(),
        "inputs": names_digest(inputs),
        "storage": options.storage,
        "arithmetic": options.arithmetic,
    }
    counts = () if cooked is not None else BATCHES if batch is None else (batch,)
    graphs = _graphs(graph, counts)
    if batch is not None and batch not in graphs:
        raise InputError(f"the network takes no {batch} inputs at once: leave batch out")
    files = tuple(str(Path(file).absolute()) for file in ops)
    key = f"{manifest['model']} {manifest['inputs']} {backend} {options} {sorted(graphs)}"
    work = NetworkWork(graphs, inputs, backend, options, key, files, cooked, trusted)
    is_default = client is None and scheduler is None and workers is None
    default_count = partial(default_workers, backend)

    def plan(measured: BatchTiming) -> StorePlan:
        count = batch or measured.batch(len(inputs) // _TASKS)
        size = per_task or _per_task(graph, len(inputs), count, measured.seconds[count])
        return planned(count, size)

    def planned(count: int, size: int) -> StorePlan:
        sizes = {"batch": count, "per_task": size}
        return StorePlan([_layer(graph, inputs, count, size)], {**manifest, **sizes})

    return bake(
        work,
        store_path,
        planned(batch, per_task) if batch and per_task else plan,
        client=client,
        scheduler=scheduler,
        workers=default_count if is_default else workers,
        verify=verify,
        what="inputs",
        title=f"{graph.name} over {len(inputs)} inputs",
        price=price,
        progress=progress,
        dashboard=dashboard,
        trace=trace,
    )


def _check_graph(graph: Graph) -> None:
    if graph.updates:
        names = ", ".join(f"'{variable}'" for variable, _ in graph.updates)
        raise InputError(
            f"the network updates its variables ({names}), so what it gives depends on the order "
            "of its inputs: it cannot be spread over workers"
        )
    for name in graph.outputs:
        if problem := _array_name_problem(name, graph.outputs):
            raise InputError(
                f"the output {name[:80]!r} {problem}, so no array of the store can have its name: "
                "rename it in the model"
            )


def _array_name_problem(name: str, outputs: Sequence[str]) -> str:
    """Returns the reason why a store cannot have an array of an output's name; "" if it can."""
    if problem := name_problem(name, allowed=':"<>|?*'):
        return problem
    if str(PurePosixPath(name)) != name:
        return "has an empty part or a '.' between '/'"
    if name.split("/")[0] in (RECORD, NAMES, "zarr.json"):
        return "is called as a part of the store"
    if any(output.startswith(f"{name}/") for output in outputs):
        return "is the beginning of another output's path"
    return ""


def _read_manifest(store: str) -> dict[str, Any]:
    """Returns the manifest of an existing map store; {} if there is none or it is unreadable."""
    if "://" not in store and not (Path(store) / "zarr.json").is_file():
        return {}
    try:
        manifest = manifest_of(store)
    except InputError:  # ``prepare`` reports it
        return {}
    return manifest if manifest.get("kind") == "map" else {}


def _graphs(graph: Graph, counts: Sequence[int]) -> dict[int, Graph]:
    """Returns the network at batch size 1 and at each of ``counts``, by batch size.

    Stops at the first size that the network does not support. A network whose inputs or outputs
    have no first axis of extent 1 has only batch size 1.
    """
    graphs = {1: graph}
    facts = {name: graph.facts[name] for name in graph.inputs}
    interface = [graph.facts[name] for name in (*graph.inputs, *graph.outputs)]
    if any(not fact.shape or fact.shape[0] != 1 for fact in interface):
        return graphs
    for count in counts:
        try:
            larger = graph.reshaped({n: (count, *f.shape[1:]) for n, f in facts.items()})
        except CmlError:
            break
        expected = [(count, *graph.facts[name].shape[1:]) for name in graph.outputs]
        if [larger.facts[name].shape for name in graph.outputs] != expected:
            break
        graphs[count] = larger
    graphs[1] = graph
    return graphs


def _per_task(graph: Graph, inputs: int, batch: int, seconds: float) -> int:
    """Returns the number of inputs in one unit (a chunk of the store), a multiple of the batch.

    ``inputs`` is the number of all inputs, ``seconds`` the time per input. The number is limited by
    the unit's time and bytes, and leaves enough units for all workers.
    """
    nbytes = sum(graph.facts[name].nbytes for name in graph.outputs)
    limit = min(_TASK_S / max(seconds, 1e-9), _TASK_BYTES / max(nbytes, 1), inputs / _TASKS)
    return max(1, int(limit / batch)) * batch


def _layer(graph: Graph, source: InputSource, batch: int, per_task: int) -> Layer:
    arrays = {}
    for name in graph.outputs:
        fact = graph.facts[name]
        dims = tuple(f"{name}_{axis}" for axis in range(fact.rank))
        arrays[name] = Cell(fact.shape, NUMPY_DTYPE[fact.dtype].name, dims)
    names = np.array(list(names_of(source)), np.dtypes.StringDType())
    return Layer(
        "",
        (len(source),),
        (per_task,),
        (_ROW,),
        arrays,
        coordinates={NAMES: Coordinate((_ROW,), names)},
        attributes={"batch": batch},
    )
