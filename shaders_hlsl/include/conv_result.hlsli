// Stores four channels of a finished result of convolutions, without bias and epilogue (conv_store.hlsli).
// OUT is plain, or in blocks of four channels if OUT_C4. FULL: every block has four channels.
#ifndef CML_CONV_RESULT
#define CML_CONV_RESULT

#include "conv_shuffle.hlsli"

// Stores a block, which has a first channel, at position `at` of `positions`.
void cml_store_result(float4 v, uint block, uint image, uint at, uint positions) {
#if OUT_C4
    uint to = (image * ((out_c + 3) / 4) + block) * positions + at;
#if FULL
    OUT[to] = v;
#else
    uint4 channel = 4 * block + uint4(0, 1, 2, 3);
    OUT[to] = select(channel < uint4(out_c), v, float4(0.0));
#endif
#else
    {CML_UNROLL(int, row, 4) {
        uint channel = 4 * block + row;
        uint to = (image * out_c + channel) * positions + at;
        if (FULL || row == 0 || channel < out_c) { OUT[PLACE] = v[row]; }
    }}
#endif
}

#endif
