"""The conversion of one ncnn layer to operators, and the table of ncnn's layer types.

A function under :func:`converts` gets the :class:`NcnnLayer` and its input tensors, and returns the
tensors of its outputs. ncnn has no batch axis: its (channels, height, width) becomes NNEF's (1,
channels, height, width), and axis numbers grow by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.expression import TensorExpression
from cml_engine.formats.ncnn.expressions import FormulaError, evaluate_sizes
from cml_engine.formats.ncnn.files import FORMULA, LayerLine, WeightReader
from cml_engine.ir.graph import Array

#: ``convert(layer, *inputs)`` returns the tensor of the layer's output, or a list of tensors.
Convert: TypeAlias = "Callable[..., NcnnTensor | list[NcnnTensor]]"

#: The parameters that may be text: formulas of shapes, sizes, positions and tensors.
FORMULAS = frozenset((6, 9, 19, 20, 21, FORMULA))

#: ncnn's letters of a tensor's axes, outermost first, by their number.
AXES = {1: "W", 2: "HW", 3: "CHW", 4: "CDHW"}

ANY = 10_000

#: The type of the layers in which pnnx leaves formulas that ncnn has no layer for.
EXPRESSION = "pnnx.Expression"


@dataclass(frozen=True)
class NcnnLayer(LayerLine):
    """A layer that is being converted; its methods add operators and weights to the graph."""

    builder: ImportBuilder
    weights: WeightReader

    def op(self, op: str, *operands: NcnnTensor | float, **attrs: object) -> NcnnTensor:
        """Adds an operator with one result and returns the result.

        Numbers among the operands become literals.
        """
        return self.ops(op, 1, *operands, **attrs)[0]

    def ops(
        self, op: str, count: int, *operands: NcnnTensor | float, **attrs: Any
    ) -> list[NcnnTensor]:
        """Adds an operator with ``count`` results and returns them."""
        inputs = [
            x.name if isinstance(x, NcnnTensor) else self.builder.literal(x) for x in operands
        ]
        base = self.outputs[0] if self.outputs else self.name
        names = self.builder.split_node(op, inputs, [f"{base}_{op}"] * count, **attrs)
        return [NcnnTensor(name, self) for name in names]

    def compound(
        self, op: str, *operands: NcnnTensor, is_list: bool = False, **attrs: Any
    ) -> NcnnTensor:
        """Adds the operators of a compound operator and returns its only result.

        With ``is_list`` its first operand is the list of all ``operands``.
        """
        names = [x.name for x in operands]
        graph = self.builder.expand(op, names, attrs, is_list)
        return NcnnTensor(self.builder.splice(graph, names, f"{self.outputs[0]}_{op}")[0], self)

    def sizes(self, key: int, *inputs: NcnnTensor) -> list[int]:
        """Returns the numbers that the formulas of parameter ``key`` give for these inputs."""
        shapes = []
        for x in inputs:
            extents = dict(zip(AXES[len(x.extents)].lower(), x.extents, strict=True))
            shapes.append({"n": 1, "w": 1, "h": 1, "d": 1, "c": 1, **extents})
        try:
            return evaluate_sizes(self.text(key), shapes)
        except FormulaError as error:
            raise self.damaged_error(str(error)) from None

    def constant(self, values: Array, suffix: str, dtype: str = "scalar") -> NcnnTensor:
        """Adds a constant that is saved in a file named after the layer and ``suffix``."""
        return NcnnTensor(self.builder.variable(f"{self.name}_{suffix}", values, dtype), self)

    def array(self, *shape: int) -> Array:
        """Reads the next weights of the ``.bin``, stored as the flag before them says."""
        return self.weights.flagged(prod(shape), self).reshape(shape)

    def weight(self, suffix: str, *shape: int) -> NcnnTensor:
        """Reads the next weights of the ``.bin``, which have a flag, as a constant."""
        return self.constant(self.array(*shape), suffix)

    def raw(self, suffix: str, *shape: int) -> NcnnTensor:
        """Reads the next weights of the ``.bin``, which have no flag, as a constant."""
        return self.constant(self.weights.raw(prod(shape), self).reshape(shape), suffix)


@dataclass(frozen=True)
class NcnnTensor(TensorExpression[float]):
    """A tensor of the graph under construction, as an operand of a layer.

    Unlike :class:`~cml_engine.formats.graph_builder.Tensor` it has ncnn's axes, without a batch.
    """

    name: str
    layer: NcnnLayer = field(repr=False)

    @property
    def extents(self) -> tuple[int, ...]:
        """ncnn's shape of the tensor: NNEF's shape without the batch."""
        return self.layer.builder.facts[self.name].shape[1:]

    def axis(self, axis: int) -> int:
        """Returns NNEF's number of an axis that ncnn counts without the batch.

        A negative number counts from the end.
        """
        rank = len(self.extents)
        if not -rank <= axis < rank:
            raise self.layer.damaged_error(f"axis {axis} of {rank}")
        return axis % rank + 1

    def apply(self, op: str, *operands: NcnnTensor | float, **attrs: object) -> NcnnTensor:
        return self.layer.op(op, *operands, **attrs)

    def op(self, op: str, *operands: NcnnTensor | float, **attrs: object) -> NcnnTensor:
        return self.layer.op(op, self, *operands, **attrs)

    def reshape(self, extents: Sequence[int]) -> NcnnTensor:
        """Reshapes all axes but the batch to ``extents``."""
        if tuple(extents) == self.extents:
            return self
        return self.op("reshape", shape=list(extents), axis_start=1)

    def unflatten(self, axis: int, parts: Sequence[int]) -> NcnnTensor:
        """Splits an axis, in NNEF's numbering, into axes of these extents; one may be -1."""
        return self.op("reshape", shape=list(parts), axis_start=axis, axis_count=1)

    def merge(self, axis: int, count: int) -> NcnnTensor:
        """Merges ``count`` axes from ``axis`` on, in NNEF's numbering, into one."""
        return self.op("reshape", shape=[-1], axis_start=axis, axis_count=count)

    def permute(self, order: Sequence[int]) -> NcnnTensor:
        """Permutes the axes to ``order``, which numbers them without the batch."""
        return self.transpose(axes=[0, *(axis + 1 for axis in order)])

    def take(self, indices: Array, axis: int) -> NcnnTensor:
        """Returns the slices at constant indices along an axis, in NNEF's numbering."""
        return self.gather(self.layer.constant(indices, "places", "integer"), axis=axis)

    def split(self, axis: int, ratios: Sequence[int]) -> list[NcnnTensor]:
        """Splits the tensor along an axis, in NNEF's numbering, into parts of these ratios."""
        return self.layer.ops("split", len(ratios), self, axis=axis, ratios=list(ratios))


