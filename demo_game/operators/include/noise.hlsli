// Gradient noise on integer cells: the same as demo_game/world/noise.py.
#pragma once

uint mix32(uint x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// A hash of a lattice point, for one octave of one world.
uint hashed(int2 at, int salt, int seed) {
    uint key = uint(salt) * 0x9e3779b9u + uint(seed) * 0x85ebca6bu;
    return mix32(uint(at.x) + mix32(uint(at.y) + key));
}

float corner(int2 at, float2 away, int salt, int seed) {
    uint h = hashed(at, salt, seed);
    float2 gradient = float2(h & 1023u, (h >> 10) & 1023u) * (1.0 / 511.5) - 1.0;
    return gradient.x * away.x + gradient.y * away.y;
}

// Noise of a wavelength of 2^shift cells, at a cell.
float gradient_noise(int2 cell, int shift, int salt, int seed) {
    int2 at = cell >> shift;
    float2 f = float2(cell & ((1 << shift) - 1)) * (1.0 / float(1 << shift));
    float a = corner(at, f, salt, seed);
    float b = corner(at + int2(1, 0), f - float2(1, 0), salt, seed);
    float c = corner(at + int2(0, 1), f - float2(0, 1), salt, seed);
    float d = corner(at + int2(1, 1), f - float2(1, 1), salt, seed);
    float2 fade = f * f * f * (f * (f * 6.0 - 15.0) + 10.0);
    float north = a + fade.x * (b - a);
    float south = c + fade.x * (d - c);
    return north + fade.y * (south - north);
}
