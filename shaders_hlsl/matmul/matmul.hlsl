// C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n] (+ bias[n]), then the epilogues.
//
// A thread holds ROWS x COLS sums in registers. The COLUMN_LANES lanes of a row of the workgroup read
// the same rows of A, so an element of A is one broadcast read; neighbouring lanes read neighbouring
// columns of B. Registers are reused enough that groupshared memory is not needed.
// A_VECTOR reads four k of A at once, B_VECTOR four columns of B, B_INNER four k of B. B_TILES: B lies
// by tiles of COLUMN_LANES columns, within them by four k; b_n leads from tile to tile.
// SHARE: each of eight lanes reads some of the rows and passes them to the others, because a software
// driver performs the reads of eight lanes one after the other, even of the same address. Four numbers
// are two 64-bit integers if WIDE_INPUT (of A) or WIDE_FILTER (of B).
//
// REDUCE serves few results with long sums: a workgroup computes ROWS x COLS results; its lanes add
// up parts of the sum and combine them as a tree, always in the same order. Vectors run along k.
//
// A sum that is too long for one dispatch continues in the next: `accumulate` starts from C. With
// ONE_LAUNCH no sum is, and hardware's code has no branches for it.
// SPLIT_HEADS, JOIN_HEADS: C is stored as attention reads it, [batch, head, m, n] of the columns, or
// [batch, m, head, n] of the batch's last axis; `heads` is their number.
// PARTS: the columns are 2 to 4 results of equal width, each with its heads: OUT, OUT1, OUT2, OUT3.
// FLIPPED: the result of this number has its columns before its rows, which are whole vectors.

#if defined(BIAS) || defined(EPI_STEPS)
#define FINISHES
#endif
#include "block_weights.hlsli"
#include "divide.hlsli"
#include "epilogue.hlsli"
#include "wide.hlsli"

// Four numbers of B: along k, and of neighbouring columns, whose scales were read before.
#ifdef WEIGHT_BITS
#define B_READ(at) (cml_codes(at) * cml_scale((at) / (BLOCK / 4)))
#define B_VECTOR_READ(at, v) (cml_codes(at) * scale[v])
#else
#define B_READ(at) LOADED_FILTER(T1[at])
#define B_VECTOR_READ(at, v) LOADED_FILTER(T1[at])
#endif

#define LANE_ROWS (GROUP / COLUMN_LANES)

// The channels of a thread's results, and the channel of a result.
#ifdef ROW_CHANNELS
#define CHANNELS ROWS
#define OF_CHANNEL(row, column) row
#else
#define CHANNELS COLS
#define OF_CHANNEL(row, column) column
#endif

uint batch_offset(uint batch, bool left)
{
    uint offset = 0;
    CML_UNROLL(uint, d, BATCH_RANK) {
        uint index = batch;
        if (d + 1 < BATCH_RANK) { batch = cml_divide_rest(index, batch_shape(d)); }
        offset += index * (left ? a_batch(d) : b_batch(d));
    }
    return offset;
}

#ifdef PARTS
#define PART_COLUMNS (columns / PARTS)
#define SPLIT_COLUMNS PART_COLUMNS
#else
#define SPLIT_COLUMNS columns
#endif

// The place of a result in C, or in its part of C.
uint place_of(uint batch, uint m, uint n)
{
#ifdef PARTS
    cml_divide_rest(n, PART_COLUMNS);
#endif
#if defined(SPLIT_HEADS)
    uint of_head = SPLIT_COLUMNS / heads;
    uint head = cml_divide_rest(n, of_head);
    return ((batch * heads + head) * rows + m) * of_head + n;
#elif defined(JOIN_HEADS)
    uint head = batch;
    uint image = cml_divide_rest(head, heads);
    return ((image * rows + m) * heads + head) * columns + n;
#else
    return (batch * rows + m) * columns + n;
#endif
}

#ifdef FLIPPED
uint flipped_place(uint batch, uint m, uint n)
{
#ifdef PARTS
    cml_divide_rest(n, PART_COLUMNS);
#endif
    return (batch * SPLIT_COLUMNS + n) * ((rows + 3) / 4 * 4) + m;
}
#define STORED_AT(part) (part == FLIPPED ? flipped_place(batch, m0 + row, n_of[j]) : at)
#else
#define STORED_AT(part) at
#endif

// A result of column n at its place, written and read.
#ifdef PARTS
void store(uint n, uint at, float value)
{
    if (n < PART_COLUMNS) { OUT[at] = value; }
    else if (PARTS == 2 || n < 2 * PART_COLUMNS) { OUT1[at] = value; }
#if PARTS > 2
    else if (PARTS == 3 || n < 3 * PART_COLUMNS) { OUT2[at] = value; }
#endif
#if PARTS > 3
    else { OUT3[at] = value; }
#endif
}

