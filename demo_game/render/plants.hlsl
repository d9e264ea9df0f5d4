// Trees, bushes and rocks: a draw per tile, VERTICES vertices per instance, shapes from the vertex's
// number. Defines: STEP cells per square of the ground, VERTICES 18 or 36.

#include "scene.hlsli"
#include "ground.hlsli"

[[vk::binding(1, 1)]] Texture2DArray<float4> shading_texels;
[[vk::binding(3, 1)]] SamplerState clamped;

struct Plant
{
    // x and z in cells, metres, and a whole number: kind 2 bits, size 6, turn 8, tint 8
    [[vk::location(0)]] float4 placed : PLACED;
    [[vk::location(2)]] float4 place : PLACE;
    [[vk::location(3)]] float4 morph : MORPH;
    [[vk::location(4)]] uint2 slots : SLOTS;
};

struct Leaf
{
    float4 clip : SV_Position;
    [[vk::location(0)]] float3 colour : COLOUR;
};

static const float TURN = 6.2831853;
#if VERTICES == 36
static const uint LAYERS = 3;
static const uint SIDES = 4;
#else
static const uint LAYERS = 2;
static const uint SIDES = 3;
#endif

// Height of the ground as it is drawn: on the triangles of the mesh.
float ground_at(float2 cell, uint slot)
{
    float2 square = cell / float(STEP);
    float2 corner = min(floor(square), float(56 / STEP - 1));
    float2 f = square - corner;
    int2 first = int2(corner) * STEP;
    bool lower = f.y > f.x;
    float a = height_at(first, slot);
    float b = height_at(first + (lower ? int2(0, STEP) : int2(STEP, 0)), slot);
    float c = height_at(first + STEP, slot);
    float major = lower ? f.y : f.x;
    float minor = lower ? f.x : f.y;
    return a + (b - a) * major + (c - b) * minor;
}

// A vertex of a fir: layers of pyramids, the lowest the widest. Radius 1, height 1.
float3 fir(uint vertex, float turn)
{
    uint triangle_number = vertex / 3;
    uint corner = vertex % 3;
    uint layer = triangle_number / SIDES;
    uint side = triangle_number % SIDES + (corner == 2 ? 1 : 0);
    float share = float(layer) / float(LAYERS);
    if (corner == 0)
    {
        return float3(0.0, share + (1.0 - share) * (layer + 1 == LAYERS ? 1.0 : 0.75), 0.0);
    }
    float angle = turn + TURN * (float(side) / float(SIDES) + 0.13 * float(layer));
    float radius = 1.0 - 0.8 * share;
    return float3(cos(angle) * radius, 0.10 + 0.82 * share, sin(angle) * radius);
}

// A vertex of a double pyramid of VERTICES / 6 sides. Radius 1, height 1.
float3 clump(uint vertex, float turn)
{
    uint triangle_number = vertex / 3;
    uint corner = vertex % 3;
    if (corner == 0)
    {
        return float3(0.0, float(triangle_number & 1), 0.0);
    }
    float angle = turn + TURN * float((triangle_number >> 1) + corner - 1) / float(VERTICES / 6);
    return float3(cos(angle), 0.42 + 0.1 * sin(3.0 * angle), sin(angle));
}

static const float3 FIR = float3(0.018, 0.052, 0.020);
static const float3 LEAVES = float3(0.060, 0.110, 0.022);
static const float3 BUSH = float3(0.060, 0.088, 0.024);
static const float3 ROCK = float3(0.180, 0.165, 0.150);

Leaf place(Plant plant, uint vertex : SV_VulkanVertexID)
{
    float2 cell = plant.placed.xy;
    uint bits = uint(plant.placed.w);
    uint kind = bits & 3;
    float size = float((bits >> 2) & 63) / 63.0;
    float turn = TURN * float((bits >> 8) & 255) / 256.0;
    float tint = float((bits >> 16) & 255) / 255.0;

    float2 flat = plant.place.xy + cell * plant.place.z;
    float ground = ground_at(cell, plant.slots.x);
    float3 root = float3(flat.x, ground - scene.sun.w, flat.y);
    float away = length(root);
    // thin out with distance: each goes at its own, and shrinks before it does
    float reach = PLANTS_M * (0.45 + 0.55 * frac(tint * 7.31 + size * 3.17));
    float grown = saturate((reach - away) / (0.15 * PLANTS_M)) * (1.0 - plant.place.w);

    bool tree = kind == 0;
    float3 shape = tree ? fir(vertex, turn) : clump(vertex, turn);
    float tall = tree ? 5.0 + 9.0 * size : (kind == 1 ? 0.9 + 1.6 * size : 0.6 + 2.4 * size);
    float wide = tall * (tree ? 0.27 : 0.75);
    float3 local = shape * float3(wide, tall, wide) * grown;
    float3 at = root + local;
    at.y -= 0.2;

    float4 light = shading_texels.SampleLevel(
        clamped, float3((cell + 4.5) / 64.0, float(plant.slots.x)), 0.0);
    float3 outward = normalize(float3(shape.x, 0.45 + 0.4 * shape.y, shape.z));
    float3 normal = normalize(outward + normal_of(light) * 0.7);
    float wrapped = saturate(dot(normal, scene.sun.xyz) * 0.75 + 0.25);
    float hidden = lerp(0.35, 1.0, shape.y) * light.z;
    float3 albedo = tree ? lerp(FIR, LEAVES, tint * tint) : (kind == 1 ? BUSH : ROCK);
    albedo *= 0.75 + 0.5 * tint;
    float3 lit = albedo
        * (SUNLIGHT * (wrapped * light.w * lerp(0.5, 1.0, shape.y))
            + lerp(BOUNCE, SKYLIGHT, normal.y * 0.5 + 0.5) * hidden);
    // near: the air is thin
    float lost = away * scene.ray.w;
    float3 air = NEAR_AIR * lost;

    Leaf leaf;
    leaf.clip = to_clip(at);
    leaf.colour = shown(lit * (1.0 - lost) + air);
    return leaf;
}

float4 shade(Leaf leaf) : SV_Target0
{
    return float4(leaf.colour, 1.0);
}
