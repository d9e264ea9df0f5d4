// conv 3x3 with stride 1 by Winograd's F(4x4, 3x3): a quarter of the products.
//
// Three stages over tiles of 4x4 results: transform 6x6 inputs to 36 values, 36 matrix products,
// transform 36 sums to 4x4 results. The points are 0, ±2/3, ±3/2 and infinity, whose rounding
// errors are a quarter of those of the usual 0, ±1, ±2 (docs/design/performance.md).
// A launch does the tiles [first_tile, first_tile + tiles), so that scratch memory is bounded.
//
// Scratch memory is in the order in which the products read it: [run of tiles][36][pair of blocks]
// [tile of the run][8 channels]. A software driver loads and stores lane by lane, and four 64-bit
// integers cost it as much as a float4. So with WIDE eight channels move at once, and a thread of the
// transforms does both blocks of a pair.
#include "divide.hlsli"
#include "wide.hlsli"

#define P (2.0 / 3.0)
#define Q (3.0 / 2.0)
#define P2 (P * P)
#define Q2 (Q * Q)

// Returns the position of a tile's first result.
struct Tile {
    uint image;
    int y;
    int x;
};

Tile tile_of(uint index) {
    Tile tile;
    index += first_tile;
    uint row = cml_divide_rest(index, tiles_x);
    tile.image = cml_divide_rest(row, tiles_y);
    tile.y = int(row) * 4;
    tile.x = int(index) * 4;
    return tile;
}

// HALVES: scratch memory and the filter have 16 bits. The products of eight channels are added in 16
// bits, two rows in one operation, and their sums in 32.
#ifndef HALVES
#define HALVES 0
#endif
#if HALVES
#define SCRATCH(v) half4(v)
#else
#define SCRATCH(v) v
#endif

#define POINTS 36
#define RUN 32

#if WIDE
#define BLOCKS 2
#else
#define BLOCKS 1
#endif

uint pairs_of(uint blocks) { return (blocks + 1) / 2; }

// Returns the index of eight channels of a tile's first point in scratch memory; those of the next
// point are `pairs` * RUN further.
uint place_of(uint tile, uint pair, uint pairs) {
    return (tile / RUN * POINTS * pairs + pair) * RUN + tile % RUN;
}

// LOAD and STORE eight numbers. A tensor has 64-bit integers if WIDE, else float4s.
#if WIDE
#define LOAD(tensor, i) cml_split(tensor[i])
#define STORE(tensor, i, a, b) tensor[i] = uint64_t4(cml_join(a), cml_join(b))
#else
#define LOAD(tensor, i) LOAD_VECTORS(tensor, i)
#define STORE(tensor, i, a, b) tensor[2 * (i)] = SCRATCH(a); tensor[2 * (i) + 1] = SCRATCH(b)
#endif
#define LOAD_VECTORS(tensor, i) {{tensor[2 * (i)], tensor[2 * (i) + 1]}}

#if stage_is_input
// T0 input (blocks of four channels), T1 values (scratch).
#include "border.hlsli"

void transform(float4 d[6], out float4 v[6]) {
    float4 even_a = d[4] - Q2 * d[2];
    float4 odd_a = P * d[3] - Q * d[1];
    float4 even_b = d[4] - P2 * d[2];
    float4 odd_b = Q * d[3] - P * d[1];
    v[0] = d[0] - (P2 + Q2) * d[2] + d[4];
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
    v[5] = d[1] - (P2 + Q2) * d[3] + d[5];
}

