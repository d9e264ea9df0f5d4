/* The backend for webgpu.h. It uses nothing of the player but the public headers. */
#include "cml_webgpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Differences between implementations of webgpu.h. With Dawn kernels are WGSL, run-time checks
 * stay, and timestamps are in nanoseconds. */
#ifdef CML_DAWN
enum { IS_WGPU_NATIVE = 0 };
#define NATIVE_SUBGROUPS WGPUFeatureName_Subgroups
#define wgpuDeviceCreateShaderModuleTrusted(d, of, checks) wgpuDeviceCreateShaderModule(d, of)
#define wgpuQueueGetTimestampPeriod(queue) 1.0
#else
enum { IS_WGPU_NATIVE = 1 };
#define NATIVE_SUBGROUPS ((WGPUFeatureName)WGPUNativeFeature_Subgroup)
#endif

enum { POLLS = 1000 }; /* for a callback that has to come before its memory is freed */

typedef enum map_state { MAP_NONE, MAP_PENDING, MAP_DONE, MAP_LOST, MAP_DROPPED } map_state;

typedef struct readback_buffer { /* of a buffer that the host reads */
    struct readback_buffer *next;
    WGPUBuffer buffer;
    map_state state;
} readback_buffer;

typedef struct webgpu {
    cml_webgpu host;
    int owns_queue;
    cml_device_info info;
    WGPUQuerySet queries;
    readback_buffer *readbacks;
    WGPUComputePassEncoder pass; /* that is open */
} webgpu;

struct cml_scope {
    int pending; /* error scopes that are not answered yet; Dawn answers later */
    cml_status status;
    char text[240];
};

struct cml_pipeline {
    WGPUBindGroupLayout layout;
    WGPUComputePipeline pipeline;
};

/* ------------------------------------------------------------------ memory and texts */

static void *allocate(const webgpu *w, size_t bytes) {
    return cml_allocate(&w->host.allocator, bytes);
}

static WGPUStringView view_of(cml_text text) { return (WGPUStringView){text.data, text.length}; }

static WGPUStringView view_from(const char *text) { return (WGPUStringView){text, strlen(text)}; }

/* ------------------------------------------------------------------ the device */

/* llvmpipe states a range of subgroup sizes, and uses the width that its name has: "256 bits". */
static uint32_t llvmpipe_lanes(const char *name) {
    const char *at = strstr(name, " bits");
    if (at == NULL || strstr(name, "llvmpipe") == NULL) return 0;
    while (at > name && at[-1] >= '0' && at[-1] <= '9') at--;
    return (uint32_t)strtoul(at, NULL, 10) / 32;
}

static int has_feature(WGPUAdapter adapter, WGPUDevice device, WGPUFeatureName feature) {
    if (device != NULL) return wgpuDeviceHasFeature(device, feature) != 0;
    return wgpuAdapterHasFeature(adapter, feature) != 0;
}

/* Returns what a device has, or, if `device` is NULL, what a device of the adapter could have. The
 * adapter may be NULL if the device is not. */
