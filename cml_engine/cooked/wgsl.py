"""Checks untrusted WGSL before a shader compiler reads it.

naga and drivers recurse over nested code and expand function calls and arrays. They end the process
if the code is nested too deeply or needs too much memory. The C and JavaScript players apply the
same rules with the same numbers, which docs/cooked.md states.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cml_engine.cooked.reader import damaged

#: bytes of a kernel; the engine's own kernels have up to 84 KB
MOST_WGSL = 512 << 10
#: open brackets; each takes 1 to 4 KiB of a compiler's stack
MOST_DEPTH = 64
#: tokens of open expressions and statements; each takes up to 0.8 KiB of stack
MOST_PENDING = 512
#: declared functions, structs, aliases and constants
MOST_NAMES = 512
#: elements of an array type, to which a driver expands its variables
MOST_ELEMENTS = 4096
#: tokens after expansion: a name counts as its declaration, an array as all its elements
MOST_EXPANDED = 1 << 20

#: blanks and comments, then a token or the end
_TOKEN = re.compile(
    r"(?>(?:[ \t\r\n]+|//[^\r\n]*)*)"
    r"(?:([A-Za-z_][A-Za-z_0-9]*|[0-9][A-Za-z_0-9.]*|->|<<|<=|>=|[!-~])|\Z)"
)
_TEXT = re.compile(r"[\t\r\n -~]*")
_COUNT = re.compile(r"[ \t\r\n]*(?:[iu]32\()?([0-9]{1,9})[iu]?\)?[ \t\r\n]*")
_DECLARING = {"fn", "struct", "alias", "const", "override"}
_ARRAYS = {"array", "binding_array"}
_OPENS = {")": "(", "]": "[", "}": "{"}


def check_wgsl(text: str, subject: str) -> None:
    """Raises :class:`CorruptArtifact` for WGSL that is too long, too deeply nested or expands too
    far.

    Code that is not ASCII or has ``/*`` comments is refused too. ``subject`` begins the message.
    """
    if len(text) > MOST_WGSL or "/*" in text or not _TEXT.fullmatch(text):
        raise damaged(
            f"{subject}: its WGSL is not ASCII, has comments of several lines, or is longer than "
            f"{MOST_WGSL:,} bytes"
        )
    try:
        _Scanner(text).run()
    except _Refused as problem:
        raise damaged(f"{subject}: its WGSL {problem}") from None


class _Refused(Exception):
    """The error for refused code; its message continues a sentence that begins with "its WGSL"."""


@dataclass(slots=True)
class _Bracket:
    """An open bracket in WGSL; its kind is the character, ``<`` for a template, or ``a`` for an
    array's template."""

    kind: str
    #: expanded size of the text before it, and of its arguments before the last comma
    size: int
    element: int = 0
    #: start of the argument after the last comma; 0 before the first comma
    argument: int = 0
    #: tokens directly in it since the last separator
    pending: int = 0


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        #: every token with its end
        self._tokens = [(m[1], m.end()) for m in _TOKEN.finditer(text) if m[1]]
        self._brackets = [_Bracket("", 0)]
        self._size = self._pending = 0
        #: expanded size of every name; negative until its declaration has ended
        self._sizes: dict[str, int] = {}
        #: declarations that have not ended: name, number of brackets and size before it
        self._open: list[tuple[str, int, int]] = []

    def run(self) -> None:
        self._find_names()
        previous, block_ended = "", False
        for token, end in self._tokens:
            if block_ended and token != "else":
                self._end_item()
            block_ended = token == "}"
            self._count(token, previous)
            if previous in _ARRAYS and token != "<":
                raise _Refused("has an array without a type")
            if token == "<" and (previous[:1].isalpha() or previous[:1] == "_"):
                self._push("a" if previous in _ARRAYS else "<")
            elif token == ">":
                self._close_template(end)
            elif token == ",":
                self._end_item()
                top = self._brackets[-1]
                top.argument, top.element = end, self._size - 1 - top.size
            elif token in "()[]{};":
                self._bracket(token)
            previous = token
        if len(self._brackets) > 1:
            raise _Refused("has brackets that do not end")

    def _find_names(self) -> None:
        previous = ""
        for token, _ in self._tokens:
            if previous in _DECLARING:
                if token in self._sizes or len(self._sizes) == MOST_NAMES:
                    raise _Refused(f"declares '{token}' twice, or over {MOST_NAMES} names")
                self._sizes[token] = -1
            previous = token

    def _count(self, token: str, previous: str) -> None:
        """Counts a token, or the expanded size of the name that it is, in all open brackets and
        declarations.

        Raises :class:`_Refused` if a limit is exceeded. ``previous`` is the previous token.
        """
        if previous in _DECLARING:
            self._open.append((token, len(self._brackets), self._size))
        elif token in self._sizes:
            if self._sizes[token] < 0:
                raise _Refused(f"uses '{token}' before the end of its declaration")
            self._grow(self._sizes[token])
        self._grow(1)
        self._pending += 1
        self._brackets[-1].pending += 1
        if self._pending > MOST_PENDING:
            raise _Refused(f"has a statement or a chain of else of over {MOST_PENDING} tokens")

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MOST_EXPANDED:
            raise _Refused(f"expands to more than {MOST_EXPANDED:,} tokens and elements of arrays")

    def _push(self, bracket: str) -> None:
        if len(self._brackets) > MOST_DEPTH:
            raise _Refused(f"has more than {MOST_DEPTH} brackets in each other")
        self._brackets.append(_Bracket(bracket, self._size))

    def _pop(self) -> None:
        self._pending -= self._brackets.pop().pending

    def _end_item(self) -> None:
        self._pending -= self._brackets[-1].pending
        self._brackets[-1].pending = 0

    def _close_template(self, end: int) -> None:
        top = self._brackets[-1]
        if top.kind == "a" and top.argument:
            count = _COUNT.fullmatch(self._text, top.argument, end - 1)
            if count is None:
                raise _Refused("has an array whose size is no plain number")
            elements = top.element * int(count[1])
            if elements > MOST_ELEMENTS:
                raise _Refused(f"has an array of more than {MOST_ELEMENTS:,} elements")
            self._grow(elements)
        if top.kind in ("<", "a"):  # possibly a comparison, which continues
            self._brackets[-2].pending += top.pending
            self._brackets.pop()

    def _bracket(self, token: str) -> None:
        """Opens or closes the bracket that ``token`` is, or ends a statement.

        Raises :class:`_Refused` if brackets do not match.
        """
        if token not in "([":
            while self._brackets[-1].kind in (
                "<",
                "a",
            ):  # a sign in a comparison, if it is no array
                if self._brackets[-1].kind == "a":
                    raise _Refused("has an array whose type does not end")
                self._pop()
        if token in "([{":
            self._push(token)
            return
        if token in _OPENS:
            if self._brackets[-1].kind != _OPENS[token]:
                raise _Refused("has brackets that do not match")
            self._pop()
        if token == ";":
            self._end_item()
        while token in ";}" and self._open and self._open[-1][1] == len(self._brackets):
            name, _, size = self._open.pop()
            self._sizes[name] = self._size - size
