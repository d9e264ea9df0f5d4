// TOP_K: a thread computes the rank of one value within its chunk of a line, and writes the value there
// if it is among the first k. MERGE: merges two neighbouring sorted runs, by bisection. RUNNING: a
// thread computes running sums or products of a line or a chunk. REVERSED, GATHER_ND: a thread moves
// one value.
//
// The values of a line are `inner` apart; the tensor is [outer, extent, inner].
#include "seal.hlsli"

#if defined(TOP_K) || defined(MERGE)

// Maps floats to integers of the same order: NaN above infinity, -0 equal to +0.
uint sort_key(uint bits)
{
    uint magnitude = bits & 0x7fffffffu;
    if (magnitude == 0) { bits = 0; }
    uint key = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    if (magnitude > 0x7f800000u) { key = 0xffffffffu; }
    return LARGEST ? key : ~key;
}

#endif

#if defined(TOP_K)

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint at = i / inner % extent;
    uint outer = i / (inner * extent);
    uint start = outer * extent * inner + i % inner;
    uint own = sort_key(T0[i]);
    uint place = 0;
    uint nth = at / chunk;
    uint end = min((nth + 1) * chunk, extent);
    for (uint j = nth * chunk; j < end; j++) {
        uint other = sort_key(T0[start + j * inner]);
        // equal values keep their order, so every value has its own rank
        if (other > own || (other == own && j < at)) { place++; }
    }
    if (place < kept) {
        uint target = (outer * total + nth * kept + place) * inner + i % inner;
        T1[target] = T0[i];
        T2[target] = int(at);
    }
}

#elif defined(MERGE)

// T0 values and T1 their positions, in runs of `chunk`; T2 and T3 the same in runs of `kept`.
CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint at = i / inner % extent;
    uint outer = i / (inner * extent);
    uint start = outer * extent * inner + i % inner;
    uint own = sort_key(T0[i]);
    uint nth = at / chunk;
    uint other = nth ^ 1u;
    uint first = min(other * chunk, extent);
    uint low = first;
    uint high = min(first + chunk, extent);
    while (low < high) {
        uint middle = (low + high) / 2;
        uint key = sort_key(T0[start + middle * inner]);
        // equal values of the first run come first
        bool before = key > own || (key == own && other < nth);
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    uint place = at - nth * chunk + low - first;
    if (place < kept) {
        uint target = (outer * total + nth / 2 * kept + place) * inner + i % inner;
        T2[target] = T0[i];
        T3[target] = T1[i];
    }
}

#elif defined(RUNNING)

#define WHOLE 0
#define SUMS 1
#define BEFORE 2
#define REST 3

// Adds or multiplies by one more value.
void join(inout CmlSum total, float term)
{
    if (product != 0) { total.value *= term; } else { cml_add(total, term); }
}

// WHOLE: a thread per line. Long lines have a thread per chunk: STEP SUMS computes each chunk's total,
// BEFORE the total of all chunks before it, REST the running values from there.
CML_MAIN
{
    CML_EACH_THREAD(i, n)
    CmlSum sum = { product != 0 ? 1.0 : 0.0, 0.0 };
#if STEP == BEFORE
    for (uint c = 0; c < chunks; c++) {
        uint at = (i / inner * chunks + c) * inner + i % inner;
        float2 whole = T0[at];
        T0[at] = float2(sum.value, sum.lost);
        sum.lost += whole.y;
        join(sum, whole.x);
    }
#else
    uint start = i / (inner * chunks) * extent * inner + i % inner;
    uint begin = i / inner % chunks * chunk;
    uint end = min(begin + chunk, extent);
#if STEP == REST
    sum.value = T1[i].x;
    sum.lost = T1[i].y;
#endif
    for (uint j = begin; j < end; j++) {
        uint at = start + (backwards != 0 ? extent - 1 - j : j) * inner;
        float value = T0[at];
#if STEP == SUMS
        join(sum, value);
#else
        if (exclusive != 0) { OUT[at] = sum.value; }
        join(sum, value);
        if (exclusive == 0) { OUT[at] = sum.value; }
#endif
    }
#if STEP == SUMS
    T1[i] = float2(sum.value, sum.lost);
#endif
#endif
}

#elif defined(REVERSED)

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint at = i / inner % extent;
    uint length = uint(clamp(T1[i / batch_inner % batch], 0, int(extent)));
    uint from = at < length ? length - 1 - at : at;
    T2[i] = T0[i - at * inner + from * inner];
}

#else

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint place = i / row;
    uint from = 0;
    for (uint axis = 0; axis < places; axis++) {
        int index = T1[place * places + axis];
        if (index < 0) { index += int(limit(axis)); }
        from = from * limit(axis) + uint(clamp(index, 0, int(limit(axis)) - 1));
    }
    T2[i] = T0[from * row + i % row];
}

#endif