// Transforms a block of a tile. The values of the block that only fills a pair are zeros.
void transform_block(Tile tile, uint block, out float4 values[POINTS]) {
    bool exists = block < in_blocks;
    uint base = (tile.image * in_blocks + min(block, in_blocks - 1)) * uint(height * width);
    int column[6];
    {CML_UNROLL(int, i, 6) {
        column[i] = cml_border(tile.x + i - before_x, width);
    }}
    float4 rows[6][6];
    {CML_UNROLL(int, r, 6) {
        int row = cml_border(tile.y + r - before_y, height);
        float4 d[6];
        {CML_UNROLL(int, i, 6) {
            bool found = exists && min(row, column[i]) >= 0;
            float4 value = LOADED(T0[base + (found ? uint(row * width + column[i]) : 0u)]);
            d[i] = found ? value : float4(0.0);
        }}
        transform(d, rows[r]);
    }}
    {CML_UNROLL(int, c, 6) {
        float4 d[6];
        {CML_UNROLL(int, r, 6) { d[r] = rows[r][c]; }}
        float4 v[6];
        transform(d, v);
        {CML_UNROLL(int, r, 6) { values[r * 6 + c] = v[r]; }}
    }}
}

CML_MAIN
{
    uint pairs = pairs_of(in_blocks);
    CML_EACH_THREAD(thread, tiles * pairs * 2 / BLOCKS)
    uint nth = thread;
    uint first = cml_divide_rest(nth, tiles) * BLOCKS;
    Tile tile = tile_of(nth);
    float4 values[BLOCKS][POINTS];
    {CML_UNROLL(int, b, BLOCKS) {
        transform_block(tile, first + b, values[b]);
    }}
    uint place = place_of(nth, first / 2, pairs);
    {CML_UNROLL(int, point, POINTS) {
        uint to = place + point * (pairs * RUN);
#if WIDE
        STORE(T1, to, values[0][point], values[1][point]);
#else
        T1[2 * to + first % 2] = SCRATCH(values[0][point]);
#endif
    }}
}

#elif stage_is_product
// T0 values (scratch), T1 filter [36][row group][pair][8 in][8 rows],
// and, if FIXED, T2 the step sizes of the quantized filter [36][row group][8 rows], SUMS (scratch).
// A thread computes ROWS output channels of COLUMNS tiles in scalar accumulators, which a software
// driver keeps in registers. With SHARE eight lanes load eight rows of an input channel each and pass
// them on, instead of each lane loading all of them.
#if FIXED
Eight split(Fixed8 f) {
    Eight e = {{float4(cml_spread(f.bits.xy) >> 16), float4(cml_spread(f.bits.zw) >> 16)}};
    return e;
}
#define LOAD_FILTER(i) split(T1[i])
#else
#define LOAD_FILTER(i) LOAD(T1, i)
#endif

static float sums[ROWS * COLUMNS];

#if HALVES
struct Values {
    half4 part[2];
};

void multiply(Values x[COLUMNS], uint weight, int row) {
    weight &= 0x3ffffffu;
    half2 added[4 * COLUMNS];
    {CML_UNROLL(int, i, 4 * COLUMNS) { added[i] = half2(0); }}
    {CML_UNROLL(int, k, 8) {
        Values loaded = LOAD(T1, weight + k);
        {CML_UNROLL(int, j, COLUMNS) {
            half2 v = half2(x[j].part[k / 4][k % 4]);
            {CML_UNROLL(int, r, 2) {
                int to = 2 * r * COLUMNS + j;
                added[to] = mad(loaded.part[r].xy, v, added[to]);
                added[to + COLUMNS] = mad(loaded.part[r].zw, v, added[to + COLUMNS]);
            }}
        }}
    }}
    {CML_UNROLL(int, i, 4 * COLUMNS) {
        int to = (row + i / COLUMNS * 2) * COLUMNS + i % COLUMNS;
        sums[to] += float(added[i].x);
        sums[to + COLUMNS] += float(added[i].y);
    }}
}
#else
#define Values Eight

void add_product(float weight, Eight x, int k, int row, int column) {
    int to = row * COLUMNS + column;
    sums[to] = mad(weight, x.part[k / 4][k % 4], sums[to]);
}

