"""Small models in ncnn's files, and ncnn's own run of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FLOAT32 = struct.pack("<I", 0)
FLOAT16 = struct.pack("<I", 0x01306B47)
_KEYS = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}


def input_line(name: str, shape: Sequence[int]) -> str:
    """An ``Input`` of that shape, outermost first and without a batch."""
    sizes = " ".join(f"{key}={n}" for key, n in zip(_KEYS[len(shape)], shape, strict=True))
    return f"Input {name} 0 1 {name} {sizes}"


def param_text(lines: Sequence[str]) -> str:
    """A ``.param``; the number of blobs may be too large."""
    return f"7767517\n{len(lines)} 99\n" + "\n".join(lines) + "\n"


def weight_bytes(spec: str, rng: np.random.Generator) -> bytes:
    """``"f72 r2 p4"``: 72 with a flag, 2 without, 4 positive ones; ``h`` is 16 bits with a flag."""
    found = b""
    for word in spec.split():
        values = rng.standard_normal(int(word[1:])).astype("<f4")
        if word[0] == "p":
            values = np.abs(values) + np.float32(0.5)
        if word[0] == "h":
            data = values.astype("<f2").tobytes()
            found += FLOAT16 + data + bytes(-len(data) % 4)
        else:
            found += (FLOAT32 if word[0] == "f" else b"") + values.tobytes()
    return found


def write(folder: Path, lines: Sequence[str], weights: bytes = b"") -> Path:
    """The two files; returns the ``.param``."""
    path = folder / "m.param"
    path.write_text(param_text(lines), encoding="utf-8")
    path.with_suffix(".bin").write_bytes(weights)
    return path


def run_ncnn(path: Path, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
    """ncnn's results, in single precision and by its plain algorithms; inputs have no batch."""
    import ncnn

    net = ncnn.Net()
    for name in ("vulkan_compute", "fp16_packed", "fp16_storage", "fp16_arithmetic",
                 "bf16_storage", "winograd_convolution", "int8_inference"):  # fmt: skip
        setattr(net.opt, f"use_{name}", False)
    net.opt.num_threads = 1
    assert net.load_param(str(path)) == 0, "ncnn cannot read the .param"
    assert net.load_model(str(path.with_suffix(".bin"))) == 0, "ncnn cannot read the .bin"
    extractor = net.create_extractor()
    # clones, for layers that write over their input crash where NumPy has the memory
    kept = [ncnn.Mat(np.ascontiguousarray(value)).clone() for value in inputs.values()]
    for name, mat in zip(inputs, kept, strict=True):
        extractor.input(name, mat)
    found = []
    for name in outputs:
        code, mat = extractor.extract(name)
        assert code == 0, f"ncnn cannot compute '{name}': {code}"
        found.append(np.array(mat))
    return found
