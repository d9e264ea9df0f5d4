// NONZERO, in four stages: 1 counts T0's nonzero values by block; 2 computes their running total; 3
// fills the unused rows; 4 writes the positions. SELECT: a workgroup selects boxes of one class, greatest score
// first, from rank `begin` to `end`. ROWS: each row of the result looks up its box.

#if defined(NONZERO)

CML_MAIN
{
    CML_EACH_THREAD(i, n)
#if NONZERO == 1
    uint found = 0;
    for (uint at = i * block; at < min(i * block + block, size); at++) {
        if ((T0[at] & mask) != 0) { found++; }
    }
    T1[i] = found;
#elif NONZERO == 2
    uint total = 0;
    for (uint b = 0; b < blocks; b++) {
        uint own = T1[b];
        T1[b] = total;
        total += own;
    }
    T1[blocks] = total;
    T0[0] = int(total);
#elif NONZERO == 3
    if (i >= T0[blocks]) {
        for (uint d = 0; d < rank; d++) { T1[d * room + i] = fill; }
    }
#else
    uint to = T1[i];
    for (uint at = i * block; at < min(i * block + block, size); at++) {
        if ((T0[at] & mask) != 0) {
            if (to < room) {
                uint rest = at;
                for (uint d = rank; d > 0; d--) {
                    T2[(d - 1) * room + to] = int(rest % extent(d - 1));
                    rest /= extent(d - 1);
                }
            }
            to++;
        }
    }
#endif
}

#elif defined(SELECT)

#define NONE 0xffffffffu

groupshared uint best_box[GROUP];
groupshared float best_score[GROUP];

// Returns the least and the greatest coordinates of a box.
float4 edges(uint box)
{
    uint at = box * 4;
    float2 a = float2(T0[at], T0[at + 1]);
    float2 b = float2(T0[at + 2], T0[at + 3]);
    if (centers != 0) { return float4(a - b * 0.5, a + b * 0.5); }
    return float4(min(a, b), max(a, b));
}

bool overlaps(float4 a, float4 b)
{
    float2 both = min(a.zw, b.zw) - max(a.xy, b.xy);
    float shared_area = both.x * both.y;
    float area_a = (a.z - a.x) * (a.w - a.y);
    float area_b = (b.z - b.x) * (b.w - b.y);
    float joined = area_a + area_b - shared_area;
    bool meet = both.x > 0.0 && both.y > 0.0 && shared_area > 0.0 && area_a > 0.0 &&
        area_b > 0.0 && joined > 0.0;
    return meet && shared_area > overlap * joined;
}

// Of equal scores the first box wins.
bool comes_first(float score, uint box, float other, uint other_box)
{
    if (box == NONE) { return false; }
    return other_box == NONE || score > other || (score == other && box < other_box);
}

CML_MAIN
{
    CML_EACH_GROUP(line)
    uint first = line * boxes;
    uint box_first = line / classes * boxes;
    uint picked = 0;
    if (begin == 0) {
        for (uint j = lane; j < boxes; j += GROUP) {
            T2[first + j] = T1[first + j] > least ? 1.0 : 0.0;
        }
    } else {
        picked = T4[line];
    }
    GroupMemoryBarrierWithGroupSync();
    for (uint round = begin; round < end; round++) {
        uint own = NONE;
        float own_score = 0.0;
        for (uint j = lane; j < boxes; j += GROUP) {
            float score = T1[first + j];
            if (T2[first + j] != 0.0 && comes_first(score, j, own_score, own)) {
                own = j;
                own_score = score;
            }
        }
        best_box[lane] = own;
        best_score[lane] = own_score;
        GroupMemoryBarrierWithGroupSync();
        for (uint half = GROUP / 2; half > 0; half /= 2) {
            if (lane < half) {
                uint other = best_box[lane + half];
                float other_score = best_score[lane + half];
                if (comes_first(other_score, other, best_score[lane], best_box[lane])) {
                    best_box[lane] = other;
                    best_score[lane] = other_score;
                }
            }
            GroupMemoryBarrierWithGroupSync();
        }
        uint best = best_box[0];
        GroupMemoryBarrierWithGroupSync();
        if (best != NONE) {
            float4 chosen_edges = edges(box_first + best);
            for (uint j = lane; j < boxes; j += GROUP) {
                bool alive = T2[first + j] != 0.0 && j != best;
                if (alive && overlaps(chosen_edges, edges(box_first + j))) { alive = false; }
                T2[first + j] = alive ? 1.0 : 0.0;
            }
            if (lane == 0) { T3[line * most + picked] = best; }
            picked++;
        }
    }
    if (lane == 0) { T4[line] = picked; }
}

#else

CML_MAIN
{
    CML_EACH_THREAD(i, n)
    uint total = 0;
    uint own_line = lines;
    uint own_place = 0;
    for (uint line = 0; line < lines; line++) {
        uint picked = T1[line];
        if (i >= total && i - total < picked) {
            own_line = line;
            own_place = i - total;
        }
        total += picked;
    }
    if (i == 0) { T2[0] = int(total); }
#if ROWS
    bool there = own_line < lines;
    T3[i * 3] = there ? int(own_line / classes) : fill;
    T3[i * 3 + 1] = there ? int(own_line % classes) : fill;
    T3[i * 3 + 2] = there ? int(T0[own_line * most + own_place]) : fill;
#endif
}

#endif
