/* Decides what a frame runs and learns from its timings, as the Python scheduler to the bit. */
#include "internal.h"

/* ------------------------------------------------------------------ the decision (plan.py) */

static uint32_t count_unsettled(const work *w) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->slice_count; i++) count += !w->slices[i].settled;
    return count;
}

/* Returns how many slices of a frame can be timed alone, between groups of the others. */
static uint32_t most_alone(const cml_scheduler *s) {
    return s->max_groups < 3 ? 1 : (s->max_groups - 1) / 2;
}

/* Returns the most slices of a frame whose costs are not settled: all are to be timed alone. */
static uint32_t most_unsettled(const cml_scheduler *s) {
    return s->wall_clock ? UINT32_MAX : most_alone(s);
}

/* Adds workgroups of a step that are predicted to take `ms`; returns 1 if their cost is settled. */
static int add_slice(work *w, job *j, step *of, uint32_t first, uint32_t count, double ms) {
    int settled = cml__is_settled(of, count);
    w->slices[w->slice_count++] =
        (slice){.job = j,
                .step = of,
                .first = first,
                .count = count,
                .ms = ms,
                .samples = of->curve->sizes[cml__bucket_of(count)].samples,
                .settled = settled};
    return settled;
}

static int is_among(job *const *jobs, uint32_t count, const job *j) {
    for (uint32_t i = 0; i < count; i++)
        if (jobs[i] == j) return 1;
    return 0;
}

/* Adds the job's next slices within `left` ms; returns 1 if that completes the job. */
static int plan_job(cml_scheduler *s, job *j, double *left) {
    work *w = s->work;
    uint32_t at = j->run.step, group = j->run.group;
    int is_cut = 0;     /* the last slice stops within its step */
    int is_probing = 0; /* a step of unknown cost ends the job's slices of this frame */
    uint32_t unsettled = count_unsettled(w);
    while (at < j->net->step_count && w->slice_count < s->max_slices && !is_probing) {
        step *of = &j->net->steps[at];
        uint32_t limit = of->groups - group;
        int is_first = w->slice_count == 0;
        is_probing = !has_samples(of);
        if (*left <= (is_first ? 0.0 : PLAN_MIN_SHARE * w->report.aim_ms)) break;
        double ms = is_probing ? *left * PLAN_PROBE_SHARE : *left;
        uint32_t count = cml__groups_within(&s->model, of, limit, ms);
        if (s->granule > 1 && s->granule < count && count < limit) count -= count % s->granule;
        if (count == 0 && is_first) count = (uint32_t)min_u64(limit, s->granule);
        if (count == 0 || unsettled >= most_unsettled(s)) break;
        double spent = cml__predict(&s->model, of, count);
        if (is_cut) { /* one dispatch for what still fits behind a cut */
            slice *before = &w->slices[w->slice_count - 1];
            before->count += count;
            before->ms += spent;
        } else {
            unsettled += !add_slice(w, j, of, group, count, spent);
        }
        *left -= spent;
        is_cut = count < limit;
        if (count == limit) {
            at++;
            group = 0;
        } else {
            group += count;
        }
    }
    return at >= j->net->step_count;
}

/* Returns 1 if a job that starts in this frame holds the network, or one that shares its memory. */
static int is_starting(const cml_scheduler *s, const network *net) {
    for (uint32_t i = 0; i < s->start_count; i++)
        if (s->starts[i]->net->exclusive == net->exclusive) return 1;
    return 0;
}

/* Plans the given slices, as far as their jobs could run. */
void cml__use_decision(cml_scheduler *s, const slice *decision, uint32_t count) {
    work *w = s->work;
    uint32_t parts = 0;
    for (const slice *one = decision; one < decision + count; one++) {
        job *j = one->job;
        parts += one->count < one->step->groups;
        if (!is_among(s->candidates, s->candidate_count, j) || w->slice_count == s->max_slices ||
            parts > PARTS)
            continue;
        add_slice(w, j, one->step, one->first, one->count,
                  cml__predict(&s->model, one->step, one->count));
        if (j->run.state != CML_STATE_RUNNING && !is_among(s->starts, s->start_count, j))
            s->starts[s->start_count++] = j;
    }
}

