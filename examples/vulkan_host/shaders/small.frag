#version 450
// The picture that the network takes, with its texels visible.

layout(location = 0) in vec2 place;
layout(location = 0) out vec4 colour;
layout(set = 0, binding = 0) uniform sampler2DArray scene; // a layer for each channel

void main() {
    ivec2 at = ivec2(place * vec2(textureSize(scene, 0).xy));
    for (int channel = 0; channel < 3; channel++)
        colour[channel] = texelFetch(scene, ivec3(at, channel), 0).r;
    colour.a = 1.0;
}
