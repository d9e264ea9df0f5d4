// What a convolution adds up: floats, or integers where sums are whole and exact in 32 bits.
#ifndef CML_NUMBER
#define CML_NUMBER

#ifndef NUMBER
#define NUMBER float
#endif
#define NUMBER4 vector<NUMBER, 4>

float cml_mad(float a, float b, float c) { return mad(a, b, c); }
int cml_mad(int a, int b, int c) { return a * b + c; }

#endif
