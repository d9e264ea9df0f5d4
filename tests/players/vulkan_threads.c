/* Pipelines are never built on the thread of the frames: `vulkan_threads NET.cml ours|host|unload`,
 * on threads of the player, on one of the host, or for a network that is unloaded meanwhile. None
 * of them is left when the scheduler is destroyed. */
#define _POSIX_C_SOURCE 200112L
#include "vulkan_gpu.h"

#include <pthread.h>
#include <time.h>

#define WANT(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d: wanted " #what "\n", __LINE__);                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { MOST_STARTED = 4 };

static pthread_t frames_thread;
static pthread_key_t key; /* of threads that build pipelines */
static int begun, ended;  /* those threads */
static int built_in_frames, built_elsewhere;
static PFN_vkCreateComputePipelines create_pipelines;
static PFN_vkGetDeviceProcAddr get_device_function;
static void (*started[MOST_STARTED])(void *argument);
static void *arguments[MOST_STARTED];
static int start_count;

static void end_thread(void *unused) {
    (void)unused;
    nanosleep(&(struct timespec){0, 50000000}, NULL); /* ends later than who does not wait for it */
    __atomic_add_fetch(&ended, 1, __ATOMIC_RELAXED);
}

static VKAPI_ATTR VkResult VKAPI_CALL count_pipelines(VkDevice device, VkPipelineCache cache,
                                                      uint32_t count,
                                                      const VkComputePipelineCreateInfo *infos,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkPipeline *pipelines) {
    int is_frame = pthread_equal(pthread_self(), frames_thread);
    if (pthread_getspecific(key) == NULL) __atomic_add_fetch(&begun, 1, __ATOMIC_RELAXED);
    pthread_setspecific(key, &key);
    __atomic_add_fetch(is_frame ? &built_in_frames : &built_elsewhere, 1, __ATOMIC_RELAXED);
    return create_pipelines(device, cache, count, infos, allocator, pipelines);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device, const char *name) {
    PFN_vkVoidFunction found = get_device_function(device, name);
    if (strcmp(name, "vkCreateComputePipelines") != 0) return found;
    create_pipelines = (PFN_vkCreateComputePipelines)found;
    return (PFN_vkVoidFunction)count_pipelines;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance,
                                                                  const char *name) {
    PFN_vkVoidFunction found = vkGetInstanceProcAddr(instance, name);
    if (strcmp(name, "vkGetDeviceProcAddr") != 0) return found;
    get_device_function = (PFN_vkGetDeviceProcAddr)found;
    return (PFN_vkVoidFunction)device_function;
}

static void start(void *user, void (*work)(void *argument), void *argument) {
    (void)user;
    WANT(start_count < MOST_STARTED);
    started[start_count] = work;
    arguments[start_count++] = argument;
}

static void *run_one(void *index) {
    int i = *(int *)index;
    started[i](arguments[i]);
    return NULL;
}

static void run_started(void) { /* what the host's job system does, some frames later */
    for (int i = 0; i < start_count; i++) {
        pthread_t thread;
        WANT(pthread_create(&thread, NULL, run_one, &i) == 0);
        pthread_join(thread, NULL);
    }
    start_count = 0;
}

int main(int argc, char **argv) {
    static const float x[4] = {0, 1, 2, 3};
    const cml_input input = {.name = "x", .data = x, .bytes = sizeof x};
    cml_options options = {.budget_ms = 4.0};
    cml_backend backend;
    cml_scheduler *s;
    cml_net *net;
    cml_error error;
    cml_job job;
    gpu g;
    size_t size = 0;
    void *bytes = argc > 2 ? read_whole(argv[1], &size) : NULL;
    WANT(bytes != NULL && gpu_open(&g, bytes, size));
    int is_ours = strcmp(argv[2], "ours") == 0, is_unloaded = strcmp(argv[2], "unload") == 0;
    cml_vulkan vulkan = gpu_described(&g);
    frames_thread = pthread_self();
    WANT(pthread_key_create(&key, end_thread) == 0);
    vulkan.get_instance_proc_addr = instance_function;
    vulkan.start = is_ours ? NULL : start;
    WANT(cml_vulkan_fill(&vulkan, &backend, &error) == CML_OK);
    options.backend = &backend;
    WANT(cml_create(&options, &s, &error) == CML_OK);
    WANT(cml_load_cooked(s, bytes, size, CML_TRUSTED, &net, &error) == CML_OK);
    WANT(cml_submit(s, net, &input, 1, NULL, &job, &error) == CML_OK);
    for (int i = 0; i < 10000 && cml_get_job_info(s, job).state != CML_STATE_DONE; i++) {
        void *commands = gpu_begin(&g, &backend);
        cml_reason reason = cml_encode(s, commands, CML_BUDGET)->reason;
        gpu_submit(&g, commands);
        cml_end_frame(s);
        WANT(is_ours || i > 0 || reason == CML_REASON_PREPARING);
        if (i < 10) continue;
        if (is_unloaded) break;
        run_started();
    }
    if (is_unloaded) {
        WANT(start_count > 0);
        cml_unload(s, net);
        run_started();
    } else {
        WANT(cml_get_job_info(s, job).state == CML_STATE_DONE);
    }
    WANT(built_in_frames == 0 && built_elsewhere > 0);
    gpu_wait_idle(&g, &backend);
    cml_destroy(s);
    WANT(begun > 0 && begun == ended); /* then a host may unload the player's code */
    gpu_close(&g);
    free(bytes);
    printf("built elsewhere\n");
    return g.errors > 0;
}
