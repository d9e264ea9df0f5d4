// Stores in T1 the number of the last update, counted from 1, for each slot of T0's indices.
#include "divide.hlsli"

// Returns the slot of update j; an index outside of the tensor has none.
bool find_slot(uint j, out uint slot)
{
    slot = 0;
    bool inside = true;
    if (by_rows != 0) {
        for (uint d = 0; d < rank; d++) {
            int index = T0[j * rank + d];
            if (index < 0) { index += int(extent(d)); }
            inside = inside && index >= 0 && index < int(extent(d));
            slot = slot * extent(d) + uint(index);
        }
    } else {
        uint rest = j;
        for (uint d = rank; d > 0; d--) {
            uint next = cml_divide(rest, extent(d - 1));
            slot += (rest - next * extent(d - 1)) * stride(d - 1);
            rest = next;
        }
        int index = T0[j];
        if (index < 0) { index += int(slots); }
        inside = index >= 0 && index < int(slots);
        slot += uint(index) * step;
    }
    return inside;
}

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint slot;
    if (find_slot(i, slot)) { InterlockedMax(T1[slot], i + 1); }
}
