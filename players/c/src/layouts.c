/* Converts tensors between the plain layout and that of the device (docs/cooked.md). */
#include "internal.h"

uint16_t cml__to_half(float value) { /* rounds to the nearest, to even ones in the middle */
    uint32_t bits, sign, rest;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (bits >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* 65520 and more */
    if (bits >= 0x38800000) {
        rest = bits - 0x38000000;
        return (uint16_t)(sign | (rest + 0xFFF + (rest >> 13 & 1)) >> 13);
    }
    return (uint16_t)(sign | (uint32_t)rint(fabs((double)value) * 0x1p24)); /* subnormal */
}

static float from_half(uint16_t half) {
    uint32_t sign = (half & 0x8000u) << 16, bits = half & 0x7FFF;
    float value;
    if (bits < 0x400) {
        value = (float)bits * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (bits >= 0x7C00 ? bits << 13 | 0x7F800000 : (bits << 13) + 0x38000000);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t area_of(const cml_shape *shape) {
    uint64_t area = 1;
    for (uint32_t i = 2; i < shape->rank; i++) area *= shape->extents[i];
    return area;
}

/* Returns the index of the first element of a channel, counted over the whole batch, in blocks of
 * four channels; the following elements are four apart. */
static uint64_t place_of(const cml_shape *shape, uint64_t area, uint64_t channel) {
    uint64_t channels = shape->extents[1], blocks = (channels + 3) / 4, c = channel % channels;
    return (channel / channels * blocks + c / 4) * area * 4 + c % 4;
}

/* Writes `shape.bytes` bytes as the device has them. */
void cml__to_layout(const cml_shape *shape, const void *plain, uint8_t *stored) {
    const float *from = plain;
    uint64_t area = area_of(shape);
    if (shape->bytes == 0) return;
    if (shape->layout == CML_LAYOUT_PLAIN) {
        memcpy(stored, plain, (size_t)shape->bytes);
        return;
    }
    memset(stored, 0, (size_t)shape->bytes);
    for (uint64_t channel = 0; channel < shape->elements / area; channel++)
        for (uint64_t i = 0, at = place_of(shape, area, channel); i < area; i++, at += 4) {
            uint16_t half = cml__to_half(*from);
            if (shape->layout == CML_LAYOUT_C4)
                memcpy(stored + 4 * at, from, 4);
            else
                memcpy(stored + 2 * at, &half, 2);
            from++;
        }
}

/* Writes 4 bytes for each element. */
void cml__from_layout(const cml_shape *shape, const uint8_t *stored, void *plain) {
    float *to = plain;
    uint64_t area = area_of(shape);
    if (shape->bytes == 0) return;
    if (shape->layout == CML_LAYOUT_PLAIN) {
        memcpy(plain, stored, (size_t)shape->bytes);
        return;
    }
    for (uint64_t channel = 0; channel < shape->elements / area; channel++)
        for (uint64_t i = 0, at = place_of(shape, area, channel); i < area; i++, at += 4) {
            uint16_t half;
            if (shape->layout == CML_LAYOUT_C4) {
                memcpy(to++, stored + 4 * at, 4);
                continue;
            }
            memcpy(&half, stored + 2 * at, 2);
            *to++ = from_half(half);
        }
}
