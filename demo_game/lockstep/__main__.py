"""Runs ``python -m demo_game.lockstep --minutes 10``: the GPU and the CPU in lockstep."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cml_engine as cml
from cml_engine.errors.arguments import FloatRange, IntegerRange
from demo_game.chain import load_chain
from demo_game.lockstep.connection import Connection, accept, join, listen
from demo_game.lockstep.play import Player, play
from demo_game.maker import TileMaker

_LOCAL = "127.0.0.1"
MINUTES = FloatRange(0, 1_000_000, "minutes")
TICKS = IntegerRange(1, 2**31 - 1)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description="Two processes make the same tiles of the integer world and compare hashes at "
        "every tick. Alone, it starts the other itself: one on the GPU, one on the CPU.",
    )
    made.add_argument("--minutes", type=MINUTES, default=1.0, help="how long (default 1)")
    made.add_argument("--ticks", type=TICKS, help="how many tiles at most")
    made.add_argument("--first", type=IntegerRange(0, 2**31 - 1), default=0, metavar="TICK",
                      help="where on the tour to begin")  # fmt: skip
    made.add_argument(
        "--seed", type=IntegerRange(0, 2**31 - 1), default=7, help="which world (default 7)"
    )
    made.add_argument("--models", type=Path, help="a folder with integer networks upres.nnef, "
                      "texture.nnef or population.nnef to take instead of ours")  # fmt: skip
    made.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    ends = made.add_mutually_exclusive_group()
    ends.add_argument("--listen", type=address, metavar="[HOST:]PORT", help="wait for the other")
    ends.add_argument("--join", type=address, metavar="[HOST:]PORT", help="play with that one")
    return made


def address(text: str) -> tuple[str, int]:
    """Parses ``HOST:PORT`` or ``PORT`` into host and port; the default host is this machine."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"wanted HOST:PORT or a port, got '{text}'")
    return host or _LOCAL, int(port)


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    options = parser().parse_args(words)
    try:
        return run(options, words)
    except (cml.CmlError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Plays with the other player and returns the exit code.

    It starts the other player as a second process if the options name none.
    """
    chain = load_chain(options.models, integer=True)
    maker = TileMaker(chain, "cpu" if options.backend == "cpu" else cml.Gpu())
    player = Player(maker, maker.device, options.seed)
    if options.join:
        return play_and_report(options, player, join(*options.join))
    server = listen(*(options.listen or (_LOCAL, 0)))
    other: subprocess.Popen[bytes] | None = None
    if options.listen is None:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-m", __package__, *words]
        command += ["--backend", "cpu", "--join", port]
        other = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        return play_and_report(options, player, accept(server))
    finally:
        server.close()
        if other is not None:
            other.wait()


def play_and_report(options: argparse.Namespace, player: Player, connection: Connection) -> int:
    """Plays until the time or the ticks are over, prints the result.

    Returns 1 if a tile differed, else 0. Closes the connection.
    """
    began = time.monotonic()

    def last(tick: int) -> bool:
        late = time.monotonic() - began >= 60 * options.minutes
        return late or (options.ticks is not None and tick + 1 >= options.first + options.ticks)

    def say(text: str) -> None:
        print(f"[lockstep] {text}", file=sys.stderr, flush=True)

    try:
        found = play(player, connection, last, options.first, say)
    finally:
        connection.close()
    if found.difference:
        print(f"DIFFERENT after {found.ticks} tiles\n{found.difference}")
        return 1
    print(
        f"{player.device} and {found.other}: {found.ticks} tiles, {found.stages} stages, no "
        f"difference in {(time.monotonic() - began) / 60:.1f} minutes\nstate sha256:{found.state}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
