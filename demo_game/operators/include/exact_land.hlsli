// The land's octaves as heights. The operator's attributes are exact_noise.py's constants.
#pragma once
#include "exact_noise.hlsli"

int continent(int2 cell, int level, int seed) {
    return exact_noise(cell, continents(0) - level, continents(0), seed)
         + (exact_noise(cell, continents(1) - level, continents(1), seed) >> 1);
}

// Where the land is ridged, 0 to 2^14.
int mountains(int land) {
    int t = clamp((land + shelf) >> 8, 0, 16384);
    return scaled((t * t) >> 14, 49152 - 2 * t, 14);
}

int octave_at(int2 cell, int level, int octave, int ridged, int seed) {
    int n = exact_noise(cell, octave - level, octave, seed) >> 3;
    int sharp = ridge(0) - ((ridge(1) * abs(n)) >> 1);
    int hill = n >> 1;
    return scaled(hill + scaled(sharp - hill, ridged, 14), amplitudes(octave), 14);
}
