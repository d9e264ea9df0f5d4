// Stores four channels of a conv's result: adds the bias, applies the epilogue, writes the layout.
// BIAS is the buffer of the bias in blocks of four; OUT is plain, or in blocks if OUT_C4, which are
// two 64-bit integers if WIDE_OUTPUT. FULL: every block has four channels.
#ifndef CML_CONV_STORE
#define CML_CONV_STORE

#include "divide.hlsli"
#include "epilogue.hlsli"
#include "number.hlsli"
#include "wide.hlsli"

#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef FULL
#define FULL 0
#endif

// The values that are read once per block of four channels, before its positions are stored.
struct Block {
    uint number;
    NUMBER4 bias;
#if OUT_C4
    EpiOperands operands;
#else
    EpiOperands operands[4];
#endif
};

Block cml_block(uint number) {
    Block block;
    block.number = number;
    block.bias = BIAS[number];
#if OUT_C4
    block.operands = cml_epilogue_operands(number);
#else
    {CML_UNROLL(int, lane, 4) {
        block.operands[lane] = cml_epilogue_operands(min(4 * number + lane, out_c - 1));
    }}
#endif
    return block;
}

#include "conv_shuffle.hlsli"

// Stores a block at position `at` of `volume`. Lanes past the last channel become zeros.
void cml_store(NUMBER4 sums, Block block, uint image, uint at, uint volume) {
    sums += block.bias;
#if OUT_C4
    uint to = (image * ((out_c + 3) / 4) + block.number) * volume + at;
    float4 v = cml_epilogue(sums, block.operands, to);
#if FULL
    OUT[to] = STORED(v);
#else
    uint4 channel = 4 * block.number + uint4(0, 1, 2, 3);
    OUT[to] = STORED(select(channel < uint4(out_c), v, float4(0.0)));
#endif
#else
    {CML_UNROLL(int, lane, 4) {
        uint channel = 4 * block.number + lane;
        uint to = (image * out_c + channel) * volume + at;
        // a block has a first channel; hardware's compilers find the buffers before the others
        bool exists = FULL || AHEAD && lane == 0 || channel < out_c;
        if (exists) { OUT[PLACE] = cml_epilogue(sums[lane], block.operands[lane], to); }
    }}
#endif
}

#endif
