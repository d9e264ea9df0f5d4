// T2[c] = T0[c with T1[c] on one axis]
#include "divide.hlsli"

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint rest = i;
    uint from = 0;
    for (uint d = rank; d > 0; d--) {
        uint next = cml_divide(rest, extent(d - 1));
        from += (rest - next * extent(d - 1)) * stride(d - 1);
        rest = next;
    }
    int index = T1[i];
    if (index < 0) { index += int(slots); }
    T2[i] = T0[from + uint(clamp(index, 0, int(slots) - 1)) * step];
}
