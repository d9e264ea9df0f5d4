/* The pool of jobs, and the policies that order them: scheduler/jobs/ and policy.py in C. */
#include "internal.h"

/* Allocates all that frames need, after the scheduler's numbers were set. Returns 0 without memory.
 */
int cml__init_core(cml_scheduler *s) {
    s->jobs = cml__heap_alloc(&s->memory, s->max_jobs, sizeof *s->jobs);
    s->live = cml__heap_alloc(&s->memory, s->max_jobs, sizeof *s->live);
    s->starts = cml__heap_alloc(&s->memory, s->max_jobs, sizeof *s->starts);
    s->candidates = cml__heap_alloc(&s->memory, s->max_jobs, sizeof *s->candidates);
    slice *slices = cml__heap_alloc(&s->memory, s->max_slices, IN_FLIGHT * sizeof *slices);
    if (s->memory.exhausted) return 0;
    for (uint32_t i = 0; i < IN_FLIGHT; i++)
        s->works[i].slices = slices + (size_t)s->max_slices * i;
    s->work = s->works;
    s->left[0] = s->left[1] = HUGE_VAL;
    s->usual_ms = s->interval_ms = s->frame_ms;
    s->back_off = 1.0;
    s->since_skip = PLAN_SKIP_EVERY;
    s->model.error = PLAN_CLIP;
    s->model.least_ms = HUGE_VAL;
    return 1;
}

/* Returns 1 if a job of the network has not ended, or frames with its work may not have run. */
int cml__is_at_work(const network *net) {
    const cml_scheduler *s = net->owner;
    if (s == NULL) return 0;
    for (uint32_t i = 0; i < s->live_count; i++)
        if (s->live[i]->net == net) return 1;
    return net->slot_mask != 0;
}

static void learn_load(cml_scheduler *s, const network *net) {
    for (uint32_t i = 0; net->load_ms != NULL && i < net->step_count; i++) {
        slice all = {.step = net->steps + i, .count = net->steps[i].groups};
        if (!has_samples(all.step)) cml__learn(&s->model, &all, 1, net->load_ms[i]);
    }
}

/* Takes a network out of a scheduler's list, if it is in there. */
void cml__unlink_net(cml_scheduler *s, const network *net) {
    network **at = &s->nets;
    while (*at != NULL && *at != net) at = &(*at)->next;
    if (*at != NULL) *at = net->next;
}

/* Gives the network's steps their cost curves and adds it to the scheduler, from another one if it
 * is not at work there. Returns 0 without memory. */
int cml__adopt_net(cml_scheduler *s, network *net) {
    if (net->owner == s) return 1;
    for (uint32_t i = 0; i < net->step_count; i++)
        if (cml__curve_of(&s->memory, &s->model, net->steps[i].key) == NULL) return 0;
    for (uint32_t i = 0; i < net->step_count; i++)
        net->steps[i].curve = cml__curve_of(&s->memory, &s->model, net->steps[i].key);
    if (!(s->model.launch_ms > 0)) { /* all files guess the same of one device */
        s->model.launch_ms = net->f.guess.launch_ms;
        /* measured guesses count as some ratios of 1 */
        s->model.ratio_count = net->f.guess.factors > 0 ? PLAN_GUESSED_SAMPLES : 0;
    }
    if (net->owner != NULL) cml__unlink_net(net->owner, net);
    net->owner = s;
    net->after_frame = 0;
    net->next = s->nets;
    s->nets = net;
    return 1;
}

/* Returns the predicted GPU time of the rest of a job. */
double cml__remaining_ms(cml_scheduler *s, job *j) {
    network *net = j->net;
    if (is_over(j) || j->run.step >= net->step_count) return 0.0;
    if (net->after_frame != s->frame + 1 || !s->open) { /* predictions are kept for one frame */
        net->after[net->step_count] = 0.0;
        for (uint32_t i = net->step_count; i-- > 0;) {
            const step *later = &net->steps[i];
            net->after[i] = net->after[i + 1] + cml__predict(&s->model, later, later->groups);
        }
        net->after_frame = s->open ? s->frame + 1 : 0;
    }
    const step *current = &net->steps[j->run.step];
    return cml__predict(&s->model, current, current->groups - j->run.group) +
           net->after[j->run.step + 1];
}

/* Lets go of the jobs whose outputs this job takes. */
void cml__drop_producers(job *j) {
    for (; j->producer_count > 0; j->producer_count--)
        j->producers[j->producer_count - 1]->consumers--;
}

void cml__insert_live(cml_scheduler *s, job *j) {
    uint32_t at = s->live_count++;
    for (; at > 0 && s->live[at - 1]->number > j->number; at--) s->live[at] = s->live[at - 1];
    s->live[at] = j;
}

/* Ends a job that has not ended. */
void cml__end_job(cml_scheduler *s, job *j, cml_state state, const char *why) {
    double *left = &s->left[is_idle(j)];
    uint32_t i = 0;
    if (is_over(j)) return;
    while (s->live[i] != j) i++;
    for (s->live_count--; i < s->live_count; i++) s->live[i] = s->live[i + 1];
    snprintf(j->error, sizeof j->error, "%s", why);
    j->run.state = state;
    *left = fmin(*left, j->run.virtual_ms);
    /* a job that is done keeps its producers: its frame may be abandoned */
    if (state != CML_STATE_DONE) cml__drop_producers(j);
    if (state == CML_STATE_FAILED)
        cml__log(s, CML_LOG_ERROR, "job %llu failed: %s", ULL(j->number), why);
}