// Adds the products of eight input channels with eight rows of the filter, from row `row` on.
#if SHARE
// In blocks of 4 rows x 2 tiles, whose sums stay in a CPU's registers. The driver passes a number on
// with one instruction if it does not know the lane, with two if it does.
void multiply(Eight x[COLUMNS], uint weight, int row) {
    Eight loaded = LOAD_FILTER(weight + WaveGetLaneIndex() % 8);
    {CML_UNROLL(int, half, 2) {
        {CML_UNROLL(int, j, COLUMNS / 2) {
            {CML_UNROLL(int, k, 8) {
                {CML_UNROLL(int, r, 4) {
                    float f = WaveReadLaneAt(loaded.part[half][r], k ^ CML_SEAL);
                    add_product(f, x[2 * j], k, row + 4 * half + r, 2 * j);
                    add_product(f, x[2 * j + 1], k, row + 4 * half + r, 2 * j + 1);
                }}
            }}
        }}
    }}
}
#else
void multiply(Eight x[COLUMNS], uint weight, int row) {
    // a compiler that knows the bits of an index adds constants in the load instruction
    weight &= 0x3ffffffu;
    {CML_UNROLL(int, k, 8) {
        Eight loaded = LOAD_FILTER(weight + k);
        {CML_UNROLL(int, r, 8) {
            {CML_UNROLL(int, j, COLUMNS) {
                add_product(loaded.part[r / 4][r % 4], x[j], k, row + r, j);
            }}
        }}
    }}
}
#endif
#endif

float4 four_sums(int row, int column) {
    int at = row * COLUMNS + column;
    return float4(sums[at], sums[at + COLUMNS], sums[at + 2 * COLUMNS], sums[at + 3 * COLUMNS]);
}

CML_MAIN
{
    CML_EACH_GROUP(row_block)
    uint part = cml_divide_rest(row_block, row_blocks);
    uint point = cml_divide_rest(part, parts);
    uint in_pairs = pairs_of(in_blocks);
    uint out_pairs = pairs_of(out_blocks);
    uint values[COLUMNS];
    {CML_UNROLL(int, j, COLUMNS) {
        uint tile = (part * COLUMNS + j) * GROUP + lane;
        values[j] = place_of(min(tile, tiles - 1), 0, in_pairs) + point * (in_pairs * RUN);
    }}
    uint weights[ROWS / 8];
    {CML_UNROLL(int, g, ROWS / 8) {
        uint group = min(row_block * (ROWS / 8) + g, out_pairs - 1);
        weights[g] = (point * out_pairs + group) * in_pairs * 8;
    }}
    {CML_UNROLL(int, i, ROWS * COLUMNS) { sums[i] = 0.0; }}
#if AHEAD
    // Values are loaded one pair before they are multiplied, so a wave multiplies while it waits. The
    // first pair is outside of the loop, so that compilers find the buffers before it.
    if (in_pairs > 0) {
        uint last = (in_pairs - 1) * RUN;
        Values held[COLUMNS];
        Values next[COLUMNS];
        {CML_UNROLL(int, j, COLUMNS) { held[j] = LOAD(T0, values[j]); }}
        {CML_UNROLL(int, j, COLUMNS) { next[j] = LOAD(T0, values[j] + min(RUN, last)); }}
        {CML_UNROLL(int, g, ROWS / 8) { multiply(held, weights[g], g * 8); }}
        for (uint offset = RUN; offset <= last; offset += RUN) {
            {CML_UNROLL(int, j, COLUMNS) { held[j] = next[j]; }}
            uint ahead = min(offset + RUN, last);
            {CML_UNROLL(int, j, COLUMNS) { next[j] = LOAD(T0, values[j] + ahead); }}
            {CML_UNROLL(int, g, ROWS / 8) {
                weights[g] += 8;
                multiply(held, weights[g], g * 8);
            }}
        }
    }
#else
    for (uint pair = 0; pair < in_pairs; pair++) {
        Values x[COLUMNS];
        {CML_UNROLL(int, j, COLUMNS) {
            x[j] = LOAD(T0, values[j]);
            values[j] += RUN;
        }}
        {CML_UNROLL(int, g, ROWS / 8) {
            multiply(x, weights[g], g * 8);
            weights[g] += 8;
        }}
    }
#endif
    {CML_UNROLL(int, g, ROWS / 8) {
        uint pair = row_block * (ROWS / 8) + g;
#if FIXED
        uint at = point * out_pairs + min(pair, out_pairs - 1);
        Eight step = LOAD_VECTORS(T2, at);
#else
        Eight step = {{float4(1.0), float4(1.0)}};
#endif
        {CML_UNROLL(int, j, COLUMNS) {
            uint tile = (part * COLUMNS + j) * GROUP + lane;
            if (tile < tiles && pair < out_pairs) {
                uint place = place_of(tile, pair, out_pairs) + point * (out_pairs * RUN);
                float4 low = four_sums(8 * g, j) * step.part[0];
                STORE(SUMS, place, low, four_sums(8 * g + 4, j) * step.part[1]);
            }
        }}
    }}
}

