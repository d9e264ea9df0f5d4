"""Where the sun stands: over the world, in its baked light and in the renderer's alike."""

from __future__ import annotations

import math

#: degrees above the horizon, and from north (-z) towards east
ELEVATION, AZIMUTH = 34.0, 242.0


def _direction() -> tuple[float, float, float]:
    up, around = math.radians(ELEVATION), math.radians(AZIMUTH)
    flat = math.cos(up)
    return flat * math.sin(around), math.sin(up), -flat * math.cos(around)


#: towards the sun (x east, y up, z south), of length 1
SUN = _direction()
