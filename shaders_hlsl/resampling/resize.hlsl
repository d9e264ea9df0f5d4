// resize to any extents, on up to three spatial axes, innermost first. A thread computes one result.
// Positions are exact fractions of integers, so rounding never picks the wrong neighbour.

#include "divide.hlsli"

#if method_is_nearest
#define TAPS 1
#elif method_is_linear
#define TAPS 2
#else
#define TAPS 4
#endif

// Returns the source indices on an axis that a result depends on, and their weights.
struct Taps
{
    uint at[TAPS];
    float weight[TAPS];
};

// Returns quotient and remainder, rounded down also for negative values; b > 0.
int floor_div(int a, int b)
{
    int q = a / b;
    return a < q * b ? q - 1 : q;
}

Taps taps(uint i, uint axis)
{
    int extent = int(in_extent(axis));
    int size = int(out_extent(axis));
#if coordinates_is_symmetric
    int above = (2 * int(i) + 1) * extent - size;
    int below = 2 * size;
#elif coordinates_is_asymmetric
    int above = int(i) * extent;
    int below = size;
#else
    int above = int(i) * (extent - 1);
    int below = max(size - 1, 1);
#endif
    int first = floor_div(above, below);
    int rest = above - first * below;
    Taps t;
#if method_is_nearest
#if rounding_is_half_down
    int index = first + (rest > below - rest ? 1 : 0);
#elif rounding_is_half_up
    int index = first + (rest >= below - rest ? 1 : 0);
#elif rounding_is_floor
    int index = first;
#else
    int index = first + (rest > 0 ? 1 : 0);
#endif
    t.at[0] = uint(clamp(index, 0, extent - 1));
    t.weight[0] = 1.0;
#else
    float part = float(rest) / float(below);
    int lead = TAPS == 4 ? 1 : 0;
    CML_UNROLL(int, k, TAPS) {
        t.at[k] = uint(clamp(first + k - lead, 0, extent - 1));
    }
#if method_is_linear
    t.weight[0] = 1.0 - part;
    t.weight[1] = part;
#else
    float a = coefficient;
    float s = 1.0 - part;
    t.weight[0] = a * part * s * s;
    t.weight[1] = ((a + 2.0) * part - (a + 3.0)) * part * part + 1.0;
    t.weight[2] = ((a + 2.0) * s - (a + 3.0)) * s * s + 1.0;
    t.weight[3] = a * s * part * part;
#endif
#endif
    return t;
}

float line(uint row, Taps x)
{
    float sum = 0.0;
    CML_UNROLL(uint, k, TAPS) { sum += T0[row + x.at[k]] * x.weight[k]; }
    return sum;
}

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint column = i;
    uint rest = cml_divide_rest(column, out_extent(0));
    Taps x = taps(column, 0);
#if SPATIAL == 1
    T1[i] = line(rest * in_extent(0), x);
#else
    uint row = rest;
    rest = cml_divide_rest(row, out_extent(1));
    Taps y = taps(row, 1);
#if SPATIAL == 2
    float sum = 0.0;
    for (uint j = 0; j < TAPS; j++) {
        sum += line((rest * in_extent(1) + y.at[j]) * in_extent(0), x) * y.weight[j];
    }
#else
    uint slice = rest;
    rest = cml_divide_rest(slice, out_extent(2));
    Taps z = taps(slice, 2);
    float sum = 0.0;
    for (uint k = 0; k < TAPS; k++) {
        uint plane = (rest * in_extent(2) + z.at[k]) * in_extent(1);
        float part = 0.0;
        for (uint j = 0; j < TAPS; j++) {
            part += line((plane + y.at[j]) * in_extent(0), x) * y.weight[j];
        }
        sum += part * z.weight[k];
    }
#endif
    T1[i] = sum;
#endif
}
