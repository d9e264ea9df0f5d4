// keep_first: T2[i] = T0[i] where i's index along the axis is below the count T1[0], otherwise `value`.
//
// Elements are copied as 32-bit words; `inner` is the number of elements behind the axis.
#include "divide.hlsli"

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint line = cml_divide(i, inner);
    uint index = line - cml_divide(line, extent) * extent;
    T2[i] = int(index) < T1[0] ? T0[i] : value;
}
