"""Tests the StyleGAN2 example against the paper's own order of computation, in PyTorch.

The formulas: Karras et al. 2020, sections 2.2 (modulate and demodulate the weights) and appendix B
(resampling by upfirdn with [1,3,3,1]); normalisation of the latent and the learning rate's
multiplier are those of Karras et al. 2019. Weights are modulated and demodulated for each picture
and convolved as one group per picture, so this test repeats none of the example's reordering.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import cml_engine as cml
from examples.stylegan2.network import build
from examples.stylegan2.parameters import Config, random_parameters

torch = pytest.importorskip("torch")
functional = torch.nn.functional
CONFIG = Config(64, channel_base=1024, channel_most=64)
#: pixels lie in about [-1, 1]; 27 layers of sums of up to 600 float32 products each
TOLERANCE = 1e-5


def activated(x):
    return functional.leaky_relu(x, 0.2) * 2**0.5


def upfirdn(x, up, padding, gain):
    """Returns a tensor upsampled by ``up`` with zeros, padded, and filtered with [1,3,3,1] on both
    axes.

    The filter's sum is ``gain``.
    """
    n, c, h, w = x.shape
    wide = x.new_zeros(n, c, h, up, w, up)
    wide[:, :, :, 0, :, 0] = x
    wide = functional.pad(wide.reshape(n, c, h * up, w * up), padding)
    row = torch.tensor([1.0, 3.0, 3.0, 1.0])
    filter = (torch.outer(row, row) * gain / 64).flip(0, 1).expand(c, 1, 4, 4)
    return functional.conv2d(wide, filter, groups=c)


@dataclass
class Paper:
    """The generator in PyTorch by the paper's formulas; ``p`` has its parameters as tensors by
    name."""

    config: Config
    p: dict

    def linear(self, name, x, rate=1.0):
        weight = self.p[f"{name}.weight"]
        weight = weight * (rate / weight.shape[1] ** 0.5)
        return functional.linear(x, weight, self.p[f"{name}.bias"] * rate)

    def mapping(self, z):
        x = z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt()
        for i in range(self.config.mapping_layers):
            x = activated(self.linear(f"mapping.fc{i}", x, self.config.mapping_rate))
        return x

    def modulated(self, name, x, style, demodulate, up=False):
        n, _, h, w = x.shape
        weight = self.p[f"{name}.weight"][None] * style[:, None, :, None, None]
        if demodulate:
            weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        outs, ins, *window = weight.shape[1:]
        if not up:
            weight = weight.reshape(n * outs, ins, *window)
            x = functional.conv2d(x.reshape(1, -1, h, w), weight, padding="same", groups=n)
            return x.reshape(n, outs, h, w)
        weight = weight.transpose(1, 2).reshape(n * ins, outs, *window)
        x = functional.conv_transpose2d(x.reshape(1, -1, h, w), weight, stride=2, groups=n)
        return upfirdn(x.reshape(n, outs, 2 * h + 1, 2 * w + 1), 1, (1, 1, 1, 1), 4.0)

    def layer(self, name, x, w):
        style = self.linear(f"{name}.affine", w)
        x = self.modulated(name, x, style, demodulate=True, up=name.endswith("conv0"))
        x = x + self.p[f"{name}.noise_const"] * self.p[f"{name}.noise_strength"]
        return activated(x + self.p[f"{name}.bias"][None, :, None, None])

    def to_rgb(self, name, x, w):
        style = self.linear(f"{name}.affine", w) / x.shape[1] ** 0.5
        x = self.modulated(name, x, style, demodulate=False)
        return x + self.p[f"{name}.bias"][None, :, None, None]

    def image(self, z):
        w = self.mapping(z)
        x = self.p["synthesis.b4.const"][None]
        image = None
        for resolution in self.config.resolutions:
            block = f"synthesis.b{resolution}"
            for layer in self.config.layers(resolution):
                x = self.layer(f"{block}.{layer}", x, w)
            rgb = self.to_rgb(f"{block}.torgb", x, w)
            image = rgb if image is None else upfirdn(image, 2, (2, 1, 2, 1), 4.0) + rgb
        return image


@pytest.fixture(scope="module")
def parameters():
    return random_parameters(CONFIG, 7)


@pytest.fixture(scope="module")
def z():
    return np.random.default_rng(3).standard_normal((1, CONFIG.latent), np.float32)


@pytest.fixture(scope="module")
def expected(parameters, z):
    tensors = {name: torch.from_numpy(np.array(v, np.float32)) for name, v in parameters.items()}
    return Paper(CONFIG, tensors).image(torch.from_numpy(z)).numpy()


def found(parameters, z, backend, **options):
    graph = build(CONFIG, parameters, **options)
    return cml.Session(graph, backend).run({"z": z})["image"]


def test_the_cpu_agrees_with_the_paper(parameters, z, expected):
    assert np.abs(found(parameters, z, "cpu") - expected).max() <= TOLERANCE


@pytest.mark.parametrize("most_bytes", [128 << 20, 100_000], ids=["whole", "in_parts"])
def test_the_gpu_agrees_with_the_paper(most_bytes, parameters, z, expected, gpu):
    image = found(parameters, z, gpu, most_bytes=most_bytes)
    assert np.abs(image - expected).max() <= TOLERANCE
