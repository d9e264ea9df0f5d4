// conv whose window is known to the compiler: ROWS output channels x COLUMNS positions, one below the
// other, per thread.
//
// A turn of the loop multiplies all inputs under a thread's windows in BLOCKS blocks, while those of the
// next turn are loaded if there are any (LOOP). Positions share inputs.
// PARTS: that many waves of LANES threads each add a part of the blocks, and the first adds their sums.
// T0 input (blocks of four channels, or PLAIN), T1 filter [row block][band][tap][4 in][ROWS], or with
// DOT4 [row block][band][tap][ROWS] words of four bytes, T2 bias,
// then the epilogues' operands, then OUT. INSIDE: no window reaches beyond the input. WHOLE: the channels
// of a plain input fill blocks, as those of groups do.
#include "conv_position.hlsli"
#include "conv_product.hlsli"
#define BIAS T2
#include "conv_store.hlsli"

// inputs under a thread's windows, in rows of TAPS_X
#define SPAN ((COLUMNS - 1) * STRIDE_Y + (TAPS_Y - 1) * DILATION_Y + 1)
#define CELLS (SPAN * TAPS_X)
#define WINDOW_VECTORS (TAPS_Y * TAPS_X * BLOCK_VECTORS)

// windows inside of the input, of one position per thread, need no address for each row
#define REGULAR (INSIDE && COLUMNS == 1)

#if !REGULAR
// the start of each row of inputs, the offset of each input in a row; -1 for none
static int row_from[SPAN];
static int column_from[TAPS_X];
#endif
static uint first_input;
static uint block_volume;

#if WHOLE
#define CHANNELS (4 * in_blocks)
#else
#define CHANNELS group_in
#endif

#if PLAIN && DEPTH == 1
#define CELL NUMBER
CELL load_block(uint index, uint) { return T0[index]; }
#elif PLAIN
NUMBER channel_at(uint index, uint channel) {
#if WHOLE
    return T0[index + channel * block_volume];
#else
    NUMBER loaded = T0[index + min(channel, CHANNELS - 1) * block_volume];
    return channel < CHANNELS ? loaded : NUMBER(0);
#endif
}

#define CELL CML_BLOCK
CELL load_block(uint index, uint block) {
    return CML_BLOCK(channel_at(index, 4 * block), channel_at(index, 4 * block + 1),
                     channel_at(index, 4 * block + 2), channel_at(index, 4 * block + 3));
}
#else
// as it is stored: to convert it is to wait for it
#define CELL T0_TYPE
CELL load_block(uint index, uint block) { return T0[index + block * block_volume]; }
#endif

CELL load_cell(int row, int column, uint block) {
#if REGULAR
    uint at = first_input + uint(row * x_size(2));
#if FEW
    at &= CML_INDEX_BITS;
#endif
    return load_block(at + column * DILATION_X, block);
#elif INSIDE
    return load_block(first_input + uint(row_from[row] + column_from[column]), block);
#else
    int at = max(row_from[row], 0) + max(column_from[column], 0);
    return load_block(first_input + uint(at), block);
#endif
}

CML_BLOCK with_border(CELL cell, int row, int column) {
#if PLAIN && DEPTH == 1
    CML_BLOCK value = CML_BLOCK(cell, 0, 0, 0);
#elif PLAIN
    CML_BLOCK value = cell;
#else
    CML_BLOCK value = CML_BLOCK(LOADED(cell));
#endif
#if !INSIDE
    value = min(row_from[row], column_from[column]) >= 0 ? value : CML_BLOCK(0);
#endif
#ifdef FLIP
    value ^= FLIP;
#endif
    return value;
}

void find_inputs(int y, int x) {
#if REGULAR
    first_input += MULTIPLY(uint(y * STRIDE_Y + origin(1)), uint(x_size(2)))
                   + uint(x * STRIDE_X + origin(2));
#else
    {CML_UNROLL(int, row, SPAN) {
        int sy = y * (COLUMNS * STRIDE_Y) + row + origin(1);
#if INSIDE
        row_from[row] = int(MULTIPLY(uint(min(sy, x_size(1) - 1)), uint(x_size(2))));
#else
        int source = cml_border(sy, x_size(1));
        row_from[row] = source < 0 ? -1 : int(MULTIPLY(uint(source), uint(x_size(2))));
#endif
    }}
    {CML_UNROLL(int, column, TAPS_X) {
        int sx = x * STRIDE_X + column * DILATION_X + origin(2);
#if INSIDE
        column_from[column] = sx;
#else
        column_from[column] = cml_border(sx, x_size(2));
#endif
    }}
#endif
}

// the inputs of a turn
static CELL cells[BLOCKS * CELLS];

