/* The C player in a page: cml.js calls these functions, and has the device of the backend. */
#include "internal.h"

#include <stdarg.h>

#pragma clang diagnostic ignored "-Wunused-parameter" /* of the table's functions */

#define EXPORT(name) __attribute__((export_name(#name)))
#define IMPORT(name) __attribute__((import_module("cml"), import_name(#name)))

typedef uint32_t handle; /* of an object of the page, from 1 */

IMPORT(now) double page_now(void);
IMPORT(run) void page_run(void *device, const uint32_t *words, uint32_t count);
IMPORT(order) void page_order(cml_scheduler *s);
IMPORT(log) double page_log(double x);
IMPORT(log2) double page_log2(double x);
IMPORT(exp) double page_exp(double x);
IMPORT(pow) double page_pow(double x, double y);

/* ------------------------------------------------------------------ functions of libc */

double cml__machine_ms(void *unused) { return page_now(); }

uint32_t cml__processors(void) { return 1; }

double log(double x) { return page_log(x); }
double log2(double x) { return page_log2(x); }
double exp(double x) { return page_exp(x); }
double pow(double x, double y) { return page_pow(x, y); }

typedef struct writer {
    char *to;
    size_t room, length;
} writer;

static void put(writer *w, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++, w->length++)
        if (w->length + 1 < w->room) w->to[w->length] = text[i];
}

static void put_number(writer *w, uint64_t value) {
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    put(w, digits + at, sizeof digits - at);
}

