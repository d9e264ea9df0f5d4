"""Writes a network of the bench as ncnn's .param (text) and .bin (weights)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.layers import LayeredNetwork, NetworkLayer
from benchmarks.ncnn.model import NcnnParts

_TYPES = {
    "max_pool": "Pooling", "upsample": "Interp", "add": "BinaryOp", "concat": "Concat",
    "mean": "Pooling", "linear": "InnerProduct",
}  # fmt: skip
#: ncnn's numbers of the activations that are fused into a convolution
_ACTIVATIONS = {"": "", "relu": "9=1", "relu6": "9=3 -23310=2,0.0,6.0"}


def write_ncnn(network: LayeredNetwork, param: Path, weights: Path) -> None:
    """Writes the network as ncnn's .param to ``param`` and .bin to ``weights``."""
    parts = NcnnParts()
    parts.input("data", network.shape)
    for layer in network.layers:
        parts.layer(
            _type(layer), layer.inputs, layer.output, _numbers(layer), layer.filter, layer.bias
        )
    parts.save(param, weights)


def _type(layer: NetworkLayer) -> str:
    if layer.kind == "conv":
        return "Convolution" if layer.numbers["groups"] == 1 else "ConvolutionDepthWise"
    return _TYPES[layer.kind]


def _numbers(layer: NetworkLayer) -> str:
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
