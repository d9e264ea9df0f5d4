/* Predicts the time of slices, and learns it from measurements: scheduler/planning/ in C.
 * Players decide bit for bit as the Python scheduler does, so sums and products keep its order, and
 * compilers must not fuse them: -ffp-contract=off where a processor has fused operations. */
#include "internal.h"

static double clamp_abs(double error, double limit) { return fmax(fmin(limit, error), -limit); }
static double capped_count(uint64_t samples) { return fmin((double)samples, PLAN_MEMORY); }

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

/* Returns the logarithm of the time of `count` workgroups, of a curve that has samples. Beyond the
 * outermost points the time is proportional to the number. */
static double interpolate(const curve *c, uint32_t count) {
    const point *p = c->points;
    int low = (int)cml__bucket_of(count), high = low;
    double x = log(count);
    while (low >= 0 && (p[low].samples == 0 || p[low].log_count > x)) low--;
    while (high < BUCKETS && (p[high].samples == 0 || p[high].log_count < x)) high++;
    if (low == high) return p[low].log_ms;
    if (low < 0) return p[high].log_ms + x - p[high].log_count;
    if (high == BUCKETS) return p[low].log_ms + x - p[low].log_count;
    double share = (x - p[low].log_count) / (p[high].log_count - p[low].log_count);
    return p[low].log_ms + share * (p[high].log_ms - p[low].log_ms);
}

/* Returns the median time of `count` workgroups of the step. */
double cml__predict(const cost_model *m, const step *s, uint32_t count) {
    if (count == 0) return 0.0;
    if (!has_samples(s))
        return m->launch_ms + count * s->work * s->factor * exp(m->unknown + m->drift);
    return exp(interpolate(s->curve, count) + m->drift);
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

static void learn_curve(curve *c, uint32_t count, double ms) {
    point *p = &c->points[cml__bucket_of(count)];
    double x = log(count), y = log(ms);
    c->samples++;
    if (p->samples == 0) {
        *p = (point){x, y, 0.0, 1};
        return;
    }
    p->samples++;
    double error = y - (x - p->log_count) - p->log_ms, weight = 1.0 / capped_count(p->samples);
    if (p->samples > PLAN_CLIP_AFTER) error = clamp_abs(error, PLAN_CLIP);
    double limit = PLAN_SOME + PLAN_USUAL * p->spread;
    double limited = p->samples > PLAN_SETTLED ? clamp_abs(error, limit) : error;
    double moved = weight * limited;
    p->spread += weight * (fabs(error) - p->spread);
    for (int i = 0; i < BUCKETS;
         i++) { /* a slower device is slower at every number of workgroups */
        point *other = &c->points[i];
        other->log_ms += other == p ? moved : PLAN_COMMON * clamp_abs(moved, PLAN_CLIP);
    }
}

/* Learns that the slices together took `ms`; below 0: what is predicted. Each gets its predicted
 * share of the time. */
void cml__learn(cost_model *m, slice *slices, uint32_t n, double ms) {
    double total = 0;
    int all_known = 1;
    for (uint32_t i = 0; i < n; i++) {
        slices[i].ms = cml__predict(m, slices[i].step, slices[i].count);
        total += slices[i].ms;
    }
    double ratio = ms < 0 ? 1.0 : ms / total;
    if (!(ratio > 0) || !(total > 0) || isinf(ratio)) return;
    for (uint32_t i = 0; i < n; i++) {
        const curve *c = slices[i].step->curve;
        if (c->points[cml__bucket_of(slices[i].count)].samples == 0) all_known = 0;
    }
    if (all_known) {
        double error = clamp_abs(log(ratio), PLAN_CLIP);
        double limit = PLAN_LITTLE + PLAN_USUAL * m->error;
        m->drift += PLAN_DRIFT_WEIGHT * clamp_abs(error, limit);
        m->error += PLAN_DRIFT_WEIGHT * (fabs(error) - m->error);
    }
    double slower = exp(m->drift);
    for (uint32_t i = 0; i < n; i++) {
        if (!has_samples(slices[i].step) && slices[i].ms > PLAN_TELLING_LAUNCHES * m->launch_ms) {
            m->unknown_samples++;
            double moved = m->unknown + log(ratio) / capped_count(m->unknown_samples);
            m->unknown = clamp_abs(moved, PLAN_MOST_UNKNOWN);
        }
        learn_curve(slices[i].step->curve, slices[i].count, slices[i].ms * ratio / slower);
    }
}

/* Records by how much a frame exceeded its prediction; a hopeless frame counts as one that did not.
 */
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

/* Returns the predicted milliseconds to plan for, so that at limit `over_share` of the frames
 * exceed the budget. */
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