def joined(parts: Sequence[NcnnTensor], axis: int) -> NcnnTensor:
    """Returns tensors concatenated along an axis, in NNEF's numbering; a single one stays."""
    return parts[0] if len(parts) == 1 else parts[0].concat(*parts[1:], axis=axis)


@dataclass(frozen=True, slots=True)
class LayerType:
    """A layer type of ncnn: its converter, parameter ids, and numbers of inputs and outputs.

    ``inputs`` and ``outputs`` are the smallest and largest number. For the documentation,
    ``limits`` describes the variants that are refused, and ``differences`` the results that are
    not ncnn's.
    """

    name: str
    convert: Convert
    params: frozenset[int]
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    limits: str
    differences: str


LAYERS: dict[str, LayerType] = {}


def converts(
    *names: str,
    params: str = "",
    inputs: tuple[int, int] = (1, 1),
    outputs: tuple[int, int] = (1, 1),
    limits: str = "",
    differences: str = "",
) -> Callable[[Convert], Convert]:
    """Returns a decorator that registers a function as the converter of the named layer types.

    ``params`` lists the known parameter ids, such as ``"0-6 9"``.
    """

    def declare(convert: Convert) -> Convert:
        for name in names:
            LAYERS[name] = LayerType(
                name, convert, _ids(params), inputs, outputs, limits, differences
            )
        return convert

    return declare


def _ids(text: str) -> frozenset[int]:
    # any layer may have the shapes of its outputs, and the CPU instructions that ncnn may use
    ids = {30, 31}
    for part in text.split():
        first, _, last = part.partition("-")
        ids.update(range(int(first), int(last or first) + 1))
    return frozenset(ids)


_DECODE = (
    "end the network before it (the blobs that it reads become outputs) and decode in the game"
)

#: Layers that cannot be converted: those that decode detections.
_DECODERS = (
    "DetectionOutput", "PriorBox", "Proposal", "PSROIPooling", "ROIAlign", "ROIPooling",
    "YoloDetectionOutput", "Yolov3DetectionOutput",
)  # fmt: skip

#: Layers without weights in the ``.bin``. Any other layer may have some.
WITHOUT_WEIGHTS = frozenset((*_DECODERS, *(
    "AbsVal ArgMax BNLL BinaryOp CELU Cast Clip Concat CopyTo Crop CumulativeSum DeepCopy Diag "
    "Dropout ELU Einsum Eltwise Erf Exp ExpandDims Flatten Flip Fold GELU GLU GridSample "
    "HardSigmoid HardSwish Input Interp LRN Log MVN MatMul Mish Noop Packing Padding Permute "
    "PixelShuffle Pooling Pooling1D Pooling3D Power ReLU Reduction Reorg Reshape RotaryEmbed SDPA "
    "SELU SPP Shrink ShuffleChannel Sigmoid Slice Softmax Softplus Spectrogram Split Squeeze "
    "StatisticsPooling Swish TanH Threshold Tile UnaryOp Unfold pnnx.Expression"
).split()))  # fmt: skip

#: Layers that cannot be converted, with the advice for the error message.
REFUSED: dict[str, str] = {
    **dict.fromkeys(_DECODERS, _DECODE),
    **dict.fromkeys(
        ("Quantize", "Dequantize", "Requantize"), "convert the model before it is quantised"),
}  # fmt: skip
