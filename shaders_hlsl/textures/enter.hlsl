// Real numbers in a buffer become the words of an integer network's input: a thread for each block of
// four channels, which lies packed (cml_engine/ir/layout.py). The numbers are those that NumPy makes
// where they come from the host. Of the parameters:
// sizes    channels, positions, where the numbers begin, words of a block
// scale    one over the scale, the least and the largest word
#include "item.hlsli"

[[vk::binding(1, 0)]] RWStructuredBuffer<float> numbers;
[[vk::binding(2, 0)]] RWStructuredBuffer<uint> words;

// no compiler knows it: what seals are made of
#define cml_end slice.y
#include "../include/integer_rule.hlsli"

void cml_item(uint block) {
    uint depth = (sizes.x + 3) / 4;
    uint number = block / sizes.y;
    uint image = number / depth;
    uint place = block % sizes.y;
    uint4 bits = uint4(0);
    for (uint lane = 0; lane < 4; ++lane) {
        uint channel = 4 * (number % depth) + lane;
        if (channel < sizes.x) {
            float given = numbers[sizes.z + (image * sizes.x + channel) * sizes.y + place];
            bits[lane] = uint(int(cml_integer_words(given, scale.x, scale.y, scale.z)));
        }
    }
    if (sizes.w == 1) {
        bits &= 0xffu;
        words[block] = bits.x | (bits.y << 8) | (bits.z << 16) | (bits.w << 24);
    } else {
        bits &= 0xffffu;
        words[2 * block] = bits.x | (bits.y << 16);
        words[2 * block + 1] = bits.z | (bits.w << 16);
    }
}
