// The inner product of the kernels of conv and deconv: ROWS filter rows by COLUMNS values, four input
// channels at a time, in scalar accumulators.
//
// A software driver keeps scalars in registers but not float4s, and a load costs it as much as about
// twenty products. So with SHARE each of eight lanes loads two vectors of the filter and passes them
// to the others, instead of each lane loading all of them.
// T1 is the filter: ... [block of four inputs][4 in][ROWS] numbers, in vectors of four, or of eight as
// 64-bit integers if WIDE_FILTER.
//
// HALVES: inputs and filter are numbers of 16 bits, and two rows of the filter are multiplied in one
// operation. The products of a turn are added in 16 bits, and cml_end_turn adds them to the sums.
// DOT4: inputs and filter are bytes, four to a 32-bit word, and T1 is ... [block of four inputs]
// [ROWS] words.
// OVERLAPPING: a block of rows or of inputs belongs to several groups. The filter has zeros for the
// inputs of other groups, which may be infinite or NaN.
// OPEN_FILTER: the filter may have such values, and an input of zero may stand for none at all.
// FLIP turns values of 0 to 255 into bytes of -128 to 127; the bias corrects for the shift.
#ifndef CML_CONV_PRODUCT
#define CML_CONV_PRODUCT

#include "block_weights.hlsli"
#include "number.hlsli"
#include "wide.hlsli"

#ifndef DOT4
#define DOT4 0
#endif

#ifndef HALVES
#define HALVES 0
#endif

#ifndef OVERLAPPING
#define OVERLAPPING 0
#endif
#ifndef OPEN_FILTER
#define OPEN_FILTER 0
#endif

#define VECTORS (ROWS / 4)
#define SHARERS 8
// vectors of the filter per tap and block of four inputs, and the number of them that a lane loads
#if DOT4
#define BLOCK_VECTORS VECTORS
#define FILTER uint4
#define CML_BLOCK uint
#elif HALVES
#define BLOCK_VECTORS ROWS
#define FILTER half4
#define CML_BLOCK half4
#else
#define BLOCK_VECTORS ROWS
#define FILTER NUMBER4
#define CML_BLOCK NUMBER4
#endif
#define LOADS ((BLOCK_VECTORS / LOAD_VECTORS + SHARERS - 1) / SHARERS)

// Neighbouring columns of different phases use different taps: a tap serves every PHASES-th column.
#ifndef PHASES
#define PHASES 1
#endif
#define STEPS (COLUMNS / PHASES)

static NUMBER cml_sum[ROWS * COLUMNS];

#if HALVES
// the sums of a turn, of two rows each
static half2 cml_turn[ROWS / 2 * COLUMNS];
#endif

void cml_clear() {
    {CML_UNROLL(int, i, ROWS * COLUMNS) { cml_sum[i] = NUMBER(0); }}
#if HALVES
    {CML_UNROLL(int, i, ROWS / 2 * COLUMNS) { cml_turn[i] = half2(0); }}
#endif
}

// Adds the products of a turn to the sums, if these were added in 16 bits.
void cml_end_turn() {
#if HALVES
    {CML_UNROLL(int, i, ROWS / 2 * COLUMNS) {
        int at = i / COLUMNS * 2 * COLUMNS + i % COLUMNS;
        cml_sum[at] += float(cml_turn[i].x);
        cml_sum[at + COLUMNS] += float(cml_turn[i].y);
        cml_turn[i] = half2(0);
    }}
#endif
}

// Returns rows 4 * o to 4 * o + 3 of a column.
NUMBER4 cml_result(int o, int column) {
    int at = 4 * o * COLUMNS + column;
    return NUMBER4(cml_sum[at], cml_sum[at + COLUMNS], cml_sum[at + 2 * COLUMNS],
                   cml_sum[at + 3 * COLUMNS]);
}

void cml_add_result(int o, int column, NUMBER4 sums) {
    int at = 4 * o * COLUMNS + column;
    {CML_UNROLL(int, i, 4) { cml_sum[at + i * COLUMNS] += sums[i]; }}
}

// Returns `sum` with the product of a filter's element and an input, if both take part.
NUMBER add_product(NUMBER f, NUMBER v, NUMBER sum) {
    NUMBER added = cml_mad(f, v, sum);
#if OVERLAPPING
    added = f == NUMBER(0) ? sum : added;
#endif
#if OPEN_FILTER
    added = v == NUMBER(0) ? sum : added;
#endif
    return added;
}

