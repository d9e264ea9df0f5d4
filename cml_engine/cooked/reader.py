"""Reads the sections of a cooked file; all data is validated before use."""

from __future__ import annotations

import hashlib
from typing import TypeVar

from cml_engine.cooked.records import PackedRow
from cml_engine.cooked.schema import (
    COUNTS,
    FORMAT,
    KERNELS,
    MAGIC,
    MOST_SECTIONS,
    MOST_TEXT,
    PLAN,
    SECTION_ALIGNMENT,
    STRINGS,
    CookedLimits,
    FileHeader,
    SectionRow,
    Text,
    Totals,
    aligned,
    totals_of,
)
from cml_engine.errors import CorruptArtifact, StaleArtifact
from cml_engine.io.file_kinds import HEAD_BYTES, misplaced_file

R = TypeVar("R", bound=PackedRow)


def damaged(defect: str) -> CorruptArtifact:
    """Returns the error for a cooked file that violates docs/cooked.md; ``defect`` describes the
    violation."""
    return CorruptArtifact(f"the cooked file is damaged: {defect}. Copy it again, or cook it again")


class Section:
    """The bytes of a section of a cooked file, with methods that read its records."""

    def __init__(self, tag: str, content: memoryview) -> None:
        self.tag, self.content = tag, content

    def __len__(self) -> int:
        return len(self.content)

    def rows(self, record: type[R], count: int, offset: int, subject: str) -> list[R]:
        """Returns ``count`` records of the given type from a table that begins at ``offset``.

        Raises :class:`CorruptArtifact`, whose message begins with ``subject``, if they exceed the
        section or are invalid.
        """
        self.span(offset, count * record.SIZE, subject)
        try:
            return [record.read(self.content, offset + i * record.SIZE) for i in range(count)]
        except ValueError as error:
            raise damaged(f"{subject}: {error}") from None

    def head(self, record: type[R]) -> R:
        """Returns the record of the given type with which the section begins."""
        return self.rows(record, 1, 0, f"section '{self.tag}'")[0]

    def span(self, offset: int, count: int, subject: str) -> memoryview:
        """Returns ``count`` bytes at an offset of the section.

        Raises :class:`CorruptArtifact`, whose message begins with ``subject``, if they exceed the
        section.
        """
        if offset < 0 or count < 0 or offset + count > len(self.content):
            raise damaged(
                f"{subject}: {count:,} bytes at {offset:,} of the {len(self):,} of '{self.tag}'"
            )
        return self.content[offset : offset + count]


class Container:
    """All sections of a cooked file, verified against their hashes on construction.

    Raises :class:`CorruptArtifact` for an invalid file, and :class:`OverBudget` if it exceeds
    ``limits``.
    """

    def __init__(self, data: memoryview, limits: CookedLimits | None) -> None:
        table, self.totals = _table(data)
        if limits is not None:
            limits.check(self.totals)
        self._sections: dict[tuple[str, int], Section] = {}
        end = FileHeader.SIZE + len(table)
        previous = ("", -1)
        rows = Section("sections", table).rows(
            SectionRow, len(table) // SectionRow.SIZE, 0, "the table of its sections"
        )
        for index, row in enumerate(rows):
            tag, number, content = _section(data, row, index, end)
            end = row.offset + row.nbytes
            if (tag, number) <= previous or number != (
                previous[1] + 1 if tag == previous[0] else 0
            ):
                raise damaged(f"section '{tag}' {number} does not stand in its order")
            previous = tag, number
            self._sections[tag, number] = Section(tag, content)
        if end != len(data):
            raise damaged(f"{len(data) - end:,} bytes behind its last section")
        for tag, (low, high) in COUNTS.items():
            if not low <= self.count(tag) <= high:
                raise damaged(f"{self.count(tag)} sections '{tag}'")
        self._strings = self.section(STRINGS)
        self._known: dict[tuple[int, int], str] = {}

    def check_totals(self) -> None:
        """Raises :class:`CorruptArtifact` if the header's totals differ from those of its kernels
        and plans.

        The kernels and plans must have been validated before.
        """
        plans = [self.section(PLAN, number).content for number in range(self.count(PLAN))]
        if self.totals != totals_of(self.section(KERNELS).content, plans):
            raise damaged("its header states other totals than its kernels and plans have")

    def count(self, tag: str) -> int:
        """Returns the number of sections with this tag; 0 if there is none."""
        return sum(section_tag == tag for section_tag, _ in self._sections)

    def listed(self) -> tuple[tuple[str, int, int], ...]:
        """Returns the tag, number and size in bytes of every section, in file order."""
        return tuple((tag, n, len(section)) for (tag, n), section in self._sections.items())

    def section(self, tag: str, number: int = 0) -> Section:
        """Returns section ``number`` with this tag; raises :class:`CorruptArtifact` if it does
        not exist."""
        if (tag, number) not in self._sections:
            raise damaged(f"there is no section '{tag}' {number}")
        return self._sections[tag, number]

    def string(self, text: Text) -> str:
        """Returns the string at a range of the section ``strings``.

        Raises :class:`CorruptArtifact` if it is too long or is no UTF-8.
        """
        offset, length = text.offset, text.length
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
    """Returns ``size``, the bytes of a file, if its header ``head`` states the same number.

    Raises :class:`CorruptArtifact` if the size differs or this is no cooked file, and
    :class:`StaleArtifact` if the format version differs.
    """
    _header(memoryview(head), size)
    return size


