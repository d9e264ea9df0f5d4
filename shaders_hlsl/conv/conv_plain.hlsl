// conv of a plain input of few channels: ROWS output channels x COLUMNS neighbouring results of a
// line per thread. It needs no copy in blocks of four channels and no products with padding channels.
//
// T0 input, T1 filter [row block][line of taps][channel][TAPS][ROWS] as float4s, T2 bias, then the
// epilogues' operands, then OUT.
#include "conv_position.hlsli"
#include "conv_product.hlsli"
#define BIAS T2
#include "conv_store.hlsli"

// inputs of a line under the windows of a thread's results
#define SPAN ((COLUMNS - 1) * STRIDE + TAPS)
// vectors of the filter per line of taps and channel, and the number of them that a lane loads
#define LINE_VECTORS (TAPS * VECTORS)
#define LINE_LOADS ((LINE_VECTORS + SHARERS - 1) / SHARERS)

#define INPUT NUMBER
#define CHOICE bool
#include "conv_line.hlsli"

// Adds the products of a channel's inputs with vector `i` of a line of taps.
void add_vector(NUMBER4 f, NUMBER x[SPAN], int i) {
    {CML_UNROLL(int, j, COLUMNS) {
        int at = i % VECTORS * 4 * COLUMNS + j;
        NUMBER v = x[j * STRIDE + i / VECTORS];
        {CML_UNROLL(int, row, 4) {
            int to = at + row * COLUMNS;
            cml_sum[to] = cml_mad(f[row], v, cml_sum[to]);
        }}
    }}
}

// Adds the products of a channel's inputs with a line of taps, which begins at vector `w`.
void add_line(NUMBER x[SPAN], uint w) {
#if SHARE
    uint sharer = WaveGetLaneIndex() % SHARERS;
    NUMBER4 loaded[LINE_LOADS];
    {CML_UNROLL(int, i, LINE_LOADS) {
        loaded[i] = T1[w + min(i * SHARERS + sharer, LINE_VECTORS - 1)];
    }}
#endif
    {CML_UNROLL(int, i, LINE_VECTORS) {
#if SHARE
        NUMBER4 f = WaveReadLaneAt(loaded[i / SHARERS], i % SHARERS);
#else
        NUMBER4 f = T1[w + i];
#endif
        add_vector(f, x, i);
    }}
}

void cml_add_window(Part part, Run p, uint volume) {
    uint lines = uint(k_size(0) * k_size(1));
    uint weight = part.row_block * lines * group_in * LINE_VECTORS;
    for (int line = 0; line < int(lines); line++) {
        int kz = int(cml_divide(uint(line), uint(k_size(1))));
        int sz = p.at.x * y_mul(0) + kz * k_step(0) + origin(0);
        int sy = p.at.y * y_mul(1) + (line - kz * k_size(1)) * k_step(1) + origin(1);
        cml_find_inputs(cml_border(sz, x_size(0)), cml_border(sy, x_size(1)),
                    p.at.z * STRIDE + origin(2), p.image * group_in * volume);
        for (uint c = 0; c < group_in; c++) {
            NUMBER x[SPAN];
            {CML_UNROLL(int, i, SPAN) { x[i] = cml_input(i, c * volume); }}
            add_line(x, weight);
            weight += LINE_VECTORS;
        }
    }
}
