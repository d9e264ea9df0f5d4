// Rows of mean 0 and variance 1, then the epilogues: (x - mean) / sqrt(variance + epsilon).
//
// Rows follow each other in memory. TREE 1: a workgroup reduces each row; 0: a thread does. WIDTH 4: rows
// are read as vectors of four, and `total` and `outputs`, the elements of a row and the rows, count
// them. The variance is about the mean, because E[x^2] - E[x]^2 cancels.
#include "epilogue.hlsli"

// A thread sums this many elements before it adds them to its earlier sums, as in reduced.hlsli.
#define BLOCK 32

#if WIDTH == 4
float sum_of(float4 v) { return (v.x + v.y) + (v.z + v.w); }
#else
float sum_of(float v) { return v; }
#endif

// Sums the elements of a row at first, first + step, …: themselves, or their squared distances from
// the mean.
float sum(uint base, uint first, uint step, bool squared, float mean) {
    T0_TYPE sum = 0.0;
    uint r = first;
    while (r < total) {
        T0_TYPE block = 0.0;
        uint block_end = min(total, r + BLOCK * step);
        for (; r < block_end; r += step) {
            T0_TYPE v = T0[base + r] - mean;
            if (squared) { v *= v; }
            block += v;
        }
        sum += block;
    }
    return sum_of(sum);
}

void write_all(uint base, uint first, uint step, float mean, float deviation) {
    for (uint r = first; r < total; r += step) {
        T0_TYPE v = (T0[base + r] - mean) / deviation;
#if WIDTH == 4
        CML_UNROLL(uint, l, 4) { v[l] = cml_epilogue(v[l], 4 * r + l, 4 * (base + r) + l); }
#else
        v = cml_epilogue(v, r, base + r);
#endif
        OUT[base + r] = v;
    }
}

#if TREE
groupshared float values[GROUP];

float all_sum(uint thread, float value) {
    values[thread] = value;
    GroupMemoryBarrierWithGroupSync();
    for (uint half = GROUP / 2; half > 0; half /= 2) {
        if (thread < half) { values[thread] += values[thread + half]; }
        GroupMemoryBarrierWithGroupSync();
    }
    float result = values[0];
    GroupMemoryBarrierWithGroupSync();
    return result;
}

CML_MAIN
{
    CML_EACH_GROUP(row)
    uint base = row * total;
    float mean = all_sum(lane, sum(base, lane, GROUP, false, 0.0)) / count;
    float variance = all_sum(lane, sum(base, lane, GROUP, true, mean)) / count;
    write_all(base, lane, GROUP, mean, sqrt(variance + epsilon));
}
#else
CML_MAIN
{
    CML_EACH_THREAD(row, outputs)
    uint base = row * total;
    float mean = sum(base, 0, 1, false, 0.0) / count;
    float variance = sum(base, 0, 1, true, mean) / count;
    write_all(base, 0, 1, mean, sqrt(variance + epsilon));
}
#endif
