// A thread for each half cell, two by two of them in the channels of a cell: white noise.
#include "noise.hlsli"

void kernel(uint thread) {
    int channel = int(grain_coord(thread, 1));
    int2 at = int2(tile[0], tile[1]) - apron
            + int2(grain_coord(thread, 3), grain_coord(thread, 2));
    int2 half_cell = 2 * at + int2(channel % 2, channel / 2);
    grain[thread] = float(hashed(half_cell, 200 + tile[2], tile[3]) >> 8) * (1.0 / 16777216.0);
}
