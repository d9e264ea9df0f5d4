"""The kernel variants of a plan's steps, and their packed parameters."""

from __future__ import annotations

from cml_engine.compiler.plan import KernelCode, Plan, Step
from cml_engine.errors import OperatorError
from cml_engine.gpu.shaders.hlsl import ShaderKey, kernel_content, shader_key
from cml_engine.gpu.shaders.params import parse_params
from cml_engine.io.frame_gate import yield_to_frame

#: the source of a pipeline: HLSL, or code from a cooked file
Variant = ShaderKey | KernelCode


def step_keys(plan: Plan, contents: dict[tuple[str, str], str] | None = None) -> list[Variant]:
    """Returns the kernel variants of the plan's steps in order, with the files as they are now.

    ``contents`` caches the digests of files that were read already; new ones are added to it.
    """
    contents = {} if contents is None else contents
    return [step.cooked.kernel if step.cooked else step_key(step, contents) for step in plan.steps]


def step_key(step: Step, contents: dict[tuple[str, str], str]) -> ShaderKey:
    """Returns the kernel variant of a step that is compiled from HLSL."""
    kernel = str(step.path), step.inline
    if kernel not in contents:
        contents[kernel] = kernel_content(*kernel)
    yield_to_frame()
    return shader_key(
        step.path,
        step.params_layout,
        len(step.bindings),
        step.defines,
        step.trusted,
        interface=step.interface,
        inline=step.inline,
        content=contents[kernel],
    )


def step_params(step: Step) -> bytes:
    """Returns the bytes of the step's parameter block.

    Raises :class:`OperatorError` if the parameters do not fit their declaration.
    """
    if step.cooked is not None:
        return step.cooked.params
    try:
        return parse_params(step.params_layout).pack(step.params)
    except (
        ValueError,
        TypeError,
        OverflowError,
    ) as error:  # invalid parameters from an operator's lowering
        raise OperatorError(f"{step.title}: {error}", step.source) from error
