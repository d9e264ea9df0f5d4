// pad: copies T0 to T1, which may be larger or smaller; the border rule gives the values outside of T0.
//
// Dimension 0 is the innermost; in(d) and out(d) are extents, before(d) is the input's offset in the
// output (negative: cropped), src_stride(d) counts items. A thread writes ITEMS items of one row of the
// output, `blocks` apart. An item is a 32-bit word or, if rows are aligned, a uint4.

#include "border.hlsli" // outside of a constant border: -1
#include "divide.hlsli"

CML_MAIN
{
    CML_EACH_THREAD(rest, n)
    uint at = rest;
    rest = cml_divide_rest(at, blocks);
    uint dst = rest * out_extent(0) + at;
    uint src = 0;
    bool inside = true;
    [ForceUnroll]
    for (uint d = 1; d < RANK; d++) {
        uint index = rest;
        if (d + 1 < RANK) { rest = cml_divide_rest(index, out_extent(d)); }
        int from = cml_border(int(index) - before(d), int(in_extent(d)));
        inside = inside && uint(from) < in_extent(d);
        src += uint(from) * src_stride(d);
    }
    CML_UNROLL(uint, k, ITEMS) {
        if (at < out_extent(0)) {
            int from = cml_border(int(at) - before(0), int(in_extent(0)));
            if (inside && uint(from) < in_extent(0)) {
                T1[dst] = T0[src + uint(from)];
            } else {
                T1[dst] = T1_TYPE(value);
            }
        }
        at += blocks;
        dst += blocks;
    }
}
