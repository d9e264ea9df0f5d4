// A part of a joined map, both in blocks of four channels, where the part begins within a block: what
// parts before it left there stays, lanes past its last channel become zeros.
//
// params: n  blocks that are written;  channels, volume  of the part;  first  its first channel in
//         the whole;  depth, touched  blocks of the whole, and those of the part in it
#include "divide.hlsli"
#include "packed4.hlsli"

CML_MAIN
{
    CML_EACH_THREAD(place, n)
    uint number = cml_divide_rest(place, volume);
    uint image = cml_divide_rest(number, touched);
    uint block = first / 4 + number;
    uint to = (image * depth + block) * volume + place;
    uint from = image * ((channels + 3) / 4) * volume + place;
    float4 v = T1[to];
    {CML_UNROLL(uint, lane, 4) {
        int channel = int(4 * block + lane) - int(first);
        if (channel >= int(channels)) {
            v[lane] = 0.0;
        } else if (channel >= 0) {
            float4 x = T0[from + uint(channel) / 4 * volume];
            v[lane] = x[uint(channel) % 4];
        }
    }}
    T1[to] = v;
}
