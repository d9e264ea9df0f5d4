// The sea's surface, laid over what has been drawn of its bed: the sky's reflection by Schlick's
// approximation of Fresnel's law, and the sun's glitter.

#include "scene.hlsli"

#if RICH
// the land upside down, at half the picture's size; alpha 0 where there is none
[[vk::binding(0, 1)]] Texture2D<float4> reflected;
[[vk::binding(1, 1)]] SamplerState clamped;
#endif

struct Water
{
    float4 clip : SV_Position;
};

// The ray through a corner of the picture, whose component along the direction of view is 1.
float3 corner_ray(float2 corner)
{
    float3 x = scene.clip_x.xyz, y = scene.clip_y.xyz;
    return scene.clip_w.xyz + corner.x / dot(x, x) * x + corner.y / dot(y, y) * y;
}

// The picture's corners at the depth of the sea's plane, which is linear over the picture and 0 at
// the horizon. A plane of corners in the world would have all of them within a pixel of the
// horizon, and drivers that round corners to parts of a pixel could not tell its slope.
Water place(uint vertex : SV_VulkanVertexID)
{
    float2 corner = float2(float(vertex & 1) * 2.0 - 1.0, float(vertex >> 1) * 2.0 - 1.0);
    float near = scene.clip_z.w;
    Water water;
    water.clip = float4(corner, near * -corner_ray(corner).y / scene.sun.w, 1.0);
    return water;
}

float4 shade(Water water) : SV_Target0
{
    float3 ray = ray_of(water.clip.xy);
    float3 at = ray * (scene.sun.w / max(-ray.y, 1e-4));
    float away = length(at);
    float3 direction = at / away;
    float2 world = at.xz + scene.eye.xy;
    float2 wind = scene.ray_y.w * float2(1.0, 0.4);
    float2 near = (world + wind * 3.0) * (1.0 / 64.0);
    float2 wide = (world.yx - wind * 7.0) * (1.0 / 512.0);
    float2 slope = patterns.Sample(repeating, near).xy + patterns.Sample(repeating, wide).xy - 1.0;
    float calm = 1.0 / (1.0 + away * 0.0006);
    float3 normal = normalize(float3(slope.x * 0.34 * calm, 1.0, slope.y * 0.34 * calm));
    float facing = saturate(-dot(direction, normal));
    float away_from = 1.0 - facing;
    float fifth = away_from * away_from;
    fifth *= fifth * away_from;
    float fresnel = 0.02 + 0.98 * fifth * (0.55 + 0.45 * calm);
    float3 mirrored = reflect(direction, normal);
    mirrored.y = abs(mirrored.y) + 0.02;
    float4 fog = fog_of(at);
    float3 light = sky_of(mirrored) * fog.a + fog.rgb;
    float glint = saturate(dot(mirrored, scene.sun.xyz));
    // far away a pixel holds many waves, and few of them glitter
    float soft = exp2(86.0 * glint - 86.0);
    float sharp = soft * soft * soft * soft * soft;
    float bright = 40.0 * calm * calm * sharp + 3.0 * soft;
    float3 glitter = SUNLIGHT * (fresnel * fog.a * bright);
    float3 seen = shown(light);
#if RICH
    uint width, height;
    reflected.GetDimensions(width, height);
    float2 place = 0.5 * water.clip.xy / float2(float(width), float(height));
    float4 land = reflected.SampleLevel(clamped, place + 0.02 * calm * slope, 0.0);
    seen = seen * (1.0 - land.a) + land.rgb;
#endif
    return float4(fresnel * seen + shown(glitter), fresnel);
}
