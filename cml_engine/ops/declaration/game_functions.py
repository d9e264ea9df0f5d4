"""Turns exceptions of a game's functions into errors with the operator and game's line."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cml_engine.errors import CmlError, OperatorError
from cml_engine.ir.graph import Node

_ENGINE = Path(__file__).resolve().parents[2]


@contextmanager
def calling(is_game: bool, function: str, fault: Callable[[str], OperatorError]) -> Iterator[None]:
    """Turns an exception of a game's function in the ``with`` block into :class:`OperatorError`.

    The message states the exception's type and the last line of the game's code; ``__cause__`` is
    the exception itself. A :class:`CmlError` passes unchanged.

    Parameters
    ----------
    is_game : False for a function of the engine, whose exceptions pass unchanged.
    function : the function's name, such as ``"infer"``.
    fault : makes the error from its message.
    """
    try:
        yield
    except CmlError:
        raise
    except Exception as error:
        if not is_game:
            raise
        line = game_line(error)
        suffix = f" ({line})" if line else ""
        raise fault(f"its {function} function failed: {short(error)}{suffix}") from error


def node_fault(node: Node) -> Callable[[str], OperatorError]:
    """Returns a function from a message to an error that names the node and its line."""
    return lambda problem: OperatorError(f"{node.title}: {problem}", node.source)


def game_line(error: BaseException) -> str:
    """Returns ``FILE:LINE`` of the last frame of the game's code; "" if there is none.

    The game's code begins with the first frame outside of the engine, and what lies beside or
    below its file belongs to it. A library that it calls does not.
    """
    frames = [
        (path, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if (path := Path(frame.filename).resolve()).is_file() and _ENGINE not in path.parents
    ]
    game_frames = [(path, line) for path, line in frames if frames[0][0].parent in path.parents]
    return ":".join(map(str, game_frames[-1])) if game_frames else ""


def short(error: BaseException) -> str:
    """Returns the type and the message of an exception as text: ``ValueError: message``."""
    return f"{type(error).__name__}: {error}".rstrip(": ")
