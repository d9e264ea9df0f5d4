"""Rewrites a network in ncnn's files with 8-bit convolutions.

ncnn's package computes such layers but lacks the programs that create them (ncnn2table, ncnn2int8).
Weights have a scale per channel and each map has one scale, taken from the largest values. If
another convolution is the only reader of a convolution's result, the result is passed on as bytes.
Other layers remain in floats.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from benchmarks.contenders import Array, Inputs, Workload, ncnn_net, run_ncnn
from benchmarks.ncnn.model import flagged, plain
from cml_engine.formats.ncnn.param import MAGIC, NcnnLayer, read_param
from cml_engine.formats.ncnn.weight_reader import WeightReader
from cml_engine.io.model_source import file_source

#: the flag before 8-bit weights
_FLAG = struct.pack("<I", 0x000D4B38)
#: parameters of layers with filters: the number of weights, and the flag of a bias
_FILTERS = {
    "Convolution": (6, 5), "ConvolutionDepthWise": (6, 5), "Deconvolution": (6, 5),
    "DeconvolutionDepthWise": (6, 5), "InnerProduct": (2, 1),
}  # fmt: skip
_LARGEST = 127
#: lines of the .param, and their weights in the .bin
Written = tuple[list[str], bytes]
#: relative RMS error of a layer: float rounding stays below it, wrong bytes exceed it
_TOLERANCE = 1e-3


class WrongLayer(Exception):
    """Raised if an 8-bit layer's result differs from that of rounded floats."""


class Int8Network:
    """A float network rewritten with 8-bit convolutions, in ncnn's files.

    ``words`` is the workload with 8-bit convolutions, ``rounded`` one with floats that are
    rounded to the same values. The scales come from the largest values of the samples.
    """

    def __init__(self, floats: Workload, samples: Sequence[Inputs]) -> None:
        self.floats, self.layers = floats, list(_layers(floats))
        self.words, self.rounded = (Workload(floats.folder / n) for n in ("int8", "rounded"))
        readers = Counter(name for one in self.layers for name in one.line.inputs)
        convolved = [one for one in self.layers if one.convolves]
        self.scales = _scales(floats, [one.x for one in convolved], samples)
        #: results that are passed on as bytes
        self.handed = {one.y for one in convolved if one.y in self.scales and readers[one.y] == 1}
        _save(self.words, self.layers, self._as_words)
        _save(self.rounded, self.layers, lambda one: one.rounded(self.scales[one.x]))

    def error(self, inputs: Inputs) -> float:
        """Returns the RMS of the output's difference from floats, over the RMS in floats.

        Checks every convolution first and raises :class:`WrongLayer` if one is wrong.
        """
        self._check(inputs)
        found, exact = (_run(w, inputs)[0] for w in (self.words, self.floats))
        return _rms(found - exact) / _rms(exact)

    def _check(self, inputs: Inputs) -> None:
        """Raises :class:`WrongLayer` if an 8-bit convolution differs from rounded floats.

        Each convolution is compared with one of floats, rounded to the same values, on the same
        input.
        """
        convolved = [one for one in self.layers if one.convolves]
        names = list(dict.fromkeys(name for one in convolved for name in (one.x, one.y)))
        found = dict(zip(names, _run(self.words, inputs, names), strict=True))
        for one in convolved:
            x, y = found[one.x], found[one.y]
            if one.x in self.handed:
                x = x / np.float32(self.scales[one.x])
            (wanted,) = _run(self.rounded, {one.x: x[None]}, [one.y])
            if one.y in self.handed:
                wanted = np.clip(np.rint(wanted * self.scales[one.y]), -_LARGEST, _LARGEST)
            apart = _rms(y - wanted) / _rms(wanted)
            if not apart <= _TOLERANCE:
                raise WrongLayer(f"{one.line.type} '{one.line.name}': bytes are {apart:.1e} off")

    def _as_words(self, one: _Layer) -> Written:
        scales = self.scales[one.x], *(self.scales[y] for y in self.handed & {one.y})
        return one.words(scales)


