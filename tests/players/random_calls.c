/* Calls the player in any order, with handles old and new, while memory runs
 * short now and then:
 *
 *     random_calls CALLS SEED COUNTER.cml [null]      null: without a device
 *
 * Sanitizers say what is wrong; this says whether memory is given back, and
 * whether a scheduler is full of jobs that nobody can name. */
#include "cml_null.h"
#ifdef CML_VULKAN
#include "vulkan_gpu.h"
#else
#include "gpu.h"
#endif

#define WANT(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d, call %ld: wanted " #what "\n", __LINE__, call);              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { NETS = 4, JOBS = 512, MOST_JOBS = 8 };

static gpu g;
static cml_scheduler *scheduler;
static cml_net *nets[NETS], *stale; /* stale: unloaded last */
static cml_job jobs[JOBS];          /* the last handles, by their number */
static uint64_t job_count, submitted, done;
static void *buffer;
static void *encoder; /* of the open frame */
static cml_backend backend;
static int is_null; /* on the null backend */
static const void *bytes;
static size_t size;
static long call, blocks;
static uint32_t state;
static int memory_is_short;

static uint32_t below(uint32_t n) { /* xorshift */
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % n;
}

static void *take(void *user, size_t wanted) {
    void *block;
    (void)user;
    if (memory_is_short && below(100) == 0) return NULL;
    block = malloc(wanted);
    blocks += block != NULL;
    return block;
}

static void give_back(void *user, void *block, size_t unused) {
    (void)user;
    (void)unused;
    blocks--;
    free(block);
}

static void on_broken_rule(void *unused, const char *rule) {
    (void)unused;
    fprintf(stderr, "call %ld: a rule is broken: %s\n", call, rule);
    exit(1);
}

static cml_status fill(cml_error *error) {
    cml_allocator allocator = {take, give_back, NULL};
    cml_null_options null = {
        .allocator = allocator, .on_broken_rule = on_broken_rule, .answer_after = 3};
    if (is_null) return cml_null_fill(&null, &backend, error);
#ifdef CML_VULKAN
    cml_vulkan vulkan = gpu_described(&g);
    vulkan.allocator = allocator;
    return cml_vulkan_fill(&vulkan, &backend, error);
#else
    cml_webgpu webgpu = {.device = g.device, .adapter = g.adapter, .allocator = allocator};
    return cml_webgpu_fill(&webgpu, &backend, error);
#endif
}

#ifdef CML_VULKAN
static cml_vulkan_source given;
static VkDeviceMemory given_memory;

static void create_buffer(void) {
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                               .size = 1 << 20, /* a driver counts few small allocations */
                               .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT};
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    VkMemoryRequirements needs;
    vkCreateBuffer(g.device, &info, NULL, &given.buffer);
    vkGetBufferMemoryRequirements(g.device, given.buffer, &needs);
    memory.allocationSize = needs.size;
    while (!(needs.memoryTypeBits >> memory.memoryTypeIndex & 1)) memory.memoryTypeIndex++;
    vkAllocateMemory(g.device, &memory, NULL, &given_memory);
    vkBindBufferMemory(g.device, given.buffer, given_memory, 0);
    given.bytes = 16;
    buffer = &given;
}

static void destroy_buffer(void) {
    vkDestroyBuffer(g.device, given.buffer, NULL);
    vkFreeMemory(g.device, given_memory, NULL);
}
#else
static void create_buffer(void) {
    WGPUBufferDescriptor wanted = {.size = 16,
                                   .usage = WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst};
    buffer = wgpuDeviceCreateBuffer(g.device, &wanted);
}

static void destroy_buffer(void) { wgpuBufferRelease(buffer); }
#endif

static void *begin_commands(void) {
    void *begun = NULL;
    while (is_null && begun == NULL) begun = cml_null_begin(&backend);
    return is_null ? begun : gpu_begin(&g, &backend);
}

static void end_commands(int is_submitted) {
    if (is_null) {
        if (is_submitted)
            cml_null_submit(&backend, encoder);
        else
            cml_null_discard(&backend, encoder);
        return;
    }
    if (is_submitted)
        gpu_submit(&g, encoder);
    else
        gpu_discard(&g, encoder);
    if (is_submitted && below(2)) gpu_wait(&g);
}

static void create(void) {
    cml_options options;
    cml_error error;
    memset(&options, 0, sizeof options);
    options.backend = &backend;
    options.max_jobs = MOST_JOBS;
    options.allocator = (cml_allocator){take, give_back, NULL};
    do {
        scheduler = NULL;
        if (fill(&error) != CML_OK) {
            WANT(error.status == CML_ERROR_MEMORY);
            continue;
        }
        WANT(cml_create(&options, &scheduler, &error) == CML_OK ||
             error.status == CML_ERROR_MEMORY);
    } while (scheduler == NULL);
    if (is_null) buffer = NULL;
    while (is_null && buffer == NULL) buffer = cml_null_create_buffer(&backend, 16);
}

static cml_job some_job(void) {
    uint32_t back = below(8) ? below(12) : below(JOBS); /* mostly one of the last */
    return back < job_count ? jobs[(job_count - 1 - back) % JOBS] : below(9);
}

static cml_net **some_net(int is_there) { /* NULL: there is none such */
    uint32_t first = below(NETS);
    for (uint32_t i = 0; i < NETS; i++)
        if ((nets[(first + i) % NETS] != NULL) == is_there) return nets + (first + i) % NETS;
    return NULL;
}

