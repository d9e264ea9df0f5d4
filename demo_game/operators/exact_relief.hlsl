// A thread for each coarse sample: its neighbours' heights less its own, in 64ths of the way to
// them, and how many cells above the sea it is, in 128ths of sixteen.
#include "include/exact_noise.hlsli"

void kernel(uint thread) {
    int2 at = int2(above_coord(thread, 3), above_coord(thread, 2));
    int bits = tile[2], row = int(coarse_stride(2)), here = coarse[thread];
    above[thread] = float(clamp(halves_up(here, bits + 9), -127, 127)) * (1.0 / 128.0);
    int2 inner = int2(around_shape(3), around_shape(2));
    at -= 1;
    if (all(at >= 0) && all(at < inner)) {
        uint from = uint(at.y) * around_stride(2) + uint(at.x);
        for (uint k = 0; k < 8; ++k) {
            int there = int(k < 4 ? k : k + 1);
            int rise = coarse[int(thread) + (there / 3 - 1) * row + there % 3 - 1] - here;
            around[from + k * around_stride(1)] = float(halves_up(rise, bits + 8)) * (1.0 / 64.0);
        }
    }
    if (thread == 0) { size[0] = float(bits + 2); }
}
