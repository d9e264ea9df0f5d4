// conv and deconv: ROWS output channels x COLUMNS positions per thread.
//
// A block of rows reads `band` blocks of inputs: all of them, or those of the groups that it covers.
// All positions of a workgroup have the same phase (result % up), so a deconv skips the taps that
// fall between its inputs. DEPTHWISE: each of four channels reads only its own input channel.
// T0 input (blocks of four channels), T1 filter [row block][tap][band][4 in][ROWS], or
// [block][tap][4] where DEPTHWISE, T2 bias, then the epilogues' operands, then OUT.
//
// PART SUMS and FINISH serve windows with more products than a loop may have iterations: a SUMS
// launch adds the products of the taps [tap_begin, tap_end) and the input blocks
// [block_begin, block_end) to the sums in T2. The FINISH launch turns the sums in T0 into results;
// T1 is the bias, the operands and OUT follow as above.
#ifndef PART
#define PART ALL
#endif
#define ALL 0
#define SUMS 1
#define FINISH 2
#include "conv_position.hlsli"
#include "conv_product.hlsli"
#if PART == FINISH
#define BIAS T1
#else
#define BIAS T2
#endif
#if PART != SUMS
#include "conv_store.hlsli"
#endif

// vectors of the filter per tap and block of inputs
#define TAP_VECTORS (DEPTHWISE ? 1 : BLOCK_VECTORS)

struct Place {
    uint image;
    int3 at; // in steps of `up`
    bool inside;
};

static Place place[COLUMNS];
static int row_from[COLUMNS];
static uint from[COLUMNS];
static bool found[COLUMNS];

Place place_of(uint index) {
    int3 steps = int3(steps3(0), steps3(1), steps3(2));
    Place p;
    uint last = batch * cml_volume(steps.x, steps.y, steps.z);
    p.inside = index < last;
    index = min(index, last - 1);
    uint row = cml_divide_rest(index, uint(steps.z));
    uint plane = cml_divide_rest(row, uint(steps.y));
    p.image = cml_divide_rest(plane, uint(steps.x));
    p.at = int3(int(plane), int(row), int(index));
    return p;
}

#if PART != FINISH
// Returns the input index under a tap; -1 stands for a zero. `offset` is phase + tap, in steps.
int source_index(int axis, int step, int offset) {
    return cml_border(step * y_mul(axis) + offset, x_size(axis));
}

// Sets row_from[j] to the start of the input row under a row of taps for column j; -1 for no row.
void find_rows(int oz, int oy) {
    {CML_UNROLL(int, j, COLUMNS) {
        int sz = source_index(0, place[j].at.x, oz);
        int sy = source_index(1, place[j].at.y, oy);
        row_from[j] = min(sy, sz) >= 0 ? (sz * x_size(1) + sy) * x_size(2) : -1;
    }}
}

// Sets from[j] to the input under a tap of that row, and found[j] to true if there is one.
void find_inputs(int ox, uint first_block, uint volume) {
    {CML_UNROLL(int, j, COLUMNS) {
        int sx = source_index(2, place[j].at.z, ox);
        found[j] = min(row_from[j], sx) >= 0;
        uint base = (place[j].image * in_blocks + first_block) * volume;
        from[j] = base + (found[j] ? uint(row_from[j] + sx) : 0u);
    }}
}

CML_BLOCK load_input(int column, uint offset) {
    return CML_BLOCK(LOADED(T0[from[column] + offset]));
}

// Returns a loaded input, or zeros if there is none.
CML_BLOCK with_border(CML_BLOCK value, bool exists) {
#ifdef FLIP
    return (exists ? value : CML_BLOCK(0)) ^ FLIP;
#else
    return exists ? value : CML_BLOCK(0);
#endif
}

CML_BLOCK input_at(int column, uint offset) {
    return with_border(load_input(column, offset), found[column]);
}

#if DEPTHWISE
void add_tap(uint weight, uint blocks, uint volume) {
    if (blocks == 0) { return; }
    NUMBER4 f = T1[weight];
    {CML_UNROLL(int, j, COLUMNS) {
        NUMBER4 x = input_at(j, 0);
        {CML_UNROLL(int, i, 4) {
            cml_sum[i * COLUMNS + j] = add_product(f[i], x[i], cml_sum[i * COLUMNS + j]);
        }}
    }}
}
#elif AHEAD
void multiply_inputs(CML_BLOCK loaded[COLUMNS], uint weight) {
    CML_BLOCK x[COLUMNS];
    {CML_UNROLL(int, j, COLUMNS) { x[j] = with_border(loaded[j], found[j]); }}
    cml_multiply(x, weight, 0);
}

void load_inputs(out CML_BLOCK loaded[COLUMNS], uint offset) {
    {CML_UNROLL(int, j, COLUMNS) { loaded[j] = load_input(j, offset); }}
}

