// The values outside of a tensor. One of border_is_constant, _replicate, _reflect and _reflect_even
// is defined.
#ifndef CML_BORDER
#define CML_BORDER

// Returns the index whose value stands at position `at` of an axis of `extent` > 0 values; -1 for a
// zero.
int cml_border(int at, int extent) {
#if border_is_replicate
    return clamp(at, 0, extent - 1);
#elif border_is_reflect
    int period = max(2 * (extent - 1), 1);
    int wave = int(uint(abs(at)) % uint(period));
    return select(wave >= extent, period - wave, wave);
#elif border_is_reflect_even
    int period = 2 * extent;
    int wave = int(uint(select(at < 0, -1 - at, at)) % uint(period));
    return select(wave >= extent, period - 1 - wave, wave);
#else
    return select(uint(at) < uint(extent), at, -1);
#endif
}

#endif
