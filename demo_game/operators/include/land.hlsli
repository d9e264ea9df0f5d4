// Octaves of the land. The operator's attributes are noise.py's constants.
#pragma once
#include "noise.hlsli"

float continent(int2 cell, int level, int seed) {
    return gradient_noise(cell, continents(0) - level, continents(0), seed)
         + 0.5 * gradient_noise(cell, continents(1) - level, continents(1), seed);
}

// Where the land is ridged, 0 to 1.
float mountains(float land) {
    float t = clamp((land + 0.1) * 2.0, 0.0, 1.0);
    return t * t * (3.0 - 2.0 * t);
}

// One octave without its amplitude.
float octave_at(int2 cell, int level, int octave, float ridged, int seed) {
    float n = gradient_noise(cell, octave - level, octave, seed);
    float hilly = hill * n;
    return hilly + ridged * (ridge(0) - ridge(1) * abs(n) - hilly);
}
