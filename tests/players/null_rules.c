/* Plays a network on the null backend, and breaks each of its rules:
 *
 *     null_rules FILE.cml BUDGET_MS IS_LATE   plays runs in a row and at once; prints what was
 *                                             recorded, with late timestamps if IS_LATE is 1
 *     null_rules                              breaks the rules; each has to be noticed */
#include "cml_null.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANT(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d: wanted " #what " (%s)\n", __LINE__, error.text);             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static cml_backend b;
static cml_error error;
static char broken[160]; /* the last broken rule */

static void note(void *is_expected, const char *rule) {
    snprintf(broken, sizeof broken, "%s", rule);
    if (is_expected != NULL) return;
    fprintf(stderr, "a rule is broken: %s\n", rule);
    exit(1);
}

/* ------------------------------------------------------------------ playing */

enum { RUNS = 12 };

static uint64_t frames, measured;
static double clock_ms;

static double now(void *unused) {
    (void)unused;
    return clock_ms += 0.01;
}

/* Returns where the time that a frame's slices take the device is kept. */
static double *slices_ms(uint64_t frame_number) {
    static double last[64];
    return &last[frame_number % 64];
}

static void frame(cml_scheduler *s, double budget) {
    void *commands = cml_null_begin(&b);
    const cml_report *report = cml_encode(s, commands, budget);
    double *ms = slices_ms(report->frame);
    *ms = 0.0;
    for (uint32_t i = 0; i < report->slices; i++)
        *ms += 1e-6 * (1000 + 100 * (double)cml_get_slices(s)[i].count);
    frames++;
    if (frames % 11 == 0) { /* the host throws some frames away */
        cml_abandon_frame(s);
        cml_null_discard(&b, commands);
        return;
    }
    cml_null_submit(&b, commands);
    uint32_t count = cml_end_frame(s);
    for (uint32_t i = 0; i < count; i++, measured++) {
        const cml_report *r = cml_get_measured(s, i);
        WANT(fabs(r->measured_ms - *slices_ms(r->frame)) < 1e-9);
    }
}

static void *read_whole(const char *path, size_t *size) {
    static char data[1 << 24];
    FILE *in = fopen(path, "rb");
    if (in == NULL) exit(2);
    *size = fread(data, 1, sizeof data, in);
    fclose(in);
    return data;
}

/* Submits a run: the first input is a buffer of the host, or the output of an earlier run. */
static cml_job submit(cml_scheduler *s, cml_net *net, void *buffer) {
    static char zeros[1 << 20], names[64][64];
    cml_input inputs[64];
    cml_shape shape;
    cml_job job;
    uint32_t count = 0;
    memset(inputs, 0, sizeof inputs);
    for (; cml_get_input_shape(net, count, &shape) == CML_OK; count++) {
        snprintf(names[count], sizeof *names, "%.*s", (int)shape.name.length, shape.name.data);
        inputs[count].name = names[count];
        inputs[count].bytes = (size_t)shape.bytes;
        if (count == 0 && buffer != NULL)
            inputs[count].buffer = buffer;
        else
            inputs[count].data = zeros;
    }
    WANT(cml_submit(s, net, inputs, count, NULL, &job, &error) == CML_OK);
    return job;
}

static void finish(cml_scheduler *s, cml_job job, const cml_shape *output, double budget) {
    static char data[1 << 20], name[64];
    snprintf(name, sizeof name, "%.*s", (int)output->name.length, output->name.data);
    cml_status status = CML_PENDING;
    for (int i = 0; i < 100000 && status == CML_PENDING; i++) {
        frame(s, budget);
        status = cml_read(s, job, name, data, (size_t)output->bytes, &error);
    }
    WANT(status == CML_OK);
    cml_release(s, job);
}

static const char *file; /* that is played */
static size_t file_size;
static cml_pipeline *(*create_pipeline)(void *, cml_scope *, const cml_kernel *);

static cml_pipeline *create_known_pipeline(void *user, cml_scope *of, const cml_kernel *made) {
    size_t i = 0;
    while (i + 32 < file_size && memcmp(file + i, made->digest, 32) != 0) i++;
    WANT(i + 32 < file_size); /* the digest is that of the kernel's row */
    return create_pipeline(user, of, made);
}

