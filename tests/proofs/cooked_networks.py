"""Cooks real networks: they must load without a compiler and give bit-identical results.

    python -m tests.proofs.cooked_networks                  # all networks available here
    python -m tests.proofs.cooked_networks upres texture    # or some
    python -m tests.proofs.cooked_networks --keep out/cooked
    python -m tests.proofs.cooked_networks --in-c           # in the C player alone
    python -m tests.proofs.cooked_networks --in-web         # in the JavaScript player alone

Each network is cooked twice, and the bytes must be identical. It is then run from its file in a
process without a compiler, a cache or the demo's operators, and its outputs must be bit-identical
to those of a session on the model, on the GPU and on the CPU. ``--keep`` leaves the files in a
folder, for other players. ``--in-c`` plays each file with the C player instead: in small slices, in
larger slices, and in one frame. All three must be bit-identical, and agree with the session of the
model to 1e-4 (absolute plus relative); integer networks must be bit-identical to it. ``--in-web``
does so in Deno, on the file's golden input and within its tolerance. Networks of published packages
are downloaded at the first run. Exit code 1 if any network differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.runtime.session import random_inputs
from cml_engine.scheduler.tools.commands import cooked_guesses
from tests.fixtures import no_compiler
from tests.players.building import build
from tests.players.deno import is_right, play_golden
from tests.players.playing import play_in_slices
from tests.proofs.campaign import FAILS, run_cases

Array = np.ndarray[Any, Any]
#: the accepted difference of the C player from a session, absolute plus relative
TOLERANCE = 1e-4
#: frame budgets in milliseconds that each network is played with
BUDGETS = ("0.5", "8", "1e9")
BUDGETS_OF_LARGE = ("8", "64", "1e9")
LARGE = ("diffusion", "stylegan2")
AGENTS = ("terrain", "upres", "surface", "texture", "paint", "population", "scatter")
INTEGER_AGENTS = ("upres", "texture", "population")


def agent(name: str) -> cml.Graph:
    """Returns the demo game's network of that name."""
    from cml_engine.demo_game.chain import MODELS

    return cml.load(MODELS / f"{name}.nnef")


def animevideo() -> cml.Graph:
    """Returns the upscaler of a published package for pictures of 64 x 64; downloads it if
    necessary."""
    from examples.upscale import assets

    assets.fetch(assets.NETWORK_PARAM, assets.NETWORK_BIN)
    return cml.load(assets.NETWORK_PARAM.path, shapes={"data": (1, 3, 64, 64)})


def diffusion() -> cml.Graph:
    """Returns the terrain diffusion network of a published package; downloads it if necessary."""
    from examples.terrain_diffusion.network import MODEL, SHAPES
    from examples.upscale import assets

    assets.fetch(MODEL)
    return cml.load(MODEL.path, shapes=SHAPES)


def stylegan2() -> cml.Graph:
    """Returns StyleGAN2's generator for pictures of 256 x 256, with random weights."""
    from examples.stylegan2.network import build
    from examples.stylegan2.parameters import Config, random_parameters

    return build(Config(256), random_parameters(Config(256), 1))


NETWORKS: dict[str, Callable[[], cml.Graph]] = {
    **{name: lambda name=name: agent(name) for name in AGENTS},
    **{f"integer-{name}": lambda name=name: agent(f"integer/{name}") for name in INTEGER_AGENTS},
    "animevideo": animevideo,
    "diffusion": diffusion,
    "stylegan2": stylegan2,
}


def verdict(line: str, checks: Mapping[str, bool]) -> bool:
    """Prints a line with the result of every check, and returns True if all pass."""
    said = (f"{what} {'same' if good else 'DIFFERS'}" for what, good in checks.items())
    print(line, *said, sep="  ", flush=True)
    return all(checks.values())


