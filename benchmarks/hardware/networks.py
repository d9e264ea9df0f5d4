"""Plans of networks for hardware, compiled and modelled for a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.hardware import nvidia
from benchmarks.hardware.listing import CLASSES, MEMORY, SHARED, Nest
from benchmarks.hardware.model import (
    Card,
    Estimate,
    Kernel,
    Work,
    estimate,
    products_share,
)
from benchmarks.hardware.nests import nest_of
from benchmarks.hardware.radv import Radv
from benchmarks.kernels.roofline import name_of, work_of
from benchmarks.table import markdown_table
from cml_engine.compiler.plan import Plan, Step
from cml_engine.compiler.planning.decisions import NO_DECISIONS, Decisions
from cml_engine.compiler.planning.draft import PlanOptions, Storage
from cml_engine.cooked.profiles import PROFILES
from cml_engine.gpu.shaders.hlsl import ShaderKey, compile_spirv, step_key
from cml_engine.ir.graph import Graph
from cml_engine.ops.declaration.registry import load_families
from cml_engine.runtime.session.compile_graph import CompileOptions, make_plan, optimize_for

#: compiles a kernel variant for a card; raises one of its tools' errors
Compiler = Callable[[ShaderKey], Kernel]


def compiler_of(card: Card) -> Compiler:
    """Returns a card's compiler: of Slang's SPIR-V for AMD, of its CUDA for NVIDIA.

    Raises :class:`RadvError` or :class:`NvidiaError` if it is not installed.
    """
    if card.scalar_loads:
        radv = Radv(card.family)
        return lambda key: radv.compile(compile_spirv(key))
    nvidia.require_tools()
    return lambda key: nvidia.compile_kernel(key, card.family)


def plan_for(
    graph: Graph,
    profile: str,
    halves: bool = False,
    options: PlanOptions | None = None,
    decide: Decisions = NO_DECISIONS,
    *,
    scalar_loads: bool = True,
) -> Plan:
    """Returns the plan of a graph for a profile of devices, by the rules and ``decide`` alone.

    With ``halves`` storage and products may be of 16 bits, which the device then has.
    ``scalar_loads`` is a property of the device, see :class:`cml_engine.ir.limits.Limits`.
    """
    load_families()
    numbers: Storage = "half" if halves else "float"
    compiled = CompileOptions(
        plan=options or PlanOptions(), tuned=False, cpu="refuse", storage=numbers,
        arithmetic=numbers, decide=decide,
    )  # fmt: skip
    device = PROFILES[profile]
    limits = replace(device.limits, half_arithmetic=halves, scalar_loads=scalar_loads)
    device = replace(device, limits=limits)
    return make_plan(optimize_for(graph, compiled), device, compiled, written=graph)


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A step of a plan with its kernel and the modelled time; ``known`` as in :class:`Work`."""

    step: Step
    kernel: Kernel
    work: Work
    estimate: Estimate


@dataclass(slots=True)
class NetworkEstimate:
    """A network's steps on a card, and the reasons why kernels are missing, by their labels."""

    model: str
    card: Card
    steps: list[StepEstimate] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(s.estimate.seconds for s in self.steps)

    @property
    def roof(self) -> float:
        return sum(s.estimate.roof for s in self.steps)

    @property
    def with_products(self) -> list[StepEstimate]:
        """The steps whose hot loop multiplies and adds."""
        return [s for s in self.steps if _is_product(s)]

    @property
    def product_peak(self) -> float:
        """The share of the card's peak that steps with products reach, without launch time."""
        steps = self.with_products
        flops = 2 * sum(s.work.products for s in steps)
        seconds = sum(max(s.estimate.bounds.values()) for s in steps)
        return flops / self.card.flops / max(seconds, 1e-12)

    @property
    def per_product(self) -> dict[str, float]:
        """Executed instructions per multiply-add, by class; steps without products do not count."""
        total = sum((s.estimate.executed for s in self.with_products), Counter[str]())
        products = sum(s.work.products for s in self.with_products)
        return {kind: total[kind] / max(products, 1) for kind in CLASSES}


def _is_product(s: StepEstimate) -> bool:
    is_operator = s.step.op.partition("_")[0] in ("conv", "deconv", "matmul", "linear")
    is_transform = {"stage_is_input", "stage_is_output"} & s.step.defines.keys()
    multiplies = s.work.products > 0 and products_share(s.kernel) > 0
    return is_operator and not is_transform and multiplies