@dataclass(frozen=True)
class _Layer:
    """A layer of the network's files: its line in the .param, and its weights in the .bin.

    ``filter`` is the array that ncnn stores after a flag, or None; ``rest`` are the weights stored
    without a flag, such as the bias.
    """

    line: NcnnLayer
    filter: Array | None
    rest: Array

    @property
    def convolves(self) -> bool:
        return self.line.type == "Convolution"

    @property
    def x(self) -> str:
        return self.line.inputs[0]

    @property
    def y(self) -> str:
        return self.line.outputs[0]

    @cached_property
    def whole(self) -> tuple[Array, Array]:
        """The filter as integers, one row per output channel, and the scale of each row."""
        assert self.filter is not None
        rows = self.filter.reshape(self.line.integer(0), -1)
        most = np.abs(rows).max(1, keepdims=True)
        scales = (_LARGEST / np.where(most > 0, most, 1)).astype(np.float32)
        return np.rint(rows * scales), scales

    def floats(self) -> Written:
        filter = b"" if self.filter is None else flagged(self.filter)
        return [self.line.source.text], filter + plain(self.rest)

    def words(self, maps: Sequence[float]) -> Written:
        """Returns the layer with an 8-bit filter, as lines of the .param and bytes of the .bin.

        ``maps`` are the scales of its input and, if the result is passed on as bytes, of its
        output.
        """
        numbers, scales = self.whole
        data = numbers.astype(np.int8).tobytes()
        after = plain(self.rest, scales, np.array(maps))
        text = f"{self.line.source.text} 8={2 if len(maps) == 1 else 102}"
        return [text], _FLAG + data + bytes(-len(data) % 4) + after

    def rounded(self, scale: float) -> Written:
        """Returns the layer in floats, as lines of the .param and bytes of the .bin.

        The filter, and the input by additional layers, are rounded to their 8-bit values.
        """
        x, lines = self.x, []
        for number, step in enumerate((
            f"BinaryOp 0=2 1=1 2={scale:.9e}", "UnaryOp 0=18",
            f"Clip 0={-_LARGEST} 1={_LARGEST}", f"BinaryOp 0=3 1=1 2={scale:.9e}",
        )):  # fmt: skip
            type, values = step.split(maxsplit=1)
            made = f"{self.y}_{number}"
            lines.append(f"{type} {made} 1 1 {x} {made} {values}")
            x = made
        words = self.line.source.text.split()
        numbers, scales = self.whole
        text = " ".join((*words[:4], x, *words[5:]))
        return [*lines, text], flagged(numbers / scales) + plain(self.rest)


def _layers(floats: Workload) -> Iterator[_Layer]:
    source = file_source(floats.param)
    stored = WeightReader(source, floats.weights.name)
    for line in read_param(source):
        filter, count = None, 0
        if line.type in _FILTERS:
            size, bias = _FILTERS[line.type]
            filter = stored.flagged(line.integer(size), line)
            count = line.integer(0) * line.integer(bias)
        elif line.type == "PReLU":
            count = line.integer(0)
        elif line.type == "MemoryData":
            count = prod(line.integer(key) or 1 for key in (0, 1, 2))
        yield _Layer(line, filter, stored.raw(count, line))
    stored.finish()  # raises an error if another type of layer has weights


def _save(
    target: Workload, layers: Sequence[_Layer], convolution: Callable[[_Layer], Written]
) -> None:
    written = [convolution(one) if one.convolves else one.floats() for one in layers]
    lines = [line for lines, _ in written for line in lines]
    tensors = sum(int(line.split()[3]) for line in lines)
    target.folder.mkdir(exist_ok=True)
    text = "\n".join((MAGIC, f"{len(lines)} {tensors}", *lines, ""))
    target.param.write_text(text, encoding="utf-8")
    target.weights.write_bytes(b"".join(weights for _, weights in written))


def _scales(
    floats: Workload, names: Sequence[str], samples: Sequence[Inputs]
) -> Mapping[str, float]:
    """Returns the factor from floats to 8-bit values of each named tensor.

    It follows from the tensor's largest absolute value over all samples.
    """
    most = np.zeros(len(names))
    for sample in samples:
        found = _run(floats, sample, names)
        most = np.maximum(most, [np.abs(values).max() for values in found])
    return dict(zip(names, (_LARGEST / np.where(most > 0, most, 1)).tolist(), strict=True))


def _run(workload: Workload, inputs: Inputs, names: Sequence[str] = ()) -> list[Array]:
    """Runs the network on the CPU; returns the tensors called ``names``, by default the outputs."""
    net, _ = ncnn_net(workload, on_gpu=False)
    return run_ncnn(net, inputs, names or net.output_names())


def _rms(values: Array) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))
