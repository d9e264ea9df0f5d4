// Regions of interest on up to three spatial axes, innermost first: axis 0 is x. A thread computes one
// result.
//
// defines: AVG_POOL, MAX_POOL   reduce the values of a cell
//          SAMPLE               interpolates by METHOD
// tensors: the maps, rois (first corner, second corner, outermost axis first), batch index, result
//
// Rois are data, so every index below is clamped to the input, whatever they hold. If a cell may have
// more values than one launch can handle, several launches each process [x_begin, x_end) of the rows
// [row_begin, row_end), and continue from the partial result in T3.
#include "pointwise.hlsli"

// Clamps to 2^24, up to which floats represent every integer; NaN becomes 0.
float coordinate(uint roi, uint corner, uint axis)
{
    float at = T1[(roi * 2 + corner) * SPATIAL + SPATIAL - 1 - axis];
    return cml_isnan(at) ? 0.0 : clamp(at, -16777216.0, 16777216.0);
}

#ifndef SAMPLE

void accumulate(inout float total, float value)
{
#ifdef MAX_POOL
    // NaN wins, as in max_pool
    total = value > total || (cml_isnan(value) && !cml_isnan(total)) ? value : total;
#else
    total += value;
#endif
}

// Returns cell i of a roi on one axis as [x, y), clipped to the input.
int2 cell(uint roi, uint axis, uint i)
{
    int first = int(cml_round(coordinate(roi, 0, axis)));
    int size = max(int(cml_round(coordinate(roi, 1, axis))) - first, 0);
    int cells = int(out_extent(axis));
    int start = first + int(i) * (size / cells);
    int end = start + size / cells + (size % cells > 0 ? 1 : 0);
    return clamp(int2(start, end), 0, int(in_extent(axis)));
}

// Reduces the values of a cell, and returns their number.
float pooled(uint roi, uint plane, uint3 at, float total, out uint count)
{
    int2 xs = cell(roi, 0, at.x);
    int2 ys = int2(0, 1);
    int2 zs = int2(0, 1);
#if SPATIAL > 1
    ys = cell(roi, 1, at.y);
#endif
#if SPATIAL > 2
    zs = cell(roi, 2, at.z);
#endif
    count = uint(max(xs.y - xs.x, 0) * max(ys.y - ys.x, 0) * max(zs.y - zs.x, 0));
    int height = int(in_extent(1));
    int columns_end = min(xs.y, int(x_end));
    for (int z = max(zs.x, int(row_begin) / height); z < zs.y && z * height < int(row_end); z++) {
        int y_end = min(ys.y, int(row_end) - z * height);
        for (int y = max(ys.x, int(row_begin) - z * height); y < y_end; y++) {
            uint row = ((plane * in_extent(2) + uint(z)) * in_extent(1) + uint(y)) * in_extent(0);
            // adds up sums of rows, so the rounding error grows with a side, not with the area
            float line = asfloat(nothing);
            for (int x = max(xs.x, int(x_begin)); x < columns_end; x++) {
                accumulate(line, T0[row + uint(x)]);
            }
            accumulate(total, line);
        }
    }
    return total;
}

#else

// Returns the two neighbours of a sample on one axis, and its fraction between them.
struct Taps
{
    uint at[2];
    float part;
};

Taps taps(uint roi, uint axis, uint i)
{
    uint count = out_extent(axis);
    float first = coordinate(roi, 0, axis);
    float size = coordinate(roi, 1, axis) - first;
    // integers and fractions are kept separate, so large coordinates lose no precision
    float whole = floor(first);
#if method_is_symmetric
    float offset = (float(i) + 0.5) * size / float(count) - 0.5;
#elif method_is_asymmetric
    float offset = float(i) * size / float(count);
#else
    float offset = float(i) * (size - 1.0) / float(max(count, 2) - 1);
#endif
    offset += first - whole;
    float low = floor(offset);
    int index = int(whole) + int(low);
    int end = int(in_extent(axis)) - 1;
    Taps t;
    t.at[0] = uint(clamp(index, 0, end));
    t.at[1] = uint(clamp(index + 1, 0, end));
    t.part = offset - low;
    return t;
}

float interpolate(float a, float b, float part) { return a * (1.0 - part) + b * part; }

float sample_line(uint row, Taps x) { return interpolate(T0[row + x.at[0]], T0[row + x.at[1]], x.part); }

#if SPATIAL > 1
float sample_plane(uint plane, Taps x, Taps y)
{
    uint height = in_extent(1);
    float a = sample_line((plane * height + y.at[0]) * in_extent(0), x);
    float b = sample_line((plane * height + y.at[1]) * in_extent(0), x);
    return interpolate(a, b, y.part);
}
#endif

float sampled(uint roi, uint plane, uint3 at)
{
    Taps x = taps(roi, 0, at.x);
#if SPATIAL == 1
    return sample_line(plane * in_extent(0), x);
#else
    Taps y = taps(roi, 1, at.y);
#if SPATIAL == 2
    return sample_plane(plane, x, y);
#else
    Taps z = taps(roi, 2, at.z);
    uint depth = plane * in_extent(2);
    float a = sample_plane(depth + z.at[0], x, y);
    return interpolate(a, sample_plane(depth + z.at[1], x, y), z.part);
#endif
#endif
}

#endif

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint3 at;
    at.x = i % out_extent(0);
    uint rest = i / out_extent(0);
    at.y = rest % out_extent(1);
    rest /= out_extent(1);
    at.z = rest % out_extent(2);
    rest /= out_extent(2);
    uint roi = rest / channels;
    uint item = uint(clamp(T2[roi * per_roi], 0, int(batch) - 1));
    uint plane = item * channels + rest % channels;
#ifdef SAMPLE
    T3[i] = sampled(roi, plane, at);
#else
    uint count;
    float total = row_begin + x_begin == 0 ? asfloat(nothing) : T3[i];
    total = pooled(roi, plane, at, total, count);
    if (last != 0) {
#ifdef AVG_POOL
        total /= float(max(count, 1));
#endif
        total = count == 0 ? 0.0 : total;
    }
    T3[i] = total;
#endif
}
