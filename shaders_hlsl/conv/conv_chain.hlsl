// Convolutions of one tap, one after the other: a workgroup computes all channels of LANES positions.
//
// WAVES waves have some rows of every filter each. Maps between convolutions are in groupshared memory,
// in blocks of four channels.
// T0 input (blocks of four channels, or PLAIN), T1 for each convolution its filter [wave][block]
// [4 in][rows of a wave] and its bias, in vectors of four rows, then OUT.
// LAYERS: a LAYER for each convolution but the last, and a LAST_LAYER, with the place of its filter and
// of its bias in T1, the blocks of its input, the blocks of a wave's rows, and a statement that turns
// the sums `v` into results, with numbers value(i).
// FULL: every block of the result has four channels.
#include "conv_result.hlsli"
#define CML_T float4
#define CML_TRUTH bool4
#include "activations.hlsli"

// of the convolutions with an even number, and of the others
groupshared float4 even_map[MOST_BLOCKS][LANES];
groupshared float4 odd_map[MOST_BLOCKS][LANES];

#if FEW
static const uint image = 0;
#else
static uint image;
#endif
static uint at;
static bool exists;

// Returns the input in blocks of four channels.
float4 load_input(uint block, uint blocks) {
#if PLAIN
    uint index = (image * blocks + block) * 4 * volume + at;
    return float4(T0[index], T0[index + volume], T0[index + 2 * volume], T0[index + 3 * volume]);
#else
    return float4(T0[(image * blocks + block) * volume + at]);
#endif
}

void store_result(float4 v, uint block) {
    if (exists && 4 * block < out_c) { cml_store_result(v, block, image, at, volume); }
}

// Waves that take turns have a counter that no lane has, so filters are loaded as scalars.
#define SUMS(FILTER, BIAS, BLOCKS, VECTORS, INPUT, STATEMENT, STORE) \
    {for (uint wave = 0; wave < WAVES; wave++) { \
        if (lane / LANES == wave) { \
            float4 x[BLOCKS]; \
            {CML_UNROLL(int, b, BLOCKS) { x[b] = INPUT; }} \
            float4 sums[VECTORS]; \
            {CML_UNROLL(int, i, VECTORS) { sums[i] = float4(0.0); }} \
            uint w = (FILTER + wave * (BLOCKS * 4 * VECTORS)) & 0x7ffffffu; \
            {CML_UNROLL(int, k, 4 * BLOCKS) { \
                {CML_UNROLL(int, i, VECTORS) { \
                    sums[i] = mad(T1[w + k * VECTORS + i], float4(x[k / 4][k % 4]), sums[i]); \
                }} \
            }} \
            {CML_UNROLL(int, i, VECTORS) { \
                uint block = wave * VECTORS + i; \
                float4 v = sums[i] + T1[BIAS + block]; \
                STATEMENT \
                STORE; \
            }} \
        } \
    }}

#define FROM_MEMORY(blocks) load_input(b, blocks)
#define FROM_MAP(n) ((n) % 2 == 0 ? even_map[b][lane % LANES] : odd_map[b][lane % LANES])
// the maps have the first blocks only, if not every wave has rows
#define TO_MAP(n) \
    if (block < MOST_BLOCKS) { \
        if ((n) % 2 == 0) { even_map[block][lane % LANES] = v; } \
        else { odd_map[block][lane % LANES] = v; } \
    }
#define FIRST_LAYER(f, bias, blocks, vectors, statement) \
    SUMS(f, bias, blocks, vectors, FROM_MEMORY(blocks), statement, TO_MAP(1)) \
    GroupMemoryBarrierWithGroupSync();
#define LAYER(n, f, bias, blocks, vectors, statement) \
    SUMS(f, bias, blocks, vectors, FROM_MAP(n), statement, TO_MAP(n + 1)) \
    GroupMemoryBarrierWithGroupSync();
#define LAST_LAYER(n, f, bias, blocks, vectors, statement) \
    SUMS(f, bias, blocks, vectors, FROM_MAP(n), statement, store_result(v, block))

CML_MAIN
{
    CML_EACH_GROUP(group)
    uint position = group * LANES + lane % LANES;
    exists = position < batch * volume;
    position = min(position, batch * volume - 1);
#if !FEW
    image = cml_divide_rest(position, volume);
#endif
    at = position;
    LAYERS
}
