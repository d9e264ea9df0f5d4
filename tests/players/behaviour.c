/* What the player does when a host changes its mind, throws frames away, or
 * loses its device: `behaviour CASE COUNTER.cml`, of the network of
 * tests/fixtures/cooked.py that counts its runs. */
#ifdef CML_VULKAN
#include "vulkan_gpu.h"
#else
#include "gpu.h"
#endif

#include <time.h>

#define WANT(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d: wanted " #what "\n", __LINE__);                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static gpu g;
static cml_backend backend;
static cml_scheduler *s;
static cml_net *net;
static cml_error error;
static void *bytes;
static size_t size;
static const float x[4] = {0, 1, 2, 3};
static const cml_input plain = {.name = "x", .data = x, .bytes = sizeof x};
static double budget = 4.0, clock_ms;

static double now(void *unused) {
    (void)unused;
    return clock_ms += 0.01;
}

static cml_job submitted(const char *slot) {
    cml_job job;
    cml_job_options options = {.slot = slot};
    WANT(cml_submit(s, net, &plain, 1, &options, &job, &error) == CML_OK);
    return job;
}

static cml_status submit_after(cml_job maker, cml_job *taker) { /* it reads the maker's output */
    cml_input input = {.name = "x", .job = maker, .output = "y"};
    return cml_submit(s, net, &input, 1, NULL, taker, &error);
}

static cml_state state(cml_job job) { return cml_get_job_info(s, job).state; }

#define IS(job, wanted) WANT(state(job) == CML_STATE_##wanted)

static int failed_with(cml_job job, const char *text) {
    return state(job) == CML_STATE_FAILED && strstr(cml_get_job_info(s, job).error, text) != NULL;
}

enum { SUBMIT, ABANDON, DROP };

static void *encoded(void) { /* an open frame */
    void *encoder = gpu_begin(&g, &backend);
    cml_encode(s, encoder, budget);
    return encoder;
}

static void frame(int how) {
    void *encoder = encoded();
    if (how == SUBMIT)
        gpu_submit(&g, encoder);
    else
        gpu_discard(&g, encoder);
    if (how == ABANDON)
        cml_abandon_frame(s);
    else
        cml_end_frame(s);
}

static void until_over(cml_job job) {
    time_t begin = time(NULL); /* pipelines may be built on other threads, of a busy machine */
    while ((state(job) == CML_STATE_QUEUED || state(job) == CML_STATE_RUNNING) &&
           time(NULL) - begin < 100)
        frame(SUBMIT);
}

static void done(cml_job job) {
    until_over(job);
    IS(job, DONE);
}

static float first_of(cml_job job) { /* of its output: the count so far, as x begins with 0 */
    float y[4];
    cml_status status;
    int tries = 0;
    while ((status = cml_read(s, job, "y", y, sizeof y, &error)) == CML_PENDING && tries++ < 100) {
        frame(SUBMIT);
        gpu_wait(&g); /* a driver that works beside the host may need longer than 100 frames */
    }
    WANT(status == CML_OK);
    WANT(y[3] - y[0] > 2.999f && y[3] - y[0] < 3.001f);
    return y[0];
}

/* An output that the network does not have is refused at the call, whatever the job's state. */
static void unknown_output(cml_job job) {
    cml_tensor tensor;
    float z[4];
    WANT(cml_get_tensor(s, job, "z", &tensor) == CML_ERROR_INPUT);
    WANT(cml_get_tensor(s, job, NULL, &tensor) == CML_ERROR_INPUT);
    WANT(cml_read(s, job, "z", z, sizeof z, &error) == CML_ERROR_INPUT);
    WANT(strstr(error.text, "no output 'z'") != NULL);
}

static void runs(void) {
    cml_job job = submitted(NULL);
    cml_tensor tensor;
    IS(job, QUEUED);
    WANT(cml_get_tensor(s, job, "y", &tensor) == CML_PENDING);
    unknown_output(job);
    done(job);
    WANT(cml_get_job_info(s, job).progress > 0.999);
    WANT(cml_get_tensor(s, job, "y", &tensor) == CML_OK && tensor.bytes == 16 &&
         tensor.shape.rank == 2);
    unknown_output(job);
    WANT(first_of(job) == 5.0f);
    cml_release(s, job);
    IS(job, GONE);
    WANT(cml_get_tensor(s, job, "y", &tensor) == CML_ERROR_INPUT);
}

