"""A cooked file as it is read: nothing of it is believed before it is checked."""

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
    """The error of a file in which something is not as docs/cooked.md says."""
    return CorruptArtifact(f"the cooked file is damaged: {what}. Copy it again, or cook it again")


class Section:
    """A section's bytes."""

    def __init__(self, tag: str, content: memoryview) -> None:
        self.tag, self.content = tag, content

    def __len__(self) -> int:
        return len(self.content)

    def unpack(self, record: Struct, offset: int) -> tuple[Any, ...]:
        """The record at an offset."""
        if offset < 0 or offset + record.size > len(self.content):
            raise damaged(f"section '{self.tag}' ends in the middle of a record")
        return record.unpack_from(self.content, offset)

    def span(self, offset: int, count: int, what: str) -> memoryview:
        """Some of its bytes; ``what`` they are begins the message where they are not there."""
        if offset < 0 or count < 0 or offset + count > len(self.content):
            raise damaged(
                f"{what}: {count:,} bytes at {offset:,} of the {len(self):,} of '{self.tag}'"
            )
        return self.content[offset : offset + count]


class Container:
    """The sections of a whole file, each as its hash says it is."""

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
        """:class:`CorruptArtifact` where the header states other totals than the sections have;
        for a file whose kernels and plans are right."""
        plans = [self.section(PLAN, number).content for number in range(self.count(PLAN))]
        if self.totals != Totals.of(self.section(KERNELS).content, plans):
            raise damaged("its header states other totals than its kernels and plans have")

    def count(self, tag: str) -> int:
        """How many sections have the tag."""
        return sum(other == tag for other, _ in self._sections)

    def listed(self) -> tuple[tuple[str, int, int], ...]:
        """Tag, number and bytes of every section, in their order."""
        return tuple((tag, n, len(section)) for (tag, n), section in self._sections.items())

    def section(self, tag: str, number: int = 0) -> Section:
        """A section; :class:`CorruptArtifact` where a plan names one that is not there."""
        found = self._sections.get((tag, number))
        if found is None:
            raise damaged(f"there is no section '{tag}' {number}")
        return found

    def string(self, offset: int, length: int) -> str:
        """A string of the section ``strings``."""
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
    """The bytes of a whole file, if they are as many as its beginning states: asked before they
    are read."""
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
    """The number of sections, their table as its hash says it is, and the totals that it states."""
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
    """Tag, number and content of a section, and where it ends; ``end`` is that of the one
    before."""
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
