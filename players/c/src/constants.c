/* Makes the constants of a plan from the numbers of the section `values` (docs/cooked.md). */
#include "internal.h"

enum { AXES = COOKED_SOURCE_AXES, DIMS = COOKED_MOST_DIMENSIONS };
enum { WINDOW_POINTS = 6 }; /* of a transformed window, in each direction */

static uint32_t stored_size(const constant_row *r) {
    static const uint8_t sizes[] = {1, 2, 4, 1, 1, 2, 2}; /* bits, then int8 to uint16 */
    return sizes[r->stored];
}

static uint32_t element_size(const constant_row *r) {
    return r->becomes == AS_BITS ? stored_size(r) : r->becomes == AS_HALF ? 2 : 4;
}

/* Returns a * b, or more than the size of any buffer. */
static uint64_t times(uint64_t a, uint64_t b) {
    return b > 0 && a > COOKED_MOST_BYTES / b ? COOKED_MOST_BYTES + 1 : a * b;
}

/* Returns 1 if the finer dimensions of an axis fill each step, so that no element is left out. */
static int has_dims(const constant_row *r) {
    for (uint32_t i = 0; i < DIMS; i++) {
        uint64_t finer = 1;
        if (i >= r->rank && !is_zero(r->dims + i, sizeof r->dims[i])) return 0;
        if (i < r->rank && (r->dims[i].extent == 0 || r->dims[i].axis >= AXES)) return 0;
        for (uint32_t k = 0; i < r->rank && k < r->rank; k++)
            if (r->dims[k].axis == r->dims[i].axis && r->dims[k].step < r->dims[i].step)
                finer = times(finer, r->dims[k].extent);
        if (i < r->rank && finer != r->dims[i].step) return 0;
    }
    return 1;
}

int cml__is_constant(const file *f, const plan *p, uint32_t number) {
    const constant_row *r = p->constants + number, *before = number > 0 ? r - 1 : NULL;
    uint64_t count = 1, source = 1;
    if (r->stored > 6 || r->becomes > (r->matrix == UINT64_MAX ? AS_INTEGER : AS_HALF) ||
        (r->becomes != AS_HALF && (r->becomes == AS_BITS) != (r->stored < 3)) ||
        r->space == ARENA || r->space >= SPACES || r->rank == 0 || r->rank > DIMS ||
        r->offset % 4 != 0 || r->source % COOKED_VALUE_ALIGNMENT != 0 || !has_dims(r))
        return 0;
    if (before != NULL &&
        (r->space < before->space ||
         (r->space == before->space && r->offset < before->offset + before->nbytes)))
        return 0;
    for (uint32_t i = 0; i < r->rank; i++) count = times(count, r->dims[i].extent);
    for (uint32_t i = 0; i < AXES; i++) {
        uint64_t reach = 1, end = r->extents[i];
        if (i == 2 && r->matrix != UINT64_MAX) end = WINDOW_POINTS * WINDOW_POINTS;
        for (uint32_t k = 0; k < r->rank; k++)
            if (r->dims[k].axis == i) reach = times(reach, r->dims[k].extent);
        if (end > reach) return 0; /* the constant uses its whole source */
        source = times(source, r->extents[i]);
    }
    if (r->nbytes != (times(count, element_size(r)) + 3) / 4 * 4 ||
        !is_inside(r->offset, r->nbytes, p->row->spaces[r->space]) ||
        !is_inside(r->source, times(source, stored_size(r)), f->values.size))
        return 0;
    if (r->matrix == UINT64_MAX) return 1;
    for (uint32_t i = 0; i < r->rank; i++)
        if (r->dims[i].axis == 3) return 0;
    return r->stored >= 2 && r->becomes != AS_INTEGER && r->extents[2] == 9 && r->extents[3] == 1 &&
           r->matrix % COOKED_VALUE_ALIGNMENT == 0 &&
           is_inside(r->matrix, 3 * WINDOW_POINTS * sizeof(double), f->values.size);
}

enum {
    STORED_INT8 = 3,
    STORED_UINT8,
    STORED_INT16,
    STORED_UINT16
}; /* stored numbers that are no bits */

