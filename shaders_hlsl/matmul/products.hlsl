// MATMUL, CONV: sums of products of integers, which wrap around. A thread adds the terms from `begin`
// to `end` of one result.
#include "divide.hlsli"

#if defined(MATMUL)

int result_of(uint i)
{
    uint rest = i;
    uint row = cml_divide(rest, columns);
    uint column = rest - row * columns;
    rest = cml_divide(row, rows);
    row -= rest * rows;
    uint a = row * inner;
    uint b = column;
    for (uint d = rank; d > 0; d--) {
        uint next = cml_divide(rest, extent(d - 1));
        uint coordinate = rest - next * extent(d - 1);
        a += coordinate * a_stride(d - 1);
        b += coordinate * b_stride(d - 1);
        rest = next;
    }
    int total = 0;
    for (uint k = begin; k < end; k++) { total += T0[a + k] * T1[b + k * columns]; }
    return total;
}

#else

int result_of(uint i)
{
    uint rest = i;
    int at[3];
    for (uint d = 0; d < 3; d++) {
        uint next = cml_divide(rest, narrow(d));
        at[d] = int((rest - next * narrow(d)) * stride(d)) - before(d);
        rest = next;
    }
    uint item = cml_divide(rest, out_channels);
    uint channel = rest - item * out_channels;
    uint first = item * channels + cml_divide(channel, group_out) * group_in;
    uint weight = (channel * group_in + begin) * taps(0) * taps(1) * taps(2);
    int total = 0;
    for (uint c = begin; c < end; c++) {
        for (uint tz = 0; tz < taps(2); tz++) {
            int z = at[2] + int(tz * dilation(2));
            for (uint ty = 0; ty < taps(1); ty++) {
                int y = at[1] + int(ty * dilation(1));
                for (uint tx = 0; tx < taps(0); tx++) {
                    int x = at[0] + int(tx * dilation(0));
                    bool inside = x >= 0 && y >= 0 && z >= 0 && x < int(wide(0)) &&
                        y < int(wide(1)) && z < int(wide(2));
                    if (inside) {
                        uint from = ((first + c) * wide(2) + uint(z)) * wide(1) + uint(y);
                        total += T0[from * wide(0) + uint(x)] * T1[weight];
                    }
                    weight++;
                }
            }
        }
    }
    return total;
}

#endif

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    if (begin == 0) {
        T2[i] = result_of(i);
    } else {
        T2[i] += result_of(i);
    }
}
