// Packs a filter that is computed during the run into the order that conv.hlsl reads:
// [row block][tap][band][4 in][ROWS]. conv_pack.py packs constant filters the same way.
// T0 filter in NNEF's order, T1 packed filter.
CML_MAIN
{
    CML_EACH_THREAD(word, total)
    uint row = word % rows;
    uint in_band = word / rows % (4 * band);
    uint tap = word / rows / (4 * band) % taps;
    uint row_block = word / rows / (4 * band) / taps;
    uint channel = row_block * rows + row;
    uint first = min(row_block * rows / group_out * group_in / 4, in_blocks - band);
    uint nth = min(channel, out_c - 1) / group_out;
    uint input = 4 * first + in_band - nth * group_in; // wraps around below the group: too large
    bool real = channel < out_c && input < group_in;
    uint at = nth * w_group + (channel - nth * group_out) * w_out + input * w_in + tap;
    float value = T0[real ? at : 0];
    T1[word] = real ? value : 0.0;
}
