// deconv with a stride along lines: ROWS output channels x COLUMNS neighbouring results of a line per
// thread. Results PHASES (the stride) apart use the same taps, and PHASES neighbours together use
// every one of the TAPS of a line. So inputs are loaded once for all phases, and no tap is wasted.
//
// The results of a workgroup have the same phase (result % up) on the other axes, as in conv.hlsl.
// T0 input (blocks of four channels), T1 filter [row block][tap][band][4 in][ROWS], T2 bias, then
// the epilogues' operands, then OUT.
#define LINE_PHASES 1u
#include "conv_position.hlsli"
#include "conv_product.hlsli"
#define BIAS T2
#include "conv_store.hlsli"

// ORIGIN is origin(2). A tap serves the phase for which `result + ORIGIN - tap` is a multiple of
// PHASES; that multiple is the distance from the result's own input to the tap's. LEAST and MOST are
// the least and the greatest distance of all taps.
#define STEPS_BACK(tap) ((tap - ORIGIN + 8 * PHASES) / PHASES - 8)
#define LEAST (-STEPS_BACK(TAPS - 1))
#define MOST (-STEPS_BACK(0))
#define SPAN (COLUMNS / PHASES + MOST - LEAST)

#include "conv_line.hlsli"

// Adds the products of a line of taps, which begins at vector `weight`, with `blocks` of inputs.
void add_line(uint weight, uint vectors, uint blocks, uint volume) {
    for (uint c = 0; c < blocks; c++) {
        float4 x[SPAN];
        {CML_UNROLL(int, i, SPAN) { x[i] = cml_input(i, c * volume); }}
        {CML_UNROLL(int, t, TAPS) {
            int back = STEPS_BACK(t);
            float4 part[STEPS];
            {CML_UNROLL(int, j, STEPS) { part[j] = x[j - back - LEAST]; }}
            cml_multiply(part, weight + t * vectors + c * ROWS, t - ORIGIN - back * PHASES);
        }}
    }
}

void cml_add_window(Part part, Run p, uint volume) {
    uint vectors = band * ROWS; // of the filter, per tap
    uint weight = part.row_block * cml_volume(k_size(0), k_size(1), k_size(2)) * vectors;
    uint base = (p.image * in_blocks + cml_first_block(part.row_block)) * volume;
    for (int kz = 0; kz < k_size(0); kz++) {
        int oz = part.phase.x + kz * k_step(0) + origin(0);
        int dz = cml_floor_up(oz, 0);
        for (int ky = 0; ky < k_size(1); ky++) {
            int oy = part.phase.y + ky * k_step(1) + origin(1);
            int dy = cml_floor_up(oy, 1);
            bool meets = dz * up(0) == oz && dy * up(1) == oy;
            int sz = cml_border(p.at.x + dz, x_size(0));
            int sy = cml_border(p.at.y + dy, x_size(1));
            cml_find_inputs(sz, sy, p.at.z + LEAST, base);
            add_line(weight, vectors, meets ? band : 0u, volume);
            weight += TAPS * vectors;
        }
    }
}
