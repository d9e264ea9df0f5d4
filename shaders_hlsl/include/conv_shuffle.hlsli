// The place PLACE of a convolution's result in a plain map; a kernel has its `image`, its `channel`, its
// position `at` in the map, and its place `to` if nothing is moved.
// SHUFFLE_Y and SHUFFLE_X: the map is enlarged by these factors, and every SHUFFLE_Y * SHUFFLE_X channels
// are one channel's neighbours of each position.
#ifndef CML_CONV_SHUFFLE
#define CML_CONV_SHUFFLE

#include "divide.hlsli"

#ifdef SHUFFLE_Y
#ifndef RESULT_SIZE
#define RESULT_SIZE(axis) y_size(axis)
#endif

// Returns the place of a channel's result in the enlarged map.
uint shuffled(uint image, uint channel, uint at) {
    uint row_length = uint(RESULT_SIZE(2)), column = at;
    uint line = DIVIDE_REST(column, row_length);
    uint part = channel % (SHUFFLE_Y * SHUFFLE_X);
    uint map = image * (out_c / (SHUFFLE_Y * SHUFFLE_X)) + channel / (SHUFFLE_Y * SHUFFLE_X);
    line = (map * uint(RESULT_SIZE(1)) + line) * SHUFFLE_Y + part / SHUFFLE_X;
    return (line * row_length + column) * SHUFFLE_X + part % SHUFFLE_X;
}
#define PLACE shuffled(image, channel, at)
#else
#define PLACE to
#endif

#endif
