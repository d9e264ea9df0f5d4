// The overlay's triangles: a corner has a place in points, a place in the font's texture, a colour.
//
// Define: LINEAR 1 where the target converts to sRGB itself.

struct Screen
{
    // points to clip space: at * scale + offset
    float2 scale, offset;
};

[[vk::binding(0, 0)]] ConstantBuffer<Screen> screen;
[[vk::binding(1, 0)]] SamplerState filtered;
[[vk::binding(2, 0)]] Texture2D<float4> font;

struct Corner
{
    [[vk::location(0)]] float2 at : AT;
    [[vk::location(1)]] float2 uv : UV;
    [[vk::location(2)]] float4 colour : COLOUR;
};

struct Placed
{
    float4 clip : SV_Position;
    [[vk::location(0)]] float4 colour : COLOUR;
    [[vk::location(1)]] float2 uv : UV;
};

// The colour where blending is in linear light. There, what is dark lets more shine through than
// it does in sRGB and what is bright less, so their alphas are bent the one way and the other.
float4 linear_light(float4 colour)
{
    float3 low = colour.rgb / 12.92;
    float3 high = pow((colour.rgb + 0.055) / 1.055, 2.4);
    float bright = dot(colour.rgb, float3(0.2126, 0.7152, 0.0722));
    float alpha = lerp(1.0 - pow(1.0 - colour.a, 2.2), pow(colour.a, 2.2), bright);
    return float4(select(colour.rgb <= 0.04045, low, high), alpha);
}

Placed place(Corner corner)
{
    Placed placed;
    placed.clip = float4(corner.at * screen.scale + screen.offset, 0.0, 1.0);
    placed.uv = corner.uv;
    placed.colour = corner.colour;
#if LINEAR
    placed.colour = linear_light(corner.colour);
#endif
    return placed;
}

float4 shade(Placed placed) : SV_Target
{
    return placed.colour * font.SampleLevel(filtered, placed.uv, 0.0);
}
