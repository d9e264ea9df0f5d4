// area_downsample and multilinear_upsample of up to three spatial axes, the innermost first:
// extents, factors and offsets of axis 0 are those of x.
//
// ITEM is a float, or a float4 of four channels if the tensors are in blocks; the arithmetic is the
// same. A thread computes ITEMS results of one row, `blocks` apart, so that neighbouring lanes write
// neighbouring results.
#include "divide.hlsli"

#ifdef AREA

ITEM block_mean(uint outer, uint z, uint y, uint x)
{
    ITEM sum = ITEM(0.0);
    for (uint k = 0; k < factor(2); k++) {
        for (uint j = 0; j < factor(1); j++) {
            uint plane = outer * in_extent(2) + z * factor(2) + k;
            uint row = (plane * in_extent(1) + y * factor(1) + j) * in_extent(0) + x * factor(0);
            // rows are summed separately, which keeps the rounding error of long sums small
            ITEM row_sum = ITEM(0.0);
            for (uint i = 0; i < factor(0); i++) { row_sum += T0[row + i]; }
            sum += row_sum;
        }
    }
    return sum / ITEM(float(factor(0) * factor(1) * factor(2)));
}

#else

// Returns the two source indices around a result, and their weights.
struct Taps
{
    uint at[2];
    float weight[2];
};

Taps taps(uint i, uint extent, uint f)
{
    // t = first + part; the fraction is exact for the first two methods, so rounding never picks
    // the wrong neighbour
#if method_is_symmetric
    uint scaled = 2 * i + 1 + f;
    int first = int(cml_divide_rest(scaled, 2 * f)) - 1;
    float part = float(scaled) / float(2 * f);
#elif method_is_asymmetric
    int first = int(cml_divide_rest(i, f));
    float part = float(i) / float(f);
#else
    // i (x - 1) / (x f - 1) = i / f - i (f - 1) / (f (x f - 1)), which avoids overflow of i (x - 1)
    float back = float(i) * float(f - 1) / float(max(extent * f - 1, 1));
    int first = int(cml_divide_rest(i, f));
    float part = (float(i) - back) / float(f);
    if (part < 0.0) {
        first -= 1;
        part += 1.0;
    }
#endif
    int end = int(extent) - 1;
    Taps t;
    t.at[0] = uint(clamp(first, 0, end));
    t.at[1] = uint(clamp(first + 1, 0, end));
#ifdef REFLECT
    // taps are at most one step outside
    if (first < 0) { t.at[0] = uint(min(1, end)); }
    if (first >= end) { t.at[1] = uint(max(end - 1, 0)); }
#endif
    t.weight[0] = 1.0 - part;
    t.weight[1] = part;
#if defined(ZERO_BORDER) && !method_is_aligned
    if (first < 0) { t.weight[0] = 0.0; }
    if (first >= end) { t.weight[1] = 0.0; }
#endif
    return t;
}

#endif

CML_MAIN
{
    CML_EACH_THREAD(rest, n)
    uint x = rest;
    uint line = cml_divide_rest(x, blocks);
    uint outer = line;
    uint y = 0;
    uint z = 0;
    if (SPATIAL > 1) {
        y = outer;
        outer = cml_divide_rest(y, out_extent(1));
    }
    if (SPATIAL > 2) {
        z = outer;
        outer = cml_divide_rest(z, out_extent(2));
    }
#ifndef AREA
    uint row_at[ROWS];
    float row_weight[ROWS];
#if SPATIAL == 1
    row_at[0] = outer * in_extent(0);
    row_weight[0] = 1.0;
#else
    Taps ty = taps(y, in_extent(1), factor(1));
#if SPATIAL == 3
    Taps tz = taps(z, in_extent(2), factor(2));
#endif
    CML_UNROLL(uint, r, ROWS) {
#if SPATIAL == 3
        uint plane = outer * in_extent(2) + tz.at[r / 2];
        row_weight[r] = tz.weight[r / 2] * ty.weight[r % 2];
#else
        uint plane = outer;
        row_weight[r] = ty.weight[r];
#endif
        row_at[r] = (plane * in_extent(1) + ty.at[r % 2]) * in_extent(0);
    }
#endif
#endif
    CML_UNROLL(uint, k, ITEMS) {
        if (x < out_extent(0)) {
#ifdef AREA
            T1[line * out_extent(0) + x] = block_mean(outer, z, y, x);
#else
            Taps tx = taps(x, in_extent(0), factor(0));
            ITEM sum = ITEM(0.0);
            CML_UNROLL(uint, row, ROWS) {
                ITEM value = ITEM(T0[row_at[row] + tx.at[0]]) * tx.weight[0];
                value += ITEM(T0[row_at[row] + tx.at[1]]) * tx.weight[1];
                sum += value * row_weight[row];
            }
            T1[line * out_extent(0) + x] = sum;
#endif
        }
        x += blocks;
    }
}
