"""The kernels of a plan as files."""

from __future__ import annotations

from pathlib import Path

from cml_engine.plan import Plan


def write_kernels(plan: Plan, folder: Path) -> dict[str, str]:
    """Write the HLSL of every kernel variant of the plan, complete in itself; by dispatch its
    file's name. Compiles nothing."""
    from cml_engine.gpu.shaders.dump import dump_source
    from cml_engine.gpu.shaders.steps import step_key

    contents: dict[tuple[str, str], str] = {}
    keys = [step_key(step, contents) for step in plan.steps]
    files = {key: dump_source(key, folder).name for key in dict.fromkeys(keys)}
    titles = (f"{step.index} {step.title}" for step in plan.steps)
    return {title: files[key] for title, key in zip(titles, keys, strict=True)}
