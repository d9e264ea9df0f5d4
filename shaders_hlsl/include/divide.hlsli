// Integer division computed in floats: a software driver divides integers one lane after the other,
// and GPUs have no integer divider either.
#ifndef CML_DIVIDE
#define CML_DIVIDE

// Returns a / b for any a, and b > 0. The second round corrects for the 24 bits of a float, the last
// steps correct its rounding.
uint cml_divide(uint a, uint b) {
    float inverse = 1.0 / float(b);
    uint quotient = uint(float(a) * inverse);
    quotient += uint(int(floor(float(int(a - quotient * b)) * inverse)));
    int rest = int(a - quotient * b);
    return rest < 0 ? quotient - 1 : (rest >= int(b) ? quotient + 1 : quotient);
}

// Returns a / b rounded down, for b > 0 and |a| below 2^24.
int cml_floor_divide(int a, int b) {
    int quotient = int(floor(float(a) / float(b)));
    int rest = a - quotient * b;
    return rest < 0 ? quotient - 1 : (rest >= b ? quotient + 1 : quotient);
}

// Returns a / b and sets a to the remainder.
uint cml_divide_rest(inout uint a, uint b) {
    uint quotient = cml_divide(a, b);
    a -= quotient * b;
    return quotient;
}

// Returns the low 32 bits of the product of numbers below 2^24, which hardware multiplies faster.
uint cml_multiply_few(uint a, uint b) { return (a & 0xffffffu) * (b & 0xffffffu); }

// Does what cml_divide_rest does for a below 2^20; `inverse` is the float nearest to 1 / b. The added
// half is more than a float's rounding.
uint cml_divide_few(inout uint a, uint b, float inverse) {
    float quotient = floor(mad(float(a), inverse, 0.5 * inverse));
    a = uint(mad(-quotient, float(b), float(a)));
    return uint(quotient);
}

// Does the same for numbers that all lanes share, by scalar instructions. `factor` and `shift` are
// those of `reciprocal` (cml_engine/ops/conv/shapes.py).
uint cml_divide_scaled(inout uint a, uint b, uint factor, uint shift) {
    uint quotient = (a * factor) >> shift;
    a -= quotient * b;
    return quotient;
}

// FEW: a kernel's workgroups are below 2^15, its positions below 2^20, and its map has one image. A
// kernel that divides workgroups or lines has the numbers of `reciprocals` as parameters.
#ifndef FEW
#define FEW 0
#endif
#if FEW
#define DIVIDE_REST(a, b) cml_divide_few(a, b, 1.0 / float(b))
#define DIVIDE_GROUP(a, b) cml_divide_scaled(a, b, group_factor, group_shift)
#define DIVIDE_LINE(a, b) cml_divide_few(a, b, line_inverse)
#define MULTIPLY cml_multiply_few
#else
#define DIVIDE_REST cml_divide_rest
#define DIVIDE_GROUP cml_divide_rest
#define DIVIDE_LINE cml_divide_rest
#define MULTIPLY(a, b) ((a) * (b))
#endif

#endif
