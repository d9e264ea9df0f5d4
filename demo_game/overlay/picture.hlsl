// The overlay's finished picture over the game's: texel by texel, one triangle for the screen, of
// which the scissor rectangle leaves a window.

[[vk::binding(0, 0)]] Texture2D<float4> picture;

float4 place(uint corner : SV_VulkanVertexID) : SV_Position
{
    return float4(corner == 1 ? 3.0 : -1.0, corner == 2 ? 3.0 : -1.0, 0.0, 1.0);
}

// Colours are multiplied by their alphas already.
float4 shade(float4 at : SV_Position) : SV_Target
{
    return picture.Load(int3(int2(at.xy), 0));
}
