// conv with overlapping windows: ROWS output channels x COLUMNS neighbouring results of a line per
// thread, which share the inputs under their windows. Neighbouring windows are STRIDE inputs apart,
// neighbouring TAPS of a window DILATION inputs.
// T0 input (blocks of four channels), T1 filter [row block][tap][band][4 in][ROWS], T2 bias, then
// the epilogues' operands, then OUT.
#include "conv_position.hlsli"
#include "conv_product.hlsli"
#define BIAS T2
#include "conv_store.hlsli"

// inputs of a line under the windows of a thread's results
#define SPAN ((COLUMNS - 1) * STRIDE + (TAPS - 1) * DILATION + 1)

#include "conv_line.hlsli"

// Adds the products of a line of taps, which begins at vector `weight`, with all blocks of inputs.
void add_line(uint weight, uint vectors, uint volume) {
    for (uint c = 0; c < band; c++) {
        NUMBER4 x[SPAN];
        {CML_UNROLL(int, i, SPAN) { x[i] = cml_input(i, c * volume); }}
        {CML_UNROLL(int, t, TAPS) {
            NUMBER4 part[COLUMNS];
            {CML_UNROLL(int, j, COLUMNS) {
                part[j] = x[j * STRIDE + t * DILATION];
            }}
            cml_multiply(part, weight + t * vectors + c * ROWS, 0);
        }}
    }
}

void cml_add_window(Part part, Run p, uint volume) {
    uint vectors = band * ROWS; // of the filter, per tap
    uint weight = part.row_block * cml_volume(k_size(0), k_size(1), k_size(2)) * vectors;
    uint base = (p.image * in_blocks + cml_first_block(part.row_block)) * volume;
    int leftmost = p.at.z * STRIDE + origin(2);
    for (int kz = 0; kz < k_size(0); kz++) {
        int sz = cml_border(p.at.x * y_mul(0) + kz * k_step(0) + origin(0), x_size(0));
        for (int ky = 0; ky < k_size(1); ky++) {
            int sy = cml_border(p.at.y * y_mul(1) + ky * k_step(1) + origin(1), x_size(1));
            cml_find_inputs(sz, sy, leftmost, base);
            add_line(weight, vectors, volume);
            weight += TAPS * vectors;
        }
    }
}
