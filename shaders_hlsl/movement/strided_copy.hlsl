// Strided copies: T1[dst] = T0[src] for every index of a box of up to RANK dimensions.
//
// Dimension 0 is the innermost; strides count items and may be zero or negative. An item is a 32-bit
// word (any dtype), or a uint4 if both sides move aligned runs. ROWS: a thread copies ITEMS items of
// one row, `blocks` apart, so that neighbouring lanes access neighbouring items. Without ROWS (short
// rows) a thread copies ITEMS consecutive indices and carries from dimension to dimension instead of
// dividing again. TILE: transposes a matrix in tiles of SIDE x SIDE words through groupshared memory,
// so that both reads and writes are contiguous.
#include "divide.hlsli"

#ifndef ITEMS
#define ITEMS 4
#endif

#ifdef TILE

groupshared uint tile[SIDE][SIDE + 1]; // + 1: a column's words lie in different banks

// Dimension 0 runs along dst, dimension 1 along src; a workgroup moves SIDE x SIDE of them.
CML_MAIN
{
    CML_EACH_GROUP(rest)
    uint tiles0 = (shape(0) + SIDE - 1) / SIDE;
    uint tiles1 = (shape(1) + SIDE - 1) / SIDE;
    uint base0 = rest;
    rest = cml_divide_rest(base0, tiles0);
    uint base1 = rest;
    rest = cml_divide_rest(base1, tiles1);
    base0 *= SIDE;
    base1 *= SIDE;
    uint src = uint(src_offset);
    uint dst = uint(dst_offset);
    [ForceUnroll]
    for (uint d = 2; d < RANK; d++) {
        uint at = rest;
        if (d + 1 < RANK) { rest = cml_divide_rest(at, shape(d)); }
        src += at * uint(src_stride(d));
        dst += at * uint(dst_stride(d));
    }
    uint x = lane % SIDE;
    for (uint y = lane / SIDE; y < SIDE; y += GROUP / SIDE) {
        if (base1 + x < shape(1) && base0 + y < shape(0)) {
            tile[y][x] = T0[src + (base1 + x) * uint(src_stride(1)) + (base0 + y) * uint(src_stride(0))];
        }
    }
    GroupMemoryBarrierWithGroupSync();
    for (uint z = lane / SIDE; z < SIDE; z += GROUP / SIDE) {
        if (base0 + x < shape(0) && base1 + z < shape(1)) {
            T1[dst + (base0 + x) * uint(dst_stride(0)) + (base1 + z) * uint(dst_stride(1))] = tile[x][z];
        }
    }
}

#elif defined(ROWS)

CML_MAIN
{
    CML_EACH_THREAD(rest, n)
    uint at = rest;
    if (RANK > 1) { rest = cml_divide_rest(at, blocks); }
    uint src = uint(src_offset) + at * uint(src_stride(0));
    uint dst = uint(dst_offset) + at * uint(dst_stride(0));
    [ForceUnroll]
    for (uint d = 1; d < RANK; d++) {
        uint index = rest;
        if (d + 1 < RANK) { rest = cml_divide_rest(index, shape(d)); }
        src += index * uint(src_stride(d));
        dst += index * uint(dst_stride(d));
    }
    CML_UNROLL(uint, k, ITEMS) {
        if (at < shape(0)) { T1[dst] = T0[src]; }
        at += blocks;
        src += blocks * uint(src_stride(0));
        dst += blocks * uint(dst_stride(0));
    }
}

#else

CML_MAIN
{
    CML_EACH_GROUP(group)
    uint first = (group * GROUP + lane) * ITEMS;
    uint index[RANK];
    uint rest = first;
    uint src = uint(src_offset);
    uint dst = uint(dst_offset);
    CML_UNROLL(uint, d, RANK) {
        index[d] = rest;
        if (d + 1 < RANK) { rest = cml_divide_rest(index[d], shape(d)); }
        src += index[d] * uint(src_stride(d));
        dst += index[d] * uint(dst_stride(d));
    }
    CML_UNROLL(uint, k, ITEMS) {
        if (first + k < n) { T1[dst] = T0[src]; }
        index[0]++;
        src += uint(src_stride(0));
        dst += uint(dst_stride(0));
        [ForceUnroll]
        for (uint d = 0; d + 1 < RANK; d++) {
            if (index[d] == shape(d)) {
                index[d] = 0;
                index[d + 1]++;
                src += uint(src_carry(d));
                dst += uint(dst_carry(d));
            }
        }
    }
}

#endif
