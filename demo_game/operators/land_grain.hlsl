// A thread for each cell: white noise at its two by two half cells, which lie in the channels.
#include "include/noise.hlsli"

void kernel(uint thread) {
    int2 at = int2(tile[0], tile[1]) - apron
            + int2(grain_coord(thread, 3), grain_coord(thread, 2));
    uint channel = grain_stride(1);
    for (int k = 0; k < 4; ++k) {
        uint h = hashed(2 * at + int2(k & 1, k >> 1), 200 + tile[2], tile[3]);
        grain[thread + uint(k) * channel] = float(h >> 8) * (1.0 / 16777216.0);
    }
}
