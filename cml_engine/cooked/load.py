"""Loads a cooked file as a graph that a session accepts like any other."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.plan import CookedStep, Plan, Step
from cml_engine.cooked.golden import Golden, read_golden
from cml_engine.cooked.graph_text import read_graph
from cml_engine.cooked.guess import check_guess
from cml_engine.cooked.kernels import Cooked, digest_of, read_kernels
from cml_engine.cooked.plan_section import CookedPlan, choose
from cml_engine.cooked.reader import Container, check_size, damaged
from cml_engine.cooked.schema import (
    F16,
    GRAPH,
    META,
    PLAN,
    SUBGROUPS,
    CookedLimits,
    FileHeader,
    Totals,
)
from cml_engine.errors import (
    CmlError,
    InputError,
    Source,
    StaleArtifact,
    UnsupportedOp,
    located,
)
from cml_engine.errors.arguments import check_flag, check_instance, check_path
from cml_engine.gpu.shaders.hlsl import ShaderKey, step_key, step_params
from cml_engine.io.json_files import parse_json
from cml_engine.io.load_limits import load_budget
from cml_engine.io.model_source import Bytes, ModelSource, SourceFile
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.registry import is_registered, load_families

_log = logging.getLogger(__name__)


def load_cooked(
    model: str | Path | Bytes | ModelSource,
    *,
    trusted: bool = False,
    limits: CookedLimits | None = None,
) -> Graph:
    """Loads a cooked file as a graph; a session then runs the plan and kernels in the file.

    ``model`` is a path or the bytes of a cooked file (docs/cooked.md), or a :class:`ModelSource`
    whose graph is one.

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
    name = getattr(model, "name", "")
    if isinstance(model, str | Path):
        name = str(check_path(model, "the cooked file"))
    with located(Source(name) if name else None):
        return _load(_bytes_of(model), trusted, limits)


def _load(data: memoryview, trusted: bool, limits: CookedLimits | None) -> Graph:
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
    return graph.with_(cooked_form=artifact)


def _bytes_of(model: object) -> memoryview:
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
        with path.open("rb") as stream:
            size = check_size(stream.read(FileHeader.SIZE), path.stat().st_size)
            stream.seek(0)
            return memoryview(stream.read(size))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None


