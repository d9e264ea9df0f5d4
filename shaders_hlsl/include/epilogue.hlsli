// Elementwise operators that a kernel applies to its result before storing it, in the node's order.
//
// cml_engine/ops/epilogue.py chooses them by defines: EPI<i> is the operator of step i,
// EPI<i>_TENSOR the name of its operand's buffer, if it has one, and EPI<i>_BY what that has a
// value for; epi_value(2 * i) and (2 * i + 1) are its numbers (with BY_POSITION, how many positions
// there are). EPI_TYPE is what the kernel stores at once: float, or float4 for four channels.
#ifndef CML_EPILOGUE
#define CML_EPILOGUE

#define EPI_NONE 0
#define EPI_RELU 1
#define EPI_LEAKY_RELU 2
#define EPI_PRELU 3
#define EPI_SIGMOID 4
#define EPI_TANH 5
#define EPI_CLAMP 6
#define EPI_ADD 7
#define EPI_SILU 8
#define EPI_MUL 9
#define EPI_SUB 10
#define EPI_DIV 11

#define BY_NONE 0
#define BY_PLACE 1
#define BY_CHANNEL 2
#define BY_ONE 3
#define BY_POSITION 4

#ifndef EPI_TYPE
#define EPI_TYPE float
#endif
#ifndef EPI0
#define EPI0 EPI_NONE
#endif
#ifndef EPI0_BY
#define EPI0_BY BY_NONE
#endif
#ifndef EPI1
#define EPI1 EPI_NONE
#endif
#ifndef EPI1_BY
#define EPI1_BY BY_NONE
#endif
#ifndef EPI2
#define EPI2 EPI_NONE
#endif
#ifndef EPI2_BY
#define EPI2_BY BY_NONE
#endif
#ifndef EPI3
#define EPI3 EPI_NONE
#endif
#ifndef EPI3_BY
#define EPI3_BY BY_NONE
#endif
#ifndef EPI4
#define EPI4 EPI_NONE
#endif
#ifndef EPI4_BY
#define EPI4_BY BY_NONE
#endif

EPI_TYPE cml_epi_sigmoid(EPI_TYPE v) {
    // the exponent is never positive, so nothing overflows
    EPI_TYPE t = exp(-abs(v));
    return select(v < EPI_TYPE(0.0), t, EPI_TYPE(1.0)) / (EPI_TYPE(1.0) + t);
}

EPI_TYPE cml_epi_tanh(EPI_TYPE v) {
    EPI_TYPE a = abs(v);
    EPI_TYPE z = v * v;
    EPI_TYPE t = exp(a * -2.0);
    EPI_TYPE far = (EPI_TYPE(1.0) - t) / (EPI_TYPE(1.0) + t);
    // near zero the quotient cancels, the series does not
    EPI_TYPE near = a + a * z * (-0.333333333 + z * (0.133333333 - z * 0.0539682540));
    EPI_TYPE y = select(a < EPI_TYPE(0.2), near, far);
    return select(v < EPI_TYPE(0.0), -y, y);
}

// `op` is a constant at every call, so that one branch is left of these.
EPI_TYPE cml_epi_step(uint op, EPI_TYPE v, EPI_TYPE operand, float first, float second) {
    if (op == EPI_RELU) { return max(v, EPI_TYPE(0.0)); }
    if (op == EPI_LEAKY_RELU) { return select(v < EPI_TYPE(0.0), v * first, v); }
    if (op == EPI_PRELU) { return select(v < EPI_TYPE(0.0), v * operand, v); }
    if (op == EPI_SIGMOID) { return cml_epi_sigmoid(v); }
    if (op == EPI_TANH) { return cml_epi_tanh(v); }
    if (op == EPI_CLAMP) { return max(min(v, EPI_TYPE(second)), EPI_TYPE(first)); }
    if (op == EPI_SILU) { return v * cml_epi_sigmoid(v); }
    if (op == EPI_ADD) { return v + operand; }
    if (op == EPI_MUL) { return v * operand; }
    if (op == EPI_SUB) { return v - operand; }
    if (op == EPI_DIV) { return v / operand; }
    return v;
}

// What the steps read per channel or once: a kernel that stores many positions reads it once.
struct EpiOperands {
    EPI_TYPE channel[5];
    uint number;  // of the channel, in EPI_TYPEs
};

