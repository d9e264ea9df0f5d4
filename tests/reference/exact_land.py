"""The noise of the demo's integer world in Python's integers, one position at a time.

Every product and sum is checked to fit 32 bits.
"""

U32 = 0xFFFFFFFF
AMPLITUDES = (4, 8, 17, 36, 76, 161, 341, 721, 1524, 3222, 6812, 14400)


def int32(value):
    if not -(2**31) <= value < 2**31:
        raise OverflowError(f"{value} needs more than 32 bits")
    return value


def wrapped(value):
    return (value + 2**31 & U32) - 2**31


def scaled(a, by, bits):
    upper, lower = int32((a >> bits) * by), int32((a & (1 << bits) - 1) * by)
    return int32(upper + (lower >> bits))


def halves_up(a, bits):
    return int32(a + (1 << bits - 1)) >> bits


def mix(x):
    x = (x ^ x >> 16) * 0x7FEB352D & U32
    x = (x ^ x >> 15) * 0x846CA68B & U32
    return x ^ x >> 16


def hashed(x, z, salt, seed):
    key = salt * 0x9E3779B9 + seed * 0x85EBCA6B
    return mix((x & U32) + mix((z & U32) + key & U32) & U32)


def fade(t):
    cube = scaled(int32(t * t), t, 13)
    rest = int32(int32(t * (6 * t - 122880)) + 671088640)
    return scaled(cube, rest >> 11, 12) >> 12


def corner(x, z, fx, fz, salt, seed):
    h = hashed(x, z, salt, seed)
    return int32(((h & 1023) * 2 - 1023) * fx + ((h >> 10 & 1023) * 2 - 1023) * fz)


def blend(a, b, by):
    return int32(a + (scaled(int32(b - a), by, 14) >> 3))


def noise(x, z, shift, salt, seed):
    ix, iz, last = x >> shift, z >> shift, (1 << shift) - 1
    fx, fz = (x & last) << 13 - shift, (z & last) << 13 - shift
    rows = [
        blend(
            corner(ix, iz + k, fx, fz - 8192 * k, salt, seed),
            corner(ix + 1, iz + k, fx - 8192, fz - 8192 * k, salt, seed),
            fade(fx),
        )
        for k in (0, 1)
    ]
    return blend(*rows, fade(fz))


def continent(x, z, level, seed):
    return noise(x, z, 13 - level, 13, seed) + (noise(x, z, 12 - level, 12, seed) >> 1)


def mountains(land):
    t = max(0, min(16384, int32(land + 838861) >> 8))
    return scaled(int32(t * t) >> 14, 49152 - 2 * t, 14)


def octave(x, z, level, number, mask, seed):
    n = noise(x, z, number - level, number, seed) >> 3
    ridge, hill = 503316 - (int32(7 * abs(n)) >> 1), n >> 1
    return scaled(hill + scaled(ridge - hill, mask, 14), AMPLITUDES[number], 14)


def height(x, z, level, seed):
    land = continent(x, z, level, seed)
    mask = mountains(land)
    total = scaled(land, 2800, 14) + 60 * 1024
    for number in range(11, level + 2, -1):
        total = int32(total + octave(x, z, level, number, mask, seed))
    return max(-8388607, min(8388607, total))


def detail(x, z, level, seed):
    mask = mountains(continent(x, z, level, seed))
    total = sum(octave(x, z, level, level + n, mask, seed) for n in (1, 2))
    return halves_up(total, level + 4)


def moisture(x, z, level, seed):
    total = 1 << 19
    for number, weight in zip((10, 9, 8, 7), (11469, 6881, 4129, 2477), strict=True):
        if number - level >= 2:
            total += scaled(noise(x, z, number - level, 100 + number, seed) >> 3, weight, 14)
    return halves_up(int32(total), 13)


def grain(x, z, level, seed):
    return hashed(wrapped(x), wrapped(z), 200 + level, seed) >> 25
