"""The network in PyTorch, its training, and its export to ONNX."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from examples.enlarge import pictures

Array = NDArray[np.float32]
CHANNELS, LAYERS = 16, 4
#: textures of each family that training draws
_TEXTURES = 60
#: planes of a step, and the side of each before it is enlarged
_BATCH, _PATCH = 32, 32
#: the part of the steps that minimizes absolute errors; the rest minimizes squares, as PSNR does
_ABSOLUTE = 0.6
_RATE, _WARM_UP_STEPS = 2e-3, 100


class Enlarge(nn.Module):  # type: ignore[misc]
    """A PyTorch network that doubles the size of a picture [1, 3, H, W] with values from 0 to 1.

    Red, green and blue go through the same layers as three pictures of one plane, as the cubic
    filter treats them. An edge between colours that training never saw is thus an edge like others.
    """

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, CHANNELS, 3, padding=1), nn.ReLU()]
        for _ in range(LAYERS):
            layers += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()]
        self.details = nn.Sequential(*layers, nn.Conv2d(CHANNELS, 4, 3, padding=1))
        nn.init.zeros_(self.details[-1].weight)  # begins as linear interpolation

    def planes(self, planes: Any) -> Any:
        """Returns planes [N, 1, H, W] at twice their size."""
        smooth = nn.functional.interpolate(planes, scale_factor=2.0, mode="bilinear")
        return smooth + nn.functional.pixel_shuffle(self.details(planes), 2)

    def forward(self, image: Any) -> Any:
        return self.planes(image.transpose(0, 1)).transpose(0, 1).clamp(0.0, 1.0)


class Pairs:
    """Pictures for training, each small and at twice the size.

    :meth:`batch` cuts random patches of both.
    """

    def __init__(self, folder: Path, rng: np.random.Generator) -> None:
        self.rng = rng
        textures = [pictures.texture(f, rng) for f in pictures.FAMILIES for _ in range(_TEXTURES)]
        rendered = list(pictures.renderings(folder, held_out=False))
        self.sets = [[(pictures.halved(p), p) for p in of] for of in (textures, rendered)]

    def batch(self) -> tuple[Any, Any]:
        """Returns tensors of random planes [N, 1, H, W], and of the same planes at twice the size.

        About a third of them come from renderings, the others from textures.
        """
        pairs = [self._patch(self.sets[int(self.rng.random() < 1 / 3)]) for _ in range(_BATCH)]
        small, large = (torch.from_numpy(np.stack(side)) for side in zip(*pairs, strict=True))
        return small, large

    def _patch(self, pairs: list[tuple[Image.Image, Image.Image]]) -> tuple[Array, Array]:
        rng = self.rng
        small, large = pairs[int(rng.integers(len(pairs)))]
        x, y = (int(rng.integers(side - _PATCH + 1)) for side in small.size)
        colour, quarter_turns, mirrored = (int(rng.integers(count)) for count in (3, 4, 2))

        def cut(picture: Image.Image, times: int) -> Array:
            box = (x * times, y * times, (x + _PATCH) * times, (y + _PATCH) * times)
            plane = pictures.as_planes(picture.crop(box))[colour : colour + 1]
            turned = np.rot90(plane, quarter_turns, axes=(1, 2))
            return np.ascontiguousarray(turned[:, :, ::-1] if mirrored else turned)

        return cut(small, 1), cut(large, 2)


def train(pairs: Pairs, steps: int) -> Iterator[tuple[Enlarge, float]]:
    """Trains a new network; yields it and the batch's loss after each of ``steps`` batches."""
    network = Enlarge()
    optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
            group["lr"] = _RATE * warm * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        small, large = pairs.batch()
        wrong = network.planes(small) - large
        # near 0.02, where training ends, both losses are of one size with this factor
        loss = wrong.abs().mean() if step < _ABSOLUTE * steps else 50 * wrong.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield network, float(loss.detach())


def export(network: Enlarge, path: Path) -> None:
    """Writes the network to an ONNX file; the picture's height and width stay open."""
    torch.onnx.export(
        network.eval(),
        (torch.zeros(1, 3, 64, 64),),
        str(path),
        input_names=["image"],
        output_names=["enlarged"],
        dynamic_axes={"image": {2: "height", 3: "width"}},
        dynamo=False,
    )
