// One thread for each vector: c = a x b along the axis.
void kernel(uint thread) {
    uint step = c_stride(axis);
    uint i = thread / step * 3 * step + thread % step;
    float3 u = float3(a[i], a[i + step], a[i + 2 * step]);
    float3 v = float3(b[i], b[i + step], b[i + 2 * step]);
    float3 w = cross(u, v);
    c[i] = w.x;
    c[i + step] = w.y;
    c[i + 2 * step] = w.z;
}
