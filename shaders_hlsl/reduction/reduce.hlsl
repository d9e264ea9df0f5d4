// One stage of a reduction: `chunks` partial results for each of `outputs` results.
//
// defines: KIND    SUM, MIN, MAX, ANY, ALL, PROD;  VALUE its element type
//          TERM    the reduced function of the element v, and of m from another tensor if OTHER
//          INDEX   the result is the position of the extreme; partial results are value and position
//          TREE    1: a workgroup reduces a chunk; 0: a thread does
//          FIRST   reads the tensor itself, not partial results; LAST writes the result
//          HALF    T0 has two 16-bit numbers in each 32-bit word
//          WIDTH   4: T0 is read as vectors of four elements, and all counts are in vectors
//          LINE    results and reduced elements have one dimension each
// params:  dimensions innermost first; element r of result o lies at in(o) + in(r)
#include "pointwise.hlsli"
#include "reduced.hlsli"
#if HALF
#include "packed4.hlsli"
#endif

#define SUM 0
#define MIN 1
#define MAX 2
#define ANY 3
#define ALL 4
#define PROD 5

struct Item {
    VALUE value;
    uint index;
};

#if KIND == MIN || KIND == MAX
// NaN wins over every number, as in NumPy.
bool beats(float value, float best) {
    bool better = KIND == MIN ? value < best : value > best;
    return better || (cml_isnan(value) && !cml_isnan(best));
}
#endif

// Of equal extremes the first wins, in whatever order they are merged.
Item merge(Item a, Item b) {
#if KIND == SUM
    a.value += b.value;
    return a;
#elif KIND == PROD
    a.value *= b.value;
    return a;
#elif KIND == ANY
    a.value |= b.value;
    return a;
#elif KIND == ALL
    a.value &= b.value;
    return a;
#else
    bool take = beats(b.value, a.value);
#if INDEX
    take = take || (!beats(a.value, b.value) && b.index < a.index);
#endif
    if (take) { return b; }
    return a;
#endif
}

Item neutral() {
    Item item;
#if KIND == ANY || KIND == ALL
    item.value = start;
#else
    item.value = asfloat(start);
#endif
    item.index = 0xffffffffu;
    return item;
}

struct Place {
    uint from;
    uint to;
    uint other_at;
};

Place place_of(uint output) {
#if LINE
    Place place = { output * kept_in(0), output * kept_out(0), output * kept_other(0) };
#else
    Place place = { 0, 0, 0 };
    uint rest = output;
    for (uint d = 0; d < kept_dims; ++d) {
        uint next = d + 1 < kept_dims ? cml_divide(rest, kept(d)) : 0;
        uint coordinate = d + 1 < kept_dims ? rest - next * kept(d) : rest;
        place.from += coordinate * kept_in(d);
        place.to += coordinate * kept_out(d);
        place.other_at += coordinate * kept_other(d);
        rest = next;
    }
#endif
    return place;
}

#if WIDTH == 1
VALUE value_at(uint at) {
#if HALF
    float2 pair = cml_from_half(T0[at / 2]);
    return at % 2 == 0 ? pair.x : pair.y;
#else
    return T0[at];
#endif
}
#endif

// Reduces the elements first, first + step, … below end, in this order, block by block.
Item reduce(Place place, uint first, uint end, uint step) {
    Item item = neutral();
#if OTHER
    float m = T1[place.other_at];
#endif
    uint r = first;
    while (r < end) {
        Item block = neutral();
        uint block_end = min(end, r + REDUCE_BLOCK / WIDTH * step);
        for (; r < block_end; r += step) {
            uint at = place.from + reduced_offset(r);
#if WIDTH == 4
            float4 four = T0[at];
            CML_UNROLL(uint, c, 4) {
                float v = four[c];
                Item element;
                element.value = TERM;
                element.index = 0;
                block = merge(block, element);
            }
#else
            VALUE v = value_at(at);
            Item element;
            element.value = TERM;
#if INDEX && !FIRST
            element.index = T1[at];
#else
            element.index = r;
#endif
            block = merge(block, element);
#endif
        }
        item = merge(item, block);
    }
    return item;
}

void store(Place place, uint part, Item item) {
    uint at = place.to + part * chunk_step;
#if INDEX && LAST
    OUT[at] = int(item.index);
#else
#if KIND == SUM
    OUT[at] = item.value / divisor;
#else
    OUT[at] = item.value;
#endif
#if INDEX
    OUT_INDEX[at] = item.index;
#endif
#endif
}

#if TREE
groupshared VALUE shared_value[GROUP];
#if INDEX
groupshared uint shared_index[GROUP];
#endif

Item shared_item(uint at) {
    Item item = neutral();
    item.value = shared_value[at];
#if INDEX
    item.index = shared_index[at];
#endif
    return item;
}

void share(uint at, Item item) {
    shared_value[at] = item.value;
#if INDEX
    shared_index[at] = item.index;
#endif
}

CML_MAIN
{
    CML_EACH_GROUP(part)
    Place place = place_of(cml_divide_rest(part, chunks));
    uint begin = part * chunk;
    Item item = reduce(place, begin + lane, min(begin + chunk, total), GROUP);
    share(lane, item);
    GroupMemoryBarrierWithGroupSync();
    for (uint half = GROUP / 2; half > 0; half /= 2) {
        if (lane < half) { share(lane, merge(shared_item(lane), shared_item(lane + half))); }
        GroupMemoryBarrierWithGroupSync();
    }
    if (lane == 0) { store(place, part, shared_item(0)); }
}
#else
CML_MAIN
{
    CML_EACH_THREAD(thread, outputs * chunks)
    // neighbouring threads reduce the same chunk of neighbouring results
    uint part = cml_divide(thread, outputs);
    Place place = place_of(thread - part * outputs);
    uint begin = part * chunk;
    store(place, part, reduce(place, begin, min(begin + chunk, total), 1));
}
#endif
