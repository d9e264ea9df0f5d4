// Quantizes real numbers in a buffer to the input of an integer network, with a thread per packed
// block of four channels (cml_engine/ir/layout.py). The results equal NumPy's for inputs from the host.
// Parameters:
// sizes    channels, positions, offset of the first number, 32-bit words per block
// scale    1 / scale, the least and the greatest quantized value
#include "item.hlsli"

[[vk::binding(1, 0)]] RWStructuredBuffer<float> numbers;
[[vk::binding(2, 0)]] RWStructuredBuffer<uint> words;

// a value that no compiler knows, for seals (see seal.hlsli)
#define cml_end slice.y
#include "../include/integer_rule.hlsli"
#include "../include/packed4.hlsli"

void cml_item(uint block) {
    uint depth = (sizes.x + 3) / 4;
    uint number = block / sizes.y;
    uint image = number / depth;
    uint place = block % sizes.y;
    float4 block4 = float4(0.0);
    for (uint lane = 0; lane < 4; ++lane) {
        uint channel = 4 * (number % depth) + lane;
        if (channel < sizes.x) {
            float given = numbers[sizes.z + (image * sizes.x + channel) * sizes.y + place];
            block4[lane] = cml_integer_words(given, scale.x, scale.y, scale.z);
        }
    }
    if (sizes.w == 1) {
        words[block] = cml_to_bytes(block4);
    } else {
        uint2 pair = cml_to_shorts(block4);
        words[2 * block] = pair.x;
        words[2 * block + 1] = pair.y;
    }
}
