// A thread for each coarse sample: all octaves of eight cells or more.
#include "include/land.hlsli"

void kernel(uint thread) {
    int level = tile[2], seed = tile[3];
    int2 cell = int2(tile[0], tile[1]) - apron
              + scale * int2(height_coord(thread, 3), height_coord(thread, 2));
    float land = continent(cell, level, seed);
    float ridged = mountains(land);
    float total = land * lift(0) + lift(1);
    for (int octave = int(amplitudes_count) - 1; octave > level + 2; --octave) {
        total += amplitudes(octave) * octave_at(cell, level, octave, ridged, seed);
    }
    height[thread] = total;
}
