/* Plays a cooked network from the command line, in frames of its own:
 *
 *     play NET.cml [--input NAME=FILE] [--output NAME=FILE] [--budget MS] [--runs N]
 *                  [--frames N] [--most N] [--slices N] [--trusted] [--small] [--wait]
 *
 * --frames is the least number of frames in all, --most the largest of a run, --slices the largest
 * number of slices in a frame. --small creates a device with WebGPU's default limits.
 * Files hold plain numbers of 4 bytes; inputs without a file are zeros. Prints a JSON object: the
 * frames' milliseconds, the objects created before and in the frames, and the microseconds of the
 * processor in cml_encode, of frames with the largest number of slices. */
#ifndef _WIN32
#define _POSIX_C_SOURCE 200112L
#endif
#include "../example/gpu.h"

#include <math.h>
#include <time.h>

enum { MOST = 16 };

static const char *given_names[MOST], *given_files[MOST], *output_names[MOST], *output_files[MOST];
static size_t given_count, output_count;
static double budget = 4.0;
static long runs = 1, frames, most = 1000000; /* frames of a run */
static int trusted, small_device, waits;
static uint32_t most_slices;
static uint64_t blocks, bytes_taken;

static void *take(void *user, size_t bytes) {
    (void)user;
    blocks++;
    bytes_taken += bytes;
    return malloc(bytes);
}

static void give_back(void *user, void *block, size_t bytes) {
    (void)user;
    bytes_taken -= bytes;
    free(block);
}

static int named_file(char *text, const char **names, const char **files, size_t *count) {
    char *at = strchr(text, '=');
    if (at == NULL || *count == MOST) return 0;
    *at = 0;
    names[*count] = text;
    files[(*count)++] = at + 1;
    return 1;
}

static int options(int argc, char **argv) {
    int i, good = argc >= 2;
    for (i = 2; i < argc && good; i++) {
        const char *flag = argv[i];
        if (strcmp(flag, "--trusted") == 0)
            trusted = CML_TRUSTED;
        else if (strcmp(flag, "--small") == 0)
            small_device = 1;
        else if (strcmp(flag, "--wait") == 0)
            waits = 1;
        else if (++i == argc)
            good = 0;
        else if (strcmp(flag, "--input") == 0)
            good = named_file(argv[i], given_names, given_files, &given_count);
        else if (strcmp(flag, "--output") == 0)
            good = named_file(argv[i], output_names, output_files, &output_count);
        else if (strcmp(flag, "--budget") == 0)
            budget = atof(argv[i]);
        else if (strcmp(flag, "--runs") == 0)
            runs = atol(argv[i]);
        else if (strcmp(flag, "--frames") == 0)
            frames = atol(argv[i]);
        else if (strcmp(flag, "--most") == 0)
            most = atol(argv[i]);
        else if (strcmp(flag, "--slices") == 0)
            most_slices = (uint32_t)atol(argv[i]);
        else
            good = 0;
    }
    return good;
}

static int failed(const char *what, const cml_error *error) {
    fprintf(stderr, "%s (%d): %s\n", what, (int)error->status, error->text);
    return 1;
}

static cml_input inputs[64];
static char names[64][256];
static size_t input_count;

static int read_inputs(const cml_net *net) {
    cml_shape shape;
    size_t i, k, size = 0;
    for (i = 0; cml_get_input_shape(net, (uint32_t)i, &shape) == CML_OK; i++) {
        snprintf(names[i], sizeof names[i], "%.*s", (int)shape.name.length, shape.name.data);
        inputs[i].name = names[i];
        inputs[i].bytes = (size_t)shape.bytes;
        for (k = 0; k < given_count; k++)
            if (strcmp(given_names[k], names[i]) == 0) {
                inputs[i].data = read_whole(given_files[k], &size);
                inputs[i].bytes = size;
            }
        if (inputs[i].data == NULL) inputs[i].data = calloc(1, (size_t)shape.bytes + 1);
    }
    input_count = i;
    return 1;
}

static gpu g;
static cml_scheduler *scheduler;
static double *measured, *cpu, *encode_us;
static long measured_count, frame_count, encode_count;

static double processor_us(void) { /* of this thread */
#ifdef CLOCK_THREAD_CPUTIME_ID
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
#else
    return 1e6 * (double)clock() / CLOCKS_PER_SEC;
#endif
}

static void frame(void) {
    WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(g.device, NULL);
    double start = processor_us();
    const cml_report *report = cml_encode(scheduler, encoder, budget);
    double took = processor_us() - start;
    WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, NULL);
    uint32_t count, i;
    if (report->slices > 0 && frame_count < 1 << 20) cpu[frame_count++] = report->cpu_ms;
    if (report->slices == most_slices && encode_count < 1 << 20) encode_us[encode_count++] = took;
    wgpuQueueSubmit(g.queue, 1, &commands);
    wgpuCommandBufferRelease(commands);
    wgpuCommandEncoderRelease(encoder);
    if (waits) gpu_wait(&g);
    count = cml_end_frame(scheduler);
    for (i = 0; i < count; i++) { /* a frame in which a job ended is not full */
        const cml_report *full = cml_get_measured(scheduler, i);
        if (full->finished == 0 && measured_count < 1 << 20)
            measured[measured_count++] = full->measured_ms;
    }
}

static void print_numbers(const char *name, const double *values, long count) {
    long i;
    printf("\"%s\": [", name);
    for (i = 0; i < count; i++) printf("%s%.6g", i > 0 ? ", " : "", values[i]);
    printf("]");
}

