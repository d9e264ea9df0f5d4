"""Splits NNEF text into tokens (NNEF 1.0.5, A.1 Lexical elements).

The lexer is one regular expression, applied in one pass. A token's ``kind`` is ``name``,
``whole``, ``real``, ``quoted`` or ``end``. The kind of a keyword or operator is its text, such
as ``"graph"`` or ``"->"``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from cml_engine.errors import NnefSyntaxError, Source
from cml_engine.io.load_limits import current_budget
from cml_engine.nnef.text.syntax_tree import Name

#: Words that cannot be identifiers (A.1.1).
KEYWORDS = frozenset(
    "version extension graph fragment tensor integer scalar logical string true false "
    "for in if else yield length_of shape_of range_of".split()
)

#: A quoted line in a message is cut here: a model may be one line of megabytes.
_SHOWN_LINE = 200

_TOKEN = re.compile(
    r"""
    (?: [ \t\r\n\f\v]++ | \#[^\n]*+ )*+
    (?: (?P<name> [A-Za-z_][A-Za-z0-9_]*+ )
      | (?P<operator> -> | && | \|\| | [<>=!]= | [-+*/^<>=!?:;,()\[\]{}] )
      | (?P<real> [0-9]++ (?: \.[0-9]*+ (?: [eE][+-]?[0-9]++ )? | [eE][+-]?[0-9]++ ) )
      | (?P<whole> [0-9]++ )
      | (?P<quoted> '(?: [^'\\\n] | \\[^\n] )*+' | "(?: [^"\\\n] | \\[^\n] )*+" )
      | (?P<end> \Z )
    )
    """,
    re.VERBOSE,
)

_BLANK = re.compile(r"(?:[ \t\r\n\f\v]++|#[^\n]*+)*+")
_ESCAPE = re.compile(r"\\(['\"\\])")
_LONGEST = {"name": 1000, "whole": 400, "real": 400}
#: The tokens per charge to the budget; the bytes and microseconds that each takes to parse.
_CHARGED, _BYTES, _STEPS = 1024, 200, 2
_TOKENS = "the text's words and signs (numbers belong into files, as variables)"


class Token(NamedTuple):
    """A token; ``pos`` is the offset of its first character in the text."""

    kind: str
    text: str
    pos: int


class SourceText:
    """A file's text and name, which converts offsets to lines and columns for messages."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def at(self, pos: int) -> Source:
        """Returns the file, line, column and text of the line of an offset."""
        line = bisect_right(self._line_starts, pos)
        start = self._line_starts[line - 1]
        end = self._line_starts[line] - 1 if line < len(self._line_starts) else len(self.text)
        line_text = self.text[start : min(end, start + _SHOWN_LINE)]
        return Source(self.file, line, pos - start + 1, line_text)

    def error(self, message: str, pos: int) -> NnefSyntaxError:
        return NnefSyntaxError(message, self.at(pos))


@dataclass(frozen=True, slots=True)
class Tokens:
    """The lexer's tokens as lists of types, texts and offsets: a large model has half a million.

    The last token is ``end``.
    """

    kinds: list[str]
    texts: list[str]
    starts: list[int]


def tokenize(source: SourceText) -> Tokens:
    """Returns all tokens of a text, ``end`` last; raises an error for an unexpected character."""
    tokens = Tokens([], [], [])
    text, pos, match_at, budget = source.text, 0, _TOKEN.match, current_budget()
    while True:
        match = match_at(text, pos)
        if match is None:
            raise _unexpected(source, pos)
        kind = match.lastgroup or ""
        text_of_token = match[kind]
        pos = match.end()
        start = pos - len(text_of_token)
        if kind == "operator" or text_of_token in KEYWORDS:
            kind = text_of_token
        elif len(text_of_token) > _LONGEST.get(kind, len(text_of_token)):
            token_type = "name" if kind == "name" else "number"
            raise source.error(
                f"a {token_type} of {len(text_of_token)} characters: shorten it", start
            )
        if len(tokens.kinds) % _CHARGED == _CHARGED - 1:
            budget.charge_bytes(_CHARGED * _BYTES, _TOKENS, source.at(start))
            budget.charge_steps(_CHARGED * _STEPS, _TOKENS, source.at(start))
        tokens.kinds.append(kind)
        tokens.texts.append(text_of_token)
        tokens.starts.append(start)
        if kind == "end":
            return tokens


def unquote(text: str) -> str:
    r"""Returns the value of a string literal without its quotes.

    Resolves ``\'``, ``\"`` and ``\\``.
    """
    body = text[1:-1]
    return _ESCAPE.sub(r"\1", body) if "\\" in body else body


def _unexpected(source: SourceText, pos: int) -> NnefSyntaxError:
    blank = _BLANK.match(source.text, pos)
    offset = blank.end() if blank else pos
    char = source.text[offset]
    if char in "'\"":
        message = f"this string has no closing {char} on its line: close it"
    else:
        message = f"unexpected character {char!r}: remove it (NNEF is ASCII outside strings)"
    return source.error(message, offset)


MAX_DEPTH = 64

_Item = TypeVar("_Item")


class TokenCursor:
    """A parser's position in the tokens of a text, with methods that test and consume tokens."""

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
        """The next token, which is not consumed."""
        index = self._next
        return Token(self._kinds[index], self._tokens.texts[index], self._tokens.starts[index])

    def peek(self, ahead: int) -> str:
        """Returns the kind of the token ``ahead`` places after the next one, unconsumed."""
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

    def expect(self, kind: str, expected: str = "") -> None:
        if self.kind != kind:
            raise self.unexpected(expected or f"'{kind}'")
        self.skip()

    def expect_token(self, kind: str, expected: str) -> Token:
        if self.kind != kind:
            raise self.unexpected(expected)
        return self.take()

    def unexpected(self, expected: str) -> NnefSyntaxError:
        token = self.token
        got = "the end of the file" if token.kind == "end" else f"'{token.text[:40]}'"
        return self.source.error(f"wanted {expected}, got {got}", token.pos)

    def identifier(self, expected: str) -> Name:
        token = self.expect_token("name", expected)
        return Name(token.text, token.pos)

    def listed(self, item: Callable[[], _Item], close: str) -> list[_Item]:
        """Parses items separated by commas up to and including ``close``; returns them as a list.

        The opening bracket is already consumed. ``item`` parses one item.
        """
        items: list[_Item] = []
        if self.accept(close):
            return items
        while True:
            items.append(item())
            if self.accept(close):
                return items
            self.expect(",", f"',' or '{close}'")

    def enter(self) -> None:
        """Enters a nested expression, until :meth:`leave`; raises an error if it is too deep."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.source.error(
                f"nested deeper than {MAX_DEPTH} levels: assign the inner parts to names", self.pos
            )

    def leave(self) -> None:
        self._depth -= 1

    def close_angle(self) -> None:
        """Consumes ``>``.

        Of ``>=``, as in ``tensor<scalar>= 0.0``, it leaves ``=`` as the next token.
        """
        if self.kind != ">=":
            self.expect(">")
            return
        self.kind = self._kinds[self._next] = self._tokens.texts[self._next] = "="
        self._tokens.starts[self._next] += 1