static void play(const char *path, double budget, int is_late) {
    cml_null_options null = {.on_broken_rule = note, .answer_after = 2, .is_late = is_late};
    cml_options options = {.backend = &b, .now_ms = now};
    cml_scheduler *s;
    cml_net *net;
    cml_shape output, input;
    cml_job jobs[RUNS];
    size_t size = 0;
    void *bytes = read_whole(path, &size);
    WANT(cml_null_fill(&null, &b, &error) == CML_OK);
    file = bytes, file_size = size, create_pipeline = b.create_pipeline;
    b.create_pipeline = create_known_pipeline;
    WANT(cml_create(&options, &s, &error) == CML_OK);
    WANT(cml_load_cooked(s, bytes, size, CML_TRUSTED, &net, &error) == CML_OK);
    cml_get_output_shape(net, 0, &output);
    cml_get_input_shape(net, 0, &input);
    void *buffer = cml_null_create_buffer(&b, input.bytes + 256);
    for (int i = 0; i < RUNS; i++)
        finish(s, submit(s, net, i % 2 ? buffer : NULL), &output, budget);
    for (int i = 0; i < RUNS; i++) jobs[i] = submit(s, net, i % 2 ? buffer : NULL);
    for (int i = 0; i < RUNS; i++) finish(s, jobs[i], &output, budget);
    submit(s, net, buffer); /* that is destroyed in the middle of its run */
    frame(s, budget);
    cml_null_counts counts = cml_null_get_counts(&b);
    cml_null_release_buffer(&b, buffer);
    cml_destroy(s);
    printf("{\"frames\": %llu, \"dispatches\": %llu, \"copies\": %llu, \"barriers\": %llu, "
           "\"needless\": %llu, \"measured\": %llu}\n",
           (unsigned long long)frames, (unsigned long long)counts.dispatches,
           (unsigned long long)counts.copies, (unsigned long long)counts.barriers,
           (unsigned long long)counts.needless, (unsigned long long)measured);
}

/* ------------------------------------------------------------------ broken rules */

static cml_scope *scope;
static cml_buffer *tensor, *other, *uniform, *ticks, *home;
static cml_pipeline *pipeline;
static cml_bindings *bindings;
static void *commands;
static const void *data;
static cml_range ranges[3];
static const cml_kernel kernel = {
    .code = "fn", .bytes = 2, .tensors = 1, .params_bytes = 16, .label = {"k", 1}};

static cml_range range(cml_buffer *of, uint64_t offset, uint64_t bytes) {
    return (cml_range){of, offset, bytes};
}

static void copy(cml_buffer *from, uint64_t at, uint64_t bytes, cml_buffer *to, uint64_t offset) {
    cml_range source = range(from, at, bytes);
    b.copy_buffer(b.user, commands, &source, to, offset);
}

static void write_to(cml_buffer *to, uint64_t offset, uint64_t bytes) {
    static const char zeros[256];
    b.write_buffer(b.user, commands, to, offset, zeros, bytes);
}

static void bind(cml_range one, cml_range two, uint32_t count) {
    cml_range bound[3] = {range(uniform, 0, 16), one, two};
    b.create_bindings(b.user, scope, pipeline, bound, count, 1, 0);
}

static void dispatch(uint32_t offset, uint32_t x) {
    b.dispatch(b.user, commands, pipeline, bindings, offset, x, 1);
}

static void in_pass(int first, int last) { b.begin_pass(b.user, commands, first, last); }
static void end_pass(void) { b.end_pass(b.user, commands); }

static void pass(int first, int last) {
    in_pass(first, last);
    end_pass();
}

static void next_frame(void) {
    cml_null_submit(&b, commands);
    commands = cml_null_begin(&b);
}

