// A sum of convolutions with unlike windows, in one dispatch: ROWS output channels of a position per
// thread. No window reaches beyond its input.
//
// TERMS convolutions are the terms. A turn of term n multiplies BLOCKSn blocks of input channels under
// the window, each of DEPTHn channels, while it loads those of the next turn if it has LOOPn. SPLITn
// waves of the PARTS share its turns. Its products are added to SUMSn, which may be those of another
// term; SUMMEDn waves have a part of its own sums, and the first of them adds the parts.
// T0 filters and what has a value for each channel, in vectors of four: of term n from filter_at(n) on
// [row block][turn][block][tap][DEPTHn][ROWS]. INPUTn is its input, which LOADn reads, and CHANGEDn
// changes before it is multiplied.
// FINISH: statements that compute the results r0, r1, … of a block of four rows, each from RESULT(n);
// TOTAL is the last. FUNCTIONS: what these statements and CHANGEDn call, with numbers attr(i).
#include "conv_result.hlsli"
#include "integral.hlsli"
#include "pointwise.hlsli"
#include "seal.hlsli"
#define CML_T float4
#define CML_TRUTH bool4
#include "activations.hlsli"

#define VECTORS (ROWS / 4)
// the bits of an index, if it is known that it has no more: compilers then add constants in the load
// instruction
#define INDEX_BITS 0x7ffffffu
#if FEW
#define MAP_BITS INDEX_BITS
#else
#define MAP_BITS 0xffffffffu
#endif

// a block of a map in blocks of four channels, of a plain one, and of one that has a single channel
#define IN_BLOCKS(map, at, block, volume) float4(map[at + block * volume])
#define PLAIN(map, at, block, volume) \
    float4(map[at + 4 * block * volume], map[at + (4 * block + 1) * volume], \
           map[at + (4 * block + 2) * volume], map[at + (4 * block + 3) * volume])
#define SINGLE(map, at, block, volume) float4(map[at])
#define AS_IS(cell) cell
// a block that another convolution computes from the map
#define INNER0(map, at, block, volume) inner0(at, block)
#define INNER1(map, at, block, volume) inner1(at, block)
#define INNER2(map, at, block, volume) inner2(at, block)
#define INNER3(map, at, block, volume) inner3(at, block)
FUNCTIONS

#define TAPS(n) (TAPS_Y##n * TAPS_X##n)
#define CELLS(n) (BLOCKS##n * TAPS(n))

