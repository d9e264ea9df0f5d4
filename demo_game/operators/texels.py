"""The operator ``pack_bytes(channels)``: four channels as texels of an ``rgba8unorm`` texture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml

Array = np.ndarray[Any, Any]


def _infer(attrs: cml.Attrs, channels: cml.Fact) -> cml.Fact:
    if channels.rank != 4 or channels.shape[:2] != (1, 4):
        raise cml.ModelError(f"wanted four channels, [1, 4, height, width], got {channels}")
    return cml.Fact("integer", (1, 1, *channels.shape[2:]))


def _cpu(attrs: cml.Attrs, channels: Array) -> Array:
    clamped = np.clip(channels, 0, 1).astype(np.float32)
    levels = (clamped * np.float32(255) + np.float32(0.5)).astype(np.uint32)
    word = levels[:, 0] | levels[:, 1] << 8 | levels[:, 2] << 16 | levels[:, 3] << 24
    return np.asarray(word.astype(np.uint32).view(np.int32)[:, None])


def _threads(attrs: cml.Attrs, channels: cml.Fact) -> int:
    return channels.size // 4


_STEPS = np.linspace(-0.1, 1.1, 4 * 16 * 16, dtype=np.float32).reshape(1, 4, 16, 16)
PACK_BYTES = cml.register(
    cml.OpSpec(
        name="pack_bytes",
        signature="fragment pack_bytes(channels: tensor<scalar>) -> (words: tensor<integer>);",
        doc="Four channels of 0 to 1 as the texels of an rgba8unorm texture.",
        infer=_infer,
        cpu=_cpu,
        kernel=cml.Kernel(
            Path(__file__).with_name("pack_bytes.hlsl"), threads=_threads, trusted=True
        ),
        cases=[
            cml.Case((_STEPS,), {}, "beyond both ends"),
            cml.Case(((1, 4, 3, 5),)),
            cml.Case((np.full((1, 4, 1, 1), 1.0),), {}, "the sign bit"),
            cml.Case((np.zeros((1, 4, 0, 8)),), {}, "nothing"),
        ],
        tolerance=cml.Tolerance(0, 0, "rounds to bytes"),
    )
)
