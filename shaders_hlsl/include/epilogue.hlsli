// Elementwise operators that a kernel applies to its result before storing it, in the node's order.
//
// cml_engine/ops/declaration/epilogue.py writes them as defines, from the operators' expressions:
// EPI_STEPS   statements that change `v`
// EPI_FIELDS  the members of EpiOperands: values that are read once per channel; EPI_READS reads them
// EPI_WIDTH   4: the kernel stores four channels at once; 1: one number
// EPI_MATRIX  defined if a step reads a matrix that all of a batch share
// EPI_INTEGER defined if a step requantizes sums
// EPI_SUMS    the kernel's integer type, if its results are integers; the first step reads `sums`
// EPI_SINGLE  defined if a step takes numbers one by one, with any function of pointwise.hlsli
#ifndef CML_EPILOGUE
#define CML_EPILOGUE

#ifndef EPI_STEPS
#define EPI_STEPS
#endif
#ifndef EPI_FIELDS
#define EPI_FIELDS
#define EPI_READS
#endif

#ifdef EPI_MATRIX
#include "divide.hlsli"
#endif
#ifdef EPI_INTEGER
#include "integer_rule.hlsli"
#endif
#ifdef EPI_SINGLE
#include "pointwise.hlsli"
#endif
#if EPI_WIDTH == 4
#define EPI_TYPE float4
#define CML_T float4
#define CML_TRUTH bool4
#include "activations.hlsli"
#else
#define EPI_TYPE float
#ifndef EPI_SINGLE
#define CML_T float
#define CML_TRUTH bool
#include "activations.hlsli"
#endif
#endif

// Values that are the same for all positions of a channel: a kernel reads them before its positions.
struct EpiOperands {
    uint number;  // of the channel, in EPI_TYPEs
    EPI_FIELDS
};

// `channel` counts EPI_TYPEs: blocks of four channels if EPI_TYPE is float4.
EpiOperands cml_epilogue_operands(uint channel) {
    EpiOperands operands;
    operands.number = channel;
    EPI_READS
    return operands;
}

// `at` is the result's index in EPI_TYPEs, which is also the index in an operand of the same shape.
#ifdef EPI_SUMS
EPI_TYPE cml_epilogue(EPI_SUMS sums, EpiOperands operands, uint at) {
    EPI_TYPE v = EPI_TYPE(sums);
#else
EPI_TYPE cml_epilogue(EPI_TYPE v, EpiOperands operands, uint at) {
#endif
    EPI_STEPS
    return v;
}

#ifndef EPI_SUMS
EPI_TYPE cml_epilogue(EPI_TYPE v, uint channel, uint at) {
    return cml_epilogue(v, cml_epilogue_operands(channel), at);
}
#endif

#endif
