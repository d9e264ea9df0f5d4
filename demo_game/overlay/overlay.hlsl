// The overlay's triangles: a corner has a place in points, a place in the font's texture, a colour.

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

Placed place(Corner corner)
{
    Placed placed;
    placed.clip = float4(corner.at * screen.scale + screen.offset, 0.0, 1.0);
    placed.uv = corner.uv;
    placed.colour = corner.colour;
    return placed;
}

float4 shade(Placed placed) : SV_Target
{
    return placed.colour * font.SampleLevel(filtered, placed.uv, 0.0);
}
