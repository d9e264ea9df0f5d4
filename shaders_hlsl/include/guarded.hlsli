// exp and log that are right for NaN, for zero and for negative numbers, where the driver's own are not
// (cml_engine/gpu/driver_functions.py). All other results are the driver's;
// those of half are computed in float.
#ifndef CML_GUARDED
#define CML_GUARDED

#define CML_GUARD(T, BITS) \
    T cml_guarded_exp(T x, T y) { return select((asuint(x) & 0x7fffffffu) > 0x7f800000u, x, y); } \
    T cml_guarded_log(T x, T y) { \
        BITS bits = select(asuint(x) == 0x80000000u, BITS(0u), asuint(x)); \
        y = select(bits == 0u, T(-1.0) / abs(x), y); \
        return select(bits > 0x7f800000u, asfloat(bits | 0x7fc00000u), y); \
    } \
    T cml_exp(T x) { return cml_guarded_exp(x, exp(x)); } \
    T cml_exp2(T x) { return cml_guarded_exp(x, exp2(x)); } \
    T cml_log(T x) { return cml_guarded_log(x, log(x)); } \
    T cml_log2(T x) { return cml_guarded_log(x, log2(x)); }

CML_GUARD(float, uint)
CML_GUARD(float2, uint2)
CML_GUARD(float3, uint3)
CML_GUARD(float4, uint4)

#define exp(x) cml_exp(x)
#define exp2(x) cml_exp2(x)
#define log(x) cml_log(x)
#define log2(x) cml_log2(x)

#endif
