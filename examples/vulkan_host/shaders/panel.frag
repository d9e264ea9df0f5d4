#version 450
// A letter of 3 by 5 squares, of which the pattern has a bit each; a bar has all.

layout(location = 0) in vec2 place;
layout(location = 1) flat in uvec2 shown;
layout(location = 0) out vec4 colour;

void main() {
    uvec2 square = min(uvec2(place * vec2(3.0, 5.0)), uvec2(2, 4));
    if ((shown.y >> (14 - 3 * square.y - square.x) & 1u) == 0u) discard;
    colour = vec4(uvec3(shown.x >> 16, shown.x >> 8, shown.x) & 255u, 255.0) / 255.0;
}
