"""Runs ``python -m demo_game.lockstep --minutes 10``: the GPU and the CPU in lockstep."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cml_engine as cml
from cml_engine.demo_game.chain import load_chain
from cml_engine.demo_game.exit_codes import exit_code_of
from cml_engine.demo_game.lockstep.connection import Connection, accept, join, listen
from cml_engine.demo_game.lockstep.play import Player, play
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.errors import FloatRange, IntegerRange

_LOCAL = "127.0.0.1"
MINUTES = FloatRange(0, 1_000_000, "minutes")
TICKS = IntegerRange(1, 2**31 - 1)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    command_line = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description="Two processes make the same tiles of the integer world and compare hashes at "
        "every tick. Alone, it starts the other itself: one on the GPU, one on the CPU.",
    )
    add = command_line.add_argument
    add("--minutes", type=MINUTES, default=1.0, help="how long (default 1)")
    add("--ticks", type=TICKS, help="how many tiles at most")
    add("--first", type=IntegerRange(0, 2**31 - 1), default=0, metavar="TICK",
        help="where on the tour to begin")  # fmt: skip
    add("--seed", type=IntegerRange(0, 2**31 - 1), default=7, help="which world (default 7)")
    add("--models", type=Path, help="a folder with integer networks upres.nnef, "
        "texture.nnef or population.nnef to take instead of ours")  # fmt: skip
    add("--backend", choices=("gpu", "cpu"), default="gpu")
    ends = command_line.add_mutually_exclusive_group()
    ends.add_argument("--listen", type=address, metavar="[HOST:]PORT", help="wait for the other")
    ends.add_argument("--join", type=address, metavar="[HOST:]PORT", help="play with that one")
    return command_line


def address(text: str) -> tuple[str, int]:
    """Parses ``HOST:PORT`` or ``PORT`` into host and port; the default host is this machine."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"wanted HOST:PORT or a port, got '{text}'")
    return host or _LOCAL, int(port)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = parser().parse_args(arguments)
    return exit_code_of(lambda: run(options, arguments))


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Plays with the other player and returns the exit code.

    It starts the other player as a second process if the options name none.
    """
    chain = load_chain(options.models, integer=True)
    maker = TileMaker(chain, "cpu" if options.backend == "cpu" else cml.Gpu())
    player = Player(maker, maker.device, options.seed)
    if options.join:
        return play_and_report(options, player, join(*options.join))
    server = listen(*(options.listen or (_LOCAL, 0)))
    opponent: subprocess.Popen[bytes] | None = None
    if options.listen is None:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-m", __package__, *arguments]
        command += ["--backend", "cpu", "--join", port]
        opponent = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        return play_and_report(options, player, accept(server))
    finally:
        server.close()
        if opponent is not None:
            opponent.wait()


def play_and_report(options: argparse.Namespace, player: Player, connection: Connection) -> int:
    """Plays until the time or the ticks are over, prints the result.

    Returns 1 if a tile differed, else 0. Closes the connection.
    """
    start_s = time.monotonic()

    def last(tick: int) -> bool:
        over = time.monotonic() - start_s >= 60 * options.minutes
        return over or (options.ticks is not None and tick + 1 >= options.first + options.ticks)

    def say(text: str) -> None:
        print(f"[lockstep] {text}", file=sys.stderr, flush=True)

    try:
        result = play(player, connection, last, options.first, say)
    finally:
        connection.close()
    if result.difference:
        print(f"DIFFERENT after {result.ticks} tiles\n{result.difference}")
        return 1
    print(
        f"{player.device} and {result.other}: {result.ticks} tiles, {result.stages} stages, no "
        f"difference in {(time.monotonic() - start_s) / 60:.1f} minutes\n"
        f"state sha256:{result.state}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
