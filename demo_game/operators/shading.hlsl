// A thread for each fine sample: normal, open sky and sunlight, from the heights around it.

float height_at(int2 at) {
    return heights[at.y * int(heights_stride(2)) + at.x];
}

// Heights of what light meets: the sea's surface, not its floor.
float surface_at(int2 at) {
    return max(height_at(at), 0.0);
}

float between(float2 at) {
    int2 low = int2(floor(at));
    float2 f = at - float2(low);
    float north = surface_at(low) + f.x * (surface_at(low + int2(1, 0)) - surface_at(low));
    float south = surface_at(low + int2(0, 1))
                + f.x * (surface_at(low + int2(1, 1)) - surface_at(low + int2(0, 1)));
    return north + f.y * (south - north);
}

// Of the sky's light what the horizon leaves, over eight directions.
float open_sky(int2 at, float size) {
    float here = surface_at(at), sum = 0.0;
    for (int k = 0; k < 8; ++k) {
        int2 way = int2(ways(2 * k), ways(2 * k + 1));
        float length = sqrt(float(way.x * way.x + way.y * way.y));
        float steepest = 0.0;
        for (uint i = 0; i < distances_count; ++i) {
            float rise = surface_at(at + way * distances(i)) - here;
            steepest = max(steepest, rise / (length * float(distances(i)) * size));
        }
        sum += 1.0 - steepest / sqrt(1.0 + steepest * steepest);
    }
    return sum / 8.0;
}

// 1 where the sun is well above the horizon in its direction, 0 where it is well below.
float sunlight(int2 at, float size) {
    float flat = sqrt(sun(0) * sun(0) + sun(2) * sun(2));
    float2 way = float2(sun(0), sun(2)) / flat;
    float here = surface_at(at), steepest = -1.0;
    for (int k = 1; k <= reach; ++k) {
        float rise = between(float2(at) + way * float(k)) - here;
        steepest = max(steepest, rise / (float(k) * size));
    }
    return clamp((sun(1) / flat - steepest) / softness + 0.5, 0.0, 1.0);
}

void kernel(uint thread) {
    int2 at = apron + int2(shading_coord(thread, 3), shading_coord(thread, 2));
    uint channel = shading_stride(1);
    float size = cell[0];
    float2 slope = float2(height_at(at + int2(1, 0)) - height_at(at - int2(1, 0)),
                          height_at(at + int2(0, 1)) - height_at(at - int2(0, 1))) / (2.0 * size);
    float upright = 1.0 / sqrt(1.0 + slope.x * slope.x + slope.y * slope.y);
    shading[thread] = 0.5 - 0.5 * slope.x * upright;
    shading[thread + channel] = 0.5 - 0.5 * slope.y * upright;
    shading[thread + 2 * channel] = open_sky(at, size);
    shading[thread + 3 * channel] = sunlight(at, size);
}
