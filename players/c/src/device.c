/* The device: its facts, clock, buffers, error scopes and readbacks. */
#include "internal.h"

#include <stdarg.h>

enum { FRAMES_BEFORE_MAP = 2 }; /* a map that is requested earlier could make the device wait */

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

double cml__machine_ms(void *unused) {
    LARGE_INTEGER now, second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&second);
    (void)unused;
    return 1e3 * (double)now.QuadPart / (double)second.QuadPart;
}

uint32_t cml__processors(void) { return (uint32_t)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS); }
#else
#include <time.h>
#include <unistd.h>

double cml__machine_ms(void *unused) {
    struct timespec now;
    (void)unused;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

uint32_t cml__processors(void) {
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
}
#endif

/* Returns the host's time; a clock that goes back stands still. */
double cml__steady_now(cml_scheduler *s) {
    double now = now_of(s);
    if (now > s->last_ms && !isinf(now)) s->last_ms = now;
    return s->last_ms;
}

void cml__log(const cml_scheduler *s, cml_log_level level, const char *format, ...) {
    char message[600];
    va_list values;
    if (s->options.log == NULL) return;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    s->options.log(s->options.log_user, level, message);
}

/* Lets callbacks run; never waits. */
void cml__poll_device(cml_scheduler *s) {
#ifdef CML_DAWN
    if (s->options.instance != NULL) wgpuInstanceProcessEvents(s->options.instance);
#else
    wgpuDevicePoll(s->options.device, 0, NULL);
#endif
}

/* ------------------------------------------------------------------ facts */

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
device_facts cml__facts_of(WGPUAdapter adapter, WGPUDevice device) {
    device_facts facts = {.has_half = has_feature(adapter, device, WGPUFeatureName_ShaderF16),
                          .has_timestamps =
                              has_feature(adapter, device, WGPUFeatureName_TimestampQuery)};
    WGPUAdapterInfo info = {.nextInChain = NULL};
    if (device != NULL)
        wgpuDeviceGetLimits(device, &facts.limits);
    else
        wgpuAdapterGetLimits(adapter, &facts.limits);
    if (adapter != NULL) wgpuAdapterGetInfo(adapter, &info);
    snprintf(facts.name, sizeof facts.name, "%.*s (%.*s)",
             (int)(info.device.data ? info.device.length : 0), info.device.data,
             (int)(info.description.data ? info.description.length : 0), info.description.data);
    facts.is_software = info.adapterType == WGPUAdapterType_CPU;
    if (has_feature(adapter, device, NATIVE_SUBGROUPS) ||
        has_feature(adapter, device, WGPUFeatureName_Subgroups)) {
        uint32_t lanes = llvmpipe_lanes(facts.name);
        facts.lanes = lanes > 0 ? lanes : info.subgroupMinSize;
    }
    if (adapter != NULL) wgpuAdapterInfoFreeMembers(info);
    return facts;
}

/* ------------------------------------------------------------------ buffers */

WGPUBuffer cml__new_buffer(cml_scheduler *s, heap *of, WGPUBufferUsage usage, uint64_t bytes) {
    WGPUBufferDescriptor descriptor = {.label = view_of(text_from("cml")), .usage = usage};
    descriptor.size = bytes < 256 ? 256 : (bytes + 3) / 4 * 4;
    of->counts.buffers++;
    return wgpuDeviceCreateBuffer(s->options.device, &descriptor);
}

void cml__drop_buffer(WGPUBuffer *buffer) {
    if (*buffer == NULL) return;
    wgpuBufferDestroy(*buffer);
    wgpuBufferRelease(*buffer);
    *buffer = NULL;
}

void cml__copy(cml_scheduler *s, WGPUBuffer from, uint64_t at, WGPUBuffer to, uint64_t there,
               uint64_t bytes) {
    if (bytes > 0) wgpuCommandEncoderCopyBufferToBuffer(s->encoder, from, at, to, there, bytes);
}

/* ------------------------------------------------------------------ errors of the device */

static void on_error_scope(WGPUPopErrorScopeStatus status, WGPUErrorType type,
                           WGPUStringView message, void *user, void *unused) {
    network *n = user;
    (void)unused;
    n->scopes--;
    if (status != WGPUPopErrorScopeStatus_Success || type == WGPUErrorType_NoError || n->refused)
        return;
    n->refused = type == WGPUErrorType_OutOfMemory ? CML_ERROR_MEMORY : CML_ERROR_DEVICE;
    if (message.data != NULL) /* ends with a zero if its length is WGPU_STRLEN */
        snprintf(n->refusal, sizeof n->refusal, "%.*s",
                 (int)min_u64(message.length, sizeof n->refusal - 1), message.data);
}

void cml__push_error_scopes(cml_scheduler *s) {
    wgpuDevicePushErrorScope(s->options.device, WGPUErrorFilter_OutOfMemory);
    wgpuDevicePushErrorScope(s->options.device, WGPUErrorFilter_Validation);
}

cml_status cml__refusal_of(const network *n) {
    if (n->refused == CML_OK) return CML_OK;
    return cml__fail(n->f.error, n->refused, "the device refused: %s", n->refusal);
}

/* Returns an error that the device has reported so far. */
cml_status cml__pop_error_scopes(network *n) {
    WGPUPopErrorScopeCallbackInfo info = {
        .mode = WGPUCallbackMode_AllowProcessEvents, .callback = on_error_scope, .userdata1 = n};
    n->scopes += 2;
    wgpuDevicePopErrorScope(n->scheduler->options.device, info);
    wgpuDevicePopErrorScope(n->scheduler->options.device, info);
    return cml__refusal_of(n);
}

/* ------------------------------------------------------------------ readbacks */

static void on_mapped(WGPUMapAsyncStatus status, WGPUStringView message, void *user, void *unused) {
    readback *r = user;
    (void)message;
    (void)unused;
    if (r->state == READBACK_DROPPED)
        r->state = READBACK_FREE;
    else if (status == WGPUMapAsyncStatus_Success)
        r->state = READBACK_MAPPED;
    else
        r->state = READBACK_LOST;
}

/* Requests the map once the frame that copies is old enough. Callbacks may run within any call. */
void cml__map_readback(const cml_scheduler *s, readback *r) {
    WGPUBufferMapCallbackInfo info = {
        .mode = WGPUCallbackMode_AllowProcessEvents, .callback = on_mapped, .userdata1 = r};
    if (r->state != READBACK_COPIED || s->frame - r->frame < FRAMES_BEFORE_MAP) return;
    r->state = READBACK_PENDING;
    wgpuBufferMapAsync(r->buffer, WGPUMapMode_Read, 0, (size_t)wgpuBufferGetSize(r->buffer), info);
}

/* Frees a readback; one whose callback is still to come is dropped until then. */
void cml__cancel_readback(readback *r) {
    int is_mapped = r->state == READBACK_PENDING || r->state == READBACK_MAPPED;
    if (r->state == READBACK_PENDING)
        r->state = READBACK_DROPPED;
    else if (r->state != READBACK_DROPPED)
        r->state = READBACK_FREE;
    if (is_mapped) wgpuBufferUnmap(r->buffer);
}

/* Waits for the callback before the memory of a readback is freed. Returns 0 if it never comes:
 * then the memory must stay. */
int cml__settle_readback(cml_scheduler *s, readback *r) {
    cml__cancel_readback(r);
    cml__drop_buffer(&r->buffer);
    for (int tries = 0; r->state == READBACK_DROPPED && tries < 1000; tries++) cml__poll_device(s);
    return r->state != READBACK_DROPPED;
}
