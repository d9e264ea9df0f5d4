// The candidates of a tile's plants: a jittered grid, of which one workgroup moves those that are kept
// to the front in order.
#define CANDIDATES 32
#define PER_LANE (CANDIDATES * CANDIDATES / GROUP)
groupshared uint kept[GROUP];

// An instance's whole number: kind, size, turn, tint.
uint looks(uint kind, uint hash) {
    return kind | ((hash & 63u) << 2) | (((hash >> 6) & 255u) << 8) | (((hash >> 14) & 255u) << 16);
}

// How many the lanes before this one keep, and all together; each keeps `count`.
uint2 kept_before(uint lane, uint count) {
    kept[lane] = count;
    GroupMemoryBarrierWithGroupSync();
    uint before = 0, total = 0;
    for (uint other = 0; other < GROUP; ++other) {
        if (other < lane) { before += kept[other]; }
        total += kept[other];
    }
    return uint2(before, total);
}
