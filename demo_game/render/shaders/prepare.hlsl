// Once for each tile that arrives: plants onto the ground as it is drawn, with the light that falls
// there, packed for the vertex shader. Define: STEP cells per square of the ground.

// x and z in cells, metres, and a whole number: kind 2 bits, size 6, turn 8, tint 8
[[vk::binding(0, 0)]] RWStructuredBuffer<uint4> plants;
struct Filled { uint slot; };
[[vk::binding(1, 0)]] ConstantBuffer<Filled> filled;
[[vk::binding(2, 0)]] Texture2DArray<float> heights;
[[vk::binding(3, 0)]] Texture2DArray<float4> shading_texels;

static const uint PLANTS = 1024;

float height_at(int2 cell)
{
    return heights.Load(int4(cell + 4, int(filled.slot), 0));
}

// On the triangles of the mesh, which are not as fine as the heights.
float ground_at(float2 cell)
{
    float2 square = cell / float(STEP);
    float2 corner = min(floor(square), float(56 / STEP - 1));
    float2 f = square - corner;
    int2 first = int2(corner) * STEP;
    bool lower = f.y > f.x;
    float a = height_at(first);
    float b = height_at(first + (lower ? int2(0, STEP) : int2(STEP, 0)));
    float c = height_at(first + STEP);
    float major = max(f.x, f.y), minor = min(f.x, f.y);
    return a + (b - a) * major + (c - b) * minor;
}

uint byte_of(float value)
{
    return uint(saturate(value) * 255.0 + 0.5);
}

[numthreads(64, 1, 1)]
void prepare(uint3 thread : SV_DispatchThreadID)
{
    uint at = filled.slot * PLANTS + thread.x;
    uint4 plant = plants[at];
    float2 cell = float2(asfloat(plant.x), asfloat(plant.y));
    uint bits = uint(asfloat(plant.w));
    float turn = 6.2831853 * float((bits >> 8) & 255) / 256.0;
    float4 light = shading_texels.Load(int4(int2(round(cell)) + 4, int(filled.slot), 0));
    uint2 place = uint2(cell * 1024.0);
    uint4 packed;
    packed.x = place.x | (place.y << 16);
    packed.y = asuint(ground_at(cell));
    packed.z = (bits & 255) | (byte_of(0.5 + 0.5 * cos(turn)) << 8)
        | (byte_of(0.5 + 0.5 * sin(turn)) << 16) | (((bits >> 16) & 255) << 24);
    packed.w = byte_of(light.x) | (byte_of(light.y) << 8) | (byte_of(light.z) << 16)
        | (byte_of(light.w) << 24);
    plants[at] = packed;
}
