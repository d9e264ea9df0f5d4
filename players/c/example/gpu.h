/* A device of webgpu.h, as an engine has one already. Problems go to stderr. */
#ifndef CML_EXAMPLE_GPU_H
#define CML_EXAMPLE_GPU_H

#include "cml_webgpu.h"
#include "common.h"

typedef struct gpu {
    WGPUInstance instance;
    WGPUAdapter adapter;
    WGPUDevice device;
    WGPUQueue queue;
    int errors, answered;
} gpu;

static inline void gpu_on_error(WGPUDevice const *device, WGPUErrorType type,
                                WGPUStringView message, void *user, void *unused) {
    (void)device;
    (void)unused;
    ((gpu *)user)->errors++;
    fprintf(stderr, "the device says (%d): %.*s\n", (int)type, (int)message.length, message.data);
}

static inline void gpu_on_lost(WGPUDevice const *device, WGPUDeviceLostReason reason,
                               WGPUStringView message, void *user, void *unused) {
    (void)device;
    (void)user;
    (void)unused;
    if (reason != WGPUDeviceLostReason_Destroyed &&
        reason != WGPUDeviceLostReason_CallbackCancelled)
        fprintf(stderr, "the device is lost: %.*s\n", (int)message.length, message.data);
}

static inline void gpu_on_adapter(WGPURequestAdapterStatus status, WGPUAdapter adapter,
                                  WGPUStringView message, void *user, void *unused) {
    (void)unused;
    ((gpu *)user)->answered = 1;
    ((gpu *)user)->adapter = adapter;
    if (status != WGPURequestAdapterStatus_Success)
        fprintf(stderr, "no adapter: %.*s\n", (int)message.length, message.data);
}

static inline void gpu_on_device(WGPURequestDeviceStatus status, WGPUDevice device,
                                 WGPUStringView message, void *user, void *unused) {
    (void)unused;
    ((gpu *)user)->answered = 1;
    ((gpu *)user)->device = device;
    if (status != WGPURequestDeviceStatus_Success)
        fprintf(stderr, "no device: %.*s\n", (int)message.length, message.data);
}

/* Finds an adapter. Returns 0 if there is none. */
static inline int gpu_find(gpu *g) {
    WGPUInstanceDescriptor instance = WGPU_INSTANCE_DESCRIPTOR_INIT;
    WGPURequestAdapterOptions options = WGPU_REQUEST_ADAPTER_OPTIONS_INIT;
    WGPURequestAdapterCallbackInfo callback = WGPU_REQUEST_ADAPTER_CALLBACK_INFO_INIT;
    memset(g, 0, sizeof *g);
#ifndef CML_DAWN
    WGPUInstanceExtras extras;
    memset(&extras, 0, sizeof extras);
    extras.chain.sType = (WGPUSType)WGPUSType_InstanceExtras;
    extras.backends = WGPUInstanceBackend_Primary; /* not OpenGL: no kernel runs on it */
    instance.nextInChain = &extras.chain;
#endif
    options.powerPreference = WGPUPowerPreference_HighPerformance;
    callback.mode = WGPUCallbackMode_AllowProcessEvents;
    callback.callback = gpu_on_adapter;
    callback.userdata1 = g;
    g->instance = wgpuCreateInstance(&instance);
    wgpuInstanceRequestAdapter(g->instance, &options, callback);
    while (!g->answered) wgpuInstanceProcessEvents(g->instance);
    return g->adapter != NULL;
}

/* Creates the device with what the networks need; NULL: with no features and WebGPU's default
 * limits. Returns 0 if the adapter refuses. */
static inline int gpu_create(gpu *g, const cml_requirements *needs) {
    WGPUDeviceDescriptor descriptor = WGPU_DEVICE_DESCRIPTOR_INIT;
    WGPURequestDeviceCallbackInfo callback = WGPU_REQUEST_DEVICE_CALLBACK_INFO_INIT;
    if (needs != NULL) {
        descriptor.requiredFeatures = needs->features;
        descriptor.requiredFeatureCount = needs->feature_count;
        descriptor.requiredLimits = &needs->limits;
    }
    descriptor.uncapturedErrorCallbackInfo.callback = gpu_on_error;
    descriptor.uncapturedErrorCallbackInfo.userdata1 = g;
    descriptor.deviceLostCallbackInfo.mode = WGPUCallbackMode_AllowProcessEvents;
    descriptor.deviceLostCallbackInfo.callback = gpu_on_lost;
    callback.mode = WGPUCallbackMode_AllowProcessEvents;
    callback.callback = gpu_on_device;
    callback.userdata1 = g;
    g->answered = 0;
    wgpuAdapterRequestDevice(g->adapter, &descriptor, callback);
    while (!g->answered) wgpuInstanceProcessEvents(g->instance);
    if (g->device == NULL) return 0;
    g->queue = wgpuDeviceGetQueue(g->device);
    return 1;
}

/* Finds an adapter and creates a device that suits a cooked file. Returns 0 if there is none. */
static inline int gpu_open(gpu *g, const void *bytes, size_t size) {
    cml_requirements needs;
    cml_error error;
    memset(&needs, 0, sizeof needs);
    if (!gpu_find(g)) return 0;
    if (cml_required_features(g->adapter, bytes, size, CML_TRUSTED, &needs, &error) == CML_OK)
        return gpu_create(g, &needs);
    print_error(&error);
    return 0;
}

/* Fills in the table of functions by which the player uses the device. */
static inline cml_status gpu_fill(const gpu *g, cml_backend *backend, cml_error *error) {
    cml_webgpu webgpu;
    memset(&webgpu, 0, sizeof webgpu);
    webgpu.device = g->device;
    webgpu.adapter = g->adapter;
    webgpu.queue = g->queue;
    webgpu.instance = g->instance;
    return cml_webgpu_fill(&webgpu, backend, error);
}

/* Begins the commands of a frame. */
static inline void *gpu_begin(gpu *g, const cml_backend *unused) {
    (void)unused;
    return wgpuDeviceCreateCommandEncoder(g->device, NULL);
}

/* Submits a frame's commands: the one submit of a frame, the engine's own. */
static inline void gpu_submit(gpu *g, void *begun) {
    WGPUCommandEncoder encoder = (WGPUCommandEncoder)begun;
    WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, NULL);
    wgpuQueueSubmit(g->queue, 1, &commands);
    wgpuCommandBufferRelease(commands);
    wgpuCommandEncoderRelease(encoder);
}

/* Waits until the GPU has done all that was submitted, as an engine waits for the display. */
static inline void gpu_wait(gpu *g) {
#ifdef CML_DAWN
    wgpuInstanceProcessEvents(g->instance);
#else
    wgpuDevicePoll(g->device, 1, NULL);
#endif
}

/* Throws a frame's commands away. */
static inline void gpu_discard(gpu *g, void *encoder) {
    (void)g;
    wgpuCommandEncoderRelease((WGPUCommandEncoder)encoder);
}

static inline void gpu_wait_idle(gpu *g, const cml_backend *unused) {
    (void)unused;
    gpu_wait(g);
}

static inline void gpu_close(gpu *g) {
    if (g->queue != NULL) wgpuQueueRelease(g->queue);
    if (g->device != NULL) wgpuDeviceRelease(g->device);
    if (g->adapter != NULL) wgpuAdapterRelease(g->adapter);
    if (g->instance != NULL) wgpuInstanceRelease(g->instance);
}

#endif