// Inputs are loaded TURN blocks before they are multiplied, so a wave multiplies while it waits. The first
// blocks are outside of the loop, so that compilers find the buffers before it.
#define TURN (COLUMNS > 2 ? 1 : 2)
void add_tap(uint weight, uint blocks, uint volume) {
    if (blocks > 0) {
        uint last = (blocks - 1) * volume;
        CML_BLOCK first[COLUMNS];
        CML_BLOCK next[2][COLUMNS];
        load_inputs(first, 0);
        load_inputs(next[0], min(volume, last));
        if (TURN == 2) { load_inputs(next[1], min(2 * volume, last)); }
        multiply_inputs(first, weight);
        uint offset = volume;
        if (TURN == 2 && blocks % 2 == 0) {
            weight += BLOCK_VECTORS;
            multiply_inputs(next[0], weight);
            offset += volume;
            {CML_UNROLL(int, j, COLUMNS) { next[0][j] = next[1][j]; }}
            load_inputs(next[1], min(3 * volume, last));
        }
        cml_end_turn();
        for (; offset <= last; offset += TURN * volume) {
            CML_BLOCK held[2][COLUMNS];
            {CML_UNROLL(int, h, TURN * COLUMNS) {
                held[h / COLUMNS][h % COLUMNS] = next[h / COLUMNS][h % COLUMNS];
            }}
            {CML_UNROLL(int, n, TURN) {
                load_inputs(next[n], min(offset + (TURN + n) * volume, last));
            }}
            {CML_UNROLL(int, t, TURN) {
                weight += BLOCK_VECTORS;
                multiply_inputs(held[t], weight);
            }}
            cml_end_turn();
        }
    }
}
#else
void add_tap(uint weight, uint blocks, uint volume) {
    for (uint c = 0; c < blocks; c++) {
        CML_BLOCK x[COLUMNS];
        {CML_UNROLL(int, j, COLUMNS) { x[j] = input_at(j, c * volume); }}
        cml_multiply(x, weight + c * BLOCK_VECTORS, 0);
        cml_end_turn();
    }
}
#endif

#endif

#if PART != SUMS
void store(uint row_block, int3 phase) {
    uint volume = cml_volume(y_size(0), y_size(1), y_size(2));
    {CML_UNROLL(int, o, VECTORS) {
        uint number = row_block * VECTORS + o;
        if (FULL || 4 * number < out_c) {
            Block block = cml_block(number);
            {CML_UNROLL(int, j, COLUMNS) {
                int3 at = place[j].at * int3(up(0), up(1), up(2)) + phase;
                uint to = (uint(at.x) * y_size(1) + uint(at.y)) * y_size(2) + uint(at.z);
                bool inside = at.x < y_size(0) && at.y < y_size(1) && at.z < y_size(2);
                if (inside && place[j].inside) {
                    cml_store(cml_result(o, j), block, place[j].image, to, volume);
                }
            }}
        }
    }}
}

#endif

#if PART == ALL
void add_window(Part part, uint weight, uint first_block, uint vectors, uint volume) {
    for (int kz = 0; kz < k_size(0); kz++) {
        int oz = part.phase.x * y_mul(0) + kz * k_step(0) + origin(0);
        int dz = cml_floor_up(oz, 0);
        for (int ky = 0; ky < k_size(1); ky++) {
            int oy = part.phase.y * y_mul(1) + ky * k_step(1) + origin(1);
            int dy = cml_floor_up(oy, 1);
            bool row_meets = dz * up(0) == oz && dy * up(1) == oy;
            find_rows(dz, dy);
            for (int kx = 0; kx < k_size(2); kx++) {
                int ox = part.phase.z * y_mul(2) + kx * k_step(2) + origin(2);
                int dx = cml_floor_up(ox, 2);
                find_inputs(dx, first_block, volume);
                add_tap(weight, row_meets && dx * up(2) == ox ? band : 0u, volume);
                weight += vectors;
            }
        }
    }
}
#elif PART == SUMS
void add_window(Part part, uint weight, uint first_block, uint vectors, uint volume) {
    for (uint tap = tap_begin; tap < tap_end; tap++) {
        uint kx = tap;
        uint line = cml_divide_rest(kx, uint(k_size(2)));
        uint kz = cml_divide_rest(line, uint(k_size(1)));
        int3 at = int3(int(kz), int(line), int(kx)) * int3(k_step(0), k_step(1), k_step(2));
        at += part.phase * int3(y_mul(0), y_mul(1), y_mul(2));
        at += int3(origin(0), origin(1), origin(2));
        int3 from = int3(cml_floor_up(at.x, 0), cml_floor_up(at.y, 1), cml_floor_up(at.z, 2));
        bool meets = all(from * int3(up(0), up(1), up(2)) == at);
        find_rows(from.x, from.y);
        find_inputs(from.z, first_block + block_begin, volume);
        uint block_weight = weight + tap * vectors + block_begin * TAP_VECTORS;
        add_tap(block_weight, meets ? block_end - block_begin : 0u, volume);
    }
}
#endif

#if PART != ALL
// Returns the index of the sums of four rows at a column.
uint sum_index(uint vector, uint thread) { return vector * (groups * GROUP) + thread; }
#endif

CML_MAIN
{
    CML_EACH_GROUP(group)
    Part part = cml_part(group);
    {CML_UNROLL(int, j, COLUMNS) {
        place[j] = place_of((part.tile * COLUMNS + j) * GROUP + lane);
    }}
    cml_clear();

#if PART == FINISH
    {CML_UNROLL(int, v, VECTORS * COLUMNS) {
        cml_add_result(v / COLUMNS, v % COLUMNS, T0[sum_index(v, group * GROUP + lane)]);
    }}
#else
    uint volume = cml_volume(x_size(0), x_size(1), x_size(2));
    uint vectors = band * TAP_VECTORS;
    uint first_block = DEPTHWISE ? part.row_block : cml_first_block(part.row_block);
    uint weight = part.row_block * cml_volume(k_size(0), k_size(1), k_size(2)) * vectors;
    add_window(part, weight, first_block, vectors, volume);
#endif
#if PART == SUMS
    {CML_UNROLL(int, v, VECTORS * COLUMNS) {
        uint at = sum_index(v, group * GROUP + lane);
        NUMBER4 before = NUMBER4(0);
        if (tap_begin + block_begin > 0) { before = T2[at]; }
        T2[at] = before + cml_result(v / COLUMNS, v % COLUMNS);
    }}
#else
    store(part.row_block, part.phase);
#endif
}
