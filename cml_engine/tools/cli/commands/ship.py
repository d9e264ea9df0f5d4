"""The commands that ship a model."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ONNX_OPSET
from cml_engine.io.arrays import check_place
from cml_engine.io.atomic_write import write_atomically
from cml_engine.ir.graph import Graph
from cml_engine.tools.cli.common import (
    backend_of,
    compile_options,
    load_model,
    named_axes,
)
from cml_engine.tools.cli.options import command, flag, option, refuse, require, value_option

if TYPE_CHECKING:
    from cml_engine.cooked.load import Artifact

GROUP = "Ship it"
#: options of ``cml cook`` that change the file that it writes
_COOKING = (
    "shape", "constant", "output", "weights", "fragments", "random-weights", "half",
    "half-arithmetic", "no-winograd", "preset", "decide", "arena-limit-mib", "write", "devices",
    "integer", "player", "browser", "without-golden",
)  # fmt: skip


@command(
    GROUP,
    "cml cook enlarge.onnx -o enlarge.cml --shape 1,3,64,64",
    "model",
    "backend",
    "plan",
    "arena",
    "dump",
    value_option("output", "--write", "FILE.cml", "the file to write", short="-o"),
    value_option(
        "output",
        "--devices",
        "LIST",
        "the devices to make plans for, with commas (default: all)",
    ),
    flag("output", "--integer", "refuse a network of floats"),
    flag(
        "output",
        "--player",
        "leave out the graph: a smaller file, for the C and JavaScript players and the named "
        "devices only",
    ),
    flag("output", "--browser", "leave out SPIR-V, which browsers do not take: a smaller file"),
    flag(
        "output",
        "--without-golden",
        "leave out the input and its outputs that --check compares",
    ),
    flag(
        "output",
        "--check",
        "MODEL is a cooked file: run its golden input and compare the outputs; exit code 1 if "
        "they differ",
    ),
)
def cook(a: Namespace) -> int:
    """Write a model as one file that plays without Python and without a compiler."""
    from cml_engine.cooked import PROFILES, load_cooked
    from cml_engine.cooked import cook as cook_graph
    from cml_engine.cooked.schema import CookedLimits

    if a.check:
        return _check_golden(a)
    require(a, "--check", "backend", "adapter")
    if not a.write:
        raise InputError("no file to write: name one, -o net.cml")
    check_place(Path(a.write), a.model)
    from cml_engine.scheduler.tools.commands import cooked_guesses

    graph = load_model(a)
    if a.integer and not graph.integer:
        raise InputError(
            f"--integer: '{a.model}' is a network of floats; "
            "'cml quantize' makes an integer network of it (cml docs integer)"
        )
    data = cook_graph(
        graph,
        [name.strip() for name in a.devices.split(",")] if a.devices else list(PROFILES),
        compile_options(a),
        player=a.player,
        browser=a.browser,
        golden=not a.without_golden,
        guesses=cooked_guesses(),
        dump_kernels=a.dump_kernels,
    )
    write_atomically(a.write, data)
    cooked = _artifact_of(load_cooked(data, trusted=True))
    print(f"{a.write}: {cooked.nbytes / 2**20:.2f} MiB, {len(cooked.kernels)} kernels")
    for plan in cooked.plans:
        print(f"  {plan.profile}: {len(plan.steps)} steps")
    for name in cooked.meta["custom"]:
        print(
            f"  operator '{name}' is your own: the file has its kernel and not its NumPy function"
        )
    for label in cooked.meta["without_wgsl"]:
        print(f"  kernel '{label}' cannot be written as WGSL: browsers cannot run it")
    for name, total, limit in CookedLimits().exceeded(cooked.totals):
        print(
            f"  {total:,} {name}: a host accepts {limit:,} of a file that it does not trust, "
            "unless it raises its limits (cml docs cooked)"
        )
    if cooked.golden is None and not a.without_golden:
        print(
            "  no golden pair, so --check cannot compare: an operator has no NumPy function, or "
            "the outputs depend on rounding errors only"
        )
    return 0


def _artifact_of(graph: Graph) -> Artifact:
    """Returns the contents of the cooked file from which the graph was loaded."""
    from cml_engine.cooked.load import Artifact

    assert isinstance(graph.cooked_form, Artifact)
    return graph.cooked_form


def _check_golden(a: Namespace) -> int:
    from cml_engine.cooked import load_cooked
    from cml_engine.runtime.session import Session

    refuse(a, "--check reads a cooked file and writes none", *_COOKING)
    graph = load_cooked(a.model, trusted=a.trusted)
    golden = _artifact_of(graph).golden
    if golden is None:
        raise InputError(
            f"'{a.model}' has no golden pair to check: cook it without --without-golden"
        )
    session = Session(graph, backend_of(a))
    outputs = session.program.run(session.check_inputs(golden.inputs))
    worst = golden.differences(outputs)
    device = session.gpu.name if session.gpu else "CPU (NumPy)"
    for name, difference in worst.items():
        verdict = "ok" if difference <= 1 else "DIFFERS"
        print(f"{name}: {100 * difference:.3g} % of the tolerance  {verdict}")
    is_equal = all(difference <= 1 for difference in worst.values())
    print(f"{a.model} on {device}: {'as it was cooked' if is_equal else 'not as it was cooked'}")
    return 0 if is_equal else 1


@command(
    GROUP,
    "cml export enlarge.onnx page --to web --shape 1,3,64,64",
    "model",
    "half",
    "arithmetic",
    "winograd",
    "overwrite",
    option("output", "destination", metavar="DST", help="the .onnx file or the folder to write"),
    option(
        "output",
        "--to",
        choices=("onnx", "web", "c"),
        default="onnx",
        help="web: a folder with a page that runs the model in browsers; c: a folder with a C "
        "host, the player and the cooked model (cml docs ship_it)",
    ),
    value_option(
        "output",
        "--opset",
        "N",
        f"the version of ONNX's operators, {ONNX_OPSET.low} to {ONNX_OPSET.high} "
        "(default: 20, or 21 for integers of 16 bits)",
        ONNX_OPSET,
    ),
    value_option(
        "output",
        "--dynamic",
        "[NAME=]1,3,height,width",
        "leave axes of an ONNX file's input open: names in place of extents",
        repeatable=True,
    ),
)
def export(a: Namespace) -> None:
    """Write a model as ONNX, as a web page that runs it, or as a C program that runs it."""
    if a.to == "onnx":
        _export_onnx(a)
        return
    refuse(a, f"--to {a.to} writes a cooked file", "dynamic", "opset")
    from cml_engine.cooked.export import compile_command, export_player, picture_of
    from cml_engine.scheduler.tools.commands import cooked_guesses

    graph, folder = load_model(a), Path(a.destination)
    guesses = cooked_guesses()
    names = export_player(
        graph, folder, a.to, options=compile_options(a), guesses=guesses, overwrite=a.overwrite
    )
    if a.to == "c":
        print(f"{folder}: {len(names)} files; README.txt says more. In that folder:")
        print(f"  {compile_command()}\n  ./host net.cml")
        return
    size = sum((folder / name).stat().st_size for name in names) / 2**20
    use = "pictures can be dragged in" if picture_of(graph) else "runs the cooked file's own input"
    print(f"{folder}: {len(names)} files, {size:.1f} MiB; {use}")
    serve = f"python -m http.server --bind 127.0.0.1 --directory {quote(folder.as_posix())}"
    print(f"  {serve}, then http://localhost:8000")


def _export_onnx(a: Namespace) -> None:
    from cml_engine.formats.loading import save

    if Path(a.destination).suffix.lower() != ".onnx":
        raise InputError(
            f"'{a.destination}': wanted a file name ending in .onnx; cml convert writes NNEF"
        )
    kernels = "half-arithmetic", "no-winograd"
    refuse(a, "an ONNX file leaves the choice of kernels to its reader", *kernels)
    graph = load_model(a)
    dynamic = named_axes(a.dynamic) if a.dynamic else None
    from cml_engine.formats.onnx.export import default_opset
    from cml_engine.formats.onnx.export.game_operators import GAME, placeholders
    from cml_engine.formats.onnx.export.writer import half_error

    opset = a.opset or default_opset(graph)
    save(graph, a.destination, overwrite=a.overwrite, opset=opset, half=a.half, dynamic=dynamic)
    size = Path(a.destination).stat().st_size / 2**20
    print(f"{a.destination}: {len(graph.nodes)} operations, opset {opset}, {size:.2f} MiB")
    if a.half:
        error, floats = half_error(graph)
        print(f"  weights in 16 bits: each within {100 * error:.2g} % of its tensor's largest")
        if floats:
            print(f"  in 32 bits, as they exceed 65504: {', '.join(floats)}")

    if names := placeholders(graph):
        print(
            f"  of the domain '{GAME}': {', '.join(names)}. ONNX has no such operator: the program "
            "that runs the file needs your implementation"
        )
