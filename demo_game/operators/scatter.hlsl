#include "include/candidates.hlsli"

struct Candidate { float4 placed; bool keep; };

float bilinear(uint from, float2 at, bool of_height) {
    int2 low = clamp(int2(floor(at)), 0, int2(int(height_shape(3)) - 2));
    float2 f = at - float2(low);
    uint row = height_stride(2);
    uint i = from + uint(low.y) * row + uint(low.x);
    float4 v = of_height ? float4(height[i], height[i + 1], height[i + row], height[i + row + 1])
                         : float4(density[i], density[i + 1], density[i + row], density[i + row + 1]);
    float north = v.x + f.x * (v.y - v.x);
    float south = v.z + f.x * (v.w - v.z);
    return north + f.y * (south - north);
}

Candidate candidate(int number) {
    int2 place = int2(number % CANDIDATES, number / CANDIDATES);
    uint2 hashes = hashes_of(place);
    uint h = hashes.x;
    float2 jitter = float2(h & 1023u, (h >> 10) & 1023u) * (1.0 / 1024.0);
    float2 at = (float2(place) + jitter) * (float(cells) / float(CANDIDATES));
    float2 sample = at + float(apron);
    float chance = float(h >> 20) * (1.0 / 4096.0);
    uint channel = density_stride(1);
    float trees = bilinear(0, sample, false);
    float bushes = trees + bilinear(channel, sample, false);
    float rocks = bushes + bilinear(2 * channel, sample, false);
    uint kind = chance < trees ? 0u : chance < bushes ? 1u : 2u;
    float y = bilinear(0, sample, true);
    Candidate made;
    made.keep = chance < rocks && y > shore;
    made.placed = float4(at, y, float(looks(kind, hashes.y)));
    return made;
}

void put(uint at, float4 placed) {
    for (uint k = 0; k < 4; ++k) { instances[4 * at + k] = placed[k]; }
}

void kernel(uint group, uint lane) { place_all(lane); }
