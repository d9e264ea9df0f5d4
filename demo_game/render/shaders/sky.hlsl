// Behind everything: the air, the sun, and clouds on a plane above.

#include "scene.hlsli"

struct Corner
{
    float4 clip : SV_Position;
};

Corner place(uint vertex : SV_VulkanVertexID)
{
    Corner corner;
    corner.clip = float4(float(vertex & 1) * 4.0 - 1.0, float(vertex >> 1) * 4.0 - 1.0, 0.0, 1.0);
    return corner;
}

static const float CLOUDS_M = 2400.0;

float4 shade(Corner corner) : SV_Target0
{
    float3 direction = normalize(ray_of(corner.clip.xy));
    float3 light = sky_of(direction);
    float2 over = direction.xz * (CLOUDS_M / max(direction.y, 0.02)) + scene.eye.xy
        + scene.ray_y.w * float2(9.0, 4.0);
#if RICH
    float cover = patterns.Sample(repeating, over * (1.0 / 16384.0)).z;
    // finer shapes, and darker where there is more cloud between here and the sun
    cover += 0.4 * patterns.Sample(repeating, over.yx * (1.0 / 4096.0)).z - 0.2;
    float2 sunwards = over + 350.0 * scene.sun.xz;
    float before = patterns.Sample(repeating, sunwards * (1.0 / 16384.0)).z
        + 0.4 * patterns.Sample(repeating, sunwards.yx * (1.0 / 4096.0)).z - 0.2;
    float thin = saturate(0.75 - 1.8 * (before - cover) - 0.5 * saturate(cover - 0.65));
#else
    float cover = patterns.SampleLevel(repeating, over * (1.0 / 16384.0), 2.0).z;
    float thin = 0.6;
#endif
    float cloud = smoothstep(0.53, 0.83, cover) * saturate(direction.y * 9.0 - 0.25);
    float mu = dot(direction, scene.sun.xyz);
    float3 white = lerp(CLOUD_DARK, CLOUD_LIT, thin)
        + GLOW * glow_of(direction);
    light = lerp(light, white, cloud * 0.85);
    light += SUNLIGHT * (6.0 * smoothstep(0.99965, 0.9998, mu) * (1.0 - cloud));
    // below the horizon: deep water, as far as the air lets it be seen
    float sunk = max(-direction.y, 1e-4);
    float away = scene.sun.w / sunk;
    float edge = away * scene.ray_x.w;
    edge *= edge;
    float left = exp(-(away * scene.ray.w + 2.5 * edge * edge));
    left = direction.y < 0.0 ? left : 0.0;
    light = lerp(light, DEEP_WATER, left);
    return float4(shown(light), 1.0);
}
