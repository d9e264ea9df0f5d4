// T3[roi, channel, y, x] = the average or the maximum of samples of T0 inside of a cell of roi T1, in
// batch item T2. A thread computes one result from the rows of samples `begin` to `end`; axis 0 is the
// innermost, the order of a roi's coordinates.
#include "integral.hlsli"

struct Line
{
    float start;
    float cell;
    uint count;
};

float coordinate(uint roi, uint which)
{
    float value = T1[roi * 4 + which];
    return cml_isnan(value) ? 0.0 : clamp(value, -16777216.0, 16777216.0);
}

Line line_of(uint roi, uint axis)
{
    float shift = half_pixel != 0 ? 0.5 : 0.0;
    Line found;
    found.start = coordinate(roi, axis) * scale - shift;
    float size = coordinate(roi, axis + 2) * scale - shift - found.start;
    if (half_pixel == 0) { size = max(size, 1.0); }
    float cells = float(out_extent(axis));
    found.cell = size / cells;
    // the smallest integer that covers the cell; corrects for the rounding of the quotient
    float count = clamp(ceil(found.cell), 0.0, float(most(axis)));
    if (count > 0.0 && (count - 1.0) * cells >= size) { count -= 1.0; }
    if (count < float(most(axis)) && count * cells < size) { count += 1.0; }
    found.count = ratio != 0 ? ratio : uint(count);
    return found;
}

// NaN wins
float greater(float a, float b) { return b > a || cml_isnan(b) ? b : a; }

struct Taps
{
    uint at[2];
    float weight[2];
};

Taps taps_of(Line given, uint axis, uint place, uint sample)
{
    float extent = float(in_extent(axis));
    float offset = (float(sample) + 0.5) * given.cell / float(given.count);
    float at = given.start + (float(place) * given.cell + offset);
    float inside = at >= -1.0 && at <= extent ? 1.0 : 0.0;
    at = clamp(at, 0.0, extent - 1.0);
    float low = floor(at);
    Taps t;
    t.at[0] = uint(low);
    t.at[1] = min(uint(low) + 1, in_extent(axis) - 1);
    t.weight[0] = (1.0 - (at - low)) * inside;
    t.weight[1] = (at - low) * inside;
    return t;
}

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint column = i % out_extent(0);
    uint rest = i / out_extent(0);
    uint row = rest % out_extent(1);
    rest /= out_extent(1);
    uint roi = rest / channels;
    uint item = uint(clamp(T2[roi * per_roi], 0, int(batch) - 1));
    uint plane = (item * channels + rest % channels) * in_extent(1);
    Line across = line_of(roi, 0);
    Line down = line_of(roi, 1);
    float total = begin > 0 ? T3[i] : 0.0;
    for (uint sy = begin; sy < min(end, down.count); sy++) {
        Taps y = taps_of(down, 1, row, sy);
        for (uint sx = 0; sx < across.count; sx++) {
            Taps x = taps_of(across, 0, column, sx);
            float best = 0.0;
            float sum = 0.0;
            CML_UNROLL(uint, k, 4) {
                uint at = (plane + y.at[k / 2]) * in_extent(0) + x.at[k % 2];
                float weight = y.weight[k / 2] * x.weight[k % 2];
                // the value of a sample outside may be infinite or NaN
                float term = weight == 0.0 ? 0.0 : T0[at] * weight;
                sum += term;
                best = k == 0 ? term : greater(best, term);
            }
            if (greatest == 0) {
                total += sum;
            } else {
                total = sx == 0 && sy == 0 ? best : greater(total, best);
            }
        }
    }
    uint count = across.count * down.count;
    if (greatest == 0 && last != 0) { total /= float(max(count, 1)); }
    T3[i] = total;
}
