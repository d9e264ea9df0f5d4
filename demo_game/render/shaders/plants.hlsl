// Trees, bushes and rocks: a draw per tile, one shape's vertices per instance. Define: PLANTS_M
// metres to the furthest.

#include "scene.hlsli"
#include "ground.hlsli"

struct Plant
{
    // of a tree, and of a bush or rock: radius and height are 1
    [[vk::location(0)]] float3 tree : TREE;
    [[vk::location(1)]] float3 clump : CLUMP;
    // cells / 64, metres; kind and size, cosine, sine, tint; light of the ground
    [[vk::location(2)]] float2 cell : CELL;
    [[vk::location(3)]] float ground : GROUND;
    [[vk::location(4)]] uint4 looks : LOOKS;
    [[vk::location(5)]] float4 light : LIGHT;
    [[vk::location(6)]] float4 place : PLACE;
    [[vk::location(7)]] uint edges : EDGES;
};

struct Leaf
{
    float4 clip : SV_Position;
    [[vk::location(0)]] float3 colour : COLOUR;
};

static const float3 FIR = float3(0.018, 0.052, 0.020);
static const float3 LEAVES = float3(0.060, 0.110, 0.022);
static const float3 BUSH = float3(0.060, 0.088, 0.024);
static const float3 ROCK = float3(0.180, 0.165, 0.150);

Leaf place(Plant plant)
{
    uint kind = plant.looks.x & 3;
    float size = float(plant.looks.x >> 2) / 63.0;
    float2 turn = float2(plant.looks.yz) / 127.5 - 1.0;
    float tint = float(plant.looks.w) / 255.0;
    bool tree = kind == 0;

    float2 cell = plant.cell * (65535.0 / 1024.0);
    float2 flat = plant.place.xy + cell * plant.place.z;
    float3 root = float3(flat.x, plant.ground - scene.sun.w - 0.2, flat.y);
    float away = length(root);
    // thin out with distance: each goes at its own, and shrinks before it does
    float reach = PLANTS_M * (0.45 + 0.55 * frac(tint * 7.31 + size * 3.17));
    float grown = saturate((reach - away) * (1.0 / (0.15 * PLANTS_M)));
    // there are none where the ground still has the coarser level's shape
    grown *= 1.0 - max(plant.place.w, at_edges(cell, plant.edges));

    float3 shape = tree ? plant.tree : plant.clump;
    shape.xz = float2(shape.x * turn.x - shape.z * turn.y, shape.x * turn.y + shape.z * turn.x);
    float tall = tree ? 5.0 + 9.0 * size : (kind == 1 ? 0.9 + 1.6 * size : 0.6 + 2.4 * size);
    float wide = tall * (tree ? 0.27 : 0.75);
    float3 at = root + shape * (grown * float3(wide, tall, wide));

    float3 normal = normalize(float3(shape.x, 0.45 + 0.4 * shape.y, shape.z)
        + 0.7 * normal_of(plant.light));
    float wrapped = saturate(dot(normal, scene.sun.xyz) * 0.75 + 0.25);
    float3 albedo = tree ? lerp(FIR, LEAVES, tint * tint) : (kind == 1 ? BUSH : ROCK);
    albedo *= 0.75 + 0.5 * tint;
    float3 direct = SUNLIGHT * (wrapped * plant.light.w * (0.5 + 0.5 * shape.y));
    float3 ambient = lerp(BOUNCE, SKYLIGHT, normal.y * 0.5 + 0.5);
    float3 lit = albedo * (direct + ambient * (plant.light.z * (0.35 + 0.65 * shape.y)));
    // near: the air is thin
    float lost = away * scene.ray.w;

    Leaf leaf;
    leaf.clip = to_clip(at);
    leaf.colour = shown(lit + (NEAR_AIR - lit) * lost);
    return leaf;
}

float4 shade(Leaf leaf) : SV_Target0
{
    return float4(leaf.colour, 1.0);
}