/* Plans slices in the policy's order until the aim is reached; returns why there are no more. */
static cml_reason decide(cml_scheduler *s, int behind, cml_reason otherwise) {
    work *w = s->work;
    double left = w->report.aim_ms;
    w->slice_count = s->start_count = 0;
    w->report.reason = otherwise;
    if (s->planner != NULL && behind != BEHIND_ALL) {
        s->planner(s);
        return w->report.reason;
    }
    if (!(w->report.budget_ms > 0)) return CML_REASON_BUDGET;
    if (behind) return CML_REASON_WAITING_FOR_GPU;
    cml__sort_candidates(s);
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        job *j = s->candidates[i];
        int is_running = j->run.state == CML_STATE_RUNNING;
        if (count_unsettled(w) >= most_unsettled(s)) return CML_REASON_BUDGET;
        if (!is_running && is_starting(s, j->net)) continue;
        uint32_t before = w->slice_count;
        int is_complete = plan_job(s, j, &left);
        if (!is_running && (w->slice_count > before || is_complete))
            s->starts[s->start_count++] = j;
        if (!is_complete) return CML_REASON_BUDGET;
    }
    return otherwise;
}

/* ------------------------------------------------------------------ a frame (frame.py, jobs/) */

/* Returns 1 if the job's inputs are there; fails the job if one never will be. */
static int are_inputs_there(cml_scheduler *s, job *j) {
    int all_there = 1;
    for (uint32_t i = 0; i < j->producer_count; i++) {
        const job *producer = j->producers[i];
        if (!is_over(producer)) all_there = 0;
        if (!has_failed(producer)) continue;
        cml__end_job(s, j, CML_STATE_FAILED,
                     "the job whose output it takes was cancelled or failed");
        return 0;
    }
    return all_there;
}

static int is_running_on(const cml_scheduler *s, const network *net) {
    for (uint32_t i = 0; i < s->live_count; i++)
        if (s->live[i]->run.state == CML_STATE_RUNNING &&
            s->live[i]->net->exclusive == net->exclusive)
            return 1;
    return 0;
}

/* Keeps the candidates that can run. `refused`, which may be NULL, is a job that could not start:
 * the others of its network have to wait. */
static void filter_candidates(cml_scheduler *s, const job *refused) {
    const network *busy = refused == NULL ? NULL : refused->net->exclusive;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        job *j = s->candidates[i];
        if (j == refused || is_over(j)) continue;
        int can_start = j->net->is_ready && j->net->exclusive != busy && !is_running_on(s, j->net);
        if (j->run.state == CML_STATE_RUNNING || can_start) s->candidates[kept++] = j;
    }
    s->candidate_count = kept;
}

/* Collects the jobs that could run now, and builds networks that are not ready. Returns the reason
 * to report if no job runs. */
static cml_reason gather_candidates(cml_scheduler *s, double budget) {
    cml_reason otherwise = CML_REASON_NOTHING_TO_DO;
    uint32_t unready = 0;
    EACH_NET(s, net) net->is_wanted = 0;
    s->candidate_count = 0;
    for (uint32_t i = 0; i < s->live_count;) { /* producers are older than consumers */
        job *j = s->live[i];
        int is_queued = j->run.state == CML_STATE_QUEUED;
        int is_fed = !is_queued || are_inputs_there(s, j);
        if (is_over(j)) continue; /* it failed, and is not in the list any more */
        int can_run = is_fed && !j->paused;
        if (is_queued && !can_run) otherwise = CML_REASON_ALL_WAITING;
        if (can_run) s->candidates[s->candidate_count++] = j;
        if (is_queued && can_run) j->net->is_wanted = 1;
        i++;
    }
    filter_candidates(s, NULL);
    EACH_NET(s, net)
        if (net->is_wanted && !net->is_ready) unready++;
    EACH_NET(s, net)
        if (net->is_wanted && !net->is_ready) s->prepare(s, net, budget / unready);
    for (uint32_t i = 0; i < s->candidate_count; i++) {
        job *j = s->candidates[i];
        j->remaining = j->has_deadline ? cml__remaining_ms(s, j) : 0.0;
    }
    return unready > 0 ? CML_REASON_PREPARING : otherwise;
}

/* Chooses the slices that are timed alone: those whose costs are not settled, and in some frames
 * those that were timed least often. */
static void choose_alone(const cml_scheduler *s, work *w) {
    int all_settled = count_unsettled(w) == 0;
    uint32_t most = w->slice_count > s->max_groups ? most_alone(s) : w->slice_count;
    EACH_SLICE(w, one) one->alone = 0;
    for (uint32_t chosen = 0; chosen < most; chosen++) {
        slice *least = NULL;
        EACH_SLICE(w, one) {
            int wanted = !one->settled || (all_settled && s->frame % PLAN_APART_EVERY == 0);
            if (wanted && !one->alone && (least == NULL || one->samples < least->samples))
                least = one;
        }
        if (least == NULL) return;
        least->alone = 1;
    }
}

