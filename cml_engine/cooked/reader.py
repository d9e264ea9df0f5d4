"""Reads the sections of a cooked file; all data is validated before use."""

from __future__ import annotations

import hashlib
from struct import Struct
from typing import Any

from cml_engine.cooked.form import (
    COUNTS,
    FORMAT,
    HEADER,
    KERNELS,
    MAGIC,
    MOST_SECTIONS,
    MOST_TEXT,
    PLAN,
    SECTION,
    SECTION_ALIGNMENT,
    STRINGS,
    CookedLimits,
    Totals,
    aligned,
)
from cml_engine.errors import CorruptArtifact, StaleArtifact


def damaged(what: str) -> CorruptArtifact:
    """Returns the error for a file that violates docs/cooked.md."""
    return CorruptArtifact(f"the cooked file is damaged: {what}. Copy it again, or cook it again")


class Section:
    """The bytes of a section."""

    def __init__(self, tag: str, content: memoryview) -> None:
        self.tag, self.content = tag, content

    def __len__(self) -> int:
        return len(self.content)

    def unpack(self, record: Struct, offset: int) -> tuple[Any, ...]:
        """Returns the record at an offset; raises :class:`CorruptArtifact` if it exceeds the
        section."""
        if offset < 0 or offset + record.size > len(self.content):
            raise damaged(f"section '{self.tag}' ends in the middle of a record")
        return record.unpack_from(self.content, offset)

    def span(self, offset: int, count: int, what: str) -> memoryview:
        """Returns ``count`` bytes at an offset; ``what`` begins the message if they exceed the
        section."""
        if offset < 0 or count < 0 or offset + count > len(self.content):
            raise damaged(
                f"{what}: {count:,} bytes at {offset:,} of the {len(self):,} of '{self.tag}'"
            )
        return self.content[offset : offset + count]


class Container:
    """The sections of a whole file, verified against their hashes."""

    def __init__(self, data: memoryview, limits: CookedLimits | None) -> None:
        count, table, self.totals = _table(data)
        if limits is not None:
            limits.check(self.totals)
        self._sections: dict[tuple[str, int], Section] = {}
        end = HEADER.size + len(table)
        before = ("", -1)
        for index in range(count):
            tag, number, content, end = _section(data, table, index, end)
            if (tag, number) <= before or number != (before[1] + 1 if tag == before[0] else 0):
                raise damaged(f"section '{tag}' {number} does not stand in its order")
            before = tag, number
            self._sections[tag, number] = Section(tag, content)
        if end != len(data):
            raise damaged(f"{len(data) - end:,} bytes behind its last section")
        for tag, (least, most) in COUNTS.items():
            if not least <= self.count(tag) <= most:
                raise damaged(f"{self.count(tag)} sections '{tag}'")
        self._strings = self.section(STRINGS)
        self._known: dict[tuple[int, int], str] = {}

    def check_totals(self) -> None:
        """Raises :class:`CorruptArtifact` if the header's totals differ from those of the sections.

        The kernels and plans must have been validated before.
        """
        plans = [self.section(PLAN, number).content for number in range(self.count(PLAN))]
        if self.totals != Totals.of(self.section(KERNELS).content, plans):
            raise damaged("its header states other totals than its kernels and plans have")

    def count(self, tag: str) -> int:
        """Returns the number of sections with this tag."""
        return sum(other == tag for other, _ in self._sections)

    def listed(self) -> tuple[tuple[str, int, int], ...]:
        """Returns the tag, number and size in bytes of every section, in file order."""
        return tuple((tag, n, len(section)) for (tag, n), section in self._sections.items())

    def section(self, tag: str, number: int = 0) -> Section:
        """Returns a section; raises :class:`CorruptArtifact` if it does not exist."""
        found = self._sections.get((tag, number))
        if found is None:
            raise damaged(f"there is no section '{tag}' {number}")
        return found

    def string(self, offset: int, length: int) -> str:
        """Returns a string of the section ``strings``."""
        if (offset, length) not in self._known:
            if length > MOST_TEXT:
                raise damaged(f"a string of {length:,} bytes")
            span = self._strings.span(offset, length, "a string")
            try:
                self._known[offset, length] = bytes(span).decode()
            except UnicodeDecodeError:
                raise damaged(f"the string at {offset:,} is no UTF-8") from None
        return self._known[offset, length]


def check_size(head: bytes | memoryview, size: int) -> int:
    """Returns ``size`` if the header of a file states that many bytes.

    Only the header is needed. Raises :class:`CorruptArtifact` if the size differs or this is no
    cooked file, and :class:`StaleArtifact` if the format version differs.
    """
    if bytes(head[: len(MAGIC)]) != MAGIC:
        raise CorruptArtifact(
            "this is no cooked file: its first bytes are others. `cml cook MODEL -o net.cml` "
            "makes one; a model is loaded with cml.load"
        )
    if len(head) < HEADER.size:
        raise damaged(f"it ends after {len(head)} bytes")
    _, version, _, nbytes, *_ = HEADER.unpack_from(head)
    if version != FORMAT:
        raise StaleArtifact(
            f"the cooked file has format {version}, this version reads {FORMAT}: cook it again"
        )
    if nbytes != size:
        raise damaged(f"it states {nbytes:,} bytes and has {size:,}")
    return size


def _table(data: memoryview) -> tuple[int, memoryview, Totals]:
    """Returns the number of sections, their table, verified against its hash, and the stated
    totals."""
    check_size(data[: HEADER.size], len(data))
    _, _, count, nbytes, digest, *totals, reserved = HEADER.unpack_from(data)
    if count > MOST_SECTIONS or HEADER.size + count * SECTION.size > nbytes or any(reserved):
        raise damaged(f"its header: {count} sections")
    table = data[HEADER.size : HEADER.size + count * SECTION.size]
    if hashlib.sha256(table).digest() != digest:
        raise damaged("the table of its sections is not what its hash says")
    return count, table, Totals(*totals)


def _section(
    data: memoryview, table: memoryview, index: int, end: int
) -> tuple[str, int, memoryview, int]:
    """Returns the tag, number, content and end of a section; ``end`` is the end of the previous
    one."""
    raw, offset, nbytes, number, reserved, digest = SECTION.unpack_from(table, index * SECTION.size)
    name = raw.rstrip(b"\0")
    if not name.isalnum() or not name.isascii() or reserved:
        raise damaged(f"section {index} of its table is none")
    tag = name.decode()
    if offset != aligned(end, SECTION_ALIGNMENT) or offset + nbytes > len(data):
        raise damaged(f"section '{tag}': {nbytes:,} bytes at {offset:,}")
    if any(data[end:offset]):
        raise damaged(f"there is something before section '{tag}'")
    content = data[offset : offset + nbytes]
    if hashlib.sha256(content).digest() != digest:
        raise damaged(f"section '{tag}' is not what its hash says")
    return tag, number, content, offset + nbytes