static cml_device_info info_of(WGPUAdapter adapter, WGPUDevice device) {
    WGPULimits limits;
    WGPUAdapterInfo adapter_info = {.nextInChain = NULL};
    memset(&limits, 0, sizeof limits);
    if (device != NULL)
        wgpuDeviceGetLimits(device, &limits);
    else
        wgpuAdapterGetLimits(adapter, &limits);
    if (adapter != NULL) wgpuAdapterGetInfo(adapter, &adapter_info);
    int is_software = adapter_info.adapterType == WGPUAdapterType_CPU;
    int is_timed = has_feature(adapter, device, WGPUFeatureName_TimestampQuery);
    cml_device_info info = {
        .buffer_bytes = limits.maxBufferSize,
        .binding_bytes = limits.maxStorageBufferBindingSize,
        .storage_buffers = limits.maxStorageBuffersPerShaderStage,
        .storage_alignment = limits.minStorageBufferOffsetAlignment,
        .uniform_alignment = limits.minUniformBufferOffsetAlignment,
        .threads = limits.maxComputeInvocationsPerWorkgroup,
        .shared_bytes = limits.maxComputeWorkgroupStorageSize,
        .groups_per_dimension = limits.maxComputeWorkgroupsPerDimension,
        .tick_ms = is_timed ? 1e-6 : 0.0,
        .has_half = has_feature(adapter, device, WGPUFeatureName_ShaderF16),
        .takes_spirv = IS_WGPU_NATIVE,
        .takes_wgsl = 1,
        .is_software = is_software,
        .times_pass_end = is_software, /* a timestamp takes 20 to 50 us on a software driver */
    };
    snprintf(info.name, sizeof info.name, "%.*s (%.*s)",
             (int)(adapter_info.device.data ? adapter_info.device.length : 0),
             adapter_info.device.data,
             (int)(adapter_info.description.data ? adapter_info.description.length : 0),
             adapter_info.description.data);
    if (has_feature(adapter, device, NATIVE_SUBGROUPS) ||
        has_feature(adapter, device, WGPUFeatureName_Subgroups)) {
        uint32_t lanes = llvmpipe_lanes(info.name);
        info.lanes = lanes > 0 ? lanes : adapter_info.subgroupMinSize;
    }
    if (adapter != NULL) wgpuAdapterInfoFreeMembers(adapter_info);
    return info;
}

static int get_info(void *user, int could_be, cml_device_info *info) {
    const webgpu *w = user;
    if (could_be && w->host.adapter == NULL) return 0;
    *info = could_be ? info_of(w->host.adapter, NULL) : w->info;
    return 1;
}

static void poll(void *user) {
    const webgpu *w = user;
#ifdef CML_DAWN
    if (w->host.instance != NULL) wgpuInstanceProcessEvents(w->host.instance);
#else
    wgpuDevicePoll(w->host.device, 0, NULL);
#endif
}

static void destroy(void *user) {
    webgpu *w = user;
    cml_allocator allocator = w->host.allocator;
    if (w->queries != NULL) wgpuQuerySetRelease(w->queries);
    if (w->owns_queue) wgpuQueueRelease(w->host.queue);
    cml_deallocate(&allocator, w, sizeof *w);
}

/* ------------------------------------------------------------------ errors of the device */

static void on_error_scope(WGPUPopErrorScopeStatus status, WGPUErrorType type,
                           WGPUStringView message, void *user, void *unused) {
    cml_scope *scope = user;
    size_t room = sizeof scope->text - 1;
    (void)unused;
    scope->pending--;
    if (status != WGPUPopErrorScopeStatus_Success || type == WGPUErrorType_NoError ||
        scope->status != CML_OK)
        return;
    scope->status = type == WGPUErrorType_OutOfMemory ? CML_ERROR_MEMORY : CML_ERROR_DEVICE;
    if (message.data != NULL) /* ends with a zero if its length is WGPU_STRLEN */
        snprintf(scope->text, sizeof scope->text, "%.*s",
                 (int)(message.length < room ? message.length : room), message.data);
}

static void push_error_scopes(const webgpu *w) {
    wgpuDevicePushErrorScope(w->host.device, WGPUErrorFilter_OutOfMemory);
    wgpuDevicePushErrorScope(w->host.device, WGPUErrorFilter_Validation);
}

static void pop_error_scopes(const webgpu *w, cml_scope *scope) {
    WGPUPopErrorScopeCallbackInfo info = {.mode = WGPUCallbackMode_AllowProcessEvents,
                                          .callback = on_error_scope,
                                          .userdata1 = scope};
    scope->pending += 2;
    wgpuDevicePopErrorScope(w->host.device, info);
    wgpuDevicePopErrorScope(w->host.device, info);
}

static cml_scope *create_scope(void *user) { return allocate(user, sizeof(cml_scope)); }

