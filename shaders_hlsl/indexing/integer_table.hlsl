// T2[i] = table T1 at the quantized value T0[i]. The table has 256 entries or, with POINTS, points 64
// values apart with linear interpolation between them. `first` is the value of the first entry.
CML_MAIN
{
    CML_EACH_GROUP(group)
    CML_UNROLL(uint, k, ITEMS) {
        uint i = (group * ITEMS + k) * GROUP + lane;
        if (i < n) {
#ifdef POINTS
            int place = clamp(int(T0[i]) - first, 0, 65535);
            int part = place & 63;
            int low = int(T1[place >> 6]);
            int high = int(T1[(place >> 6) + 1]);
            T2[i] = float((low * (64 - part) + high * part + 32) >> 6);
#else
            T2[i] = T1[clamp(int(T0[i]) - first, 0, 255)];
#endif
        }
    }
}