#else
// T0 sums (scratch), T1 bias, then the epilogues' operands, then OUT.
#define BIAS T1
#define RESULT_SIZE(axis) ((axis) == 1 ? out_height : out_width)
#include "conv_store.hlsli"

void transform(float4 m[6], out float4 y[4]) {
    float4 sum_a = m[1] + m[2];
    float4 difference_a = m[1] - m[2];
    float4 sum_b = m[3] + m[4];
    float4 difference_b = m[3] - m[4];
    y[0] = m[0] + sum_a + sum_b;
    y[1] = P * difference_a + Q * difference_b;
    y[2] = P2 * sum_a + Q2 * sum_b;
    y[3] = (P * P2) * difference_a + (Q * Q2) * difference_b + m[5];
}

// Returns True if a result of a tile is needed. The first one always is: with that known, compilers of
// hardware find the buffers before the branches. (A software driver's code stays as it is.)
bool is_inside(Tile tile, int row, int column) {
#if AHEAD
    if (row + column == 0) { return true; }
#endif
    return tile.y + row < out_height && tile.x + column < out_width;
}

void store_block(Tile tile, Block block, float4 sums[POINTS]) {
    float4 columns[6][4];
    {CML_UNROLL(int, c, 6) {
        float4 m[6];
        {CML_UNROLL(int, r, 6) { m[r] = sums[r * 6 + c]; }}
        transform(m, columns[c]);
    }}
    {CML_UNROLL(int, r, 4) {
        float4 m[6];
        {CML_UNROLL(int, c, 6) { m[c] = columns[c][r]; }}
        float4 y[4];
        transform(m, y);
        {CML_UNROLL(int, i, 4) {
            if (is_inside(tile, r, i)) {
                uint to = uint((tile.y + r) * out_width + tile.x + i);
                cml_store(y[i], block, tile.image, to, uint(out_height * out_width));
            }
        }}
    }}
}

CML_MAIN
{
    uint pairs = pairs_of(out_blocks);
    CML_EACH_THREAD(thread, tiles * ((out_blocks + BLOCKS - 1) / BLOCKS))
    uint nth = thread;
    uint first = cml_divide_rest(nth, tiles) * BLOCKS;
    float4 sums[BLOCKS][POINTS];
    uint place = place_of(nth, first / 2, pairs);
    {CML_UNROLL(int, point, POINTS) {
        uint from = place + point * (pairs * RUN);
#if WIDE
        Eight loaded = LOAD(T0, from);
        sums[0][point] = loaded.part[0];
        sums[1][point] = loaded.part[1];
#else
        sums[0][point] = float4(T0[2 * from + first % 2]);
#endif
    }}
    Tile tile = tile_of(nth);
    {CML_UNROLL(int, b, BLOCKS) {
        if (first + b < out_blocks) { store_block(tile, cml_block(first + b), sums[b]); }
    }}
}
#endif
