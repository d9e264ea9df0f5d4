"""Bounds the memory and the work of a load, so that a small file cannot exhaust the machine.

Every reader charges the budget of the current load *before* it allocates memory or starts work:
``current_budget().charge_bytes(count, "the tensor 'w'")``. A load is a block of
:func:`load_budget`; a nested load shares the budget of the outer one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cml_engine.errors import InputError, ModelError, Source
from cml_engine.errors.arguments import check_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["VARIABLE", "Budget", "LoadLimits", "OverBudget", "current_budget", "load_budget"]

#: The environment variable that overrides the defaults: ``memory=8G,nodes=500000``.
VARIABLE = "CML_LOAD_LIMITS"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: The assumed memory if the machine does not report it.
_ASSUMED_BYTES = 8 << 30
#: Memory limits of containers: control groups, version 2 and 1.
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class OverBudget(ModelError, InputError):
    """Raised if a file needs more memory or work than :class:`LoadLimits` allow."""


def _default_memory() -> int:
    return machine_memory() // 2


def check_limits(limits: DataclassInstance) -> None:
    """Raises :class:`InputError` unless all fields of a dataclass are integers above 0."""
    for limit in fields(limits):
        value = getattr(limits, limit.name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(
                f"{type(limits).__name__}: {limit.name} is {value!r}: wanted an integer above 0"
            )


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The limits of one load.

    Parameters
    ----------
    memory : bytes that the load may allocate, including temporary arrays. Default: half of the
        memory of the machine or its container.
    nodes : operators and their tensors, after fragments, functions and loops are expanded.
    steps : units of work of about a microsecond: an expression, an element of a list, or 512
        unpacked bytes.

    Examples
    --------
    >>> graph = cml.load("net.nnef", limits=cml.LoadLimits(memory=64 << 20))
    """

    memory: int = field(default_factory=_default_memory)
    nodes: int = 200_000
    steps: int = 6_000_000

    def __post_init__(self) -> None:
        check_limits(self)

    @staticmethod
    def parse(text: str) -> LoadLimits:
        """Parses limits such as ``memory=8G,nodes=500000``.

        Limits that are not named get their defaults.

        Raises :class:`InputError` for an unknown or repeated name and for an invalid number.
        """
        check_text(text, "load limits")
        values: dict[str, int] = {}
        names = [limit.name for limit in fields(LoadLimits)]
        for pair in text.split(",") if text.strip() else ():
            name, _, number = (part.strip() for part in pair.partition("="))
            digits = number.rstrip("KMGTkmgt")
            unit = number[len(digits) :].upper()
            is_number = digits.isascii() and digits.isdigit() and len(digits) < 19
            if name not in names or name in values or not is_number or unit not in _UNITS:
                raise InputError(
                    f"load limits: cannot read '{pair}': wanted one of {', '.join(names)}, each "
                    "once, with a number, as memory=8G,nodes=500000"
                )
            values[name] = int(digits) * _UNITS[unit]
        return LoadLimits(**values)

    @staticmethod
    def default() -> LoadLimits:
        """Returns the limits in the variable ``CML_LOAD_LIMITS``, or the defaults if unset."""
        return LoadLimits.parse(os.environ.get(VARIABLE, ""))