static cml_status poll_scope(void *user, cml_scope *scope, char *text, size_t room) {
    (void)user;
    if (scope->status == CML_OK) return scope->pending > 0 ? CML_PENDING : CML_OK;
    if (room > 0) snprintf(text, room, "%s", scope->text);
    return scope->status;
}

static void release_scope(void *user, cml_scope *scope) {
    const webgpu *w = user;
    for (int i = 0; scope->pending > 0 && i < POLLS; i++) poll(user);
    if (scope->pending == 0) cml_deallocate(&w->host.allocator, scope, sizeof *scope);
}

/* ------------------------------------------------------------------ buffers */

static WGPUBuffer handle_of(cml_buffer *buffer) { return (WGPUBuffer)(void *)buffer; }
static cml_buffer *buffer_of(WGPUBuffer handle) { return (cml_buffer *)(void *)handle; }

/* Returns the place of a buffer in the list of those that the host reads. */
static readback_buffer **find_readback(webgpu *w, cml_buffer *buffer) {
    readback_buffer **at = &w->readbacks;
    while (*at != NULL && buffer_of((*at)->buffer) != buffer) at = &(*at)->next;
    return at;
}

static cml_buffer *create_buffer(void *user, cml_scope *scope, cml_usage usage, uint64_t bytes) {
    static const WGPUBufferUsage usages[] = {
        WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst,
        WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst,
        WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst,
        WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst,
    };
    webgpu *w = user;
    WGPUBufferDescriptor descriptor = {
        .label = view_from("cml"), .usage = usages[usage], .size = bytes};
    if (usage == CML_USAGE_QUERIES && w->queries != NULL)
        descriptor.usage |= WGPUBufferUsage_QueryResolve;
    readback_buffer *readback = NULL;
    if (usage == CML_USAGE_READBACK) {
        readback = allocate(w, sizeof *readback);
        if (readback == NULL) return NULL;
    }
    push_error_scopes(w);
    WGPUBuffer buffer = wgpuDeviceCreateBuffer(w->host.device, &descriptor);
    pop_error_scopes(w, scope);
    if (readback != NULL) {
        *readback = (readback_buffer){w->readbacks, buffer, MAP_NONE};
        w->readbacks = readback;
    }
    return buffer_of(buffer);
}

static cml_buffer *adopt_buffer(void *user, void *handle, const cml_shape *shape, uint64_t *bytes) {
    WGPUBuffer buffer = handle;
    (void)user;
    (void)shape;
    if ((wgpuBufferGetUsage(buffer) & WGPUBufferUsage_CopySrc) == 0) return NULL;
    *bytes = wgpuBufferGetSize(buffer);
    wgpuBufferAddRef(buffer);
    return buffer_of(buffer);
}

static void ignore_error(WGPUPopErrorScopeStatus status, WGPUErrorType type, WGPUStringView message,
                         void *user, void *unused) {
    (void)status;
    (void)type;
    (void)message;
    (void)user;
    (void)unused;
}

static void unmap_buffer(void *user, cml_buffer *buffer) {
    const webgpu *w = user;
    readback_buffer *r = *find_readback(user, buffer);
    int is_mapped = r->state == MAP_PENDING || r->state == MAP_DONE;
    r->state = r->state == MAP_PENDING || r->state == MAP_DROPPED ? MAP_DROPPED : MAP_NONE;
    if (!is_mapped) return;
    /* fails only if the host destroyed the device, which destroyed the buffer */
    WGPUPopErrorScopeCallbackInfo ignored = {.mode = WGPUCallbackMode_AllowProcessEvents,
                                             .callback = ignore_error};
    wgpuDevicePushErrorScope(w->host.device, WGPUErrorFilter_Validation);
    wgpuBufferUnmap(r->buffer);
    wgpuDevicePopErrorScope(w->host.device, ignored);
}

