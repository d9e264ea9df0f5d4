// C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n] (+ bias[n]), then the epilogues.
//
// A thread holds ROWS x COLS sums in registers. All lanes of a row of the workgroup (COLUMN_LANES
// of them) share their rows of A, so an element of A is one broadcast read; neighbouring lanes
// read neighbouring columns of B. That reuses registers enough to go without groupshared memory.
// A_VECTOR reads four k of A at once, B_VECTOR four columns of B, B_INNER four k of B.
// SHARE: each of eight lanes reads some of the rows and passes them to the others. A software
// driver does a read of eight lanes one after the other, even if they read the same.
//
// REDUCE is for few results with a long sum: a workgroup makes ROWS x COLS of them, its lanes
// share the sum and add it up as a tree, in the same order every time. Vectors run along k.
//
// A sum longer than one dispatch may take goes on in the next: `accumulate` starts from C.

#if defined(BIAS) || defined(EPI_STEPS)
#define FINISHES
#endif
#include "divide.hlsli"
#include "epilogue.hlsli"

#define LANE_ROWS (GROUP / COLUMN_LANES)

uint batch_offset(uint batch, bool left)
{
    uint offset = 0;
    [ForceUnroll]
    for (uint d = 0; d < BATCH_RANK; d++) {
        uint index = batch;
        if (d + 1 < BATCH_RANK) { batch = cml_divide_rest(index, batch_shape(d)); }
        offset += index * (left ? a_batch(d) : b_batch(d));
    }
    return offset;
}

// What follows the sum, once it is whole. ROW_CHANNELS: the channels are the rows.
float finished(float sum, uint m, uint n, uint at)
{
#ifdef ROW_CHANNELS
    n = m;
#endif
#ifdef BIAS
    sum += T2[n * bias_stride];
#endif
    return cml_epilogue(sum, n, at);
}

#ifdef REDUCE

groupshared float partial[ROWS * COLS][GROUP];

CML_MAIN
{
    CML_EACH_GROUP(rest)
    uint tile_n = rest;
    uint m0 = cml_divide_rest(tile_n, tiles_n);
    uint batch = cml_divide_rest(m0, tiles_m);
    m0 *= ROWS;
    uint n0 = tile_n * COLS;
    uint a = batch_offset(batch, true);
    uint b = batch_offset(batch, false);
    uint a_at[ROWS];
    uint b_at[COLS];
    float sum[ROWS * COLS];
    [ForceUnroll]
    for (uint p = 0; p < ROWS; p++) { a_at[p] = a + min(m0 + p, rows - 1) * a_m; }
    [ForceUnroll]
    for (uint q = 0; q < COLS; q++) { b_at[q] = b + min(n0 + q, columns - 1) * b_n; }
    [ForceUnroll]
    for (uint z = 0; z < ROWS * COLS; z++) { sum[z] = 0.0; }
    for (uint k = k_begin + lane; k < k_end; k += GROUP) {
        T0_TYPE x[ROWS];
        [ForceUnroll]
        for (uint r = 0; r < ROWS; r++) { x[r] = T0[a_at[r] + k * a_k]; }
        [ForceUnroll]
        for (uint j = 0; j < COLS; j++) {
            T0_TYPE w = T1[b_at[j] + k * b_k];
            [ForceUnroll]
            for (uint i = 0; i < ROWS; i++) {
#ifdef A_VECTOR
                float s = sum[i * COLS + j];
                s = mad(x[i].x, w.x, s);
                s = mad(x[i].y, w.y, s);
                s = mad(x[i].z, w.z, s);
                sum[i * COLS + j] = mad(x[i].w, w.w, s);
#else
                sum[i * COLS + j] = mad(x[i], w, sum[i * COLS + j]);
#endif
            }
        }
    }
    [ForceUnroll]
    for (uint t = 0; t < ROWS * COLS; t++) { partial[t][lane] = sum[t]; }
    [ForceUnroll]
    for (uint width = GROUP / 2; width > 0; width /= 2) {
        GroupMemoryBarrierWithGroupSync();
        if (lane < width) {
            [ForceUnroll]
            for (uint s = 0; s < ROWS * COLS; s++) { partial[s][lane] += partial[s][lane + width]; }
        }
    }
    GroupMemoryBarrierWithGroupSync();
    for (uint made = lane; made < ROWS * COLS; made += GROUP) {
        uint m = m0 + made / COLS;
        uint n = n0 + made % COLS;
        if (m < rows && n < columns) {
            uint at = (batch * rows + m) * columns + n;
            float sum = partial[made][0];
            if (accumulate != 0) { sum += OUT[at]; }
            OUT[at] = last != 0 ? finished(sum, m, n, at) : sum;
        }
    }
}

#else

#if defined(A_VECTOR) || defined(B_INNER)
#define STEP 4
#else
#define STEP 1
#endif
// What a lane loads of A for STEP of k: all rows, or those that it passes to the other lanes.
#ifdef SHARE
#define SHARERS 8
#define HELD ((ROWS + SHARERS - 1) / SHARERS)
#else
#define HELD ROWS
#endif

static uint a_at[HELD];
static uint b_at[COLS];
static float cml_sum[ROWS * COLS];

