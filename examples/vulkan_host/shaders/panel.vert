#version 450
// A rectangle of the panel, an instance of a strip of four vertices.

layout(location = 0) in vec4 rectangle; // x, y, width and height in pixels
layout(location = 1) in uvec2 look;     // colour 0xRRGGBB, pattern
layout(location = 0) out vec2 place;
layout(location = 1) flat out uvec2 shown;
layout(push_constant) uniform Push { vec4 window; }; // width and height in pixels

void main() {
    place = vec2(gl_VertexIndex & 1, gl_VertexIndex >> 1);
    shown = look;
    vec2 pixel = rectangle.xy + place * rectangle.zw;
    gl_Position = vec4(pixel / window.xy * 2.0 - 1.0, 0.0, 1.0);
}
