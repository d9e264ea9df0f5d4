"""The network of the host examples, and a test picture.

The network turns a picture into a cartoon: smooth areas of few tones, and ink edges. It is twelve
lines of NNEF with the weights in the text, so nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import cml_engine as cml

WIDTH, HEIGHT = 128, 96

CARTOON = f"""\
version 1.0;
extension KHR_enable_operator_expressions;
graph cartoon(image) -> (picture)
{{
    image = external<scalar>(shape = [1, 3, {HEIGHT}, {WIDTH}]);
    box = constant<scalar>(shape = [3, 1, 5, 5], value = [0.04]);
    smooth = conv(image, box, 0.0, border = 'replicate', groups = 3);
    smoother = conv(smooth, box, 0.0, border = 'replicate', groups = 3);
    weights = constant<scalar>(shape = [1, 3, 1, 1], value = [0.3, 0.6, 0.1]);
    light = conv(smooth, weights, 0.0);
    sobel = constant<scalar>(shape = [2, 1, 3, 3], value = [
        -1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0,
        -1.0, -2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0]);
    edges = sum_reduce(abs(conv(light, sobel, 0.0, border = 'replicate')), axes = [1]);
    ink = clamp(1.2 - edges, 0.0, 1.0);
    toned = round(smoother * 6.0) / 6.0;
    picture = toned * ink;
}}
"""


#: the sliders of ``--overlay``
SLIDERS = {"least light of ink": cml.Slider("ink.a", 0.0, 1.0, "0 is black")}


def write(folder: Path) -> None:
    """Writes the network as a model folder with one NNEF file; the folder must not exist."""
    folder.mkdir(parents=True)
    (folder / "graph.nnef").write_text(CARTOON, encoding="utf-8")


def load(sliders: Mapping[str, cml.Slider] | None = None) -> cml.Graph:
    """Returns the network, from ``image`` [1, 3, H, W] to ``picture`` [1, 3, H, W]."""
    return cml.load(cml.nnef.MemoryModel(CARTOON, {}), sliders=sliders)


def image(time: float) -> NDArray[np.float32]:
    """Returns a picture [1, 3, H, W] of balls before a gradient at ``time`` in seconds."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32) / HEIGHT
    picture = np.stack([0.2 + 0.3 * y, 0.3 + 0.2 * x, 0.7 - 0.4 * y])
    for ball in range(3):
        angle = time * (0.7 + 0.4 * ball) + 2.1 * ball
        u, v = x - 0.66 - 0.4 * np.cos(angle), y - 0.5 - 0.25 * np.sin(1.3 * angle)
        lit = np.clip(1 - (u + 0.06) ** 2 * 30 - (v + 0.06) ** 2 * 30, 0.2, 1)
        inside = u * u + v * v < 0.04
        picture[:, inside] = 0.1 * lit[inside]
        picture[ball, inside] = lit[inside]
    return np.asarray(picture[None], np.float32)
