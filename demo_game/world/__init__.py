"""The positions of tiles and the noise their land starts from: pure functions of seed and
coordinates."""
