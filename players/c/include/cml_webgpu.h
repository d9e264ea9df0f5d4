/* The backend for webgpu.h: wgpu-native, or Dawn with CML_DAWN. cml_encode takes a
 * WGPUCommandEncoder, cml_input.buffer and cml_tensor.buffer are WGPUBuffers. */
#ifndef CML_WEBGPU_H
#define CML_WEBGPU_H

#include "cml_backend.h"

#ifdef CML_DAWN
#include <webgpu/webgpu.h>
#else
#include "webgpu.h"
#include "wgpu.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The features and limits to request when the device is created. Begin with zeros. */
typedef struct cml_requirements {
    WGPUFeatureName features[8];
    size_t feature_count;
    WGPULimits limits; /* for WGPUDeviceDescriptor.requiredLimits */
    char profile[64];  /* the best profile of the last file */
} cml_requirements;

/* Adds to `needs` what a device of this adapter must have for the best profile of a cooked file
 * that the adapter can run. Call it with the same `needs` for every file, then create the device.
 * The features include timestamp-query if the adapter has it. `flags` as for cml_load_cooked.
 * Errors: STALE: the adapter fits no profile; CORRUPT; LIMIT: of an untrusted file; MEMORY. */
CML_API cml_status cml_required_features(WGPUAdapter adapter, const void *bytes, size_t size,
                                         uint32_t flags, cml_requirements *needs, cml_error *error);

typedef struct cml_webgpu { /* NULL chooses the default */
    WGPUDevice device;      /* required */
    WGPUAdapter adapter; /* of the device; gives first guesses of its speed, and better messages */
    WGPUQueue queue;     /* the device's own */
    WGPUInstance instance; /* required with Dawn: cml_end_frame processes its events */
    cml_allocator allocator;
} cml_webgpu;

/* Fills in a backend, to be passed to cml_create. The device, adapter and queue must outlive it.
 * Errors: INPUT: device is NULL; MEMORY. */
CML_API cml_status cml_webgpu_fill(const cml_webgpu *webgpu, cml_backend *backend,
                                   cml_error *error);

#ifdef __cplusplus
}
#endif
#endif
