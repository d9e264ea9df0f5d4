/* Runs a recording of the Python scheduler again, with the player's own decisions, and prints the
 * slices of each frame: a line of "job:step:first:count" per frame. tests/players/replay_lines.py
 * writes the lines that it reads. */
#include "internal.h"

enum { LINE = 1 << 20 };

static char line[LINE];
static cml_scheduler c;
static network nets[256];
static double *load_ms[256]; /* what steps took when the network was loaded, or NULL */
static uint8_t held[256];
static uint32_t net_count, pool;
static job **by_number;
static uint32_t numbers;

static char *rest; /* of the line */

static slice given[4096];
static uint32_t given_count;

/* What another planner than the player's decided. */
static void take_given(cml_scheduler *of) {
    uint32_t i, k;
    for (i = 0; i < given_count; i++) {
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

static const char *word(void) {
    char *start = rest + strspn(rest, " ");
    size_t n = strcspn(start, " ");
    rest = start + n;
    if (*rest != 0) *rest++ = 0;
    return start;
}

static double number(void) { return strtod(word(), NULL); }

static uint32_t whole(void) { return (uint32_t)strtoul(word(), NULL, 10); }

static void prepare(cml_scheduler *of, network *net, double ms) {
    (void)of;
    (void)ms;
    net->is_ready = 1;
}

static int begin_or_end(cml_scheduler *of, job *j) {
    (void)of;
    return !held[j->net - nets];
}

static void read_network(void) {
    network *net = nets + net_count++;
    uint32_t i, has_times;
    double *times, ms;
    net->exclusive = nets + whole();
    net->step_count = whole();
    has_times = whole();
    net->steps = calloc(net->step_count, sizeof *net->steps);
    net->after = calloc(net->step_count + 1, sizeof *net->after);
    times = has_times ? calloc(net->step_count, sizeof *times) : NULL;
    load_ms[net - nets] = times;
    net->is_ready = 1;
    for (i = 0; i < net->step_count && fgets(line, LINE, stdin); i++) {
        step *s = net->steps + i;
        cml_text key;
        rest = line;
        s->groups = whole();
        s->work = number();
        s->factor = number();
        ms = number();
        if (has_times) times[i] = ms;
        key.data = rest;
        key.length = strcspn(rest, "\n");
        s->key = cml__key_of(key);
    }
    cml__adopt_net(&c, net);
}

static void learned_curve(void) { /* of before the recording began */
    uint32_t count = whole(), i;
    cml_text key;
    curve *learned;
    key.data = rest;
    key.length = strcspn(rest, "\n");
    learned = cml__curve_of(&c.memory, &c.model, cml__key_of(key));
    for (i = 0; i < count && fgets(line, LINE, stdin); i++) {
        point one;
        rest = line;
        one.log_count = number();
        one.log_ms = number();
        one.samples = whole();
        one.spread = number();
        learned->points[cml__bucket_of((uint32_t)fmax(1, rint(exp(one.log_count))))] = one;
        learned->samples += one.samples;
    }
}

static void learn_load(network *net) {
    const double *ms = load_ms[net - nets];
    uint32_t i;
    for (i = 0; ms != NULL && i < net->step_count; i++) {
        slice all = {.step = net->steps + i, .count = net->steps[i].groups};
        if (!has_samples(all.step)) cml__learn(&c.model, &all, 1, ms[i]);
    }
}

static void submitted(double now) {
    job *j = cml__find_free_job(&c);
    uint32_t count, i;
    const char *text;
    memset(j, 0, sizeof *j);
    j->number = whole();
    j->net = nets + whole();
    learn_load(j->net);
    j->priority = number();
    text = word();
    j->has_deadline = *text != '-';
    j->deadline_at = strtod(text, NULL);
    text = word();
    if (*text != '-') snprintf(j->slot, sizeof j->slot, "%s", text);
    j->last_served_ms = now;
    for (count = whole(); count > 0; count--) {
        uint32_t producer = whole();
        if (producer >= numbers || by_number[producer] == NULL) continue;
        j->producers[j->producer_count++] = by_number[producer];
        by_number[producer]->consumers++;
    }
    if (j->number >= numbers) {
        uint32_t more = 2 * (uint32_t)j->number + 64;
        by_number = realloc(by_number, more * sizeof *by_number);
        for (i = numbers; i < more; i++) by_number[i] = NULL;
        numbers = more;
    }
    by_number[j->number] = j;
    cml__enqueue(&c, j);
}

static void run_frame(double now) {
    double budget = number(), aim = number();
    int behind = (int)whole(), is_given = (int)whole(), rests = (int)whole();
    uint32_t count, i;
    for (count = whole(); count > 0; count--) {
        uint32_t net = whole();
        nets[net].is_ready = (int)whole();
    }
    memset(held, 0, sizeof held);
    for (count = whole(); count > 0; count--) held[by_number[whole()]->net - nets] = 1;
    given_count = whole();
    for (i = 0; i < given_count; i++) {
        given[i].job = by_number[whole()];
        given[i].step = given[i].job->net->steps + whole();
        given[i].first = whole();
        given[i].count = whole();
    }
    c.planner = is_given ? take_given : NULL;
    cml__begin_frame(&c, now, budget, aim, rests, behind);
    cml__finish_jobs(&c);
    for (i = 0; i < c.work->slice_count; i++)
        printf("%s%u:%u:%u:%u", i > 0 ? " " : "", (uint32_t)c.work->slices[i].job->number,
               (uint32_t)(c.work->slices[i].step - c.work->slices[i].job->net->steps),
               c.work->slices[i].first, c.work->slices[i].count);
    printf("\n");
}

static void ended(double now) {
    uint32_t count;
    for (count = whole(); count > 0; count--) {
        uint32_t of_frame = whole(), group = whole();
        cml__record_timing(&c, of_frame, group, number());
    }
    cml__end_frame(&c, now);
}

static void remembered(void) {
    double predicted = number(), measured = number();
    cml__record_excess(&c.model, predicted, measured, (int)whole());
}

static void
begin(void) { /* frame_ms, granule, max_groups, policy, wall clock, share, frame, jobs */
    c.frame_ms = number();
    c.granule = whole();
    c.max_groups = whole();
    c.policy = (cml_policy)whole();
    c.wall_clock = (int)whole();
    c.model.over_share = number();
    c.frame = whole();
    pool = whole();
    c.max_jobs = pool;
    c.max_slices = 4096;
    c.prepare = prepare;
    c.start = c.finish = begin_or_end;
    if (!cml__init_core(&c)) exit(1);
}

static void known(void) { /* launch, unknown, its samples, drift, error; back-off, usual, whether
                           * ended, when, interval, intervals, without, since rest, rest due */
    c.model.launch_ms = number();
    c.model.unknown = number();
    c.model.unknown_samples = whole();
    c.model.drift = number();
    c.model.error = number();
    c.back_off = number();
    c.usual_ms = number();
    c.has_ended = (int)whole();
    c.ended_ms = number();
    number(); /* the interval, for reports, and of how many */
    number();
    c.frames_without = whole();
    c.since_rest = whole();
    c.rest_due = (int)whole();
}

static void event(const char *kind) {
    double now = c.now;
    if (strcmp(kind, "abandoned") == 0) {
        cml__abandon_frame(&c);
        return;
    }
    now = fmax(now, number());
    c.now = now;
    if (strcmp(kind, "frame") == 0)
        run_frame(now);
    else if (strcmp(kind, "end") == 0)
        ended(now);
    else if (strcmp(kind, "submit") == 0)
        submitted(now);
    else if (strcmp(kind, "cancelled") == 0 || strcmp(kind, "failed") == 0)
        cml__end_job(&c, by_number[whole()], *kind == 'c' ? CML_STATE_CANCELLED : CML_STATE_FAILED,
                     kind);
    else
        by_number[whole()]->paused = strcmp(kind, "paused") == 0;
}

static void clean_up(void) {
    uint32_t i;
    for (i = 0; i < net_count; i++) {
        free(nets[i].steps);
        free(nets[i].after);
        free(load_ms[i]);
    }
    free(by_number);
    cml__heap_free_all(c.memory);
}

int main(void) {
    while (fgets(line, LINE, stdin)) {
        const char *kind;
        line[strcspn(line, "\n")] = 0;
        rest = line;
        kind = word();
        if (strcmp(kind, "begin") == 0)
            begin();
        else if (strcmp(kind, "known") == 0)
            known();
        else if (strcmp(kind, "curve") == 0)
            learned_curve();
        else if (strcmp(kind, "tail") == 0)
            remembered();
        else if (strcmp(kind, "network") == 0)
            read_network();
        else
            event(kind);
    }
    clean_up();
    return 0;
}
