"""The land before any network: gradient noise in octaves, in NumPy.

This is the definition; the operators in ``demo_game/operators`` compute the same on the GPU. An
octave has a wavelength of ``4 * 2**j`` metres. At a cell of ``4 * 2**level`` metres that is
``2**(j - level)`` cells, so lattice point and fraction of an integer cell number are exact
(Perlin, "Improving noise", 2002, has the fade and the lattice; the gradients are hashed).

Coarse heights have the octaves that a coarse sample can represent (8 cells and longer). ``detail``
has the two octaves below (4 and 2 cells), in cells; it is an input of the upres network.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cml_engine.demo_game.arrays import Array

#: octaves of the continents, and the longest of the mountains
CONTINENT_OCTAVES = (13, 12)
TOP_OCTAVE = 11
#: amplitude of the top octave in metres, and the exponent by which amplitudes fall with wavelength
TOP_M, ROUGHNESS = 900.0, 1.08
#: metres of land per unit of the continents' noise, and the height where that is 0
CONTINENT_M, LIFT_M = 1400.0, 60.0
#: a ridge is ``RIDGE_MEAN - RIDGE |noise|``: about 0 on average, so that no octave lifts the land
RIDGE_MEAN, RIDGE = 0.48, 3.5
HILL = 0.5
MOISTURE_OCTAVES = (10, 9, 8, 7)


class Cells(NamedTuple):
    """Cells of a world: their numbers ``x`` and ``z`` (int32 grids), their level, and the seed."""

    x: Array
    z: Array
    level: int
    seed: int


def mix(x: Array) -> Array:
    """Returns a 32-bit hash of each element (uint32 in and out)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    mixed: Array = x ^ (x >> np.uint32(16))
    return mixed


def hash_lattice(x: Array, z: Array, salt: int, seed: int) -> Array:
    """Returns a uint32 hash of lattice points (int32) for an octave ``salt`` and a world's seed."""
    key = np.uint32((salt * 0x9E3779B9 + seed * 0x85EBCA6B) & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        hashes: Array = mix(
            x.astype(np.int32).view(np.uint32) + mix(z.astype(np.int32).view(np.uint32) + key)
        )
    return hashes


def _fade(t: Array) -> Array:
    faded: Array = t * t * t * (t * (t * np.float32(6) - np.float32(15)) + np.float32(10))
    return faded


def _corner(ix: Array, iz: Array, fx: Array, fz: Array, salt: int, seed: int) -> Array:
    h = hash_lattice(ix, iz, salt, seed)
    gx, gz = (
        (part & np.uint32(1023)).astype(np.float32) * np.float32(1 / 511.5) - np.float32(1)
        for part in (h, h >> np.uint32(10))
    )
    return gx * fx + gz * fz


def gradient_noise(cells: Cells, octave: int, salt: int) -> Array:
    """Returns float32 noise of an octave's wavelength, ``2**(octave - level)`` cells."""
    shift, seed = octave - cells.level, cells.seed
    step = np.float32(1 / (1 << shift))
    ix, iz = cells.x >> shift, cells.z >> shift
    fx, fz = ((g & ((1 << shift) - 1)).astype(np.float32) * step for g in (cells.x, cells.z))
    one = np.float32(1)
    a, b, c, d = (
        _corner(ix + i, iz + k, fx - i * one, fz - k * one, salt, seed)
        for k in range(2)
        for i in range(2)
    )
    u, v = _fade(fx), _fade(fz)
    north, south = a + u * (b - a), c + u * (d - c)
    result: Array = north + v * (south - north)
    return result


def amplitude(octave: int) -> float:
    """Returns the amplitude of an octave in metres."""
    return float(np.float32(TOP_M * 2.0 ** ((octave - TOP_OCTAVE) * ROUGHNESS)))


def _continent(cells: Cells) -> Array:
    first, second = (gradient_noise(cells, octave, octave) for octave in CONTINENT_OCTAVES)
    height: Array = first + np.float32(0.5) * second
    return height


def _mountains(continent: Array) -> Array:
    """Returns the share of ridges in the land, 0 to 1; the rest are hills."""
    t = np.clip((continent + np.float32(0.1)) * np.float32(1 / 0.5), 0, 1)
    result: Array = t * t * (np.float32(3) - np.float32(2) * t)
    return result


def _octave(cells: Cells, octave: int, mask: Array) -> Array:
    n = gradient_noise(cells, octave, octave)
    ridge = np.float32(RIDGE_MEAN) - np.float32(RIDGE) * np.abs(n)
    hill = np.float32(HILL) * n
    mixed: Array = hill + mask * (ridge - hill)
    return mixed


def height(cells: Cells) -> Array:
    """Returns metres above the sea at the cells, with all octaves of 8 cells or more."""
    continent = _continent(cells)
    mask = _mountains(continent)
    total: Array = continent * np.float32(CONTINENT_M) + np.float32(LIFT_M)
    for octave in range(TOP_OCTAVE, cells.level + 2, -1):
        total = total + np.float32(amplitude(octave)) * _octave(cells, octave, mask)
    return total


def detail(cells: Cells) -> Array:
    """Returns the octaves with periods of 4 and 2 cells; heights are in cells of the level."""
    mask = _mountains(_continent(cells))
    total: Array = np.zeros(cells.x.shape, np.float32)
    for octave in (cells.level + 2, cells.level + 1):
        scale = np.float32(amplitude(octave) / (4 * 2**cells.level))
        total = total + scale * _octave(cells, octave, mask)
    return total


def moisture_weights() -> list[float]:
    """Returns the weights of the moisture's octaves: each 0.6 of the one before."""
    return [0.7 * 0.6**i for i in range(len(MOISTURE_OCTAVES))]


def moisture(cells: Cells) -> Array:
    """Returns the climate's moisture, about 0 to 1, from all octaves of 4 cells or more."""
    total: Array = np.full(cells.x.shape, 0.5, np.float32)
    for octave, weight in zip(MOISTURE_OCTAVES, moisture_weights(), strict=True):
        if octave - cells.level >= 2:
            noise = gradient_noise(cells, octave, 100 + octave)
            total = total + np.float32(weight) * noise
    return total


def grain(halves: Cells) -> Array:
    """Returns white noise in [0, 1) at half cells.

    A cell has two half cells: twice the cell's number, and one more.
    """
    hashes = hash_lattice(halves.x, halves.z, 200 + halves.level, halves.seed)
    return (hashes >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