class Budget:
    """The bytes, nodes and steps that one load has used so far, and its limits.

    In all methods ``subject`` names the cause of the cost in the error message.
    """

    def __init__(self, limits: LoadLimits | None = None) -> None:
        self.limits = limits or LoadLimits.default()
        self.bytes = self.nodes = self.steps = 0

    def charge_bytes(self, count: int, subject: str, source: Source | None = None) -> None:
        """Adds ``count`` bytes; raises :class:`OverBudget` if the sum exceeds the limit."""
        self.check_bytes(count, subject, source)
        self.bytes += count

    def check_bytes(self, count: int, subject: str, source: Source | None = None) -> None:
        """Raises :class:`OverBudget` if ``count`` more bytes would exceed the limit.

        Charges nothing. The caller charges them when it allocates.
        """
        self._check("memory", "bytes", self.bytes, count, subject, source)

    def charge_nodes(self, count: int, subject: str, source: Source | None = None) -> None:
        """Adds ``count`` nodes; raises :class:`OverBudget` if the sum exceeds the limit.

        A node is an operator or a tensor.
        """
        self.check_nodes(count, subject, source)
        self.nodes += count

    def check_nodes(self, count: int, subject: str, source: Source | None = None) -> None:
        """Raises :class:`OverBudget` if ``count`` more nodes would exceed the limit.

        Charges nothing. The caller charges them when it creates them.
        """
        self._check("nodes", "nodes", self.nodes, count, subject, source)

    def charge_steps(self, count: int, subject: str, source: Source | None = None) -> None:
        """Adds ``count`` steps of work; raises :class:`OverBudget` if the sum exceeds the limit.

        A step is about a microsecond.
        """
        self._check("steps", "steps of work", self.steps, count, subject, source)
        self.steps += count

    def charge_unpacked(self, count: int, subject: str) -> None:
        """Charges ``count`` unpacked bytes twice: as memory, and as the work of unpacking them."""
        self.charge_bytes(count, subject)
        self.charge_unpacking(count, subject)

    def charge_unpacking(self, count: int, subject: str) -> None:
        """Charges the work of unpacking ``count`` bytes, a step per 512; no memory."""
        self.charge_steps(count >> 9, subject)

    def _check(
        self, limit: str, unit: str, used: int, count: int, subject: str, source: Source | None
    ) -> None:
        total, allowed = used + count, getattr(self.limits, limit)
        if total > allowed:
            higher = f"{limit}={_rounded_up(total)}"
            raise OverBudget(
                f"{subject} needs {count:,} {unit}, which makes {total:,} for this load; the limit "
                f"is {allowed:,}. If you trust the file, raise the limit: --load-limits {higher}, "
                f"{VARIABLE}={higher}, or cml.load(…, limits=cml.LoadLimits({limit}=…))",
                source,
            )


def _rounded_up(total: int) -> str:
    """Returns twice the number as a text for ``parse``, rounded up to a unit, such as ``17G``."""
    for unit, size in reversed(_UNITS.items()):
        if total >= size:
            return f"{-(-2 * total // size)}{unit}"
    return "1"


_current: ContextVar[Budget | None] = ContextVar("cml_load_budget", default=None)


def current_budget() -> Budget:
    """Returns the budget of the current load; outside of a load, a new one with default limits."""
    return _current.get() or Budget()


@contextmanager
def load_budget(limits: LoadLimits | None = None) -> Iterator[Budget]:
    """Makes the ``with`` block one load and yields its :class:`Budget`.

    A nested load shares the outer load's budget; its own ``limits`` are ignored.
    """
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    token = _current.set(Budget(limits))
    try:
        yield current_budget()
    finally:
        _current.reset(token)


@cache
def machine_memory() -> int:
    """Returns the bytes of memory that this process may use: of the machine or its container."""
    sizes = [_physical_memory(), *map(_container_memory, _CGROUPS)]
    return min(n for n in sizes if n)


def _physical_memory() -> int:
    if sys.platform == "win32":
        return _windows_memory()
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _ASSUMED_BYTES


def _windows_memory() -> int:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            *((name, ctypes.c_uint64) for name in ("total", "free", "a", "b", "c", "d", "e")),
        )

    status = Status()
    status.length = ctypes.sizeof(status)
    windll = getattr(ctypes, "windll")  # noqa: B009  # only there on Windows
    if not windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return _ASSUMED_BYTES
    return int(status.total)


def _container_memory(file: str) -> int:
    """Returns the memory limit in bytes from a control group's file; 0 if there is none."""
    try:
        text = Path(file).read_text().strip()
    except (OSError, ValueError):
        return 0
    return int(text) if text.isdigit() else 0
