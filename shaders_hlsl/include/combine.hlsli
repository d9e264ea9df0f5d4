// The reductions of scatter, selected by the parameter `kind` of cml_engine/ops/indexing/scatter.py.
#ifndef CML_COMBINE
#define CML_COMBINE

#include "pointwise.hlsli"

// Returns a value after an update. `kind` is an index of REDUCTIONS, first for floats, then integers.
uint cml_combine(uint before, uint update)
{
    float a = asfloat(before);
    float b = asfloat(update);
    int p = int(before);
    int q = int(update);
    uint result = update;
    if (kind == 1) { result = asuint(a + b); }
    if (kind == 2) { result = asuint(a * b); }
    // a NaN wins
    if (kind == 3) { result = b < a || cml_isnan(b) ? update : before; }
    if (kind == 4) { result = b > a || cml_isnan(b) ? update : before; }
    if (kind == 6) { result = uint(p + q); }
    if (kind == 7) { result = uint(p * q); }
    if (kind == 8) { result = q < p ? update : before; }
    if (kind == 9) { result = q > p ? update : before; }
    return result;
}

#endif
