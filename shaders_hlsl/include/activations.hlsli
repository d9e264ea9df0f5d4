// The building blocks of activations, for one number or four at once: included once with CML_T as
// float and CML_TRUTH as bool, once with float4 and bool4. No branches: computing both sides is short.

// Tests the bits, because drivers may order NaN either way: -0 and NaN are not negative.
CML_TRUTH cml_negative(CML_T x) { return asuint(x) - 0x80000001u <= 0x7f7fffffu; }

// Returns y, a function of |x|, with the sign of x, also for -0.
CML_T cml_with_sign_of(CML_T y, CML_T x) { return asfloat(asuint(y) ^ (asuint(x) & 0x80000000u)); }

// A NaN stays NaN; a bound that is NaN is ignored.
CML_T cml_clamp(CML_T x, CML_T low, CML_T high) {
    CML_T y = select(x > high, high, x);
    y = select(y < low, low, y);
    return select((asuint(x) & 0x7fffffffu) > 0x7f800000u, x, y);
}

CML_T cml_sigmoid(CML_T x) {
    // the exponent is never positive, so nothing overflows
    CML_T t = exp(-abs(x));
    return select(x < CML_T(0.0), t, CML_T(1.0)) / (CML_T(1.0) + t);
}

CML_T cml_tanh(CML_T x) {
    CML_T a = abs(x);
    CML_T z = x * x;
    CML_T t = exp(a * -2.0);
    CML_T far = (CML_T(1.0) - t) / (CML_T(1.0) + t);
    // near zero the quotient cancels, the series does not
    CML_T near = a + a * z * (-0.333333333 + z * (0.133333333 - z * 0.0539682540));
    return cml_with_sign_of(select(a < CML_T(0.2), near, far), x);
}

CML_T cml_erf(CML_T x) {
    CML_T a = abs(x);
    CML_T z = x * x;
    // near zero the formula below cancels, the series does not
    CML_T p = z * (-0.0238095238 + z * (4.62962963e-3 - z * 7.57575758e-4));
    CML_T near = 1.12837917 * a * (CML_T(1.0) + z * (-0.333333333 + z * (0.1 + p)));
    // Abramowitz and Stegun 7.1.26
    CML_T t = CML_T(1.0) / (CML_T(1.0) + 0.3275911 * a);
    CML_T q = (1.061405429 * t - 1.453152027) * t + 1.421413741;
    CML_T far = CML_T(1.0) - ((q * t - 0.284496736) * t + 0.254829592) * t * exp(-z);
    return cml_with_sign_of(select(a < CML_T(0.5), near, far), x);
}

#undef CML_T
#undef CML_TRUTH
