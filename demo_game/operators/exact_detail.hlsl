// A thread for each fine sample, four by four of them in the channels of a coarse one: the two
// octaves that coarse samples cannot carry, in 256ths of a cell.
#include "include/exact_land.hlsli"

void kernel(uint thread) {
    int level = tile[2], seed = tile[3];
    int channel = int(detail_coord(thread, 1));
    int2 fine = int2(channel % scale, channel / scale)
              + scale * int2(detail_coord(thread, 3), detail_coord(thread, 2));
    int2 cell = int2(tile[0], tile[1]) - apron + fine;
    int ridged = mountains(continent(cell, level, seed));
    int total = octave_at(cell, level, level + 2, ridged, seed)
              + octave_at(cell, level, level + 1, ridged, seed);
    detail[thread] = float(halves_up(total, level + 4)) * (1.0 / 256.0);
}
