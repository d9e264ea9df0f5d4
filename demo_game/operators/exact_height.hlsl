// A thread for each coarse sample: all octaves of eight cells or more.
#include "include/exact_land.hlsli"

void kernel(uint thread) {
    int level = tile[2], seed = tile[3];
    int2 cell = int2(tile[0], tile[1]) - apron
              + scale * int2(coarse_coord(thread, 3), coarse_coord(thread, 2));
    int land = continent(cell, level, seed);
    int ridged = mountains(land);
    int total = scaled(land, lift(0), 14) + lift(1);
    for (int octave = int(amplitudes_count) - 1; octave > level + 2; --octave) {
        total += octave_at(cell, level, octave, ridged, seed);
    }
    coarse[thread] = clamp(total, -end, end);
}
