#version 450
// The game's own drawing: spheres that circle above a floor of tiles.
// Each channel goes to a layer of its own, as the network takes them.

layout(location = 0) in vec2 place;
layout(location = 0) out float red;
layout(location = 1) out float green;
layout(location = 2) out float blue;
layout(push_constant) uniform Push { vec4 seconds; };

const vec3 light = normalize(vec3(0.5, 0.8, -0.4));

vec4 sphere(int i) { // its centre and radius
    float angle = seconds.x * 0.7 + float(i) * 2.094;
    return vec4(1.5 * cos(angle), 0.7 + 0.2 * sin(3.0 * angle), 1.5 * sin(angle), 0.6);
}

float hit(vec3 from, vec3 along, vec4 ball) { // the distance to it, or -1
    vec3 off = from - ball.xyz;
    float b = dot(off, along), inside = b * b - dot(off, off) + ball.w * ball.w;
    return inside < 0.0 ? -1.0 : -b - sqrt(inside);
}

vec3 shade(vec2 at) {
    vec3 from = vec3(0.0, 2.0, -4.5), along = normalize(vec3(at, 1.6) - vec3(0.0, 0.5, 0.0));
    float nearest = along.y < 0.0 ? -from.y / along.y : 1e3;
    vec3 colour = mix(vec3(0.75, 0.85, 0.95), vec3(0.2, 0.4, 0.7), clamp(along.y * 2.0, 0.0, 1.0));
    if (nearest < 1e3) {
        vec3 ground = from + nearest * along;
        ivec2 tile = ivec2(floor(ground.xz * 1.5));
        float lit = 1.0;
        for (int i = 0; i < 3; i++)
            if (hit(ground, light, sphere(i)) > 0.0) lit = 0.4;
        vec3 tiles = ((tile.x + tile.y) & 1) == 0 ? vec3(0.85, 0.8, 0.7) : vec3(0.3, 0.35, 0.3);
        colour = mix(colour, lit * tiles, exp(-0.06 * nearest));
    }
    for (int i = 0; i < 3; i++) {
        vec4 ball = sphere(i);
        float far = hit(from, along, ball);
        if (far <= 0.0 || far >= nearest) continue;
        nearest = far;
        vec3 normal = (from + far * along - ball.xyz) / ball.w;
        vec3 paint = 0.5 + 0.5 * cos(vec3(0.0, 2.1, 4.2) + 2.0 * float(i));
        float stripe = step(0.0, sin(14.0 * normal.y + 4.0 * normal.x)) * 0.4 + 0.6;
        colour = paint * stripe * (0.25 + 0.75 * max(dot(normal, light), 0.0));
        colour += pow(max(dot(reflect(along, normal), light), 0.0), 40.0);
    }
    return colour;
}

void main() {
    vec3 sum = vec3(0.0);
    vec2 texel = vec2(dFdx(place.x), dFdy(place.y));
    for (int i = 0; i < 9; i++) { // an average over the texel: edges are smooth
        vec2 at = place + texel * (vec2(i % 3, i / 3) - 1.0) / 3.0;
        sum += clamp(shade(vec2(at.x - 0.5, 0.5 - at.y) * 2.0), 0.0, 1.0);
    }
    red = sum.r / 9.0;
    green = sum.g / 9.0;
    blue = sum.b / 9.0;
}
