// Applies to T2 the updates T1 that the lists T0 name (`begin` to `end` of each): a thread handles an
// element of a slot that has updates.
#include "divide.hlsli"
#include "combine.hlsli"

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint hits = uint(T0[0]);
    uint hit = cml_divide(i, row);
    uint column = i - hit * row;
    uint place = uint(T0[1 + hit]) * row + column;
    uint first = uint(T0[1 + hits + hit]);
    uint last = min(first + end, uint(T0[2 + hits + hit]));
    uint value = T2[place];
    for (uint k = first + begin; k < last; k++) {
        value = cml_combine(value, T1[uint(T0[2 + 2 * hits + k]) * row + column]);
    }
    T2[place] = value;
}
