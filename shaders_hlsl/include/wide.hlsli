// Four or eight floats that are loaded and stored as 64-bit integers.
//
// A software driver loads and stores lane by lane, and a 64-bit integer costs it as much as a float.
// LOADED is a block of four channels of the input, which is two 64-bit integers if WIDE_INPUT, and
// STORED one of the result, if WIDE_OUTPUT.
#ifndef CML_WIDE
#define CML_WIDE

#include "seal.hlsli"

struct Eight {
    float4 part[2];
};

uint64_t cml_join(float low, float high) {
    return uint64_t(asuint(low)) | (uint64_t(asuint(high)) << 32);
}

// The maximum with a sealed 0 keeps the driver from joining the numbers of each lane one by one.
uint64_t2 cml_join(float4 v) {
    return max(uint64_t2(cml_join(v.x, v.y), cml_join(v.z, v.w)), uint64_t2(CML_SEAL));
}

float4 cml_split(uint64_t2 v) {
    return asfloat(uint4(uint(v.x), uint(v.x >> 32), uint(v.y), uint(v.y >> 32)));
}

Eight cml_split(uint64_t4 v) {
    Eight e = {{cml_split(v.xy), cml_split(v.zw)}};
    return e;
}

#if WIDE_INPUT
#define LOADED(block) cml_split(block)
#else
#define LOADED(block) block
#endif
#if WIDE_FILTER
#define LOADED_FILTER(block) cml_split(block)
#else
#define LOADED_FILTER(block) block
#endif
#if WIDE_OUTPUT
#define STORED(block) cml_join(block)
#else
#define STORED(block) block
#endif

#endif