def check(name: str, gpu: cml.Gpu, folder: Path) -> bool:
    """Cooks a network twice, runs its file, prints a line, and returns True if every check passes.

    The checks are: equal bytes of both files, bit-identical outputs on the GPU and on the CPU,
    and the file's own sample outputs. The file stays in ``folder``.
    """
    model = NETWORKS[name]()
    data = cook(model)
    same_bytes = cook(model) == data
    file = folder / f"{name}.cml"
    file.write_bytes(data)
    cooked = cml.load_cooked(file, trusted=True)
    inputs = random_inputs({n: model.facts[n] for n in model.inputs}, seed=1)
    wanted = cml.Session(model, gpu).run(inputs)
    on_gpu = same_bits(no_compiler.run(file, inputs), wanted)
    on_cpu = same_bits(
        cml.Session(cooked, "cpu").run(inputs), cml.Session(model, "cpu").run(inputs)
    )
    made: Any = cooked.cooked_form
    off = max(made.golden.differences(cml.Session(cooked, gpu).run(made.golden.inputs)).values())
    return verdict(
        f"{name:18s} {len(data) / 1e6:8.2f} MB  {len(made.kernels):3d} kernels  "
        f"golden {off:.2g} of its tolerance",
        {"bytes": same_bytes, "GPU": on_gpu, "CPU": on_cpu, "golden": off <= 1},
    )


def check_in_c(name: str, gpu: cml.Gpu, folder: Path) -> bool:
    """Plays a network in the C player, prints a line, and returns True if it agrees with its
    session.

    Its outputs must be bit-identical for all slice sizes; those of an integer network must also be
    bit-identical to the session's.
    """
    model = NETWORKS[name]()
    file = folder / f"{name}.cml"
    file.write_bytes(cook(model, guesses=cooked_guesses()))
    inputs = random_inputs({n: model.facts[n] for n in model.inputs}, seed=1)
    wanted = cml.Session(model, gpu).run(inputs)
    budgets = BUDGETS_OF_LARGE if name in LARGE else BUDGETS
    found = play_in_slices(build("play.c", device=True), file, inputs, wanted, budgets)
    exact = name.startswith("integer-")
    agrees = found.same_bits if exact else found.off <= TOLERANCE
    frames = "/".join(map(str, found.frames))
    return verdict(
        f"{name:18s} {frames:>18s} frames  off by {found.off:8.2g}  the session's bits: "
        f"{'same' if found.same_bits else 'other'}",
        {"slices": found.same_slices, "agrees": agrees},
    )


def check_in_web(name: str, gpu: cml.Gpu, folder: Path) -> bool:
    """Plays a network in the JavaScript player, prints a line, and returns True if it is right."""
    file = folder / f"{name}.cml"
    file.write_bytes(cook(NETWORKS[name](), guesses=cooked_guesses()))
    (found,) = play_golden([file])
    print(
        f"{name:18s} plan '{found['profile']}', off by {found['error']:.1e} of "
        f"{found['tolerance']:.0e} allowed, frames: {found['frames']}  slices "
        f"{'same' if found['identical'] else 'DIFFER'}",
        flush=True,
    )
    return is_right(found)


def same_bits(a: dict[str, Array], b: dict[str, Array]) -> bool:
    """Returns True if both dictionaries have the same names, shapes and bytes."""
    return a.keys() == b.keys() and all(
        a[n].shape == b[n].shape and a[n].tobytes() == b[n].tobytes() for n in a
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.proofs.cooked_networks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=(*NETWORKS, []), help="all if left out")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the files there")
    parser.add_argument("--in-c", action="store_true", help="play the files with the C player")
    parser.add_argument("--in-web", action="store_true", help="play them with JavaScript's")
    options = parser.parse_args(arguments)
    import cml_engine.demo_game.operators  # noqa: F401 - registers the demo's own operators

    gpu = cml.Gpu()
    with tempfile.TemporaryDirectory() as trial:
        folder = options.keep or Path(trial)
        folder.mkdir(parents=True, exist_ok=True)
        look = check_in_c if options.in_c else check_in_web if options.in_web else check
        names = options.names or NETWORKS
        return run_cases([("same" if look(n, gpu, folder) else FAILS, n)] for n in names)


if __name__ == "__main__":
    sys.exit(main())
