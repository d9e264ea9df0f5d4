"""The integer world's land before any network: ``noise.py`` in integers.

This is the definition; the operators in ``demo_game/operators/exact.py`` compute the same on the
GPU. It uses only sums and products of integers and shifts that round down, so the numbers are
the same on every machine. No value needs more than 32 bits. Heights are in 1024ths of a metre,
from -8192 to 8192 m; gradient noise is in steps of ``2**-23``.

:data:`WORLD_VERSION` is part of every hash of the integer world. Raise it with every change of a
number here or in those operators.
"""

from __future__ import annotations

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.world import noise
from cml_engine.demo_game.world.noise import Cells, hash_lattice

WORLD_VERSION = 1
#: fractional bits of a height in metres
HEIGHT_BITS = 10
#: the greatest height, and the negative of the lowest
HEIGHT_END = (8192 << HEIGHT_BITS) - 1
#: fractional bits of a position in a lattice cell: the longest octave has 2**13 cells of level 0
FRACTION = 13
#: amplitude of each octave in sixteenths of a metre
AMPLITUDES = [round(16 * noise.amplitude(octave)) for octave in range(noise.TOP_OCTAVE + 1)]
#: factor of the continents' noise for :func:`multiply_shift` by 14 bits, and the lift as a height
CONTINENT, LIFT = 2 * round(noise.CONTINENT_M), round(noise.LIFT_M) << HEIGHT_BITS
#: ``RIDGE_MEAN`` in steps of ``2**-20``; twice ``RIDGE``; twice ``HILL`` is 1
RIDGE = [round(noise.RIDGE_MEAN * 2**20), round(2 * noise.RIDGE)]
#: 0.1 in steps of ``2**-23``: how far below the sea mountains begin
SHELF = round(0.1 * 2**23)
#: weights of the moisture's octaves in units of ``2**-14``
MOISTURE = [round(weight * 2**14) for weight in noise.moisture_weights()]


def multiply_shift(a: Array, by: int | Array, bits: int) -> Array:
    """Returns ``a * by / 2**bits``, rounded down.

    The shader computes it in 32 bits, in two parts.
    """
    product: Array = (np.asarray(a, np.int64) * by) >> bits
    return product


def shift_and_round(a: Array, bits: int) -> Array:
    """Returns ``a / 2**bits`` rounded to the nearest integer, halves up."""
    rounded: Array = (a + (1 << (bits - 1))) >> bits
    return rounded


def _fade(t: Array) -> Array:
    """Returns ``6 t^5 - 15 t^4 + 10 t^3`` in units of ``2**-17``.

    ``t`` is in units of ``2**-13``.
    """
    cube = multiply_shift(t * t, t, FRACTION)
    factor = t * (6 * t - (15 << FRACTION)) + (10 << 2 * FRACTION)
    return multiply_shift(cube, factor >> 11, 12) >> 12


def _corner(ix: Array, iz: Array, fx: Array, fz: Array, salt: int, seed: int) -> Array:
    h = hash_lattice(ix, iz, salt, seed).astype(np.int64)
    gradient: Array = (2 * (h & 1023) - 1023) * fx + (2 * ((h >> 10) & 1023) - 1023) * fz
    return gradient


def _mix(a: Array, b: Array, fade: Array) -> Array:
    mixed: Array = a + (multiply_shift(b - a, fade, 14) >> 3)
    return mixed


def gradient_noise(cells: Cells, octave: int, salt: int) -> Array:
    """Returns noise of an octave's wavelength, ``2**(octave - level)`` cells, in ``2**-23``."""
    shift, seed = octave - cells.level, cells.seed
    ix, iz = cells.x >> shift, cells.z >> shift
    last, one = (1 << shift) - 1, 1 << FRACTION
    fx, fz = ((g & last).astype(np.int64) << (FRACTION - shift) for g in (cells.x, cells.z))
    a, b, c, d = (
        _corner(ix + i, iz + k, fx - i * one, fz - k * one, salt, seed)
        for k in range(2)
        for i in range(2)
    )
    u, v = _fade(fx), _fade(fz)
    return _mix(_mix(a, b, u), _mix(c, d, u), v)


def _continent(cells: Cells) -> Array:
    first, second = (gradient_noise(cells, octave, octave) for octave in noise.CONTINENT_OCTAVES)
    height: Array = first + (second >> 1)
    return height


def _mountains(continent: Array) -> Array:
    """Returns the share of ridges in the land, 0 to ``2**14``; the rest are hills."""
    t = ((continent + SHELF) >> 8).clip(0, 1 << 14)
    return multiply_shift((t * t) >> 14, (3 << 14) - 2 * t, 14)


def _octave(cells: Cells, octave: int, mask: Array) -> Array:
    """Returns one octave of the noise as heights in 1024ths of a metre."""
    n = gradient_noise(cells, octave, octave) >> 3
    ridge, hill = RIDGE[0] - ((RIDGE[1] * np.abs(n)) >> 1), n >> 1
    return multiply_shift(hill + multiply_shift(ridge - hill, mask, 14), AMPLITUDES[octave], 14)


def height(cells: Cells) -> Array:
    """Returns heights in 1024ths of a metre at the cells, with all octaves of 8 cells or more."""
    continent = _continent(cells)
    mask = _mountains(continent)
    total = multiply_shift(continent, CONTINENT, 14) + LIFT
    for octave in range(noise.TOP_OCTAVE, cells.level + 2, -1):
        total = total + _octave(cells, octave, mask)
    return total.clip(-HEIGHT_END, HEIGHT_END)


def detail(cells: Cells) -> Array:
    """Returns the sum of the two finest octaves, of 4 and 2 cells, in 256ths of a cell's size."""
    mask = _mountains(_continent(cells))
    first, second = (_octave(cells, cells.level + n, mask) for n in (2, 1))
    return shift_and_round(first + second, cells.level + 4)


def moisture(cells: Cells) -> Array:
    """Returns the climate's moisture in 128ths, from all octaves of 4 cells or more."""
    total = np.full(cells.x.shape, 1 << 19, np.int64)
    for octave, weight in zip(noise.MOISTURE_OCTAVES, MOISTURE, strict=True):
        if octave - cells.level >= 2:
            noise_values = gradient_noise(cells, octave, 100 + octave)
            total = total + multiply_shift(noise_values >> 3, weight, 14)
    return shift_and_round(total, 13)


def grain(halves: Cells) -> Array:
    """Returns white noise, 0 to 127, at half cells.

    A cell has two half cells: twice the cell's number, and one more.
    """
    hashes = hash_lattice(halves.x, halves.z, 200 + halves.level, halves.seed)
    return (hashes >> np.uint32(25)).astype(np.int64)