static void load(void) {
    cml_error error;
    cml_net **net = some_net(0);
    if (net == NULL) return;
    uint32_t flags = below(2) ? CML_TRUSTED : 0;
    cml_status status = cml_load_cooked(scheduler, bytes, size, flags, net, &error);
    /* with Vulkan, kernels of a file that is not trusted are refused */
    WANT(status == CML_OK || status == CML_ERROR_MEMORY ||
         (status == CML_ERROR_STALE && flags == 0));
    while (status == CML_OK && below(2) && cml_build(*net, 1.0, &error) == CML_PENDING) {}
}

static void unload(void) {
    cml_net **net = some_net(1);
    if (net == NULL) return;
    cml_unload(scheduler, *net);
    stale = *net;
    *net = NULL;
}

static void use_stale(void) {
    cml_job job;
    cml_shape shape;
    if (stale == NULL) return;
    WANT(cml_submit(scheduler, stale, NULL, 0, NULL, &job, NULL) == CML_ERROR_INPUT && job == 0);
    if (encoder == NULL) WANT(cml_get_input_shape(stale, 0, &shape) == CML_ERROR_INPUT);
    cml_unload(scheduler, stale);
}

static void submit(void) {
    static const float x[4] = {0, 1, 2, 3};
    static const char *slots[] = {NULL, NULL, "a", "b"};
    cml_input input = {.name = below(50) ? "x" : "y"};
    cml_job_options options = {.slot = slots[below(4)], .priority = below(3) ? 0 : CML_IDLE};
    cml_net **net = some_net(1);
    cml_error error;
    cml_job job;
    uint32_t kind = below(3), alive = 0;
    if (net == NULL) return;
    if (kind == 0) {
        input.data = x;
        input.bytes = sizeof x;
    } else if (kind == 1) {
        input.buffer = buffer;
    } else {
        input.job = some_job();
        input.output = below(20) ? "y" : "after";
    }
    cml_status status = cml_submit(scheduler, *net, &input, 1, &options, &job, &error);
    if (status == CML_OK) {
        jobs[job_count++ % JOBS] = job;
        submitted++;
        return;
    }
    WANT(job == 0 && error.text[0] != 0);
    if (status != CML_ERROR_FULL) return;
    for (uint32_t i = 0; i < JOBS && i < job_count; i++) {
        cml_state is = cml_get_job_info(scheduler, jobs[i]).state;
        alive += is != CML_STATE_GONE && is != CML_STATE_CANCELLED && is != CML_STATE_FAILED;
    }
    WANT(alive > 0); /* one of them can be released */
}

static void look_at_job(void) {
    float data[4];
    cml_error error;
    cml_tensor tensor;
    cml_job job = some_job();
    switch (below(7)) {
    case 0:
        cml_cancel(scheduler, job);
        break;
    case 1:
        cml_pause(scheduler, job, (int)below(2));
        break;
    case 2:
    case 3:
        cml_release(scheduler, job);
        break;
    case 4:
        if (cml_get_tensor(scheduler, job, "y", &tensor) == CML_OK)
            WANT(tensor.buffer != NULL && tensor.shape.name.data[0] == 'y');
        break;
    case 5:
        if (cml_read(scheduler, job, "y", data, sizeof data, &error) == CML_OK) {
            done++;
            WANT(data[3] - data[0] > -1e9f);
        }
        break;
    default:
        WANT(cml_get_job_info(scheduler, job).progress <= 1.0);
    }
}

static void encode(void) {
    const cml_report *report;
    const cml_slice *slices;
    if (encoder != NULL) {
        WANT(cml_encode(scheduler, encoder, 4.0)->reason == CML_REASON_FRAME_NOT_ENDED);
        return;
    }
    encoder = begin_commands();
    report = cml_encode(scheduler, encoder, below(3) ? 1000.0 : 0.01);
    slices = cml_get_slices(scheduler);
    for (uint32_t i = 0; i < report->slices; i++)
        WANT(slices[i].op.length == 0 || slices[i].op.data[0] != 0);
}

static void end(void) { /* the frame is submitted, forgotten or abandoned */
    uint32_t how = below(8);
    if (encoder == NULL) {
        WANT(cml_end_frame(scheduler) == 0);
        return;
    }
    end_commands(how > 1);
    encoder = NULL;
    if (how == 0)
        cml_abandon_frame(scheduler);
    else
        cml_end_frame(scheduler);
}

static void destroy(void) {
    while (some_net(1) != NULL) unload();
    if (encoder != NULL) end();
    if (!is_null) gpu_wait_idle(&g, &backend);
    if (is_null) cml_null_release_buffer(&backend, buffer);
    cml_destroy(scheduler);
    stale = NULL;
    WANT(blocks == 0);
}

int main(int argc, char **argv) {
    is_null = argc == 5;
    long calls = argc >= 4 ? atol(argv[1]) : 0;
    bytes = argc >= 4 ? read_whole(argv[3], &size) : NULL;
    if (bytes == NULL || (!is_null && !gpu_open(&g, bytes, size))) return 3;
    state = (uint32_t)atol(argv[2]) * 2654435761u + 1;
    if (!is_null) create_buffer();
    create();
    memory_is_short = 1;
    for (call = 0; call < calls; call++) {
        uint32_t what = below(1000);
        if (what < 1) {
            destroy();
            create();
        } else if (what < 10)
            unload();
        else if (what < 15)
            use_stale();
        else if (what < 60)
            load();
        else if (what < 250)
            submit();
        else if (what < 600)
            look_at_job();
        else if (what < 800)
            encode();
        else
            end();
    }
    destroy();
    if (!is_null) destroy_buffer();
    if (!is_null) gpu_close(&g);
    free((void *)bytes);
    printf("%ld calls, %llu jobs, %llu outputs read\n", calls, (unsigned long long)submitted,
           (unsigned long long)done);
    return g.errors != 0;
}
