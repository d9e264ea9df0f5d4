// Values that a compiler cannot see through.
//
// Drivers compute with real numbers where they may: (a + b) - a becomes b, a product and a sum one
// multiply-add, and nothing that SPIR-V or WGSL can say through naga forbids it. What is sealed has
// bits of its own, so what rounding took from it can be computed.
#ifndef CML_SEALED
#define CML_SEALED

// 0: no launch has 2^31 workgroups. No compiler knows.
#define CML_SEAL (cml_end >> 31)

float cml_sealed(float value) { return asfloat(asuint(value) ^ CML_SEAL); }
int cml_sealed(int value) { return value; }
uint cml_sealed(uint value) { return value; }

// Another seal: x - x and x / x of one value sealed in both ways are not folded into 0 and 1.
float cml_sealed_too(float value) { return asfloat(asuint(value) | CML_SEAL); }
int cml_sealed_too(int value) { return value; }
uint cml_sealed_too(uint value) { return value; }

// A sum, and what rounding took from it: the digits that the next term makes up for.
struct CmlSum {
    float value;
    float lost;
};

void cml_add(inout CmlSum sum, float term) {
    term -= sum.lost;
    float next = cml_sealed(sum.value + term);
    float lost = cml_sealed(next - sum.value) - term;
    // an infinity has no lost digits
    sum.lost = (asuint(lost) & 0x7fffffffu) < 0x7f800000u ? lost : 0.0;
    sum.value = next;
}

#endif