static int opens_group(const work *w, uint32_t i, int by_job) {
    if (i == 0 || w->slices[i].alone || w->slices[i - 1].alone) return 1;
    return by_job && w->slices[i].job != w->slices[i - 1].job;
}

/* Divides the slices into runs of neighbours that are timed together: slices that are timed alone,
 * and the others by job, as far as there are enough timings. */
static void make_groups(const cml_scheduler *s, work *w) {
    uint32_t runs = 0;
    choose_alone(s, w);
    for (uint32_t i = 0; i < w->slice_count; i++) {
        if (s->max_groups == 1) w->slices[i].alone = 0;
        runs += (uint32_t)opens_group(w, i, 1);
    }
    w->group_count = 0;
    for (uint32_t i = 0; i < w->slice_count; i++) {
        if (opens_group(w, i, runs <= s->max_groups)) w->ms[w->group_count++] = -1;
        w->ends[w->group_count - 1] = i + 1;
    }
}

/* Starts the jobs that the decision starts; returns 0 if one could not, and has to be left out. */
static int start_jobs(cml_scheduler *s) {
    for (uint32_t i = 0; i < s->start_count; i++) {
        if (!s->start(s, s->starts[i])) {
            filter_candidates(s, s->starts[i]);
            return 0;
        }
        s->starts[i]->run.state = CML_STATE_RUNNING;
    }
    return 1;
}

/* Decides what the frame runs and accounts for it; nothing is encoded yet. `aim` is below 0 unless
 * the budget states it. */
void cml__begin_frame(cml_scheduler *s, double now, double budget, double aim, int rests,
                      int behind) {
    work *w = s->work = &s->works[s->frame % IN_FLIGHT];
    if (aim < 0) aim = cml__aim_for(&s->model, budget) / s->back_off;
    s->now = now;
    s->rate = aim / s->frame_ms;
    w->report = (cml_report){.frame = s->frame,
                             .now_ms = now,
                             .budget_ms = budget,
                             .aim_ms = rests || s->skip_due ? 0.0 : aim,
                             .measured_ms = -1};
    w->is_replayed = s->planner != NULL;
    s->left[0] = s->left[1] = HUGE_VAL;
    s->open = 1;
    for (uint32_t i = 0; i < s->live_count; i++) {
        s->live[i]->saved = s->live[i]->run;
        s->live[i]->saved_in = s->frame + 1;
    }
    cml_reason otherwise = gather_candidates(s, budget);
    do w->report.reason = decide(s, behind, otherwise);
    while (!start_jobs(s));
    EACH_SLICE(w, run) {
        job *j = run->job;
        uint32_t end = run->first + run->count;
        j->run.step = (uint32_t)(run->step - j->net->steps);
        j->run.group = end;
        if (end == run->step->groups) {
            j->run.step++;
            j->run.group = 0;
        }
        j->run.given_ms += run->ms;
        j->run.virtual_ms += run->ms / (is_idle(j) ? 1.0 : j->priority);
        j->last_served_ms = now;
        w->report.predicted_ms += run->ms;
    }
    w->report.slices = w->slice_count;
    make_groups(s, w);
}

/* Ends the jobs whose last step is encoded, if there is memory for their outputs. */
void cml__finish_jobs(cml_scheduler *s) {
    for (uint32_t i = 0; i < s->live_count;) {
        job *j = s->live[i];
        int is_complete = j->run.state == CML_STATE_RUNNING && j->run.step >= j->net->step_count;
        if (is_complete && s->finish(s, j)) {
            cml__end_job(s, j, CML_STATE_DONE, "");
            s->work->report.finished++;
        }
        if (i < s->live_count && s->live[i] == j) i++;
    }
}

/* ------------------------------------------------------------------ learning (frame_timings.py) */

/* Learns from the time between two frames if there are no timestamps. Returns 1 if the frame was
 * late, perhaps because of its networks, if it ran some. */
