// conv and deconv whose windows overlap: ROWS output channels x COLUMNS neighbouring results of a
// line per thread, which share the inputs under their windows. Windows lie STRIDE inputs apart,
// their taps DILATION; of a deconv both are 1 here.
//
// The results of a workgroup share one phase (result % up), as in conv.hlsl: of a deconv's taps a
// phase meets every up-th, TAPS of them along a line, whose inputs are neighbours too.
// T0 input (blocks of four channels), T1 filter [row block][tap][band][4 in][ROWS], T2 bias, then
// the epilogues' operands, then OUT.
#include "conv_position.hlsli"
#include "conv_product.hlsli"
#define BIAS T2
#include "conv_store.hlsli"

// inputs of a line under the windows of a thread's results
#define SPAN ((COLUMNS - 1) * STRIDE + (TAPS - 1) * DILATION + 1)

#include "conv_line.hlsli"

// The products of a line of taps with all blocks of inputs; taps lie `step` vectors apart.
void add_line(uint weight, uint step, uint blocks, uint volume) {
    for (uint c = 0; c < blocks; c++) {
        float4 x[SPAN];
        {[ForceUnroll] for (int i = 0; i < SPAN; i++) {
            float4 value = T0[cml_from[i] + c * volume];
            x[i] = cml_found[i] ? value : float4(0.0, 0.0, 0.0, 0.0);
        }}
        {[ForceUnroll] for (int t = 0; t < TAPS; t++) {
            float4 part[COLUMNS];
            {[ForceUnroll] for (int j = 0; j < COLUMNS; j++) {
                part[j] = x[j * STRIDE + (TRANSPOSED ? TAPS - 1 - t : t * DILATION)];
            }}
            cml_multiply(part, weight + t * step + c * ROWS);
        }}
    }
}

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint3 tid : SV_GroupThreadID) {
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    Part part = cml_part(group);
    Run p = cml_run(part.tile * GROUP + tid.x);
    cml_clear();

    uint volume = cml_volume(x_size(0), x_size(1), x_size(2));
    uint vectors = band * ROWS; // of the filter, per tap
    uint weight = part.row_block * cml_volume(k_size(0), k_size(1), k_size(2)) * vectors;
    uint base = (p.image * in_blocks + cml_first_block(part.row_block)) * volume;
    // the first tap along a line that the phase meets, and the leftmost input under all of them
    int at_origin = part.phase.z + origin(2);
    int first_input = cml_floor_up(at_origin, 2);
    int first_tap = TRANSPOSED ? at_origin - first_input * up(2) : 0;
    int leftmost = p.at.z * STRIDE + first_input - (TRANSPOSED ? TAPS - 1 : 0);
    for (int kz = 0; kz < k_size(0); kz++) {
        int oz = part.phase.x * y_mul(0) + kz * k_step(0) + origin(0);
        int dz = cml_floor_up(oz, 0);
        for (int ky = 0; ky < k_size(1); ky++) {
            int oy = part.phase.y * y_mul(1) + ky * k_step(1) + origin(1);
            int dy = cml_floor_up(oy, 1);
            bool meets = dz * up(0) == oz && dy * up(1) == oy;
            int sz = cml_border(p.at.x * y_mul(0) + dz, x_size(0));
            int sy = cml_border(p.at.y * y_mul(1) + dy, x_size(1));
            cml_find_inputs(sz, sy, leftmost, base);
            add_line(weight + uint(first_tap) * vectors, uint(up(2)) * vectors,
                     meets ? band : 0u, volume);
            weight += uint(k_size(2)) * vectors;
        }
    }
    cml_store_run(p, part.row_block, part.phase);
}
