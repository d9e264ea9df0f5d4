// Converts between linear light and sRGB values (IEC 61966-2-1).
#ifndef CML_SRGB
#define CML_SRGB

float3 srgb_encoded(float3 light) {
    float3 bent = 1.055 * pow(max(light, 0.0), 1.0 / 2.4) - 0.055;
    return select(light <= 0.0031308, 12.92 * light, bent);
}

float3 srgb_decoded(float3 number) {
    float3 bent = pow((max(number, 0.0) + 0.055) / 1.055, 2.4);
    return select(number <= 0.04045, number / 12.92, bent);
}

#endif