static void release_buffer(void *user, cml_buffer *buffer) {
    webgpu *w = user;
    readback_buffer **at = find_readback(w, buffer), *r = *at;
    if (r != NULL) {
        *at = r->next;
        wgpuBufferDestroy(r->buffer);
        for (int i = 0; r->state == MAP_DROPPED && i < POLLS; i++) poll(user);
        if (r->state != MAP_DROPPED) cml_deallocate(&w->host.allocator, r, sizeof *r);
    }
    wgpuBufferRelease(handle_of(buffer)); /* destroys it once no commands use it */
}

static void *get_handle(void *user, cml_buffer *buffer) {
    (void)user;
    return buffer;
}

static void write_buffer(void *user, void *commands, cml_buffer *to, uint64_t offset,
                         const void *data, uint64_t bytes) {
    const webgpu *w = user;
    (void)commands; /* a queue writes before the next submit */
    wgpuQueueWriteBuffer(w->host.queue, handle_of(to), offset, data, (size_t)bytes);
}

/* ------------------------------------------------------------------ kernels */

/* Blanks the line that enables subgroups in WGSL: wgpu-native has them and rejects the line. */
static void blank_enable_subgroups(char *code, size_t size) {
    static const char line[] = "enable subgroups;";
    size_t length = sizeof line - 1;
    for (size_t i = 0; i + length <= size; i++)
        if (memcmp(code + i, line, length) == 0) memset(code + i, ' ', length);
}

static WGPUShaderModule create_module(const webgpu *w, const cml_kernel *kernel, const void *code) {
    WGPUShaderSourceWGSL wgsl = {{NULL, WGPUSType_ShaderSourceWGSL}, {code, kernel->bytes}};
    WGPUShaderSourceSPIRV spirv = {
        {NULL, WGPUSType_ShaderSourceSPIRV}, (uint32_t)(kernel->bytes / 4), code};
    WGPUShaderModuleDescriptor descriptor = {.label = view_of(kernel->label)};
    descriptor.nextInChain = kernel->language == CML_LANGUAGE_WGSL ? &wgsl.chain : &spirv.chain;
    if (kernel->is_unchecked)
        return wgpuDeviceCreateShaderModuleTrusted(w->host.device, &descriptor, 0);
    return wgpuDeviceCreateShaderModule(w->host.device, &descriptor);
}

static WGPUBindGroupLayout create_layout(const webgpu *w, const cml_kernel *kernel) {
    WGPUBindGroupLayoutEntry entries[CML_MOST_BINDINGS];
    for (uint32_t i = 0; i < kernel->tensors + 2; i++) {
        entries[i] = (WGPUBindGroupLayoutEntry){.binding = i};
        entries[i].visibility = WGPUShaderStage_Compute;
        entries[i].buffer.type =
            i < 2 ? WGPUBufferBindingType_Uniform : WGPUBufferBindingType_Storage;
    }
    entries[0].buffer.hasDynamicOffset = 1;
    entries[0].buffer.minBindingSize = 16;
    entries[1].buffer.minBindingSize = kernel->params_bytes;
    WGPUBindGroupLayoutDescriptor descriptor = {.entryCount = kernel->tensors + 2,
                                                .entries = entries};
    return wgpuDeviceCreateBindGroupLayout(w->host.device, &descriptor);
}

static void build_pipeline(const webgpu *w, const cml_kernel *kernel, const void *code,
                           cml_pipeline *to) {
    to->layout = create_layout(w, kernel);
    WGPUPipelineLayoutDescriptor described = {.bindGroupLayoutCount = 1,
                                              .bindGroupLayouts = &to->layout};
    WGPUPipelineLayout layout = wgpuDeviceCreatePipelineLayout(w->host.device, &described);
    WGPUShaderModule module = create_module(w, kernel, code);
    WGPUComputePipelineDescriptor descriptor = {.label = view_of(kernel->label), .layout = layout};
    descriptor.compute.module = module;
    descriptor.compute.entryPoint = view_from("main");
    if (layout != NULL && module != NULL)
        to->pipeline = wgpuDeviceCreateComputePipeline(w->host.device, &descriptor);
    if (module != NULL) wgpuShaderModuleRelease(module);
    if (layout != NULL) wgpuPipelineLayoutRelease(layout);
}

