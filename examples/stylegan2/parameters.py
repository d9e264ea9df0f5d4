"""The sizes of the generator, and parameters with the statistics of an untrained network.

Architecture: Karras et al., *Analyzing and Improving the Image Quality of StyleGAN* (2020), with
skip connections, as *Training Generative Adversarial Networks with Limited Data* (StyleGAN2-ADA,
2020) uses it. Names and shapes of the parameters are those of its PyTorch networks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import cml_engine as cml

Array = NDArray[np.float32]

#: standard deviations: of the noise (a layer's values have variance 1), of a style (mean 1)
_NOISE, _STYLE = 0.1, 0.7
#: the weight of the 4x4 block in RGB, small enough to clip few pixels, and the ratio of each finer
#: block to the one before, because a picture has less contrast in its details
_RGB, _FINER = 0.25, 0.9


@dataclass(frozen=True)
class Config:
    """The sizes of the generator, by default the paper's.

    ``resolution`` is a power of two from 8 to 1024.
    """

    resolution: int = 1024
    latent: int = 512
    mapping_layers: int = 8
    mapping_rate: float = 0.01
    channel_base: int = 32768
    channel_most: int = 512

    def __post_init__(self) -> None:
        if self.resolution not in (8, 16, 32, 64, 128, 256, 512, 1024):
            raise cml.InputError(
                f"resolution {self.resolution}, wanted a power of two from 8 to 1024"
            )

    @property
    def resolutions(self) -> tuple[int, ...]:
        """The resolutions of the blocks: 4, 8, … up to the picture's."""
        return tuple(2**k for k in range(2, self.resolution.bit_length()))

    def channels(self, resolution: int) -> int:
        return min(self.channel_base // resolution, self.channel_most)

    def layers(self, resolution: int) -> dict[str, int]:
        """Returns the number of input channels of a block's 3x3 layers, by name, in order."""
        last = {"conv1": self.channels(resolution)}
        return last if resolution == 4 else {"conv0": self.channels(resolution // 2), **last}


def random_parameters(config: Config, seed: int) -> dict[str, Array]:
    """Returns random float32 parameters by name.

    Weights have variance 1 (the network scales them); styles vary about 1. Parameters that are
    zero in an untrained network (noise strengths, biases) are small here, so that every operator
    affects the picture.
    """
    draw = _Draw(np.random.default_rng(seed), config.latent)
    parameters: dict[str, Array] = {}
    for i in range(config.mapping_layers):
        parameters[f"mapping.fc{i}.weight"] = draw.normal(
            config.latent, config.latent, scale=1 / config.mapping_rate
        )
        parameters[f"mapping.fc{i}.bias"] = draw.normal(config.latent, scale=10.0)
    for octave, resolution in enumerate(config.resolutions):
        block = f"synthesis.b{resolution}"
        channels = config.channels(resolution)
        if resolution == 4:
            parameters[f"{block}.const"] = draw.normal(channels, 4, 4)
        for layer, in_channels in config.layers(resolution).items():
            name = f"{block}.{layer}"
            parameters |= draw.modulated(name, in_channels, channels, 3)
            parameters[f"{name}.noise_const"] = draw.normal(resolution, resolution)
            parameters[f"{name}.noise_strength"] = draw.normal(scale=_NOISE)
        parameters |= draw.modulated(f"{block}.torgb", channels, 3, 1)
        parameters[f"{block}.torgb.weight"] *= np.float32(_RGB * _FINER**octave)
    return parameters


@dataclass(frozen=True)
class _Draw:
    generator: np.random.Generator
    latent: int

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        values = self.generator.standard_normal(shape, np.float32)
        return np.asarray(values, np.float32) * np.float32(scale)

    def modulated(self, name: str, ins: int, outs: int, window: int) -> dict[str, Array]:
        """Returns random parameters, by name, of a convolution that is modulated by a style."""
        return {
            f"{name}.weight": self.normal(outs, ins, window, window),
            f"{name}.bias": self.normal(outs, scale=0.1),
            f"{name}.affine.weight": self.normal(ins, self.latent, scale=_STYLE),
            f"{name}.affine.bias": np.ones(ins, np.float32),
        }
