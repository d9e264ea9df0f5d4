// TOP_K: a thread finds the place of one value among its line, and writes it there if it is in
// front. RUNNING: a thread adds up one line, or multiplies. REVERSED, GATHER_ND: a thread moves one
// value.
//
// A line's values are `inner` apart; lines are [outer, extent, inner].

// no loop of one piece may take more turns than a driver lets it
#define TURNS 32768

#if defined(TOP_K)

// Integers in the order of the values: a NaN above infinity, both zeros the same.
uint sort_key(uint bits)
{
    uint magnitude = bits & 0x7fffffffu;
    if (magnitude == 0) { bits = 0; }
    uint key = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    if (magnitude > 0x7f800000u) { key = 0xffffffffu; }
    return LARGEST ? key : ~key;
}

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint lane : SV_GroupIndex)
{
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    uint i = group * GROUP + lane;
    if (i >= n) { return; }
    uint at = i / inner % extent;
    uint outer = i / (inner * extent);
    uint start = outer * extent * inner + i % inner;
    uint own = sort_key(T0[i]);
    uint place = 0;
    for (uint first = 0; first < extent; first += TURNS) {
        for (uint j = first; j < min(first + TURNS, extent); j++) {
            uint other = sort_key(T0[start + j * inner]);
            // of equals the first comes first: every value has a place of its own
            if (other > own || (other == own && j < at)) { place++; }
        }
    }
    if (place < k) {
        uint target = (outer * k + place) * inner + i % inner;
        T1[target] = T0[i];
        T2[target] = int(at);
    }
}

#elif defined(RUNNING)

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint lane : SV_GroupIndex)
{
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    uint i = group * GROUP + lane;
    if (i >= n) { return; }
    uint start = i / inner * extent * inner + i % inner;
    float total = product != 0 ? 1.0 : 0.0;
    float lost = 0.0;  // what rounding took from a sum
    for (uint first = 0; first < extent; first += TURNS) {
        for (uint j = first; j < min(first + TURNS, extent); j++) {
            uint at = start + (backwards != 0 ? extent - 1 - j : j) * inner;
            float value = T0[at];
            if (exclusive != 0) { T1[at] = total; }
            if (product != 0) {
                total *= value;
            } else {
                float term = value - lost;
                float next = total + term;
                lost = (next - total) - term;
                // infinities have no lost digits
                if (!(abs(lost) <= 3.0e38)) { lost = 0.0; }
                total = next;
            }
            if (exclusive == 0) { T1[at] = total; }
        }
    }
}

#elif defined(REVERSED)

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint lane : SV_GroupIndex)
{
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    uint i = group * GROUP + lane;
    if (i >= n) { return; }
    uint at = i / inner % extent;
    uint length = uint(clamp(T1[i / batch_inner % batch], 0, int(extent)));
    uint from = at < length ? length - 1 - at : at;
    T2[i] = T0[i - at * inner + from * inner];
}

#else

[numthreads(GROUP, 1, 1)]
void main(uint3 gid : SV_GroupID, uint lane : SV_GroupIndex)
{
    uint group = CML_GROUP(gid);
    if (group >= cml_end) { return; }
    uint i = group * GROUP + lane;
    if (i >= n) { return; }
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
