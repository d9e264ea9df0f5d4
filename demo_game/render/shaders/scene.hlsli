// What every shader of the picture shares: the frame, the light, the air.
//
// Positions are in metres relative to the eye. Colours are linear light; `shown` brings them to the
// target. Defines: ENCODE 1 where the target does not convert to sRGB itself, and the light's colours
// (world/sun.py).

struct Scene
{
    // rows of the view-projection
    float4 clip_x, clip_y, clip_z, clip_w;
    // the ray through pixel (x, y) is ray + x * ray_x + y * ray_y; w: the air's density at the eye,
    // 1 / view_m, seconds
    float4 ray, ray_x, ray_y;
    // towards the sun; the eye's height over the sea
    float4 sun;
    // where the eye is in the patterns of waves, grain and clouds (x, z)
    float4 eye;
};

[[vk::binding(0, 0)]] ConstantBuffer<Scene> scene;
[[vk::binding(1, 0)]] SamplerState repeating;
// slopes of waves x and z, clouds, grain; 0.5 is none
[[vk::binding(2, 0)]] Texture2D<float4> patterns;

static const float3 DEEP_WATER = float3(0.006, 0.038, 0.062);
// metres in which the air thins to 1 / e
static const float THINNING = 1600.0;

float4 to_clip(float3 position)
{
    float4 p = float4(position, 1.0);
    return float4(
        dot(scene.clip_x, p), dot(scene.clip_y, p), dot(scene.clip_z, p), dot(scene.clip_w, p));
}

float3 ray_of(float2 pixel)
{
    return scene.ray.xyz + pixel.x * scene.ray_x.xyz + pixel.y * scene.ray_y.xyz;
}

// How much light of the sun is scattered towards the eye, 0 to 1.
float glow_of(float3 direction)
{
    float mu = saturate(dot(direction, scene.sun.xyz) * 0.5 + 0.5);
    float narrow = mu * mu;
    narrow *= narrow;
    narrow *= narrow;
    return narrow * narrow * 0.7 + narrow * 0.14;
}

float3 air_of(float3 direction)
{
    return HAZE + GLOW * glow_of(direction);
}

// The sky without sun and clouds.
float3 sky_of(float3 direction)
{
    float up = max(direction.y, 0.0);
    float thick = exp2(-7.0 * up);
    float3 blue = lerp(ZENITH, HAZE, thick);
    return blue + GLOW * (glow_of(direction) * (0.25 + 0.75 * thick));
}

// What the air adds (rgb) and leaves (a) of light from a position: exponential in height.
float4 fog_of(float3 position)
{
    float away = length(position);
    float3 direction = position / max(away, 1e-3);
    float rise = position.y / THINNING;
    float mean = abs(rise) < 1e-2 ? 1.0 - 0.5 * rise : (1.0 - exp(-rise)) / rise;
    float edge = away * scene.ray_x.w;
    edge *= edge;
    float left = exp(-(away * scene.ray.w * mean + 2.5 * edge * edge));
    return float4(lerp(air_of(direction), NEAR_AIR + GLOW * (0.8 * glow_of(direction)), left)
            * (1.0 - left), left);
}

float3 shown(float3 light)
{
    // Narkowicz, "ACES filmic tone mapping curve", 2015
    float3 x = light * 0.56;
    float3 mapped = saturate(x * (2.51 * x + 0.03) / (x * (2.43 * x + 0.59) + 0.14));
#if ENCODE
    // sRGB to within 2 / 255, fitted without a power
    float3 root = sqrt(mapped);
    float3 fourth = sqrt(root);
    return saturate(root * (2.2086 - 1.4493 * fourth) - 0.2508 * fourth + 0.4923 * mapped);
#else
    return mapped;
#endif
}
