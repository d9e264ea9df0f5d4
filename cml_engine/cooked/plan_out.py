"""Writes a plan as a section of a cooked file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from cml_engine.compiler.plan import Binding, Plan, Step, StepWork, TensorPlace
from cml_engine.cooked.form import (
    BINDING,
    DTYPES,
    LAYOUTS,
    MOST_DIMENSIONS,
    PLAN_HEADER,
    SPACES,
    STEP,
    SUBGROUPS,
    TABLE_ALIGNMENT,
    TENSOR,
    aligned,
)
from cml_engine.cooked.kernels import Codes
from cml_engine.cooked.profiles import Profile
from cml_engine.cooked.writer import Sections, Strings
from cml_engine.errors import DeviceError, InputError
from cml_engine.gpu.shaders.steps import step_params
from cml_engine.ir.layout import words

#: the most bytes of shared memory that the engine's kernels use per workgroup
_MOST_SHARED = 16384


def write_plan(
    plan: Plan, profile: Profile, kernels: Sequence[tuple[int, Codes]], gas: int, sections: Sections
) -> bytes:
    """Returns the section of a plan.

    ``kernels`` has for each step its kernel and the kernel's number in the file; ``gas`` is the
    cost of the model. Raises :class:`DeviceError` if the arena does not fit into one buffer.
    """
    if plan.memory.segment:
        raise DeviceError(
            f"'{plan.name}' takes {plan.memory.peak} bytes for activations, and players have one "
            f"buffer for them: the devices of '{profile.name}' allow {plan.memory.segment} bytes. "
            "Cook it for others, or with a smaller input"
        )
    strings = sections.strings
    values = sections.values
    pieces = [*values.pieces("weights", plan.weights), *values.pieces("own", plan.own)]
    params, places = _parameters(plan, profile.limits.uniform_offset_alignment)
    bindings = bytearray()
    steps, first = bytearray(), 0
    costs = zip(plan.steps, plan.step_costs(), kernels, strict=True)
    for step, cost, (number, codes) in costs:
        steps += _step(step, cost, number, codes, first, places[step.index], strings)
        bindings += b"".join(_binding(b) for b in step.bindings)
        first += len(step.bindings)
    tables = [
        (len(plan.steps), bytes(steps)),
        (first, bytes(bindings)),
        (len(plan.inputs), _tensors(plan.inputs, strings)),
        (len(plan.outputs), _tensors(plan.outputs, strings)),
        (len(plan.updates), b"".join(_binding(b) for pair in plan.updates for b in pair)),
        (len(params), params),
        (len(pieces), b"".join(pieces)),
    ]
    body, ends = bytearray(), list[int]()
    for count, table in tables:
        body += bytes(aligned(len(body), TABLE_ALIGNMENT) - len(body))
        ends += [count, PLAN_HEADER.size + len(body)]
        body += table
    header = PLAN_HEADER.pack(
        *strings.put(profile.name),
        0,
        plan.memory.peak,
        plan.weights_bytes,
        plan.own_bytes,
        *_needs(plan, profile, [codes for _, codes in kernels]),
        0,
        plan.cost.flops,
        plan.cost.bytes,
        gas,
        *ends,
        bytes(24),
    )
    return header + bytes(body)


def _needs(plan: Plan, profile: Profile, kernels: Sequence[Codes]) -> list[int]:
    """Returns the fields of :class:`Needs` for a plan."""
    limits = profile.limits
    bound = [b.nbytes for step in plan.steps for b in step.bindings]
    subgroups = any(kernel.flags & SUBGROUPS for kernel in kernels)
    return [
        limits.storage_offset_alignment,
        limits.uniform_offset_alignment,
        max(bound, default=0),
        max(plan.memory.peak, plan.weights_bytes, plan.own_bytes),
        max((int(step.defines.get("GROUP", 0)) for step in plan.steps), default=0),
        _MOST_SHARED,
        max((len(step.bindings) for step in plan.steps), default=0),
        limits.subgroup_size if subgroups else 0,
        int(limits.software),
    ]


def _parameters(plan: Plan, alignment: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns all parameter blocks as uploaded, each stored once, and the offset and size of
    each step's."""
    content, known, places = bytearray(), dict[bytes, int](), []
    for step in plan.steps:
        block = step_params(step)
        if block not in known:
            content += bytes(aligned(len(content), alignment) - len(content))
            known[block] = len(content)
            content += block
        places.append((known[block], len(block)))
    return bytes(content), places


def _step(
    step: Step,
    cost: StepWork,
    kernel: int,
    codes: Codes,
    first: int,
    params: tuple[int, int],
    strings: Strings,
) -> bytes:
    if params[1] != codes.params_bytes:
        raise InputError(f"{step.title}: its kernel wants other parameters than it has")
    line, file = (step.source.line, step.source.file) if step.source else (0, "")
    return STEP.pack(
        kernel,
        step.groups,
        first,
        len(step.bindings),
        step.writes,
        *params,
        line,
        *strings.put(cost.op),
        *strings.put(step.title),
        *strings.put(cost.key),
        *strings.put(PurePath(file).name),
        cost.flops,
        cost.nbytes,
        round(step.cost.flops),
        0,
    )


def _binding(binding: Binding) -> bytes:
    return BINDING.pack(SPACES.index(binding.space), 0, binding.offset, binding.nbytes)


def _tensors(places: Mapping[str, TensorPlace], strings: Strings) -> bytes:
    return b"".join(_tensor(name, place, strings) for name, place in places.items())


def _tensor(name: str, place: TensorPlace, strings: Strings) -> bytes:
    shape = place.fact.shape
    if len(shape) > MOST_DIMENSIONS:
        raise InputError(f"'{name}' has {len(shape)} dimensions, a cooked file has at most 8")
    return TENSOR.pack(
        *strings.put(name),
        DTYPES.index(place.fact.dtype),
        LAYOUTS.index(place.layout),
        len(shape),
        *shape,
        *[0] * (MOST_DIMENSIONS - len(shape)),
        SPACES.index(place.binding.space),
        place.binding.offset,
        4 * words(place.fact, place.layout),
        0,
    )