float stored(uint n, uint at)
{
#if PARTS > 3
    if (n >= 3 * PART_COLUMNS) { return OUT3[at]; }
#endif
#if PARTS > 2
    if (n >= 2 * PART_COLUMNS) { return OUT2[at]; }
#endif
    if (n >= PART_COLUMNS) { return OUT1[at]; }
    return OUT[at];
}
#else
#define store(n, at, value) OUT[at] = value
#define stored(n, at) OUT[at]
#endif

// What the bias and the epilogue read of a channel: a column, or a row if ROW_CHANNELS.
struct Channel {
    float bias;
    EpiOperands operands;
};

Channel channel_at(uint m, uint n)
{
#ifdef ROW_CHANNELS
    n = m;
#endif
    Channel channel;
#ifdef BIAS
    channel.bias = T2[n * bias_stride];
#else
    channel.bias = 0.0;
#endif
    channel.operands = cml_epilogue_operands(n);
    return channel;
}

// Applies the bias and the epilogue to the complete sum.
float finish(float sum, Channel channel, uint at)
{
#ifdef BIAS
    sum += channel.bias;
#endif
    return cml_epilogue(sum, channel.operands, at);
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
    CML_UNROLL(uint, p, ROWS) { a_at[p] = a + min(m0 + p, rows - 1) * a_m; }
    CML_UNROLL(uint, q, COLS) { b_at[q] = b + min(n0 + q, columns - 1) * b_n; }
    CML_UNROLL(uint, z, ROWS * COLS) { sum[z] = 0.0; }
    for (uint k = k_begin + lane; k < k_end; k += GROUP) {
        T0_TYPE x[ROWS];
        CML_UNROLL(uint, r, ROWS) { x[r] = T0[a_at[r] + k * a_k]; }
        CML_UNROLL(uint, j, COLS) {
            T0_TYPE w = B_READ(b_at[j] + k * b_k);
            CML_UNROLL(uint, i, ROWS) {
#ifdef A_VECTOR
                float s = sum[i * COLS + j];
                CML_UNROLL(uint, c, 4) { s = mad(x[i][c], w[c], s); }
                sum[i * COLS + j] = s;
#else
                sum[i * COLS + j] = mad(x[i], w, sum[i * COLS + j]);
#endif
            }
        }
    }
    CML_UNROLL(uint, t, ROWS * COLS) { partial[t][lane] = sum[t]; }
    [ForceUnroll]
    for (uint width = GROUP / 2; width > 0; width /= 2) {
        GroupMemoryBarrierWithGroupSync();
        if (lane < width) {
            CML_UNROLL(uint, s, ROWS * COLS) { partial[s][lane] += partial[s][lane + width]; }
        }
    }
    GroupMemoryBarrierWithGroupSync();
    for (uint made = lane; made < ROWS * COLS; made += GROUP) {
        uint m = m0 + made / COLS;
        uint n = n0 + made % COLS;
        if (m < rows && n < columns) {
            uint at = place_of(batch, m, n);
            float sum = partial[made][0];
            if (accumulate != 0) { sum += stored(n, at); }
            store(n, at, last != 0 ? finish(sum, channel_at(m, n), at) : sum);
        }
    }
}

#else

#if defined(A_VECTOR) || defined(B_INNER)
#define STEP 4
#else
#define STEP 1
#endif
// The rows of A that a lane loads for STEP of k: all, or only those that it passes to other lanes.
#ifdef SHARE
#define SHARERS 8
#define LOADS ((ROWS + SHARERS - 1) / SHARERS)
#else
#define LOADS ROWS
#endif

static uint a_at[LOADS];
static uint b_at[COLS];
static float cml_sum[ROWS * COLS];

// The rows and columns that follow each other: with SHARE so few that their sums stay in a CPU's
// registers for STEP of k.
#ifdef SHARE
#define NEAR_ROWS (ROWS % 4 == 0 ? 4 : 1)
#define NEAR_COLS (COLS % 2 == 0 ? 2 : 1)
#else
#define NEAR_ROWS ROWS
#define NEAR_COLS COLS
#endif

// Adds the products of the values of some rows and columns at `c` of STEP. The driver passes a number
// on with one instruction if it does not know the lane, with two if it does.
void multiply(float x[LOADS][STEP], float w[COLS], uint c, uint first_row, uint first_col)
{
    CML_UNROLL(uint, i0, NEAR_ROWS) {
        uint i = first_row + i0;
#ifdef SHARE
        float y = WaveReadLaneAt(x[i / SHARERS][c], (i % SHARERS) ^ CML_SEAL);
#else
        float y = x[i][c];
#endif
        CML_UNROLL(uint, j0, NEAR_COLS) {
            uint j = first_col + j0;
            cml_sum[i * COLS + j] = mad(y, w[j], cml_sum[i * COLS + j]);
        }
    }
}