// Adds the products of a number of each row with one of each column.
void multiply(float x[HELD], float w[COLS])
{
    [ForceUnroll]
    for (uint i = 0; i < ROWS; i++) {
#ifdef SHARE
        float y = WaveReadLaneAt(x[i / SHARERS], i % SHARERS);
#else
        float y = x[i];
#endif
        [ForceUnroll]
        for (uint j = 0; j < COLS; j++) {
            cml_sum[i * COLS + j] = mad(y, w[j], cml_sum[i * COLS + j]);
        }
    }
}

// Adds the products of A and B from `k` to `k + STEP - 1`.
void add_products(uint k)
{
    float x[HELD][STEP];
    [ForceUnroll]
    for (uint r = 0; r < HELD; r++) {
#ifdef A_VECTOR
        float4 four = T0[a_at[r] + k / 4 * a_k];
        x[r][0] = four.x;
        x[r][1] = four.y;
        x[r][2] = four.z;
        x[r][3] = four.w;
#else
        [ForceUnroll]
        for (uint c = 0; c < STEP; c++) { x[r][c] = T0[a_at[r] + (k + c) * a_k]; }
#endif
    }
#ifdef B_INNER
    float4 inner[COLS];
    [ForceUnroll]
    for (uint l = 0; l < COLS; l++) { inner[l] = T1[b_at[l] + k / 4 * b_k]; }
#endif
    [ForceUnroll]
    for (uint c = 0; c < STEP; c++) {
        float y[HELD];
        [ForceUnroll]
        for (uint h = 0; h < HELD; h++) { y[h] = x[h][c]; }
        float w[COLS];
#if defined(B_VECTOR)
        [ForceUnroll]
        for (uint v = 0; v < COLS / 4; v++) {
            float4 four = T1[b_at[v] + (k + c) * b_k];
            w[4 * v] = four.x;
            w[4 * v + 1] = four.y;
            w[4 * v + 2] = four.z;
            w[4 * v + 3] = four.w;
        }
#elif defined(B_INNER)
        [ForceUnroll]
        for (uint l = 0; l < COLS; l++) { w[l] = inner[l][c]; }
#else
        [ForceUnroll]
        for (uint l = 0; l < COLS; l++) { w[l] = T1[b_at[l] + (k + c) * b_k]; }
#endif
        multiply(y, w);
    }
}

CML_MAIN
{
    CML_EACH_GROUP(rest)
    uint tile_n = rest;
    uint tile_m = cml_divide_rest(tile_n, tiles_n);
    uint batch = cml_divide_rest(tile_m, tiles_m);
    uint m0 = (tile_m * LANE_ROWS + (LANE_ROWS > 1 ? lane / COLUMN_LANES : 0)) * ROWS;
    uint column = LANE_ROWS > 1 ? lane % COLUMN_LANES : lane;
    uint a = batch_offset(batch, true);
    uint b = batch_offset(batch, false);
    // Rows and columns past the end repeat the last one: their sums are never stored.
    [ForceUnroll]
    for (uint p = 0; p < HELD; p++) {
#ifdef SHARE
        uint m = m0 + min(p * SHARERS + WaveGetLaneIndex() % SHARERS, ROWS - 1);
#else
        uint m = m0 + p;
#endif
        a_at[p] = a + min(m, rows - 1) * a_m;
    }
    uint n_of[COLS];
    [ForceUnroll]
    for (uint q = 0; q < COLS; q++) {
#ifdef B_VECTOR
        uint vector = (tile_n * (COLS / 4) + q / 4) * COLUMN_LANES + column;
        n_of[q] = 4 * vector + q % 4;
        b_at[q / 4] = b + min(vector, b_vectors - 1);
#else
        n_of[q] = (tile_n * COLS + q) * COLUMN_LANES + column;
        b_at[q] = b + min(n_of[q], columns - 1) * b_n;
#endif
    }
    [ForceUnroll]
    for (uint z = 0; z < ROWS * COLS; z++) { cml_sum[z] = 0.0; }
    for (uint k = k_begin; k < k_end; k += STEP) { add_products(k); }
    [ForceUnroll]
    for (uint row = 0; row < ROWS; row++) {
        [ForceUnroll]
        for (uint j = 0; j < COLS; j++) {
            if (m0 + row < rows && n_of[j] < columns) {
                uint at = (batch * rows + m0 + row) * columns + n_of[j];
                float before = 0.0;
                if (accumulate != 0) { before = OUT[at]; }
                OUT[at] = cml_sum[row * COLS + j] + before;
            }
        }
    }
#ifdef FINISHES
    // A loop of its own over what this thread has stored: unrolled with the sums, which must be
    // because they are registers, it would make the driver compile for seconds.
    if (last == 0) { return; }
    for (uint s = 0; s < ROWS * COLS; s++) {
        uint m = m0 + s / COLS;
        uint q = s % COLS;
#ifdef B_VECTOR
        uint n = 4 * ((tile_n * (COLS / 4) + q / 4) * COLUMN_LANES + column) + q % 4;
#else
        uint n = (tile_n * COLS + q) * COLUMN_LANES + column;
#endif
        if (m < rows && n < columns) {
            uint at = (batch * rows + m) * columns + n;
            OUT[at] = finished(OUT[at], m, n, at);
        }
    }
#endif
}

#endif
