// Storing four channels of a conv's result: bias, epilogue, layout.
// BIAS is the buffer of the bias in float4s; OUT is plain, or float4 where OUT_C4.
#ifndef CML_CONV_STORE
#define CML_CONV_STORE

#include "epilogue.hlsli"

// `block` of four channels at position `at` of `volume`. Lanes past the last channel become zeros.
void cml_store(float4 v, uint image, uint block, uint at, uint volume) {
    v += BIAS[block];
#if OUT_C4
    uint to = (image * ((out_c + 3) / 4) + block) * volume + at;
    v = cml_epilogue(v, block, to);
    uint4 channel = 4 * block + uint4(0, 1, 2, 3);
    OUT[to] = select(channel < uint4(out_c, out_c, out_c, out_c), v, float4(0.0, 0.0, 0.0, 0.0));
#else
    {[ForceUnroll] for (int lane = 0; lane < 4; lane++) {
        uint channel = 4 * block + lane;
        uint to = (image * out_c + channel) * volume + at;
        if (channel < out_c) { OUT[to] = cml_epilogue(v[lane], channel, to); }
    }}
#endif
}

#endif
