// Four numbers stored in 16 or 8 bits each (cml_engine/ir/layout.py). They convert from and to float4
// by assignment; arithmetic is on float4.
//
// Half4 is two 32-bit words rather than HLSL's half4, which needs a device feature that hosts seldom
// request and leaves the rounding to the driver. Here numbers are rounded to the nearest, ties to
// even, bit-identical on every device; beyond 65504 they become infinite.
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
    // drops 13 bits of the fraction; the exponent's bias is smaller by 112
    uint4 normal = min(((size + 0xfffu + ((size >> 13) & 1u)) >> 13) - 0x1c000u, 0x7c00u);
    // below 2^-14 numbers are 2^-24 apart, as floats between 0.5 and 1 are
    uint4 small = asuint(asfloat(size) + 0.5) - 0x3f000000u;
    uint4 number = select(size < 0x38800000u, small, normal);
    uint4 rounded = select(size > 0x7f800000u, uint4(0x7e00u), number);
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

// Whole numbers, exactly: an integer network's values lie within the range of their storage type.
uint cml_to_bytes(float4 v) {
    uint4 q = uint4(int4(v)) & 0xffu;
    return q.x | (q.y << 8) | (q.z << 16) | (q.w << 24);
}

uint2 cml_to_shorts(float4 v) {
    uint4 q = uint4(int4(v));
    return (q.xz & 0xffffu) | (q.yw << 16);
}

int4 cml_spread(uint bits) { return int4(uint4(bits << 24, bits << 16, bits << 8, bits)); }
int4 cml_spread(uint2 bits) {
    return int4(uint4(bits.x << 16, bits.x, bits.y << 16, bits.y));
}

struct Char4 {
    uint bits;

    __implicit_conversion(300) __init(float4 v) { bits = cml_to_bytes(v); }
};

struct Byte4 {
    uint bits;

    __implicit_conversion(300) __init(float4 v) { bits = cml_to_bytes(v); }
};

struct Short4 {
    uint2 bits;

    __implicit_conversion(300) __init(float4 v) { bits = cml_to_shorts(v); }
};

struct UShort4 {
    uint2 bits;

    __implicit_conversion(300) __init(float4 v) { bits = cml_to_shorts(v); }
};

extension int4 {
    __implicit_conversion(300) __init(Char4 q) { this = cml_spread(q.bits) >> 24; }
    __implicit_conversion(300) __init(Byte4 q) {
        this = int4(uint4(q.bits, q.bits >> 8, q.bits >> 16, q.bits >> 24) & 0xffu);
    }
    __implicit_conversion(300) __init(Short4 q) { this = cml_spread(q.bits) >> 16; }
    __implicit_conversion(300) __init(UShort4 q) {
        this = int4(uint4(cml_spread(q.bits)) >> 16);
    }
};

extension float4 {
    __implicit_conversion(300) __init(Char4 q) { this = float4(int4(q)); }
    __implicit_conversion(300) __init(Byte4 q) { this = float4(int4(q)); }
    __implicit_conversion(300) __init(Short4 q) { this = float4(int4(q)); }
    __implicit_conversion(300) __init(UShort4 q) { this = float4(int4(q)); }
};

// Eight whole multiples of a step, -32767 to 32767; the reader knows the step size.
struct Fixed8 {
    uint4 bits;
};

#endif
