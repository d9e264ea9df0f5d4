"""The place of a parser in its tokens.

Depth is counted, not left to Python's stack: a model nested too deep gets a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cml_engine.errors import NnefSyntaxError
from cml_engine.nnef.text.ast import Name
from cml_engine.nnef.text.lexer import SourceText, Token, tokenize

MAX_DEPTH = 64

_Item = TypeVar("_Item")


class TokenCursor:
    """Where a parser is in a text: what comes next, and what was wanted there instead."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self._tokens = tokenize(source)
        self._kinds = self._tokens.kinds
        self._next = 0
        self._depth = 0
        self.kind = self._kinds[0]

    @property
    def pos(self) -> int:
        return self._tokens.starts[self._next]

    @property
    def token(self) -> Token:
        """The token that is next."""
        at = self._next
        return Token(self._kinds[at], self._tokens.texts[at], self._tokens.starts[at])

    def peek(self, ahead: int) -> str:
        """The kind of a later token."""
        return self._kinds[min(self._next + ahead, len(self._kinds) - 1)]

    def skip(self) -> None:
        if self.kind != "end":
            self._next += 1
            self.kind = self._kinds[self._next]

    def take(self) -> Token:
        token = self.token
        self.skip()
        return token

    def accept(self, kind: str) -> bool:
        if self.kind != kind:
            return False
        self.skip()
        return True

    def expect(self, kind: str, wanted: str = "") -> None:
        if self.kind != kind:
            raise self.unexpected(wanted or f"'{kind}'")
        self.skip()

    def expect_token(self, kind: str, wanted: str) -> Token:
        if self.kind != kind:
            raise self.unexpected(wanted)
        return self.take()

    def unexpected(self, wanted: str) -> NnefSyntaxError:
        token = self.token
        got = "the end of the file" if token.kind == "end" else f"'{token.text[:40]}'"
        return self.source.error(f"wanted {wanted}, got {got}", token.pos)

    def identifier(self, wanted: str) -> Name:
        token = self.expect_token("name", wanted)
        return Name(token.text, token.pos)

    def listed(self, item: Callable[[], _Item], close: str) -> list[_Item]:
        """``{item [","]} close``, the opening bracket being read already."""
        items: list[_Item] = []
        if self.accept(close):
            return items
        while True:
            items.append(item())
            if self.accept(close):
                return items
            self.expect(",", f"',' or '{close}'")

    def enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.source.error(
                f"nested deeper than {MAX_DEPTH} levels: assign the inner parts to names", self.pos
            )

    def leave(self) -> None:
        self._depth -= 1

    def close_angle(self) -> None:
        """Take ``>``; ``>=`` is it too where ``tensor<scalar>= 0.0`` is written without a blank."""
        if self.kind != ">=":
            self.expect(">")
            return
        self.kind = self._kinds[self._next] = self._tokens.texts[self._next] = "="
        self._tokens.starts[self._next] += 1
