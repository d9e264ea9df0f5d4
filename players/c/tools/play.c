/* Plays a cooked network from the command line, in frames of its own; without one it prints its
 * options.
 * --frames is the least number of frames in all, --most the largest of a run, --slices the largest
 * number of slices in a frame. --small creates a device with WebGPU's default limits. With
 * CML_VULKAN it plays on Vulkan. Files hold plain numbers of 4 bytes; inputs without a file are
 * zeros. Prints a JSON object: the milliseconds of loading, of frames on the device and of whole
 * runs (with --wait), the objects created before and in the frames, the peak of the memory, and the
 * microseconds of the processor in cml_encode, and until the submit returns, of frames with the
 * largest number of slices. */
#ifndef _WIN32
#define _POSIX_C_SOURCE 200112L
#endif
#ifdef CML_VULKAN
#include "../example/vulkan_gpu.h"
#else
#include "../example/gpu.h"
#endif

#include <time.h>
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

enum { MAX_FILES = 16, MAX_VALUES = 1 << 20 };

typedef struct named_files { /* NAME=FILE, as it was given */
    char *values[MAX_FILES];
    size_t count;
} named_files;

typedef struct numbers {
    double values[MAX_VALUES];
    size_t count;
} numbers;

static named_files input_files, output_files;
static double budget = 4.0, runs = 1, frames, most = 1e6, most_slices;
static double with_slices; /* frames that ran a part of the network; others wait for the device */
static int trusted, is_small, waits;
static uint64_t blocks, bytes_taken;
static gpu g;
static cml_backend backend;
static cml_scheduler *scheduler;
static numbers load_ms, run_ms, measured, cpu, encode_us, frame_us;

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

/* Returns the number of words that the option takes; 0 if it is wrong. */
static int read_option(const char *flag, char *value) {
    const struct {
        const char *flag;
        int *on;
        double *number;
        named_files *files;
    } options[] = {
        {"--trusted", &trusted, NULL, NULL},     {"--small", &is_small, NULL, NULL},
        {"--wait", &waits, NULL, NULL},          {"--input", NULL, NULL, &input_files},
        {"--output", NULL, NULL, &output_files}, {"--budget", NULL, &budget, NULL},
        {"--runs", NULL, &runs, NULL},           {"--frames", NULL, &frames, NULL},
        {"--most", NULL, &most, NULL},           {"--slices", NULL, &most_slices, NULL},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        named_files *files = options[i].files;
        if (strcmp(flag, options[i].flag) != 0) continue;
        if (options[i].on != NULL) {
            *options[i].on = 1;
            return 1;
        }
        if (value == NULL) return 0;
        if (options[i].number != NULL && !read_number(value, options[i].number)) return 0;
        if (files == NULL) return 2;
        if (strchr(value, '=') == NULL || files->count == MAX_FILES) return 0;
        files->values[files->count++] = value;
        return 2;
    }
    return 0;
}

/* Returns 1 if tensors of the network took all words; they are NULL then. */
static int are_taken(const named_files *words, const char *what, cml_error *error) {
    char text[300];
    for (size_t i = 0; i < words->count; i++) {
        if (words->values[i] == NULL) continue;
        snprintf(text, sizeof text, "'%s': the network has no such %s", words->values[i], what);
        cml_fail(error, CML_ERROR_INPUT, text);
        return 0;
    }
    return 1;
}

static void add_number(numbers *to, double value) {
    if (to->count < MAX_VALUES) to->values[to->count++] = value;
}

static void print_numbers(const char *name, const numbers *of) {
    printf(", \"%s\": [", name);
    for (size_t i = 0; i < of->count; i++) printf("%s%.6g", i > 0 ? ", " : "", of->values[i]);
    printf("]");
}

#ifdef _WIN32
/* Returns the time: Windows has that of a thread only in steps of 16 ms. */
static double now_us(int unused) {
    LARGE_INTEGER now, second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&second);
    (void)unused;
    return 1e6 * (double)now.QuadPart / (double)second.QuadPart;
}