/* Returns a free place of the pool, else that of the oldest failed job that no job waits for; or
 * NULL. */
job *cml__find_free_job(cml_scheduler *s) {
    job *oldest = NULL;
    EACH_JOB(s, j) {
        if (j->run.state == CML_STATE_GONE) return j;
        if (has_failed(j) && j->consumers == 0 && (oldest == NULL || j->number < oldest->number))
            oldest = j;
    }
    return oldest;
}

/* Queues a job. It starts level with the others, so that it cannot make up for its absence. */
void cml__enqueue(cml_scheduler *s, job *j) {
    learn_load(s, j->net);
    if (j->slot[0] != 0) {
        for (uint32_t i = s->live_count; i-- > 0;) {
            job *other = s->live[i];
            if (other->run.state == CML_STATE_QUEUED && strcmp(other->slot, j->slot) == 0)
                cml__end_job(s, other, CML_STATE_CANCELLED,
                             "superseded by a newer job of its slot");
        }
        s->left[0] = s->left[1] = HUGE_VAL;
    }
    double level = s->left[is_idle(j)];
    for (uint32_t i = 0; i < s->live_count; i++)
        if (is_idle(s->live[i]) == is_idle(j)) level = fmin(level, s->live[i]->run.virtual_ms);
    j->run.virtual_ms = is_infinite(level) ? 0.0 : level;
    j->run.state = CML_STATE_QUEUED;
    cml__insert_live(s, j);
}

static int comes_before(const cml_scheduler *s, const job *a, const job *b) {
    if (a == s->starved || b == s->starved) return a == s->starved;
    if (a->urgent != b->urgent) return a->urgent > b->urgent;
    /* by priority, or both are urgent: shares of time do not matter */
    int by_priority = s->policy == CML_POLICY_BY_PRIORITY || (a->urgent && b->urgent);
    if (!by_priority) {
        if (is_idle(a) != is_idle(b)) return is_idle(b);
        if (!is_equal(a->run.virtual_ms, b->run.virtual_ms))
            return a->run.virtual_ms < b->run.virtual_ms;
    } else if (a->urgent && !is_equal(a->laxity, b->laxity)) {
        return a->laxity < b->laxity;
    }
    if (!is_equal(a->priority, b->priority)) return a->priority > b->priority;
    return a->number < b->number;
}

/* Returns 1 if `a` has been served less recently than `b`, which may be NULL. */
static int is_hungrier(const job *a, const job *b) {
    if (b == NULL || a->last_served_ms < b->last_served_ms) return 1;
    return is_equal(a->last_served_ms, b->last_served_ms) && a->number < b->number;
}

/* Sorts the candidates as the policy would run them, with the longest starved one first. */
void cml__sort_candidates(cml_scheduler *s) {
    int has_deadlines = s->policy == CML_POLICY_LEAST_LAXITY;
    if (s->order != NULL) {
        s->order(s);
        return;
    }
    s->starved = NULL;
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        job *j = s->candidates[i];
        int has_begun = j->run.group > 0 || j->run.step > 0;
        double laxity = j->deadline_at - s->now - j->remaining / fmax(s->rate, 1e-9);
        double overdue = s->now - j->deadline_at;
        int catches_up = overdue >= 0 && overdue <= PLAN_CATCH_UP_MS;
        j->urgent = 0;
        if (has_deadlines && j->has_deadline && !is_idle(j))
            j->urgent = laxity >= 0 ? 2 : catches_up;
        j->laxity = laxity - (has_begun ? PLAN_STICKINESS_MS : 0.0);
        if (has_deadlines && s->now - j->last_served_ms > PLAN_STARVED_MS && !is_idle(j) &&
            is_hungrier(j, s->starved))
            s->starved = j;
    }
    for (uint32_t i = 1; i < s->candidate_count; i++) { /* insertion sort: there are few */
        job *j = s->candidates[i];
        uint32_t k = i;
        for (; k > 0 && comes_before(s, j, s->candidates[k - 1]); k--)
            s->candidates[k] = s->candidates[k - 1];
        s->candidates[k] = j;
    }
}

/* Returns the predicted milliseconds until a job ends if nothing else is submitted. */
double cml__eta_ms(cml_scheduler *s, job *j) {
    double interval = fmax(s->frame_ms, s->interval_ms), rate = s->rate;
    double ahead = cml__remaining_ms(s, j);
    if (is_over(j)) return 0.0;
    s->candidate_count = 0;
    for (uint32_t i = 0; i < s->live_count; i++) {
        job *other = s->live[i];
        other->remaining = cml__remaining_ms(s, other);
        if (!other->paused || other == j) s->candidates[s->candidate_count++] = other;
    }
    s->now = cml__steady_now(s);
    s->rate *= s->frame_ms / interval;
    cml__sort_candidates(s);
    for (uint32_t i = 0; i < s->candidate_count && s->candidates[i] != j; i++)
        ahead += s->candidates[i]->remaining;
    double eta = ahead / fmax(s->rate, 1e-9) + interval;
    s->rate = rate;
    return eta;
}
