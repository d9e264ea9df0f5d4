// Octaves of the land in whole numbers: the same as demo_game/world/exact_noise.py.
#pragma once
#include "noise.hlsli"

// a * by / 2^bits, rounded down, without a product of more than 32 bits.
int scaled(int a, int by, int bits) {
    return (a >> bits) * by + (((a & ((1 << bits) - 1)) * by) >> bits);
}

// a / 2^bits, rounded, halves up.
int halves_up(int a, int bits) {
    return (a + (1 << (bits - 1))) >> bits;
}

int fade(int t) {
    int cube = scaled(t * t, t, 13);
    int rest = t * (6 * t - (15 << 13)) + (10 << 26);
    return scaled(cube, rest >> 11, 12) >> 12;
}

int exact_corner(int2 at, int2 away, int salt, int seed) {
    uint h = hashed(at, salt, seed);
    int2 gradient = int2(h & 1023u, (h >> 10) & 1023u) * 2 - 1023;
    return gradient.x * away.x + gradient.y * away.y;
}

int blend(int a, int b, int by) {
    return a + (scaled(b - a, by, 14) >> 3);
}

// Noise of a wavelength of 2^shift cells, at a cell, in steps of 2^-23.
int exact_noise(int2 cell, int shift, int salt, int seed) {
    int2 at = cell >> shift;
    int2 f = (cell & ((1 << shift) - 1)) << (13 - shift);
    int a = exact_corner(at, f, salt, seed);
    int b = exact_corner(at + int2(1, 0), f - int2(8192, 0), salt, seed);
    int c = exact_corner(at + int2(0, 1), f - int2(0, 8192), salt, seed);
    int d = exact_corner(at + int2(1, 1), f - int2(8192, 8192), salt, seed);
    int u = fade(f.x);
    return blend(blend(a, b, u), blend(c, d, u), fade(f.y));
}
