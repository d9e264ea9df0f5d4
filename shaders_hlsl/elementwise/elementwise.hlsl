// All elementwise operators, and chains of them: operands broadcast by strides.
//
// defines: CHAIN   a statement for each operator, over the operands p0, p1, … and attr(i); the
//                  results are r0, r1, …, and LAST is the last of them
//          ARITY   number of operands, 1..7; T0…T(ARITY-1) are read, the next tensor is written
//          RESULT  element type of the result; VALUE0, VALUE1, … of the operands
//          MAX_DIMS, PER_THREAD  the greatest number of dimensions, and elements per thread
//          VEC     4: four neighbours at a time, as one vector; 1: element by element
//          SPLATK  1: operand K has one value for all four neighbours, read as a scalar (0 if VEC is 1)
//          FLAT    one dimension: element i of the result needs element i (or 0) of the operands
// params:  count   elements (vectors) in the result
//          dims, extent(d), stride(K * MAX_DIMS + d): innermost dimension first
#include "divide.hlsli"
#include "integer_rule.hlsli"
#include "integral.hlsli"
#include "pointwise.hlsli"
#include "seal.hlsli"

#if VEC == 4
#define OUT_TYPE vector<RESULT, 4>
#define LANE(value, splat, l) LANE_OF(value, splat, l)
#define LANE_OF(value, splat, l) LANE_##splat(value, l)
#define LANE_0(value, l) value[l]
#define LANE_1(value, l) value
#define LOADED(value, splat) LOADED_OF(value, splat)
#define LOADED_OF(value, splat) LOADED_##splat(value)
#define LOADED_0(value) vector<value, 4>
#define LOADED_1(value) value
#define STORE(result, l) result[l]
#else
#define OUT_TYPE RESULT
#define LANE(value, splat, l) value
#define LOADED(value, splat) value
#define STORE(result, l) result
#endif

// For each operand, a statement that loads its values and one that selects a value.
#define LOAD(k) LOADED(VALUE##k, SPLAT##k) v##k = T##k[at[k]];
#define TAKE(k) VALUE##k p##k = LANE(v##k, SPLAT##k, l);
#define EACH(n, F) EACH_OF(n, F)
#define EACH_OF(n, F) EACH##n(F)
#define EACH1(F) F(0)
#define EACH2(F) EACH1(F) F(1)
#define EACH3(F) EACH2(F) F(2)
#define EACH4(F) EACH3(F) F(3)
#define EACH5(F) EACH4(F) F(4)
#define EACH6(F) EACH5(F) F(5)
#define EACH7(F) EACH6(F) F(6)

// Computes the offsets in the operands for result element i.
#if FLAT
void locate(uint i, out uint at[ARITY]) {
    CML_UNROLL(uint, k, ARITY) { at[k] = i * stride(k * MAX_DIMS); }
}
#else
void locate(uint i, out uint at[ARITY]) {
    { CML_UNROLL(uint, k, ARITY) { at[k] = 0; } }
    uint rest = i;
    for (uint d = 0; d < dims; ++d) {
        // the outermost coordinate needs no division
        uint next = d + 1 < dims ? cml_divide(rest, extent(d)) : 0;
        uint coordinate = d + 1 < dims ? rest - next * extent(d) : rest;
        CML_UNROLL(uint, k, ARITY) {
            at[k] += coordinate * stride(k * MAX_DIMS + d);
        }
        rest = next;
    }
}
#endif

OUT_TYPE compute(uint i) {
    uint at[ARITY];
    locate(i, at);
    EACH(ARITY, LOAD)
    OUT_TYPE result;
    CML_UNROLL(uint, l, VEC) {
        EACH(ARITY, TAKE)
        CHAIN
        STORE(result, l) = LAST;
    }
    return result;
}

CML_MAIN
{
    CML_EACH_GROUP(group)
    CML_UNROLL(uint, k, PER_THREAD) {
        // neighbouring threads access neighbouring addresses
        uint i = (group * PER_THREAD + k) * GROUP + lane;
        if (i < count) { OUT[i] = compute(i); }
    }
}
