// What a kernel's speed is compared with: products on registers (FMA), or a copy.
CML_MAIN
{
    CML_EACH_GROUP(group)
    uint thread = group * GROUP + lane;
#if FMA
    float sum[32];
    float x = T0[lane].x;
    {[ForceUnroll] for (int i = 0; i < 32; i++) { sum[i] = x * i; }}
    for (uint k = 0; k < rounds; k++) {
        float w = T0[k].y;
        {[ForceUnroll] for (int u = 0; u < 128; u++) {
            sum[u % 32] = mad(sum[u % 32], w, x);
        }}
    }
    float total = 0.0;
    {[ForceUnroll] for (int j = 0; j < 32; j++) { total += sum[j]; }}
    T1[thread] = total;
#else
    T1[thread] = T0[thread];
#endif
}
