// The tiles' heights and how their light falls.

// the land is drawn down to here; deeper water looks alike
static const float SEABED = -40.0;

[[vk::binding(0, 1)]] Texture2DArray<float> heights;
[[vk::binding(1, 1)]] Texture2DArray<float4> shading_texels;
[[vk::binding(2, 1)]] Texture2DArray<float4> albedo_texels;

float height_at(int2 cell, uint slot)
{
    return heights.Load(int4(cell + 4, int(slot), 0));
}

// How far a place of a tile takes the parent's shape because a neighbour has it: all the way at the
// edge, and not at all REACH cells from it. Four bits of edges each: west, north, east, south, and
// the corners from the north-west on.
float at_edges(float2 cell, uint edges)
{
    static const float REACH = 20.0;
    float moved = 0.0;
    if (edges != 0)
    {
        float2 low = cell, high = 56.0 - cell;
        float away[8] = { low.x, low.y, high.x, high.y, length(low), length(float2(high.x, low.y)),
            length(high), length(float2(low.x, high.y)) };
        [unroll] for (uint i = 0; i < 8; ++i)
            moved = max(moved, float((edges >> (4 * i)) & 15) / 15.0 * saturate(1.0 - away[i] / REACH));
    }
    return moved;
}

// Linear light of sRGB, fitted. Texels are filtered before that: of a texture in sRGB a software
// driver converts all four of a sample.
float3 linear_of(float3 c)
{
    return c * (0.0125 + c * (0.6822 + c * 0.3053));
}

// light: normal x, normal z, ambient occlusion, sunlight, each 0 to 1
float3 normal_of(float4 light)
{
    float2 flat = light.xy * 2.0 - 1.0;
    return float3(flat.x, sqrt(saturate(1.0 - dot(flat, flat))), flat.y);
}

float3 lit_ground(float4 light, float3 albedo)
{
    float3 normal = normal_of(light);
    float direct = saturate(dot(normal, scene.sun.xyz)) * light.w;
    float3 ambient = lerp(BOUNCE, SKYLIGHT, normal.y * 0.5 + 0.5) * light.z;
    return albedo * (SUNLIGHT * direct + ambient);
}
