"""A connection of two players over a socket: they exchange one line of JSON each at a time."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

import cml_engine as cml

#: seconds to wait for the other player's tick; the first one compiles
PATIENCE_S = 900.0
#: the longest line, in bytes
_LONGEST = 1 << 16


class Connection:
    """A connection to the other player."""

    def __init__(self, plug: socket.socket) -> None:
        plug.settimeout(PATIENCE_S)
        self._plug, self._file = plug, plug.makefile("rb")

    def exchange(self, line: Mapping[str, object]) -> dict[str, object]:
        """Sends an object as a line of JSON, then waits for the other player's line and returns it.

        Raises :class:`cml.CmlError` if the other player is gone or silent.
        """
        try:
            self._plug.sendall(json.dumps(line).encode() + b"\n")
            answer = self._file.readline(_LONGEST)
        except TimeoutError:
            raise cml.CmlError(
                f"the other player has sent nothing for {PATIENCE_S:g} s. Does it still run?"
            ) from None
        except OSError as error:
            raise cml.CmlError(f"the other player is gone: {error.strerror or error}") from None
        if not answer:
            raise cml.CmlError("the other player is gone: its own output may say why")
        try:
            heard = json.loads(answer)
        except ValueError:
            heard = None
        if not answer.endswith(b"\n") or not isinstance(heard, dict):
            raise cml.InputError(
                f"the other side sent {answer[:40]!r}, expected a line of JSON: start "
                "demo_game.lockstep there"
            )
        return heard

    def close(self) -> None:
        self._file.close()
        self._plug.close()


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that another player can join; port 0 selects a free port."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise cml.InputError(f"--listen {host}:{port}: {error.strerror or error}") from None


def accept(server: socket.socket) -> Connection:
    """Waits for the first player to join and returns the connection to it."""
    server.settimeout(PATIENCE_S)
    try:
        return Connection(server.accept()[0])
    except TimeoutError:
        raise cml.CmlError(
            f"no player has joined within {PATIENCE_S:g} s. Start the other with --join"
        ) from None


def join(host: str, port: int) -> Connection:
    """Connects to the player that listens there and returns the connection."""
    try:
        return Connection(socket.create_connection((host, port), PATIENCE_S))
    except OSError as error:
        raise cml.InputError(
            f"--join {host}:{port}: {error.strerror or error}. Is the other player listening?"
        ) from None