#define TERM(n) \
    static float sums##n[ROWS]; \
    static float4 cells##n[CELLS(n)]; \
    static uint first##n; \
    groupshared float shared##n[SUMMED##n - 1 + 1 / SUMMED##n][ROWS][LANES]; \
    \
    void load##n(uint turn) { \
        {CML_UNROLL(int, i, CELLS(n)) { \
            uint line = uint(i % TAPS(n) / TAPS_X##n * DILATION_Y##n) * x_width(n); \
            uint at = ((first##n + line) & MAP_BITS) + i % TAPS_X##n * DILATION_X##n; \
            uint block = turn * BLOCKS##n + i / TAPS(n); \
            cells##n[i] = LOAD##n(INPUT##n, at, block, x_volume(n)); \
        }} \
    } \
    \
    void multiply##n(uint w, uint next) { \
        float4 held[CELLS(n)]; \
        {CML_UNROLL(int, i, CELLS(n)) { held[i] = CHANGED##n(cells##n[i]); }} \
        if (LOOP##n != 0) { load##n(next); } \
        w &= INDEX_BITS; \
        {CML_UNROLL(int, k, CELLS(n) * DEPTH##n) { \
            {CML_UNROLL(int, o, VECTORS) { \
                float4 f = T0[w + k * VECTORS + o]; \
                {CML_UNROLL(int, row, 4) { \
                    int to = 4 * o + row; \
                    SUMS##n[to] = mad(f[row], held[k / DEPTH##n][k % DEPTH##n], SUMS##n[to]); \
                }} \
            }} \
        }} \
    } \
    \
    uint turn_of##n(uint part) { return min(part, SPLIT##n) * turns(n) / SPLIT##n; } \
    \
    void add##n(uint row_block, uint begin, uint end) { \
        uint w = filter_at(n) + (row_block * turns(n) + begin) * (CELLS(n) * DEPTH##n * VECTORS); \
        multiply##n(w, min(begin + 1, end - 1)); \
        if (LOOP##n != 0) { \
            for (uint turn = begin + 1; turn < end; turn++) { \
                w += CELLS(n) * DEPTH##n * VECTORS; \
                multiply##n(w, min(turn + 1, end - 1)); \
            } \
        } \
    }

#if TERMS == 2
#define EACH(MACRO) MACRO(0) MACRO(1)
#elif TERMS == 3
#define EACH(MACRO) MACRO(0) MACRO(1) MACRO(2)
#else
#define EACH(MACRO) MACRO(0) MACRO(1) MACRO(2) MACRO(3)
#endif

EACH(TERM)

// the first inputs of all terms are under way together
#define FIND(n) \
    first##n = image * x_image(n) + x_origin(n) \
               + MULTIPLY(y * STRIDE_Y##n, x_width(n)) + x * STRIDE_X##n; \
    {CML_UNROLL(int, i, ROWS) { sums##n[i] = 0.0; }}
#define LOAD_FIRST(n) load##n(min(turn_of##n(wave), turns(n) - 1));
// a wave beyond those that share a term has none of it
#define ADD(n) \
    if (SPLIT##n == PARTS || wave < SPLIT##n) { \
        add##n(row_block, turn_of##n(wave), turn_of##n(wave + 1)); \
    }
#define SHARE(n) \
    if (SUMMED##n > 1 && lane / LANES < SUMMED##n) { \
        {CML_UNROLL(int, i, ROWS) { \
            shared##n[lane / LANES - 1][i][lane % LANES] = sums##n[i]; \
        }} \
    }
#define COMBINE(n) \
    {CML_UNROLL(int, p, SUMMED##n - 1) { \
        {CML_UNROLL(int, i, ROWS) { sums##n[i] += shared##n[p][i][lane]; }} \
    }}

#define RESULT(n) \
    (float4(SUMS##n[4 * o], SUMS##n[4 * o + 1], SUMS##n[4 * o + 2], SUMS##n[4 * o + 3]) \
     + T0[bias_at(n) + block])

// a block of an operand of the result's shape, plain or in blocks
#define ELEMENT(map, row) map[(image * out_c + min(4 * block + row, out_c - 1)) * volume + at]
#define ELEMENTS(map) \
    float4(ELEMENT(map, 0), ELEMENT(map, 1), ELEMENT(map, 2), ELEMENT(map, 3))
#define ELEMENTS_IN_BLOCKS(map) float4(map[(image * ((out_c + 3) / 4) + block) * volume + at])

CML_MAIN
{
    CML_EACH_GROUP(group)
    uint row_block = group, tile = DIVIDE_GROUP(row_block, row_blocks);
    uint volume = uint(y_size(1) * y_size(2));
    uint at = tile * LANES + lane % LANES;
    bool exists = at < batch * volume;
    at = min(at, batch * volume - 1);
#if FEW
    uint image = 0;
#else
    uint image = cml_divide_rest(at, volume);
#endif
    uint x = at, y = DIVIDE_LINE(x, uint(y_size(2)));
    EACH(FIND)
#if PARTS > 1
    // waves that take turns have a counter that no lane has, so filters are loaded as scalars
    for (uint wave = 0; wave < PARTS; wave++) {
        if (lane / LANES == wave) {
            EACH(LOAD_FIRST)
            EACH(ADD)
        }
    }
    if (lane >= LANES) { EACH(SHARE) }
    GroupMemoryBarrierWithGroupSync();
    if (lane >= LANES) { return; }
    EACH(COMBINE)
#else
    uint wave = 0;
    EACH(LOAD_FIRST)
    EACH(ADD)
#endif
    {CML_UNROLL(int, o, VECTORS) {
        uint block = row_block * VECTORS + o;
        if (FULL || 4 * block < out_c) {
            FINISH
            if (exists) { cml_store_result(TOTAL, block, image, at, volume); }
        }
    }}
}