/* Returns a copy of the code for wgpu-native, which the caller frees; NULL without memory. */
static char *change_code(const webgpu *w, const cml_kernel *kernel) {
    char *changed = allocate(w, kernel->bytes);
    if (changed == NULL) return NULL;
    memcpy(changed, kernel->code, kernel->bytes);
    blank_enable_subgroups(changed, kernel->bytes);
    return changed;
}

static cml_pipeline *create_pipeline(void *user, cml_scope *scope, const cml_kernel *kernel) {
    const webgpu *w = user;
    const void *code = kernel->code;
    cml_pipeline *pipeline = allocate(w, sizeof *pipeline);
    if (IS_WGPU_NATIVE && kernel->language == CML_LANGUAGE_WGSL && kernel->uses_subgroups)
        code = change_code(w, kernel);
    if (pipeline != NULL && code != NULL) {
        push_error_scopes(w);
        build_pipeline(w, kernel, code, pipeline);
        pop_error_scopes(w, scope);
    } else if (scope->status == CML_OK) {
        scope->status = CML_ERROR_MEMORY;
        snprintf(scope->text, sizeof scope->text, "no memory for a pipeline");
    }
    if (code != NULL && code != kernel->code)
        cml_deallocate(&w->host.allocator, (void *)code, kernel->bytes);
    return pipeline; /* an error of the scope forbids its use */
}

static void release_pipeline(void *user, cml_pipeline *pipeline) {
    const webgpu *w = user;
    if (pipeline->pipeline != NULL) wgpuComputePipelineRelease(pipeline->pipeline);
    if (pipeline->layout != NULL) wgpuBindGroupLayoutRelease(pipeline->layout);
    cml_deallocate(&w->host.allocator, pipeline, sizeof *pipeline);
}

static WGPUBindGroup group_of(cml_bindings *bindings) { return (WGPUBindGroup)(void *)bindings; }

/* Encodes a dispatch and throws it away: what the device objects to, such as a range that is
 * smaller than the kernel's array, is reported here and not in the host's frame. */
static void try_dispatch(const webgpu *w, const cml_pipeline *pipeline, WGPUBindGroup group) {
    WGPUComputePassDescriptor descriptor = {.nextInChain = NULL};
    WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(w->host.device, NULL);
    WGPUComputePassEncoder pass = wgpuCommandEncoderBeginComputePass(encoder, &descriptor);
    uint32_t offset = 0;
    wgpuComputePassEncoderSetPipeline(pass, pipeline->pipeline);
    wgpuComputePassEncoderSetBindGroup(pass, 0, group, 1, &offset);
    wgpuComputePassEncoderDispatchWorkgroups(pass, 1, 1, 1);
    wgpuComputePassEncoderEnd(pass);
    wgpuComputePassEncoderRelease(pass);
    WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, NULL);
    if (commands != NULL) wgpuCommandBufferRelease(commands);
    wgpuCommandEncoderRelease(encoder);
}

static cml_bindings *create_bindings(void *user, cml_scope *scope, cml_pipeline *pipeline,
                                     const cml_range *ranges, uint32_t count, uint32_t writes,
                                     int is_tried) {
    (void)writes;
    const webgpu *w = user;
    WGPUBindGroupEntry entries[CML_MOST_BINDINGS];
    for (uint32_t i = 0; i < count; i++)
        entries[i] = (WGPUBindGroupEntry){.binding = i,
                                          .buffer = handle_of(ranges[i].buffer),
                                          .offset = ranges[i].offset,
                                          .size = ranges[i].bytes};
    WGPUBindGroupDescriptor descriptor = {
        .layout = pipeline->layout, .entryCount = count, .entries = entries};
    push_error_scopes(w);
    WGPUBindGroup group = wgpuDeviceCreateBindGroup(w->host.device, &descriptor);
    if (is_tried && group != NULL) try_dispatch(w, pipeline, group);
    pop_error_scopes(w, scope);
    return (cml_bindings *)(void *)group;
}

