// What lies around a tensor (cml_engine/ops/conv/shapes.py, BORDERS): BORDER is its number there.
#ifndef CML_BORDER
#define CML_BORDER

#define BORDER_CONSTANT 0
#define BORDER_REPLICATE 1
#define BORDER_REFLECT 2
#define BORDER_REFLECT_EVEN 3

// The index that position `at` of an axis of `extent` > 0 values repeats; -1 where it is zero.
int cml_border(int at, int extent) {
#if BORDER == BORDER_REPLICATE
    return clamp(at, 0, extent - 1);
#elif BORDER == BORDER_REFLECT
    int period = max(2 * (extent - 1), 1);
    int wave = int(uint(abs(at)) % uint(period));
    return wave >= extent ? period - wave : wave;
#elif BORDER == BORDER_REFLECT_EVEN
    int period = 2 * extent;
    int wave = int(uint(at < 0 ? -1 - at : at) % uint(period));
    return wave >= extent ? period - 1 - wave : wave;
#else
    return uint(at) < uint(extent) ? at : -1;
#endif
}

#endif