// `channel` counts EPI_TYPEs: blocks of four channels where that is float4.
EpiOperands cml_epilogue_operands(uint channel) {
    EpiOperands operands;
    operands.number = channel;
    {[ForceUnroll] for (int i = 0; i < 5; i++) { operands.channel[i] = EPI_TYPE(0.0); }}
#if EPI0_BY == BY_CHANNEL
    operands.channel[0] = EPI0_TENSOR[channel];
#elif EPI0_BY == BY_ONE
    operands.channel[0] = EPI_TYPE(EPI0_TENSOR[0]);
#endif
#if EPI1_BY == BY_CHANNEL
    operands.channel[1] = EPI1_TENSOR[channel];
#elif EPI1_BY == BY_ONE
    operands.channel[1] = EPI_TYPE(EPI1_TENSOR[0]);
#endif
#if EPI2_BY == BY_CHANNEL
    operands.channel[2] = EPI2_TENSOR[channel];
#elif EPI2_BY == BY_ONE
    operands.channel[2] = EPI_TYPE(EPI2_TENSOR[0]);
#endif
#if EPI3_BY == BY_CHANNEL
    operands.channel[3] = EPI3_TENSOR[channel];
#elif EPI3_BY == BY_ONE
    operands.channel[3] = EPI_TYPE(EPI3_TENSOR[0]);
#endif
#if EPI4_BY == BY_CHANNEL
    operands.channel[4] = EPI4_TENSOR[channel];
#elif EPI4_BY == BY_ONE
    operands.channel[4] = EPI_TYPE(EPI4_TENSOR[0]);
#endif
    return operands;
}

// Where a single picture's result is stored, without the channels before its own.
uint cml_epi_position(uint at, EpiOperands operands, float positions) {
    return at - operands.number * uint(positions);
}

// `at` is where the result is stored, in EPI_TYPEs: there an operand of its shape has its values.
EPI_TYPE cml_epilogue(EPI_TYPE v, EpiOperands operands, uint at) {
#if EPI0_BY == BY_PLACE
    operands.channel[0] = EPI0_TENSOR[at];
#elif EPI0_BY == BY_POSITION
    operands.channel[0] = EPI_TYPE(EPI0_TENSOR[cml_epi_position(at, operands, epi_value(0))]);
#endif
#if EPI0 != EPI_NONE
    v = cml_epi_step(EPI0, v, operands.channel[0], epi_value(0), epi_value(1));
#endif
#if EPI1_BY == BY_PLACE
    operands.channel[1] = EPI1_TENSOR[at];
#elif EPI1_BY == BY_POSITION
    operands.channel[1] = EPI_TYPE(EPI1_TENSOR[cml_epi_position(at, operands, epi_value(2))]);
#endif
#if EPI1 != EPI_NONE
    v = cml_epi_step(EPI1, v, operands.channel[1], epi_value(2), epi_value(3));
#endif
#if EPI2_BY == BY_PLACE
    operands.channel[2] = EPI2_TENSOR[at];
#elif EPI2_BY == BY_POSITION
    operands.channel[2] = EPI_TYPE(EPI2_TENSOR[cml_epi_position(at, operands, epi_value(4))]);
#endif
#if EPI2 != EPI_NONE
    v = cml_epi_step(EPI2, v, operands.channel[2], epi_value(4), epi_value(5));
#endif
#if EPI3_BY == BY_PLACE
    operands.channel[3] = EPI3_TENSOR[at];
#elif EPI3_BY == BY_POSITION
    operands.channel[3] = EPI_TYPE(EPI3_TENSOR[cml_epi_position(at, operands, epi_value(6))]);
#endif
#if EPI3 != EPI_NONE
    v = cml_epi_step(EPI3, v, operands.channel[3], epi_value(6), epi_value(7));
#endif
#if EPI4_BY == BY_PLACE
    operands.channel[4] = EPI4_TENSOR[at];
#elif EPI4_BY == BY_POSITION
    operands.channel[4] = EPI_TYPE(EPI4_TENSOR[cml_epi_position(at, operands, epi_value(8))]);
#endif
#if EPI4 != EPI_NONE
    v = cml_epi_step(EPI4, v, operands.channel[4], epi_value(8), epi_value(9));
#endif
    return v;
}

EPI_TYPE cml_epilogue(EPI_TYPE v, uint channel, uint at) {
    return cml_epilogue(v, cml_epilogue_operands(channel), at);
}

#endif
