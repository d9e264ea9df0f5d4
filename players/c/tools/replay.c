/* Runs a recording of the Python scheduler again, with the player's own decisions, and prints the
 * slices of each frame: a line of "job:step:first:count" per frame. tests/players/replay_lines.py
 * writes what it reads: names of events, and numbers. */
#include "internal.h"

enum { MAX_NETS = 256, MAX_JOBS = 1 << 16, MAX_GIVEN = 4096 };

static cml_scheduler c;
static network nets[MAX_NETS];
static double *load_ms[MAX_NETS]; /* what steps took when the network was loaded, or NULL */
static int held[MAX_NETS];        /* networks without memory for another job */
static job *jobs[MAX_JOBS];       /* by number */
static slice given[MAX_GIVEN];    /* the decision of another planner */
static uint32_t net_count, given_count;

static double number(void) {
    double value = 0;
    if (scanf("%lf", &value) != 1) exit(2);
    return value;
}

static uint32_t whole(void) { return (uint32_t)number(); }
static job *known_job(void) { return jobs[whole() % MAX_JOBS]; }

static void take_given(cml_scheduler *of) {
    for (uint32_t i = 0, k; i < given_count; i++) {
        slice one = given[i];
        for (k = 0; k < of->candidate_count && of->candidates[k] != one.job; k++) {}
        if (k == of->candidate_count || of->work->slice_count == of->max_slices) continue;
        one.ms = cml__predict(&of->model, one.step, one.count);
        of->work->slices[of->work->slice_count++] = one;
        for (k = 0; k < of->start_count && of->starts[k] != one.job; k++) {}
        if (k == of->start_count && one.job->run.state != CML_STATE_RUNNING)
            of->starts[of->start_count++] = one.job;
    }
}

static void prepare(cml_scheduler *of, network *net, double ms) {
    (void)of;
    (void)ms;
    net->is_ready = 1;
}

static int has_memory(cml_scheduler *of, job *j) {
    (void)of;
    return !held[j->net - nets];
}

static void begin(void) {
    c.frame_ms = number();
    c.granule = whole();
    c.max_groups = whole();
    c.policy = (cml_policy)whole();
    c.wall_clock = (int)whole();
    c.model.over_share = number();
    c.frame = whole();
    c.max_jobs = whole();
    c.max_slices = MAX_GIVEN;
    c.prepare = prepare;
    c.start = c.finish = has_memory;
    if (!cml__init_core(&c)) exit(1);
}

/* Reads what the scheduler knew when the recording began. */
static void read_known(void) {
    c.model.launch_ms = number();
    c.model.unknown = number();
    c.model.unknown_samples = whole();
    c.model.drift = number();
    c.model.error = number();
    c.back_off = number();
    c.usual_ms = number();
    c.has_ended = (int)whole();
    c.ended_ms = number();
    c.frames_without = whole();
    c.since_rest = whole();
    c.rest_due = (int)whole();
}

static void read_curve(void) {
    curve *learned = cml__curve_of(&c.memory, &c.model, whole());
    for (uint32_t count = whole(); count > 0; count--) {
        point one = {.log_count = number()};
        one.log_ms = number();
        one.samples = whole();
        one.spread = number();
        learned->points[cml__bucket_of((uint32_t)fmax(1, rint(exp(one.log_count))))] = one;
        learned->samples += one.samples;
    }
}

static void read_excess(void) {
    double predicted = number(), measured = number();
    cml__record_excess(&c.model, predicted, measured, (int)whole());
}

static void read_network(void) {
    network *net = nets + net_count++;
    double *times = NULL;
    net->exclusive = nets + whole();
    net->step_count = whole();
    net->steps = calloc(net->step_count, sizeof *net->steps);
    net->after = calloc(net->step_count + 1, sizeof *net->after);
    if (whole()) times = load_ms[net - nets] = calloc(net->step_count, sizeof *times);
    net->is_ready = 1;
    for (uint32_t i = 0; i < net->step_count; i++) {
        step *s = net->steps + i;
        s->groups = whole();
        s->work = number();
        s->factor = number();
        s->key = whole();
        if (times != NULL) times[i] = number();
    }
    cml__adopt_net(&c, net);
}

