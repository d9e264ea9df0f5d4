/* The smallest host: plays a cooked network in frames of a budget and writes its outputs.
 *
 *     host NET.cml [INPUT=FILE ...] [BUDGET_MS]
 *
 * Files hold plain numbers of 4 bytes; inputs without a file are zeros. Each output is written to
 * OUTPUT.bin. An engine has its own device and frames: gpu.h (WebGPU) or vulkan_gpu.h, and
 * play_frame below. */
#ifdef CML_VULKAN
#include "vulkan_gpu.h"
#else
#include "gpu.h"
#endif

static cml_backend backend; /* the functions of the device */

/* Encodes, submits and ends one frame. */
static void play_frame(gpu *g, cml_scheduler *scheduler, double budget_ms) {
    void *commands = gpu_begin(g, &backend);
    /* an engine encodes its own passes here */
    cml_encode(scheduler, commands, budget_ms);
    gpu_submit(g, commands);
    gpu_wait(g);
    cml_end_frame(scheduler);
}

static int write_output(gpu *g, cml_scheduler *scheduler, cml_job job, const cml_shape *shape,
                        cml_error *error) {
    char name[256], path[264];
    size_t size = (size_t)(4 * shape->elements);
    void *data = malloc(size + 1);
    cml_status status;
    copy_text(name, sizeof name, shape->name);
    snprintf(path, sizeof path, "%s.bin", name);
    while ((status = cml_read(scheduler, job, name, data, size, error)) == CML_PENDING)
        play_frame(g, scheduler, 0.0);
    int is_written = status == CML_OK && write_whole(path, data, size);
    if (is_written) printf("%s: %llu numbers\n", path, (unsigned long long)shape->elements);
    free(data);
    return is_written;
}

/* Plays the network once. Returns an exit code. */
static int play(gpu *g, cml_scheduler *scheduler, cml_net *net, char **arguments, int count,
                double budget_ms) {
    static file_inputs inputs;
    cml_shape shape;
    cml_error error = {CML_ERROR_INPUT, "an output could not be written"};
    cml_job job;
    cml_job_info info;
    long frames = 0;
    if (!read_inputs(net, arguments, (size_t)count, &inputs)) return 1;
    for (int i = 0; i < count; i++) {
        if (arguments[i] == NULL) continue;
        fprintf(stderr, "'%s': the network has no such input; its first is '%s'\n", arguments[i],
                inputs.names[0]);
        return 2;
    }
    cml_status status = cml_submit(scheduler, net, inputs.items, inputs.count, NULL, &job, &error);
    free_inputs(&inputs); /* they were copied */
    if (status != CML_OK) {
        print_error(&error);
        return 1;
    }
    do {
        play_frame(g, scheduler, budget_ms);
        info = cml_get_job_info(scheduler, job);
        frames++;
    } while (info.state == CML_STATE_QUEUED || info.state == CML_STATE_RUNNING);
    if (info.state != CML_STATE_DONE) {
        fprintf(stderr, "the job failed: %s\n", info.error);
        return 1;
    }
    printf("done in %ld frames of %g ms\n", frames, budget_ms);
    for (uint32_t i = 0; cml_get_output_shape(net, i, &shape) == CML_OK; i++) {
        if (write_output(g, scheduler, job, &shape, &error)) continue;
        print_error(&error);
        return 1;
    }
    cml_release(scheduler, job);
    return 0;
}

int main(int argc, char **argv) {
    gpu g;
    cml_scheduler *scheduler;
    cml_net *net;
    cml_error error;
    size_t size = 0;
    void *bytes = argc > 1 ? read_whole(argv[1], &size) : NULL;
    double budget_ms = 4.0;
    int is_read = argc > 1;
    if (argc > 2 && strchr(argv[argc - 1], '=') == NULL)
        is_read = read_number(argv[--argc], &budget_ms) && budget_ms > 0;
    if (!is_read) {
        fprintf(stderr, "usage: host NET.cml [INPUT=FILE ...] [BUDGET_MS]\n");
        return 2;
    }
    if (bytes == NULL) return 2;
    if (!gpu_open(&g, bytes, size)) return 3;
    if (gpu_fill(&g, &backend, &error) != CML_OK) {
        print_error(&error);
        return 1;
    }
    if (!load_network(&backend, bytes, size, &scheduler, &net)) return 1;
    free(bytes);
    int code = play(&g, scheduler, net, argv + 2, argc - 2, budget_ms);
    gpu_wait_idle(&g, &backend);
    cml_unload(scheduler, net);
    cml_destroy(scheduler);
    gpu_close(&g);
    return g.errors > 0 ? 1 : code;
}