static int judge_interval(cml_scheduler *s, double interval, int ran_some) {
    int is_late = interval > PLAN_LATE * s->usual_ms;
    double weight = interval < s->usual_ms ? PLAN_SMOOTHED : 0.0;
    s->without = ran_some ? 0 : s->without + 1;
    s->since_skip = s->without > 1 ? 0 : s->since_skip + 1;
    if (s->without >= 2) s->skip_due = 0;
    if (s->without > 0 || (is_late && is_equal(s->back_off, PLAN_MOST_BACK_OFF)))
        weight = PLAN_BELIEVED;
    if (s->without == 2) weight = 1.0;
    s->usual_ms += weight * (fmax(interval, s->frame_ms) - s->usual_ms);
    if (is_late && ran_some && s->since_skip > PLAN_SKIP_EVERY)
        s->skip_due = 1;
    else if (is_late && ran_some)
        s->back_off = fmin(PLAN_MOST_BACK_OFF, s->back_off * PLAN_GROWTH);
    else
        s->back_off = 1 + (s->back_off - 1) * pow(PLAN_DECAY, interval / s->frame_ms);
    return is_late;
}

/* Confirms the first guesses of a frame that was in time. */
static void confirm_guesses(cml_scheduler *s, work *w) {
    EACH_SLICE(w, one)
        if (!has_samples(one->step))
            cml__learn(&s->model, one, 1, cml__predict(&s->model, one->step, one->count));
}

static void learn_frame(cml_scheduler *s, work *w) {
    cml_report *r = &w->report;
    r->measured_ms = 0;
    for (uint32_t i = 0; i < w->group_count; i++) r->measured_ms += w->ms[i];
    if (count_unsettled(w) == 0 && !w->is_replayed &&
        r->predicted_ms > PLAN_TELLING_SHARE * r->aim_ms && r->measured_ms > 0 &&
        !is_infinite(r->predicted_ms + r->measured_ms)) {
        double lifted = fmax(0.0, PLAN_SMALL * r->budget_ms - r->predicted_ms);
        cml__record_excess(&s->model, r->predicted_ms + lifted, r->measured_ms + lifted,
                           r->measured_ms - r->predicted_ms > r->budget_ms);
    }
    for (uint32_t i = 0, first = 0; i < w->group_count; first = w->ends[i++])
        cml__learn(&s->model, w->slices + first, w->ends[i] - first, w->ms[i]);
    s->measured[s->measured_count++] = *r;
}

/* Records the measured time of a group of a frame's slices. */
void cml__record_timing(cml_scheduler *s, uint64_t frame, uint32_t group, double ms) {
    work *w = &s->works[frame % IN_FLIGHT];
    if (!(ms >= 0) || is_infinite(ms)) return;
    if (w->report.frame == frame && group < w->group_count) w->ms[group] = ms;
    if (s->newest <= frame) s->newest = frame + 1;
}

/* Ends a frame that was submitted. Frames before the newest timings have all of their own. */
void cml__end_frame(cml_scheduler *s, double now) {
    double interval = fmin(now - s->ended_ms, PLAN_LONGEST * s->frame_ms);
    EACH_JOB(s, j) /* what has started, has its inputs */
        if (j->run.state != CML_STATE_QUEUED) cml__drop_producers(j);
    if (s->has_ended) {
        double weight = fmax(PLAN_SMOOTHED, 1.0 / (double)++s->intervals);
        s->interval_ms += weight * (interval - s->interval_ms);
    }
    if (s->wall_clock) {
        if (s->has_ended && !judge_interval(s, interval, s->work->slice_count > 0))
            confirm_guesses(s, s->work);
        s->work->slice_count = 0;
    }
    s->has_ended = 1;
    s->ended_ms = now;
    s->open = 0;
    s->frame++;
    s->measured_count = 0;
    for (uint32_t i = 0; i < IN_FLIGHT; i++) { /* the oldest first */
        work *w = &s->works[(s->frame + i) % IN_FLIGHT];
        if (w->slice_count == 0 || w->report.frame >= s->newest) continue;
        int is_complete = 1;
        for (uint32_t k = 0; k < w->group_count; k++)
            if (!(w->ms[k] >= 0)) is_complete = 0;
        if (is_complete) learn_frame(s, w);
        w->slice_count = 0;
    }
}

/* Takes back a frame that will never run: its jobs go on from where they were before. */
void cml__abandon_frame(cml_scheduler *s) {
    if (!s->open) return;
    EACH_JOB(s, j) {
        if (j->saved_in != s->frame + 1 || j->run.state == CML_STATE_GONE || has_failed(j))
            continue;
        if (j->run.state == CML_STATE_DONE) cml__insert_live(s, j);
        j->run = j->saved;
    }
    s->work->slice_count = 0;
    s->open = 0;
    s->frame++;
}
