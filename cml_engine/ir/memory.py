"""The accounting of GPU memory as plain data: free ranges, owners, and reports.

This module uses no GPU API. ``cml_engine/gpu/memory/allocator.py`` applies it to real buffers,
and a host with its own allocator implements :class:`MemorySource`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_text

Category = Literal["weights", "activations", "output", "staging", "uniform", "render"]
CATEGORIES: tuple[str, ...] = get_args(Category)
_BAR_CELLS = 48

__all__ = [
    "HeapStats",
    "Holding",
    "MemoryRange",
    "MemorySource",
    "MemoryStats",
    "mib",
]


class MemoryRange(Protocol):
    """A part of a GPU buffer: the bytes ``[offset, offset + nbytes)`` of a ``wgpu.GPUBuffer``.

    It is valid until :meth:`free`.

    Examples
    --------
    >>> import wgpu
    >>> usage = wgpu.BufferUsage.VERTEX
    >>> memory = gpu.memory.allocate(1024, usage, owner="terrain", category="render")
    >>> memory.nbytes >= 1024
    True
    >>> memory.free()
    """

    @property
    def buffer(self) -> Any: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def free(self) -> None:
        """Releases the range; the caller must not use it afterwards."""


class MemorySource(Protocol):
    """A game engine's own allocator of GPU memory, passed as ``cml.Gpu(memory=...)``.

    Ranges of different categories must lie in different buffers, because WebGPU cannot copy
    within one buffer. A range whose ``usage`` has MAP_READ or MAP_WRITE must be a whole buffer.

    Examples
    --------
    >>> class EngineMemory:
    ...     def allocate(self, nbytes, usage, **options):
    ...         return engine.take(nbytes, usage)
    """

    def allocate(
        self, nbytes: int, usage: int, alignment: int, owner: str, category: str
    ) -> MemoryRange:
        """Returns a range of at least ``nbytes`` whose offset is a multiple of ``alignment``.

        The buffer must have all flags of ``usage`` (``wgpu.BufferUsage``). Raises
        ``MemoryError`` if there is no such memory.
        """
        ...


class FreeList:
    """The accounting of the free and allocated ranges of ``[0, nbytes)``.

    Allocates from the smallest free range that fits (best fit) and merges neighbours when they
    are freed.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        #: start and length of every free range, by start
        self._free = [(0, nbytes)]
        self._taken: dict[int, int] = {}

    def allocate(self, nbytes: int, alignment: int = 1) -> int | None:
        """Allocates ``nbytes`` (at least 1) and returns the offset, a multiple of ``alignment``.

        Returns None if no free range fits.
        """
        if nbytes < 1 or alignment < 1:
            raise ValueError(f"{nbytes} bytes aligned to {alignment}: both must be at least 1")
        fitting = []
        for start, size in self._free:
            offset = -(-start // alignment) * alignment
            if offset + nbytes <= start + size:
                fitting.append((size, start, offset))
        if not fitting:
            return None
        size, start, offset = min(fitting)
        self._free.remove((start, size))
        for begin, end in ((start, offset), (offset + nbytes, start + size)):
            if begin < end:
                insort(self._free, (begin, end - begin))
        self._taken[offset] = nbytes
        return offset

    def free(self, offset: int) -> None:
        """Frees the range at an offset from :meth:`allocate`.

        Raises ``ValueError`` if it is not allocated.
        """
        size = self._taken.pop(offset, None)
        if size is None:
            raise ValueError(f"nothing is allocated at offset {offset}")
        index = bisect_left(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            offset, size_before = self._free.pop(index - 1)
            size += size_before
        insort(self._free, (offset, size))

    @property
    def empty(self) -> bool:
        """True if nothing is allocated."""
        return not self._taken

    @property
    def free_bytes(self) -> int:
        return sum(size for _, size in self._free)

    @property
    def largest_free(self) -> int:
        """The length of the longest free range in bytes, or 0."""
        return max((size for _, size in self._free), default=0)

    @property
    def taken(self) -> list[tuple[int, int]]:
        """The ``(offset, nbytes)`` of all allocated ranges, sorted by offset."""
        return sorted(self._taken.items())


@dataclass(slots=True)
class Holding:
    """The memory of one owner in one category: its bytes and the number of allocations.

    Examples
    --------
    >>> held = sum(holding.nbytes for holding in gpu.memory.stats().holdings.values())
    """

    nbytes: int = 0
    count: int = 0


class Ledger:
    """The accounting of GPU memory by owner and category.

    ``held`` is the bytes in use, ``peak`` their maximum; reading them takes constant time.
    """

    def __init__(self) -> None:
        self.held = 0
        self.peak = 0
        self._holdings: dict[tuple[str, str], Holding] = {}

    def add(self, owner: str, category: str, nbytes: int) -> None:
        """Records one allocation of ``nbytes`` by the owner in the category."""
        holding = self._holdings.setdefault((owner, category), Holding())
        holding.nbytes += nbytes
        holding.count += 1
        self.held += nbytes
        if self.held > self.peak:
            self.peak = self.held

    def remove(self, owner: str, category: str, nbytes: int) -> None:
        """Removes one allocation of ``nbytes`` of the owner in the category."""
        holding = self._holdings[owner, category]
        holding.nbytes -= nbytes
        holding.count -= 1
        self.held -= nbytes
        if not holding.count:
            del self._holdings[owner, category]

    def of(self, categories: Collection[str]) -> int:
        """Returns the bytes in use in the given categories, of all owners."""
        return sum(
            h.nbytes for (_, category), h in self._holdings.items() if category in categories
        )

    def holdings(self) -> dict[tuple[str, str], Holding]:
        """Returns a copy of the accounting, by (owner, category), sorted."""
        return {k: Holding(h.nbytes, h.count) for k, h in sorted(self._holdings.items())}


@dataclass(frozen=True, slots=True)
class HeapStats:
    """The statistics of one heap, a large buffer: ``taken`` is the (offset, nbytes) of its ranges.

    A ``whole`` heap is not divided: the host maps it, or its content is larger than a normal heap.

    Examples
    --------
    >>> [heap.largest_free >= 0 for heap in gpu.memory.stats().heaps][:1]
    [True]
    """

    category: str
    nbytes: int
    held: int
    largest_free: int
    taken: tuple[tuple[int, int], ...]
    whole: bool = False

    @property
    def bar(self) -> str:
        """The heap as a line of characters: ``#`` allocated, ``+`` partly allocated, ``.`` free."""
        cells = [0.0] * _BAR_CELLS
        scale = _BAR_CELLS / self.nbytes
        for offset, nbytes in self.taken:
            start, end = offset * scale, (offset + nbytes) * scale
            for cell in range(int(start), min(_BAR_CELLS, int(end) + 1)):
                cells[cell] += max(0.0, min(end, cell + 1) - max(start, cell))
        return "".join("." if c <= 0 else "#" if c > 0.99 else "+" for c in cells)


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """The memory statistics of one device at one moment.

    ``reserved_bytes`` is the memory requested from the driver (whole heaps, and textures),
    ``held_bytes`` the part of it that is in use. ``fragmentation`` is the share of the heaps'
    free bytes outside the largest free range of each heap.

    Examples
    --------
    >>> stats = gpu.memory.stats()
    >>> stats.held_bytes <= stats.reserved_bytes
    True
    """

    held_bytes: int
    reserved_bytes: int
    peak_bytes: int
    budget_bytes: int | None
    holdings: Mapping[tuple[str, str], Holding]
    heaps: tuple[HeapStats, ...]
    evictions: int

    @property
    def largest_free(self) -> int:
        """The bytes of the largest range that can be allocated without a request to the driver."""
        return max((heap.largest_free for heap in self.heaps), default=0)

    @property
    def over_budget(self) -> int:
        """The number of reserved bytes above the budget.

        It can be above 0 after the budget was lowered.
        """
        return 0 if self.budget_bytes is None else max(0, self.reserved_bytes - self.budget_bytes)

    @property
    def fragmentation(self) -> float:
        free = sum(heap.nbytes - heap.held for heap in self.heaps)
        return 1 - sum(heap.largest_free for heap in self.heaps) / free if free else 0.0

    def to_json(self) -> dict[str, object]:
        """Returns the statistics as plain data for JSON, without the heaps' allocation maps."""
        owners: dict[str, dict[str, int]] = {}
        for (owner, category), holding in self.holdings.items():
            owners.setdefault(owner, {})[category] = holding.nbytes
        return {
            "held_bytes": self.held_bytes,
            "reserved_bytes": self.reserved_bytes,
            "peak_bytes": self.peak_bytes,
            "budget_bytes": self.budget_bytes,
            "over_budget_bytes": self.over_budget,
            "largest_free": self.largest_free,
            "fragmentation": self.fragmentation,
            "evictions": self.evictions,
            "owners": owners,
            "heaps": [
                {"category": h.category, "nbytes": h.nbytes, "held": h.held} for h in self.heaps
            ],
        }

    def __str__(self) -> str:
        budget = "no budget" if self.budget_bytes is None else f"budget {mib(self.budget_bytes)}"
        if self.over_budget:
            budget += f" (exceeded by {mib(self.over_budget)}, until these owners give it back)"
        lines = [
            f"GPU memory: held {mib(self.held_bytes)}, peak {mib(self.peak_bytes)}, reserved "
            f"{mib(self.reserved_bytes)}, {budget}, fragmentation {self.fragmentation:.0%}",
            *holdings_table(self.holdings),
        ]
        for heap in self.heaps:
            if not heap.whole:
                used = f"{mib(heap.held):>11s} of {mib(heap.nbytes)}"
                lines.append(f"{heap.category:12s} |{heap.bar}| {used}")
        for category in dict.fromkeys(heap.category for heap in self.heaps if heap.whole):
            undivided = [h for h in self.heaps if h.whole and h.category == category]
            held, nbytes = sum(h.held for h in undivided), sum(h.nbytes for h in undivided)
            used = f"{mib(held)} of {mib(nbytes)}"
            lines.append(f"{category:12s} {len(undivided)} whole buffers, {used}")
        return "\n".join(lines)


def mib(nbytes: float) -> str:
    """Returns a number of bytes as text in MiB or KiB with two decimals.

    Examples
    --------
    >>> mib(3 << 20)
    '3.00 MiB'
    """
    if nbytes < 1 << 20:
        return f"{nbytes / (1 << 10):.2f} KiB"
    return f"{nbytes / (1 << 20):.2f} MiB"


def holdings_table(holdings: Mapping[tuple[str, str], Holding]) -> list[str]:
    """Returns the lines of a table with a row per owner, the largest first.

    Each category in use has a column.
    """
    used = [c for c in CATEGORIES if any(category == c for _, category in holdings)]
    totals: dict[str, int] = {}
    for (owner, _), holding in holdings.items():
        totals[owner] = totals.get(owner, 0) + holding.nbytes
    rows = [["owner", *used, "total"]]
    for owner in sorted(totals, key=lambda o: (-totals[o], o)):
        cells = [_cell(holdings.get((owner, category))) for category in used]
        rows.append([owner, *cells, mib(totals[owner])])
    return _aligned(rows) if totals else ["  no owner holds any"]


def _cell(holding: Holding | None) -> str:
    return "-" if holding is None else mib(holding.nbytes)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in rows
    ]


def exhausted_message(
    nbytes: int, owner: str, category: str, stats: MemoryStats, reason: str = ""
) -> str:
    """Returns the message of an out-of-memory error, with the request and a table of the owners."""
    lines = [f"out of GPU memory: '{owner}' wanted {mib(nbytes)} for {category}"]
    if stats.budget_bytes is not None:
        free = max(0, stats.budget_bytes - stats.reserved_bytes)
        lines[0] += f"; budget {mib(stats.budget_bytes)}, of which {mib(free)} free"
    lines[0] += (
        f"; reserved {mib(stats.reserved_bytes)}, held {mib(stats.held_bytes)}, "
        f"largest free range {mib(stats.largest_free)}"
    )
    if reason:
        lines.append(f"  {reason}")
    lines += holdings_table(stats.holdings)
    lines.append(
        "Free some of it, raise the budget, compute in bands of rows "
        "(CompileOptions(arena_limit=BYTES)), or let networks that never run at the same time "
        'share their activations: cml.Session(graph, gpu, arena="shared:NAME").'
    )
    return "\n".join(lines)


def leak_report(holdings: Mapping[tuple[str, str], Holding]) -> str:
    """Returns a text with one line per owner and category whose memory was not released, or ""."""
    return "\n".join(
        f"{owner}: {holding.count} x {category}, {mib(holding.nbytes)}"
        for (owner, category), holding in holdings.items()
    )


def checked_budget(nbytes: object) -> int | None:
    """Returns a budget in bytes as an integer; None, which is no budget, stays None.

    Raises :class:`InputError` if it is not a valid number.
    """
    if nbytes is None:
        return None
    if isinstance(nbytes, bool) or not isinstance(nbytes, int | float) or not 0 <= nbytes < 1 << 63:
        raise InputError(f"a memory budget of {nbytes!r} bytes: wanted a number of 0 or more")
    return int(nbytes)


def checked_category(category: str) -> str:
    """Returns a memory category's name; raises :class:`InputError` if it is unknown."""
    if check_text(category, "a memory category") not in CATEGORIES:
        raise InputError(f"unknown memory category {category!r}; wanted {', '.join(CATEGORIES)}")
    return category


# --- textures

#: bytes per texel of formats whose name does not state the size
_TEXELS = {
    "rgb9e5ufloat": 4, "rgb10a2unorm": 4, "rgb10a2uint": 4, "rg11b10ufloat": 4,
    "stencil8": 1, "depth16unorm": 2, "depth24plus": 4, "depth24plus-stencil8": 4,
    "depth32float": 4, "depth32float-stencil8": 8,
}  # fmt: skip
_EIGHT_BYTE_BLOCKS = ("bc1-", "bc4-", "etc2-rgb8", "eac-r11")


def texel_block(texture_format: str) -> tuple[int, int, int]:
    """Returns ``(width, height, bytes)`` of a block of a texture format.

    Uncompressed formats have blocks of 1 x 1 texels.
    """
    if texture_format in _TEXELS:
        return 1, 1, _TEXELS[texture_format]
    if astc := re.match(r"astc-(\d+)x(\d+)-", texture_format):
        return int(astc[1]), int(astc[2]), 16
    if re.match(r"bc\d|etc2-|eac-", texture_format):
        return 4, 4, 8 if texture_format.startswith(_EIGHT_BYTE_BLOCKS) else 16
    if plain := re.match(r"(r|rg|rgba|bgra)(8|16|32)(?=[a-z])", texture_format):
        return 1, 1, len(plain[1]) * int(plain[2]) // 8
    raise InputError(f"unknown texture format '{texture_format}'")


def texture_bytes(
    size: Iterable[int] | Mapping[str, int],
    texture_format: str,
    *,
    mips: int = 1,
    samples: int = 1,
    dimension: str = "2d",
) -> int:
    """Returns the bytes of all texels of a texture, with its mips, layers and samples.

    A driver's padding is not included.
    """
    if isinstance(size, Mapping):
        size = (size["width"], size.get("height", 1), size.get("depth_or_array_layers", 1))
    width, height, layers = (*size, 1, 1)[:3]
    block_width, block_height, block_bytes = texel_block(texture_format)
    total = 0
    for level in range(mips):
        columns = -(-max(1, width >> level) // block_width)
        rows = -(-max(1, height >> level) // block_height)
        depth = max(1, layers >> level) if dimension == "3d" else layers
        total += columns * rows * depth
    return total * block_bytes * samples
