"""Summarizes a cooked file for ``cml info net.cml``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from cml_engine.cooked.artifact import Artifact
from cml_engine.cooked.plan_in import CookedPlan
from cml_engine.ir.graph import Graph
from cml_engine.ir.memory import mib


@dataclass(frozen=True)
class ProfileInfo:
    """The facts about one plan of a cooked file; ``needs`` are the limits that it requires."""

    profile: str
    steps: int
    kernels: int
    arena_bytes: int
    weights_bytes: int
    own_bytes: int
    gflop: float
    gas: int
    needs: dict[str, int]
    layers: tuple[str, ...]

    @classmethod
    def of(cls, cooked: CookedPlan) -> ProfileInfo:
        plan = cooked.plan(cooked.profile)
        return cls(
            profile=cooked.profile,
            steps=len(plan.steps),
            kernels=len(cooked.used),
            arena_bytes=plan.memory.peak,
            weights_bytes=plan.weights_bytes,
            own_bytes=plan.own_bytes,
            gflop=plan.cost.flops / 1e9,
            gas=cooked.gas,
            needs=asdict(cooked.needs),
            layers=tuple(str(step) for step in plan.steps),
        )

    def __str__(self) -> str:
        needs = self.needs
        lanes = f", subgroups of {needs['lanes']} lanes" if needs["lanes"] else ""
        return (
            f"  {self.profile:10s} {self.steps} steps of {self.kernels} kernels, "
            f"{self.gflop:.3f} GFLOP; arena {mib(self.arena_bytes)}, weights "
            f"{mib(self.weights_bytes + self.own_bytes)}; needs offsets of at most "
            f"{needs['storage_alignment']}, bindings of {mib(needs['binding_bytes'])}, "
            f"{needs['bindings']} storage buffers{lanes}"
        )


@dataclass(frozen=True)
class CookedInfo:
    """The facts about a cooked file: inputs, outputs, plans, kernels and sizes.

    ``sections`` has bytes by tag, summed over equal tags.
    """

    model: str
    nbytes: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    meta: dict[str, Any]
    profiles: tuple[ProfileInfo, ...]
    sections: dict[str, int]
    kernels: int
    spirv: int
    wgsl: int
    has_graph: bool
    golden: float | None

    @classmethod
    def of(cls, graph: Graph) -> CookedInfo:
        """Returns the facts about a graph that :func:`cml_engine.load_cooked` returned."""
        made: Any = graph.ready
        assert isinstance(made, Artifact)
        sections: dict[str, int] = {}
        for tag, _, nbytes in made.sections:
            sections[tag] = sections.get(tag, 0) + nbytes
        kernels = made.kernels.values()
        return cls(
            model=graph.name,
            nbytes=made.nbytes,
            inputs={n: str(graph.facts[n]) for n in graph.inputs},
            outputs={n: str(graph.facts[n]) for n in graph.outputs},
            meta=dict(made.meta),
            profiles=tuple(ProfileInfo.of(plan) for plan in made.plans),
            sections=sections,
            kernels=len(kernels),
            spirv=sum(kernel.has_spirv for kernel in kernels),
            wgsl=sum(kernel.has_wgsl for kernel in kernels),
            has_graph=made.graph is not None,
            golden=made.golden.tolerance if made.golden else None,
        )

    def __str__(self) -> str:
        meta = self.meta
        bits = "16 bits where they may be" if meta["half"] else "32 bits"
        lines = [
            f"cooked {self.model}: {mib(self.nbytes)}, {bits}, by version {meta['engine']} "
            f"(rules {meta['rules']})"
        ]
        for title, rows in (("inputs", self.inputs), ("outputs", self.outputs)):
            lines += [title, *(f"  {name:24s} {fact}" for name, fact in rows.items())]
        lines += ["devices", *map(str, self.profiles)]
        lines.append(f"kernels    {self.kernels}: {self.spirv} SPIR-V, {self.wgsl} WGSL")
        lines += [f"  not in WGSL: {label}" for label in meta.get("without_wgsl", ())]
        if meta["custom"]:
            lines.append(f"of a game  {', '.join(meta['custom'])}: without their NumPy functions")
        lines.append(f"graph      {'for the CPU and other devices' if self.has_graph else 'none'}")
        golden = "none" if self.golden is None else f"tolerance {self.golden:.3g}"
        lines.append(f"golden     {golden}")
        sizes = ", ".join(f"{tag} {mib(n)}" for tag, n in self.sections.items())
        lines.append(f"sections   {sizes}")
        return "\n".join(lines)

    def json(self, **more: Any) -> str:
        """Returns the facts as the text of a JSON object, with the additional entries ``more``."""
        return json.dumps({**asdict(self), **more}, indent=2)

    @property
    def layers(self) -> tuple[str, ...]:
        """A line of text for every dispatch of every plan, below a heading for each plan."""
        return tuple(line for p in self.profiles for line in (f"plan for {p.profile}", *p.layers))
