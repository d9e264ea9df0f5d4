// The positions of the windows of conv and deconv. Both follow one rule:
//     source * up = result * y_mul + tap * k_step + origin
// conv: up = 1, y_mul = stride, k_step = dilation, origin = -padding before.
// deconv: up = stride, y_mul = 1, k_step = -dilation, origin = padding before.
#ifndef CML_CONV_POSITION
#define CML_CONV_POSITION

#include "border.hlsli"
#include "divide.hlsli"

uint cml_volume(uint a, uint b, uint c) { return a * b * c; }

// The phases along a line that are divided among workgroups.
#ifndef LINE_PHASES
#define LINE_PHASES uint(up(2))
#endif

// A launch's workgroups are numbered by block of rows, then tile, then phase.
struct Part {
    uint row_block;
    uint tile;
    int3 phase;
};

Part cml_part(uint group) {
    Part part;
    uint tile = cml_divide_rest(group, row_blocks);
    part.row_block = group;
    uint nth = cml_divide_rest(tile, tiles);
    part.tile = tile;
#if TRANSPOSED
    uint line = cml_divide_rest(nth, LINE_PHASES);
    uint plane = cml_divide_rest(line, uint(up(1)));
    part.phase = int3(int(plane), int(line), int(nth));
#else
    part.phase = int3(0, 0, 0);
#endif
    return part;
}

// Returns the first block of inputs that a block of rows reads.
uint cml_first_block(uint row_block) {
    return min(cml_divide(row_block * ROWS, group_out) * group_in / 4, in_blocks - band);
}

// Integer division by `up` that rounds down; `up` is 1 except in a deconv.
int cml_floor_up(int a, int axis) {
#if TRANSPOSED
    return cml_floor_divide(a, up(axis));
#else
    return a;
#endif
}

#endif