def _header(head: memoryview, size: int) -> FileHeader:
    if bytes(head[: len(MAGIC)]) != MAGIC:
        if kind := misplaced_file(bytes(head[:HEAD_BYTES])):
            raise CorruptArtifact(f"this is {kind}")
        raise CorruptArtifact(
            "this is no cooked file: `cml cook MODEL -o net.cml` "
            "makes one; a model is loaded with cml.load"
        )
    if len(head) < FileHeader.SIZE:
        raise damaged(f"it ends after {len(head)} bytes")
    version = int.from_bytes(head[len(MAGIC) : len(MAGIC) + 4], "little")
    if version != FORMAT:
        raise StaleArtifact(
            f"the cooked file has format {version}, this version reads {FORMAT}: cook it again"
        )
    header = Section("header", head).head(FileHeader)
    if header.nbytes != size:
        raise damaged(f"it states {header.nbytes:,} bytes and has {size:,}")
    return header


def _table(data: memoryview) -> tuple[memoryview, Totals]:
    """Returns the bytes of a file's section table, verified against its hash, and the totals
    that the header states."""
    header = _header(data[: FileHeader.SIZE], len(data))
    end = FileHeader.SIZE + header.sections * SectionRow.SIZE
    if header.sections > MOST_SECTIONS or end > header.nbytes:
        raise damaged(f"its header: {header.sections} sections")
    table = data[FileHeader.SIZE : end]
    if hashlib.sha256(table).digest() != header.table_digest:
        raise damaged("the table of its sections is not what its hash says")
    return table, header.totals


def _section(
    data: memoryview, row: SectionRow, index: int, end: int
) -> tuple[str, int, memoryview]:
    """Returns the tag, number and content of the section in row ``index`` of the section table.

    ``end`` is the end of the previous section. Raises :class:`CorruptArtifact` if its place or
    its hash is wrong.
    """
    name = row.tag.rstrip(b"\0")
    if not name.isalnum() or not name.isascii():
        raise damaged(f"section {index} of its table is none")
    tag = name.decode()
    if row.offset != aligned(end, SECTION_ALIGNMENT) or row.offset + row.nbytes > len(data):
        raise damaged(f"section '{tag}': {row.nbytes:,} bytes at {row.offset:,}")
    if any(data[end : row.offset]):
        raise damaged(f"there is something before section '{tag}'")
    content = data[row.offset : row.offset + row.nbytes]
    if hashlib.sha256(content).digest() != row.digest:
        raise damaged(f"section '{tag}' is not what its hash says")
    return tag, row.number, content
