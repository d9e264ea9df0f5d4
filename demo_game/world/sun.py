"""The sun's position and the light's colours, for the tiles' baked light and for the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Light:
    """The sun's direction and the colours of the light.

    ``elevation`` above the horizon and ``azimuth`` from north (-z) towards east are in degrees.
    The linear colours are: direct sunlight, light from the sky and from the ground, the sky
    above and at the horizon, the air near by, the glow around the sun, and clouds, lit and dark.
    """

    elevation: float
    azimuth: float
    sunlight: Colour
    skylight: Colour
    bounce: Colour
    zenith: Colour
    haze: Colour
    near_air: Colour
    glow: Colour
    cloud_lit: Colour
    cloud_dark: Colour

    @property
    def sun(self) -> tuple[float, float, float]:
        """The direction towards the sun (x east, y up, z south), of length 1."""
        up, around = math.radians(self.elevation), math.radians(self.azimuth)
        flat = math.cos(up)
        return flat * math.sin(around), math.sin(up), -flat * math.cos(around)

    def defines(self) -> dict[str, str]:
        """Returns the colours as shader macros: upper-case names and ``float3(...)``."""
        colours = {name: value for name, value in vars(self).items() if isinstance(value, tuple)}
        return {name.upper(): f"float3({r}, {g}, {b})" for name, (r, g, b) in colours.items()}


DAY = Light(
    elevation=34.0,
    azimuth=242.0,
    sunlight=(2.95, 2.30, 1.55),
    skylight=(0.30, 0.41, 0.62),
    bounce=(0.20, 0.17, 0.13),
    zenith=(0.085, 0.215, 0.52),
    haze=(0.50, 0.64, 0.83),
    near_air=(0.30, 0.46, 0.72),
    glow=(1.05, 0.74, 0.42),
    cloud_lit=(1.75, 1.65, 1.50),
    cloud_dark=(0.62, 0.70, 0.85),
)
#: the sun just above the horizon, red for all the air that its light has come through
EVENING = Light(
    elevation=9.0,
    azimuth=292.0,
    sunlight=(2.75, 1.35, 0.50),
    skylight=(0.20, 0.23, 0.38),
    bounce=(0.13, 0.10, 0.09),
    zenith=(0.050, 0.105, 0.27),
    haze=(0.62, 0.43, 0.36),
    near_air=(0.25, 0.24, 0.36),
    glow=(1.55, 0.66, 0.20),
    cloud_lit=(1.65, 0.85, 0.48),
    cloud_dark=(0.30, 0.27, 0.36),
)
#: the lights by their names on the command line
LIGHTS = {"day": DAY, "evening": EVENING}
#: the direction towards the sun by day
SUN = DAY.sun
