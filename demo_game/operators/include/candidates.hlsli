// One workgroup places all plants and rocks of a tile: a jittered grid of candidates, each kept or
// not by its densities and a hash of its place, those kept moved to the front in order. The file that
// includes this has `candidate(number)`, with `keep` and `placed`, and `put(at, placed)`.
#include "noise.hlsli"
#define CANDIDATES 32
#define PER_LANE (CANDIDATES * CANDIDATES / GROUP)
groupshared uint kept[GROUP];

// A candidate's two hashes.
uint2 hashes_of(int2 place) {
    int2 first = int2(tile[0], tile[1]) / cells;
    uint h = hashed(first * CANDIDATES + place, 300 + tile[2], tile[3]);
    return uint2(h, mix32(h ^ 0x68e31da4u));
}

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

void place_all(uint lane) {
    uint count = 0;
    for (uint k = 0; k < PER_LANE; ++k) {
        if (candidate(int(lane * PER_LANE + k)).keep) { count++; }
    }
    uint2 found = kept_before(lane, count);
    uint at = found.x, total = found.y;
    for (uint nth = 0; nth < PER_LANE; ++nth) {
        Candidate made = candidate(int(lane * PER_LANE + nth));
        if (made.keep) { put(at++, made.placed); }
    }
    for (uint rest = total + lane; rest < CANDIDATES * CANDIDATES; rest += GROUP) { put(rest, 0); }
    if (lane == 0) {
        draw[0] = vertices;
        draw[1] = int(total);
        draw[2] = 0;
        draw[3] = 0;
    }
}
