// Copies a window of each of up to PARTS tensors into one tensor, in one dispatch.
//
// A workgroup copies items of one part: those of part k begin with workgroup begin(k). Its window has
// RANK dimensions, innermost first, with the part's strides in the source and the result's own.
// Items are 32-bit words of any type. ITEM sets `value` to the item of a part at `at` of its source.
//
// CHAIN: ITEM computes some parts, from float32 sources, numbers attr(i), and the channel of the item,
// which is its index of dimension CHAIN.
#include "divide.hlsli"
#ifdef CHAIN
#include "integer_rule.hlsli"
#include "integral.hlsli"
#include "pointwise.hlsli"
#include "seal.hlsli"
#endif

#define SELECT(k) if (PARTS > k && group >= begin(k)) { part = k; }

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
            uint at = src_offset(part);
            uint dst = dst_offset(part);
            uint channel = 0;
            CML_UNROLL(uint, d, RANK) {
                uint index = rest;
                if (d + 1 < RANK) { rest = cml_divide_rest(index, shape(part * RANK + d)); }
#ifdef CHAIN
                if (d == CHAIN) { channel = index; }
#endif
                at += index * src_stride(part * RANK + d);
                dst += index * dst_stride(part * RANK + d);
            }
            uint value = 0;
            ITEM
            OUT[dst] = value;
        }
    }
}
