// COL2IM: a thread adds up the values of all windows at one position, T1 = sums of T0. Otherwise the
// samples of a deformable convolution: T3 = T0 at the window positions moved by the offsets T1, times
// the mask T2; a thread computes one sample.
//
// params: axes are innermost first
#include "divide.hlsli"
#include "pointwise.hlsli"

#ifdef COL2IM

float result_of(uint i)
{
    uint rest = i;
    int at[3];
    for (uint d = 0; d < 3; d++) {
        uint next = cml_divide(rest, wide(d));
        at[d] = int(rest - next * wide(d)) + before(d);
        rest = next;
    }
    float total = 0.0;
    uint row = rest * taps(0) * taps(1) * taps(2);
    for (uint tz = 0; tz < taps(2); tz++) {
        for (uint ty = 0; ty < taps(1); ty++) {
            for (uint tx = 0; tx < taps(0); tx++) {
                int3 from = int3(at[0] - int(tx * dilation(0)), at[1] - int(ty * dilation(1)),
                                 at[2] - int(tz * dilation(2)));
                bool inside = from.x >= 0 && from.y >= 0 && from.z >= 0;
                uint3 start = uint3(max(from, 0));
                uint3 place = uint3(start.x / stride(0), start.y / stride(1), start.z / stride(2));
                inside = inside && place.x * stride(0) == start.x &&
                    place.y * stride(1) == start.y && place.z * stride(2) == start.z;
                inside = inside && place.x < narrow(0) && place.y < narrow(1) &&
                    place.z < narrow(2);
                if (inside) {
                    uint line = (row * narrow(2) + place.z) * narrow(1) + place.y;
                    total += T0[line * narrow(0) + place.x];
                }
                row++;
            }
        }
    }
    return total;
}

#define RESULT T1

#else

// Returns the position on an axis, clamped to the range in which an input can still contribute.
float position(int place, uint at, uint axis)
{
    float found = float(place) + T1[at];
    return cml_isnan(found) ? -2.0 : clamp(found, -2.0, float(wide(axis)) + 1.0);
}

float value_at(uint plane, float y, float x)
{
    bool inside = y >= 0.0 && x >= 0.0 && y < float(wide(1)) && x < float(wide(0));
    if (!inside) { return 0.0; }
    return T0[(plane * wide(1) + uint(y)) * wide(0) + uint(x)];
}

float result_of(uint i)
{
    uint places = narrow(0) * narrow(1);
    uint window = taps(0) * taps(1);
    uint rest = cml_divide(i, places);
    uint place = i - rest * places;
    uint row = cml_divide(place, narrow(0));
    uint column = place - row * narrow(0);
    uint plane = cml_divide(rest, window);
    uint tap = rest - plane * window;
    uint item = cml_divide(plane, channels);
    uint group = cml_divide((plane - item * channels) * offset_groups, channels);
    uint own = (item * offset_groups + group) * window + tap;
    uint tap_row = cml_divide(tap, taps(0));
    uint tap_column = tap - tap_row * taps(0);
    int above = int(row * stride(1) + tap_row * dilation(1)) - before(1);
    int left = int(column * stride(0) + tap_column * dilation(0)) - before(0);
    float y = position(above, own * 2 * places + place, 1);
    float x = position(left, (own * 2 + 1) * places + place, 0);
    float low_y = floor(y);
    float low_x = floor(x);
    float part_y = y - low_y;
    float part_x = x - low_x;
    float upper = value_at(plane, low_y, low_x) * (1.0 - part_x) +
        value_at(plane, low_y, low_x + 1.0) * part_x;
    float lower = value_at(plane, low_y + 1.0, low_x) * (1.0 - part_x) +
        value_at(plane, low_y + 1.0, low_x + 1.0) * part_x;
    float result = upper * (1.0 - part_y) + lower * part_y;
    return result * T2[masked != 0 ? own * places + place : 0];
}

#define RESULT T3

#endif

CML_MAIN
{
    CML_EACH_GROUP(group)
    uint i = group * GROUP + lane;
    if (i < n) { RESULT[i] = result_of(i); }
}
