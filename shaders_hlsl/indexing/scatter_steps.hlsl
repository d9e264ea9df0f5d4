// The steps of scatter: a thread handles an element of the result, or an update.
//
// COPY: T1 = T0. LISTED: applies to T2 the updates T1 that the lists T0 name (`begin` to `end` of
// each). CLEAR: resets the winners. MARK: stores in T1 the last update for each slot of T0's indices.
// TAKE: T3 = T0, with the updates T2 of the winners T1.
#include "divide.hlsli"
#ifdef LISTED
#include "combine.hlsli"
#endif

#ifdef MARK
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
#endif

CML_MAIN
{
    CML_EACH_THREAD(i, n)
#if defined(COPY)
    T1[i] = T0[i];
#elif defined(LISTED)
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
#elif defined(CLEAR)
    T0[i] = 0;
#elif defined(MARK)
    uint slot;
    if (find_slot(i, slot)) { InterlockedMax(T1[slot], i + 1); }
#else
    uint slot = cml_divide(i, row);
    uint winner = T2[slot];
    uint from = winner == 0 ? 0 : (winner - 1) * row + i - slot * row;
    T3[i] = winner == 0 ? T0[i] : T1[from];
#endif
}
