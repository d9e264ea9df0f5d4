// conv with one output for each input channel, stride and dilation 1: a tile of TILE_Y x TILE_X
// results of four channels per thread.
//
// Neighbouring windows overlap: a row of inputs is loaded once for all results that use it, so a 4x4
// window over 4x4 results takes 49 loads instead of 256.
// T0 input (blocks of four channels), T1 filter [block][KERNEL_Y * KERNEL_X], T2 bias, then the
// epilogues' operands, then OUT.
#include "border.hlsli"
#include "divide.hlsli"
#define BIAS T2
#include "conv_store.hlsli"

#define SOURCES_X (TILE_X + KERNEL_X - 1)
#define SOURCES_Y (TILE_Y + KERNEL_Y - 1)

// Scalars, because a software driver keeps scalars in registers but not float4s.
static float sums[TILE_Y * TILE_X * 4];
static float taps[KERNEL_Y * KERNEL_X * 4];

void clear() {
    {CML_UNROLL(int, i, TILE_Y * TILE_X * 4) { sums[i] = 0.0; }}
}

void load_taps(uint block) {
    {CML_UNROLL(int, i, KERNEL_Y * KERNEL_X) {
        float4 tap = T1[block * (KERNEL_Y * KERNEL_X) + i];
        {CML_UNROLL(int, lane, 4) { taps[4 * i + lane] = tap[lane]; }}
    }}
}

// Adds the products of row `r` of the inputs to every row of results.
void add_row(int r, float4 x[SOURCES_X]) {
    {CML_UNROLL(int, i, TILE_Y * KERNEL_X) {
        int row = i / KERNEL_X;
        int kx = i % KERNEL_X;
        int ky = r - row;
        if (ky >= 0 && ky < KERNEL_Y) {
            {CML_UNROLL(int, at, TILE_X * 4) {
                int sum = row * TILE_X * 4 + at;
                sums[sum] = mad(taps[4 * (ky * KERNEL_X + kx) + at % 4], x[at / 4 + kx][at % 4],
                                sums[sum]);
            }}
        }
    }}
}

CML_MAIN
{
    CML_EACH_THREAD(tile_x, threads)
    uint tile_y = cml_divide_rest(tile_x, tiles_x);
    uint number = cml_divide_rest(tile_y, tiles_y);
    uint image = cml_divide_rest(number, blocks);
    int x0 = int(tile_x) * TILE_X;
    int y0 = int(tile_y) * TILE_Y;
    clear();
    load_taps(number);
    uint base = (image * blocks + number) * uint(height * width);
    int column[SOURCES_X];
    {CML_UNROLL(int, i, SOURCES_X) {
        column[i] = cml_border(x0 + i - before_x, width);
    }}
    {CML_UNROLL(int, r, SOURCES_Y) {
        int row = cml_border(y0 + r - before_y, height);
        float4 x[SOURCES_X];
        {CML_UNROLL(int, i, SOURCES_X) {
            bool found = min(row, column[i]) >= 0;
            float4 value = LOADED(T0[base + select(found, uint(row * width + column[i]), 0u)]);
            x[i] = select(bool4(found), value, float4(0.0));
        }}
        add_row(r, x);
    }}
    Block block = cml_block(number);
    uint volume = uint(out_height * out_width);
    {CML_UNROLL(int, at, TILE_Y * TILE_X) {
        int y = y0 + at / TILE_X;
        int x = x0 + at % TILE_X;
        if (y < out_height && x < out_width) {
            float4 sum = float4(sums[4 * at], sums[4 * at + 1], sums[4 * at + 2], sums[4 * at + 3]);
            cml_store(sum, block, image, uint(y * out_width + x), volume);
        }
    }}
}
