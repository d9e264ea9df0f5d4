// Softmax of rows that one workgroup (TREE 1) or one thread (TREE 0) can reduce.
//
// The parameters are those of reduce.hlsl; element r of row o has the offset in(o) + in(r) in both the
// source and the result. exp is computed twice, which is cheaper than storing it. WIDTH 4: rows and
// their elements are counted in vectors of four.
#include "reduced.hlsli"

#if LINE
uint kept_offset(uint output) { return output * kept_in(0); }
#else
uint kept_offset(uint output) {
    uint at = 0;
    uint rest = output;
    for (uint d = 0; d + 1 < kept_dims; ++d) {
        uint next = cml_divide(rest, kept(d));
        at += (rest - next * kept(d)) * kept_in(d);
        rest = next;
    }
    return at + rest * kept_in(kept_dims - 1);
}
#endif

#if WIDTH == 4
float greatest_of(float4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }
float sum_of(float4 v) { return (v.x + v.y) + (v.z + v.w); }
#else
float greatest_of(float v) { return v; }
float sum_of(float v) { return v; }
#endif

// Over the elements first, first + step, …: the maximum; the sum; and the results.

float greatest(uint base, uint first, uint step) {
    // any element serves as the initial maximum
    T0_TYPE best = T0[base];
    for (uint r = first; r < total; r += step) { best = max(best, T0[base + reduced_offset(r)]); }
    return greatest_of(best);
}

float sum_exp(uint base, uint first, uint step, float m) {
    T0_TYPE sum = 0.0;
    uint r = first;
    while (r < total) {
        T0_TYPE block = 0.0;
        uint block_end = min(total, r + REDUCE_BLOCK * step);
        for (; r < block_end; r += step) { block += exp(T0[base + reduced_offset(r)] - m); }
        sum += block;
    }
    return sum_of(sum);
}

void write_all(uint base, uint first, uint step, float m, float sum) {
    for (uint r = first; r < total; r += step) {
        uint at = base + reduced_offset(r);
        T1[at] = exp(T0[at] - m) / sum;
    }
}

#if TREE
groupshared float values[GROUP];

float all_greatest(uint thread, float value) {
    values[thread] = value;
    GroupMemoryBarrierWithGroupSync();
    for (uint half = GROUP / 2; half > 0; half /= 2) {
        if (thread < half) { values[thread] = max(values[thread], values[thread + half]); }
        GroupMemoryBarrierWithGroupSync();
    }
    float result = values[0];
    GroupMemoryBarrierWithGroupSync();
    return result;
}

float all_sum(uint thread, float value) {
    values[thread] = value;
    GroupMemoryBarrierWithGroupSync();
    for (uint half = GROUP / 2; half > 0; half /= 2) {
        if (thread < half) { values[thread] += values[thread + half]; }
        GroupMemoryBarrierWithGroupSync();
    }
    return values[0];
}

CML_MAIN
{
    CML_EACH_GROUP(group)
    uint base = kept_offset(group);
    float m = all_greatest(lane, greatest(base, lane, GROUP));
    float sum = all_sum(lane, sum_exp(base, lane, GROUP, m));
    write_all(base, lane, GROUP, m, sum);
}
#else
CML_MAIN
{
    CML_EACH_THREAD(thread, outputs)
    uint base = kept_offset(thread);
    float m = greatest(base, 0, 1);
    write_all(base, 0, 1, m, sum_exp(base, 0, 1, m));
}
#endif
