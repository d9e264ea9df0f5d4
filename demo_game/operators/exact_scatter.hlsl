// In whole numbers: places in 4096ths of a cell, heights in 1024ths of a metre, shares of 2^20.
#include "include/exact_noise.hlsli"
#include "include/candidates.hlsli"

struct Candidate { int4 placed; bool keep; };

int mixed(int4 corners, int2 f) {
    int north = corners.x + scaled(corners.y - corners.x, f.x, 12);
    int south = corners.z + scaled(corners.w - corners.z, f.x, 12);
    return north + scaled(south - north, f.y, 12);
}

int share_at(uint i, int2 f) {
    uint row = density_stride(2);
    float4 found = float4(density[i], density[i + 1], density[i + row], density[i + row + 1]);
    return mixed(int4(found * 256.0) * 4096, f);
}

int height_at(int2 low, int2 f) {
    uint row = ground_stride(2), i = uint(low.y + crop) * row + uint(low.x + crop);
    return mixed(int4(ground[i], ground[i + 1], ground[i + row], ground[i + row + 1]), f);
}

Candidate candidate(int number) {
    int2 place = int2(number % CANDIDATES, number / CANDIDATES);
    uint2 hashes = hashes_of(place);
    uint h = hashes.x;
    int2 at = (place * 1024 + int2(h & 1023u, (h >> 10) & 1023u)) * (cells / 8);
    int2 low = (at >> 12) + apron, f = at & 4095;
    uint i = uint(low.y) * density_stride(2) + uint(low.x), channel = density_stride(1);
    int chance = int(h >> 20) << 8;
    int trees = share_at(i, f);
    int bushes = trees + share_at(i + channel, f);
    int rocks = bushes + share_at(i + 2 * channel, f);
    uint kind = chance < trees ? 0u : chance < bushes ? 1u : 2u;
    int y = height_at(low, f);
    Candidate made;
    made.keep = chance < rocks && y > shore;
    made.placed = int4(at, y, int(looks(kind, hashes.y)));
    return made;
}

void put(uint at, int4 placed) {
    for (uint k = 0; k < 4; ++k) { plants[4 * at + k] = placed[k]; }
    instances[4 * at] = float(placed.x) * (1.0 / 4096.0);
    instances[4 * at + 1] = float(placed.y) * (1.0 / 4096.0);
    instances[4 * at + 2] = float(placed.z) * (1.0 / 1024.0);
    instances[4 * at + 3] = float(placed.w);
}

void kernel(uint group, uint lane) { place_all(lane); }