static void learn_load(const network *net) {
    const double *ms = load_ms[net - nets];
    for (uint32_t i = 0; ms != NULL && i < net->step_count; i++) {
        slice all = {.step = net->steps + i, .count = net->steps[i].groups};
        if (!has_samples(all.step)) cml__learn(&c.model, &all, 1, ms[i]);
    }
}

static void submit(double now) {
    job *j = cml__find_free_job(&c);
    memset(j, 0, sizeof *j);
    j->number = whole();
    j->net = nets + whole();
    learn_load(j->net);
    j->priority = number();
    j->deadline_at = number();
    j->has_deadline = !isnan(j->deadline_at);
    uint32_t slot = whole();
    if (slot > 0) snprintf(j->slot, sizeof j->slot, "%u", slot);
    j->last_served_ms = now;
    for (uint32_t count = whole(); count > 0; count--) {
        job *producer = known_job();
        if (producer == NULL) continue;
        j->producers[j->producer_count++] = producer;
        producer->consumers++;
    }
    jobs[j->number % MAX_JOBS] = j;
    cml__enqueue(&c, j);
}

static void run_frame(double now) {
    double budget = number(), aim = number();
    int behind = (int)whole(), is_given = (int)whole(), rests = (int)whole();
    for (uint32_t count = whole(); count > 0; count--) {
        network *net = nets + whole();
        net->is_ready = (int)whole();
    }
    memset(held, 0, sizeof held);
    for (uint32_t count = whole(); count > 0; count--) held[known_job()->net - nets] = 1;
    given_count = whole();
    for (slice *one = given; one < given + given_count; one++) {
        one->job = known_job();
        one->step = one->job->net->steps + whole();
        one->first = whole();
        one->count = whole();
    }
    c.planner = is_given ? take_given : NULL;
    cml__begin_frame(&c, now, budget, aim, rests, behind);
    cml__finish_jobs(&c);
    for (uint32_t i = 0; i < c.work->slice_count; i++) {
        const slice *run = &c.work->slices[i];
        printf("%s%u:%u:%u:%u", i > 0 ? " " : "", (uint32_t)run->job->number,
               (uint32_t)(run->step - run->job->net->steps), run->first, run->count);
    }
    printf("\n");
}

static void end_frame(double now) {
    for (uint32_t count = whole(); count > 0; count--) {
        uint32_t frame = whole(), group = whole();
        cml__record_timing(&c, frame, group, number());
    }
    cml__end_frame(&c, now);
}

static void play_event(const char *kind) {
    c.now = fmax(c.now, number());
    if (strcmp(kind, "abandoned") == 0)
        cml__abandon_frame(&c);
    else if (strcmp(kind, "frame") == 0)
        run_frame(c.now);
    else if (strcmp(kind, "end") == 0)
        end_frame(c.now);
    else if (strcmp(kind, "submit") == 0)
        submit(c.now);
    else if (strcmp(kind, "cancelled") == 0)
        cml__end_job(&c, known_job(), CML_STATE_CANCELLED, kind);
    else if (strcmp(kind, "failed") == 0)
        cml__end_job(&c, known_job(), CML_STATE_FAILED, kind);
    else
        known_job()->paused = strcmp(kind, "paused") == 0;
}

int main(void) {
    static const struct {
        const char *kind;
        void (*read)(void);
    } records[] = {{"begin", begin},
                   {"known", read_known},
                   {"curve", read_curve},
                   {"excess", read_excess},
                   {"network", read_network}};
    char kind[16];
    while (scanf("%15s", kind) == 1) {
        size_t i = 0;
        while (i < 5 && strcmp(kind, records[i].kind) != 0) i++;
        if (i < 5)
            records[i].read();
        else
            play_event(kind);
    }
    for (uint32_t i = 0; i < net_count; i++) {
        free(nets[i].steps);
        free(nets[i].after);
        free(load_ms[i]);
    }
    cml__heap_free_all(c.memory);
    return 0;
}