static void put_signed(writer *w, int value) {
    if (value < 0) put(w, "-", 1);
    put_number(w, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* Formats %s, %.*s, %.8s, %d, %u and %llu: the C library's one is half as large as the player. */
int vsnprintf(char *to, size_t room, const char *format, va_list values) {
    writer w = {to, room, 0};
    for (const char *p = format; *p != 0; p++) {
        size_t most = SIZE_MAX, length = 0;
        if (*p != '%') {
            put(&w, p, 1);
            continue;
        }
        if (*++p == '.') {
            most = *++p == '*' ? (size_t)va_arg(values, int) : (size_t)(*p - '0');
            p++;
        }
        if (*p == 's') {
            const char *text = va_arg(values, const char *);
            while (length < most && text[length] != 0) length++;
            put(&w, text, length);
        } else if (*p == 'd') {
            put_signed(&w, va_arg(values, int));
        } else if (*p == 'u') {
            put_number(&w, va_arg(values, unsigned));
        } else if (*p == 'l') {
            put_number(&w, va_arg(values, unsigned long long));
            p += 2;
        }
    }
    if (room > 0) to[w.length < room ? w.length : room - 1] = 0;
    return (int)w.length;
}

/* Sorts by insertion, with gaps; the C library's one is ten times as long. */
void qsort(void *rows, size_t count, size_t size, int (*compare)(const void *, const void *)) {
    uint8_t *at = rows, moved[64];
    for (size_t gap = count / 2; gap > 0; gap /= 2)
        for (size_t i = gap; i < count; i++) {
            size_t k = i;
            memcpy(moved, at + size * i, size);
            for (; k >= gap && compare(at + size * (k - gap), moved) > 0; k -= gap)
                memcpy(at + size * k, at + size * (k - gap), size);
            memcpy(at + size * k, moved, size);
        }
}

int snprintf(char *to, size_t room, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int length = vsnprintf(to, room, format, values);
    va_end(values);
    return length;
}

/* ------------------------------------------------------------------ the backend */

/* Commands of a frame, which the page runs in one call; numbers are in units of 4 bytes. */
enum { BEGIN_PASS = 1, END_PASS, DISPATCH, COPY, RESOLVE };
enum { MOST_WORDS = 4096, MOST_OF_COMMAND = 6 };

static uint32_t words[MOST_WORDS], word_count;

static void flush(void *user) {
    uint32_t count = word_count;
    word_count = 0;
    if (count > 0) page_run(user, words, count);
}

static void record(void *user, uint32_t code, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                   uint32_t e) {
    const uint32_t command[MOST_OF_COMMAND] = {code, a, b, c, d, e};
    if (word_count + MOST_OF_COMMAND > MOST_WORDS) flush(user);
    memcpy(words + word_count, command, sizeof command);
    word_count += MOST_OF_COMMAND;
}

#define HANDLE(pointer) ((handle)(uintptr_t)(pointer))

static void destroy(void *user) {}
static void poll(void *user) {}
static void *get_handle(void *user, cml_buffer *buffer) { return buffer; }

/* Functions of the page; `user` is the handle of its device. */
IMPORT(get_info) int get_info(void *user, int could_be, cml_device_info *info);
IMPORT(create_scope) cml_scope *create_scope(void *user);
IMPORT(poll_scope) cml_status poll_scope(void *user, cml_scope *scope, char *text, size_t room);
IMPORT(release) void release_scope(void *user, cml_scope *scope);
IMPORT(create_buffer)
cml_buffer *create_buffer(void *user, cml_scope *scope, cml_usage usage, uint64_t bytes);
IMPORT(adopt_buffer)
cml_buffer *adopt_buffer(void *user, void *buffer, const cml_shape *shape, uint64_t *bytes);
IMPORT(release) void release_buffer(void *user, cml_buffer *buffer);
IMPORT(write_buffer)
void write_buffer(void *user, void *commands, cml_buffer *to, uint64_t offset, const void *data,
                  uint64_t bytes);
IMPORT(create_pipeline)
cml_pipeline *create_pipeline(void *user, cml_scope *scope, const cml_kernel *kernel);
IMPORT(release) void release_pipeline(void *user, cml_pipeline *pipeline);
IMPORT(create_bindings)
cml_bindings *create_bindings(void *user, cml_scope *scope, cml_pipeline *pipeline,
                              const cml_range *ranges, uint32_t count, uint32_t writes,
                              int is_tried);
IMPORT(release) void release_bindings(void *user, cml_bindings *bindings);
IMPORT(map) void map_buffer(void *user, cml_buffer *buffer);
IMPORT(poll_mapped) cml_status poll_mapped(void *user, cml_buffer *buffer, const void **data);
IMPORT(unmap) void unmap_buffer(void *user, cml_buffer *buffer);

_Static_assert(offsetof(cml_device_info, has_half) == 312 && offsetof(cml_kernel, tensors) == 20 &&
                   sizeof(cml_range) == 24,
               "cml.js has the places of the members of these structures");

static void begin_pass(void *user, void *commands, int begin_query, int end_query) {
    record(user, BEGIN_PASS, (uint32_t)begin_query, (uint32_t)end_query, 0, 0, 0);
}

static void end_pass(void *user, void *commands) { record(user, END_PASS, 0, 0, 0, 0, 0); }

static void dispatch(void *user, void *commands, cml_pipeline *pipeline, cml_bindings *bindings,
                     uint32_t offset, uint32_t x, uint32_t y) {
    record(user, DISPATCH, HANDLE(pipeline), HANDLE(bindings), offset, x, y);
}

static void copy_buffer(void *user, void *commands, const cml_range *from, cml_buffer *to,
                        uint64_t offset) {
    record(user, COPY, HANDLE(from->buffer), (uint32_t)(from->offset / 4), HANDLE(to),
           (uint32_t)(offset / 4), (uint32_t)(from->bytes / 4));
}

static void resolve_queries(void *user, void *commands, uint32_t first, uint32_t count,
                            cml_buffer *to, uint64_t offset) {
    record(user, RESOLVE, first, count, HANDLE(to), (uint32_t)(offset / 4), 0);
}

static const cml_backend functions = {CML_BACKEND_FUNCTIONS};

/* ------------------------------------------------------------------ results of calls */

/* Calls that have several results leave them here; those that fail return 0, or a cml_status, and
 * describe the problem in `error`. */
static double results[32];
static cml_error error;

EXPORT(results) double *results_at(void) { return results; }
EXPORT(error_text) const char *error_text(void) { return error.text; }
EXPORT(error_status) uint32_t error_status(void) { return error.status; }
EXPORT(allocate) void *allocate(size_t bytes) { return malloc(bytes); }
EXPORT(deallocate) void deallocate(void *block) { free(block); }

static double address(const void *of) { return (double)(uintptr_t)of; }

static void put_text(double *to, cml_text text) {
    to[0] = address(text.data);
    to[1] = (double)text.length;
}

/* ------------------------------------------------------------------ files */

typedef struct opened {
    heap memory;
    file f;
} opened;

EXPORT(close_file) void close_file(opened *o) {
    heap memory = o->memory;
    memory.blocks = NULL;
    cml__heap_free_all(o->memory);
    free(o);
}

/* Reads the header and the table of sections. A limit of 0 is the default one. */
EXPORT(open_file)
opened *open_file(const uint8_t *bytes, size_t size, double code_bytes, double device_bytes,
                  double kernels, double steps) {
    const cml_limits stated = {(uint64_t)code_bytes, (uint64_t)device_bytes, (uint32_t)kernels,
                               (uint32_t)steps};
    opened *o = calloc(1, sizeof *o);
    if (o == NULL) {
        NO_MEMORY(&error, "a file");
        return NULL;
    }
    o->f = cml__file_of(bytes, size, &stated, 0);
    o->f.memory = &o->memory;
    o->f.error = &error;
    if (cml__open_file(&o->f) == CML_OK) return o;
    close_file(o);
    return NULL;
}

/* Returns the tag of a section; its place is a result. NULL beyond the last one. */
EXPORT(section) const uint8_t *section(const opened *o, uint32_t i) {
    if (i >= o->f.section_count) return NULL;
    const section_row *row = o->f.sections + i;
    results[0] = (double)row->offset;
    results[1] = (double)row->nbytes;
    results[2] = row->number;
    return row->tag;
}

/* Takes a hash that the page has computed of a section, in place of one of our own. */
EXPORT(confirm) void confirm(opened *o, uint32_t i, const uint8_t *digest) {
    if (memcmp(o->f.sections[i].digest, digest, 32) == 0) o->f.hashed[i] = 1;
}

/* Checks everything that needs no device. */
EXPORT(check_file) uint32_t check_file(opened *o, int with_code) {
    return cml__check_file(&o->f, with_code);
}

/* ------------------------------------------------------------------ devices and schedulers */

enum {
    MOST_RESULTS = 256, /* jobs of one network whose outputs are kept */
    MOST_SLICES = 256   /* of a frame */
};

/* Creates a scheduler; a policy below 0 is one of the page. */
EXPORT(create)
cml_scheduler *create(void *device, double over_share, int policy, uint32_t max_jobs,
                      uint32_t granule) {
    cml_backend backend = functions;
    cml_scheduler *s;
    backend.user = device;
    cml_options options = {.backend = &backend,
                           .over_share = over_share,
                           .policy = policy < 0 ? CML_POLICY_LEAST_LAXITY : (cml_policy)policy,
                           .max_jobs = max_jobs,
                           .max_slices = MOST_SLICES,
                           .max_results = MOST_RESULTS,
                           .granule = granule};
    if (cml_create(&options, &s, &error) != CML_OK) return NULL;
    s->frames_before_read = 0;
    if (policy < 0) s->order = page_order;
    return s;
}

/* Destroys a scheduler; its networks go back to the one that owns them. */
EXPORT(destroy) void destroy_scheduler(cml_scheduler *s) {
    cml_abandon_frame(s);
    for (network *n = s->nets, *next; n != NULL; n = next) {
        next = n->next;
        cml__forget_net(s, n);
        n->slot_mask = 0;
        cml__adopt_net(n->scheduler, n);
    }
    cml_destroy(s);
}

EXPORT(device_lost) void device_lost(cml_scheduler *s) { cml_device_lost(s); }

/* ------------------------------------------------------------------ networks */

EXPORT(load) cml_net *load(cml_scheduler *s, const opened *o) {
    cml_net *net = NULL;
    cml__load(s, &o->f, &net, &error);
    return net;
}

EXPORT(build) uint32_t build(cml_net *net, double ms) { return cml_build(net, ms, &error); }

/* Describes a network. */
EXPORT(network) void describe(const cml_net *net) {
    const network *n = net->network;
    uint32_t kernels = 0, built = 0;
    uint8_t *seen = calloc(n->f.kernel_count + 1, 1);
    for (uint32_t i = 0; seen != NULL && i < n->step_count; i++) {
        uint32_t kernel = n->p.steps[i].kernel;
        kernels += !seen[kernel];
        built += !seen[kernel] && n->pipelines[kernel] != NULL;
        seen[kernel] = 1;
    }
    free(seen);
    results[0] = n->step_count;
    results[1] = n->p.inputs.count;
    results[2] = n->p.outputs.count;
    results[3] = n->p.row->updates.count;
    results[4] = (double)n->p.outputs.bytes;
    results[5] = kernels;
    results[6] = built;
    results[7] = HANDLE(n->scope);
    results[8] = n->f.guess.launch_ms;
    put_text(results + 9, n->p.profile);
}

/* Describes an input or output, counted through. */
EXPORT(tensor) void describe_tensor(const cml_net *net, uint32_t i) {
    const plan *p = &net->network->p;
    const tensor *t =
        i < p->inputs.count ? &p->inputs.items[i] : &p->outputs.items[i - p->inputs.count];
    put_text(results, t->shape.name);
    results[2] = t->shape.type;
    results[3] = t->shape.layout;
    results[4] = (double)t->shape.elements;
    results[5] = (double)t->shape.bytes;
    results[6] = (double)t->packed_at;
    results[7] = t->shape.rank;
    for (uint32_t k = 0; k < t->shape.rank; k++) results[8 + k] = t->shape.extents[k];
}

EXPORT(step) void describe_step(const cml_net *net, uint32_t i) {
    const network *n = net->network;
    const plan_step_row *row = &n->p.steps[i];
    put_text(results, text_of(&n->f, row->op));
    put_text(results + 2, text_of(&n->f, row->title));
    results[4] = row->groups;
}

/* Records a pass of steps [first, end). */
static void record_steps(const network *n, uint32_t first, uint32_t end) {
    cml_scheduler *s = n->scheduler;
    BACKEND(s, begin_pass, NULL, -1, -1);
    for (uint32_t i = first; i < end; i++) cml__dispatch(s, n, i, i, n->steps[i].groups);
    BACKEND(s, end_pass, NULL);
}

/* Records a whole step alone, to measure it on a device without timestamps. */
EXPORT(run_step) void run_step(cml_net *net, uint32_t i) {
    const network *n = net->network;
    record_steps(n, i, i + 1);
    flush(n->scheduler->backend.user);
}

/* Records all steps and copies of a network, so that the device can say what it refuses. */
EXPORT(run_all) void run_all(cml_net *net) {
    const network *n = net->network;
    record_steps(n, 0, n->step_count);
    cml__copy_updates(n->scheduler, n);
    flush(n->scheduler->backend.user);
}

/* Returns where the times of the steps at load are to be written; NULL without memory. */
EXPORT(load_times) double *load_times(cml_net *net) {
    network *n = net->network;
    double *times = cml__heap_alloc(&n->memory, n->step_count, sizeof *times);
    n->load_ms = times;
    return times;
}

EXPORT(reset) uint32_t reset(cml_net *net) { return cml_reset(net, &error); }
EXPORT(is_at_work) int is_at_work(const cml_net *net) { return cml__is_at_work(net->network); }
EXPORT(is_wrong) int is_wrong(const cml_net *net) { return net->network->state_lost; }

/* Ends and drops what a scheduler has of a network that another one owns. */
EXPORT(forget) void forget(cml_scheduler *s, const cml_net *net) {
    if (net->network != NULL && net->network->owner != s) cml__forget_net(s, net->network);
}

EXPORT(unload) void unload(cml_net *net) {
    const network *n = net->network;
    if (n != NULL) cml_unload(n->owner != NULL ? n->owner : n->scheduler, net);
}

/* Returns the predicted milliseconds of workgroups of a step, for tools. */
EXPORT(predict) double predict(cml_scheduler *s, const cml_net *net, uint32_t i, uint32_t count) {
    network *n = net->network;
    return cml__adopt_net(s, n) ? cml__predict(&s->model, n->steps + i, count) : 0.0;
}

/* ------------------------------------------------------------------ jobs */

/* Submits a job; returns its number, or 0. */
EXPORT(submit)
double submit(cml_scheduler *s, cml_net *net, const cml_input *inputs, size_t count,
              double priority, double deadline_ms, const char *slot) {
    const cml_job_options options = {priority, deadline_ms, slot};
    cml_job number = 0;
    cml_submit(s, net, inputs, count, &options, &number, &error);
    return (double)number;
}

EXPORT(job_state) uint32_t job_state(const cml_scheduler *s, double number) {
    const job *j = cml__find_job(s, (cml_job)number);
    if (j == NULL) return CML_STATE_GONE;
    results[0] = address(j->error);
    results[1] = j->run.step;
    results[2] = j->run.group;
    return j->run.state;
}

EXPORT(job_info) void job_info(cml_scheduler *s, double number) {
    job *j = cml__find_job(s, (cml_job)number);
    cml_job_info info = cml_get_job_info(s, (cml_job)number);
    results[0] = info.progress;
    results[1] = info.eta_ms;
    results[2] = j == NULL ? 0.0 : cml__remaining_ms(s, j);
}

EXPORT(cancel) void cancel(cml_scheduler *s, double number) { cml_cancel(s, (cml_job)number); }
EXPORT(pause) void pause_job(cml_scheduler *s, double number, int paused) {
    cml_pause(s, (cml_job)number, paused);
}
EXPORT(release_job) void release_job(cml_scheduler *s, double number) {
    cml_release(s, (cml_job)number);
}

/* Returns the buffer of an output of a job that is done; its offset is a result. */
EXPORT(output) handle output(cml_scheduler *s, double number, const char *name) {
    cml_tensor found;
    if (cml_get_tensor(s, (cml_job)number, name, &found) != CML_OK) return 0;
    results[0] = (double)found.offset;
    return HANDLE(found.buffer);
}

/* Reads an output; its address in the plain layout is a result, which the caller frees if the
 * second result is 1. */
EXPORT(read) uint32_t read_output(cml_scheduler *s, double number, const char *name) {
    const tensor *from = NULL;
    const uint8_t *stored = NULL;
    job *j = cml__find_job(s, (cml_job)number);
    cml_status status = cml__find_read(s, j, name, &from, &stored, &error);
    if (status != CML_OK) return status;
    results[0] = address(stored);
    results[1] = from->shape.layout != CML_LAYOUT_PLAIN;
    if (from->shape.layout == CML_LAYOUT_PLAIN) return CML_OK;
    void *plain = malloc((size_t)(4 * from->shape.elements));
    if (plain == NULL) return NO_MEMORY(&error, "an output");
    cml__from_layout(&from->shape, stored, plain);
    results[0] = address(plain);
    return CML_OK;
}

/* ------------------------------------------------------------------ frames */

typedef struct reported { /* a slice, for cml.js */
    double job, step, first, count, ms, settled;
} reported;

static reported slices[MOST_SLICES];
static slice *decision;

/* Takes the next frame's slices from a tool: job, step, first and count of each; none for a count
 * below 0. */
static void decide_given(cml_scheduler *s) {
    uint32_t given = 0;
    for (; decision != NULL && decision[given].job != NULL; given++) {}
    s->work->report.reason = CML_REASON_BUDGET;
    cml__use_decision(s, decision, given);
}

EXPORT(decide) void decide(cml_scheduler *s, const double *numbers, int count) {
    uint32_t kept = 0;
    free(decision);
    decision = NULL;
    s->planner = NULL;
    if (count < 0) return;
    decision = calloc((size_t)count + 1, sizeof *decision);
    for (int i = 0; decision != NULL && i < count; i++) {
        const double *one = numbers + 4 * i;
        job *j = cml__find_job(s, (cml_job)one[0]);
        if (j == NULL || one[1] >= j->net->step_count) continue;
        decision[kept++] = (slice){.job = j,
                                   .step = j->net->steps + (uint32_t)one[1],
                                   .first = (uint32_t)one[2],
                                   .count = (uint32_t)one[3]};
    }
    s->planner = decide_given;
}

/* Encodes a frame; returns the address of its slices, and its report as results. */
EXPORT(encode) const reported *encode(cml_scheduler *s, double budget_ms, double frame_ms) {
    s->frame_ms = frame_ms;
    const cml_report *r = cml_encode(s, NULL, budget_ms);
    flush(s->backend.user);
    results[0] = (double)r->frame;
    results[1] = r->now_ms;
    results[2] = r->budget_ms;
    results[3] = r->aim_ms;
    results[4] = r->predicted_ms;
    results[5] = r->cpu_ms;
    results[6] = r->reason;
    results[7] = r->slices;
    for (uint32_t i = 0; i < r->slices; i++) {
        const slice *run = &s->work->slices[i];
        slices[i] = (reported){(double)run->job->number,
                               (double)(run->step - run->job->net->steps),
                               run->first,
                               run->count,
                               run->ms,
                               run->settled};
    }
    return slices;
}

/* Takes in the frames whose buffers have been mapped. */
EXPORT(take_slots) void take_slots(cml_scheduler *s) { cml__take_slots(s); }

EXPORT(end_frame) uint32_t end_frame(cml_scheduler *s) { return cml_end_frame(s); }

/* One of the frames that the last end_frame measured: its number, its time and the number of its
 * groups; then the end and the time of each. */
EXPORT(measured) const double *measured(const cml_scheduler *s, uint32_t i) {
    static double groups[3 + 2 * MAX_GROUPS];
    const cml_report *r = cml_get_measured(s, i);
    const work *w = &s->works[r->frame % IN_FLIGHT];
    groups[0] = (double)r->frame;
    groups[1] = r->measured_ms;
    groups[2] = w->group_count;
    for (uint32_t k = 0; k < w->group_count; k++) {
        groups[3 + 2 * k] = w->ends[k];
        groups[4 + 2 * k] = w->ms[k];
    }
    return groups;
}

EXPORT(abandon_frame) void abandon_frame(cml_scheduler *s) {
    word_count = 0;
    cml_abandon_frame(s);
}

/* ------------------------------------------------------------------ policies of the page */

/* Returns the candidates, by number; how many, the time and the rate are results. */
EXPORT(candidates) double *candidates(const cml_scheduler *s) {
    double *numbers = malloc((s->max_jobs + 1) * sizeof *numbers);
    for (uint32_t i = 0; numbers != NULL && i < s->candidate_count; i++)
        numbers[i] = (double)s->candidates[i]->number;
    results[0] = s->candidate_count;
    results[1] = s->now;
    results[2] = s->rate;
    return numbers;
}

/* Makes these jobs the candidates, in this order. */
EXPORT(put_candidates)
void put_candidates(cml_scheduler *s, const double *numbers, uint32_t count) {
    s->candidate_count = 0;
    for (uint32_t i = 0; i < count && i < s->max_jobs; i++) {
        job *j = cml__find_job(s, (cml_job)numbers[i]);
        if (j == NULL || is_over(j)) continue;
        j->remaining = cml__remaining_ms(s, j);
        s->candidates[s->candidate_count++] = j;
    }
}

/* Sorts the candidates by a policy of the player. */
EXPORT(sort) void sort(cml_scheduler *s, uint32_t policy, double now, double rate) {
    const cml_policy before = s->policy;
    const double times[2] = {s->now, s->rate};
    void (*order)(cml_scheduler *of) = s->order;
    s->order = NULL;
    s->policy = (cml_policy)policy;
    s->now = now;
    s->rate = rate;
    cml__sort_candidates(s);
    s->order = order;
    s->policy = before;
    s->now = times[0];
    s->rate = times[1];
}
