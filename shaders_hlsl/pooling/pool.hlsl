// The operators that slide a window: box, the pools, sample, and in reverse debox and desample.
//
// defines: KIND      SUM, MAX, INDEX, BOTH (value and index), SAMPLE, DESAMPLE
//          REVERSE   the result is the larger side: each value gathers from the windows that cover it
//          border_is_…  see border.hlsli; or border_is_ignore
//          DIVIDE    1: by the window's volume, 2: by the taps inside of the input
//          FAST      at most two neighbouring dimensions have windows: [outer, H, W, inner]
//          VEC       4: four neighbours along `inner` at a time
//          PARTS     a launch handles the taps [tap_begin, tap_end) of a window that has too many for
//                    one loop; partial results are in PART_VALUE and PART_COUNT
// params:  dimensions innermost first. FAST: [0] is W, [1] is H. Otherwise `out` dimensions are in
//          memory order; each belongs to a window dimension (or to none), in units of `out_unit`.
//          Coordinate c of window dimension w has the offset (c >> 2) * high + (c & 3) * low.
#include "pointwise.hlsli"
#include "border.hlsli"
#include "divide.hlsli"
#if PARTS
#include "seal.hlsli"
#endif

#define SUM 0
#define MAX 1
#define INDEX 2
#define BOTH 3
#define SAMPLE 4
#define DESAMPLE 5

#if VEC == 4
#define VALUE float4
#else
#define VALUE float
#endif
// Taps outside of the input are skipped, unless border zeros take part in a maximum.
#define COUNTS_TAPS (KIND == INDEX || KIND == BOTH)
#define ADDS (KIND == SUM || KIND == DESAMPLE)
#define BLOCK 32
#if border_is_constant && (KIND == MAX || COUNTS_TAPS)
#define ZEROS_COUNT true
#else
#define ZEROS_COUNT false
#endif

struct State {
    VALUE value;
    int index;
    int inside;
#if PARTS
    float lost;
#elif ADDS
    VALUE block;
#endif
};

void add(inout State state, VALUE term) {
#if PARTS
    CmlSum sum = { state.value, state.lost };
    cml_add(sum, term);
    state.value = sum.value;
    state.lost = sum.lost;
#elif ADDS
    state.block += term;
#endif
}

// Adds up sums of blocks, so rounding errors grow with the length of a block plus the number of
// blocks, not with their product.
void end_block(inout State state) {
#if ADDS && !PARTS
    state.value += state.block;
    state.block = VALUE(0.0);
#endif
}

// A NaN beats everything, as in max_reduce.
bool beats(float v, float best) { return v > best || (cml_isnan(v) && !cml_isnan(best)); }

VALUE greater(VALUE v, VALUE best) {
#if VEC == 4
    VALUE result;
    CML_UNROLL(uint, l, 4) { result[l] = beats(v[l], best[l]) ? v[l] : best[l]; }
    return result;
#else
    return beats(v, best) ? v : best;
#endif
}

// Adds tap `tap` of the window, which lies at `at` of the input or outside.
void visit(inout State state, uint at, bool inside, int tap) {
#if KIND == SUM
    if (inside) {
        add(state, T0[at]);
        state.inside += 1;
    }
#elif KIND == SAMPLE
    if (inside) { state.value = T0[at]; }
#elif KIND == DESAMPLE
    if (inside && T1[at] == tap) { add(state, T0[at]); }
#else
#if border_is_ignore
    if (!inside) { return; }
#endif
    // the zeros of border 'constant' count
    VALUE v = VALUE(0.0);
    if (inside) { v = T0[at]; }
#if COUNTS_TAPS
    bool take = state.index < 0 || beats(v, state.value);
    state.value = take ? v : state.value;
    state.index = take ? tap : state.index;
#else
    state.value = greater(v, state.value);
#endif
#endif
}

// Returns the input coordinate under tap t of window o, -1 for none. REVERSE: the window whose tap t
// lies on o.
int coordinate(int o, int t, uint w) {
#if REVERSE
    int up = o + before(w) - t * dilation(w);
    int window = int(cml_divide(uint(max(up, 0)), uint(stride(w))));
    return up >= 0 && window * stride(w) == up && window < extent(w) ? window : -1;
#else
    return cml_border(o * stride(w) - before(w) + t * dilation(w), extent(w));
#endif
}

