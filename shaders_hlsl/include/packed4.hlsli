// Four numbers stored in 16 bits each. Arithmetic is on float4, which they become, and out of which
// a Half4 is made, wherever one is assigned to the other.
//
// Two words rather than HLSL's half4: that needs a feature which a host's device seldom asks for,
// and leaves the rounding to the driver. Here a number is rounded to the nearest, ties to the even
// one, to the same bits on every device; beyond 65504 it becomes infinite.
#ifndef CML_PACKED4
#define CML_PACKED4

// exact
float2 cml_from_half(uint bits) {
    __target_switch {
    case spirv: return spirv_asm { result:$$float2 = OpExtInst glsl450 UnpackHalf2x16 $bits };
    default: return float2(f16tof32(bits & 0xffffu), f16tof32(bits >> 16));
    }
}

uint2 cml_to_half(float4 v) {
    uint4 bits = asuint(v);
    uint4 size = bits & 0x7fffffffu;
    // 13 bits of the fraction go; the exponent begins 112 lower
    uint4 normal = min(((size + 0xfffu + ((size >> 13) & 1u)) >> 13) - 0x1c000u, 0x7c00u);
    // below 2^-14 a step is 2^-24, as it is of floats between 0.5 and 1
    uint4 small = asuint(asfloat(size) + 0.5) - 0x3f000000u;
    uint4 number = select(size < 0x38800000u, small, normal);
    uint4 rounded = select(size > 0x7f800000u, uint4(0x7e00u, 0x7e00u, 0x7e00u, 0x7e00u), number);
    uint4 signed = rounded | ((bits >> 16) & 0x8000u);
    return signed.xz | (signed.yw << 16);
}

struct Half4 {
    uint2 bits;

    __implicit_conversion(300) __init(float4 v) { bits = cml_to_half(v); }
};

extension float4 {
    __implicit_conversion(300) __init(Half4 h) {
        this = float4(cml_from_half(h.bits.x), cml_from_half(h.bits.y));
    }
}

// Whole numbers of steps, from -32767 to 32767; how large a step is the reader knows.
struct Fixed4 {
    uint2 bits;
};

extension float4 {
    __implicit_conversion(300) __init(Fixed4 f) {
        uint4 high = uint4(f.bits.x << 16, f.bits.x, f.bits.y << 16, f.bits.y);
        this = float4(int4(high) >> 16);
    }
}

#endif