static void release_bindings(void *user, cml_bindings *bindings) {
    (void)user;
    wgpuBindGroupRelease(group_of(bindings));
}

/* ------------------------------------------------------------------ commands */

static void begin_pass(void *user, void *commands, int begin_query, int end_query) {
    webgpu *w = user;
    WGPUPassTimestampWrites writes = {.querySet = w->queries};
    WGPUComputePassDescriptor descriptor = {.nextInChain = NULL};
    writes.beginningOfPassWriteIndex =
        begin_query < 0 ? WGPU_QUERY_SET_INDEX_UNDEFINED : (uint32_t)begin_query;
    writes.endOfPassWriteIndex =
        end_query < 0 ? WGPU_QUERY_SET_INDEX_UNDEFINED : (uint32_t)end_query;
    if (begin_query >= 0 || end_query >= 0) descriptor.timestampWrites = &writes;
    w->pass = wgpuCommandEncoderBeginComputePass(commands, &descriptor);
}

static void end_pass(void *user, void *commands) {
    webgpu *w = user;
    (void)commands;
    wgpuComputePassEncoderEnd(w->pass);
    wgpuComputePassEncoderRelease(w->pass);
    w->pass = NULL;
}

static void dispatch(void *user, void *commands, cml_pipeline *pipeline, cml_bindings *bindings,
                     uint32_t offset, uint32_t x, uint32_t y) {
    const webgpu *w = user;
    (void)commands;
    wgpuComputePassEncoderSetPipeline(w->pass, pipeline->pipeline);
    wgpuComputePassEncoderSetBindGroup(w->pass, 0, group_of(bindings), 1, &offset);
    wgpuComputePassEncoderDispatchWorkgroups(w->pass, x, y, 1);
}

static void copy_buffer(void *user, void *commands, const cml_range *from, cml_buffer *to,
                        uint64_t offset) {
    (void)user;
    wgpuCommandEncoderCopyBufferToBuffer(commands, handle_of(from->buffer), from->offset,
                                         handle_of(to), offset, from->bytes);
}

static void resolve_queries(void *user, void *commands, uint32_t first, uint32_t count,
                            cml_buffer *to, uint64_t offset) {
    const webgpu *w = user;
    wgpuCommandEncoderResolveQuerySet(commands, w->queries, first, count, handle_of(to), offset);
}

/* ------------------------------------------------------------------ readbacks */

static void on_mapped(WGPUMapAsyncStatus status, WGPUStringView message, void *user, void *unused) {
    readback_buffer *r = user;
    (void)message;
    (void)unused;
    if (r->state == MAP_DROPPED)
        r->state = MAP_NONE;
    else
        r->state = status == WGPUMapAsyncStatus_Success ? MAP_DONE : MAP_LOST;
}

static void map_buffer(void *user, cml_buffer *buffer) {
    readback_buffer *r = *find_readback(user, buffer);
    WGPUBufferMapCallbackInfo info = {
        .mode = WGPUCallbackMode_AllowProcessEvents, .callback = on_mapped, .userdata1 = r};
    r->state = MAP_PENDING; /* the callback may run within the call */
    wgpuBufferMapAsync(r->buffer, WGPUMapMode_Read, 0, (size_t)wgpuBufferGetSize(r->buffer), info);
}

static cml_status poll_mapped(void *user, cml_buffer *buffer, const void **data) {
    const readback_buffer *r = *find_readback(user, buffer);
    if (r->state == MAP_PENDING) return CML_PENDING;
    if (r->state != MAP_DONE) return CML_ERROR_DEVICE;
    *data = wgpuBufferGetConstMappedRange(r->buffer, 0, (size_t)wgpuBufferGetSize(r->buffer));
    return *data != NULL ? CML_OK : CML_ERROR_DEVICE;
}

/* ------------------------------------------------------------------ the table */

static const cml_backend functions = {CML_BACKEND_FUNCTIONS};

