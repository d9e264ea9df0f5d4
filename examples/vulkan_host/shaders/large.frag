#version 450
// The network's result, read where the network left it.

layout(location = 0) in vec2 place;
layout(location = 0) out vec4 colour;
layout(set = 0, binding = 1) readonly buffer Result { float result[]; }; // [1, 3, height, width]
layout(push_constant) uniform Push { vec4 size; };

void main() {
    ivec2 extent = ivec2(size.xy), at = ivec2(place * size.xy);
    for (int channel = 0; channel < 3; channel++)
        colour[channel] = result[(channel * extent.y + at.y) * extent.x + at.x];
    colour.a = 1.0;
}
