"""Binds a tensor that is larger than a device's largest binding as several consecutive ranges.

A kernel reads and writes such a tensor as any other, ``a[i]``: the code that finds the range of
an index is generated. Workgroups, arithmetic and results stay the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: the most parts that a caller may request
MOST_PARTS = 8
#: the numbers of parts as a caller writes them
COUNTS = tuple(str(count) for count in range(1, MOST_PARTS + 1))
#: the first binding of tensors; before it are the slice and the parameters
FIRST_BINDING = 2


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

    def ranges(self, tensor_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields the offset and the size in bytes of each part of a tensor of ``tensor_bytes``
        bytes."""
        for start in range(0, tensor_bytes, self.nbytes):
            yield start, min(self.nbytes, tensor_bytes - start)


def declaration(
    name: str,
    stored_type: str,
    binding: int,
    count: int,
    nbytes: int,
    element: str = "",
    memory: str = "",
    writable: bool = True,
) -> list[str]:
    """Returns the lines of HLSL that declare a tensor in ``count`` parts of ``nbytes`` bytes.

    ``stored_type`` is the HLSL type of an element in memory, ``element`` its type in the kernel if
    that differs, ``binding`` the number of the first part. ``memory`` is another tensor of one
    part, declared before, whose elements are also this tensor's; then nothing is bound. Without
    ``writable`` an assignment to an element does not compile.
    """
    element = element or stored_type
    if count == 1 and element == stored_type and writable:
        return [f"[[vk::binding({binding})]] RWStructuredBuffer<{stored_type}> {name};"]
    ranges = [memory] if memory else [f"{name}_part{k}" for k in range(count)]
    # one part's code does not contain its size, so that other shapes share the pipeline
    each = f"const uint each = {nbytes}u / sizeof({stored_type});" if len(ranges) > 1 else ""
    writes = _select_range(ranges, "{part}[{at}] = newValue;")
    # no return inside: where it is inlined in a loop naga would misread it (gpu/shaders/hlsl.py)
    return [
        *(
            f"[[vk::binding({binding + k})]] RWStructuredBuffer<{stored_type}> {part};"
            for k, part in enumerate(ranges if not memory else ())
        ),
        f"struct {name}_in_parts {{",
        f"    __subscript(uint i) -> {element} {{",
        f"        get {{ {each} {element} found; "
        f"{_select_range(ranges, 'found = {part}[{at}];')} return found; }}",
        *([f"        set {{ {each} {writes} }}"] if writable else ()),
        "    }",
        "};",
        f"static {name}_in_parts {name};",
    ]


def _select_range(ranges: list[str], statement: str) -> str:
    """Returns HLSL that applies the statement ``statement`` to the range that contains the index
    ``i``."""
    cases = []
    for k, part in enumerate(ranges):
        at = f"i - {k}u * each" if k else "i"
        body = f"{{ {statement.format(part=part, at=at)} }}"
        cases.append(f"if (i < {k + 1}u * each) {body}" if k + 1 < len(ranges) else body)
    return " else ".join(cases)