/* What each case does is wrong in its last call, or at the submit. */
static void break_rule(int number) {
    cml_pipeline *unanswered;
    switch (number) {
    case 0:
        b.release_buffer(b.user, tensor);
        b.release_buffer(b.user, tensor);
        break;
    case 1:
        b.release_buffer(b.user, tensor);
        copy(tensor, 0, 16, other, 0);
        break;
    case 2:
        copy(tensor, 0, 10, other, 0);
        break;
    case 3:
        copy(tensor, 0, 512, other, 0);
        break;
    case 4:
        copy(other, 0, 64, other, 128);
        break;
    case 5:
        copy(uniform, 0, 16, tensor, 0);
        break;
    case 6:
        copy(tensor, 0, 16, uniform, 0);
        break;
    case 7:
        in_pass(-1, -1);
        copy(tensor, 0, 16, other, 0);
        break;
    case 8:
        dispatch(0, 1);
        break;
    case 9:
        in_pass(-1, -1);
        dispatch(8, 1);
        break;
    case 10:
        in_pass(-1, -1);
        dispatch(0, 70000);
        break;
    case 11:
        in_pass(-1, -1);
        in_pass(-1, -1);
        break;
    case 12:
        pass(0, 0);
        break;
    case 13:
        pass(CML_QUERIES, -1);
        break;
    case 14:
        b.resolve_queries(b.user, commands, 0, 2, ticks, 0);
        break;
    case 15:
        pass(0, 1);
        b.resolve_queries(b.user, commands, 0, 2, ticks, 16);
        break;
    case 16:
        pass(0, 1);
        b.resolve_queries(b.user, commands, 0, 2, tensor, 0);
        break;
    case 17:
        bind(range(uniform, 8, 16), range(tensor, 0, 64), 3);
        break;
    case 18:
        bind(range(uniform, 0, 16), range(tensor, 4, 64), 3);
        break;
    case 19:
        bind(range(uniform, 0, 32), range(tensor, 0, 64), 3);
        break;
    case 20:
        bind(range(uniform, 0, 16), range(uniform, 0, 64), 3);
        break;
    case 21:
        bind(range(uniform, 0, 16), range(tensor, 0, 64), 2);
        break;
    case 22:
        copy(tensor, 0, 16, other, 0);
        copy(other, 0, 16, tensor, 0);
        next_frame();
        break;
    case 23: /* a later frame overwrites what the one before reads */
        copy(tensor, 0, 16, other, 0);
        next_frame();
        write_to(tensor, 8, 16);
        next_frame();
        break;
    case 24:
        copy(tensor, 0, 16, home, 0);
        b.map_buffer(b.user, home);
        break;
    case 25:
        b.map_buffer(b.user, tensor);
        break;
    case 26:
        b.poll_mapped(b.user, home, &data);
        break;
    case 27:
        next_frame();
        next_frame();
        b.map_buffer(b.user, home);
        copy(tensor, 0, 16, home, 0);
        break;
    case 28:
        unanswered = b.create_pipeline(b.user, scope, &kernel);
        in_pass(-1, -1);
        b.dispatch(b.user, commands, unanswered,
                   b.create_bindings(b.user, scope, unanswered, ranges, 3, 1, 0), 0, 1, 1);
        break;
    case 29:
        cml_null_submit(&b, commands);
        write_to(tensor, 0, 16);
        break;
    case 30:
        in_pass(-1, -1);
        next_frame();
        break;
    case 31:
        b.create_buffer(b.user, scope, CML_USAGE_TENSOR, 10);
        break;
    case 32:
        b.create_buffer(b.user, NULL, CML_USAGE_TENSOR, 16);
        break;
    case 33:
        b.destroy(b.user);
        break;
    case 34:
        write_to(home, 0, 16);
        break;
    case 35:
        in_pass(-1, -1);
        b.release_pipeline(b.user, pipeline);
        dispatch(0, 1);
        break;
    case 36:
        b.unmap_buffer(b.user, home);
        break;
    default:
        exit(2);
    }
}

static const char *const rules[] = {
    "released twice",
    "that is released",
    "multiple of 4",
    "not inside",
    "to itself",
    "source is no tensor",
    "target is a uniform",
    "within a pass",
    "outside of a pass",
    "multiple of uniform_alignment",
    "too many",
    "within a pass",
    "the same query",
    "no such query",
    "no pass has written",
    "multiple of 256",
    "to another buffer",
    "alignment",
    "alignment",
    "kernel's size",
    "another usage",
    "number of ranges",
    "without a barrier",
    "without a barrier",
    "have passed",
    "no readback buffer",
    "not mapped",
    "target is mapped",
    "poll_scope",
    "were submitted",
    "within a pass",
    "multiple of 4",
    "without a scope",
    "before its objects",
    "readback buffer is written",
    "is released",
    "not mapped",
};

