// Copies a part into a concatenation, both in blocks of four channels, if the part begins inside of a
// block: earlier parts' lanes of that block are kept, lanes past the part's last channel become zeros.
//
// params: n  blocks that are written;  channels, volume  of the part;  first  its first channel in
//         the result;  depth, touched  blocks of the result, and those of them that the part touches
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
