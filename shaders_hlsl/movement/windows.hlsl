// Copies a window of each of up to PARTS tensors into one tensor, in one dispatch.
//
// A workgroup copies items of one part: those of part k begin with workgroup begin(k). Its window has
// RANK dimensions, innermost first, with the part's strides in the source and the result's own.
// Items are 32-bit words of any type.
#include "divide.hlsli"

#define SELECT(k) if (PARTS > k && group >= begin(k)) { part = k; }
#define LOAD(k) else if (part == k) { value = T##k[at]; }

uint item(uint part, uint at)
{
    uint value = 0;
    if (part == 0) { value = T0[at]; }
    LOAD(1)
#if PARTS > 2
    LOAD(2)
#endif
#if PARTS > 3
    LOAD(3)
#endif
#if PARTS > 4
    LOAD(4)
#endif
#if PARTS > 5
    LOAD(5)
#endif
#if PARTS > 6
    LOAD(6)
#endif
    return value;
}

CML_MAIN
{
    CML_EACH_GROUP(group)
    uint part = 0;
    SELECT(1)
    SELECT(2)
    SELECT(3)
    SELECT(4)
    SELECT(5)
    SELECT(6)
    uint first = (group - begin(part)) * GROUP * ITEMS + lane;
    CML_UNROLL(uint, k, ITEMS) {
        uint rest = first + k * GROUP;
        if (rest < size(part)) {
            uint src = src_offset(part);
            uint dst = dst_offset(part);
            CML_UNROLL(uint, d, RANK) {
                uint index = rest;
                if (d + 1 < RANK) { rest = cml_divide_rest(index, shape(part * RANK + d)); }
                src += index * src_stride(part * RANK + d);
                dst += index * dst_stride(part * RANK + d);
            }
            OUT[dst] = item(part, src);
        }
    }
}
