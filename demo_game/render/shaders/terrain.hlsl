// Tiles: one grid, instanced over all that are in view, its vertices moved to the next level's
// surface with distance. Defines: RICH; MIRROR 1 for the land as the sea
// shows it.

#include "scene.hlsli"
#include "ground.hlsli"

[[vk::binding(3, 1)]] SamplerState clamped;

struct Vertex
{
    // cell x, z, cells that the lower end of a skirt hangs down
    [[vk::location(0)]] uint4 cell : CELL;
    // two cells of the next level, from the quadrant's corner
    [[vk::location(1)]] uint4 coarser : COARSER;
    // offset x and z of the tile in metres, metres per cell, shift to the next level (0 to 1)
    [[vk::location(2)]] float4 place : PLACE;
    // distance where the move begins, 1 / its length, quadrant's corner in the next level's cells
    [[vk::location(3)]] float4 morph : MORPH;
    // its own slot, the parent's, and see at_edges
    [[vk::location(4)]] uint3 slots : SLOTS;
};

struct Surface
{
    float4 clip : SV_Position;
    // uv, and that at the next level
    [[vk::location(0)]] float4 uv : UV;
    [[vk::location(1)]] float moved : MOVED;
    [[vk::location(2)]] float4 fog : FOG;
    // relative position, height over the sea
    [[vk::location(3)]] float4 position : POSITION;
    // a layer is cut to an integer, not rounded: what is interpolated would be off by one
    [[vk::location(4)]] nointerpolation uint2 slots : SLOTS;
};

Surface place(Vertex vertex)
{
    float2 cell = float2(vertex.cell.xy);
    float own = height_at(int2(vertex.cell.xy), vertex.slots.x);
    int2 corner = int2(vertex.morph.zw);
    float coarse = 0.5 * (height_at(corner + int2(vertex.coarser.xy), vertex.slots.y)
        + height_at(corner + int2(vertex.coarser.zw), vertex.slots.y));
    float2 flat = vertex.place.xy + cell * vertex.place.z;
    float3 at = float3(flat.x, max(own, 0.0) - scene.sun.w, flat.y);
    float moved = saturate((length(at) - vertex.morph.x) * vertex.morph.y);
    moved = max(moved, max(vertex.place.w, at_edges(cell, vertex.slots.z)));
    float height = lerp(own, coarse, moved);
    float drop = float(vertex.cell.z) * vertex.place.z;
    at.y = max(height, SEABED) - drop - scene.sun.w;

    Surface surface;
#if MIRROR
    float3 seen = float3(at.x, -at.y - 2.0 * scene.sun.w, at.z);
    surface.clip = to_clip(seen);
#else
    surface.clip = to_clip(at);
#endif
    surface.uv = (float4(cell, cell * 0.5 + vertex.morph.zw) + 4.5) / 64.0;
    surface.moved = moved;
    surface.slots = vertex.slots.xy;
    surface.fog = fog_of(at);
    surface.position = float4(at, height);
    return surface;
}

float4 shade(Surface surface) : SV_Target0
{
#if MIRROR
    // the lower ends of tiles' edges would show through the sea
    if (surface.position.y + scene.sun.w < 0.0)
        discard;
#endif
    float3 own = float3(surface.uv.xy, float(surface.slots.x));
    float3 coarser = float3(surface.uv.zw, float(surface.slots.y));
    // colours go over to the coarser level's as the shape does, so that levels meet without an edge
    // and a new tile comes gradually
    float4 light = shading_texels.SampleLevel(clamped, own, 0.0);
    float4 albedo = albedo_texels.SampleLevel(clamped, own, 0.0);
    light = lerp(light, shading_texels.SampleLevel(clamped, coarser, 0.0), surface.moved);
    albedo = lerp(albedo, albedo_texels.SampleLevel(clamped, coarser, 0.0), surface.moved);
    albedo.rgb = linear_of(albedo.rgb);
    float2 world = surface.position.xz + scene.eye.xy;
#if RICH
    float grain = patterns.Sample(repeating, world * (1.0 / 32.0)).w
        + patterns.Sample(repeating, world * (1.0 / 128.0)).w - 1.0;
    // far away its repetition would show
    grain *= saturate(surface.fog.a * 2.0 - 0.9);
#else
    // near only, and always from the same mip level: on a software driver choosing one costs more
    // than the sample
    float grain = patterns.SampleLevel(repeating, world * (1.0 / 64.0), 2.0).w - 0.5;
    grain *= saturate(surface.fog.a * 8.0 - 6.8);
#endif
    albedo.rgb *= 1.0 + (0.9 - 0.7 * albedo.g) * grain;
    float3 lit = lit_ground(light, albedo.rgb);
#if RICH
    float3 toward = -normalize(surface.position.xyz);
    float3 normal = normal_of(light);
    float smooth = 1.0 - albedo.a;
    float shine = saturate(dot(normalize(toward + scene.sun.xyz), normal));
    float power = 8.0 + 60.0 * smooth;
    lit += SUNLIGHT * (0.25 * smooth * light.w * pow(shine, power));
#endif
    // light is lost in water, red first
    float clear = exp2(min(surface.position.w, 0.0) * 0.16);
    float3 through = float3(clear * clear * clear, clear * sqrt(clear), clear);
    lit = DEEP_WATER + (lit - DEEP_WATER) * through;
    return float4(shown(lit * surface.fog.a + surface.fog.rgb), 1.0);
}
