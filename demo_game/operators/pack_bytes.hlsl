// A thread for each texel: four channels in [0, 1] as the bytes of one word, the first lowest.
void kernel(uint thread) {
    uint channel = channels_stride(1);
    uint word = 0;
    for (uint k = 0; k < 4; ++k) {
        float value = clamp(channels[thread + k * channel], 0.0, 1.0);
        word |= uint(value * 255.0 + 0.5) << (8 * k);
    }
    words[thread] = int(word);
}