static int32_t read_integer(const constant_row *r, const uint8_t *from) {
    uint16_t bits = 0;
    if (r->stored == STORED_INT8) return (int8_t)*from;
    if (r->stored == STORED_UINT8) return *from;
    memcpy(&bits, from, sizeof bits);
    return r->stored == STORED_INT16 ? (int16_t)bits : bits;
}

/* Converts one number of the source. */
static void put_number(const constant_row *r, const uint8_t *source, uint64_t index, uint8_t *to) {
    const uint8_t *from = source + index * stored_size(r);
    if (r->stored < 3) {
        memcpy(to, from, stored_size(r));
        return;
    }
    int32_t integer = read_integer(r, from);
    float number = (float)integer;
    if (r->becomes == AS_INTEGER)
        memcpy(to, &integer, sizeof integer);
    else
        memcpy(to, &number, sizeof number);
}

/* Computes one point of matrix * window * transposed matrix: in doubles and in this order, so that
 * all players get the same bits. */
static void put_point(const constant_row *r, const uint8_t *source, uint64_t window, uint64_t place,
                      const double matrix[3 * WINDOW_POINTS], uint8_t *to) {
    const double *y = matrix + 3 * (place / WINDOW_POINTS),
                 *x = matrix + 3 * (place % WINDOW_POINTS);
    double down[3] = {0};
    float v[9] = {0};
    if (r->stored < 3)
        memcpy(v, source + sizeof v * window, sizeof v);
    else
        for (uint64_t i = 0; i < 9; i++) put_number(r, source, 9 * window + i, (uint8_t *)(v + i));
    for (int i = 0; i < 3; i++) {
        double a = y[0] * (double)v[i], b = y[1] * (double)v[i + 3], c = y[2] * (double)v[i + 6];
        down[i] = (a + b) + c;
    }
    double a = down[0] * x[0], b = down[1] * x[1], c = down[2] * x[2];
    float value = (float)((a + b) + c);
    uint16_t half = cml__to_half(value);
    if (r->becomes == AS_HALF)
        memcpy(to, &half, sizeof half);
    else
        memcpy(to, &value, sizeof value);
}

static uint64_t element_count(const constant_row *r) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < r->rank; i++) count *= r->dims[i].extent;
    return count;
}

/* Makes elements [first, first + count) of a constant. */
static void make_elements(const file *f, const constant_row *r, uint64_t first, uint64_t count,
                          uint8_t *to) {
    const uint8_t *source = f->values.data + r->source;
    uint32_t index[DIMS], size = element_size(r);
    uint64_t at[AXES] = {0}, ends[AXES];
    double matrix[3 * WINDOW_POINTS];
    int is_transformed = r->matrix != UINT64_MAX;
    for (int i = 0; i < AXES; i++) ends[i] = r->extents[i];
    if (is_transformed) memcpy(matrix, f->values.data + r->matrix, sizeof matrix);
    if (is_transformed) ends[2] = WINDOW_POINTS * WINDOW_POINTS;
    for (uint32_t i = r->rank; i-- > 0; first /= r->dims[i].extent) {
        index[i] = (uint32_t)(first % r->dims[i].extent);
        at[r->dims[i].axis] += (uint64_t)index[i] * r->dims[i].step;
    }
    for (; count > 0; count--, to += size) {
        uint64_t row = at[0] * ends[1] + at[1];
        int is_there = at[0] < ends[0] && at[1] < ends[1] && at[2] < ends[2] && at[3] < ends[3];
        if (!is_there)
            memset(to, 0, size);
        else if (is_transformed)
            put_point(r, source, row, at[2], matrix, to);
        else
            put_number(r, source, (row * ends[2] + at[2]) * ends[3] + at[3], to);
        for (uint32_t i = r->rank; i-- > 0;) {
            at[r->dims[i].axis] += r->dims[i].step;
            if (++index[i] < r->dims[i].extent) break;
            at[r->dims[i].axis] -= (uint64_t)r->dims[i].extent * r->dims[i].step;
            index[i] = 0;
        }
    }
}

void cml__make_bytes(const file *f, const constant_row *r, uint64_t first, uint64_t bytes,
                     uint8_t *to) {
    uint64_t size = element_size(r), at = first / size;
    uint64_t count = min_u64(bytes / size, element_count(r) - at);
    make_elements(f, r, at, count, to);
    memset(to + count * size, 0, (size_t)(bytes - count * size));
}
