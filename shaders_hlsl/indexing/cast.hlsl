// T1[i] = T0[i] in another dtype, or its 32 bits as they are.

T1_TYPE converted(T0_TYPE x)
{
#if defined(FLOAT_TO_INT)
    // rounds towards zero, clamps to the range of int; NaN becomes 0
    bool nan = (asuint(x) & 0x7fffffffu) > 0x7f800000u;
    int inside = int(clamp(x, -2147483648.0, 2147483520.0));
    return nan ? 0 : (x >= 2147483648.0 ? 2147483647 : inside);
#elif defined(FLOAT_TO_LOGICAL)
    // tests the bits: NaN is not 0, and a device may flush a denormal to 0
    return (asuint(x) & 0x7fffffffu) != 0 ? 1u : 0u;
#elif defined(TO_LOGICAL)
    return x != T0_TYPE(0) ? 1u : 0u;
#else
    return T1_TYPE(x);
#endif
}

CML_MAIN
{
    CML_EACH_GROUP(group)
    CML_UNROLL(uint, k, ITEMS) {
        uint i = (group * ITEMS + k) * GROUP + lane;
        if (i < n) { T1[i] = converted(T0[i]); }
    }
}
