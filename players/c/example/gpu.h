/* What an engine has of its own: an instance, a device and its queue, with the adapter's features and
 * limits that networks like to have. Errors of the device go to stderr. */
#ifndef CML_EXAMPLE_GPU_H
#define CML_EXAMPLE_GPU_H

#include "cml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gpu {
    WGPUInstance instance;
    WGPUAdapter adapter;
    WGPUDevice device;
    WGPUQueue queue;
    int errors, answered;
} gpu;

static inline void gpu_error(WGPUDevice const *device, WGPUErrorType type, WGPUStringView message, void *to,
                             void *unused) {
    (void)device;
    (void)unused;
    ((gpu *)to)->errors++;
    fprintf(stderr, "the device says (%d): %.*s\n", (int)type, (int)message.length, message.data);
}

static inline void gpu_lost(WGPUDevice const *device, WGPUDeviceLostReason reason, WGPUStringView message,
                            void *to, void *unused) {
    (void)device;
    (void)to;
    (void)unused;
    if (reason != WGPUDeviceLostReason_Destroyed && reason != WGPUDeviceLostReason_CallbackCancelled)
        fprintf(stderr, "the device is lost: %.*s\n", (int)message.length, message.data);
}

static inline void gpu_adapter(WGPURequestAdapterStatus status, WGPUAdapter adapter, WGPUStringView message,
                               void *to, void *unused) {
    (void)unused;
    ((gpu *)to)->answered = 1;
    ((gpu *)to)->adapter = adapter;
    if (status != WGPURequestAdapterStatus_Success)
        fprintf(stderr, "no adapter: %.*s\n", (int)message.length, message.data);
}

static inline void gpu_device(WGPURequestDeviceStatus status, WGPUDevice device, WGPUStringView message,
                              void *to, void *unused) {
    (void)unused;
    ((gpu *)to)->answered = 1;
    ((gpu *)to)->device = device;
    if (status != WGPURequestDeviceStatus_Success)
        fprintf(stderr, "no device: %.*s\n", (int)message.length, message.data);
}

/* 0 where there is no adapter. `small`: WebGPU's default limits and no features, as the least device has. */
static inline int gpu_open(gpu *g, int small) {
    static const WGPUFeatureName wanted[] = {WGPUFeatureName_TimestampQuery, WGPUFeatureName_ShaderF16,
                                             WGPUFeatureName_Subgroups};
    WGPUInstanceDescriptor instance;
    WGPURequestAdapterOptions options;
    WGPURequestAdapterCallbackInfo found;
    WGPURequestDeviceCallbackInfo made;
    WGPUDeviceDescriptor device;
    WGPUFeatureName features[8];
    WGPULimits limits;
    size_t i;
#ifndef CML_DAWN
    WGPUInstanceExtras extras; /* no OpenGL: no kernel runs on it */
    memset(&extras, 0, sizeof extras);
    extras.chain.sType = (WGPUSType)WGPUSType_InstanceExtras;
    extras.backends = WGPUInstanceBackend_Primary;
#endif
    memset(g, 0, sizeof *g);
    memset(&instance, 0, sizeof instance);
    memset(&options, 0, sizeof options);
    memset(&found, 0, sizeof found);
    memset(&made, 0, sizeof made);
    memset(&device, 0, sizeof device);
    memset(&limits, 0, sizeof limits);
#ifndef CML_DAWN
    instance.nextInChain = &extras.chain;
#endif
    g->instance = wgpuCreateInstance(&instance);
    options.powerPreference = WGPUPowerPreference_HighPerformance;
    found.mode = made.mode = WGPUCallbackMode_AllowProcessEvents;
    found.callback = gpu_adapter;
    found.userdata1 = g;
    wgpuInstanceRequestAdapter(g->instance, &options, found);
    while (!g->answered) wgpuInstanceProcessEvents(g->instance);
    if (g->adapter == NULL) return 0;
    wgpuAdapterGetLimits(g->adapter, &limits);
    for (i = 0; !small && i < sizeof wanted / sizeof *wanted; i++)
        if (wgpuAdapterHasFeature(g->adapter, wanted[i])) features[device.requiredFeatureCount++] = wanted[i];
#ifndef CML_DAWN
    if (!small && wgpuAdapterHasFeature(g->adapter, (WGPUFeatureName)WGPUNativeFeature_Subgroup))
        features[device.requiredFeatureCount++] = (WGPUFeatureName)WGPUNativeFeature_Subgroup;
#endif
    device.requiredFeatures = features;
    device.requiredLimits = small ? NULL : &limits;
    device.uncapturedErrorCallbackInfo.callback = gpu_error;
    device.uncapturedErrorCallbackInfo.userdata1 = g;
    device.deviceLostCallbackInfo.mode = WGPUCallbackMode_AllowProcessEvents;
    device.deviceLostCallbackInfo.callback = gpu_lost;
    made.callback = gpu_device;
    made.userdata1 = g;
    g->answered = 0;
    wgpuAdapterRequestDevice(g->adapter, &device, made);
    while (!g->answered) wgpuInstanceProcessEvents(g->instance);
    if (g->device == NULL) return 0;
    g->queue = wgpuDeviceGetQueue(g->device);
    return 1;
}

/* Until the GPU has done all that was submitted: as one waits for the display. */
static inline void gpu_wait(gpu *g) {
#ifdef CML_DAWN
    wgpuInstanceProcessEvents(g->instance);
#else
    wgpuDevicePoll(g->device, 1, NULL);
#endif
}

static inline void gpu_close(gpu *g) {
    if (g->queue != NULL) wgpuQueueRelease(g->queue);
    if (g->device != NULL) wgpuDeviceRelease(g->device);
    if (g->adapter != NULL) wgpuAdapterRelease(g->adapter);
    if (g->instance != NULL) wgpuInstanceRelease(g->instance);
}

static inline void *read_whole(const char *path, size_t *size) {
    FILE *in = fopen(path, "rb");
    char *data = NULL;
    long end;
    if (in == NULL) return NULL;
    fseek(in, 0, SEEK_END);
    end = ftell(in);
    rewind(in);
    data = malloc(end > 0 ? (size_t)end : 1);
    *size = data == NULL ? 0 : fread(data, 1, (size_t)end, in);
    fclose(in);
    return data;
}

#endif
