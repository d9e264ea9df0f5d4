// Where the windows of conv and deconv lie; both are the one rule
//     source * up = result * y_mul + tap * k_step + origin
// conv: up = 1, y_mul = stride, k_step = dilation, origin = -padding before.
// deconv: up = stride, y_mul = 1, k_step = -dilation, origin = padding before.
#ifndef CML_CONV_POSITION
#define CML_CONV_POSITION

#include "border.hlsli"

uint cml_volume(uint a, uint b, uint c) { return a * b * c; }

// Integer division that rounds down; b > 0.
int cml_floor_div(int a, int b) { return a >= 0 ? a / b : -1 - (-1 - a) / b; }

#endif
