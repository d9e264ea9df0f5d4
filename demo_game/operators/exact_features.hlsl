// A thread for each sample that has four neighbours: how much higher these are, in 128ths of a
// cell; and for those further inside all that texture and population are told, in 128ths of 1.
#include "include/exact_noise.hlsli"

// How wet the climate is at a cell, in 128ths.
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

float word(int value) {
    return float(clamp(value, -127, 127)) * (1.0 / 128.0);
}

// A triangle of height one half, in 128ths, that comes again every 4096 / factor 4096ths.
int wave(int at, int factor) {
    return (abs((scaled(at, factor, 14) & 4095) - 2048) + 16) >> 5;
}

void kernel(uint thread) {
    int2 at = 1 + int2(slopes_coord(thread, 3), slopes_coord(thread, 2));
    int level = tile[2], row = int(ground_stride(2)), from = at.y * row + at.x;
    int here = ground[from];
    float4 rises;
    rises.x = word(halves_up(ground[from - row] - here, level + 5));
    rises.y = word(halves_up(ground[from - 1] - here, level + 5));
    rises.z = word(halves_up(ground[from + 1] - here, level + 5));
    rises.w = word(halves_up(ground[from + row] - here, level + 5));
    for (uint k = 0; k < 4; ++k) { slopes[thread + k * slopes_stride(1)] = rises[k]; }
    int2 inside = at - crop;
    if (any(inside < 0) || any(inside >= int2(features_shape(3), features_shape(2)))) { return; }
    uint to = uint(inside.y) * features_stride(2) + uint(inside.x), channel = features_stride(1);
    int2 cell = int2(tile[0], tile[1]) - apron + at;
    for (uint side = 0; side < 4; ++side) {
        int2 half_cell = 2 * cell + int2(side & 1, side >> 1);
        features[to + side * channel] = rises[side];
        features[to + (4 + side) * channel] = word(int(hashed(half_cell, 200 + level, tile[3]) >> 25));
    }
    features[to + 8 * channel] = word(moisture(cell, level, tile[3]));
    for (uint a = 0; a < 3; ++a) {
        int high = halves_up(scaled(here, altitudes(2 * a), 14), 10) + altitudes(2 * a + 1);
        features[to + (9 + a) * channel] = word(high);
    }
    features[to + 12 * channel] = word(halves_up(here, level + 6));
    features[to + 13 * channel] = word(halves_up(here, level + 9));
    features[to + 14 * channel] = word(wave(here >> level, strata(0)));
    features[to + 15 * channel] = word(wave(here >> level, strata(1)));
}
