"""A network of the bench as ncnn's .param (text) and .bin (weights)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.layers import Layer, Network

_MAGIC = 7767517
_TYPES = {
    "max_pool": "Pooling", "upsample": "Interp", "add": "BinaryOp", "concat": "Concat",
    "mean": "Pooling", "linear": "InnerProduct",
}  # fmt: skip
#: numbers of the activations that ncnn applies within a convolution
_ACTIVATIONS = {"": "", "relu": "9=1", "relu6": "9=3 -23310=2,0.0,6.0"}


def write_ncnn(network: Network, param: Path, weights: Path) -> None:
    """Both files. A tensor that is read more than once is split, as ncnn wants it."""
    readers = Counter(name for layer in network.layers for name in layer.inputs)
    given = dict.fromkeys(readers, 0)
    _, channels, height, width = network.shape
    lines = [f"Input data 0 1 data 0={width} 1={height} 2={channels}"]
    lines += list(_split("data", readers["data"]))
    for layer in network.layers:
        names = [_reader(name, readers[name], given) for name in layer.inputs]
        lines.append(
            f"{_type(layer)} {layer.output} {len(names)} 1 {' '.join(names)} {layer.output} "
            f"{_numbers(layer)}".rstrip()
        )
        lines += list(_split(layer.output, readers[layer.output]))
    tensors = sum(int(line.split()[3]) for line in lines)
    head = f"{_MAGIC}\n{len(lines)} {tensors}\n"
    param.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    weights.write_bytes(b"".join(_weights(layer) for layer in network.layers))


def _split(name: str, count: int) -> Iterator[str]:
    if count > 1:
        copies = " ".join(f"{name}_{i}" for i in range(count))
        yield f"Split split_{name} 1 {count} {name} {copies}"


def _reader(name: str, count: int, given: dict[str, int]) -> str:
    """The tensor's name for its next reader."""
    if count == 1:
        return name
    given[name] += 1
    return f"{name}_{given[name] - 1}"


def _type(layer: Layer) -> str:
    if layer.kind == "conv":
        return "Convolution" if layer.numbers["groups"] == 1 else "ConvolutionDepthWise"
    return _TYPES[layer.kind]


def _numbers(layer: Layer) -> str:
    if layer.kind == "conv" and layer.filter is not None:
        n = layer.numbers
        groups = f"7={n['groups']} " if n["groups"] > 1 else ""
        return (
            f"0={len(layer.filter)} 1={n['kernel']} 3={n['stride']} 4={n['pad']} 5=1 "
            f"6={layer.filter.size} {groups}{_ACTIVATIONS[layer.activation]}"
        )
    if layer.kind == "linear" and layer.filter is not None:
        return f"0={len(layer.filter)} 1=1 2={layer.filter.size}"
    return {
        "max_pool": "0=0 1=2 2=2 5=1", "upsample": "0=1 1=2.0 2=2.0", "add": "0=0",
        "concat": "0=0", "mean": "0=1 4=1",
    }[layer.kind]  # fmt: skip


def _weights(layer: Layer) -> bytes:
    """32-bit floats behind a flag that says so, then the bias without one."""
    if layer.filter is None or layer.bias is None:
        return b""
    return np.uint32(0).tobytes() + layer.filter.tobytes() + layer.bias.tobytes()