// Hardware's compilers add the constant distance of a step in the load instruction, if they know that
// an index has so few bits.
#define INDEX_BITS 0x7ffffffu

// Loads A for the STEP of k that begins `s` steps after `k`; s is 0 unless AHEAD.
void load_a(uint k, uint s, out float x[LOADS][STEP])
{
    CML_UNROLL(uint, r, LOADS) {
#if defined(A_VECTOR) && AHEAD
        float4 four = LOADED(T0[((a_at[r] + k / 4) & INDEX_BITS) + s]);
        CML_UNROLL(uint, c, 4) { x[r][c] = four[c]; }
#elif defined(A_VECTOR)
        float4 four = LOADED(T0[a_at[r] + k / 4 * a_k]);
        CML_UNROLL(uint, c, 4) { x[r][c] = four[c]; }
#else
        CML_UNROLL(uint, c, STEP) { x[r][c] = T0[a_at[r] + (k + s * STEP + c) * a_k]; }
#endif
    }
}

// Loads B likewise.
void load_b(uint k, uint s, out float w[STEP][COLS])
{
#ifdef B_TILES
    float4 inner[COLS];
    CML_UNROLL(uint, l, COLS) {
        inner[l] = T1[((b_at[l] + k / 4 * COLUMN_LANES) & INDEX_BITS) + s * COLUMN_LANES];
    }
#elif defined(B_INNER)
    float4 inner[COLS];
    CML_UNROLL(uint, l, COLS) { inner[l] = B_READ(b_at[l] + k / 4 * b_k); }
#endif
#ifndef B_TILES
    k += s * STEP;
#endif
#if defined(B_VECTOR) && defined(WEIGHT_BITS)
    float4 scale[COLS / 4];
    CML_UNROLL(uint, p, COLS / 4) { scale[p] = cml_scales(b_at[p] + k / BLOCK * b_k); }
#endif
    CML_UNROLL(uint, c, STEP) {
#if defined(B_VECTOR)
        CML_UNROLL(uint, v, COLS / 4) {
            float4 four = B_VECTOR_READ(b_at[v] + (k + c) * b_k, v);
            CML_UNROLL(uint, l, 4) { w[c][4 * v + l] = four[l]; }
        }
#elif defined(B_INNER)
        CML_UNROLL(uint, l, COLS) { w[c][l] = inner[l][c]; }
#else
        CML_UNROLL(uint, l, COLS) { w[c][l] = T1[b_at[l] + (k + c) * b_k]; }
#endif
    }
}

void add_products(float x[LOADS][STEP], float w[STEP][COLS])
{
    CML_UNROLL(uint, i0, ROWS / NEAR_ROWS) {
        CML_UNROLL(uint, j0, COLS / NEAR_COLS) {
            CML_UNROLL(uint, k0, STEP) { multiply(x, w[k0], k0, i0 * NEAR_ROWS, j0 * NEAR_COLS); }
        }
    }
}

// Adds the products from `begin` to `end`, of which there is a multiple of STEP.
#if AHEAD
static float next_b[AHEAD][STEP][COLS];

// Loads B for the steps of a turn that begins at `k`, but none past `final`.
void load_turn(uint k, uint final)
{
#if WHOLE_TURNS
    k = min(k, final - (AHEAD - 1) * STEP);
    CML_UNROLL(uint, i, AHEAD) { load_b(k, i, next_b[i]); }
#else
    CML_UNROLL(uint, i, AHEAD) { load_b(min(k + i * STEP, final), 0, next_b[i]); }
#endif
}

void multiply_step(uint k, uint s, float w[STEP][COLS])
{
    float x[LOADS][STEP];
    load_a(k, s, x);
    add_products(x, w);
}

void add_turn(uint k, uint final)
{
    float held[AHEAD][STEP][COLS];
    CML_UNROLL(uint, n, AHEAD * STEP * COLS) {
        held[n / (STEP * COLS)][n / COLS % STEP][n % COLS] =
            next_b[n / (STEP * COLS)][n / COLS % STEP][n % COLS];
    }
    load_turn(k + AHEAD * STEP, final);
    CML_UNROLL(uint, i, AHEAD) { multiply_step(k, i, held[i]); }
}