void load_cells(uint block) {
    {CML_UNROLL(int, i, BLOCKS * CELLS) {
        cells[i] = load_cell(i % CELLS / TAPS_X, i % TAPS_X, block + i / CELLS);
    }}
}

// Multiplies the inputs that are loaded, while it loads those of the blocks from `next` on. Their copy
// keeps the compiler from waiting for the new ones at the end of the loop.
void add_turn(uint w, uint next) {
    w &= CML_INDEX_BITS;
    CML_BLOCK held[BLOCKS * CELLS];
    {CML_UNROLL(int, i, BLOCKS * CELLS) {
        held[i] = with_border(cells[i], i % CELLS / TAPS_X, i % TAPS_X);
    }}
#if LOOP
    load_cells(next);
#endif
    {CML_UNROLL(int, tap, BLOCKS * TAPS_Y * TAPS_X) {
        CML_BLOCK x[COLUMNS];
        int block = tap / (TAPS_Y * TAPS_X);
        int row = tap / TAPS_X % TAPS_Y * DILATION_Y;
        {CML_UNROLL(int, j, COLUMNS) {
            x[j] = held[block * CELLS + (j * STRIDE_Y + row) * TAPS_X + tap % TAPS_X];
        }}
        {CML_UNROLL(int, i, BLOCK_VECTORS * DEPTH / 4) {
            multiply_vector(T1[w + tap * BLOCK_VECTORS + i], x, i, 0, 0);
        }}
    }}
    cml_end_turn();
}

// Adds the blocks from `begin` to before `end`.
void add_blocks(uint weight, uint begin, uint end) {
    uint final = end - BLOCKS;
    load_cells(begin);
    // the first turn is outside of the loop, so that compilers find the buffers before it
    add_turn(weight + begin * WINDOW_VECTORS, min(begin + BLOCKS, final));
#if LOOP
    for (uint block = begin + BLOCKS; block < end; block += BLOCKS) {
        add_turn(weight + block * WINDOW_VECTORS, min(block + BLOCKS, final));
    }
#endif
}

#if PARTS > 1
groupshared NUMBER part_sums[PARTS - 1][ROWS * COLUMNS][LANES];

uint first_of_part(uint number) { return band / BLOCKS * number / PARTS * BLOCKS; }
#endif

CML_MAIN
{
    CML_EACH_GROUP(group)
    uint row_block = group, tile = DIVIDE_GROUP(row_block, row_blocks);
    uint3 steps = uint3(1, steps3(1), steps3(2));
    uint index = tile * LANES + lane % LANES;
    bool exists = index < batch * steps.y * steps.z;
    index = min(index, batch * steps.y * steps.z - 1);
    uint row = DIVIDE_LINE(index, steps.z);
#if FEW
    uint image = 0;
#else
    uint image = cml_divide_rest(row, steps.y);
#endif
    block_volume = uint(x_size(1) * x_size(2));
#if GROUPED
    uint first_block = cml_first_block(row_block);
#else
    uint first_block = 0;
#endif
#if PLAIN
    first_input = (image * CHANNELS + 4 * first_block) * block_volume;
#else
    first_input = (image * in_blocks + first_block) * block_volume;
#endif
    find_inputs(int(row), int(index));
    cml_clear();

    uint weight = row_block * band * WINDOW_VECTORS;
#if PARTS > 1
    // a wave skips the turns of others; their counter is no lane's, so filters are loaded as scalars
    [loop] for (uint wave = 0; wave < PARTS; wave++) {
        if (lane / LANES == wave) {
            add_blocks(weight, first_of_part(wave), first_of_part(wave + 1));
        }
    }
    if (lane >= LANES) {
        {CML_UNROLL(int, i, ROWS * COLUMNS) {
            part_sums[lane / LANES - 1][i][lane % LANES] = cml_sum[i];
        }}
    }
    GroupMemoryBarrierWithGroupSync();
    if (lane >= LANES) { return; }
    {CML_UNROLL(int, p, PARTS - 1) {
        {CML_UNROLL(int, i, ROWS * COLUMNS) { cml_sum[i] += part_sums[p][i][lane]; }}
    }}
#else
    add_blocks(weight, 0, band);
#endif

    uint volume = uint(y_size(1) * y_size(2));
    {CML_UNROLL(int, o, VECTORS) {
        uint number = row_block * VECTORS + o;
        if (FULL || 4 * number < out_c) {
            Block block = cml_block(number);
            {CML_UNROLL(int, j, COLUMNS) {
                uint y = row * COLUMNS + j;
                if (exists && y < uint(y_size(1))) {
                    uint at = MULTIPLY(y, uint(y_size(2))) + index;
                    cml_store(cml_result(o, j), block, image, at, volume);
                }
            }}
        }
    }}
}
