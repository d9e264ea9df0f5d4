"""Collects sections and strings for a file. Equal contents give equal bytes."""

from __future__ import annotations

import hashlib
from dataclasses import astuple

from cml_engine.cooked.form import (
    COUNTS,
    FORMAT,
    HEADER,
    KERNELS,
    MAGIC,
    MOST_TEXT,
    PLAN,
    SECTION,
    SECTION_ALIGNMENT,
    STRINGS,
    VALUES,
    Totals,
    aligned,
)
from cml_engine.cooked.values import Values
from cml_engine.io.model_source import Bytes


class Strings:
    """A table of distinct strings; :meth:`put` returns the offset and length of one."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, int]] = {"": (0, 0)}
        self.content = bytearray()

    def put(self, text: str) -> tuple[int, int]:
        if text not in self._places:
            encoded = text.encode(errors="replace")
            # only people read titles and labels, so these may be cut; a cut name is an error later
            if len(encoded) > MOST_TEXT:
                encoded = encoded[: MOST_TEXT - 4].decode(errors="ignore").encode() + b" ..."
            self._places[text] = len(self.content), len(encoded)
            self.content += encoded
        return self._places[text]


class Sections:
    """The contents of a file by tag and number."""

    def __init__(self) -> None:
        self.strings = Strings()
        self.values = Values()
        self._content: dict[str, list[Bytes]] = {}

    def add(self, tag: str, content: Bytes) -> int:
        """Adds a section and returns its number within its tag; equal sections are stored once."""
        there = self._content.setdefault(tag, [])
        for number, other in enumerate(there):
            if other == content:
                return number
        there.append(content)
        return len(there) - 1

    def bytes(self) -> bytes:
        """Returns the whole file."""
        self._content[STRINGS] = [bytes(self.strings.content)]
        self._content[VALUES] = [bytes(self.values.content)]
        totals = Totals.of(self._content[KERNELS][0], self._content[PLAN])
        order = [
            (tag, number, content)
            for tag in sorted(COUNTS)
            for number, content in enumerate(self._content.get(tag, []))
        ]
        at = HEADER.size + SECTION.size * len(order)
        table, body = bytearray(), bytearray()
        start = at
        for tag, number, content in order:
            body += bytes(aligned(at, SECTION_ALIGNMENT) - at)
            at = aligned(at, SECTION_ALIGNMENT)
            digest = hashlib.sha256(content).digest()
            table += SECTION.pack(tag.encode(), at, len(content), number, 0, digest)
            body += content
            at += len(content)
        assert start + len(body) == at
        digest = hashlib.sha256(table).digest()
        head = HEADER.pack(MAGIC, FORMAT, len(order), at, digest, *astuple(totals), bytes(16))
        return head + table + body