static void chain(void) {
    cml_job maker = submitted(NULL), taker;
    WANT(submit_after(maker, &taker) == CML_OK);
    cml_release(s, taker);
    WANT(submit_after(maker, &taker) == CML_OK);
    until_over(maker);
    IS(taker, QUEUED);
    cml_release(s, maker); /* what waits for it still has it */
    done(taker);
    WANT(first_of(taker) == 5.0f + 6.0f);
    WANT(submit_after(maker, &taker) == CML_ERROR_INPUT);
    maker = submitted(NULL);
    WANT(submit_after(maker, &taker) == CML_OK);
    cml_cancel(s, maker);
    frame(SUBMIT);
    WANT(failed_with(taker, "was cancelled"));
}

static void slots(void) {
    cml_job first = submitted("camera"), second = submitted("camera"), other = submitted("b");
    IS(first, CANCELLED);
    IS(second, QUEUED);
    cml_pause(s, second, 1);
    done(other);
    IS(second, QUEUED);
    cml_pause(s, second, 0);
    done(second);
    WANT(first_of(second) == 6.0f);
}

static void abandoned(void) {
    cml_job job = submitted(NULL);
    int i;
    for (i = 0; i < 5; i++) {
        frame(ABANDON);
        IS(job, QUEUED);
    }
    until_over(job);
    WANT(first_of(job) == 5.0f);
    frame(SUBMIT);
    job = submitted(NULL);
    until_over(job);
    WANT(first_of(job) == 6.0f); /* its variable changed once for each run that there was */
}

static void dropped(void) {
    cml_job job = submitted(NULL);
    int i;
    until_over(job); /* its network is built */
    job = submitted(NULL);
    for (i = 0; i < 100 && state(job) != CML_STATE_DONE && state(job) != CML_STATE_FAILED; i++)
        frame(DROP);
    WANT(i < 100); /* done as far as one can know, or on a slow machine it is
                      known already */
    for (i = 0; i < 6; i++) frame(SUBMIT);
    WANT(failed_with(job, "never submitted"));
    job = submitted(NULL); /* the count is wrong from then on */
    until_over(job);
    WANT(failed_with(job, "call cml_reset()"));
    WANT(cml_reset(net, &error) == CML_OK);
    job = submitted(NULL);
    done(job);
    WANT(first_of(job) == 5.0f);
}

static void harmed(void) { /* what hangs on a dropped frame that is not known of yet */
    cml_job jobs[4];
    int i;
    until_over(submitted(NULL));
    for (i = 0; i < 4; i++) jobs[i] = submitted(NULL);
    budget = 100.0;
    frame(DROP);
    for (i = 0; i < 50; i++) {
        frame(SUBMIT);
        gpu_wait_idle(&g, &backend);
    }
    for (i = 0; i < 4; i++) IS(jobs[i], FAILED);
}

static void many(void) {
    cml_job jobs[64], more;
    int i;
    for (i = 0; i < 64; i++) jobs[i] = submitted(NULL);
    WANT(cml_submit(s, net, &plain, 1, NULL, &more, &error) == CML_ERROR_FULL && more == 0);
    cml_cancel(s, jobs[7]);
    more = submitted(NULL); /* one that was cancelled gives way */
    IS(jobs[7], GONE);
    IS(more, QUEUED);
    for (i = 0; i < 1000 && state(jobs[8]) != CML_STATE_DONE; i++) { /* the eighth that may run */
        frame(SUBMIT);
        gpu_wait_idle(&g, &backend); /* a slow device would have frames but no time */
    }
    for (i = 0; i < 200; i++) frame(SUBMIT); /* the others wait for memory: none is released */
    IS(jobs[0], DONE);
    IS(jobs[8], DONE);
    IS(jobs[9], QUEUED);
    IS(jobs[63], QUEUED);
    for (i = 0; i < 64; i++) cml_release(s, jobs[i]);
    done(more);
    WANT(first_of(more) >= 5.0f + 8.0f);
}

