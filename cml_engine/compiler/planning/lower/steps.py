"""Converts dispatches and the places of their tensors to steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cml_engine.compiler.plan import Binding, Step, TensorPlace
from cml_engine.compiler.planning.lower.draft import Draft
from cml_engine.compiler.planning.lower.options import PlanOptions
from cml_engine.compiler.planning.lower.tensors import tensor_bytes
from cml_engine.compiler.planning.lower.weights import PackedWeights, aligned_bytes
from cml_engine.compiler.planning.packed_inputs import PackedInput
from cml_engine.errors import DeviceError, InternalError
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Graph, Node
from cml_engine.ir.layout import PLAIN, stored_bytes
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel
from cml_engine.ops.declaration.split_bindings import SplitBinding


def updates_of(
    graph: Graph, alias: Mapping[str, str], draft: Draft, locate: Locator
) -> tuple[tuple[Binding, Binding], ...]:
    """Returns the copies (source, target) after a run that update variables, in the order in which
    they must run.

    New values that are in the weights are copied to intermediate tensors first.
    """
    first, then = [], []
    for variable, value in graph.updates:
        source = locate(value)
        if variable in draft.passed_on:
            waiting = locate(draft.passed_on[variable])
            first.append((source, waiting))
            source = waiting
        then.append((source, locate(variable)))
    return (*first, *then)


@dataclass(frozen=True)
class Locator:
    """Finds the place of a tensor by name: a call returns its binding, ``place`` also its fact
    and layout."""

    graph: Graph
    layouts: Mapping[str, str]
    alias: Mapping[str, str]
    arena: Mapping[str, int]
    weights: PackedWeights
    draft: Draft

    def __call__(self, name: str) -> Binding:
        root = self.alias.get(name, name)
        found = self.weights.find(root)
        if found is not None:
            space, offset, array = found
            return Binding(name, space, offset, aligned_bytes(stored_bytes(array)))
        if root not in self.arena:
            raise InternalError(f"tensor '{name}' has no place in memory")
        if root in self.draft.scratch:
            size = 4 * self.draft.scratch[root]
        else:
            size = tensor_bytes(self.graph, self.layouts, root)
        return Binding(name, "arena", self.arena[root], aligned_bytes(size))

    def place(self, name: str) -> TensorPlace:
        layout = self.layouts.get(name, PLAIN)
        return TensorPlace(self(name), self.graph.facts[name], layout)


def step_of(
    index: int,
    node: Node,
    kernel: Kernel,
    dispatch: Dispatch,
    cost: Cost,
    locate: Callable[[str], Binding],
    parts: Mapping[str, SplitBinding],
) -> Step:
    yield_to_frame()
    bindings = [_cut(locate(name), parts[name]) for name in dispatch.tensors]
    return Step(
        index=index,
        op=node.op,
        title=node.title,
        path=kernel.path,
        params_layout=kernel.params,
        params=dispatch.params,
        defines={"GROUP": kernel.group, **dispatch.defines},
        bindings=tuple(part for binding in bindings for part in binding),
        writes=sum(map(len, bindings[len(bindings) - dispatch.writes :])),
        groups=dispatch.groups,
        cost=cost,
        trusted=kernel.trusted,
        interface=kernel.interface,
        inline=kernel.source,
        fused=tuple(e.op for e in node.epilogues),
        source=node.source,
        variant=dispatch.variant,
    )


def _cut(binding: Binding, parts: SplitBinding) -> list[Binding]:
    if parts.count == 1:
        return [binding]
    return [
        replace(binding, offset=binding.offset + start, nbytes=nbytes)
        for start, nbytes in parts.ranges(binding.nbytes)
    ]


def input_place(locate: Locator, name: str, found: PackedInput | None) -> TensorPlace:
    """Returns the place of input ``name``, with the layout and the conversion of ``found`` if it
    is stored packed."""
    place = locate.place(name)
    if found is None:
        return place
    return replace(place, layout=locate.layouts[found.words], conversion=found.conversion)


def readable_places(graph: Graph, locate: Locator, options: PlanOptions) -> dict[str, TensorPlace]:
    if not options.keep:
        return {name: locate.place(name) for name in graph.outputs}
    return {name: locate.place(name) for node in graph.nodes for name in node.outputs}


def check_limits(steps: Iterable[Step], weights: PackedWeights, limits: Limits) -> None:
    sizes = (("weights", weights.shared.nbytes), ("variables", weights.own.nbytes))
    for what, size in sizes:
        if size > limits.max_buffer_bytes:
            raise DeviceError(
                f"the model's {what} take {size} bytes, this device allows buffers of "
                f"{limits.max_buffer_bytes}. Use a smaller input or another device."
            )
    for step in steps:
        for binding in step.bindings:
            if binding.nbytes > limits.max_binding_bytes:
                raise DeviceError(
                    f"{step.title}: a part of tensor '{binding.tensor}' takes {binding.nbytes} "
                    f"bytes, this device binds at most {limits.max_binding_bytes}. Use another "
                    "device.",
                    step.source,
                )
        if len(step.bindings) > limits.max_storage_buffers:
            raise DeviceError(
                f"{step.title}: binds {_listed(step.bindings)}, together {len(step.bindings)}, "
                f"this device allows {limits.max_storage_buffers}. Use a smaller input or another "
                "device.",
                step.source,
            )


def _listed(bindings: Sequence[Binding]) -> str:
    """Returns the names of the bound tensors as text, with the number of parts of each."""
    counts = Counter(binding.tensor for binding in bindings)
    return ", ".join(f"'{n}' in {c} parts" if c > 1 else f"'{n}'" for n, c in counts.items())
