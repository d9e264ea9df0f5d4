"""The state of one ncnn conversion: the graph under construction and the tensor of each blob."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.ncnn.layer_types import LayerType
from cml_engine.formats.ncnn.param import NcnnLayer
from cml_engine.formats.ncnn.weight_reader import WeightReader
from cml_engine.ir.graph import Array, Fact, Graph


@dataclass
class Conversion:
    """The conversion of one ncnn model to a graph; layer functions add operators and weights to it.

    ncnn has no batch axis: its (channels, height, width) becomes NNEF's (1, channels, height,
    width), and axis numbers grow by one. ``shapes`` are the shapes of the inputs. Tensors are
    given by name.
    """

    builder: ImportBuilder
    weights: WeightReader
    shapes: Mapping[str, tuple[int, ...]]
    _layer: NcnnLayer = field(init=False)
    _blobs: dict[str, str] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    # -- for layers -----------------------------------------------------------------------------

    def op(self, op: str, *operands: str | float, **attrs: Any) -> str:
        """Adds an operator with one result and returns the result's name.

        Numbers among the operands become literals.
        """
        return self.ops(op, 1, *operands, **attrs)[0]

    def ops(self, op: str, count: int, *operands: str | float, **attrs: Any) -> list[str]:
        """Adds an operator with ``count`` results and returns their names."""
        inputs = [x if isinstance(x, str) else self.builder.literal(x) for x in operands]
        wanted = [f"{self._base}_{op}"] * count
        return self.builder.split_node(op, inputs, wanted, **attrs)

    def weight(self, values: Array, what: str, dtype: str = "scalar") -> str:
        """Adds a constant that is saved in a file named after the layer and ``what``.

        Returns its name.
        """
        return self.builder.variable(f"{self._layer.name}_{what}", values, dtype)

    def raw(self, count: int, what: str, unit: int = 1) -> str:
        """Reads the next ``count`` weights of the ``.bin``, which have no flag, as a constant.

        Returns its name. Its shape is (1, ``count``) followed by ``unit - 1`` axes of 1.
        """
        values = self.weights.raw(count, self._layer)
        return self.weight(values.reshape(1, -1, *[1] * (unit - 1)), what)

    def extents(self, x: str) -> tuple[int, ...]:
        """Returns ncnn's shape of a tensor: NNEF's shape without the batch."""
        return self.builder.facts[x].shape[1:]

    def axis(self, x: str, axis: int) -> int:
        """Returns NNEF's number of an axis that ncnn counts without the batch.

        A negative number counts from the end.
        """
        rank = len(self.extents(x))
        if not -rank <= axis < rank:
            raise self._layer.damaged_error(f"axis {axis} of {rank}")
        return axis % rank + 1

    def reshape(self, x: str, extents: Sequence[int]) -> str:
        """Reshapes all axes but the batch to ``extents`` and returns the result's name."""
        if tuple(extents) == self.extents(x):
            return x
        return self.op("reshape", x, shape=list(extents), axis_start=1)

    def split(self, x: str, axis: int, parts: Sequence[int]) -> str:
        """Splits an axis into axes with the extents ``parts``, one of which may be -1.

        The axis is in NNEF's numbering. Returns the result's name.
        """
        return self.op("reshape", x, shape=list(parts), axis_start=axis, axis_count=1)

    def merge(self, x: str, axis: int, count: int) -> str:
        """Merges ``count`` axes from ``axis`` on into one and returns the result's name.

        The axis is in NNEF's numbering.
        """
        return self.op("reshape", x, shape=[-1], axis_start=axis, axis_count=count)

    def permute(self, x: str, order: Sequence[int]) -> str:
        """Permutes the axes to ``order``, which numbers them without the batch.

        Returns the result's name.
        """
        return self.op("transpose", x, axes=[0, *(axis + 1 for axis in order)])

    # -- for the conversion ---------------------------------------------------------------------

    def add_input(self, blob: str, layer: NcnnLayer | None) -> None:
        """Adds an input of the network for a blob.

        ``layer`` is the blob's ``Input`` layer, if it has one.
        """
        self.builder.source = layer.source if layer else None
        if layer is not None and blob in self._blobs:
            raise layer.damaged_error(f"blob '{blob}' is made twice")
        fact = Fact("scalar", tuple(self.shapes[blob]))
        self._blobs[blob] = self.builder.exact_input(blob, fact)

    def convert(self, layer: NcnnLayer, kind: LayerType) -> None:
        """Adds the operators of one layer and binds the layer's output blobs to the results."""
        self._layer = layer
        self.builder.source = layer.source
        inputs = [self._blob(name) for name in layer.inputs]
        first = len(self.builder.nodes)
        result = kind.convert(layer, self, *inputs)
        self._put([result] if isinstance(result, str) else list(result), first)

    def graph(self, name: str) -> Graph:
        """Returns the finished graph; its outputs are the blobs that no layer reads."""
        builder, outputs = self.builder, list[str]()
        for blob in [b for b in self._blobs if b not in self._used]:
            tensor = self._blobs[blob]
            if any(tensor in names for names in (builder.inputs, builder.constants, outputs)):
                # NNEF names a tensor once among inputs and outputs
                outputs.append(builder.node("copy", [tensor], blob))
            else:
                outputs.append(builder.rename(tensor, blob))
                for other in [b for b, t in self._blobs.items() if t == tensor]:
                    self._blobs[other] = outputs[-1]
        return self.builder.graph(name, outputs)

    @property
    def _base(self) -> str:
        return self._layer.outputs[0] if self._layer.outputs else self._layer.name

    def _blob(self, name: str) -> str:
        if name not in self._blobs:
            raise self._layer.damaged_error(f"its input '{name}' comes from no layer before it")
        self._used.add(name)
        return self._blobs[name]

    def _put(self, tensors: list[str], first: int) -> None:
        """Binds the layer's output blobs to ``tensors``, in order.

        A tensor that a node from index ``first`` on computes is renamed to its blob.
        """
        layer = self._layer
        if len(tensors) != len(layer.outputs):
            raise layer.damaged_error(f"it has {len(layer.outputs)} outputs, wanted {len(tensors)}")
        made = {name for node in self.builder.nodes[first:] for name in node.outputs}
        named: dict[str, str] = {}  # one tensor may be two outputs
        for name, tensor in zip(layer.outputs, tensors, strict=True):
            if name in self._blobs:
                raise layer.damaged_error(f"blob '{name}' is made twice")
            if tensor in made and tensor not in named:
                named[tensor] = self.builder.rename(tensor, name, first)
            self._blobs[name] = named.get(tensor, tensor)
