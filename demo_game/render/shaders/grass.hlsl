// Grass near the eye: blades on a grid of the tile, where its colours are those of grass. An
// instance is a tuft of blades, three vertices each. Defines: GRASS_M metres to the furthest tuft,
// GRASS_DENSITY tufts along a metre.

#include "scene.hlsli"
#include "ground.hlsli"


struct Tuft
{
    // the tile, as for the ground: offset x and z in metres, metres per cell, fade
    [[vk::location(0)]] float4 place : PLACE;
    [[vk::location(1)]] uint2 slots : SLOTS;
};

struct Blade
{
    float4 clip : SV_Position;
    [[vk::location(0)]] float3 colour : COLOUR;
};

static const float DENSITY = GRASS_DENSITY;
// tufts across the square around the eye that has any
static const uint ACROSS = uint(2.0 * GRASS_M * DENSITY);

// PCG (Jarzynski and Olano, "Hash Functions for GPU Rendering", 2020)
uint hash(uint x)
{
    uint state = x * 747796405u + 2891336453u;
    uint word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return (word >> 22u) ^ word;
}

float2 random_of(uint x)
{
    uint made = hash(x);
    return float2(float(made & 0xffffu), float(made >> 16u)) / 65535.0;
}

// The ground's two triangles of a cell are divided from its corner (0, 0) to (1, 1).
float ground_at(float2 cell, uint slot)
{
    int2 low = int2(floor(cell));
    float2 f = cell - float2(low);
    float a = height_at(low, slot), c = height_at(low + int2(1, 1), slot);
    float b = height_at(low + (f.x > f.y ? int2(1, 0) : int2(0, 1)), slot);
    return f.x > f.y ? a + f.x * (b - a) + f.y * (c - b) : a + f.y * (b - a) + f.x * (c - b);
}

Blade place(Tuft tuft, uint vertex : SV_VulkanVertexID, uint instance : SV_VulkanInstanceID)
{
    // the square moves with the eye in whole steps, so that tufts stay where they are
    float2 first = floor((-tuft.place.xy - GRASS_M) * DENSITY);
    float2 grid = first + float2(float(instance % ACROSS), float(instance / ACROSS));
    uint seed = hash(uint(int(grid.x)) + 4096u * uint(int(grid.y)));
    uint blade = vertex / 3u, corner = vertex % 3u;
    float2 spread = random_of(seed + blade), looks = random_of(seed + blade + 977u);
    float2 metres = (grid + spread) / DENSITY;
    float2 cell = metres / tuft.place.z;

    float3 root = float3(tuft.place.x + metres.x, 0.0, tuft.place.y + metres.y);
    bool inside = all(cell >= 0.0) && all(cell < 56.0);
    cell = clamp(cell, 0.0, 55.99);
    float height = ground_at(cell, tuft.slots.x);
    root.y = height - scene.sun.w;
    float away = length(root);

    float2 uv = (cell + 4.5) / 64.0;
    uint width, tall, layers;
    albedo_texels.GetDimensions(width, tall, layers);
    float3 albedo = albedo_texels.Load(int4(int2(uv * float(width)), int(tuft.slots.x), 0)).rgb;
    float4 light = shading_texels.Load(int4(int2(uv * 64.0), int(tuft.slots.x), 0));
    float green = saturate((albedo.g - max(albedo.r, albedo.b)) * 14.0 + 0.15);
    float left = saturate((GRASS_M - away) * (3.0 / GRASS_M));
    float grown = (0.2 + 0.5 * looks.x * looks.x) * green * left * (1.0 - tuft.place.w);
    grown = inside && height > 0.6 && green > 0.2 ? grown : 0.0;

    float turn = 6.2832 * looks.y;
    float2 side = float2(cos(turn), sin(turn)) * ((0.06 + 0.0012 * away) * grown);
    float2 at = root.xz + scene.eye.xy;
    float gust = sin(scene.ray_y.w * 1.7 + at.x * 0.35 + at.y * 0.21) * 0.12 + 0.10;
    float2 lean = (random_of(seed + 31u) - 0.5) * 0.7 + gust;
    float3 tip = root;
    if (corner == 2u)
    {
        tip.xz += lean * grown;
        tip.y += grown;
    }
    else
    {
        tip.xz += corner == 0u ? side : -side;
        tip.y -= 0.03;
    }

    float up = corner == 2u ? 1.0 : 0.0;
    albedo = linear_of(albedo) * float3(0.62 + 0.3 * looks.x, 1.0, 0.5) * (0.5 + 0.8 * up);
    float4 fog = fog_of(root);
    Blade made;
    made.clip = to_clip(tip);
    made.colour = shown(lit_ground(light, albedo) * fog.a + fog.rgb);
    return made;
}

float4 shade(Blade blade) : SV_Target0
{
    return float4(blade.colour, 1.0);
}
