// A picture that was drawn smaller than its target, over all of it.

[[vk::binding(0, 0)]] Texture2D<float4> drawn;
[[vk::binding(1, 0)]] SamplerState smooth;

struct Corner
{
    float4 clip : SV_Position;
    // parallel to the screen: a software driver need not divide for each pixel
    [[vk::location(0)]] noperspective float2 uv : UV;
};

Corner place(uint vertex : SV_VulkanVertexID)
{
    float2 at = float2(float(vertex & 1) * 2.0, float(vertex >> 1) * 2.0);
    Corner corner;
    corner.clip = float4(at.x * 2.0 - 1.0, 1.0 - at.y * 2.0, 0.0, 1.0);
    corner.uv = at;
    return corner;
}

float4 shade(Corner corner) : SV_Target0
{
    return drawn.SampleLevel(smooth, corner.uv, 0.0);
}
