"""Collects the sections and strings of a cooked file. Equal contents give equal bytes."""

from __future__ import annotations

import hashlib

from cml_engine.cooked.schema import (
    COUNTS,
    FORMAT,
    KERNELS,
    MAGIC,
    MOST_TEXT,
    PLAN,
    SECTION_ALIGNMENT,
    STRINGS,
    VALUES,
    FileHeader,
    SectionRow,
    Text,
    totals_of,
)
from cml_engine.cooked.values import Values
from cml_engine.io.model_source import Bytes


class Strings:
    """The section ``strings`` under construction: distinct strings, each stored once.

    :meth:`put` adds a string and returns its range; long strings are cut.
    """

    def __init__(self) -> None:
        self._ranges = {"": Text(offset=0, length=0)}
        self.content = bytearray()

    def put(self, text: str) -> Text:
        if text not in self._ranges:
            encoded = text.encode(errors="replace")
            # only people read titles and labels, so these may be cut; a cut name is an error later
            if len(encoded) > MOST_TEXT:
                encoded = encoded[: MOST_TEXT - 4].decode(errors="ignore").encode() + b" ..."
            self._ranges[text] = Text(offset=len(self.content), length=len(encoded))
            self.content += encoded
        return self._ranges[text]


class Sections:
    """The sections of a cooked file under construction, by tag and number.

    ``strings`` and ``values`` are built separately and become sections in :meth:`bytes`.
    """

    def __init__(self) -> None:
        self.strings = Strings()
        self.values = Values()
        self._content: dict[str, list[Bytes]] = {}

    def add(self, tag: str, content: Bytes) -> int:
        """Adds a section and returns its number within its tag; equal sections are stored once."""
        stored = self._content.setdefault(tag, [])
        for number, existing in enumerate(stored):
            if existing == content:
                return number
        stored.append(content)
        return len(stored) - 1

    def bytes(self) -> bytes:
        """Returns the bytes of the whole file: header, section table and all sections."""
        self._content[STRINGS] = [bytes(self.strings.content)]
        self._content[VALUES] = [bytes(self.values.content)]
        totals = totals_of(self._content[KERNELS][0], self._content[PLAN])
        order = [
            (tag, number, content)
            for tag in sorted(COUNTS)
            for number, content in enumerate(self._content.get(tag, []))
        ]
        start = FileHeader.SIZE + SectionRow.SIZE * len(order)
        table, body = bytearray(), bytearray()
        for tag, number, content in order:
            end = start + len(body)
            body += bytes(-end % SECTION_ALIGNMENT)
            table += SectionRow(
                tag=tag.encode(),
                offset=start + len(body),
                nbytes=len(content),
                number=number,
                digest=hashlib.sha256(content).digest(),
            ).to_bytes()
            body += content
        header = FileHeader(
            magic=MAGIC,
            format=FORMAT,
            sections=len(order),
            nbytes=start + len(body),
            table_digest=hashlib.sha256(table).digest(),
            totals=totals,
        )
        return header.to_bytes() + table + body
