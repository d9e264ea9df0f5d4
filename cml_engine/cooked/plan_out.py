"""Writes a plan as a section ``plan`` of a cooked file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from cml_engine.compiler.plan import Binding, Plan, Step, StepCost, TensorPlace
from cml_engine.cooked.kernels import Codes
from cml_engine.cooked.profiles import Profile
from cml_engine.cooked.schema import (
    DTYPES,
    LAYOUTS,
    MOST_DIMENSIONS,
    SPACES,
    SUBGROUPS,
    TABLE_ALIGNMENT,
    BindingRow,
    Needs,
    PlanHead,
    PlanStepRow,
    Table,
    TensorRow,
    aligned,
)
from cml_engine.cooked.writer import Sections, Strings
from cml_engine.errors import DeviceError, InputError
from cml_engine.gpu.shaders.hlsl import step_params
from cml_engine.ir.layout import words

#: the most bytes of shared memory that the engine's kernels use per workgroup
_MOST_SHARED = 16384


def write_plan(
    plan: Plan, profile: Profile, kernels: Sequence[tuple[int, Codes]], gas: int, sections: Sections
) -> bytes:
    """Returns the bytes of a section ``plan``; adds its strings and constants to ``sections``.

    ``kernels`` has for each step its kernel's number in the file and the kernel; ``gas`` is the
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
    constants = [*values.rows("weights", plan.weights), *values.rows("own", plan.own)]
    params, places = _parameters(plan, profile.limits.uniform_offset_alignment)
    bindings = bytearray()
    steps, first = bytearray(), 0
    costs = zip(plan.steps, plan.step_costs(), kernels, strict=True)
    for step, cost, (number, codes) in costs:
        steps += _step(step, cost, number, codes, first, places[step.index], strings)
        bindings += b"".join(_binding(b) for b in step.bindings)
        first += len(step.bindings)
    updates = b"".join(_binding(b) for pair in plan.updates for b in pair)
    tables = {
        "steps": (len(plan.steps), bytes(steps)),
        "bindings": (first, bytes(bindings)),
        "inputs": (len(plan.inputs), _tensors(plan.inputs, strings)),
        "outputs": (len(plan.outputs), _tensors(plan.outputs, strings)),
        "updates": (len(plan.updates), updates),
        "params": (len(params), params),
        "constants": (len(constants), b"".join(constants)),
    }
    body, placed = bytearray(), dict[str, Table]()
    for name, (count, table) in tables.items():
        body += bytes(aligned(len(body), TABLE_ALIGNMENT) - len(body))
        placed[name] = Table(count=count, offset=PlanHead.SIZE + len(body))
        body += table
    head = PlanHead(
        profile=strings.put(profile.name),
        spaces=(plan.memory.peak, plan.weights_bytes, plan.own_bytes),
        needs=_needs(plan, profile, [codes for _, codes in kernels]),
        flops=plan.cost.flops,
        nbytes=plan.cost.bytes,
        gas=gas,
        **placed,
    )
    return head.to_bytes() + bytes(body)


def _needs(plan: Plan, profile: Profile, kernels: Sequence[Codes]) -> Needs:
    limits = profile.limits
    bound = [b.nbytes for step in plan.steps for b in step.bindings]
    subgroups = any(kernel.flags & SUBGROUPS for kernel in kernels)
    return Needs(
        storage_alignment=limits.storage_offset_alignment,
        uniform_alignment=limits.uniform_offset_alignment,
        binding_bytes=max(bound, default=0),
        buffer_bytes=max(plan.memory.peak, plan.weights_bytes, plan.own_bytes),
        threads=max((int(step.defines.get("GROUP", 0)) for step in plan.steps), default=0),
        shared_bytes=_MOST_SHARED,
        bindings=max((len(step.bindings) for step in plan.steps), default=0),
        lanes=limits.subgroup_size if subgroups else 0,
        software=int(limits.software),
    )


def _parameters(plan: Plan, alignment: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns the parameter blocks of all steps, each distinct block stored once, and the place of
    each step's block.

    A place is an offset, a multiple of ``alignment``, and a size in bytes.
    """
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
    cost: StepCost,
    kernel: int,
    codes: Codes,
    first: int,
    params: tuple[int, int],
    strings: Strings,
) -> bytes:
    if params[1] != codes.params_bytes:
        raise InputError(f"{step.title}: its kernel wants other parameters than it has")
    line, file = (step.source.line, step.source.file) if step.source else (0, "")
    return PlanStepRow(
        kernel=kernel,
        groups=step.groups,
        first_binding=first,
        bindings=len(step.bindings),
        writes=step.writes,
        params_offset=params[0],
        params_bytes=params[1],
        line=line,
        op=strings.put(cost.op),
        title=strings.put(step.title),
        cost_key=strings.put(cost.key),
        file=strings.put(PurePath(file).name),
        flops=cost.flops,
        nbytes=cost.nbytes,
        gas=round(step.cost.flops),
    ).to_bytes()


def _binding(binding: Binding) -> bytes:
    space = SPACES.index(binding.space)
    return BindingRow(space=space, offset=binding.offset, nbytes=binding.nbytes).to_bytes()


def _tensors(places: Mapping[str, TensorPlace], strings: Strings) -> bytes:
    return b"".join(_tensor(name, place, strings) for name, place in places.items())


def _tensor(name: str, place: TensorPlace, strings: Strings) -> bytes:
    shape = place.fact.shape
    if len(shape) > MOST_DIMENSIONS:
        raise InputError(f"'{name}' has {len(shape)} dimensions, a cooked file has at most 8")
    return TensorRow(
        name=strings.put(name),
        type=DTYPES.index(place.fact.dtype),
        layout=LAYOUTS.index(place.layout),
        rank=len(shape),
        extents=(*shape, *[0] * (MOST_DIMENSIONS - len(shape))),
        space=SPACES.index(place.binding.space),
        offset=place.binding.offset,
        nbytes=4 * words(place.fact, place.layout),
    ).to_bytes()
