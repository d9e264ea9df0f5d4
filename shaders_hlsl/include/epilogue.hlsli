// Elementwise operators that a kernel applies to its result before storing it, in the node's order.
//
// cml_engine/ops/declaration/epilogue.py writes them as defines, of the operators' own expressions:
// EPI_STEPS   statements that change `v`
// EPI_FIELDS  what they read once for each channel, as members of EpiOperands, and EPI_READS how
// EPI_WIDTH   4: the kernel stores four channels at once; 1: one number
// EPI_INTEGER defined where a step makes words of sums
// EPI_SUMS    the type of what the kernel has where that is integers; the first step takes `sums`
// EPI_SINGLE  defined where a step takes numbers one by one, with any function of pointwise.hlsli
#ifndef CML_EPILOGUE
#define CML_EPILOGUE

#ifndef EPI_STEPS
#define EPI_STEPS
#endif
#ifndef EPI_FIELDS
#define EPI_FIELDS
#define EPI_READS
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

// What the steps read per channel or once: a kernel that stores many positions reads it once.
struct EpiOperands {
    uint number;  // of the channel, in EPI_TYPEs
    EPI_FIELDS
};

// `channel` counts EPI_TYPEs: blocks of four channels where that is float4.
EpiOperands cml_epilogue_operands(uint channel) {
    EpiOperands operands;
    operands.number = channel;
    EPI_READS
    return operands;
}

// `at` is where the result is stored, in EPI_TYPEs: there an operand of its shape has its values.
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