cml_status cml_webgpu_fill(const cml_webgpu *host, cml_backend *backend, cml_error *error) {
    webgpu described = {.host = *host};
    WGPUQuerySetDescriptor queries = {.type = WGPUQueryType_Timestamp, .count = CML_QUERIES};
    if (host->device == NULL)
        return cml_fail(error, CML_ERROR_INPUT, "the device of cml_webgpu is NULL");
    webgpu *w = allocate(&described, sizeof *w);
    if (w == NULL) return cml_fail(error, CML_ERROR_MEMORY, "no memory for a backend");
    *w = described;
    w->owns_queue = host->queue == NULL;
    if (w->owns_queue) w->host.queue = wgpuDeviceGetQueue(host->device);
    w->info = info_of(host->adapter, host->device);
    if (w->info.tick_ms > 0) {
        w->info.tick_ms = 1e-6 * (double)wgpuQueueGetTimestampPeriod(w->host.queue);
        w->queries = wgpuDeviceCreateQuerySet(host->device, &queries);
    }
    *backend = functions;
    backend->user = w;
    return CML_OK;
}

/* ------------------------------------------------------------------ requirements */

static void add_feature(cml_requirements *needs, WGPUFeatureName feature) {
    for (size_t i = 0; i < needs->feature_count; i++)
        if (needs->features[i] == feature) return;
    if (needs->feature_count < sizeof needs->features / sizeof *needs->features)
        needs->features[needs->feature_count++] = feature;
}

/* Requests more than the `standard` of WebGPU; a limit of all ones is not requested yet. */
#define RAISE(limit, needed, standard)                                                             \
    if ((needed) > (standard) && to->limit + 1 <= (needed)) to->limit = (needed)

/* An alignment: smaller is better. */
#define LOWER(limit, needed)                                                                       \
    if ((needed) < 256 && (needed) < to->limit) to->limit = (needed)

static void add_limits(WGPULimits *to, const cml_needs *needs) {
    LOWER(minStorageBufferOffsetAlignment, needs->storage_alignment);
    LOWER(minUniformBufferOffsetAlignment, needs->uniform_alignment);
    RAISE(maxStorageBufferBindingSize, needs->binding_bytes, 128u << 20);
    RAISE(maxBufferSize, needs->buffer_bytes, 256u << 20);
    RAISE(maxComputeInvocationsPerWorkgroup, needs->threads, 256);
    RAISE(maxComputeWorkgroupSizeX, needs->threads, 256); /* one dimension may have all of them */
    RAISE(maxComputeWorkgroupSizeY, needs->threads, 256);
    RAISE(maxComputeWorkgroupStorageSize, needs->shared_bytes, 16384);
    RAISE(maxStorageBuffersPerShaderStage, needs->storage_buffers, 8);
}

cml_status cml_required_features(WGPUAdapter adapter, const void *bytes, size_t size,
                                 uint32_t flags, cml_requirements *needs, cml_error *error) {
    cml_device_info info = info_of(adapter, NULL);
    cml_needs found;
    cml_status status = cml_get_needs(&info, bytes, size, flags, &found, error);
    if (status != CML_OK) return status;
    if (needs->limits.maxBufferSize == 0) { /* the first file: nothing is required yet */
        memset(&needs->limits, 0xFF, sizeof needs->limits);
        needs->limits.nextInChain = NULL;
    }
    add_limits(&needs->limits, &found);
    if (info.tick_ms > 0) add_feature(needs, WGPUFeatureName_TimestampQuery);
    if (found.uses_half) add_feature(needs, WGPUFeatureName_ShaderF16);
    if (found.lanes > 0 && wgpuAdapterHasFeature(adapter, WGPUFeatureName_Subgroups))
        add_feature(needs, WGPUFeatureName_Subgroups);
    if (found.lanes > 0 && wgpuAdapterHasFeature(adapter, NATIVE_SUBGROUPS))
        add_feature(needs, NATIVE_SUBGROUPS);
    memcpy(needs->profile, found.profile, sizeof needs->profile);
    return CML_OK;
}
