// Values that a compiler cannot optimise through.
//
// Drivers may compute as with real numbers: (a + b) - a becomes b, a product and a sum become one
// multiply-add, and neither SPIR-V nor WGSL through naga can forbid it. A sealed value is rounded, so
// its rounding error can be computed.
#ifndef CML_SEALED
#define CML_SEALED

// Always 0, because no launch has 2^31 workgroups; a compiler cannot know that.
#define CML_SEAL (cml_end >> 31)

float cml_sealed(float value) { return asfloat(asuint(value) ^ CML_SEAL); }
int cml_sealed(int value) { return value; }
uint cml_sealed(uint value) { return value; }

// A second seal: x - x and x / x are not folded to 0 and 1 if the two x are sealed differently.
float cml_sealed_too(float value) { return asfloat(asuint(value) | CML_SEAL); }
int cml_sealed_too(int value) { return value; }
uint cml_sealed_too(uint value) { return value; }

// Returns a + b and its rounding error, which is added to the next term.
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
