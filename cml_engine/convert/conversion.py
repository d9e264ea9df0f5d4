"""One conversion on its way: which tensor each of ncnn's blobs is."""

from __future__ import annotations

from dataclasses import dataclass, field

from cml_engine.convert.builder import GraphBuilder
from cml_engine.convert.ncnn_files import Layer, WeightReader
from cml_engine.graph import Graph

#: ncnn's "not given".
MISSING = -233


@dataclass
class Conversion:
    """The graph so far: which tensor a blob is, and how many axes it has."""

    builder: GraphBuilder
    weights: WeightReader
    shape: tuple[int, ...] | None
    _blobs: dict[str, str] = field(default_factory=dict)
    _ranks: dict[str, int] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    def blob(self, name: str, layer: Layer) -> str:
        """The tensor of a layer's input."""
        if name not in self._blobs:
            raise layer.damaged(f"its input '{name}' comes from no layer before it")
        self._used.add(name)
        return self._blobs[name]

    def put(self, layer: Layer, *tensors: str, rank: int | None = None) -> None:
        """The tensors that a layer's outputs are."""
        if len(tensors) != len(layer.outputs):
            raise layer.damaged(f"it has {len(layer.outputs)} outputs, wanted {len(tensors)}")
        if rank is None:
            rank = self._ranks[layer.inputs[0]] if layer.inputs else 4
        for name, tensor in zip(layer.outputs, tensors, strict=True):
            if name in self._blobs:
                raise layer.damaged(f"blob '{name}' is made twice")
            self._blobs[name] = tensor
            self._ranks[name] = rank

    def rank(self, layer: Layer) -> int:
        return self._ranks[layer.inputs[0]]

    def graph(self, name: str) -> Graph:
        outputs = [t for blob, t in self._blobs.items() if blob not in self._used]
        return self.builder.graph(name, outputs)

    def axis(self, axis: int, layer: Layer) -> int:
        """NNEF's number of an axis: ncnn counts without the batch."""
        rank = self.rank(layer)
        found = rank + axis if axis < 0 else axis + 1
        if not 1 <= found < rank:
            raise layer.damaged(f"axis {axis} of {rank - 1}")
        return found

    def flattened(self, x: str, wanted: str) -> str:
        """All axes but the batch as one."""
        return self.builder.node("reshape", [x], wanted, shape=[-1], axis_start=1)


def pair(layer: Layer, width: int, height: int) -> list[int]:
    """A (height, width) of which ncnn may give the width alone."""
    across = layer.whole(width, 1)
    return [layer.whole(height, across), across]
