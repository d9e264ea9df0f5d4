// Packs a tensor into texels; a thread writes one texel into the rows of a buffer, which is then
// copied to a texture. Parameters:
// sizes    width, 32-bit words per row, words per texel; texel type 0: bytes, 1: half, 2: float
// strides  the tensor's strides in 32-bit words: channel, row, column
// picked   for each channel of a texel, 0 to 3: a channel of the tensor, 4: zero, 5: one
// how      colours 0: unchanged, 1: encoded as sRGB, 2: decoded; 1 if red and blue are swapped
#include "../include/packed4.hlsli"
#include "item.hlsli"
#include "srgb.hlsli"

[[vk::binding(1, 0)]] RWStructuredBuffer<float> tensor;
[[vk::binding(2, 0)]] RWStructuredBuffer<uint> texels;

float channel(uint k, uint2 at) {
    float number = picked[k] == 5 ? 1.0 : 0.0;
    if (picked[k] < 4) {
        uint place = picked[k] * strides.x + at.y * strides.y + at.x * strides.z;
        number = tensor[place] * scale[k] + shift[k];
    }
    return number;
}

// Rounds to the nearest of 256 steps; NaN becomes 0.
uint4 bytes_of(float4 value) {
    uint4 steps = uint4(clamp(value, 0.0, 1.0) * 255.0 + 0.5);
    return select((asuint(value) & 0x7fffffffu) > 0x7f800000u, uint4(0), steps);
}

void cml_item(uint pixel) {
    uint2 at = uint2(pixel % sizes.x, pixel / sizes.x);
    float4 value = float4(channel(0, at), channel(1, at), channel(2, at), channel(3, at));
    if (how.x == 1) {
        value.rgb = srgb_encoded(value.rgb);
    } else if (how.x == 2) {
        value.rgb = srgb_decoded(value.rgb);
    }
    if (how.y != 0) {
        value = value.bgra;
    }
    uint place = at.y * sizes.y + at.x * sizes.z;
    if (sizes.w == 0) {
        uint4 b = bytes_of(value);
        texels[place] = b.x | (b.y << 8) | (b.z << 16) | (b.w << 24);
    } else if (sizes.w == 1) {
        uint2 halves = cml_to_half(value);
        texels[place] = halves.x;
        texels[place + 1] = halves.y;
    } else {
        for (uint k = 0; k < sizes.z; ++k) {
            texels[place + k] = asuint(value[k]);
        }
    }
}
