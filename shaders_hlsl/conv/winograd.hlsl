// conv 3x3 with stride 1 by Winograd's F(4x4, 3x3): a quarter of the products.
//
// Three stages over tiles of 4x4 results: transform 6x6 inputs to 36 values, 36 matrix products,
// transform 36 sums to 4x4 results. The points are 0, ±2/3, ±3/2 and infinity, whose rounding
// errors are a quarter of those of the usual 0, ±1, ±2 (docs/design/performance.md).
// A launch does the tiles [first_tile, first_tile + tiles), so that scratch memory is bounded.
#include "divide.hlsli"

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

#if stage_is_input
// T0 input (blocks of four channels), T1 values [36][block][tile].
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

CML_MAIN
{
    CML_EACH_THREAD(thread, tiles * in_blocks)
    uint nth = thread;
    uint block = cml_divide_rest(nth, tiles);
    Tile tile = tile_of(nth);
    uint base = (tile.image * in_blocks + block) * uint(height * width);

    int column[6];
    {CML_UNROLL(int, i, 6) {
        column[i] = cml_border(tile.x + i - before_x, width);
    }}
    float4 rows[6][6];
    {CML_UNROLL(int, r, 6) {
        int row = cml_border(tile.y + r - before_y, height);
        float4 d[6];
        {CML_UNROLL(int, i, 6) {
            bool found = min(row, column[i]) >= 0;
            float4 value = T0[base + (found ? uint(row * width + column[i]) : 0u)];
            d[i] = found ? value : float4(0.0);
        }}
        transform(d, rows[r]);
    }}
    {CML_UNROLL(int, c, 6) {
        float4 d[6];
        {CML_UNROLL(int, r, 6) { d[r] = rows[r][c]; }}
        float4 v[6];
        transform(d, v);
        {CML_UNROLL(int, r, 6) {
            T1[((r * 6 + c) * in_blocks + block) * tiles + nth] = v[r];
        }}
    }}
}

#elif stage_is_product
// T0 values [36][block][tile], T1 filter [36][row block][block][4 in][ROWS],
// and, if FIXED, T2 the step sizes of the quantized filter [36][row block][ROWS],
// SUMS [36][block of four outputs][tile].
#include "conv_product.hlsli"

CML_MAIN
{
    CML_EACH_GROUP(row_block)
    uint part = cml_divide_rest(row_block, row_blocks);
    uint point = cml_divide_rest(part, parts);
    uint at[COLUMNS];
    {CML_UNROLL(int, j, COLUMNS) {
        at[j] = (part * COLUMNS + j) * GROUP + lane;
    }}
    cml_clear();
    uint values = point * in_blocks * tiles;
    uint weight = (point * row_blocks + row_block) * in_blocks * ROWS;
    for (uint c = 0; c < in_blocks; c++) {
        float4 x[COLUMNS];
        {CML_UNROLL(int, j, COLUMNS) {
            x[j] = T0[values + c * tiles + min(at[j], tiles - 1)];
        }}
        cml_multiply(x, weight + c * ROWS, 0);
    }
    {CML_UNROLL(int, o, VECTORS) {
        uint block = row_block * VECTORS + o;
#if FIXED
        float4 step = T2[(point * row_blocks + row_block) * VECTORS + o];
#else
        float4 step = float4(1.0);
#endif
        {CML_UNROLL(int, j, COLUMNS) {
            if (at[j] < tiles && block < out_blocks) {
                SUMS[(point * out_blocks + block) * tiles + at[j]] = cml_result(o, j) * step;
            }
        }}
    }}
}

#else
// T0 sums [36][block][tile], T1 bias, then the epilogues' operands, then OUT.
#define BIAS T1
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

CML_MAIN
{
    CML_EACH_THREAD(thread, tiles * out_blocks)
    uint nth = thread;
    Block block = cml_block(cml_divide_rest(nth, tiles));
    float4 columns[6][4];
    {CML_UNROLL(int, c, 6) {
        float4 m[6];
        {CML_UNROLL(int, r, 6) {
            m[r] = T0[((r * 6 + c) * out_blocks + block.number) * tiles + nth];
        }}
        transform(m, columns[c]);
    }}
    Tile tile = tile_of(nth);
    {CML_UNROLL(int, r, 4) {
        float4 m[6];
        {CML_UNROLL(int, c, 6) { m[c] = columns[c][r]; }}
        float4 y[4];
        transform(m, y);
        {CML_UNROLL(int, i, 4) {
            if (tile.y + r < out_height && tile.x + i < out_width) {
                uint to = uint((tile.y + r) * out_width + tile.x + i);
                cml_store(y[i], block, tile.image, to, uint(out_height * out_width));
            }
        }}
    }}
}
#endif