def estimate_network(
    model: str, plan: Plan, card: Card, compile: Compiler, errors: tuple[type[Exception], ...]
) -> NetworkEstimate:
    """Compiles every kernel of the plan once, and returns the modelled times of its steps.

    A kernel whose compiler raises one of ``errors`` is left out.
    """
    result = NetworkEstimate(model, card)
    contents: dict[tuple[str, str], str] = {}
    kernels: dict[ShaderKey, Kernel | None] = {}
    for step in plan.steps:
        key = step_key(step, contents)
        if key not in kernels:
            try:
                kernels[key] = compile(key)
            except errors as error:
                kernels[key] = None
                result.refused[key.label] = str(error)
        if (kernel := kernels[key]) is not None:
            work = _work(step)
            found = StepEstimate(step, kernel, work, estimate(card, kernel, work))
            result.steps.append(found)
    return result


def _work(step: Step) -> Work:
    cost, nest = work_of(step), nest_of(step)
    threads = int(step.defines.get("GROUP", 64))
    return Work(
        step.groups, threads, cost.flops / 2, cost.bytes, nest or Nest(), known=nest is not None
    )


_HEAD = (
    "operator", "kernel", "groups", "registers", "spills", "waves", "code", "products in the loop",
    "instructions ÷ product", "bytes ÷ product", "µs", "roof µs", "limited by",
)  # fmt: skip


def markdown(network: NetworkEstimate, least: float) -> str:
    """Returns a Markdown table of the kernels that take at least the share ``least`` of the
    network's time, the longest first. "?" marks a kernel whose loops were counted once."""
    groups: dict[tuple[str, ...], list[StepEstimate]] = {}
    for s in network.steps:
        key = (s.step.full_op, name_of(s.step), str(sorted(s.step.defines.items())), str(s.work))
        groups.setdefault(key, []).append(s)
    rows = []
    for same in sorted(groups.values(), key=lambda g: -sum(s.estimate.seconds for s in g)):
        if sum(s.estimate.seconds for s in same) >= least * network.seconds:
            rows.append(_row(same))
    return markdown_table(_HEAD, "|---|---|" + "--:|" * (len(_HEAD) - 3) + "---|", rows)


def _row(same: list[StepEstimate]) -> tuple[str, ...]:
    first, count = same[0], len(same)
    executed, moved = first.estimate.executed, first.estimate.moved
    products = first.work.products
    nbytes = moved[MEMORY] + moved[SHARED]
    multiplies = _is_product(first)
    per_product = f"{sum(executed.values()) / products:.2f}" if multiplies else ""
    return (
        first.step.full_op + (f" × {count}" if count > 1 else ""),
        name_of(first.step),
        str(first.step.groups),
        *(
            str(value)
            for value in (
                first.kernel.registers,
                first.kernel.spills,
                first.kernel.waves,
                first.kernel.code_bytes,
            )
        ),
        f"{products_share(first.kernel):.0%}" if multiplies else "",
        per_product,
        f"{nbytes / products:.2f}" if multiplies else "",
        f"{1e6 * count * first.estimate.seconds:.1f}{'' if first.work.known else ' ?'}",
        f"{1e6 * count * first.estimate.roof:.1f}",
        first.estimate.limit,
    )


def record(network: NetworkEstimate) -> dict[str, Any]:
    """Returns a network's numbers for the JSON report."""
    return {
        "model": network.model,
        "card": network.card.name,
        "ms": 1e3 * network.seconds,
        "roof_ms": 1e3 * network.roof,
        "product_peak": network.product_peak,
        "per_product": network.per_product,
        "refused": network.refused,
        "steps": [
            {
                "title": s.step.full_title,
                "kernel": name_of(s.step),
                "us": 1e6 * s.estimate.seconds,
                "roof_us": 1e6 * s.estimate.roof,
                "bounds_us": {name: 1e6 * t for name, t in s.estimate.bounds.items()},
                "groups": s.step.groups,
                "registers": s.kernel.registers,
                "spills": s.kernel.spills,
                "waves": s.kernel.waves,
                "code_bytes": s.kernel.code_bytes,
                "shared_bytes": s.kernel.shared_bytes,
                "products": s.work.products,
                "bytes": s.work.nbytes,
                "executed": dict(s.estimate.executed),
                "moved": dict(s.estimate.moved),
                "known": s.work.known,
            }
            for s in network.steps
        ],
    }