def _meta(file: Container) -> dict[str, Any]:
    try:
        meta = parse_json(bytes(file.section(META).content).decode())
    except ValueError as error:
        raise damaged(f"its description: {error}") from None
    types = {"name": str, "engine": str, "rules": int, "custom": list, "half": bool}
    if not isinstance(meta, dict) or any(
        not isinstance(meta.get(key), expected_type) for key, expected_type in types.items()
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
    facts = {n: tensor.fact for n, tensor in {**plan.inputs, **plan.outputs}.items()}
    return Graph(name, tuple(plan.inputs), tuple(plan.outputs), (), facts)


def _check_ends(graph: Graph, plans: tuple[CookedPlan, ...]) -> None:
    """Raises :class:`CorruptArtifact` if a plan has other inputs or outputs than the graph."""
    for plan in plans:
        for names, tensors in ((graph.inputs, plan.inputs), (graph.outputs, plan.outputs)):
            if tuple(tensors) != names or any(tensors[n].fact != graph.facts[n] for n in names):
                raise damaged(f"plan '{plan.profile}' has other inputs or outputs than the graph")


T = TypeVar("T")


@dataclass(frozen=True)
class Artifact:
    """A cooked network: the plans, kernels, golden pair and graph of a file."""

    name: str
    meta: Mapping[str, Any]
    plans: tuple[CookedPlan, ...]
    kernels: Mapping[str, Cooked]
    golden: Golden | None
    #: the optimized graph; None if the file is for players only
    graph: Graph | None
    nbytes: int
    #: the memory that the unpacked file takes
    totals: Totals
    #: tag, number and bytes of each section
    sections: tuple[tuple[str, int, int], ...] = field(default=(), repr=False)

    @property
    def storage(self) -> str:
        """``"half"`` if the network was cooked with 16 bits, else ``"float"``."""
        return "half" if self.meta.get("half") else "float"

    @property
    def integer_digest(self) -> bytes | None:
        """The digest of the integer network that the file was cooked from, or None if it was a
        float network.

        A run of the cooked file therefore has the same digest as a run of the model.
        """
        digest = self.meta.get("integer")
        return bytes.fromhex(digest) if digest else None

    def choose(self, limits: Limits) -> tuple[CookedPlan | None, list[str]]:
        """Returns the file's plan for a device, or None, and the reasons why others do not fit."""
        return choose(self.plans, limits, lambda plan: _lacking(plan, limits))

    def plan(self, limits: Limits, storage: str, plain: bool, lower: Callable[[], T]) -> T:
        """Returns the plan for a device with these limits.

        The plan is one of the file's, or the new plan that ``lower()`` returns, restricted to
        the file's kernels. With another ``storage`` than cooked, or if not ``plain`` (other
        options were requested), it is a new plan that compiles missing kernels. Raises
        :class:`StaleArtifact` if no plan is possible.
        """
        as_cooked = plain and storage in ("float", self.storage)
        cooked_plan, reasons = self.choose(limits)
        if as_cooked and cooked_plan is not None:
            self._log_choice(cooked_plan, limits, reasons)
            return cooked_plan.plan(self.name)  # type: ignore[return-value]
        if self.graph is None:
            raise self._stale(reasons or ["it was cooked for players, and has its plans only"])
        self._check_graph(self.graph)
        new_plan: Any = lower()
        return self.with_kernels(new_plan, strict=as_cooked, reasons=reasons)  # type: ignore[return-value]

    def _log_choice(self, plan: CookedPlan, limits: Limits, reasons: list[str]) -> None:
        """Logs the chosen plan, as a warning if it is slow on this device."""
        unfit = f"; {'; '.join(reasons)}" if reasons else ""
        if limits.software and not plan.needs.software:
            _log.warning(
                "'%s' runs by its plan '%s', which is made for hardware and many times slower on "
                "a driver that runs shaders on the CPU%s. Cook the model with --devices "
                "software-portable as well",
                self.name, plan.profile, unfit,
            )  # fmt: skip
        else:
            _log.info("'%s' runs by its plan '%s'%s", self.name, plan.profile, unfit)

    def with_kernels(
        self, plan: Plan, strict: bool = False, reasons: list[str] | None = None
    ) -> Plan:
        """Returns the plan with the file's kernels in the steps that the file has a kernel for.

        With ``strict`` raises :class:`StaleArtifact` if a kernel is missing or may not run;
        ``reasons`` has earlier reasons for its message.
        """
        contents: dict[tuple[str, str], str] = {}
        steps = []
        for step in plan.steps:
            key = step_key(step, contents)
            kernel = self.kernels.get(digest_of(key))
            refusal = f"it lacks the kernel '{key.label}'" if kernel is None else kernel.refusal
            if refusal and strict:
                raise self._stale([*(reasons or ()), refusal])
            steps.append(step if kernel is None or refusal else _finished(step, key, kernel, plan))
        return replace(plan, steps=tuple(steps))

    def check_cpu(self) -> None:
        """Raises an error if the file cannot run on the CPU.

        The error is :class:`StaleArtifact` if the file has no graph, and :class:`UnsupportedOp`
        if a game's operator is not registered.
        """
        if self.graph is None:
            raise self._stale(["it was cooked for players, and has no graph for the CPU"])
        missing = [name for name in self.meta.get("custom", ()) if not is_registered(name)]
        if missing:
            raise UnsupportedOp(
                f"'{self.name}' has the kernels of {', '.join(missing)}, and not their NumPy "
                "functions, which are no part of a cooked file: register the operators (--ops "
                "FILE.py), or run it on a GPU"
            )
        self._check_graph(self.graph)

    def _check_graph(self, graph: Graph) -> None:
        """Raises :class:`CorruptArtifact` if the file's facts differ from those that the
        operators infer."""
        try:
            facts = infer_facts(graph).facts
        except CmlError as error:
            raise damaged(f"its graph: {error.message}") from None
        if dict(facts) != dict(graph.facts):
            raise damaged("its graph has other shapes than its operators give")

    def _stale(self, reasons: list[str]) -> StaleArtifact:
        cooked = ", ".join(plan.profile for plan in self.plans)
        return StaleArtifact(
            f"the cooked '{self.name}' has no plan for this device (it has {cooked}): "
            f"{'; '.join(reasons)}. Cook the model again, with --devices portable for any device, "
            "without --player for a graph to plan anew"
        )


def _lacking(plan: CookedPlan, limits: Limits) -> str:
    """Returns the first reason why a device cannot run a plan's kernels, or an empty string if
    it can."""
    for flag, is_supported, feature in (
        (SUBGROUPS, limits.subgroup_size > 0, "use subgroups"),
        (F16, limits.half_arithmetic, "compute in 16 bits"),
    ):
        if not is_supported and any(kernel.flags & flag for kernel in plan.used):
            return f"its kernels {feature}, which the device does not have"
    return next((kernel.refusal for kernel in plan.used if kernel.refusal), "")


def _finished(step: Step, key: ShaderKey, cooked: Cooked, plan: Plan) -> Step:
    kernel = cooked.kernel
    cost = replace(plan, steps=(step,)).step_costs()[0]
    return replace(step, cooked=CookedStep(kernel, step_params(step), cost.key))
