// Offsets of a reduction's elements, from the parameters of cml_engine/ops/reduction/reduce.py.
#ifndef CML_REDUCED
#define CML_REDUCED

#include "divide.hlsli"

// A thread sums this many elements, then adds the sum to those of earlier blocks, so rounding errors
// grow with the length of a block plus the number of blocks, not with their product.
#define REDUCE_BLOCK 32

// Returns the offset of element r from its result's first element; dimensions innermost first. With
// LINE there is one dimension, and one of results.
#if LINE
uint reduced_offset(uint element) { return element * reduced_in(0); }
#else
uint reduced_offset(uint element) {
    uint at = 0;
    uint rest = element;
    for (uint d = 0; d + 1 < reduced_dims; ++d) {
        uint next = cml_divide(rest, reduced(d));
        at += (rest - next * reduced(d)) * reduced_in(d);
        rest = next;
    }
    return at + rest * reduced_in(reduced_dims - 1);
}
#endif

#endif
