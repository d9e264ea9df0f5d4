// A plain tensor [N, C, volume] as blocks of four channels; the lanes past C are zeros.
// T0 plain, T1 blocks (float4). `step` is 1, or 0 where one value stands for all channels.
#include "divide.hlsli"

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint3 tid : SV_GroupThreadID) {
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    uint thread = group * GROUP + tid.x;
    uint blocks = (channels + 3) / 4;
    if (thread >= images * blocks * volume) { return; }
    uint at = thread;
    uint block = cml_divide_rest(at, volume);
    uint image = cml_divide_rest(block, blocks);
    float4 v;
    {[ForceUnroll] for (int lane = 0; lane < 4; lane++) {
        uint channel = min(4 * block + lane, channels - 1);
        float x = T0[(image * channels + channel * step) * volume + at];
        v[lane] = 4 * block + lane < channels ? x : 0.0;
    }}
    T1[thread] = v;
}
