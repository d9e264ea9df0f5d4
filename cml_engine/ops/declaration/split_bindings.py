"""Binds a tensor that is larger than a device's largest binding as several consecutive ranges.

A kernel reads and writes such a tensor as any other, ``a[i]``: the code that finds the range of
an index is generated. Workgroups, arithmetic and results stay the same, bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from cml_engine.errors import DeviceError, InputError
from cml_engine.ir.graph import Node
from cml_engine.ir.limits import Limits

#: the most parts that a caller may request
MOST_PARTS = 8
#: the numbers of parts as a caller writes them
COUNTS = tuple(str(count) for count in range(1, MOST_PARTS + 1))
#: the first binding of tensors; before it are the slice and the parameters
FIRST_BINDING = 2
_ATOMIC = re.compile(r"\bInterlocked\w+\s*\(\s*(\w+)\s*\[")


@dataclass(frozen=True, slots=True)
class SplitBinding:
    """A tensor that is bound as ``count`` ranges of ``nbytes``; the last range may be shorter.

    ``total`` is the tensor's size in bytes, ``limit`` the largest binding of the device.
    """

    count: int
    nbytes: int
    total: int
    limit: int

    @property
    def options(self) -> tuple[str, ...]:
        """The numbers of parts that the caller may request, as texts in rising order."""
        fewest = -(-self.total // self.limit)
        return tuple(str(count) for count in range(fewest, max(self.count, MOST_PARTS) + 1))

    def ranges(self, room: int) -> Iterator[tuple[int, int]]:
        """Yields the offset and the size in bytes of each part of a tensor of ``room`` bytes."""
        for start in range(0, room, self.nbytes):
            yield start, min(self.nbytes, room - start)


class Binder(Protocol):
    """A node whose tensors are bound; :class:`Lowering` implements it."""

    node: Node
    limits: Limits
    requested_parts: Mapping[str, str]

    def nbytes(self, name: str) -> int: ...


def split_binding(op: Binder, name: str) -> SplitBinding:
    """Returns the parts in which the tensor ``name`` is bound: as few as possible, or as requested.

    Raises :class:`InputError` if the device cannot bind it in the requested number of parts.
    """
    nbytes, limit, asked = op.nbytes(name), op.limits.max_binding_bytes, op.requested_parts
    align = max(op.limits.storage_offset_alignment, 16)  # a binding begins there, between elements
    longest = max(limit // align, 1) * align
    fewest = 1 if nbytes <= limit else -(-nbytes // longest)
    if name not in asked:
        return SplitBinding(fewest, nbytes if fewest == 1 else longest, nbytes, limit)
    count = int(asked[name])
    each = -(-nbytes // (count * align)) * align
    if count < fewest:
        raise InputError(
            f"decide: '{name}' cannot be bound in {count} parts: it takes {nbytes} bytes, and this "
            f"device binds at most {limit} at once: {fewest} parts or more"
        )
    if count > 1 and -(-nbytes // each) != count:
        raise InputError(
            f"decide: '{name}' cannot be bound in {count} parts: it takes {nbytes} bytes, and each "
            f"part begins at a multiple of {align}: {-(-nbytes // align)} parts or fewer"
        )
    return SplitBinding(count, nbytes if count == 1 else each, nbytes, limit)


def declaration(name: str, kind: str, binding: int, count: int, nbytes: int) -> list[str]:
    """Returns the lines of HLSL that declare a tensor in ``count`` parts of ``nbytes`` bytes.

    ``kind`` is the HLSL type of an element, ``binding`` the number of the first part.
    """
    if count == 1:
        return [f"[[vk::binding({binding})]] RWStructuredBuffer<{kind}> {name};"]
    ranges = [f"{name}_part{k}" for k in range(count)]
    # no return inside: where it is inlined in a loop naga would misread it (gpu/shaders/hlsl.py)
    return [
        *(
            f"[[vk::binding({binding + k})]] RWStructuredBuffer<{kind}> {part};"
            for k, part in enumerate(ranges)
        ),
        f"struct {name}_in_parts {{",
        f"    __subscript(uint i) -> {kind} {{",
        f"        get {{ const uint each = {nbytes}u / sizeof({kind}); {kind} found; "
        f"{_each(ranges, 'found = {part}[{at}];')} return found; }}",
        f"        set {{ const uint each = {nbytes}u / sizeof({kind}); "
        f"{_each(ranges, '{part}[{at}] = newValue;')} }}",
        "    }",
        "};",
        f"static {name}_in_parts {name};",
    ]


def _each(ranges: list[str], do: str) -> str:
    """Returns HLSL that applies the statement ``do`` to the range that contains the index ``i``."""
    cases = []
    for k, part in enumerate(ranges):
        at = f"i - {k}u * each" if k else "i"
        body = f"{{ {do.format(part=part, at=at)} }}"
        cases.append(f"if (i < {k + 1}u * each) {body}" if k + 1 < len(ranges) else body)
    return " else ".join(cases)


def check_atomics(op: Binder, source: str, hlsl: str, name: str) -> None:
    """Raises :class:`DeviceError` if the kernel uses atomic operations on ``hlsl``.

    ``hlsl`` is the tensor's name in the shader. A tensor with atomic operations cannot be bound
    in parts.
    """
    if hlsl in _ATOMIC.findall(source):
        raise DeviceError(
            f"{op.node.title}: '{name}' cannot be bound in parts: the kernel changes it by atomic "
            f"operations. It takes {op.nbytes(name)} bytes, this device binds at most "
            f"{op.limits.max_binding_bytes} at once. Use a smaller input or another device.",
            op.node.source,
        )
