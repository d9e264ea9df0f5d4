// conv and deconv of any kind: any layout, groups, border and number of axes, filter as it is.
//
// A thread makes four channels at one position. conv_tile.hlsl is the fast way where the filter is
// constant and the groups are wide; here every lane walks its own group if it must.
// T0 input, T1 filter, T2 bias, then the epilogues' operands, then OUT.
#include "conv_position.hlsli"
#include "epilogue.hlsli"

// Address of channel c at a position: layouts differ in how many channels lie side by side.
uint address(uint image, uint channel, uint channels, uint at, uint volume, uint shift) {
    uint side = (1u << shift) - 1u;
    uint blocks = (channels + side) >> shift;
    uint block = image * blocks + (channel >> shift);
    return ((block * volume + at) << shift) + (channel & side);
}

// Index of the input value under a tap of the window of `result`; -1 where there is zero.
int source_index(int axis, int result, int tap) {
    int scaled = result * y_mul(axis) + tap * k_step(axis) + origin(axis);
    int index = cml_floor_div(scaled, up(axis));
    return index * up(axis) == scaled ? cml_border(index, x_size(axis)) : -1;
}

struct Lanes {
    uint image;
    uint channel[4];
    uint group[4];
};

// Adds one tap's products: all input channels of each lane's group.
float4 add_tap(float4 sum, Lanes lanes, uint at, uint tap) {
    uint volume = cml_volume(x_size(0), x_size(1), x_size(2));
    uint weight[4];
    {[ForceUnroll] for (int lane = 0; lane < 4; lane++) {
        uint within = lanes.channel[lane] - lanes.group[lane] * group_out;
        weight[lane] = lanes.group[lane] * w_group + within * w_out + tap;
    }}
    for (uint i = 0; i < group_in; i++) {
        {[ForceUnroll] for (int lane = 0; lane < 4; lane++) {
            uint channel = lanes.group[lane] * group_in + i;
            float x = T0[address(lanes.image, channel, in_c, at, volume, in_shift)];
            sum[lane] = mad(x, T1[weight[lane]], sum[lane]);
            weight[lane] += w_in;
        }}
    }
    return sum;
}

void store(float4 sum, uint image, uint block, uint at, uint volume) {
    {[ForceUnroll] for (int lane = 0; lane < 4; lane++) {
        uint channel = 4 * block + lane;
        uint to = address(image, channel, out_c, at, volume, out_shift);
        if (channel < out_c) {
            OUT[to] = cml_epilogue(sum[lane] + T2[channel * bias_step], channel, to);
        } else if (out_shift == 2) {
            OUT[to] = 0.0; // the lanes that fill the last block
        }
    }}
}

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint3 tid : SV_GroupThreadID) {
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    uint thread = group * GROUP + tid.x;
    uint volume = cml_volume(y_size(0), y_size(1), y_size(2));
    uint blocks = (out_c + 3) / 4;
    if (thread >= batch * blocks * volume) { return; }

    uint at = thread % volume;
    uint block = thread / volume % blocks;
    Lanes lanes;
    lanes.image = thread / volume / blocks;
    {[ForceUnroll] for (int lane = 0; lane < 4; lane++) {
        lanes.channel[lane] = min(4 * block + lane, out_c - 1);
        lanes.group[lane] = lanes.channel[lane] / group_out;
    }}
    int x = int(at % y_size(2));
    int y = int(at / y_size(2) % y_size(1));
    int z = int(at / y_size(2) / y_size(1));

    float4 sum = 0.0;
    uint tap = 0;
    for (int kz = 0; kz < k_size(0); kz++) {
        int sz = source_index(0, z, kz);
        for (int ky = 0; ky < k_size(1); ky++) {
            int sy = source_index(1, y, ky);
            for (int kx = 0; kx < k_size(2); kx++) {
                int sx = source_index(2, x, kx);
                if (min(min(sx, sy), sz) >= 0) {
                    uint from = (uint(sz) * x_size(1) + uint(sy)) * x_size(2) + uint(sx);
                    sum = add_tap(sum, lanes, from, tap);
                }
                tap++;
            }
        }
    }
    store(sum, lanes.image, block, at, volume);
}
