// Elementwise operators that a kernel applies to its result before storing it, in the node's order.
//
// cml_engine/ops/declaration/epilogue.py chooses them by defines: EPI<i> is the operator of step i,
// EPI<i>_TENSOR the name of its operand's buffer, if it has one, and EPI<i>_BY what that has a
// value for; epi_value(2 * i) and (2 * i + 1) are its numbers (with CML_BY_POSITION, how many
// positions there are). EPI_TYPE is what the kernel stores at once: float, or float4 for four
// channels.
//
// A step is chosen by the preprocessor. A function of all operators that is called with a constant
// leaves the same code, but a kernel stores some thirty results, and the compiler took twice as long.
#ifndef CML_EPILOGUE
#define CML_EPILOGUE

#ifndef EPI_TYPE
#define EPI_TYPE float
#endif
#ifndef EPI0
#define EPI0 0
#endif
#ifndef EPI0_BY
#define EPI0_BY 0
#endif
#ifndef EPI1
#define EPI1 0
#endif
#ifndef EPI1_BY
#define EPI1_BY 0
#endif
#ifndef EPI2
#define EPI2 0
#endif
#ifndef EPI2_BY
#define EPI2_BY 0
#endif
#ifndef EPI3
#define EPI3 0
#endif
#ifndef EPI3_BY
#define EPI3_BY 0
#endif
#ifndef EPI4
#define EPI4 0
#endif
#ifndef EPI4_BY
#define EPI4_BY 0
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

// By its bits, for drivers may give the other number for a NaN: -0 and NaN are not below 0.
EPI_TYPE cml_epi_relu(EPI_TYPE v) {
    return select(asuint(v) - 0x80000001u <= 0x7f7fffffu, EPI_TYPE(0.0), v);
}

EPI_TYPE cml_epi_clamp(EPI_TYPE v, float low, float high) {
    EPI_TYPE y = select(v > EPI_TYPE(high), EPI_TYPE(high), v);
    y = select(y < EPI_TYPE(low), EPI_TYPE(low), y);
    return select((asuint(v) & 0x7fffffffu) > 0x7f800000u, v, y);
}

#define CML_NAMED_(name, number) name##number
#define CML_NAMED(name, number) CML_NAMED_(name, number)

// Operators by their numbers: what becomes of v. `o` is the operand, `p` and `q` are the numbers.
#define CML_EPI_0(v, o, p, q) v                                                 // none
#define CML_EPI_1(v, o, p, q) cml_epi_relu(v)                                   // relu
#define CML_EPI_2(v, o, p, q) select(v < EPI_TYPE(0.0), v * p, v)               // leaky_relu
#define CML_EPI_3(v, o, p, q) select(v < EPI_TYPE(0.0), v * o, v)               // prelu
#define CML_EPI_4(v, o, p, q) cml_epi_sigmoid(v)                                // sigmoid
#define CML_EPI_5(v, o, p, q) cml_epi_tanh(v)                                   // tanh
#define CML_EPI_6(v, o, p, q) cml_epi_clamp(v, p, q)                            // clamp
#define CML_EPI_7(v, o, p, q) v + o                                             // add
#define CML_EPI_8(v, o, p, q) v * cml_epi_sigmoid(v)                            // silu
#define CML_EPI_9(v, o, p, q) v * o                                             // mul
#define CML_EPI_10(v, o, p, q) v - o                                            // sub
#define CML_EPI_11(v, o, p, q) v / o                                            // div

// What an operand has a value for: nothing, a place, a channel, all, a position of the picture.
// READ is done once for each channel, the operand once for each place; `number` is the channel's.
#define CML_READ_0(tensor, number) EPI_TYPE(0.0)
#define CML_READ_1(tensor, number) EPI_TYPE(0.0)
#define CML_READ_2(tensor, number) tensor[number]
#define CML_READ_3(tensor, number) EPI_TYPE(tensor[0])
#define CML_READ_4(tensor, number) EPI_TYPE(0.0)
#define CML_OPERAND_0(tensor, read, at, number, positions) read
#define CML_OPERAND_1(tensor, read, at, number, positions) tensor[at]
#define CML_OPERAND_2(tensor, read, at, number, positions) read
#define CML_OPERAND_3(tensor, read, at, number, positions) read
#define CML_OPERAND_4(tensor, read, at, number, positions) \
    EPI_TYPE(tensor[at - number * uint(positions)])

// What the steps read per channel or once: a kernel that stores many positions reads it once.
struct EpiOperands {
    uint number;  // of the channel, in EPI_TYPEs
    EPI_TYPE read0;
    EPI_TYPE read1;
    EPI_TYPE read2;
    EPI_TYPE read3;
    EPI_TYPE read4;
};

// `channel` counts EPI_TYPEs: blocks of four channels where that is float4.
EpiOperands cml_epilogue_operands(uint channel) {
    EpiOperands operands;
    operands.number = channel;
    operands.read0 = CML_NAMED(CML_READ_, EPI0_BY)(EPI0_TENSOR, channel);
    operands.read1 = CML_NAMED(CML_READ_, EPI1_BY)(EPI1_TENSOR, channel);
    operands.read2 = CML_NAMED(CML_READ_, EPI2_BY)(EPI2_TENSOR, channel);
    operands.read3 = CML_NAMED(CML_READ_, EPI3_BY)(EPI3_TENSOR, channel);
    operands.read4 = CML_NAMED(CML_READ_, EPI4_BY)(EPI4_TENSOR, channel);
    return operands;
}

#define CML_STEP(op, by, tensor, read, first)                                                   \
    CML_NAMED(CML_EPI_, op)(v,                                                                  \
        CML_NAMED(CML_OPERAND_, by)(tensor, read, at, operands.number, epi_value(first)),       \
        epi_value(first), epi_value(first + 1))

// `at` is where the result is stored, in EPI_TYPEs: there an operand of its shape has its values.
EPI_TYPE cml_epilogue(EPI_TYPE v, EpiOperands operands, uint at) {
    v = CML_STEP(EPI0, EPI0_BY, EPI0_TENSOR, operands.read0, 0);
    v = CML_STEP(EPI1, EPI1_BY, EPI1_TENSOR, operands.read1, 2);
    v = CML_STEP(EPI2, EPI2_BY, EPI2_TENSOR, operands.read2, 4);
    v = CML_STEP(EPI3, EPI3_BY, EPI3_TENSOR, operands.read3, 6);
    v = CML_STEP(EPI4, EPI4_BY, EPI4_TENSOR, operands.read4, 8);
    return v;
}

EPI_TYPE cml_epilogue(EPI_TYPE v, uint channel, uint at) {
    return cml_epilogue(v, cml_epilogue_operands(channel), at);
}

#endif
