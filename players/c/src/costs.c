/* Predicts the time of slices, and learns it from measurements: scheduler/planning/ in C.
 * Players decide bit for bit as the Python scheduler does, so sums and products keep its order, and
 * compilers must not fuse them: internal.h has the pragmas, gcc needs -ffp-contract=off. */
#include "internal.h"

static double clamp_abs(double error, double limit) { return fmax(fmin(limit, error), -limit); }

uint32_t cml__bucket_of(uint32_t count) { return (uint32_t)rint(2 * log2(count)); }

/* FNV-1a. Two keys of one hash would only share their costs. */
uint64_t cml__key_of(cml_text text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < text.length; i++) hash = (hash ^ (uint8_t)text.data[i]) * 0x100000001b3u;
    return hash;
}

/* Returns the curve of a key, which is made if it is new; NULL without memory. */
curve *cml__curve_of(heap *memory, cost_model *m, uint64_t key) {
    curve **list = &m->curves[key % CURVE_LISTS];
    for (curve *c = *list; c != NULL; c = c->next)
        if (c->key == key) return c;
    curve *added = cml__heap_alloc(memory, 1, sizeof *added);
    if (added == NULL) return NULL;
    added->key = key;
    added->next = *list;
    *list = added;
    return added;
}

/* Returns the middle one of at most PLAN_LAST values, the lower one of two. */
double cml__median(const double *values, uint32_t n) {
    double sorted[PLAN_LAST > PLAN_RATIOS ? PLAN_LAST : PLAN_RATIOS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > values[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = values[i];
    }
    return sorted[(n - 1) / 2];
}

/* Prepares the sizes that count: the settled ones, or all if there are none. Times that fall with
 * the number of workgroups are replaced by their weighted means. */
static void order_sizes(curve *c) {
    int any_settled = 0;
    double weights[BUCKETS];
    uint32_t numbers[BUCKETS], blocks = 0;
    double means[BUCKETS];
    for (int i = 0; i < BUCKETS; i++)
        if (c->sizes[i].samples >= PLAN_SETTLED) any_settled = 1;
    c->ordered = 0;
    for (int i = 0; i < BUCKETS; i++) {
        const timed_size *of = &c->sizes[i];
        if (of->samples < (any_settled ? PLAN_SETTLED : 1)) continue;
        double value = cml__median(of->log_times, of->kept), weight = of->kept;
        uint32_t number = 1;
        for (; blocks > 0 && means[blocks - 1] > value; blocks--) {
            value = (means[blocks - 1] * weights[blocks - 1] + value * weight) /
                    (weights[blocks - 1] + weight);
            weight += weights[blocks - 1];
            number += numbers[blocks - 1];
        }
        means[blocks] = value;
        weights[blocks] = weight;
        numbers[blocks++] = number;
        c->at[c->ordered++] = of->log_count;
    }
    for (uint32_t n = 0, i = 0; n < blocks; n++)
        for (uint32_t k = 0; k < numbers[n]; k++) c->log_ms[i++] = means[n];
}

/* Returns the logarithm of the time of `count` workgroups, of a curve that has samples. Beyond the
 * sizes, the time grows with the workgroups, but for the launch. */
static double interpolate(curve *c, uint32_t count, double launch_ms) {
    double x = log(count);
    if (c->ordered == 0) order_sizes(c);
    uint32_t above = 0, n = c->ordered;
    while (above < n && c->at[above] < x) above++;
    if (above == n || (above == 0 && !is_equal(c->at[0], x))) {
        uint32_t nearest = above < n ? above : n - 1;
        double nearest_ms = exp(c->log_ms[nearest]), fixed_ms = fmin(launch_ms, nearest_ms);
        double ratio = exp(x - c->at[nearest]);
        return log(fixed_ms + (nearest_ms - fixed_ms) * ratio);
    }
    if (is_equal(c->at[above], x)) return c->log_ms[above];
    double share = (x - c->at[above - 1]) / (c->at[above] - c->at[above - 1]);
    return c->log_ms[above - 1] + share * (c->log_ms[above] - c->log_ms[above - 1]);
}

/* Returns the logarithm of measured over guessed times of steps that were never measured. */
static double unknown(const cost_model *m) {
    return m->ratio_count == 0
               ? 0.0
               : clamp_abs(cml__median(m->ratios, m->ratio_count), PLAN_MOST_UNKNOWN);
}

/* Returns the median time of `count` workgroups of the step. */
double cml__predict(const cost_model *m, const step *s, uint32_t count) {
    if (count == 0) return 0.0;
    if (!has_samples(s))
        return m->launch_ms + count * s->work * s->factor * exp(unknown(m) + m->drift);
    return exp(interpolate(s->curve, count, fmin(m->least_ms, m->launch_ms)) + m->drift);
}

/* Returns 1 if the step was timed often enough at about `count` workgroups. */
int cml__is_settled(const step *s, uint32_t count) {
    int bucket = (int)cml__bucket_of(count);
    for (int i = bucket - PLAN_NEAR; i <= bucket + PLAN_NEAR; i++)
        if (i >= 0 && i < BUCKETS && s->curve->sizes[i].samples >= PLAN_SETTLED) return 1;
    return 0;
}

/* Returns the largest number of workgroups, at limit `limit`, that is predicted to take `ms`. */
uint32_t cml__groups_within(const cost_model *m, const step *s, uint32_t limit, double ms) {
    if (limit == 0 || ms <= 0) return 0;
    if (cml__predict(m, s, limit) <= ms) return limit;
    if (cml__predict(m, s, 1) > ms) return 0;
    uint32_t low = 1, high = limit; /* low fits, high does not */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (cml__predict(m, s, middle) <= ms)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Drops the oldest values of a list whose newest one is the last. */
static void drop_oldest(double *values, uint32_t *count, uint32_t dropped) {
    *count -= dropped;
    memmove(values, values + dropped, sizeof *values * *count);
}

/* Adds a time, the logarithm of ms, to the last ones of about so many workgroups. */
static void learn_size(timed_size *of, double log_count, double log_ms) {
    double usual = of->kept > 0 ? cml__median(of->log_times, of->kept) : 0.0;
    if (of->samples++ == 0) of->log_count = log_count;
    if (of->kept == PLAN_LAST) drop_oldest(of->log_times, &of->kept, 1);
    /* the number differs a little from the size's own */
    of->log_times[of->kept++] = log_ms - (log_count - of->log_count);
    uint32_t newest = of->kept < PLAN_SETTLED ? 0 : of->kept - PLAN_SETTLED;
    double least = HUGE_VAL, most = -HUGE_VAL;
    for (uint32_t i = newest; i < of->kept; i++) {
        least = fmin(least, of->log_times[i]);
        most = fmax(most, of->log_times[i]);
    }
    if (least > usual + PLAN_CHANGED || most < usual - PLAN_CHANGED)
        drop_oldest(of->log_times, &of->kept, newest);
}

/* Learns from the first time of a step how far first guesses are off on this device. */
static void learn_ratio(cost_model *m, const step *s, uint32_t count, double ms) {
    double work_ms = count * s->work * s->factor;
    if (!(work_ms > 0) || !(ms > PLAN_TELLING_LAUNCHES * m->launch_ms)) return;
    if (m->ratio_count == PLAN_RATIOS) drop_oldest(m->ratios, &m->ratio_count, 1);
    m->ratios[m->ratio_count++] = log((ms - m->launch_ms) / work_ms) - m->drift;
}

static void learn_step(cost_model *m, const step *s, uint32_t count, double ms) {
    curve *c = s->curve;
    if (!has_samples(s)) learn_ratio(m, s, count, ms);
    timed_size *of = &c->sizes[cml__bucket_of(count)];
    learn_size(of, log(count), log(ms / exp(m->drift)));
    c->samples++;
    c->ordered = 0;
    if (of->samples >= PLAN_SETTLED)
        m->least_ms = fmin(m->least_ms, exp(cml__median(of->log_times, of->kept)));
}

/* Learns that settled steps took `ratio` times the predicted time. */
static void learn_drift(cost_model *m, double ratio) {
    double error = clamp_abs(log(ratio), PLAN_CLIP);
    m->drift += PLAN_DRIFT_WEIGHT * clamp_abs(error, PLAN_LITTLE + PLAN_USUAL * m->error);
    m->error += PLAN_DRIFT_WEIGHT * (fabs(error) - m->error);
}

/* Returns how far the predicted time of a slice may be off. */
static double error_of(const slice *of) {
    return (of->settled ? PLAN_KNOWN_ERROR : PLAN_UNKNOWN_ERROR) * of->ms;
}

/* Learns that the slices together took `ms`. The time of one slice is a sample of its cost. The
 * time of several is an equation: less the costs of the others, it is a sample of a slice whose
 * cost is not settled, if the others are known well enough. */
void cml__learn(cost_model *m, slice *slices, uint32_t n, double ms) {
    double total = 0, variance = 0;
    int all_settled = 1;
    if (n == 0 || !(ms >= 0) || is_infinite(ms) || (n > 1 && !(ms > 0))) return;
    if (n == 1) {
        if (ms > 0 && cml__is_settled(slices->step, slices->count))
            learn_drift(m, ms / cml__predict(m, slices->step, slices->count));
        learn_step(m, slices->step, slices->count, fmax(ms, PLAN_SHORTEST));
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        slice *of = &slices[i];
        of->ms = cml__predict(m, of->step, of->count);
        of->settled = cml__is_settled(of->step, of->count);
        double error = error_of(of);
        total += of->ms;
        variance += error * error;
        all_settled &= of->settled;
    }
    if (all_settled) {
        learn_drift(m, ms / total);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const slice *of = &slices[i];
        double error = error_of(of);
        double rest = ms - (total - of->ms);
        double others = sqrt(fmax(0.0, variance - error * error));
        if (!of->settled && others < PLAN_MOST_ERROR * rest)
            learn_step(m, of->step, of->count, rest);
    }
}

/* Records by how much a frame exceeded its prediction; a hopeless one counts as if it did not. */
void cml__record_excess(cost_model *m, double predicted, double measured, int hopeless) {
    double excess = hopeless ? 0.0 : (measured - predicted) / sqrt(predicted);
    uint32_t at = 0;
    if (m->count == PLAN_WINDOW) { /* the oldest one goes */
        while (m->sorted[at] < m->excess[m->next]) at++;
        m->count--;
        memmove(m->sorted + at, m->sorted + at + 1, sizeof excess * (m->count - at));
    }
    m->excess[m->next] = excess;
    m->next = (m->next + 1) % PLAN_WINDOW;
    for (at = m->count; at > 0 && m->sorted[at - 1] > excess; at--)
        m->sorted[at] = m->sorted[at - 1];
    m->sorted[at] = excess;
    m->count++;
}

/* Returns the ms to plan for, so that at most `over_share` of the frames exceed the budget. */
double cml__aim_for(const cost_model *m, double budget) {
    double share = PLAN_AIMED_SHARE * m->over_share;
    double rank = ceil((1 - share) * (m->count + 1.0)) - 1;
    if (m->count < PLAN_ENOUGH) return budget / PLAN_PRIOR;
    double tail = m->sorted[rank < m->count ? (uint32_t)rank : m->count - 1];
    if (rank >= m->count) /* frames as rare as that have not been seen yet */
        tail += fmax(0.0, 0.5 * (tail - m->sorted[m->count / 2]) * (1 - m->count * share));
    double half = 0.5 * fmax(0.0, tail);
    return fmax(pow(sqrt(half * half + budget) - half, 2), PLAN_LEAST_AIM * budget);
}
