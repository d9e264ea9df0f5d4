"""Compiles the kernels of networks' plans with the vendors' compilers, and models their time.

No card is needed: AMD's compiler is Mesa's RADV on null hardware, NVIDIA's is ptxas. What is
printed is compiled and modelled, not run; docs/design/performance.md states the assumptions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cml_engine as cml
from benchmarks import command
from benchmarks.contenders import Unavailable
from benchmarks.hardware import peer
from benchmarks.hardware.capture import NagaCapture
from benchmarks.hardware.model import CARDS, Card
from benchmarks.hardware.networks import (
    Compiler,
    NetworkEstimate,
    compiler_of,
    estimate_network,
    markdown,
    plan_for,
    record,
)
from benchmarks.hardware.peer import NcnnCapture
from benchmarks.hardware.radv import Radv, RadvError
from benchmarks.hardware.table import write_tables
from benchmarks.models import AGENTS, load_network
from cml_engine.gpu.shaders.hlsl import ShaderKey
from cml_engine.ir.graph import Graph

_CARDS = ("RX 6800", "RX Vega 64")
#: the demo's integer networks, which compute with bytes
_INTEGER = ("upres", "texture", "population")


def compilers_of(cards: Sequence[Card], codes: Sequence[str]) -> list[tuple[Card, str, Compiler]]:
    """Returns a compiler for each card and way of the code: ``slang`` is Slang's SPIR-V as a Vulkan
    host takes it, ``naga`` that of wgpu. NVIDIA's compiler takes Slang's CUDA."""
    capture = NagaCapture() if "naga" in codes else None
    found: list[tuple[Card, str, Compiler]] = []
    for card in cards:
        if not card.scalar_loads:
            found.append((card, "cuda", compiler_of(card)))
            continue
        if "slang" in codes:
            found.append((card, "slang", compiler_of(card)))
        if capture is not None:
            found.append((card, "naga", _naga(Radv(card.family, robust=True), capture)))
    return found


def _naga(radv: Radv, capture: NagaCapture) -> Compiler:
    codes: dict[ShaderKey, bytes] = {}

    def compile(key: ShaderKey) -> Any:
        if key not in codes:
            codes[key] = capture.spirv(key)
        return radv.compile(codes[key])

    return compile


def print_peer(models: Sequence[str], card: Card) -> None:
    """Prints a table of ncnn's kernels for each network that ncnn takes, on one of AMD's cards."""
    try:
        capture, radv = NcnnCapture(), Radv(card.family)
    except cml.CmlError as error:
        raise SystemExit(f"error: {error}") from None
    for model in models:
        try:
            table = peer.markdown(capture.kernels(model, radv))
        except (RadvError, Unavailable) as error:
            table = f"left out: {error}"
        print(f"ncnn's kernels for {model} on {card.name} ({card.family})\n\n{table}\n", flush=True)


def title(network: NetworkEstimate, profile: str, code: str) -> str:
    """Returns the line above a network's table."""
    kinds = ", ".join(
        f"{kind} {count:.2f}" for kind, count in network.per_product.items() if count >= 0.005
    )
    left_out = f" without {len(network.refused)} kernels" if network.refused else ""
    return (
        f"{network.model} for {profile} on {network.card.name} ({network.card.family}, {code}): "
        f"{1e3 * network.seconds:.3f} ms modelled{left_out}, roofline {1e3 * network.roof:.3f} ms; "
        f"products at {network.product_peak:.0%} of the peak, instructions per product: {kinds}"
    )


def compared(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Returns a line of a network's numbers in two reports."""

    def total(report: dict[str, Any]) -> float:
        return float(sum(report["per_product"].values()))

    return (
        f"  before: {old['ms']:.3f} → {new['ms']:.3f} ms ({new['ms'] / old['ms']:.2f}), "
        f"instructions per product {total(old):.2f} → {total(new):.2f}, "
        f"products at {old['product_peak']:.0%} → {new['product_peak']:.0%} of the peak"
    )


def main(arguments: Sequence[str]) -> int:
    parser = command.make_parser("python -m benchmarks.hardware", __doc__, "hardware", "all")
    parser.add_argument("--cards", nargs="+", choices=CARDS, default=list(_CARDS))
    parser.add_argument("--profiles", nargs="+", choices=["discrete", "portable"],
                        default=["discrete"])  # fmt: skip
    parser.add_argument("--code", nargs="+", choices=["slang", "naga"], default=["slang"],
                        help="whose SPIR-V AMD's compiler reads")  # fmt: skip
    parser.add_argument("--least", type=float, default=0.02, help="the least share that is shown")
    parser.add_argument("--against", type=Path, help="the JSON of an earlier run to compare with")
    parser.add_argument(
        "--write", action="store_true", help="write the table by which the rules choose, and end"
    )
    parser.add_argument(
        "--peer", action="store_true", help="compile ncnn's kernels for the networks, and end"
    )
    parser.add_argument(
        "--half", action="store_true", help="store and multiply in 16 bits where the rules do"
    )
    parser.add_argument(
        "--integer", action="store_true", help="take the demo's integer networks instead"
    )
    options = parser.parse_args(arguments)
    if options.write:
        try:
            for line in write_tables():
                print(line, flush=True)
        except cml.CmlError as error:
            raise SystemExit(f"error: {error}") from None
        return 0
    command.fetch_assets()
    if options.peer:
        print_peer(command.chosen_models(options), CARDS[options.cards[0]])
        return 0
    try:
        compilers = compilers_of([CARDS[name] for name in options.cards], options.code)
    except cml.CmlError as error:
        raise SystemExit(f"error: {error}") from None
    before = _earlier(options)
    records, texts = [], []
    for model, graph in _networks(options):
        for profile in options.profiles:
            for card, code, compile in compilers:
                plan = plan_for(graph, profile, options.half, scalar_loads=card.scalar_loads)
                network = estimate_network(model, plan, card, compile, (cml.CmlError,))
                key = (model, profile, card.name, code)
                records.append({"key": key, **record(network)})
                lines = [title(network, profile, code)]
                if key in before:
                    lines.append(compared(before[key], records[-1]))
                lines += [f"  left out: {label}: {why}" for label, why in network.refused.items()]
                texts.append("\n".join([*lines, "", markdown(network, options.least)]))
                print(texts[-1], end="\n\n", flush=True)
    command.write_results(options, {"machine": command.machine(), "networks": records}, texts)
    return 0


def _networks(options: argparse.Namespace) -> Iterator[tuple[str, Graph]]:
    """Yields the names and graphs of the requested networks."""
    if options.integer:
        for name in _INTEGER:
            yield f"integer-{name}", cml.load(AGENTS / "integer" / f"{name}.nnef")
        return
    for name in command.chosen_models(options):
        yield name, load_network(name)[0]


def _earlier(options: argparse.Namespace) -> dict[tuple[str, ...], dict[str, Any]]:
    if options.against is None:
        return {}
    try:
        report = json.loads(options.against.read_text(encoding="utf-8"))
        return {tuple(network["key"]): network for network in report["networks"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"error: {options.against} is no report of this command: {error}"
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
