// The inner product that conv_tile.hlsl and winograd.hlsl share: ROWS filter rows by COLUMNS
// values, four input channels at a time, in scalar accumulators.
//
// A software driver keeps scalars in registers, float4s not, and there every load costs as much
// as some twenty products: so SHARE lets eight lanes load two vectors of the filter each and pass
// them around, instead of each loading all of them.
// T1 is the filter: ... [block of four inputs][4 in][ROWS] floats, as float4.
#ifndef CML_CONV_PRODUCT
#define CML_CONV_PRODUCT

#define VECTORS (ROWS / 4)
#define SHARERS 8
#define HELD ((ROWS + SHARERS - 1) / SHARERS)

// PHASES of neighbouring columns take other taps; a product is of every PHASES-th column.
#ifndef PHASES
#define PHASES 1
#endif
#define STEPS (COLUMNS / PHASES)

static float cml_sum[ROWS * COLUMNS];

void cml_clear() {
    {[ForceUnroll] for (int i = 0; i < ROWS * COLUMNS; i++) { cml_sum[i] = 0.0; }}
}

// Rows 4 * o to 4 * o + 3 of a column.
float4 cml_result(int o, int column) {
    int at = 4 * o * COLUMNS + column;
    return float4(cml_sum[at], cml_sum[at + COLUMNS], cml_sum[at + 2 * COLUMNS],
                  cml_sum[at + 3 * COLUMNS]);
}

void cml_add_result(int o, int column, float4 sums) {
    int at = 4 * o * COLUMNS + column;
    {[ForceUnroll] for (int i = 0; i < 4; i++) { cml_sum[at + i * COLUMNS] += sums[i]; }}
}

// Adds the products of four input channels, whose filter begins at vector `w`, to a phase's columns.
void cml_multiply(float4 x[STEPS], uint w, int phase) {
#if SHARE
    uint sharer = WaveGetLaneIndex() % SHARERS;
    float4 held[HELD];
    {[ForceUnroll] for (int i = 0; i < HELD; i++) {
        held[i] = T1[w + min(i * SHARERS + sharer, ROWS - 1)];
    }}
#endif
    {[ForceUnroll] for (int i = 0; i < ROWS; i++) {
#if SHARE
        float4 f = WaveReadLaneAt(held[i / SHARERS], i % SHARERS);
#else
        float4 f = T1[w + i];
#endif
        {[ForceUnroll] for (int j = 0; j < STEPS; j++) {
            int at = i % VECTORS * 4 * COLUMNS + j * PHASES + phase;
            float v = x[j][i / VECTORS];
            cml_sum[at] = mad(f.x, v, cml_sum[at]);
            cml_sum[at + COLUMNS] = mad(f.y, v, cml_sum[at + COLUMNS]);
            cml_sum[at + 2 * COLUMNS] = mad(f.z, v, cml_sum[at + 2 * COLUMNS]);
            cml_sum[at + 3 * COLUMNS] = mad(f.w, v, cml_sum[at + 3 * COLUMNS]);
        }}
    }}
}

#endif
