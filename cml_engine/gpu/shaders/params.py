"""The parameters of a kernel: declared as text, packed here, read in HLSL by generated accessors.

``"n:u shape:u8 alpha:f"`` declares a uint, an array of eight uints and a float. All of them are
32-bit words in one uniform block, in the declared order without gaps, so that the packing rules of
different APIs do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

_HLSL_READ = {"u": "{word}", "i": "asint({word})", "f": "asfloat({word})"}
_NUMPY = {"u": np.dtype(np.uint32), "i": np.dtype(np.int32), "f": np.dtype(np.float32)}
_FIELD = re.compile(r"^(\w+):([uif])(\d*)$")


@dataclass(frozen=True, slots=True)
class ParamField:
    name: str
    kind: str
    offset: int
    length: int | None

    @property
    def words(self) -> int:
        return 1 if self.length is None else self.length


@dataclass(frozen=True)
class ParamBlock:
    """The layout of one kernel's parameters: its fields in order, and the size in 32-bit words."""

    fields: tuple[ParamField, ...]
    words: int

    @property
    def vectors(self) -> int:
        """The size in ``uint4``; at least 1, because an empty uniform block is not legal."""
        return max(1, -(-self.words // 4))

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """Returns the uniform block's bytes for these values; pads short arrays with zeros.

        Raises ``ValueError`` if a value is missing, undeclared or too long.
        """
        block = np.zeros(4 * self.vectors, np.uint32)
        if unknown := set(values) - {f.name for f in self.fields}:
            raise ValueError(f"parameters {sorted(unknown)} are not declared by the kernel")
        for field in self.fields:
            if field.name not in values:
                raise ValueError(f"parameter '{field.name}' has no value")
            given = np.atleast_1d(np.asarray(values[field.name]))
            if given.size > field.words or (field.length is None and given.size != 1):
                raise ValueError(
                    f"parameter '{field.name}' holds {field.words} words, got {given.size}"
                )
            given = given.astype(_NUMPY[field.kind])
            block[field.offset : field.offset + given.size] = given.view(np.uint32)
        return block.tobytes()

    def hlsl(self) -> str:
        """Returns HLSL text with an accessor per field: ``alpha``, or ``shape(i)`` of an array."""
        lines = [f"[[vk::binding(1)]] cbuffer CmlParams {{ uint4 cml_params[{self.vectors}]; }};"]
        for f in self.fields:
            at = f"{f.offset}" if f.length is None else f"(uint(i)+{f.offset}u)"
            name = f.name if f.length is None else f"{f.name}(i)"
            if f.length is None:
                word = f"cml_params[{f.offset // 4}][{f.offset % 4}]"
            else:
                word = f"cml_params[{at}>>2u][{at}&3u]"
            lines.append(f"#define {name} {_HLSL_READ[f.kind].format(word=word)}")
        return "\n".join(lines)


@lru_cache
def parse_params(declaration: str) -> ParamBlock:
    """Returns the layout that a declaration such as ``"n:u shape:u8"`` describes."""
    fields = []
    offset = 0
    for word in declaration.split():
        match = _FIELD.match(word)
        if match is None:
            raise ValueError(f"parameter '{word}' is not of the form name:u, name:i3 or name:f")
        name, kind, length = match.groups()
        fields.append(ParamField(name, kind, offset, int(length) if length else None))
        offset += fields[-1].words
    return ParamBlock(tuple(fields), offset)