// B is loaded a turn of AHEAD steps before it is multiplied, so a wave multiplies while it waits. The
// first turn is outside of the loop, so that compilers find the buffers and strides before it.
void add_all(uint begin, uint end)
{
    if (begin < end) {
        uint final = end - STEP;
        uint k = begin;
        load_turn(k, final);
        if (end - begin >= AHEAD * STEP) {
            add_turn(k, final);
            k += AHEAD * STEP;
            for (; k + AHEAD * STEP <= end; k += AHEAD * STEP) { add_turn(k, final); }
        }
#if !WHOLE_TURNS
        CML_UNROLL(uint, i, AHEAD - 1) {
            if (k < end) {
                multiply_step(k, 0, next_b[i]);
                k += STEP;
            }
        }
#endif
    }
}
#else
void add_all(uint begin, uint end)
{
    for (uint k = begin; k < end; k += STEP) {
        float x[LOADS][STEP];
        load_a(k, 0, x);
        float w[STEP][COLS];
        load_b(k, 0, w);
        add_products(x, w);
    }
}
#endif

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
    CML_UNROLL(uint, p, LOADS) {
#ifdef SHARE
        uint m = m0 + min(p * SHARERS + WaveGetLaneIndex() % SHARERS, ROWS - 1);
#else
        uint m = m0 + p;
#endif
        a_at[p] = a + min(m, rows - 1) * a_m;
    }
    uint n_of[COLS];
    CML_UNROLL(uint, q, COLS) {
#ifdef B_VECTOR
        uint vector = (tile_n * (COLS / 4) + q / 4) * COLUMN_LANES + column;
        n_of[q] = 4 * vector + q % 4;
        b_at[q / 4] = b + min(vector, b_vectors - 1);
#else
        n_of[q] = (tile_n * COLS + q) * COLUMN_LANES + column;
#ifdef B_TILES
        b_at[q] = b + (tile_n * COLS + q) * b_n + column;
#else
        b_at[q] = b + min(n_of[q], columns - 1) * b_n;
#endif
#endif
    }
    CML_UNROLL(uint, z, ROWS * COLS) { cml_sum[z] = 0.0; }
    add_all(k_begin, k_end);
#if AHEAD
    // A channel is read once, before the branches of its results. A wave's first row always exists: with
    // that known, compilers find the buffers before the other rows.
    Channel channels[CHANNELS];
    CML_UNROLL(uint, c, CHANNELS) {
        channels[c] = channel_at(min(m0 + c, rows - 1), min(n_of[c % COLS], columns - 1));
    }
#ifdef ONE_LAUNCH
#define IS_LAST true
#else
#define IS_LAST last != 0
    if (accumulate != 0) {
        CML_UNROLL(uint, j, COLS) {
            CML_UNROLL(uint, row, ROWS) {
                uint n = min(n_of[j], columns - 1);
                cml_sum[row * COLS + j] += stored(n, place_of(batch, min(m0 + row, rows - 1), n));
            }
        }
    }
#endif
#define STORE_ROWS(result, part) \
    CML_UNROLL(uint, row, ROWS) { \
        if (row == 0 && LANE_ROWS == 1 || m0 + row < rows) { \
            uint at = place_of(batch, m0 + row, n_of[j]); \
            float sum = cml_sum[row * COLS + j]; \
            result[STORED_AT(part)] = IS_LAST ? finish(sum, channels[OF_CHANNEL(row, j)], at) : sum; \
        } \
    }
    CML_UNROLL(uint, j, COLS) {
#ifdef PARTS
        // around the rows, so that compilers find each result once
        if (n_of[j] < PART_COLUMNS) { STORE_ROWS(OUT, 0) }
        else if (n_of[j] < 2 * PART_COLUMNS) { STORE_ROWS(OUT1, 1) }
#if PARTS > 2
        else if (n_of[j] < 3 * PART_COLUMNS) { STORE_ROWS(OUT2, 2) }
#endif
#if PARTS > 3
        else if (n_of[j] < columns) { STORE_ROWS(OUT3, 3) }
#endif
#else
        if (n_of[j] < columns) { STORE_ROWS(OUT, 0) }
#endif
    }
#else
    CML_UNROLL(uint, row, ROWS) {
        CML_UNROLL(uint, j, COLS) {
            if (m0 + row < rows && n_of[j] < columns) {
                uint at = place_of(batch, m0 + row, n_of[j]);
                float before = 0.0;
                if (accumulate != 0) { before = stored(n_of[j], at); }
                store(n_of[j], at, cml_sum[row * COLS + j] + before);
            }
        }
    }
#endif
#if defined(FINISHES) && !AHEAD
    // A separate loop over the stored sums. The loop above must be unrolled because the sums are
    // registers; with the epilogue in it, a software driver would compile for seconds.
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
            uint at = place_of(batch, m, n);
            store(n, at, finish(stored(n, at), channel_at(m, n), at));
        }
    }
#endif
}

#endif
