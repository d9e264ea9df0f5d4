// T2[o, j, row] = T0[o, T1[j], row].
//
// Each index selects `row` items (1 if the last axis is gathered); a thread copies ITEMS of
// one row, `blocks` apart. An item is a 32-bit word or, if rows are aligned, a uint4. An index outside
// of the axis is clamped to it: the CPU refuses such an index, a shader cannot.
#include "divide.hlsli"

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
