// A thread for each fine sample, four by four of them in the channels of a coarse one: the two
// octaves that coarse samples cannot carry, in cells.
#include "include/land.hlsli"

void kernel(uint thread) {
    int level = tile[2], seed = tile[3];
    int channel = int(detail_coord(thread, 1));
    int2 fine = int2(channel % scale, channel / scale)
              + scale * int2(detail_coord(thread, 3), detail_coord(thread, 2));
    int2 cell = int2(tile[0], tile[1]) - apron + fine;
    float ridged = mountains(continent(cell, level, seed));
    float size = cell_m * float(1 << level);
    float total = 0.0;
    for (int octave = level + 2; octave > level; --octave) {
        total += amplitudes(octave) / size * octave_at(cell, level, octave, ridged, seed);
    }
    detail[thread] = total;
}