/* A correct frame breaks nothing. */
static void frame_as_it_should_be(void) {
    broken[0] = 0;
    write_to(uniform, 0, 16);
    b.barrier(b.user, commands);
    in_pass(0, 1);
    dispatch(0, 65535);
    b.barrier(b.user, commands);
    dispatch(256, 1);
    end_pass();
    b.resolve_queries(b.user, commands, 0, 2, ticks, 256);
    b.barrier(b.user, commands);
    copy(tensor, 0, 128, other, 0);
    copy(ticks, 256, 16, home, 0);
    next_frame();
    next_frame();
    b.map_buffer(b.user, home);
    uint64_t found[2];
    WANT(b.poll_mapped(b.user, home, &data) == CML_OK);
    memcpy(found, data, sizeof found);
    WANT(found[1] - found[0] == 2000 + 100 * 65536);
    b.unmap_buffer(b.user, home);
    b.barrier(b.user, commands);
    next_frame();
    if (broken[0] == 0) return;
    fprintf(stderr, "a frame without fault breaks a rule: %s\n", broken);
    exit(1);
}

static void create_all(void) {
    cml_null_options options = {.on_broken_rule = note, .user = broken};
    WANT(cml_null_fill(&options, &b, &error) == CML_OK);
    scope = b.create_scope(b.user);
    tensor = b.create_buffer(b.user, scope, CML_USAGE_TENSOR, 256);
    other = b.create_buffer(b.user, scope, CML_USAGE_TENSOR, 256);
    uniform = b.create_buffer(b.user, scope, CML_USAGE_UNIFORM, 512);
    ticks = b.create_buffer(b.user, scope, CML_USAGE_QUERIES, 512);
    home = b.create_buffer(b.user, scope, CML_USAGE_READBACK, 256);
    pipeline = b.create_pipeline(b.user, scope, &kernel);
    ranges[0] = ranges[1] = range(uniform, 0, 16);
    ranges[2] = range(tensor, 0, 64);
    bindings = b.create_bindings(b.user, scope, pipeline, ranges, 3, 1, 0);
    WANT(b.poll_scope(b.user, scope, NULL, 0) == CML_OK);
    commands = cml_null_begin(&b);
}

/* ------------------------------------------------------------------ options out of range */

/* The table was given to cml_create before: the backend itself is left alone. */
static void refuse_taken_backend(void) {
    cml_options options = {.backend = &b};
    cml_backend before = b, copied = b;
    for (int i = 0; i < 2; i++) {
        cml_scheduler *s = (cml_scheduler *)&options;
        options.backend = i == 0 ? &b : &copied;
        WANT(cml_create(&options, &s, &error) == CML_ERROR_INPUT && s == NULL);
        WANT(strstr(error.text, "an earlier cml_create") != NULL);
    }
    WANT(memcmp(&before, &b, sizeof b) == 0);
}

static void refuse_options(void) {
    const double wrong[] = {-1, -INFINITY, INFINITY, NAN};
    const struct {
        const char *name;
        size_t offset;
    } numbers[] = {{"options.frame_ms", offsetof(cml_options, frame_ms)},
                   {"options.budget_ms", offsetof(cml_options, budget_ms)},
                   {"options.over_share", offsetof(cml_options, over_share)}};
    for (size_t i = 0; i < 12; i++) {
        cml_null_options null = {.on_broken_rule = note, .user = broken};
        cml_options options = {.backend = &b};
        cml_scheduler *s;
        WANT(cml_null_fill(&null, &b, &error) == CML_OK);
        memcpy((char *)&options + numbers[i / 4].offset, &wrong[i % 4], sizeof *wrong);
        WANT(cml_create(&options, &s, &error) == CML_ERROR_INPUT && s == NULL);
        WANT(strstr(error.text, numbers[i / 4].name) != NULL);
        refuse_taken_backend();
    }
}

/* ------------------------------------------------------------------ main */

int main(int argc, char **argv) {
    enum { COUNT = sizeof rules / sizeof *rules };
    if (argc == 4) {
        play(argv[1], atof(argv[2]), atoi(argv[3]));
        return 0;
    }
    if (argc != 1) {
        fprintf(stderr, "usage: %s [FILE.cml BUDGET_MS IS_LATE]\n", argv[0]);
        return 2;
    }
    refuse_options();
    for (int i = 0; i < (int)COUNT; i++) {
        create_all();
        frame_as_it_should_be();
        break_rule(i);
        if (strstr(broken, rules[i]) == NULL) {
            fprintf(stderr, "case %d: wanted '%s', got '%s'\n", i, rules[i], broken);
            return 1;
        }
        if (i != 33) b.destroy(b.user); /* of all that is left */
    }
    printf("%d rules\n", (int)COUNT);
    return 0;
}
