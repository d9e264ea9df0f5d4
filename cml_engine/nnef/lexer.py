"""NNEF text -> tokens (NNEF 1.0.5, A.1 Lexical elements).

One regular expression, one pass. A token's ``kind`` is ``name``, ``whole``, ``real``,
``quoted`` or ``end``; keywords and operators are their own kind, so a parser asks for ``"->"`` or
``"graph"`` by their text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from cml_engine.errors import NnefSyntaxError, Source

#: Words that cannot be identifiers (A.1.1).
KEYWORDS = frozenset(
    "version extension graph fragment tensor integer scalar logical string true false "
    "for in if else yield length_of shape_of range_of".split()
)

#: A quoted line in a message is cut here: a model may be one line of megabytes.
_SHOWN_LINE = 200

_TOKEN = re.compile(
    r"""
      (?P<blank> (?: [ \t\r\n\f\v]+ | \#[^\n]* )+ )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<real> [0-9]+ (?: \.[0-9]* (?: [eE][+-]?[0-9]+ )? | [eE][+-]?[0-9]+ ) )
    | (?P<whole> [0-9]+ )
    | (?P<quoted> '(?: [^'\\\n] | \\[^\n] )*' | "(?: [^"\\\n] | \\[^\n] )*" )
    | (?P<operator> -> | && | \|\| | [<>=!]= | [-+*/^<>=!?:;,()\[\]{}] )
    """,
    re.VERBOSE,
)

_ESCAPE = re.compile(r"\\(['\"\\])")
_LONGEST_NUMBER = 400


class Token(NamedTuple):
    """``pos`` is the offset of its first character in the text."""

    kind: str
    text: str
    pos: int


class SourceText:
    """A file's text, and where in it an offset lies."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def at(self, pos: int) -> Source:
        """The line and column of an offset."""
        line = bisect_right(self._line_starts, pos)
        start = self._line_starts[line - 1]
        end = self.text.find("\n", start)
        shown = self.text[start : end if end >= 0 else len(self.text)]
        return Source(self.file, line, pos - start + 1, shown[:_SHOWN_LINE])

    def error(self, message: str, pos: int) -> NnefSyntaxError:
        return NnefSyntaxError(message, self.at(pos))


def tokenize(source: SourceText) -> list[Token]:
    """All tokens of a text, the last one of kind ``end``."""
    tokens = list(_tokens(source))
    tokens.append(Token("end", "", len(source.text)))
    return tokens


def unquote(text: str) -> str:
    r"""The value of a string literal; ``\'``, ``\"`` and ``\\`` are escapes."""
    body = text[1:-1]
    return _ESCAPE.sub(r"\1", body) if "\\" in body else body


def _tokens(source: SourceText) -> Iterator[Token]:
    text, pos, match_at = source.text, 0, _TOKEN.match
    while pos < len(text):
        match = match_at(text, pos)
        if match is None:
            raise source.error(_unexpected(text, pos), pos)
        kind = match.lastgroup or ""
        if kind != "blank":
            yield _token(source, kind, match.group(), pos)
        pos = match.end()


def _token(source: SourceText, kind: str, text: str, pos: int) -> Token:
    if kind == "operator" or text in KEYWORDS:
        return Token(text, text, pos)
    if kind in ("whole", "real") and len(text) > _LONGEST_NUMBER:
        raise source.error(f"a number of {len(text)} characters: shorten it", pos)
    return Token(kind, text, pos)


def _unexpected(text: str, pos: int) -> str:
    char = text[pos]
    if char in "'\"":
        return f"this string has no closing {char} on its line: close it"
    return f"unexpected character {char!r}: remove it (NNEF text is ASCII outside strings)"
