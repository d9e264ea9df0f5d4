// A thread for each fine sample: coarse heights between their samples (a cubic through four of
// them each way), and what the upres agent changes.
#include "include/exact_noise.hlsli"

int along(uint from, uint step, int at) {
    int sum = 64;
    for (uint k = 0; k < 4; ++k) {
        sum += cubic(4 * at + int(k)) * coarse[from + k * step];
    }
    return sum >> 7;
}

void kernel(uint thread) {
    uint2 at = uint2(ground_coord(thread, 3), ground_coord(thread, 2));
    uint from = (at.y / 4 + uint(apron)) * coarse_stride(2) + at.x / 4 + uint(apron);
    int sum = 64;
    for (uint k = 0; k < 4; ++k) {
        sum += cubic(4 * int(at.y % 4) + int(k))
             * along(from + k * coarse_stride(2), 1, int(at.x % 4));
    }
    int cut = int(residual[thread] * 4096.0);
    int height = clamp((sum >> 7) + (cut << uint(tile[2])), -end, end);
    ground[thread] = height;
    heights[thread] = float(height) * (1.0 / 1024.0);
}
