// How wet the climate is at a cell, in 128ths.
#pragma once
#include "land.hlsli"

int moisture(int2 cell, int level, int seed) {
    int total = 1 << 19;
    for (uint i = 0; i < octaves_count; ++i) {
        int shift = octaves(i) - level;
        if (shift >= 2) {
            total += scaled(exact_noise(cell, shift, 100 + octaves(i), seed) >> 3, weights(i), 14);
        }
    }
    return halves_up(total, 13);
}
