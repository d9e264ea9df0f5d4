// Copies a texture into a tensor; a thread writes all channels of one pixel of the tensor.
// Parameters:
// sizes    width and height of the tensor, width and height of the texture
// strides  the tensor's strides in 32-bit words: channel, row, column; the number of channels
// picked   for each channel of the tensor, 0 to 3: a channel of the texture, 4: grey
// how      0: same size, 1: bilinear, 2: area; 1 if colours are sRGB-encoded
#include "item.hlsli"
#include "srgb.hlsli"

[[vk::binding(1, 0)]] Texture2D<float4> source;
[[vk::binding(2, 0)]] RWStructuredBuffer<float> tensor;

float4 texel(int2 at) {
    int2 last = int2(sizes.zw) - 1;
    return source.Load(int3(clamp(at, int2(0, 0), last), 0));
}

float4 nearest(uint2 at) {
    return texel(int2(((2 * at + 1) * sizes.zw) / (2 * sizes.xy)));
}

float4 bilinear(uint2 at) {
    float2 place = (float2(at) + 0.5) * float2(sizes.zw) / float2(sizes.xy) - 0.5;
    float2 low = floor(place), f = place - low;
    int2 corner = int2(low);
    float4 above = lerp(texel(corner), texel(corner + int2(1, 0)), f.x);
    float4 below = lerp(texel(corner + int2(0, 1)), texel(corner + int2(1, 1)), f.x);
    return lerp(above, below, f.y);
}

// Returns the mean over the area of the texture that the pixel covers.
float4 mean(uint2 at) {
    float2 step = float2(sizes.zw) / float2(sizes.xy);
    float2 first = float2(at) * step, end = float2(at + 1) * step;
    int2 low = int2(floor(first)), high = int2(ceil(end));
    float4 sum = float4(0.0);
    for (int y = low.y; y < high.y; ++y) {
        float row = min(end.y, float(y + 1)) - max(first.y, float(y));
        for (int x = low.x; x < high.x; ++x) {
            float column = min(end.x, float(x + 1)) - max(first.x, float(x));
            sum += row * column * texel(int2(x, y));
        }
    }
    return sum / (step.x * step.y);
}

void cml_item(uint pixel) {
    uint2 at = uint2(pixel % sizes.x, pixel / sizes.x);
    float4 value;
    if (how.x == 1) {
        value = bilinear(at);
    } else if (how.x == 2) {
        value = mean(at);
    } else {
        value = nearest(at);
    }
    if (how.y != 0) {
        value.rgb = srgb_encoded(value.rgb);
    }
    float grey = dot(value.rgb, float3(0.299, 0.587, 0.114));
    for (uint k = 0; k < strides.w; ++k) {
        float number = picked[k] == 4 ? grey : value[picked[k] & 3];
        uint place = k * strides.x + at.y * strides.y + at.x * strides.z;
        tensor[place] = number * scale[k] + shift[k];
    }
}
