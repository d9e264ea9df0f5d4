"""Writes the table of modelled kernels by which the engine's rules choose on hardware."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from benchmarks.hardware.listing import Nest
from benchmarks.hardware.model import CARDS, LAUNCH, Card
from benchmarks.hardware.nests import nest_of
from benchmarks.hardware.networks import Compiler, compiler_of, plan_for
from cml_engine.compiler.plan import Plan, Step
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.gpu.shaders.hlsl import step_key
from cml_engine.ir.graph import Graph
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.declaration.hardware import FILES
from cml_engine.ops.declaration.registry import load_families

#: the cards of the tables, by :attr:`Limits.scalar_loads`
_CARDS = {True: "RX 6800", False: "RTX 2080 Ti"}
#: lanes of the workgroups of which a table has cycles
_LANES = 64
#: bytes of the instruction cache, and registers of a lane: those of sums and addresses stand beside
#: the inputs of two turns, which are four each
_CODE_CACHE, _REGISTERS, _OTHER_REGISTERS = 32 << 10, 256, 64
#: waves of a SIMD that hide the loads of a copy
_COPY_WAVES = 8
#: channels of the layers: whole tiles of every size
_CHANNELS = 64


def write_tables() -> Iterator[str]:
    """Writes the table of each card whose compiler is at hand; yields a line about each."""
    for scalar_loads, name in _CARDS.items():
        card, file = CARDS[name], FILES[scalar_loads]
        try:
            compile = compiler_of(card)
        except cml.CmlError as error:
            yield f"{file}: left as it is: {error}"
            continue
        yield f"{file}: {_write_table(file, card, compile)} kernels"


def _write_table(file: Path, card: Card, compile: Compiler) -> int:
    """Writes a card's table; returns the number of its kernels."""
    kernels: dict[str, Any] = {}
    # bytes of a window's code for a product of an input channel, or of four channels of bytes
    code_of_product: dict[str, list[float]] = {"window": [], "dot4 window": [], "half window": []}
    for prefix, step in _steps():
        kernel = compile(step_key(step, {}))
        simds = card.units * card.simds * kernel.wave // _LANES
        if prefix == "3x3 ":
            products = int(step.defines["ROWS"]) * int(step.defines["COLUMNS"]) * 9
            if products > 200:
                found = code_of_product[step.variant.partition(f" {step.defines['ROWS']}x")[0]]
                found.append(kernel.code_bytes / products)
        busy, alone = kernel.listing.cycles_by_depth(
            card.latency(kernel.wave), card.load_cycles(kernel.wave), (nest_of(step) or Nest()).tail
        )
        kernels[_name(prefix, step)] = {
            "waves": kernel.waves,
            "busy": [round(c) for c in busy],
            "alone": [round(c) for c in alone],
        }
    stored = {
        "source": f"python -m benchmarks.hardware --write: cycles of {_LANES} lanes on "
        f"{card.name}, compiled by its vendor's compiler and modelled, not run",
        "card": {
            "simds": simds,
            "clock": card.clock,
            "memory": card.cache,
            "launch": LAUNCH,
        },
        "limits": {
            "window_products": int(_CODE_CACHE // max(code_of_product["window"])),
            "byte_window_products": int(_CODE_CACHE // max(code_of_product["dot4 window"])),
            "window_cells": (_REGISTERS - _OTHER_REGISTERS) // 8,
            "copy_groups": _COPY_WAVES * simds,
        },
        "kernels": dict(sorted(kernels.items())),
    }
    # a line for each kernel
    text = re.sub(r"(?<=[\[{0-9,])\n {3,4}|\n {2,3}(?=[\]}])", " ", json.dumps(stored, indent=1))
    file.write_text(text + "\n", encoding="utf-8")
    return len(kernels)


def _name(prefix: str, step: Step) -> str:
    stage = next((n for n in ("input", "output") if f"stage_is_{n}" in step.defines), "")
    numbers = "half " if "HALVES" in step.defines else ""
    return f"{numbers}winograd {stage}" if stage else f"{prefix}{step.variant}"


def _steps() -> Iterator[tuple[str, Step]]:
    """Yields a step of every kernel of the table, with a word before its name."""
    load_families()
    for prefix, variants, key, graph in _networks():
        plan = partial(_plan, graph, "half" in (prefix + variants[0]).split())
        found = [choice for choice in plan().choices if key in choice.key]
        blocks = ("c4>c4", "c4h>c4h")
        choice = next((c for c in found if any(b in c.key for b in blocks)), found[0])
        for option in choice.options:
            if option.endswith(_GROUPS) and option.startswith(variants):
                for step in plan(VariantTable.forcing(choice.key, option)).steps:
                    is_kernel = step.title == choice.node and str(step.path) in _PATHS
                    if is_kernel and not ("once" in prefix and step.defines["LOOP"]):
                        yield prefix, step


#: blocks of a turn of a convolution 1x1, and channels that have a whole number of them
_POINTWISE = ((1, 20), (2, 40), (4, 64))
_BYTE_POINTWISE = ((1, 20), (2, 40), (4, 80), (8, 128))
#: inputs by which the networks of bytes are quantized
_SAMPLES = 8
#: the kernels of the table; others of the same operators copy
_PATHS = (
    "conv/conv.hlsl",
    "conv/conv_window.hlsl",
    "conv/winograd.hlsl",
    "conv/depthwise.hlsl",
    "matmul/matmul.hlsl",
    "reduction/reduce.hlsl",
    "reduction/softmax.hlsl",
    "reduction/standardize.hlsl",
)
#: the ends of their names: of workgroups of one wave, or of the waves of a sum
_GROUPS = (
    *(" by 64", " by 64 in 2 parts", " by 64 in 3 parts", " by 64 in 4 parts"),
    *(" by 8x8", " by 4x16", " by 1x64"),
    *(" trees of 64 from 257", " trees of 64 from 16", " trees of 256 from 16"),
)


def _plan(graph: Graph, halves: bool, table: VariantTable | None = None) -> Plan:
    options = PlanOptions() if table is None else PlanOptions(variants=table)
    # the table does not decide by itself what it has rows for
    decide = {node.outputs[0]: {"storage": "half"} for node in graph.nodes[:-1] if halves}
    return plan_for(graph, "discrete", halves, options, decide)


def _networks() -> Iterator[tuple[str, tuple[str, ...], str, Graph]]:
    """Yields graphs: the word before the names of their kernels, the variants of the table, a part
    of the key of the choice between them, and the graph. Layers stand between others, as most do.
    """
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    c = _CHANNELS
    inside = {"padding": [(0, 0), (0, 0)]}
    layers: list[tuple[str, tuple[str, ...], str, tuple[int, ...], dict[str, Any]]] = [
        ("", ("tile", "winograd"), "conv", (c, c, 3, 3), {}),
        ("3x3 ", ("window",), "conv", (c, c, 3, 3), {}),
        ("3x3 inside ", ("window",), "conv", (c, c, 3, 3), inside),
        # waves that have one of the blocks each
        *(("3x3 inside once ", ("window",), "conv", (c, 4 * n, 3, 3), inside) for n in range(1, 5)),
        *((f"1x1x{n} ", ("window",), "conv", (m, m, 1, 1), {}) for n, m in _POINTWISE),
        ("depthwise ", ("tile",), "conv", (c, 1, 3, 3), {"groups": 0, "stride": [2, 2]}),
        ("", ("depthwise",), "conv", (c, 1, 3, 3), {"groups": 0}),
        ("half depthwise ", ("tile",), "conv", (c, 1, 3, 3), {"groups": 0, "stride": [2, 2]}),
        ("half ", ("depthwise",), "conv", (c, 1, 3, 3), {"groups": 0}),
        ("transposed ", ("tile",), "deconv", (c, c, 3, 3), {"stride": [2, 2]}),
        ("", ("half tile", "half winograd"), "conv", (c, c, 3, 3), {}),
        ("3x3 ", ("half window",), "conv", (c, c, 3, 3), {}),
        *((f"1x1x{n} ", ("half window",), "conv", (m, m, 1, 1), {}) for n, m in _POINTWISE),
        ("transposed ", ("half tile",), "deconv", (c, c, 3, 3), {"stride": [2, 2]}),
        ("", ("dot4 tile",), "conv", (c, c, 3, 3), {}),
        ("3x3 ", ("dot4 window",), "conv", (c, c, 3, 3), {}),
        *((f"1x1x{n} ", ("dot4 window",), "conv", (m, m, 1, 1), {}) for n, m in _BYTE_POINTWISE),
        ("transposed ", ("dot4 tile",), "deconv", (c, c, 3, 3), {"stride": [2, 2]}),
    ]
    for prefix, variants, op, shape, attrs in layers:
        c, size = shape[0], "x".join(map(str, shape[2:]))
        inputs = c if "groups" in attrs else shape[1]
        # layers of one tap in a row would be one dispatch
        taps = (3, 3) if size == "1x1" else (1, 1)
        builder = cml.GraphBuilder("layers")
        x: Any = builder.input("x", [1, c, 64, 64])
        x = builder.conv(x, weights(inputs, c, *taps))
        x = getattr(builder, op)(x, weights(*shape), weights(1, c), **attrs)
        graph = builder.graph(y=builder.conv(x, weights(c, c, *taps)))
        if variants[0].startswith("dot4"):
            samples = [{"x": weights(1, c, 64, 64)} for _ in range(_SAMPLES)]
            graph, _ = cml.quantize(graph, samples, sixteen=[])
        yield prefix, variants, f"{op} {size}", graph
    for prefix in ("matmul ", "computed matmul "):
        builder = cml.GraphBuilder("product")
        x = builder.input("x", [256, 256])
        is_computed = prefix.startswith("computed")
        right: Any = builder.input("right", [256, 256]) if is_computed else weights(256, 256)
        yield prefix, ("tile",), "matmul", builder.graph(y=builder.matmul(x, right))
    for kernel, op in (("reduce", "mean_reduce"), ("softmax", "softmax")):
        builder = cml.GraphBuilder(op)
        x = builder.input("x", [512, 240])
        result = getattr(builder, op)(x, axes=[1])
        yield f"{kernel} ", ("threads",), op, builder.graph(y=result)
    builder = cml.GraphBuilder("standardize")
    x = builder.input("x", [512, 240])
    mean, variance = builder.moments(x, axes=[1])
    y = builder.batch_normalization(x, mean, variance, 0.0, 1.0, epsilon=1e-5)
    yield "standardize ", ("threads",), "standardize", builder.graph(y=y)
