// A thread for each point. Cells are visited from the nearest outward; one that is farther away
// than the feature found already is skipped, and once a whole shell is, the rest is too.
uint mix(uint x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

float3 feature(int3 cell) {
    uint h = mix(uint(cell.x) + mix(uint(cell.y) + mix(uint(cell.z) + uint(seed))));
    return float3(h & 1023u, (h >> 10) & 1023u, h >> 22) / 1024.0;
}

// Squared distance from a point in the unit cell to the nearest place of the cell at `offset`.
float nearest(float3 inside, int3 offset) {
    float3 gap = select(offset > 0, 1.0 - inside, select(offset < 0, inside, float3(0.0)));
    return dot(gap, gap);
}

void kernel(uint thread) {
    // the point's x; y and z lie one channel further each
    uint channel = points_stride(1);
    uint i = thread / channel * 3 * channel + thread % channel;
    float3 at = float3(points[i], points[i + channel], points[i + 2 * channel]);
    float3 cell = floor(at);
    float3 inside = at - cell;

    float best = 4.0;
    for (int shell = 0; shell <= 3; ++shell) {       // own cell, faces, edges, corners
        bool nearer = false;
        for (uint k = 0; k < 27; ++k) {
            int3 offset = int3(k % 3, k / 3 % 3, k / 9) - 1;
            if (abs(offset.x) + abs(offset.y) + abs(offset.z) != shell) { continue; }
            if (nearest(inside, offset) >= best) { continue; }
            nearer = true;
            float3 away = float3(offset) + feature(int3(cell) + offset) - inside;
            best = min(best, dot(away, away));
        }
        // every cell of the next shell lies behind one of this
        if (!nearer) { break; }
    }
    distance[thread] = sqrt(best);
}
