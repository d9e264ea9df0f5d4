// The functions of the elementwise operators (cml_engine/ops/elementwise/elementwise.py).
//
// Vulkan allows errors of sin, cos, asin, acos and atan that show in a network (2^-11 for sin); HLSL
// has no inverse hyperbolic functions, and its pow takes no negative base. So these functions use only
// what every driver computes well: + - * /, sqrt, exp, log. The polynomials are our own minimax fits,
// off by less than 6e-9 on their reduced ranges.
#ifndef CML_POINTWISE
#define CML_POINTWISE

#include "seal.hlsli"
#define CML_T float
#define CML_TRUTH bool
#include "activations.hlsli"

static const float CML_LN2 = 0.69314718;
static const float CML_PI = 3.14159265;

bool cml_isnan(float x) { return (asuint(x) & 0x7fffffffu) > 0x7f800000u; }

// Both a != b and !(a == b) become SPIR-V's ordered comparison, which is false for NaN.
bool cml_unequal(float a, float b) {
    return a < b || a > b || cml_isnan(a) || cml_isnan(b);
}

// Built from a run-time value, because a compiler may refuse a NaN literal.
float cml_nan(float x) { return asfloat(asuint(x) | 0x7fc00000u); }

float cml_sign(float x) { return cml_isnan(x) ? x : float(x > 0.0) - float(x < 0.0); }

// Rounds halves up. Not floor(x + 0.5), whose sum is inexact for 0.49999997 and beyond 2^23.
float cml_round(float x) {
    float low = floor(x);
    return x - low >= 0.5 ? low + 1.0 : low;
}

// A driver may turn `a < b ? a : b` into a minimum, which treats NaN differently. Functions that
// depend on it test for NaN first.
float cml_min(float a, float b) { return cml_isnan(b) ? b : (a < b ? a : b); }
float cml_max(float a, float b) { return cml_isnan(b) ? b : (a > b ? a : b); }

// Half of an odd number ends in .5; infinities count as even.
bool cml_is_odd(float integral) { return frac(abs(integral) * 0.5) == 0.5; }

// Returns sin(r) for |r| up to pi / 2, negated if the number of half turns is odd.
float cml_sin_near(float r, bool odd) {
    float z = r * r;
    float p = ((2.60009938e-6 * z - 1.98066391e-4) * z + 8.3330177e-3) * z - 0.166666571;
    float s = r + r * z * p;
    return odd ? -s : s;
}

// Returns sin(x - turns * pi), negated if `halves` is odd. Pi is split in three parts, the first with
// few bits, so the difference stays exact for thousands of turns. Sealed, or Metal's compiler adds the
// parts up first.
float cml_sin_reduced(float x, float turns, float halves) {
    float r = cml_sealed(x - turns * 3.140625);
    r = cml_sealed(r - turns * 9.6750259e-4) - turns * 1.509958e-7;
    return cml_sin_near(r, cml_is_odd(halves));
}

// Larger angles need more digits of pi than the three parts have.
#define CML_MANY_TURNS 8192.0

// Returns 32 bits of 1 / (2 pi), `word` words after the binary point; 0 before it.
uint cml_turn_digits(uint word) {
    uint low = word == 1 ? 0x28be60dbu : (word == 2 ? 0x9391054au : 0x7f09d5f4u);
    uint high = word == 4 ? 0x7d4d3770u : (word == 5 ? 0x36d8a566u : 0x4f10e410u);
    return word == 0 ? 0 : (word < 4 ? low : high);
}

// Returns an angle modulo a turn, in 2^-32 turns. An angle is a 24-bit whole number times a power of
// two. Only the fraction of its product with 1 / (2 pi) matters, and 64 digits of 1 / (2 pi), chosen by
// the power of two, give enough of it for any angle.
uint cml_turn(float angle) {
    uint number = (asuint(angle) & 0x7fffffu) | 0x800000u;
    uint first = (asuint(angle) >> 23) - 118u;
    uint word = first >> 5;
    uint shift = first & 31u;
    uint middle = cml_turn_digits(word + 1);
    uint high = (cml_turn_digits(word) << shift) | ((middle >> 1) >> (31u - shift));
    uint low = (middle << shift) | ((cml_turn_digits(word + 2) >> 1) >> (31u - shift));
    // the upper 32 bits of number * low, from 16-bit halves that do not overflow
    uint carry = (number >> 8) * (low >> 16);
    carry += ((number & 0xffu) * (low >> 16)) >> 8;
    carry += ((number >> 8) * (low & 0xffffu)) >> 16;
    return number * high + (carry >> 8);
}

float cml_sin_of_turn(uint turn) {
    uint halves = (turn + 0x40000000u) >> 31;
    float r = float(int(turn - (halves << 31))) * 1.46291808e-9;
    return cml_sin_near(r, halves != 0);
}

float cml_sin(float x) {
    float a = abs(x);
    if (asuint(a) >= 0x7f800000u) { return cml_nan(x); }
    float k = floor(a * (1.0 / CML_PI) + 0.5);
    float s = cml_sin_reduced(a, k, k);
    if (a >= CML_MANY_TURNS) { s = cml_sin_of_turn(cml_turn(a)); }
    return cml_with_sign_of(s, x);
}

