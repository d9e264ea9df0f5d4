// The functions behind the elementwise operators (cml_engine/ops/elementwise.py).
//
// Vulkan allows sin, cos, asin, acos and atan errors that show in a network (2^-11 for sin), HLSL
// has no inverse hyperbolics, and its pow knows no negative bases. So what is here is built from
// what every driver does well: + - * /, sqrt, exp, log. The polynomials are our own least-maximum
// fits, off by less than 6e-9 on the ranges that the reductions leave.
#ifndef CML_POINTWISE
#define CML_POINTWISE

static const float CML_LN2 = 0.69314718;
static const float CML_PI = 3.14159265;

bool cml_isnan(float x) { return (asuint(x) & 0x7fffffffu) > 0x7f800000u; }

// Both a != b and !(a == b) end as SPIR-V's ordered comparison, which is false for NaN.
bool cml_unequal(float a, float b) {
    return a < b || a > b || cml_isnan(a) || cml_isnan(b);
}

// Built from a value of run time: a compiler may refuse a literal that is not a number.
float cml_nan(float x) { return asfloat(asuint(x) | 0x7fc00000u); }

float cml_sign(float x) { return cml_isnan(x) ? x : float(x > 0.0) - float(x < 0.0); }

// Half an odd number ends in .5; an infinity does not.
// Halves go up. Not floor(x + 0.5): the sum rounds for 0.49999997 and for odd numbers past 2^23.
float cml_round(float x) {
    float low = floor(x);
    return x - low >= 0.5 ? low + 1.0 : low;
}

float cml_clamp(float x, float low, float high) {
    float y = x < high ? x : high;
    return y > low ? y : low;
}

// Half an odd number ends in .5; an infinity does not.
bool cml_odd(float integral) { return frac(abs(integral) * 0.5) == 0.5; }

// sin(x - turns * pi), negated where `halves` is odd. Pi in three parts, the first of few bits,
// keeps the difference exact for thousands of turns.
float cml_sin_reduced(float x, float turns, float halves) {
    float r = ((x - turns * 3.140625) - turns * 9.6750259e-4) - turns * 1.509958e-7;
    float z = r * r;
    float p = ((2.60009938e-6 * z - 1.98066391e-4) * z + 8.3330177e-3) * z - 0.166666571;
    float s = r + r * z * p;
    return cml_odd(halves) ? -s : s;
}

float cml_sin(float x) {
    float k = floor(x * (1.0 / CML_PI) + 0.5);
    return cml_sin_reduced(x, k, k);
}

float cml_cos(float x) {
    float k = floor(x * (1.0 / CML_PI) + 1.0);
    return cml_sin_reduced(x, k - 0.5, k);
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
    float y = base + (r + r * z * p);
    return x < 0.0 ? -y : y;
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
    float y = a > 0.5 ? high : cml_asin_low(a);
    return x < 0.0 ? -y : y;
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
    if (a < 1.0) {
        // where exp(x) - exp(-x) would cancel
        float z = x * x;
        return x + x * z * (0.166666667 + z * (8.33333333e-3 + z * (1.984127e-4 + z * 2.7557e-6)));
    }
    // by halves: exp(x) overflows before sinh(x) does
    float e = exp(0.5 * a);
    float y = 0.5 * e * e - 0.5 / e / e;
    return x < 0.0 ? -y : y;
}

float cml_cosh(float x) {
    float e = exp(0.5 * abs(x));
    return 0.5 * e * e + 0.5 / e / e;
}

float cml_tanh(float x) {
    float a = abs(x);
    float z = x * x;
    if (a < 0.2) { return x + x * z * (-0.333333333 + z * (0.133333333 - z * 0.0539682540)); }
    float t = exp(-2.0 * a);
    float y = (1.0 - t) / (1.0 + t);
    return x < 0.0 ? -y : y;
}

// log(1 + u), u >= 0: the rounding of 1 + u is undone to first order
float cml_log1p(float u) {
    float w = 1.0 + u;
    return log(w) + (u - (w - 1.0)) / w;
}

float cml_asinh(float x) {
    float a = abs(x);
    // a * a would overflow; far out asinh(a) is log(2 a)
    float y = a > 1e9 ? log(a) + CML_LN2 : cml_log1p(a + a * a / (1.0 + sqrt(1.0 + a * a)));
    return x < 0.0 ? -y : y;
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
    return x < 0.0 ? -y : y;
}

// As C's pow and NumPy's: negative bases with integral exponents, and 0^0 = 1.
float cml_pow(float x, float y) {
    if (y == 0.0 || x == 1.0) { return 1.0; }
    if (cml_isnan(x) || cml_isnan(y)) { return cml_nan(x); }
    // exact where it is cheap, and squares are what networks ask for
    if (y == 2.0) { return x * x; }
    if (y == 1.0) { return x; }
    bool integral = floor(y) == y;
    float a = abs(x);
    bool infinite = asuint(a) == 0x7f800000u;
    if (x < 0.0 && !integral && !infinite) { return cml_nan(x); }
    // a = 0: the logarithm of nothing is not asked for
    float magnitude = a == 0.0 ? (y > 0.0 ? 0.0 : 1.0 / a) : exp2(a == 1.0 ? 0.0 : y * log2(a));
    bool negative = asint(x) < 0;  // -0 is: its odd powers keep the sign
    return negative && cml_odd(y) ? -magnitude : magnitude;
}

float cml_erf(float x) {
    float a = abs(x);
    float z = x * x;
    if (a < 0.5) {
        // the series: near 0 the formula below would cancel
        float p = z * (-0.0238095238 + z * (4.62962963e-3 - z * 7.57575758e-4));
        return 1.12837917 * x * (1.0 + z * (-0.333333333 + z * (0.1 + p)));
    }
    // Abramowitz and Stegun 7.1.26
    float t = 1.0 / (1.0 + 0.3275911 * a);
    float p = (1.061405429 * t - 1.453152027) * t + 1.421413741;
    float y = 1.0 - ((p * t - 0.284496736) * t + 0.254829592) * t * exp(-z);
    return x < 0.0 ? -y : y;
}

float cml_sigmoid(float x) {
    // the exponent is never positive, so nothing overflows
    float t = exp(-abs(x));
    return (x < 0.0 ? t : 1.0) / (1.0 + t);
}

float cml_softplus(float x) { return (x > 0.0 ? x : 0.0) + cml_log1p(exp(-abs(x))); }

float cml_elu(float x, float alpha) { return x < 0.0 ? alpha * (exp(x) - 1.0) : x; }

#endif