static void rest(void) { Sleep(1); } /* leaves the processor to threads that build pipelines */
#else
/* Returns the time, or that of the processor for this thread. */
static double now_us(int is_wall) {
    struct timespec now;
    clock_gettime(is_wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static void rest(void) { nanosleep(&(struct timespec){0, 200000}, NULL); }
#endif

static double wall_ms(void) { return 1e-3 * now_us(1); }
static double processor_us(void) { return now_us(0); }

static double peak_mb(void) { /* of the process's memory; 0 where the system does not tell */
    FILE *in = fopen("/proc/self/status", "r");
    char line[128];
    double kilobytes = 0;
    while (in != NULL && fgets(line, sizeof line, in) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0) kilobytes = atof(line + 6);
    if (in != NULL) fclose(in);
    return kilobytes / 1024;
}

static void play_frame(void) {
    void *encoder = gpu_begin(&g, &backend);
    double start = processor_us();
    const cml_report *report = cml_encode(scheduler, encoder, budget);
    double took = processor_us() - start;
    if (report->slices > 0) {
        add_number(&cpu, report->cpu_ms);
        with_slices++;
    }
    if (report->slices > 0 && report->slices == (uint32_t)most_slices) add_number(&encode_us, took);
    gpu_submit(&g, encoder);
    if (report->slices > 0 && report->slices == (uint32_t)most_slices)
        add_number(&frame_us, processor_us() - start);
    if (waits) gpu_wait(&g);
    for (uint32_t i = 0, count = cml_end_frame(scheduler); i < count; i++) {
        const cml_report *full = cml_get_measured(scheduler, i);
        if (full->finished == 0) add_number(&measured, full->measured_ms); /* else it is not full */
    }
}

/* Writes an output to its file, if one was given. */
static int write_output(cml_job job, const cml_shape *shape, cml_error *error) {
    char name[256];
    cml_status status = CML_PENDING;
    size_t size = (size_t)(4 * shape->elements);
    time_t start = time(NULL);
    copy_text(name, sizeof name, shape->name);
    const char *path = take_file(output_files.values, output_files.count, name);
    if (path == NULL) return 1;
    void *data = malloc(size + 1);
    while (status == CML_PENDING && time(NULL) - start < 60) {
        status = cml_read(scheduler, job, name, data, size, error);
        if (status == CML_PENDING) play_frame();
    }
    int is_written = status == CML_OK && write_whole(path, data, size);
    free(data);
    if (status <= CML_PENDING && !is_written)
        cml_fail(error, CML_ERROR_INPUT,
                 status == CML_OK ? "an output cannot be written" : "an output does not arrive");
    return is_written;
}

/* Plays all runs; returns 1 if all went well. */
static int play(cml_net *net, const file_inputs *inputs, cml_error *error) {
    cml_counts before = {0, 0, 0, 0}, after = before;
    cml_shape shape;
    cml_job job = 0;
    double total = 0, run = 0;
    for (int is_last = 0; !is_last; run++) {
        cml_job_info info;
        double n = 0, start = wall_ms();
        if (cml_submit(scheduler, net, inputs->items, inputs->count, NULL, &job, error) != CML_OK)
            return 0;
        do {
            play_frame();
            total++;
            info = cml_get_job_info(scheduler, job);
        } while ((info.state == CML_STATE_QUEUED || info.state == CML_STATE_RUNNING) && n++ < most);
        if (info.state != CML_STATE_DONE) {
            snprintf(error->text, sizeof error->text, "the job ended as %d: %s", (int)info.state,
                     info.error);
            error->status = CML_ERROR_DEVICE;
            return 0;
        }
        if (waits) gpu_wait_idle(&g, &backend);
        if (run >= 3) add_number(&run_ms, wall_ms() - start);
        is_last = run + 1 >= runs && total >= frames && (run >= 5 || !(frames > 0));
        if (!is_last) cml_release(scheduler, job);
        after = cml_get_counts(scheduler);
        after.host_blocks = blocks;
        if (run < 3) continue; /* not all is learned and made: what follows is steady */
        if (run < 4) before = after;
        if (run < 4) measured.count = cpu.count = encode_us.count = frame_us.count = 0;
    }
    for (uint32_t i = 0; cml_get_output_shape(net, i, &shape) == CML_OK; i++)
        if (!write_output(job, &shape, error)) return 0;
    if (!are_taken(&output_files, "output", error)) return 0;
    cml_release(scheduler, job);
    for (int i = 0; i < 8; i++) play_frame();
    printf(
        "{\"frames\": %.0f, \"with_slices\": %.0f, \"runs\": %.0f, \"made\": {\"host\": %llu, \"buffers\": %llu, "
        "\"bind_groups\": %llu, \"pipelines\": %llu}",
        total, with_slices, run, (unsigned long long)(after.host_blocks - before.host_blocks),
        (unsigned long long)(after.buffers - before.buffers),
        (unsigned long long)(after.bind_groups - before.bind_groups),
        (unsigned long long)(after.pipelines - before.pipelines));
    print_numbers("load_ms", &load_ms);
    print_numbers("run_ms", &run_ms);
    print_numbers("measured_ms", &measured);
    print_numbers("cpu_ms", &cpu);
    print_numbers("encode_us", &encode_us);
    print_numbers("frame_us", &frame_us);
    printf(", \"memory_mb\": %.1f, \"errors\": %d}\n", peak_mb(), g.errors);
    return 1;
}

static int load_and_play(const void *bytes, size_t size, cml_error *error) {
    static file_inputs inputs;
    cml_net *net;
    cml_status status;
    double start = wall_ms();
    if (cml_load_cooked(scheduler, bytes, size, trusted ? CML_TRUSTED : 0, &net, error) != CML_OK)
        return 0;
    while ((status = cml_build(net, 1000, error)) == CML_PENDING) rest();
    add_number(&load_ms, wall_ms() - start);
    int is_good = status == CML_OK &&
                  read_inputs(net, input_files.values, input_files.count, &inputs) &&
                  are_taken(&input_files, "input", error) && play(net, &inputs, error);
    free_inputs(&inputs);
    gpu_wait_idle(&g, &backend);
    cml_unload(scheduler, net);
    return is_good;
}

/* Opens a device that suits the file, and fills in the backend. Returns 0 if there is none. */
static int open_device(const void *bytes, size_t size, cml_error *error) {
    cml_allocator allocator = {take, give_back, NULL};
#ifdef CML_VULKAN
    if (!gpu_open(&g, bytes, size)) return 0;
    cml_vulkan vulkan = gpu_described(&g);
    vulkan.allocator = allocator;
    return cml_vulkan_fill(&vulkan, &backend, error) == CML_OK;
#else
    cml_requirements needs;
    memset(&needs, 0, sizeof needs);
    if (!gpu_find(&g)) return 0;
    /* cml_load_cooked reports what is wrong with a file that needs too much */
    if (!is_small && cml_required_features(g.adapter, bytes, size, trusted ? CML_TRUSTED : 0,
                                           &needs, NULL) != CML_OK)
        is_small = 1;
    if (!gpu_create(&g, is_small ? NULL : &needs)) return 0;
    cml_webgpu webgpu = {.device = g.device,
                         .adapter = g.adapter,
                         .queue = g.queue,
                         .instance = g.instance,
                         .allocator = allocator};
    return cml_webgpu_fill(&webgpu, &backend, error) == CML_OK;
#endif
}

int main(int argc, char **argv) {
    cml_error error = {CML_OK, ""};
    size_t size = 0;
    int i = 2, used = 1, is_good = 0;
    for (; i < argc && used > 0; i += used)
        used = read_option(argv[i], i + 1 < argc ? argv[i + 1] : NULL);
    if (argc < 2 || used == 0) {
        fprintf(stderr,
                "usage: play NET.cml [--input NAME=FILE] [--output NAME=FILE] [--budget MS] "
                "[--runs N] [--frames N] [--most N] [--slices N] [--trusted] [--small] [--wait]\n");
        return 2;
    }
    void *bytes = read_whole(argv[1], &size);
    if (bytes == NULL || !open_device(bytes, size, &error)) return 3;
    cml_options options = {.backend = &backend,
                           .allocator = {take, give_back, NULL},
                           .max_slices = (uint32_t)most_slices};
    if (cml_create(&options, &scheduler, &error) == CML_OK)
        is_good = load_and_play(bytes, size, &error);
    if (!is_good && error.status != CML_OK) print_error(&error); /* else a file was named */
    cml_destroy(scheduler);
    gpu_close(&g);
    free(bytes);
    if (bytes_taken != 0)
        fprintf(stderr, "%llu bytes were not given back\n", (unsigned long long)bytes_taken);
    return is_good && g.errors == 0 && bytes_taken == 0 ? 0 : 1;
}
