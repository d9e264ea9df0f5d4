// The functions of the integer operators and of the operators that round floats to whole numbers
// (cml_engine/ops/elementwise/elementwise.py). Cases that C leaves undefined are defined here.
#ifndef CML_INTEGRAL
#define CML_INTEGRAL

#include "pointwise.hlsli"

// Rounds towards zero. Division by 0 gives 0; -2^31 / -1 wraps around.
int cml_int_div(int a, int b) {
    if (b == 0) { return 0; }
    if (b == -1) { return 0 - a; }
    return a / b;
}

// Returns the remainder of that division, with the sign of a; 0 for division by 0.
int cml_int_rem(int a, int b) {
    if (b == 0 || b == -1) { return 0; }
    return a - a / b * b;
}

// Returns the remainder with the sign of b.
int cml_int_mod(int a, int b) {
    int rest = cml_int_rem(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// Divides the bits as unsigned integers. Division by 0 gives 0.
int cml_uint_div(int a, int b) { return b == 0 ? 0 : int(uint(a) / uint(b)); }

int cml_uint_mod(int a, int b) { return b == 0 ? 0 : int(uint(a) % uint(b)); }

int cml_shift_left(int a, int by) {
    return by < 0 || by > 31 ? 0 : int(uint(a) << uint(by));
}

int cml_shift_right(int a, int by) {
    return by < 0 || by > 31 ? 0 : int(uint(a) >> uint(by));
}

// Returns the upper 32 bits of a product.
uint cml_mul_high(uint a, uint b) {
    uint low = a & 0xffffu;
    uint high = a >> 16;
    uint middle = high * (b & 0xffffu) + ((low * (b & 0xffffu)) >> 16);
    return high * (b >> 16) + (middle >> 16) + ((low * (b >> 16) + (middle & 0xffffu)) >> 16);
}

// Returns word i % 4 of Philox4x32-10 at the counter (i / 4, draw, 0, 0) with the key
// (seed, stream), where i is row + column.
int cml_random_bits(int row, int column, int draw, int seed, int stream) {
    uint index = uint(row) + uint(column);
    uint4 words = uint4(index >> 2, uint(draw), 0u, 0u);
    uint2 key = uint2(uint(seed), uint(stream));
    for (uint i = 0; i < 10u; i++) {
        words = uint4(cml_mul_high(0xCD9E8D57u, words.z) ^ words.y ^ key.x, 0xCD9E8D57u * words.z,
                      cml_mul_high(0xD2511F53u, words.x) ^ words.w ^ key.y, 0xD2511F53u * words.x);
        key += uint2(0x9E3779B9u, 0xBB67AE85u);
    }
    uint place = index & 3u;
    return int(place < 2u ? (place == 0u ? words.x : words.y) : (place == 2u ? words.z : words.w));
}

bool cml_isinf(float x) { return (asuint(x) & 0x7fffffffu) == 0x7f800000u; }

// Halves are rounded to the even number. The sign is set without bit operations: where a floor
// follows, llvmpipe with vectors of 128 bits compiles those wrongly.
float cml_round_even(float x) {
    float low = floor(x);
    float part = x - low;
    float y = part > 0.5 || (part == 0.5 && cml_is_odd(low)) ? low + 1.0 : low;
    return x < 0.0 ? -abs(y) : y;
}

// Returns C's fmod exactly, by long division with an iteration for each bit of the quotient. A
// denormal divisor counts as 0, because a device may flush it.
float cml_fmod(float x, float y) {
    float rest = abs(x);
    float divisor = abs(y);
    if (cml_isnan(x) || cml_isnan(y) || cml_isinf(x) || divisor < 1.1754944e-38) { return cml_nan(x); }
    while (rest >= divisor && !cml_isinf(y)) {
        uint turns = (asuint(rest) >> 23) - (asuint(divisor) >> 23);
        float term = asfloat(asuint(divisor) + (turns << 23));
        if (term > rest) { term = asfloat(asuint(term) - (1u << 23)); }
        rest -= term;
    }
    return cml_with_sign_of(rest, x);
}

#endif
