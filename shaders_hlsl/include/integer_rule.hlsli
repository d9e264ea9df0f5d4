// The rule of integer inference (docs/integer.md). Quantized values are whole numbers in floats; sums
// are whole numbers in floats or integers. They are scaled in 32-bit integers, one or four at once.
#ifndef CML_INTEGER_RULE
#define CML_INTEGER_RULE

#include "seal.hlsli"

// F: the floats, I: the integers.
//
// cml_integer_numbers: 0 has no sign. Some drivers turn F(I(a)) into trunc(a), which keeps -0.
//
// cml_scale_sum: a sum times mantissa / 2^exponent, halves rounded up. `code` is
// mantissa * 64 + exponent. The mantissa has 15 bits, so its product with either half of the sum fits
// 32 bits. The right shift is at least 17 bits: for a smaller exponent the sum is shifted left first,
// which the quantizer has proven to fit.
#define CML_RULE(F, I) \
    I cml_scale_sum(I total, F code) { \
        I number = I(code); \
        I by = number >> 6; \
        I exponent = number & 63; \
        I shift = max(exponent, I(17)); \
        I wide = total << max(I(17) - exponent, I(0)); \
        I high = (wide >> 16) * by + (((wide & 0xffff) * by) >> 16); \
        return (high + (I(1) << (shift - 17))) >> (shift - 16); \
    } \
    F cml_requantize(I a, F code, F low, F high) { \
        return clamp(F(cml_scale_sum(a, code)), low, high); \
    } \
    F cml_requantize(F a, F code, F low, F high) { \
        return cml_requantize(I(a), code, low, high); \
    } \
    F cml_integer_numbers(F a, F scale) { return select(I(a) == I(0), F(0.0), F(I(a)) * scale); } \
    F cml_requantize_signed(I a, F code, F negative, F low, F high) { \
        return cml_requantize(a, select(a < I(0), negative, code), low, high); \
    } \
    F cml_requantize_signed(F a, F code, F negative, F low, F high) { \
        return cml_requantize_signed(I(a), code, negative, low, high); \
    } \
    F cml_requantize_wide(F a, F b, F code, F factor, F low, F high) { \
        I total = I(a) * I(factor) + I(b); \
        return clamp(F(cml_scale_sum(total, code)), low, high); \
    } \
    F cml_requantize_wide_signed( \
        F a, F b, F code, F negative, F factor, F low, F high \
    ) { \
        I total = I(a) * I(factor) + I(b); \
        F chosen = select(total < I(0), negative, code); \
        return clamp(F(cml_scale_sum(total, chosen)), low, high); \
    } \
    F cml_requantize_pair(F a, F b, F first, F second, F shift, F low, F high) { \
        I by = I(shift); \
        I total = I(a) * I(first) + I(b) * I(second) + (I(1) << (by - 1)); \
        return clamp(F(total >> by), low, high); \
    } \
    F cml_requantize_product(F a, F b, F code, F low, F high) { \
        return clamp(F(cml_scale_sum(I(a) * I(b), code)), low, high); \
    }

CML_RULE(float, int)
CML_RULE(float4, int4)

// Quantizes a real number. The product is sealed, so it is rounded before it is compared.
float cml_integer_words(float a, float inverse, float low, float high) {
    bool nan = (asuint(a) & 0x7fffffffu) > 0x7f800000u;
    float steps = clamp(cml_sealed(a * inverse), low - 1.0, high + 1.0);
    float below = floor(steps);
    float near = steps - below >= 0.5 ? below + 1.0 : below;
    return nan ? 0.0 : clamp(near, low, high);
}

#endif