#if FAST
void slide(inout State state, uint item) {
    // rows and columns of the window: all, or only the sampled position
    int2 begin = int2(0, 0);
    int2 end = int2(size(1), size(0));
#if KIND == SAMPLE
    uint wanted = uint(T1[item]);
    if (wanted >= taps) { return; }
    begin.x = int(cml_divide_rest(wanted, uint(size(0))));
    begin.y = int(wanted);
    end = begin + 1;
#endif
    uint column = cml_divide_rest(item, inner);
    uint base = item * inner_step;
    uint row = cml_divide_rest(column, out_extent(0));
    int x = int(column);
    uint plane = cml_divide_rest(row, out_extent(1));
    int y = int(row);
    base += plane * outer_step;
    for (int ty = begin.x; ty < end.x; ++ty) {
        int from_y = coordinate(y, ty, 1);
        // not `continue`: naga (wgpu-native 29.0) without loop checks turns that into a shader
        // that writes nothing
        if (ZEROS_COUNT || from_y >= 0) {
            for (int tx = begin.y; tx < end.y; ++tx) {
                int from_x = coordinate(x, tx, 0);
                uint at = base + uint(from_y) * low(1) + uint(from_x) * low(0);
                visit(state, at, from_y >= 0 && from_x >= 0, ty * size(0) + tx);
            }
        }
        end_block(state);
    }
}
#else
void slide(inout State state, uint item) {
    uint begin = 0;
    uint end = taps;
#if PARTS
    begin = tap_begin;
    end = tap_end;
#elif KIND == SAMPLE
    begin = uint(T1[item]);
    if (begin >= taps) { return; }
    end = begin + 1;
#endif
    int position[MAX_DIMS];
    { for (uint w = 0; w < windows; ++w) { position[w] = 0; } }
    uint base = 0;
    uint rest = item;
    for (uint d = 0; d < out_dims; ++d) {
        uint next = cml_divide(rest, out_extent(d));
        uint at = rest - next * out_extent(d);
        rest = next;
        if (owner(d) < windows) { position[owner(d)] += int(at * out_unit(d)); }
        else { base += at * out_unit(d); }
    }
    for (uint tap = begin; tap < end; ++tap) {
        int left = int(tap);
        uint at = base;
        bool inside = true;
        for (uint w = 0; w < windows; ++w) {
            int next = int(cml_divide(uint(left), uint(size(w))));
            int c = coordinate(position[w], left - next * size(w), w);
            left = next;
            inside = inside && c >= 0;
            at += (uint(c) >> 2) * high(w) + (uint(c) & 3) * low(w);
        }
        visit(state, at, inside, int(tap));
        if (tap % BLOCK == BLOCK - 1) { end_block(state); }
    }
    end_block(state);
}
#endif

VALUE finish(State state) {
    VALUE value = state.value;
#if DIVIDE == 1
    value /= float(taps);
#elif DIVIDE == 2
    value /= float(max(state.inside, 1));
#endif
    return value;
}

CML_MAIN
{
    CML_EACH_THREAD(item, count)
    State state;
    state.value = VALUE(asfloat(start));
    state.index = -1;
    state.inside = 0;
#if ADDS && !PARTS
    state.block = VALUE(0.0);
#elif PARTS
    state.lost = 0.0;
    if (tap_begin > 0) {
        state.value = PART_VALUE[item];
        state.index = PART_COUNT[item];
        state.inside = PART_COUNT[item];
    }
#endif
    slide(state, item);
#if PARTS
    PART_VALUE[item] = state.value;
    PART_COUNT[item] = COUNTS_TAPS ? state.index : state.inside;
#endif
#if KIND == INDEX
    T1[item] = max(state.index, 0);
#elif KIND == BOTH
    T1[item] = state.value;
    T2[item] = max(state.index, 0);
#else
    OUT[item] = finish(state);
#endif
}
