"""Places the constants of a draft, and makes its dispatches the steps of a :class:`Plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cml_engine.compiler.plan import Binding, CpuPart, Plan, Reuse, Step, TensorPlace
from cml_engine.compiler.planning.arena import check_sizes, retained_tensors
from cml_engine.compiler.planning.dispatches import NUMPY, check_limits, defines_of
from cml_engine.compiler.planning.draft import MIN_BYTES, Constants, Draft
from cml_engine.errors import DeviceError, InternalError
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Array
from cml_engine.ir.layout import stored_bytes
from cml_engine.ir.limits import Limits
from cml_engine.ir.reuse import sources_of
from cml_engine.ops.declaration.spec import Defines
from cml_engine.ops.declaration.split_bindings import SplitBinding

# -- weights --------------------------------------------------------------------------------------


def place_weights(draft: Draft) -> Draft:
    """Returns the draft with the constants that a dispatch binds, an update writes, or an output
    is.

    Variables are never shared, nor constants that the sibling does not have. With a sibling the
    shared constants have its offsets. Raises :class:`DeviceError` if they exceed a buffer.
    """
    graph, sibling, packed = draft.graph, draft.sibling, draft.lowered.packed
    names = [draft.root(n) for _, _, d, _ in draft.lowered.dispatches for n in d.tensors]
    names += map(draft.root, graph.roots)
    variables = {variable: None for variable, _ in graph.updates}
    places: dict[str, tuple[str, int, Array]] = {}
    nbytes = {"weights": sibling.plan.weights_bytes if sibling else 0, "own": 0}
    for name in dict.fromkeys([*names, *variables]):
        array = packed.get(name, graph.constants.get(name))
        if array is None:
            continue
        if sibling and name not in variables and sibling.has_equal(name, array):
            places[name] = ("weights", *sibling.plan.weights[name])
            continue
        space = "own" if sibling or name in variables else "weights"
        places[name] = space, nbytes[space], array
        nbytes[space] += -(-max(stored_bytes(array), MIN_BYTES) // draft.align) * draft.align
    limit = draft.limits.max_buffer_bytes
    for space, size in nbytes.items():
        if size > limit:
            content = "variables" if space == "own" else space
            raise DeviceError(
                f"the model's {content} take {size} bytes, this device allows buffers of {limit}. "
                "Use a smaller input or another device."
            )
    return replace(draft, constants=Constants(places, nbytes))


# -- steps ----------------------------------------------------------------------------------------


def make_steps(draft: Draft) -> Draft:
    """Returns the draft with its plan: the dispatches as steps, with the places of their tensors.

    Raises :class:`DeviceError` or :class:`NodesRefused` if they exceed the device's limits.
    """
    check_sizes(draft)
    check_limits(draft)
    graph, options, lowered = draft.graph, draft.options, draft.lowered
    constants, decided = draft.constants, options.decided("parts")
    inputs = {name: _input_place(draft, name) for name in graph.inputs}
    variables = {name: _place_of(draft, name) for name, _ in graph.updates}
    results = (name for node in graph.nodes for name in node.outputs)
    computed = {name: _place_of(draft, name) for name in results if name not in lowered.unstored}
    outputs = {name: _place_of(draft, name) for name in graph.outputs}
    plan = Plan(
        name=graph.name,
        steps=tuple(_step_of(i, draft) for i in range(len(draft.arena.dispatches))),
        inputs=inputs,
        outputs=outputs,
        tensors=computed if options.keep else outputs,
        taps={name: _place_of(draft, tensor) for name, tensor in graph.taps.items()},
        places={**inputs, **variables, **computed},
        weights=draft.sibling.plan.weights if draft.sibling else constants.of_space("weights"),
        weights_bytes=constants.nbytes["weights"],
        own=constants.of_space("own"),
        own_bytes=constants.nbytes["own"],
        memory=draft.arena.memory,
        updates=_updates_of(draft),
        options={"keep": options.keep, "guard": options.guard},
        reuse=_reuse_of(draft) if options.retain else None,
        choices=tuple(lowered.choices),
        parts={n: p for n, p in lowered.parts.items() if p.count > 1 or n in decided},
        bands=draft.bands.runs,
        bands_of=draft.bands.titles,
        layouts=draft.layouts,
    )
    return replace(draft, plan=plan)


def _reuse_of(draft: Draft) -> Reuse:
    sources = sources_of(draft.graph)
    roots = {root: _binding_of(draft, root).nbytes for root in retained_tensors(draft).values()}
    return Reuse(tuple(sources[node.outputs[0]] for node, *_ in draft.arena.dispatches), roots)


def _updates_of(draft: Draft) -> tuple[tuple[Binding, Binding], ...]:
    """Returns the copies (source, target) after a run that update variables, in the order in which
    they must run.

    New values that are in the weights are copied to intermediate tensors first.
    """
    passed_on = draft.sharing.passed_on
    staged, written = [], []
    for variable, value in draft.graph.updates:
        source = _binding_of(draft, value)
        if variable in passed_on:
            intermediate = _binding_of(draft, passed_on[variable])
            staged.append((source, intermediate))
            source = intermediate
        written.append((source, _binding_of(draft, variable)))
    return (*staged, *written)


def _binding_of(draft: Draft, name: str) -> Binding:
    """Returns the range of memory of a tensor."""
    root = draft.root(name)
    if root in draft.constants.places:
        space, offset, array = draft.constants.places[root]
        return Binding(name, space, offset, _aligned(stored_bytes(array)))
    if root not in draft.arena.offsets:
        raise InternalError(f"tensor '{name}' has no place in memory")
    return Binding(name, "arena", draft.arena.offsets[root], _aligned(draft.nbytes(root)))


def _aligned(nbytes: int) -> int:
    return -(-max(nbytes, 1) // MIN_BYTES) * MIN_BYTES


def _place_of(draft: Draft, name: str) -> TensorPlace:
    """Returns the place of a tensor: its range of memory, its fact and its layout."""
    layout = draft.layout(name)
    return TensorPlace(_binding_of(draft, name), draft.graph.facts[name], layout)


def _step_of(index: int, draft: Draft) -> Step:
    node, kernel, dispatch, cost = draft.arena.dispatches[index]
    yield_to_frame()
    if kernel is NUMPY:
        return _cpu_step(index, draft)
    parts = draft.lowered.parts
    bindings = [_cut(_binding_of(draft, name), parts[name]) for name in dispatch.tensors]
    return Step(
        index=index,
        op=node.op,
        title=node.title,
        path=kernel.path,
        params_layout=kernel.params,
        params=dispatch.params,
        defines=defines_of(kernel, dispatch) | _rows(dispatch.groups, draft.limits),
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
        live=dispatch.live,
    )


def _rows(groups: int, limits: Limits) -> Defines:
    """Returns the define of a kernel whose workgroups may not fit one row of a dispatch."""
    width = min(limits.max_groups_per_dimension, Limits().max_groups_per_dimension)
    return {"MANY_GROUPS": 1} if groups > width else {}


def _cpu_step(index: int, draft: Draft) -> Step:
    """Returns the step of a dispatch of :data:`NUMPY`, with its operators as a graph."""
    first, kernel, dispatch, cost = draft.arena.dispatches[index]
    graph, refusals = draft.graph, draft.refusals
    nodes = tuple(draft.lowered.cpu_parts[first.outputs[0]])
    reads, writes = dispatch.tensors[: -dispatch.writes], dispatch.tensors[-dispatch.writes :]
    used = {name for node in nodes for name in node.tensors}
    part = graph.with_(
        inputs=reads,
        outputs=writes,
        nodes=nodes,
        facts={n: fact for n, fact in graph.facts.items() if n in used},
        constants={n: v for n, v in graph.constants.items() if n in used and n not in reads},
        updates=(),
        taps={},
        unfused=(),
    )
    places = {name: _place_of(draft, name) for name in dispatch.tensors}
    return Step(
        index=index,
        op="+".join(dict.fromkeys(node.op for node in nodes)),
        title=", ".join(node.title for node in nodes),
        path=kernel.path,
        params_layout="",
        params={},
        defines={},
        bindings=tuple(place.binding for place in places.values()),
        writes=dispatch.writes,
        groups=0,
        cost=cost,
        trusted=True,
        source=first.source,
        cpu_part=CpuPart(
            graph=part,
            reads=_select(reads, places),
            writes=_select(writes, places),
            refusals=tuple(refusals[n.outputs[0]] for n in nodes if n.outputs[0] in refusals),
        ),
    )


def _select(names: Sequence[str], places: Mapping[str, TensorPlace]) -> dict[str, TensorPlace]:
    return {name: places[name] for name in names}


def _cut(binding: Binding, parts: SplitBinding) -> list[Binding]:
    if parts.count == 1:
        return [binding]
    return [
        replace(binding, offset=binding.offset + start, nbytes=nbytes)
        for start, nbytes in parts.ranges(binding.nbytes)
    ]


def _input_place(draft: Draft, name: str) -> TensorPlace:
    """Returns the place of input ``name``, with the layout and the conversion of its words if it
    is stored packed."""
    place, packed = _place_of(draft, name), draft.sharing.packed_inputs.get(name)
    if packed is None:
        return place
    return replace(place, layout=draft.layouts[packed.words], conversion=packed.conversion)
