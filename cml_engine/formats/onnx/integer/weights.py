"""Converts the constants of a quantized model to the integers that an integer network stores."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from cml_engine.compiler.integer.quant_params import nest_scales, quant_attrs
from cml_engine.compiler.integer.quantizer.scales import round_digits
from cml_engine.formats.onnx.integer.quantized_values import NotIntegerError, QuantizedConstant
from cml_engine.ir.graph import Array, Attrs, Graph, Node, unused_name
from cml_engine.ir.integer_rule import INT_BOUND, round_half_up

#: the relative difference of scales that count as equal: the file's have 24 bits
_NEAR = 1e-5


@dataclass
class WordConstants:
    """The constants of a graph that become integers: collects values and lines of ``graph.quant``.

    ``stored`` has the integers of the file. ``values`` and ``lines`` are filled by the methods.
    """

    graph: Graph
    stored: Mapping[str, QuantizedConstant]
    values: dict[str, Array] = field(default_factory=dict)
    lines: dict[str, Attrs] = field(default_factory=dict)

    def weights(self, node: Node, axis: int) -> list[float]:
        """Records a node's weights as integers and returns their scales: one, or one per output.

        Raises :class:`NotIntegerError` if the file has no integers for them.
        """
        name = node.inputs[1]
        found = self._find(name)
        if found is None:
            raise NotIntegerError(
                f"{node.title}: its weights '{name}' are numbers: no DequantizeLinear gives them, "
                "or blocks of them have scales of their own",
                node.source,
            )
        whole = self._scale_integers(name, found, axis)
        if whole is None:
            raise NotIntegerError(
                f"{node.title}: its weights '{name}' are changed before they are used, or have "
                f"{len(found.scales)} scales that are not those of its outputs",
                node.source,
            )
        scales = [round_digits(scale) for scale in found.scales]
        self._keep(name, whole, nest_scales(scales, axis, whole.ndim))
        return scales

    def bias(self, node: Node, of_x: float, scales: Sequence[float], channels: int) -> str:
        """Records a node's bias as 32-bit integers and returns its name.

        The scale of the integers is that of the node's sums: ``of_x`` times the weights'
        ``scales``.
        """
        name = node.inputs[2]
        numbers = self.graph.constants.get(name)
        if numbers is None:
            raise NotIntegerError(f"{node.title}: its bias '{name}' is computed", node.source)
        if not numbers.any():
            return name
        of_sums = [Fraction(repr(of_x)) * Fraction(repr(scale)) for scale in scales]
        of_sums = of_sums * (channels // len(of_sums))
        found = self._find(name)
        if found is not None and found.whole.size in (1, channels):
            steps = np.broadcast_to(np.array(found.scales), channels)
            given = np.broadcast_to(found.whole.reshape(-1), channels)
        else:
            steps = np.ones(channels)
            given = np.broadcast_to(numbers.reshape(-1).astype(np.float64), channels)
        whole = [_in_steps(g, float(s), of) for g, s, of in zip(given, steps, of_sums, strict=True)]
        if max(map(abs, whole)) >= INT_BOUND:
            raise NotIntegerError(f"{node.title}: its bias does not fit into 32 bits", node.source)
        new = unused_name(f"{node.outputs[0]}_bias", self.graph.facts, self.values)
        self.values[new] = np.array(whole, np.int32).reshape(1, -1)
        self.lines[new] = quant_attrs([[float(of) for of in of_sums]], 32)
        return new

    def operand(self, name: str) -> None:
        """Records a constant operand as integers, if the file has them with one scale."""
        found = self._find(name)
        if found is not None and len(found.scales) == 1 and name not in self.values:
            whole = self._scale_integers(name, found, 0)
            if whole is not None:
                self._keep(name, whole, round_digits(found.scales[0]))

    def _find(self, name: str) -> QuantizedConstant | None:
        """Returns the integers that the file has for a constant, or None.

        The constant's name may have a number appended that made it unique.
        """
        return self.stored.get(name) or self.stored.get(re.sub(r"_\d+$", "", name))

    def _scale_integers(self, name: str, found: QuantizedConstant, axis: int) -> Array | None:
        """Returns a constant divided by its scales, as integers of at most 16 bits.

        Returns None if its values are not such multiples of the scales. ``axis`` has a scale per
        element.
        """
        numbers = self.graph.constants[name].astype(np.float64)
        shape = [1] * numbers.ndim
        if len(found.scales) > 1:
            if not numbers.ndim or numbers.shape[axis] != len(found.scales):
                return None
            shape[axis] = -1
        steps = np.array(found.scales).reshape(shape)
        whole = np.rint(numbers / steps)
        if not np.allclose(whole * steps, numbers, rtol=_NEAR, atol=0):
            return None
        return whole if np.abs(whole).max(initial=0) <= 32767 else None

    def _keep(self, name: str, whole: Array, scale: object) -> None:
        is_small = np.abs(whole).max(initial=0) <= 127
        self.values[name] = whole.astype(np.int8 if is_small else np.int16)
        self.lines[name] = quant_attrs(scale, 8 if is_small else 16)


def _in_steps(given: float, step: float, of_sums: Fraction) -> int:
    """Returns a bias value, ``given`` in steps of ``step``, as an integer in the scale of its sums.

    If the scales are equal, the stored integer stays.
    """
    if abs(step / float(of_sums) - 1) < _NEAR:
        return int(given)
    return round_half_up(Fraction(float(given)) * Fraction(step) / of_sums)
