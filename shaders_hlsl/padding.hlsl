// pad: T1 (larger or smaller) from T0, every index outside answered by the border rule.
//
// Dimension 0 is the innermost; in(d) and out(d) are extents, before(d) is where the input starts
// (negative: cropped), src_stride(d) counts items. A thread takes ITEMS items of one row of the
// output, `blocks` apart. An item is a word or, where rows are aligned, a uint4.

#define BORDER_CONSTANT 0
#define BORDER_REPLICATE 1
#define BORDER_REFLECT 2
#define BORDER_REFLECT_EVEN 3

// The input's index for an output index `at - before`; out of [0, extent) only for constant.
int mapped(int at, int extent)
{
#if BORDER == BORDER_REPLICATE
    return clamp(at, 0, extent - 1);
#elif BORDER == BORDER_REFLECT
    // a wave of period 2 (extent - 1): 0 1 2 1 0 1 2 …
    int period = max(2 * (extent - 1), 1);
    int phase = at % period;
    phase = phase < 0 ? phase + period : phase;
    return min(phase, period - phase) % extent;
#elif BORDER == BORDER_REFLECT_EVEN
    // the edge twice: 0 1 2 2 1 0 0 1 …
    int period = 2 * extent;
    int phase = at % period;
    phase = phase < 0 ? phase + period : phase;
    return min(phase, period - 1 - phase);
#else
    return at;
#endif
}

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint lane : SV_GroupIndex)
{
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    uint rest = group * GROUP + lane;
    if (rest >= n) { return; }
    uint at = rest % blocks;
    rest /= blocks;
    uint dst = rest * out_extent(0) + at;
    uint src = 0;
    bool inside = true;
    [ForceUnroll]
    for (uint d = 1; d < RANK; d++) {
        uint index = d + 1 == RANK ? rest : rest % out_extent(d);
        rest /= out_extent(d);
        int from = mapped(int(index) - before(d), int(in_extent(d)));
        inside = inside && uint(from) < in_extent(d);
        src += uint(from) * src_stride(d);
    }
    [ForceUnroll]
    for (uint k = 0; k < ITEMS; k++) {
        if (at < out_extent(0)) {
            int from = mapped(int(at) - before(0), int(in_extent(0)));
            if (inside && uint(from) < in_extent(0)) {
                T1[dst] = T0[src + uint(from)];
            } else {
                T1[dst] = T1_TYPE(value);
            }
        }
        at += blocks;
        dst += blocks;
    }
}
