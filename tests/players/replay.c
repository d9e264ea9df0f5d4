/* Runs a recording of the Python scheduler again, with the player's own decisions, and prints the
 * slices of each frame: a line of "job:step:first:count" per frame. tests/players/replay_lines.py
 * writes what it reads: names of events, and numbers. */
#include "internal.h"

enum { MAX_NETS = 256, MAX_JOBS = 1 << 16, MAX_DECISION = 4096 };

static cml_scheduler c;
static network nets[MAX_NETS];
static int lacks_memory[MAX_NETS];   /* networks without memory for another job */
static job *jobs[MAX_JOBS];          /* by number */
static slice decision[MAX_DECISION]; /* the decision of another planner */
static uint32_t net_count, decision_count;

static double read_number(void) {
    double value = 0;
    if (scanf("%lf", &value) != 1) exit(2);
    return value;
}

static uint32_t read_uint(void) { return (uint32_t)read_number(); }
static job *known_job(void) { return jobs[read_uint() % MAX_JOBS]; }

static void use_decision(cml_scheduler *of) { cml__use_decision(of, decision, decision_count); }

static void prepare(cml_scheduler *of, network *net, double ms) {
    (void)of;
    (void)ms;
    net->is_ready = 1;
}

static int has_memory(cml_scheduler *of, job *j) {
    (void)of;
    return !lacks_memory[j->net - nets];
}

static void begin(void) {
    c.frame_ms = read_number();
    c.granule = read_uint();
    c.max_groups = read_uint();
    c.policy = (cml_policy)read_uint();
    c.wall_clock = (int)read_uint();
    c.model.over_share = read_number();
    c.frame = read_uint();
    c.max_jobs = read_uint();
    c.max_slices = MAX_DECISION;
    c.prepare = prepare;
    c.start = c.finish = has_memory;
    if (!cml__init_core(&c)) exit(1);
}

/* Reads what the scheduler knew when the recording began. */
static void read_known(void) {
    c.model.launch_ms = read_number();
    c.model.least_ms = read_number();
    c.model.drift = read_number();
    c.model.error = read_number();
    c.back_off = read_number();
    c.usual_ms = read_number();
    c.has_ended = (int)read_uint();
    c.ended_ms = read_number();
    c.without = read_uint();
    c.since_skip = read_uint();
    c.skip_due = (int)read_uint();
    c.model.ratio_count = 0;
    for (uint32_t count = read_uint(); count > 0; count--)
        c.model.ratios[c.model.ratio_count++] = read_number();
}

static void read_curve(void) {
    curve *learned = cml__curve_of(&c.memory, &c.model, read_uint());
    for (uint32_t count = read_uint(); count > 0; count--) {
        timed_size one = {.log_count = read_number()};
        one.samples = read_uint();
        for (uint32_t kept = read_uint(); kept > 0; kept--)
            one.log_times[one.kept++] = read_number();
        learned->sizes[cml__bucket_of((uint32_t)fmax(1, rint(exp(one.log_count))))] = one;
        learned->samples += one.samples;
    }
}

static void read_excess(void) {
    double predicted = read_number(), measured = read_number();
    cml__record_excess(&c.model, predicted, measured, (int)read_uint());
}

static void read_network(void) {
    network *net = nets + net_count++;
    double *times = NULL;
    net->exclusive = nets + read_uint();
    net->step_count = read_uint();
    net->steps = calloc(net->step_count, sizeof *net->steps);
    net->after = calloc(net->step_count + 1, sizeof *net->after);
    if (read_uint()) net->load_ms = times = calloc(net->step_count, sizeof *times);
    net->is_ready = 1;
    for (uint32_t i = 0; i < net->step_count; i++) {
        step *s = net->steps + i;
        s->groups = read_uint();
        s->work = read_number();
        s->factor = read_number();
        s->key = read_uint();
        if (times != NULL) times[i] = read_number();
    }
    cml__adopt_net(&c, net);
}

static void submit(double now) {
    job *j = cml__find_free_job(&c);
    memset(j, 0, sizeof *j);
    j->number = read_uint();
    j->net = nets + read_uint();
    j->priority = read_number();
    j->deadline_at = read_number();
    j->has_deadline = is_equal(j->deadline_at, j->deadline_at); /* it is no NaN */
    uint32_t slot = read_uint();
    if (slot > 0) snprintf(j->slot, sizeof j->slot, "%u", slot);
    j->last_served_ms = now;
    for (uint32_t count = read_uint(); count > 0; count--) {
        job *producer = known_job();
        if (producer == NULL) continue;
        j->producers[j->producer_count++] = producer;
        producer->consumers++;
    }
    jobs[j->number % MAX_JOBS] = j;
    cml__enqueue(&c, j);
}

static void run_frame(double now) {
    double budget = read_number(), aim = read_number();
    int behind = (int)read_uint(), is_replayed = (int)read_uint(), rests = (int)read_uint();
    for (uint32_t count = read_uint(); count > 0; count--) {
        network *net = nets + read_uint();
        net->is_ready = (int)read_uint();
    }
    memset(lacks_memory, 0, sizeof lacks_memory);
    for (uint32_t count = read_uint(); count > 0; count--)
        lacks_memory[known_job()->net - nets] = 1;
    decision_count = read_uint();
    for (slice *one = decision; one < decision + decision_count; one++) {
        one->job = known_job();
        one->step = one->job->net->steps + read_uint();
        one->first = read_uint();
        one->count = read_uint();
    }
    c.planner = is_replayed ? use_decision : NULL;
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
    for (uint32_t count = read_uint(); count > 0; count--) {
        uint32_t frame = read_uint(), group = read_uint();
        cml__record_timing(&c, frame, group, read_number());
    }
    cml__end_frame(&c, now);
}

static void play_event(const char *kind) {
    c.now = fmax(c.now, read_number());
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
        free((void *)nets[i].load_ms);
    }
    cml__heap_free_all(c.memory);
    return 0;
}
