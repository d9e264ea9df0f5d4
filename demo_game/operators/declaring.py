"""Registers the demo game's own operators from their HLSL and NumPy functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import cml_engine as cml
from cml_engine import ops
from cml_engine.demo_game.arrays import Array

TILE = ops.Fact("integer", (1, 4))
EXACT = ops.Tolerance(0, 0, "whole numbers")
_HERE = Path(__file__).parent


def declare(
    name: str,
    signature: str,
    takes: Mapping[str, ops.Fact],
    gives: Sequence[ops.Fact],
    cpu: Callable[..., Array | list[Array]],
    operations: int,
    cases: Sequence[ops.Case],
    tolerance: ops.Tolerance = EXACT,
    threads: int = 0,
    group: int = 64,
) -> None:
    """Registers an operator with fixed shapes, whose kernel is the file of its name.

    ``takes`` and ``gives`` are the facts of its inputs and outputs. ``operations`` is its cost per
    element of the first output. ``threads`` is by default the size of the first output.
    """

    def infer(attrs: ops.Attrs, *facts: ops.Fact) -> list[ops.Fact]:
        for (operand, expected), fact in zip(takes.items(), facts, strict=True):
            if fact != expected:
                raise cml.ModelError(f"wanted {operand} as {expected}, got {fact}")
        return list(gives)

    def cost(attrs: ops.Attrs, inputs: Sequence[ops.Fact], outputs: Sequence[ops.Fact]) -> ops.Cost:
        read, written = (sum(fact.nbytes for fact in facts) for facts in (inputs, outputs))
        return ops.Cost(operations * outputs[0].size, read, written)

    cml.register(
        cml.OpSpec(
            name=name,
            signature=f"fragment {name}{signature};",
            infer=infer,
            cpu=cpu,
            kernel=cml.Kernel(
                _HERE / f"{name}.hlsl",
                threads=lambda attrs, *facts: threads or gives[0].size,
                group=group,
                trusted=True,
            ),
            cost=cost,
            cases=cases,
            tolerance=tolerance,
        )
    )
