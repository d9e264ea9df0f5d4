"""Loads a cooked file as a graph that a session accepts like any other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cml_engine.cooked.artifact import Artifact
from cml_engine.cooked.golden import read_golden
from cml_engine.cooked.graph_text import read_graph
from cml_engine.cooked.guess import check_guess
from cml_engine.cooked.kernels import read_kernels
from cml_engine.cooked.plan_in import CookedPlan
from cml_engine.cooked.reader import Container, check_size, damaged
from cml_engine.cooked.schema import GRAPH, META, PLAN, CookedLimits, FileHeader
from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_flag, check_instance
from cml_engine.io.json_files import parse_json
from cml_engine.io.load_limits import load_budget
from cml_engine.io.model_source import Bytes, ModelSource, SourceFile
from cml_engine.ir.graph import Graph
from cml_engine.ops import load_families


def load_cooked(
    model: str | Path | Bytes | ModelSource,
    *,
    trusted: bool = False,
    limits: CookedLimits | None = None,
) -> Graph:
    """Returns the network in a cooked file (docs/cooked.md), ready to run without compilation.

    ``model`` is a path, the bytes of a cooked file, or a :class:`ModelSource` whose graph is one.

    Kernels run with the driver's run-time checks, which keep every access inside its tensor.
    ``trusted=True`` is for your own files: kernels that are marked as safe run without these
    checks, which is 2 to 3 times as fast. The file itself cannot grant trust.

    ``limits`` bound the memory of the unpacked file. Raises ``OverBudget``, an :class:`InputError`,
    before anything is unpacked. A trusted file has no limits by default.

    Raises :class:`CorruptArtifact` if the file is invalid. A session uses the file's plan that
    fits its device, and raises :class:`StaleArtifact` if none does.

    Examples
    --------
    >>> network = cml.load_cooked(cml.cooked.cook(graph, ["portable"]))
    >>> outputs = cml.Session(network, "cpu").run({"image": image})
    """
    check_flag(trusted, "trusted")
    load_families()
    if limits is not None:
        check_instance(CookedLimits, limits, "limits")
    data = _bytes_of(model)
    file = Container(data, limits or (None if trusted else CookedLimits()))
    kernels = read_kernels(file, trusted)
    meta = _meta(file)
    check_guess(file)
    plans = tuple(
        CookedPlan(file, file.section(PLAN, number), kernels) for number in range(file.count(PLAN))
    )
    file.check_totals()
    with load_budget():
        graph = read_graph(file) if file.count(GRAPH) else _ends(meta["name"], plans[0])
    _check_ends(graph, plans)
    artifact = Artifact(
        name=meta["name"],
        meta=meta,
        plans=plans,
        kernels={kernel.digest: kernel for kernel in kernels},
        golden=read_golden(file, graph),
        graph=graph if file.count(GRAPH) else None,
        nbytes=len(data),
        totals=file.totals,
        sections=file.listed(),
    )
    return graph.with_(ready=artifact)


def _bytes_of(model: Any) -> memoryview:
    if isinstance(model, Bytes):
        return memoryview(model).cast("B")
    if isinstance(model, str | Path):
        return _read(Path(model))
    if isinstance(model, ModelSource):
        blob = SourceFile(model, model.graph)
        return blob.span(0, check_size(blob.head(FileHeader.SIZE), blob.size))
    raise InputError(
        f"cannot load {type(model).__name__}: wanted a path, the bytes of a cooked file, or a "
        "cml.ModelSource"
    )


def _read(path: Path) -> memoryview:
    """Returns the bytes of a cooked file, as many as its header states, because the file may be
    replaced meanwhile.

    Raises :class:`InputError` if the file cannot be read.
    """
    try:
        with path.open("rb") as opened:
            size = check_size(opened.read(FileHeader.SIZE), path.stat().st_size)
            opened.seek(0)
            return memoryview(opened.read(size))
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from None


def _meta(file: Container) -> dict[str, Any]:
    try:
        meta = parse_json(bytes(file.section(META).content).decode())
    except ValueError as error:
        raise damaged(f"its description: {error}") from None
    wanted = {"name": str, "engine": str, "rules": int, "custom": list, "half": bool}
    if not isinstance(meta, dict) or any(
        not isinstance(meta.get(key), kind) for key, kind in wanted.items()
    ):
        raise damaged("its description lacks something")
    if not all(isinstance(name, str) for name in meta["custom"]):
        raise damaged("its description names operators that have no names")
    integer = meta.get("integer", "00" * 32)
    if not isinstance(integer, str) or not re.fullmatch("[0-9a-f]{64}", integer):
        raise damaged("its description has a digest that is none")
    return meta


def _ends(name: str, plan: CookedPlan) -> Graph:
    """Returns a graph with the inputs and outputs of a plan but no nodes, for a file without a
    graph."""
    facts = {n: place.fact for n, place in {**plan.inputs, **plan.outputs}.items()}
    return Graph(name, tuple(plan.inputs), tuple(plan.outputs), (), facts)


def _check_ends(graph: Graph, plans: tuple[CookedPlan, ...]) -> None:
    """Raises :class:`CorruptArtifact` if a plan has other inputs or outputs than the graph."""
    for plan in plans:
        for names, places in ((graph.inputs, plan.inputs), (graph.outputs, plan.outputs)):
            if tuple(places) != names or any(places[n].fact != graph.facts[n] for n in names):
                raise damaged(f"plan '{plan.profile}' has other inputs or outputs than the graph")
