// conv and deconv with a constant filter: ROWS output channels x PIXELS positions per thread.
//
// The products go to ROWS * PIXELS scalar accumulators: a software driver keeps those in registers,
// float4 ones not, and there every load costs as much as some twenty products. The positions of a
// workgroup share one phase (result % up), so that a deconv skips taps that fall between inputs.
// T0 input (blocks of four channels), T1 filter [row block][tap][input block][4 in][ROWS],
// T2 bias, then the epilogues' operands, then OUT (plain, or float4 where OUT_C4).
#include "conv_position.hlsli"
#include "epilogue.hlsli"

#define VECTORS (ROWS / 4)
// lanes that share the loading of the filter; the smallest subgroup that has them is asked for
#define SHARERS 8
#define SHARED ((ROWS + SHARERS - 1) / SHARERS)

struct Place {
    uint image;
    int3 at; // in steps of `up`
    bool inside;
};

Place place_of(uint index) {
    int3 steps = int3(steps3(0), steps3(1), steps3(2));
    Place p;
    uint last = batch * cml_volume(steps.x, steps.y, steps.z);
    p.inside = index < last;
    index = min(index, last - 1);
    p.at.z = int(index % uint(steps.z));
    index /= uint(steps.z);
    p.at.y = int(index % uint(steps.y));
    index /= uint(steps.y);
    p.at.x = int(index % uint(steps.x));
    p.image = index / uint(steps.x);
    return p;
}

// Input index under a tap; -1 where there is zero. `offset` is phase + tap, in steps.
int source_index(int axis, int step, int offset) {
    return cml_border(step * y_mul(axis) + offset, x_size(axis));
}

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint3 tid : SV_GroupThreadID) {
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    uint row_block = group % row_blocks;
    uint tile = group / row_blocks;
    uint phase_index = tile / tiles;
    tile %= tiles;
    int3 phase = int3(int(phase_index) / up(2) / up(1), int(phase_index) / up(2) % up(1),
                      int(phase_index) % up(2));

    Place place[PIXELS];
    {[ForceUnroll] for (int j = 0; j < PIXELS; j++) {
        place[j] = place_of((tile * PIXELS + j) * GROUP + tid.x);
    }}
    float sum[ROWS * PIXELS];
    {[ForceUnroll] for (int j = 0; j < ROWS * PIXELS; j++) { sum[j] = 0.0; }}

    uint volume = cml_volume(x_size(0), x_size(1), x_size(2));
    uint first_block = row_block * ROWS / group_out * group_blocks;
    uint weight = row_block * cml_volume(k_size(0), k_size(1), k_size(2)) * group_blocks * ROWS;
#if SHARE
    uint sharer = WaveGetLaneIndex() % SHARERS;
#endif
    for (int kz = 0; kz < k_size(0); kz++) {
        int oz = phase.x * y_mul(0) + kz * k_step(0) + origin(0);
        for (int ky = 0; ky < k_size(1); ky++) {
            int oy = phase.y * y_mul(1) + ky * k_step(1) + origin(1);
            for (int kx = 0; kx < k_size(2); kx++) {
                int ox = phase.z * y_mul(2) + kx * k_step(2) + origin(2);
                int3 offset = int3(cml_floor_div(oz, up(0)), cml_floor_div(oy, up(1)),
                                   cml_floor_div(ox, up(2)));
                bool meets = offset.x * up(0) == oz && offset.y * up(1) == oy
                             && offset.z * up(2) == ox;
                uint from[PIXELS];
                bool found[PIXELS];
                {[ForceUnroll] for (int j = 0; j < PIXELS; j++) {
                    int sz = source_index(0, place[j].at.x, offset.x);
                    int sy = source_index(1, place[j].at.y, offset.y);
                    int sx = source_index(2, place[j].at.z, offset.z);
                    found[j] = min(min(sx, sy), sz) >= 0;
                    uint at = (uint(sz) * x_size(1) + uint(sy)) * x_size(2) + uint(sx);
                    uint base = (place[j].image * in_blocks + first_block) * volume;
                    from[j] = base + (found[j] ? at : 0u);
                }}
                uint blocks = meets ? group_blocks : 0u;
                for (uint c = 0; c < blocks; c++) {
                    float4 x[PIXELS];
                    {[ForceUnroll] for (int j = 0; j < PIXELS; j++) {
                        float4 value = T0[from[j] + c * volume];
                        x[j] = found[j] ? value : float4(0.0, 0.0, 0.0, 0.0);
                    }}
                    uint w = weight + c * ROWS;
#if SHARE
                    float4 held[SHARED];
                    {[ForceUnroll] for (int i = 0; i < SHARED; i++) {
                        held[i] = T1[w + min(i * SHARERS + sharer, ROWS - 1)];
                    }}
#endif
                    {[ForceUnroll] for (int i = 0; i < 4 * VECTORS; i++) {
#if SHARE
                        float4 f = WaveReadLaneAt(held[i / SHARERS], i % SHARERS);
#else
                        float4 f = T1[w + i];
#endif
                        {[ForceUnroll] for (int j = 0; j < PIXELS; j++) {
                            int row = i % VECTORS * 4 * PIXELS + j;
                            float v = x[j][i / VECTORS];
                            sum[row] = mad(f.x, v, sum[row]);
                            sum[row + PIXELS] = mad(f.y, v, sum[row + PIXELS]);
                            sum[row + 2 * PIXELS] = mad(f.z, v, sum[row + 2 * PIXELS]);
                            sum[row + 3 * PIXELS] = mad(f.w, v, sum[row + 3 * PIXELS]);
                        }}
                    }}
                }
                weight += group_blocks * ROWS;
            }
        }
    }

    uint out_volume = cml_volume(y_size(0), y_size(1), y_size(2));
    uint out_blocks = (out_c + 3) / 4;
    {[ForceUnroll] for (int j = 0; j < PIXELS; j++) {
        int3 at = place[j].at * int3(up(0), up(1), up(2)) + phase;
        bool inside = place[j].inside && at.x < y_size(0) && at.y < y_size(1) && at.z < y_size(2);
        uint to = (uint(at.x) * y_size(1) + uint(at.y)) * y_size(2) + uint(at.z);
        {[ForceUnroll] for (int o = 0; o < VECTORS; o++) {
            uint block = row_block * VECTORS + o;
            if (inside && block < out_blocks) {
                float4 v = float4(sum[4 * o * PIXELS + j], sum[(4 * o + 1) * PIXELS + j],
                                  sum[(4 * o + 2) * PIXELS + j], sum[(4 * o + 3) * PIXELS + j]);
                v += T2[block];
#if OUT_C4
                uint a = (place[j].image * out_blocks + block) * out_volume + to;
                v = cml_epilogue(v, block, a);
                uint4 channel = 4 * block + uint4(0, 1, 2, 3);
                OUT[a] = select(channel < uint4(out_c, out_c, out_c, out_c), v, float4(0.0));
#else
                {[ForceUnroll] for (int lane = 0; lane < 4; lane++) {
                    uint channel = 4 * block + lane;
                    uint a = (place[j].image * out_c + channel) * out_volume + to;
                    if (channel < out_c) { OUT[a] = cml_epilogue(v[lane], channel, a); }
                }}
#endif
            }
        }}
    }}
}
