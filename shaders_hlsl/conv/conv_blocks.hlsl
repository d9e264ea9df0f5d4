// Converts a plain tensor [N, C, volume] to blocks of four channels; the lanes past C are zeros.
// T0 plain, T1 blocks (float4). `step` is 1, or 0 where one value stands for all channels.
#include "divide.hlsli"

CML_MAIN
{
    CML_EACH_GROUP(group)
    uint thread = group * GROUP + lane;
    uint blocks = (channels + 3) / 4;
    if (thread >= images * blocks * volume) { return; }
    uint at = thread;
    uint block = cml_divide_rest(at, volume);
    uint image = cml_divide_rest(block, blocks);
    float4 v;
    {CML_UNROLL(int, k, 4) {
        uint channel = min(4 * block + k, channels - 1);
        float x = T0[(image * channels + channel * step) * volume + at];
        v[k] = 4 * block + k < channels ? x : 0.0;
    }}
    T1[thread] = v;
}
