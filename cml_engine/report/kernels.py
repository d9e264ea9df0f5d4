"""``cml ops --kernels``: the kernel variants of each family of operators."""

from __future__ import annotations

from cml_engine.ops.declaration.variant import kernel_families


def kernel_table() -> str:
    """Every variant with its HLSL file and what it is, in the order in which the rules ask."""
    lines = []
    for family in kernel_families():
        lines.append(family.name)
        lines += [f"  {v.name:12s} {v.kernel.path!s:24s} {v.about}" for v in family.variants]
    return "\n".join(lines)
