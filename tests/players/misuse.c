/* Misuses the player as hosts do: `misuse TURNED.cml`, of a network whose output `y` has the bytes
 * of its input `x` and another shape. Each mistake has to give an error that names it. */
#include "cml_null.h"
#include "common.h"

#include <math.h>

#define WANT(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d: wanted " #what " (%s)\n", __LINE__, error.text);             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define REFUSED(call, why) WANT((call) == CML_ERROR_INPUT && strstr(error.text, why) != NULL)

typedef struct host {
    cml_backend backend;
    cml_scheduler *scheduler;
    cml_net *net;
} host;

static cml_error error;
static void *bytes;
static size_t size;
static long blocks;
static int logged;
static const float x[4] = {0, 1, 2, 3};
static const cml_input plain = {.name = "x", .data = x, .bytes = sizeof x};

static void *take(void *user, size_t wanted) {
    (void)user;
    blocks++;
    return malloc(wanted);
}

static void give_back(void *user, void *block, size_t unused) {
    (void)user;
    (void)unused;
    blocks--;
    free(block);
}

static const cml_allocator counted = {take, give_back, NULL};

static void on_broken_rule(void *unused, const char *rule) {
    (void)unused;
    fprintf(stderr, "a rule is broken: %s\n", rule);
    exit(1);
}

static void on_log(void *unused, cml_log_level level, const char *message) {
    (void)unused;
    logged += level == CML_LOG_ERROR && message[0] != 0;
}

static cml_options fill(cml_backend *table) {
    cml_null_options options = {.allocator = counted, .on_broken_rule = on_broken_rule};
    WANT(cml_null_fill(&options, table, &error) == CML_OK);
    return (cml_options){.backend = table, .allocator = counted, .log = on_log};
}

static void open_host(host *h) {
    cml_options options = fill(&h->backend);
    WANT(cml_create(&options, &h->scheduler, &error) == CML_OK);
    WANT(cml_load_cooked(h->scheduler, bytes, size, CML_TRUSTED, &h->net, &error) == CML_OK);
}

static void close_host(host *h) {
    cml_unload(h->scheduler, h->net);
    cml_destroy(h->scheduler);
}

static cml_status submit(host *h, const cml_input *input, const cml_job_options *options,
                         cml_job *job) {
    return cml_submit(h->scheduler, h->net, input, 1, options, job, &error);
}

static cml_state state(const host *h, cml_job job) {
    return cml_get_job_info(h->scheduler, job).state;
}

static cml_job run(host *h, double budget_ms) {
    cml_job job;
    WANT(submit(h, &plain, NULL, &job) == CML_OK);
    for (int i = 0; i < 100 && state(h, job) != CML_STATE_DONE; i++) {
        void *commands = cml_null_begin(&h->backend);
        cml_encode(h->scheduler, commands, budget_ms);
        cml_null_submit(&h->backend, commands);
        cml_end_frame(h->scheduler);
    }
    WANT(state(h, job) == CML_STATE_DONE);
    return job;
}

/* Returns the budget of an empty frame. */
static double budget_of(host *h, double budget_ms) {
    void *commands = cml_null_begin(&h->backend);
    double taken = cml_encode(h->scheduler, commands, budget_ms)->budget_ms;
    cml_abandon_frame(h->scheduler);
    cml_null_discard(&h->backend, commands);
    return taken;
}

static void refused_options(void) {
    static const double wrong[] = {-1.0, HUGE_VAL, NAN};
    cml_backend table;
    cml_scheduler *none;
    cml_options options = fill(&table);
    for (size_t i = 0; i < 3 * sizeof wrong / sizeof *wrong; i++) {
        double *numbers[] = {&options.frame_ms, &options.budget_ms, &options.over_share};
        *numbers[i % 3] = wrong[i / 3];
        REFUSED(cml_create(&options, &none, &error), "wanted a positive number");
        options = fill(&table);
    }
    options.policy = (cml_policy)3;
    REFUSED(cml_create(&options, &none, &error), "policy");
    options = fill(&table);
    options.allocator.release = NULL;
    REFUSED(cml_create(&options, &none, &error), "allocator");
    WANT(cml_check(bytes, size, NULL, &options.allocator, &error) == CML_ERROR_MEMORY);
    options = fill(&table);
    table.poll_mapped = NULL;
    REFUSED(cml_create(&options, &none, &error), "lacks functions");
    memset(&table, 0, sizeof table);
    REFUSED(cml_create(&options, &none, &error), "lacks functions");
    WANT(none == NULL && blocks == 0);
}

static void refused_inputs(host *h, cml_job done) {
    static const cml_job_options wrong[] = {
        {.priority = NAN}, {.deadline_ms = NAN}, {.priority = -2}, {.deadline_ms = HUGE_VAL}};
    cml_input input = plain;
    cml_job job;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSED(submit(h, &plain, &wrong[i], &job), "priority or deadline");
    input.job = done;
    REFUSED(submit(h, &input, NULL, &job), "2 sources");
    input.data = NULL;
    input.output = "y";
    REFUSED(submit(h, &input, NULL, &job), "of another shape");
    input.job = 0;
    REFUSED(submit(h, &input, NULL, &job), "0 sources");
    REFUSED(cml_submit(h->scheduler, h->net, &plain, SIZE_MAX, NULL, &job, &error), "inputs, got ");
    REFUSED(cml_submit(h->scheduler, NULL, &plain, 1, NULL, &job, &error), "never loaded");
    REFUSED(cml_build(NULL, 1.0, &error), "never loaded");
    REFUSED(cml_reset(NULL, &error), "never loaded");
    WANT(job == 0);
}

static void refused_hosts(host *h) {
    host other;
    cml_job job;
    open_host(&other);
    REFUSED(cml_submit(other.scheduler, h->net, &plain, 1, NULL, &job, &error),
            "another scheduler");
    cml_unload(other.scheduler, h->net);
    WANT(logged == 1);
    close_host(&other);
}

static void refused_reads(host *h, cml_job done) {
    float y[4];
    cml_job job;
    WANT(submit(h, &plain, NULL, &job) == CML_OK);
    REFUSED(cml_read(h->scheduler, job, "y", y, 3, &error), "wanted 16 bytes, got 3");
    cml_pause(h->scheduler, done, 1);
    WANT(!cml_get_job_info(h->scheduler, done).paused);
    cml_device_lost(h->scheduler);
    WANT(cml_read(h->scheduler, done, "y", y, sizeof y, &error) == CML_ERROR_DEVICE);
    WANT(cml_read(h->scheduler, job, "y", y, sizeof y, &error) == CML_ERROR_INPUT);
}

int main(int argc, char **argv) {
    host h;
    bytes = argc == 2 ? read_whole(argv[1], &size) : NULL;
    if (bytes == NULL || read_whole(".", &size) != NULL) return 3;
    free(bytes);
    bytes = read_whole(argv[1], &size);
    refused_options();
    open_host(&h);
    cml_job done = run(&h, 1e308); /* of more bytes to upload than there are numbers */
    WANT(budget_of(&h, 0.0) < 1.0);
    WANT(budget_of(&h, NAN) < 1.0); /* the one before */
    WANT(budget_of(&h, CML_BUDGET) > 3.0);
    refused_inputs(&h, done);
    refused_hosts(&h);
    refused_reads(&h, run(&h, NAN));
    close_host(&h);
    free(bytes);
    WANT(blocks == 0);
    printf("refused\n");
    return 0;
}
