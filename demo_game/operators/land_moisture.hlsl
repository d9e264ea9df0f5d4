// A thread for each fine sample: how wet the climate is.
#include "include/noise.hlsli"

void kernel(uint thread) {
    int level = tile[2], seed = tile[3];
    int2 cell = int2(tile[0], tile[1]) - apron
              + int2(moisture_coord(thread, 3), moisture_coord(thread, 2));
    float total = 0.5;
    for (uint i = 0; i < octaves_count; ++i) {
        int shift = octaves(i) - level;
        if (shift >= 2) {
            total += weights(i) * gradient_noise(cell, shift, 100 + octaves(i), seed);
        }
    }
    moisture[thread] = total;
}
