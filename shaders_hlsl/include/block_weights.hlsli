// Weights of 8 or 4 bits in T1: vectors of codes, four weights in 4 * WEIGHT_BITS bits, and from vector
// `scales_at` on the scales, one for every BLOCK weights of a sum.
#ifndef CML_BLOCK_WEIGHTS
#define CML_BLOCK_WEIGHTS

#ifdef WEIGHT_BITS

float4 cml_codes(uint i)
{
#if WEIGHT_BITS == 8
    uint bits = T1[i / 4][i % 4];
    return float4(int4(uint4(bits << 24, bits << 16, bits << 8, bits)) >> 24);
#else
    uint bits = T1[i / 8][i / 2 % 4] >> (i % 2 * 16);
    return float4(int4(uint4(bits << 28, bits << 24, bits << 20, bits << 16)) >> 28);
#endif
}

float cml_scale(uint s) { return asfloat(T1[scales_at + s / 4][s % 4]); }
float4 cml_scales(uint s) { return asfloat(T1[scales_at + s]); }

#endif

#endif
