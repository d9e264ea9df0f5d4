"""The texture formats that become tensors, and that tensors are copied into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cml_engine.errors import InputError

#: how a texel's numbers are stored; the numbers are those of ``textures/pack.hlsl``
Encoding = Literal["unorm8", "float16", "float32"]


@dataclass(frozen=True, slots=True)
class TextureFormat:
    """``order`` are its channels as they lie in memory; ``srgb``: a shader reads colours decoded,
    in linear light; ``depth``: it is read only."""

    name: str
    order: str
    encoding: Encoding
    srgb: bool = False
    depth: bool = False

    @property
    def channels(self) -> str:
        """What a shader can read of it."""
        return "".join(channel for channel in "rgba" if channel in self.order)

    @property
    def texel_bytes(self) -> int:
        return len(self.order) * {"unorm8": 1, "float16": 2, "float32": 4}[self.encoding]


FORMATS = {
    known.name: known
    for known in (
        TextureFormat("rgba8unorm", "rgba", "unorm8"),
        TextureFormat("rgba8unorm-srgb", "rgba", "unorm8", srgb=True),
        TextureFormat("bgra8unorm", "bgra", "unorm8"),
        TextureFormat("bgra8unorm-srgb", "bgra", "unorm8", srgb=True),
        TextureFormat("rgba16float", "rgba", "float16"),
        TextureFormat("r32float", "r", "float32"),
        TextureFormat("rg32float", "rg", "float32"),
        TextureFormat("rgba32float", "rgba", "float32"),
        TextureFormat("depth32float", "r", "float32", depth=True),
    )
}


def known_format(name: str, what: str, *, written: bool = False) -> TextureFormat:
    """The format of that name; :class:`InputError` where it is none of ours, or is to be
    ``written`` and cannot be."""
    usable = [known for known, found in FORMATS.items() if not (written and found.depth)]
    if name not in usable:
        hint = " (depth is read only)" if name in FORMATS else ""
        raise InputError(
            f"{what}: a texture in {name} cannot be taken{hint}; wanted {', '.join(usable)}"
        )
    return FORMATS[name]
