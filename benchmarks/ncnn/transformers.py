"""Writes transformer blocks with random weights as ncnn's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.ncnn.model import Array, NcnnParts, flagged, plain

_EPSILON = 1e-5
#: added to the scores of later tokens (the causal mask)
_NEVER = -1e4


@dataclass(frozen=True)
class Transformer:
    """Transformer blocks: layer norm, attention, layer norm, two matrices with GELU between.

    Attention and matrices each have a residual (Vaswani et al., 2017); the norms come first, as
    in ViT and GPT-2.
    """

    tokens: int
    width: int
    heads: int
    causal: bool = False
    blocks: int = 2

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the input ``data`` and of the output."""
        return (1, self.tokens, self.width)

    def write(self, param: Path, weights: Path) -> None:
        """Writes the blocks with random weights as ncnn's .param and .bin."""
        writer = _Writer(self)
        x = "data"
        for block in range(self.blocks):
            x = writer.block(x, f"b{block}")
        writer.parts.save(param, weights)


#: a tiny ViT (Touvron et al., 2021, DeiT-Ti): 14 x 14 patches and a class
VIT = Transformer(197, 192, 3)
#: a small GPT
GPT = Transformer(128, 256, 8, causal=True)


class _Writer:
    def __init__(self, net: Transformer) -> None:
        self.net, self.parts, self.random = net, NcnnParts(), np.random.default_rng(1)
        self.parts.input("data", net.shape)
        self.mask: tuple[str, ...] = ()
        if net.causal:
            mask = np.triu(np.full((1, net.tokens, net.tokens), _NEVER, np.float32), 1)
            self.mask = (self.parts.constant("mask", mask),)

    def block(self, x: str, name: str) -> str:
        width = self.net.width
        mixed = self.attention(self.norm(x, f"{name}_n1"), f"{name}_a")
        x = self.parts.layer("BinaryOp", [x, mixed], f"{name}_r1", "0=0")
        wide = self.rows(self.norm(x, f"{name}_n2"), f"{name}_w", width, 4 * width)
        wide = self.parts.layer("GELU", [wide], f"{name}_g", "0=0")
        narrow = self.rows(wide, f"{name}_v", 4 * width, width)
        return self.parts.layer("BinaryOp", [x, narrow], f"{name}_r2", "0=0")

    def norm(self, x: str, name: str) -> str:
        width = self.net.width
        scale, offset = 1 + self.values(width, 0.1), self.values(width, 0.1)
        numbers = f"0={width} 1={_EPSILON} 2=1"
        return self.parts.layer("LayerNorm", [x], name, numbers, stored=plain(scale, offset))

    def attention(self, x: str, name: str) -> str:
        width, masked = self.net.width, int(self.net.causal)
        numbers = f"0={width} 1={self.net.heads} 2={width * width} 3={width} 4={width} 5={masked}"
        stored = b"".join(
            flagged(self.values(width * width, width**-0.5)) + plain(self.values(width, 0.1))
            for _ in range(4)
        )
        return self.parts.layer("MultiHeadAttention", [x, *self.mask], name, numbers, stored=stored)

    def rows(self, x: str, name: str, taken: int, made: int) -> str:
        filter = self.values(taken * made, taken**-0.5)
        numbers = f"0={made} 1=1 2={taken * made}"
        return self.parts.layer("InnerProduct", [x], name, numbers, filter, self.values(made, 0.1))

    def values(self, count: int, deviation: float) -> Array:
        found: Array = self.random.standard_normal(count).astype(np.float32)
        return found * np.float32(deviation)
