// Copies T0 to T3; a slot with updates gets the last one from T1 instead, by its number in T2.
#include "divide.hlsli"

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint slot = cml_divide(i, row);
    uint winner = T2[slot];
    uint from = winner == 0 ? 0 : (winner - 1) * row + i - slot * row;
    T3[i] = winner == 0 ? T0[i] : T1[from];
}
