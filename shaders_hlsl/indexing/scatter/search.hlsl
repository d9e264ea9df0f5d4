// T3 = T0 with T2's updates at the indices T1, for which every thread searches.
//
// It works on lines of `slots` elements, `to_step` apart, with updates `step` apart. A thread owns
// `segment` slots of a line and applies the line's updates from `begin` to `end` in order. So every
// element is written by one thread, in one order.
#include "divide.hlsli"
#include "combine.hlsli"

// Returns the slot of update j, whose index stands at `at`; an index outside of the line has no slot.
uint slot_of(uint j, uint at)
{
    if (by_rows == 0) {
        int index = T1[at];
        return uint(index < 0 ? index + int(slots) : index);
    }
    uint slot = 0;
    bool inside = true;
    for (uint d = 0; d < places; d++) {
        int index = T1[j * places + d];
        if (index < 0) { index += int(limit(d)); }
        inside = inside && index >= 0 && index < int(limit(d));
        slot = slot * limit(d) + uint(index);
    }
    return inside ? slot : 0xffffffffu;
}

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint part = cml_divide(i, lines);
    uint rest = i - part * lines;
    uint line_to = 0;
    uint line_from = 0;
    bool reached = true;
    for (uint d = rank; d > 0; d--) {
        uint next = cml_divide(rest, extent(d - 1));
        uint coordinate = rest - next * extent(d - 1);
        line_to += coordinate * to(d - 1);
        line_from += coordinate * start(d - 1);
        reached = reached && coordinate < reach(d - 1);
        rest = next;
    }
    uint first = part * segment;
    uint last = min(first + segment, slots);
    if (begin == 0) {
        for (uint slot = first; slot < last; slot++) {
            T3[line_to + slot * to_step] = T0[line_to + slot * to_step];
        }
    }
    uint stop = reached ? end : 0;
    for (uint j = begin; j < stop; j++) {
        uint at = line_from + j * step;
        uint slot = slot_of(j, at);
        if (slot >= first && slot < last) {
            uint place = line_to + slot * to_step;
            T3[place] = cml_combine(T3[place], T2[at]);
        }
    }
}
