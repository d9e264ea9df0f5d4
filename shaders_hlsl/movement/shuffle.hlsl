// Pixel shuffle: with a factor of f, channel (c * f + dy) * f + dx of the source becomes channel c of
// the result at f * (y, x) + (dy, dx). A factor of 1 only converts the layout. Either side is plain, or
// in blocks of four channels, whose lanes past the last channel are zeros.
//
// defines: IN_C4, OUT_C4  1 if T0 or OUT is in blocks
//          WORDS          quantizes real numbers
// params:  n  numbers (or blocks) of the result;  channels, height, width  of the source;  side  the
//          factor;  entry  1 / scale, the least and the greatest quantized value
#include "divide.hlsli"
#include "epilogue.hlsli"
#if WORDS
#include "integer_rule.hlsli"
#endif

float load_channel(uint image, uint channel, uint place) {
#if IN_C4
    float4 v = T0[(image * ((channels + 3) / 4) + channel / 4) * height * width + place];
    float x = v[channel % 4];
#else
    float x = T0[(image * channels + channel) * height * width + place];
#endif
#if WORDS
    x = cml_integer_words(x, entry(0), entry(1), entry(2));
#endif
    return x;
}

CML_MAIN
{
    CML_EACH_THREAD(at, n)
    uint part = side * side;
    uint results = cml_divide(channels, part);
#if OUT_C4
    uint depth = (results + 3) / 4;
#else
    uint depth = results;
#endif
    uint x = at;
    uint y = cml_divide_rest(x, width * side);
    uint number = cml_divide_rest(y, height * side);
    uint image = cml_divide_rest(number, depth);
    uint row = cml_divide_rest(y, side);
    uint column = cml_divide_rest(x, side);
    uint place = row * width + column;
    uint within = y * side + x;
#if OUT_C4
    float4 v;
    {CML_UNROLL(uint, lane, 4) {
        v[lane] = load_channel(image, min(4 * number + lane, results - 1) * part + within, place);
    }}
    v = cml_epilogue(v, number, at);
    uint4 channel = 4 * number + uint4(0, 1, 2, 3);
    OUT[at] = select(channel < uint4(results), v, float4(0.0));
#else
    OUT[at] = cml_epilogue(load_channel(image, number * part + within, place), number, at);
#endif
}
