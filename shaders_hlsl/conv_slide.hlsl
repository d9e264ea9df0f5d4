// conv and deconv whose windows slide by one input: ROWS output channels x COLUMNS neighbouring
// results of a line per thread, which share the inputs under their windows.
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
#define SPAN (COLUMNS + TAPS - 1)

struct Place {
    uint image;
    int3 at; // of the first result, in steps of `up`
    bool inside;
};

static uint from[SPAN];
static bool found[SPAN];

Place place_of(uint index) {
    int3 steps = int3(steps3(0), steps3(1), steps3(2));
    uint runs = (uint(steps.z) + COLUMNS - 1) / COLUMNS;
    Place p;
    uint last = batch * cml_volume(steps.x, steps.y, runs);
    p.inside = index < last;
    index = min(index, last - 1);
    uint line = cml_divide_rest(index, runs);
    uint plane = cml_divide_rest(line, uint(steps.y));
    p.image = cml_divide_rest(plane, uint(steps.x));
    p.at = int3(int(plane), int(line), int(index) * COLUMNS);
    return p;
}

// Where the inputs of a line begin in the first block; `first` is the leftmost of them.
void find_inputs(Place p, int sz, int sy, int first, uint base) {
    int line = (sz * x_size(1) + sy) * x_size(2);
    {[ForceUnroll] for (int i = 0; i < SPAN; i++) {
        int sx = cml_border(first + i, x_size(2));
        found[i] = min(min(sz, sy), sx) >= 0;
        from[i] = base + (found[i] ? uint(line + sx) : 0u);
    }}
}

// The products of a line of taps with all blocks of inputs; taps lie `step` vectors apart.
void add_line(uint weight, uint step, uint blocks, uint volume) {
    for (uint c = 0; c < blocks; c++) {
        float4 x[SPAN];
        {[ForceUnroll] for (int i = 0; i < SPAN; i++) {
            float4 value = T0[from[i] + c * volume];
            x[i] = found[i] ? value : float4(0.0, 0.0, 0.0, 0.0);
        }}
        {[ForceUnroll] for (int t = 0; t < TAPS; t++) {
            float4 part[COLUMNS];
            {[ForceUnroll] for (int j = 0; j < COLUMNS; j++) {
                part[j] = x[TRANSPOSED ? j + TAPS - 1 - t : j + t];
            }}
            cml_multiply(part, weight + t * step + c * ROWS);
        }}
    }
}

void store(Place p, uint row_block, int3 phase) {
    uint volume = cml_volume(y_size(0), y_size(1), y_size(2));
    int3 at = p.at * int3(up(0), up(1), up(2)) + phase;
    bool inside = p.inside && at.x < y_size(0) && at.y < y_size(1);
    uint line = (uint(at.x) * y_size(1) + uint(at.y)) * y_size(2);
    {[ForceUnroll] for (int o = 0; o < VECTORS; o++) {
        uint number = row_block * VECTORS + o;
        if (4 * number < out_c) {
            Block block = cml_block(number);
            {[ForceUnroll] for (int j = 0; j < COLUMNS; j++) {
                int x = at.z + j * up(2);
                if (inside && x < y_size(2)) {
                    cml_store(cml_result(o, j), block, p.image, line + uint(x), volume);
                }
            }}
        }
    }}
}

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint3 tid : SV_GroupThreadID) {
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    Part part = cml_part(group);
    Place p = place_of(part.tile * GROUP + tid.x);
    cml_clear();

    uint volume = cml_volume(x_size(0), x_size(1), x_size(2));
    uint vectors = band * ROWS; // of the filter, per tap
    uint weight = part.row_block * cml_volume(k_size(0), k_size(1), k_size(2)) * vectors;
    uint base = (p.image * in_blocks + cml_first_block(part.row_block)) * volume;
    // the first tap along a line that the phase meets, and the leftmost input under all of them
    int at_origin = part.phase.z + origin(2);
    int first_input = cml_floor_up(at_origin, 2);
    int first_tap = TRANSPOSED ? at_origin - first_input * up(2) : 0;
    int leftmost = p.at.z + first_input - (TRANSPOSED ? TAPS - 1 : 0);
    for (int kz = 0; kz < k_size(0); kz++) {
        int oz = part.phase.x * y_mul(0) + kz * k_step(0) + origin(0);
        int dz = cml_floor_up(oz, 0);
        for (int ky = 0; ky < k_size(1); ky++) {
            int oy = part.phase.y * y_mul(1) + ky * k_step(1) + origin(1);
            int dy = cml_floor_up(oy, 1);
            bool meets = dz * up(0) == oz && dy * up(1) == oy;
            int sz = cml_border(p.at.x * y_mul(0) + dz, x_size(0));
            int sy = cml_border(p.at.y * y_mul(1) + dy, x_size(1));
            find_inputs(p, sz, sy, leftmost, base);
            add_line(weight + uint(first_tap) * vectors, uint(up(2)) * vectors,
                     meets ? band : 0u, volume);
            weight += uint(k_size(2)) * vectors;
        }
    }
    store(p, part.row_block, part.phase);
}
