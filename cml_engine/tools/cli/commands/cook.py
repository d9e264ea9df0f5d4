"""Write a model as one file that plays without Python and without a compiler."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cml_engine.cooked import PROFILES, cook, load_cooked
from cml_engine.cooked.schema import CookedLimits
from cml_engine.errors import InputError
from cml_engine.io.arrays import check_place
from cml_engine.io.atomic_write import write_atomically
from cml_engine.runtime.session import Session
from cml_engine.tools.cli.common import arena_limit_of, backend_of, load_model, read_decisions
from cml_engine.tools.cli.options import OUTPUT, CommandParser, add_options

GROUP = "Ship it"
EXAMPLE = "cml cook enlarge.onnx -o enlarge.cml --shape 1,3,64,64"


def options(parser: CommandParser) -> None:
    add_options(parser, "model", "backend", "adapter", "half", "arena", "decide")
    output = parser.group(OUTPUT)
    output.add_argument("-o", "--output", metavar="FILE.cml", help="the file to write")
    output.add_argument(
        "--devices",
        default=",".join(PROFILES),
        metavar="LIST",
        help="the devices to make plans for, with commas (default: %(default)s)",
    )
    output.add_argument("--integer", action="store_true", help="refuse a network of floats")
    output.add_argument(
        "--player",
        action="store_true",
        help="leave out the graph: a smaller file, for the C and JavaScript players and the named "
        "devices only",
    )
    output.add_argument(
        "--without-golden",
        action="store_true",
        help="leave out the input and its outputs that --check compares",
    )
    output.add_argument(
        "--check",
        action="store_true",
        help="MODEL is a cooked file: run its golden input and compare the outputs; exit code 1 if "
        "they differ",
    )


def run(a: argparse.Namespace) -> int:
    if a.check:
        return _check(a)
    if not a.output:
        raise InputError("no file to write: name one, -o net.cml")
    check_place(Path(a.output), a.model)
    from scheduler.tools.commands import cooked_guesses

    graph = load_model(a)
    if a.integer and not graph.integer:
        raise InputError(
            f"--integer: '{a.model}' is a network of floats; "
            "'cml quantize' makes an integer network of it (cml docs integer)"
        )
    data = cook(
        graph,
        [name.strip() for name in a.devices.split(",")],
        half=a.half,
        decide=read_decisions(a),
        arena_limit=arena_limit_of(a),
        player=a.player,
        golden=not a.without_golden,
        guesses=cooked_guesses(),
    )
    write_atomically(a.output, data)
    _print_summary(a, load_cooked(data, trusted=True).ready)
    return 0


def _print_summary(a: argparse.Namespace, made: Any) -> None:
    print(f"{a.output}: {made.nbytes / 2**20:.2f} MiB, {len(made.kernels)} kernels")
    for plan in made.plans:
        print(f"  {plan.profile}: {len(plan.steps)} steps")
    for name in made.meta["custom"]:
        print(
            f"  operator '{name}' is your own: the file has its kernel and not its NumPy function"
        )
    for label in made.meta["without_wgsl"]:
        print(f"  kernel '{label}' cannot be written as WGSL: browsers cannot run it")
    for name, total, most in CookedLimits().exceeded(made.totals):
        print(
            f"  {total:,} {name}: a host accepts {most:,} of a file that it does not trust, unless "
            "it raises its limits (cml docs cooked)"
        )
    if made.golden is None and not a.without_golden:
        print(
            "  no golden pair, so --check cannot compare: an operator has no NumPy function, or "
            "the outputs depend on rounding errors only"
        )


def _check(a: argparse.Namespace) -> int:
    graph = load_cooked(a.model, trusted=a.trusted)
    made: Any = graph.ready
    if made.golden is None:
        raise InputError(
            f"'{a.model}' has no golden pair to check: cook it without --without-golden"
        )
    a.half, a.dump_kernels = False, None
    session = Session(graph, backend_of(a))
    outputs = session.run(made.golden.inputs)
    worst = made.golden.differences(outputs)
    device = session.gpu.name if session.gpu else "CPU (NumPy)"
    for name, difference in worst.items():
        verdict = "ok" if difference <= 1 else "DIFFERS"
        print(f"{name}: {100 * difference:.3g} % of the tolerance  {verdict}")
    good = all(difference <= 1 for difference in worst.values())
    print(f"{a.model} on {device}: {'as it was cooked' if good else 'not as it was cooked'}")
    return 0 if good else 1
