// T2 = T0 sampled at the positions T1; a thread computes four channels of one position.
//
// params: in_extent(d), innermost axis first, the order of a position's coordinates
#include "divide.hlsli"
#include "integral.hlsli"

#define CHANNELS 4

float first_edge() { return align != 0 ? 0.0 : -0.5; }

float reflected(float at, float end)
{
    float low = first_edge();
    float high = end - low;
    float size = high - low;
    if (size <= 0.0) { return low; }
    float away = abs(at - low);
    float turns = floor(away / size);
    float rest = away - turns * size;
    return cml_is_odd(turns) ? high - rest : low + rest;
}

// Converts a coordinate of -1 to 1 to index units, and applies the border rule if it is outside.
// Cubic taps beyond a repeated edge are clamped one by one in index_of.
float position(float given, uint axis)
{
    float size = float(in_extent(axis));
    float end = size - 1.0;
    float at = (cml_isnan(given) ? 0.0 : given) + 1.0;
    at = align != 0 ? at * (end * 0.5) : (at * size - 1.0) * 0.5;
    at = clamp(at, -4194304.0, 4194304.0);
    if (method == NEAREST) { at = cml_round_even(at); }
    float low = first_edge();
    bool outside = at < low || at > end - low;
    if (outside && border == REPLICATE && method != CUBIC) { at = clamp(at, 0.0, end); }
    if (outside && border == REFLECT) { at = reflected(at, end); }
    return at;
}

float weight(float part, uint tap)
{
    if (method == NEAREST) { return 1.0; }
    if (method == LINEAR) { return tap == 0 ? 1.0 - part : part; }
    float a = -0.75;
    float s = abs(part - (float(tap) - 1.0));
    float near = ((a + 2.0) * s - (a + 3.0)) * s * s + 1.0;
    float far = ((s - 5.0) * s + 8.0) * s * a - 4.0 * a;
    return s <= 1.0 ? near : far;
}

// Returns the index of a tap on an axis; outside of the map for border 'constant'.
int index_of(float low, uint tap, uint axis)
{
    int end = int(in_extent(axis)) - 1;
    int i = int(low) + int(tap) - (method == CUBIC ? 1 : 0);
    if (border == REFLECT) { i = int(reflected(float(i), float(end))); }
    return border == CONSTANT ? i : clamp(i, 0, end);
}

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint rest = cml_divide(i, places);
    uint place = i - rest * places;
    uint item = cml_divide(rest, blocks);
    uint channel = (rest - item * blocks) * CHANNELS;
    float low[3];
    float part[3];
    uint taps[3];
    for (uint d = 0; d < 3; d++) {
        bool there = d < spatial;
        float at = there ? position(T1[(item * places + place) * spatial + d], d) : 0.0;
        low[d] = floor(at);
        part[d] = at - low[d];
        taps[d] = there ? (method == CUBIC ? 4 : method + 1) : 1;
    }
    uint size = in_extent(0) * in_extent(1) * in_extent(2);
    uint first = (item * channels + channel) * size;
    uint count = min(channels - channel, CHANNELS);
    float total[CHANNELS];
    { CML_UNROLL(uint, c, CHANNELS) { total[c] = 0.0; } }
    for (uint tz = 0; tz < taps[2]; tz++) {
        int z = spatial > 2 ? index_of(low[2], tz, 2) : 0;
        float wz = spatial > 2 ? weight(part[2], tz) : 1.0;
        for (uint ty = 0; ty < taps[1]; ty++) {
            int y = spatial > 1 ? index_of(low[1], ty, 1) : 0;
            float wy = spatial > 1 ? wz * weight(part[1], ty) : wz;
            for (uint tx = 0; tx < taps[0]; tx++) {
                int x = index_of(low[0], tx, 0);
                float w = wy * weight(part[0], tx);
                bool inside = x >= 0 && y >= 0 && z >= 0 && x < int(in_extent(0)) &&
                    y < int(in_extent(1)) && z < int(in_extent(2));
                if (inside) {
                    uint at = (uint(z) * in_extent(1) + uint(y)) * in_extent(0) + uint(x);
                    CML_UNROLL(uint, c, CHANNELS) {
                        if (c < count) { total[c] += w * T0[first + c * size + at]; }
                    }
                }
            }
        }
    }
    CML_UNROLL(uint, k, CHANNELS) {
        if (k < count) { T2[(item * channels + channel + k) * places + place] = total[k]; }
    }
}