// The columns that follow each other: with SHARE so few that the sums of four rows of them stay in a
// CPU's registers for all input channels of a block.
#if !SHARE
#define NEAR_COLUMNS STEPS
#elif STEPS % 2 == 0
#define NEAR_COLUMNS 2
#else
#define NEAR_COLUMNS 1
#endif

// Adds the products of vector `i` of a block of the filter with the columns from `first` on.
void multiply_vector(FILTER f, CML_BLOCK x[STEPS], int i, int phase, int first) {
    {CML_UNROLL(int, c, NEAR_COLUMNS) {
        int j = first + c;
        int at = i % VECTORS * 4 * COLUMNS + j * PHASES + phase;
#if DOT4
        {CML_UNROLL(int, row, 4) {
            int to = at + row * COLUMNS;
            cml_sum[to] = dot4add_i8packed(f[row], x[j], cml_sum[to]);
        }}
#elif HALVES
        half2 v = half2(x[j][i / VECTORS]);
        int half_at = i % VECTORS * 2 * COLUMNS + j;
        cml_turn[half_at] = mad(f.xy, v, cml_turn[half_at]);
        cml_turn[half_at + COLUMNS] = mad(f.zw, v, cml_turn[half_at + COLUMNS]);
#else
        NUMBER v = x[j][i / VECTORS];
        {CML_UNROLL(int, row, 4) {
            int to = at + row * COLUMNS;
            cml_sum[to] = add_product(f[row], v, cml_sum[to]);
        }}
#endif
    }}
}

// The bits of an index of vectors. A compiler that knows them adds constants in the load instruction.
#define CML_INDEX_BITS 0x7ffffffu

// Vector `i` of the filter of four input channels, which begins at vector `w`.
#ifdef WEIGHT_BITS
#define FILTER_VECTOR(w, i) \
    (cml_codes((w) + (i)) * cml_scales((w) / (VECTORS * BLOCK) * VECTORS + (i) % VECTORS))
#else
#define FILTER_VECTOR(w, i) T1[(w) + (i)]
#endif

#if SHARE
#if WIDE_FILTER
#define LOAD_VECTORS 2
#define SHARED_LOAD Eight
#define FILTER_LOAD(w, i) cml_split(T1[(w) / 2 + (i)])
#define SHARED_PART(load, i) load.part[(i) % 2]
#else
#define LOAD_VECTORS 1
#define SHARED_LOAD FILTER
#define FILTER_LOAD(w, i) FILTER_VECTOR(w, i)
#define SHARED_PART(load, i) load
#endif

// Adds the products of four input channels to a phase's columns; their filter begins at vector `w`.
// The driver passes a number on with one instruction if it does not know the lane, with two if it
// does.
void cml_multiply(CML_BLOCK x[STEPS], uint w, int phase) {
    uint sharer = WaveGetLaneIndex() % SHARERS;
    SHARED_LOAD loaded[LOADS];
    {CML_UNROLL(int, i, LOADS) {
        uint last = BLOCK_VECTORS / LOAD_VECTORS - 1;
        loaded[i] = FILTER_LOAD(w, min(i * SHARERS + sharer, last));
    }}
    {CML_UNROLL(int, o, VECTORS) {
        {CML_UNROLL(int, first, STEPS / NEAR_COLUMNS) {
            {CML_UNROLL(int, k, BLOCK_VECTORS / VECTORS) {
                int i = k * VECTORS + o;
                int load = i / LOAD_VECTORS;
                FILTER f = WaveReadLaneAt(SHARED_PART(loaded[load / SHARERS], i),
                                          uint(load % SHARERS) ^ CML_SEAL);
                multiply_vector(f, x, i, phase, first * NEAR_COLUMNS);
            }}
        }}
    }}
}
#else
void cml_multiply(CML_BLOCK x[STEPS], uint w, int phase) {
    w &= CML_INDEX_BITS;
    {CML_UNROLL(int, i, BLOCK_VECTORS) {
        multiply_vector(FILTER_VECTOR(w, i), x, i, phase, 0);
    }}
}
#endif

#endif
