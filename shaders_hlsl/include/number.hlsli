// The type of a convolution's sums: floats, or integers if sums are whole numbers that fit 32 bits.
#ifndef CML_NUMBER
#define CML_NUMBER

#ifndef NUMBER
#define NUMBER float
#endif
#define NUMBER4 vector<NUMBER, 4>

float cml_mad(float a, float b, float c) { return mad(a, b, c); }
int cml_mad(int a, int b, int c) { return a * b + c; }

#endif
