"""Converts Fourier transforms of the windows of a signal, and their inverse."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.ncnn.conversion import NcnnLayer, NcnnTensor, converts
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import Array

_BORDERS = ("constant", "replicate", "reflect")


def _frame(layer: NcnnLayer) -> tuple[int, int, Array]:
    """Returns the length of a frame, the distance of frames, and the window with its factor.

    The window is centred in the frame. Its factor is the layer's normalization.
    """
    size = layer.integer(0)
    hop, length = layer.integer(2, size // 4), layer.integer(3, size)
    shape, normalization = layer.integer(4), layer.integer(7)
    if not (1 <= length <= size and hop >= 1):
        raise layer.damaged_error(f"windows of {length} in frames of {size} every {hop}")
    if shape not in (0, 1, 2) or normalization not in (0, 1, 2):
        raise layer.unsupported_error(f"window {shape} with normalization {normalization}")
    current_budget().check_bytes(32 * size * size, "the transform's matrix", layer.source)
    base, swing = ((1.0, 0.0), (0.5, 0.5), (0.54, 0.46))[shape]
    before = (size - length) // 2
    window = np.zeros(size)
    window[before : before + length] = base - swing * np.cos(2 * np.pi * np.arange(length) / length)
    return size, hop, window


def _normalization(layer: NcnnLayer, window: Array) -> float:
    """Returns the length by which a transform is divided, and its inverse multiplied."""
    lengths = 1.0, np.sqrt(len(window)), np.sqrt((window * window).sum())
    return float(lengths[layer.integer(7)])


def _waves(size: int) -> tuple[Array, Array]:
    """Returns the cosines and sines of a transform: [frequency, position]."""
    angles = 2 * np.pi / size * (np.outer(np.arange(size), np.arange(size)) % size)
    return np.cos(angles), np.sin(angles)


@converts("Spectrogram", params="0-8")
def _spectrogram(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts Spectrogram to a convolution with the windowed waves of the transform.

    The result is [frequencies, frames, 2] of real and imaginary parts, or [frequencies, frames] of
    magnitudes or their squares.
    """
    size, hop, window = _frame(layer)
    power, border = layer.integer(1), layer.integer(6, 2)
    if len(x.extents) != 1 or power not in (0, 1, 2) or border not in (0, 1, 2):
        raise layer.unsupported_error(
            f"an input of {len(x.extents)} axes, power {power}, padding {border}"
        )
    x = x.reshape([1, *x.extents])
    if layer.integer(5, 1) == 1:
        half = size // 2
        if border == 2 and half >= x.extents[1]:
            raise layer.damaged_error(f"a reflection by {half} of {x.extents[1]} values")
        padding = [(0, 0), (0, 0), (half, half)]
        x = x.pad(padding=padding, border=_BORDERS[border], value=0.0)
    if x.extents[1] < size:
        raise layer.damaged_error(f"a frame of {size} over {x.extents[1]} values")
    cosines, sines = (part * window / _normalization(layer, window) for part in _waves(size))
    count = size // 2 + 1 if layer.integer(8, 1) else size
    waves = np.concatenate([cosines[:count], -sines[:count]])
    filters = layer.constant(waves[:, None, :], "waves")
    parts = x.conv(filters, 0.0, padding=[(0, 0)], stride=[hop], dilation=[1])
    real, imaginary = parts.split(1, [1, 1])
    if power == 0:
        shape = [*real.extents, 1]
        return real.reshape(shape).concat(imaginary.reshape(shape), axis=3)
    squares = real.sqr() + imaginary.sqr()
    return squares.sqrt() if power == 1 else squares


@converts("InverseSpectrogram", params="0-5 7")
def _inverse_spectrogram(layer: NcnnLayer, x: NcnnTensor) -> NcnnTensor:
    """Converts InverseSpectrogram to a deconvolution that adds the overlapping frames.

    It divides by the sum of the squared windows. The result is [samples, 2] of real and imaginary
    parts, or [samples] of one of them.
    """
    size, hop, window = _frame(layer)
    part = layer.integer(1)
    if part not in (0, 1, 2) or len(x.extents) != 3 or x.extents[2] != 2:
        raise layer.unsupported_error(f"an input of {list(x.extents)}, result {part}")
    count, n_frames, _ = x.extents
    if count not in (size, size // 2 + 1):
        raise layer.damaged_error(f"{count} frequencies of frames of {size}")
    is_centred = layer.integer(5, 1) == 1
    length = (n_frames - 1) * hop + (size % 2 if is_centred else size)
    if length < 1:
        raise layer.damaged_error(f"{n_frames} frames, which give no samples")
    cosines, sines = (
        waves * window * _normalization(layer, window) / size for waves in _waves(size)
    )
    # what a frequency's real and imaginary part add to the real and to the imaginary samples
    real, imaginary = np.stack([cosines, sines], 1), np.stack([-sines, cosines], 1)
    if count != size:  # the other half is the conjugate
        mirrored = np.arange(count, size)
        real[size - mirrored] += real[mirrored]
        imaginary[size - mirrored] -= imaginary[mirrored]
        real, imaginary = real[:count], imaginary[:count]
    rows = slice(None) if part == 0 else slice(part - 1, part)
    filters = np.concatenate([real[:, rows], imaginary[:, rows]])
    parts = x.permute([2, 0, 1]).reshape([2 * count, n_frames])
    before = size // 2 if is_centred else 0
    total = (n_frames - 1) * hop + size
    current_budget().check_bytes(8 * total, "its samples", layer.source)
    samples = parts.deconv(
        layer.constant(filters, "waves"), 0.0, padding=[(before, total - before - length)],
        stride=[hop], dilation=[1],
    )  # fmt: skip
    norm = np.zeros(total)
    for start in range(0, total - size + 1, hop):
        norm[start : start + size] += window * window
    norm[norm == 0] = 1  # samples that no window covers are 0
    weights = norm[before : before + length].reshape(1, 1, length)
    samples = samples.div(layer.constant(weights, "norm"))
    return samples.reshape([length]) if part else samples.permute([1, 0])