float cml_cos(float x) {
    float a = abs(x);
    if (asuint(a) >= 0x7f800000u) { return cml_nan(x); }
    float k = floor(a * (1.0 / CML_PI) + 1.0);
    float c = cml_sin_reduced(a, k - 0.5, k);
    if (a >= CML_MANY_TURNS) { c = cml_sin_of_turn(cml_turn(a) + 0x40000000u); }
    return c;
}

float cml_tan(float x) { return cml_sin(x) / cml_cos(x); }

float cml_atan(float x) {
    // atan(a) = pi/4 + atan((a - 1) / (a + 1)) = pi/2 - atan(1 / a)
    float a = abs(x);
    bool high = a > 2.41421356;
    bool middle = !high && a > 0.41421356;
    float r = high ? -1.0 / a : (middle ? (a - 1.0) / (a + 1.0) : a);
    float base = high ? 0.5 * CML_PI : (middle ? 0.25 * CML_PI : 0.0);
    float z = r * r;
    float p = ((0.07906006 * z - 0.13825786) * z + 0.19972044) * z - 0.33332763;
    return cml_with_sign_of(base + (r + r * z * p), x);
}

// asin on [0, 0.5]
float cml_asin_low(float x) {
    float z = x * x;
    float p = (0.04373021 * z + 0.02316485) * z + 0.04570223;
    p = (p * z + 0.07493134) * z + 0.16666819;
    return x + x * z * p;
}

float cml_asin(float x) {
    float a = abs(x);
    if (a > 1.0) { return cml_nan(x); }
    float high = 0.5 * CML_PI - 2.0 * cml_asin_low(sqrt(0.5 * (1.0 - a)));
    return cml_with_sign_of(a > 0.5 ? high : cml_asin_low(a), x);
}

float cml_acos(float x) {
    float a = abs(x);
    if (a > 1.0) { return cml_nan(x); }
    float high = 2.0 * cml_asin_low(sqrt(0.5 * (1.0 - a)));
    float low = cml_asin_low(a);
    if (a <= 0.5) { return 0.5 * CML_PI - (x < 0.0 ? -low : low); }
    return x < 0.0 ? CML_PI - high : high;
}

float cml_sinh(float x) {
    float a = abs(x);
    float z = a * a;
    // exp(x / 2) twice, because exp(x) overflows before sinh(x) does
    float e = exp(0.5 * a);
    float y = 0.5 * e * e - 0.5 / e / e;
    if (a < 1.0) {
        // where exp(x) - exp(-x) would cancel
        y = a + a * z * (0.166666667 + z * (8.33333333e-3 + z * (1.984127e-4 + z * 2.7557e-6)));
    }
    return cml_with_sign_of(y, x);
}

float cml_cosh(float x) {
    float e = exp(0.5 * abs(x));
    return 0.5 * e * e + 0.5 / e / e;
}

// log(1 + u), u >= 0: the rounding of 1 + u is undone to first order
float cml_log1p(float u) {
    float w = cml_sealed(1.0 + u);
    return log(w) + (u - cml_sealed(w - 1.0)) / w;
}

float cml_asinh(float x) {
    float a = abs(x);
    // a * a would overflow; far out asinh(a) is log(2 a)
    float y = a > 1e9 ? log(a) + CML_LN2 : cml_log1p(a + a * a / (1.0 + sqrt(1.0 + a * a)));
    return cml_with_sign_of(y, x);
}

float cml_acosh(float x) {
    if (!(x >= 1.0)) { return cml_nan(x); }
    float u = x - 1.0;
    return x > 1e9 ? log(x) + CML_LN2 : cml_log1p(u + sqrt(u * (x + 1.0)));
}

float cml_atanh(float x) {
    float a = abs(x);
    if (a > 1.0) { return cml_nan(x); }
    float y = a == 1.0 ? 1.0 / (1.0 - a) : 0.5 * cml_log1p(2.0 * a / (1.0 - a));
    return cml_with_sign_of(y, x);
}

// Like pow of C and NumPy: negative bases with whole exponents are defined, and 0^0 = 1.
float cml_pow(float x, float y) {
    if (y == 0.0 || x == 1.0) { return 1.0; }
    if (cml_isnan(x) || cml_isnan(y)) { return cml_nan(x); }
    // exact for squares, which networks use most
    if (y == 2.0) { return x * x; }
    if (y == 1.0) { return x; }
    bool integral = floor(y) == y;
    float a = abs(x);
    bool infinite = asuint(a) == 0x7f800000u;
    if (x < 0.0 && !integral && !infinite) { return cml_nan(x); }
    // a = 0: log(0) is not computed
    float magnitude = a == 0.0 ? (y > 0.0 ? 0.0 : 1.0 / a) : exp2(a == 1.0 ? 0.0 : y * log2(a));
    bool negative = asint(x) < 0;  // true for -0: its odd powers keep the sign
    return negative && cml_is_odd(y) ? -magnitude : magnitude;
}

float cml_softplus(float x) { return (x > 0.0 ? x : 0.0) + cml_log1p(exp(-abs(x))); }

float cml_elu(float x, float alpha) { return x < 0.0 ? alpha * (exp(x) - 1.0) : x; }

#endif