static void nonsense(void) {
    cml_job job;
    cml_input twice[2] = {plain, {.name = "y", .data = x, .bytes = 16}};
    cml_job_options options = {.priority = -3.0};
    WANT(cml_submit(s, net, twice, 2, NULL, &job, &error) == CML_ERROR_INPUT && job == 0);
    WANT(cml_submit(s, net, twice + 1, 1, NULL, &job, &error) == CML_ERROR_INPUT);
    WANT(strstr(error.text, "no input 'y'") != NULL);
    WANT(cml_submit(s, net, twice, 1, &options, &job, &error) == CML_ERROR_INPUT);
    IS(0, GONE);
    IS(12345, GONE);
    cml_cancel(s, 99);
    cml_release(s, 99);
    job = submitted(NULL);
    void *encoder = encoded();
    WANT(cml_encode(s, encoder, 4.0)->reason == CML_REASON_FRAME_NOT_ENDED);
    gpu_discard(&g, encoder);
    cml_abandon_frame(s);
    budget = -3.0; /* is the last one that was a time */
    done(job);
    budget = 0.5;
    WANT(cml_encode(s, encoder = gpu_begin(&g, &backend), budget)->budget_ms < 0.6);
    cml_abandon_frame(s);
    gpu_discard(&g, encoder);
    WANT(cml_encode(s, encoder = gpu_begin(&g, &backend), -2.0)->budget_ms < 0.6);
    cml_abandon_frame(s);
    gpu_discard(&g, encoder);
    WANT(cml_encode(s, encoder = gpu_begin(&g, &backend), CML_BUDGET)->budget_ms > 3.9);
    cml_abandon_frame(s);
    gpu_discard(&g, encoder);
    budget = 0.0;
    job = submitted(NULL);
    frame(SUBMIT);
    IS(job, QUEUED);
}

/* A network's handle stays known after cml_unload: its use is an error. */
static void unloads(void) {
    cml_job job, taker, none;
    cml_tensor tensor;
    cml_shape shape;
    cml_net_info info;
    int i;
    for (i = 0; i < 100; i++) { /* more networks than there may be jobs: none is released */
        done(job = submitted(NULL));
        cml_net *old = net;
        WANT(cml_load_cooked(s, bytes, size, CML_TRUSTED, &net, &error) == CML_OK && net != old);
        WANT(submit_after(job, &taker) == CML_OK);
        /* between encode and abandon what was encoded for the taker is taken back */
        void *encoder = i % 2 ? encoded() : NULL;
        cml_unload(s, old);
        cml_unload(s, old);
        WANT(cml_submit(s, old, &plain, 1, NULL, &none, &error) == CML_ERROR_INPUT && none == 0);
        WANT(strstr(error.text, "unloaded") != NULL);
        if (encoder != NULL) {
            cml_abandon_frame(s);
            gpu_discard(&g, encoder);
        }
        WANT(cml_build(old, 1.0, &error) == CML_ERROR_INPUT);
        WANT(cml_get_input_shape(old, 0, &shape) == CML_ERROR_INPUT);
        WANT(cml_get_output_shape(old, 0, &shape) == CML_ERROR_INPUT);
        WANT(cml_get_net_info(old, &info) == CML_ERROR_INPUT);
        IS(job, GONE);
        WANT(cml_get_tensor(s, job, "y", &tensor) == CML_ERROR_INPUT);
        WANT(failed_with(taker, "unloaded"));
    }
}

/* A backend serves one scheduler: a second one is refused, and the first goes on. */
static void taken(void) {
    cml_options options = {.backend = &backend};
    cml_scheduler *second = s;
    cml_job job = submitted(NULL);
    WANT(cml_create(&options, &second, &error) == CML_ERROR_INPUT && second == NULL);
    WANT(strstr(error.text, "an earlier cml_create") != NULL);
    done(job);
    WANT(first_of(job) == 5.0f);
}

#ifdef CML_VULKAN
static void lock_nothing(void *unused) { (void)unused; }

/* Functions that belong together are given together, and frames that never began have not run. */
static void numbers(void) {
    cml_backend table;
    cml_vulkan half = gpu_described(&g);
    half.lock = lock_nothing;
    WANT(cml_vulkan_fill(&half, &table, &error) == CML_ERROR_INPUT);
    WANT(strstr(error.text, "lock and unlock") != NULL);
    cml_vulkan_completed(&backend, UINT64_MAX); /* 1 - 2 */
    cml_vulkan_begin(&backend, 0);
    cml_job job = submitted(NULL);
    done(job);
    WANT(first_of(job) == 5.0f);
}
#else
static char logged[3][600]; /* the last message of each level */

static void note(void *unused, cml_log_level level, const char *message) {
    (void)unused;
    snprintf(logged[level], sizeof logged[level], "%s", message);
}