static int write_outputs(cml_job job, cml_error *error) {
    size_t i;
    for (i = 0; i < output_count; i++) {
        cml_tensor tensor;
        cml_status status;
        void *data;
        FILE *out;
        time_t start = time(NULL);
        if (cml_get_tensor(scheduler, job, output_names[i], &tensor) != CML_OK) return 0;
        data = malloc((size_t)tensor.bytes + 1);
        do {
            status = cml_read(scheduler, job, output_names[i], data, (size_t)tensor.bytes, error);
            if (status == CML_PENDING) frame();
        } while (status == CML_PENDING && time(NULL) - start < 60);
        if (status != CML_OK) return 0;
        out = fopen(output_files[i], "wb");
        if (out == NULL || fwrite(data, 1, (size_t)tensor.bytes, out) != tensor.bytes) return 0;
        fclose(out);
        free(data);
    }
    return 1;
}

static int play(cml_net *net, cml_error *error) {
    cml_counts before, after = {0, 0, 0, 0};
    long run, total = 0;
    uint64_t taken_before = 0;
    cml_job job = 0;
    memset(&before, 0, sizeof before);
    for (run = 0; run < runs || total < frames || (frames > 0 && run < 6); run++) {
        cml_job_info info;
        long n = 0;
        if (cml_submit(scheduler, net, inputs, input_count, NULL, &job, error) != CML_OK) return 0;
        do {
            frame();
            total++;
            info = cml_get_job_info(scheduler, job);
        } while ((info.state == CML_STATE_QUEUED || info.state == CML_STATE_RUNNING) && n++ < most);
        if (info.state != CML_STATE_DONE) {
            snprintf(error->text, sizeof error->text, "the job ended as %d: %s", (int)info.state,
                     info.error);
            return 0;
        }
        if (run + 1 < runs || total < frames || (frames > 0 && run < 5))
            cml_release(scheduler, job);
        if (run == 3) { /* all is learned and made: what follows is steady */
            before = cml_get_counts(scheduler);
            taken_before = blocks;
            measured_count = frame_count = encode_count = 0;
        }
        after = cml_get_counts(scheduler);
        after.host_blocks = blocks - taken_before;
    }
    if (!write_outputs(job, error)) return 0;
    cml_release(scheduler, job);
    for (run = 0; run < 8; run++) frame();
    printf("{\"frames\": %ld, \"runs\": %ld, \"made\": {\"host\": %llu, \"buffers\": %llu, "
           "\"bind_groups\": %llu, "
           "\"pipelines\": %llu}, ",
           total, run, (unsigned long long)after.host_blocks,
           (unsigned long long)(after.buffers - before.buffers),
           (unsigned long long)(after.bind_groups - before.bind_groups),
           (unsigned long long)(after.pipelines - before.pipelines));
    print_numbers("measured_ms", measured, measured_count);
    printf(", ");
    print_numbers("cpu_ms", cpu, frame_count);
    printf(", ");
    print_numbers("encode_us", encode_us, most_slices > 0 ? encode_count : 0);
    printf(", \"errors\": %d}\n", g.errors);
    return 1;
}

int main(int argc, char **argv) {
    cml_options with;
    cml_error error;
    cml_net *net;
    cml_status status;
    size_t size = 0, i;
    void *bytes;
    int good, is_small;
    cml_requirements needs;
    memset(&needs, 0, sizeof needs);
    memset(&with, 0, sizeof with);
    memset(&error, 0, sizeof error);
    if (!options(argc, argv)) {
        fprintf(
            stderr,
            "usage: play NET.cml [--input NAME=FILE] [--output NAME=FILE] [--budget MS] [--runs N] "
            "[--frames N] [--slices N] [--trusted] [--small] [--wait]\n");
        return 2;
    }
    bytes = read_whole(argv[1], &size);
    if (bytes == NULL || !gpu_find(&g)) return 3;
    /* cml_load reports what is wrong with a file that needs too much */
    is_small = small_device || cml_required_features(g.adapter, bytes, size, (uint32_t)trusted,
                                                     &needs, NULL) != CML_OK;
    if (!gpu_create(&g, is_small ? NULL : &needs)) return 3;
    measured = malloc(sizeof *measured << 20);
    cpu = malloc(sizeof *cpu << 20);
    encode_us = malloc(sizeof *encode_us << 20);
    with.device = g.device;
    with.adapter = g.adapter;
    with.queue = g.queue;
    with.instance = g.instance;
    with.max_slices = most_slices;
    with.allocator.allocate = take;
    with.allocator.release = give_back;
    if (cml_create(&with, &scheduler, &error) != CML_OK) return failed("no scheduler", &error);
    if (cml_load(scheduler, bytes, size, (uint32_t)trusted, &net, &error) != CML_OK) {
        cml_destroy(scheduler);
        gpu_close(&g);
        free(bytes);
        free(measured);
        free(cpu);
        free(encode_us);
        return failed("not loaded", &error);
    }
    while ((status = cml_build(net, 1000, &error)) == CML_PENDING) {}
    good = status == CML_OK && read_inputs(net) && play(net, &error);
    if (!good) failed("not played", &error);
    cml_unload(scheduler, net);
    cml_destroy(scheduler);
    gpu_close(&g);
    for (i = 0; i < input_count; i++) free((void *)inputs[i].data);
    free(bytes);
    free(measured);
    free(cpu);
    free(encode_us);
    if (bytes_taken != 0)
        fprintf(stderr, "%llu bytes were not given back\n", (unsigned long long)bytes_taken);
    return good && g.errors == 0 && bytes_taken == 0 ? 0 : 1;
}
