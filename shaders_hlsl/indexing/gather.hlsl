// gather: T2[o, j, row] = T0[o, T1[j], row]; cast: T1[i] = T0[i] in another dtype.
//
// gather: each index selects `row` items (1 if the last axis is gathered); a thread copies ITEMS of
// one row, `blocks` apart. An item is a 32-bit word or, if rows are aligned, a uint4. An index outside
// of the axis is clamped to it: the CPU refuses such an index, a shader cannot.
#include "divide.hlsli"

#ifdef CAST

T1_TYPE converted(T0_TYPE x)
{
#if defined(FLOAT_TO_INT)
    // rounds towards zero, clamps to the range of int; NaN becomes 0
    bool nan = (asuint(x) & 0x7fffffffu) > 0x7f800000u;
    int inside = int(clamp(x, -2147483648.0, 2147483520.0));
    return nan ? 0 : (x >= 2147483648.0 ? 2147483647 : inside);
#elif defined(FLOAT_TO_LOGICAL)
    // tests the bits: NaN is not 0, and a device may flush a denormal to 0
    return (asuint(x) & 0x7fffffffu) != 0 ? 1u : 0u;
#elif defined(TO_LOGICAL)
    return x != T0_TYPE(0) ? 1u : 0u;
#else
    return T1_TYPE(x);
#endif
}

CML_MAIN
{
    CML_EACH_GROUP(group)
    CML_UNROLL(uint, k, ITEMS) {
        uint i = (group * ITEMS + k) * GROUP + lane;
        if (i < n) { T1[i] = converted(T0[i]); }
    }
}

#else

CML_MAIN
{
    CML_EACH_THREAD(rest, n)
    uint at = rest;
    rest = cml_divide_rest(at, blocks);
    uint outer = cml_divide(rest, indices);
    uint from = uint(clamp(T1[rest - outer * indices], 0, int(extent) - 1));
    uint src = (outer * extent + from) * row + at;
    uint dst = rest * row + at;
    CML_UNROLL(uint, k, ITEMS) {
        if (at < row) { T2[dst] = T0[src]; }
        at += blocks;
        src += blocks;
        dst += blocks;
    }
}

#endif