/* A device with too few features gets another profile, and the log says why. */
static void requirements(void) {
    cml_requirements needs;
    cml_backend table;
    cml_webgpu webgpu = {.adapter = g.adapter};
    cml_options options = {.backend = &table, .log = note};
    cml_scheduler *other;
    gpu small = g;
    cml_net_info info;
    cml_job job;
    memset(&needs, 0, sizeof needs);
    WANT(cml_required_features(g.adapter, bytes, size, CML_TRUSTED, &needs, &error) == CML_OK);
    WANT(needs.feature_count > 0);
    /* llvmpipe has more than WebGPU guarantees, SwiftShader has not */
    int has_better = strcmp(needs.profile, "software") == 0;
    WANT(has_better || strcmp(needs.profile, "software-portable") == 0);
    WANT(!has_better || needs.limits.minStorageBufferOffsetAlignment == 32);
    size_t count = needs.feature_count;
    WANT(cml_required_features(g.adapter, bytes, size, 0, &needs, &error) == CML_OK);
    WANT(needs.feature_count == count); /* nothing is required twice */
    WANT(cml_required_features(g.adapter, bytes, size - 1, 0, &needs, &error) == CML_ERROR_CORRUPT);
    WANT(cml_get_net_info(net, &info) == CML_OK && info.profile.length == strlen(needs.profile));

    WANT(gpu_create(&small, NULL));
    WANT(cml_webgpu_fill(&webgpu, &table, &error) == CML_ERROR_INPUT);
    webgpu.device = small.device;
    WANT(cml_webgpu_fill(&webgpu, &table, &error) == CML_OK);
    WANT(cml_create(&options, &other, &error) == CML_OK);
    WANT(strstr(logged[CML_LOG_WARNING], "timestamp-query") != NULL);
    cml_net *portable;
    WANT(cml_load_cooked(other, bytes, size, CML_TRUSTED, &portable, &error) == CML_OK);
    WANT(cml_get_net_info(portable, &info) == CML_OK);
    WANT(memcmp(info.profile.data, "software-portable", info.profile.length) == 0);
    WANT(!has_better || strstr(logged[CML_LOG_WARNING], "'software' needs ") != NULL);
    WANT(!has_better || strstr(logged[CML_LOG_WARNING], "could run a better profile") != NULL);
    WANT(cml_submit(other, portable, &plain, 1, NULL, &job, &error) == CML_OK);
    cml_device_lost(other);
    WANT(strstr(logged[CML_LOG_ERROR], "failed: the device was lost") != NULL);
    cml_destroy(other);
    wgpuQueueRelease(small.queue);
    wgpuDeviceRelease(small.device);
    WANT(strcmp(cml_status_name(CML_ERROR_LIMIT), "CML_ERROR_LIMIT") == 0);
    WANT(strcmp(cml_version(), CML_VERSION) == 0);
}

static void lost(void) {
    cml_job job = submitted(NULL), done = submitted(NULL);
    float y[4];
    until_over(job);
    WANT(cml_read(s, job, "y", y, sizeof y, &error) == CML_PENDING);
    frame(SUBMIT);
    cml_device_lost(s);
    WANT(state(done) == CML_STATE_FAILED || state(done) == CML_STATE_DONE);
    WANT(cml_read(s, job, "y", y, sizeof y, &error) != CML_PENDING); /* it may have arrived */
    WANT(cml_encode(s, NULL, 4.0)->reason == CML_REASON_DEVICE_ERROR && cml_end_frame(s) == 0);
    WANT(cml_submit(s, net, NULL, 0, NULL, &job, &error) == CML_ERROR_DEVICE);
    wgpuDeviceDestroy(g.device);
}
#endif

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"runs", runs},       {"chain", chain},     {"slots", slots}, {"abandoned", abandoned},
        {"dropped", dropped}, {"harmed", harmed},   {"many", many},   {"nonsense", nonsense},
        {"unloads", unloads}, {"unordered", chain}, {"taken", taken},
#ifdef CML_VULKAN
        {"numbers", numbers},
#else
                 {"requirements", requirements},
                 {"lost", lost},
#endif
    };
    size_t i;
    bytes = argc == 3 ? read_whole(argv[2], &size) : NULL;
    cml_options options;
    if (bytes == NULL || !gpu_open(&g, bytes, size)) return 3;
    memset(&options, 0, sizeof options);
    options.backend = &backend;
    options.now_ms = now;
    for (i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            WANT(gpu_fill(&g, &backend, &error) == CML_OK);
            if (strcmp(argv[1], "unordered") == 0) backend.barrier = NULL;
            WANT(cml_create(&options, &s, &error) == CML_OK);
            WANT(cml_load_cooked(s, bytes, size, CML_TRUSTED, &net, &error) == CML_OK);
            cases[i].run();
            gpu_wait_idle(&g, &backend);
            cml_destroy(s);
            gpu_close(&g);
            free(bytes);
            printf("%s: as wanted\n", argv[1]);
            return g.errors != 0;
        }
    return 2;
}
