/* The backend for Vulkan 1.1 and newer, on the device and in the command buffers of the host.
 * docs/ship_it.md has the calls of a frame; cml_encode is called outside of a render pass.
 *
 * cml_tensor.buffer points to a VkBuffer. Its content was written by a copy: a frame that uses it
 * first makes VK_ACCESS_TRANSFER_WRITE_BIT of VK_PIPELINE_STAGE_TRANSFER_BIT available to that
 * use. cml_input.buffer points to a cml_vulkan_source, which is copied: its content must be
 * available to VK_ACCESS_TRANSFER_READ_BIT when the frame begins. The player leaves a pipeline, a
 * descriptor set and nothing else bound.
 *
 * Pipelines are built on other threads, and cml_build returns CML_PENDING meanwhile.
 *
 * cml_create, cml_load_cooked and cml_build submit to `queue` too: uploads, never waiting for them.
 */
#ifndef CML_VULKAN_H
#define CML_VULKAN_H

#include "cml_backend.h"

#include <vulkan/vulkan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A range of device memory of the host's allocator. */
typedef struct cml_vulkan_memory {
    VkDeviceMemory memory;
    VkDeviceSize offset;
    void *mapped; /* required for host-visible memory, which stays mapped */
    void *handle; /* the host's own */
} cml_vulkan_memory;

/* The source of device memory. `wanted` of a memory type are required, `preferred` are not.
 * Returns 0 without memory. With VMA: vmaAllocateMemory, vmaGetAllocationInfo, vmaFreeMemory. */
typedef struct cml_vulkan_allocator {
    int (*allocate)(void *user, const VkMemoryRequirements *requirements,
                    VkMemoryPropertyFlags wanted, VkMemoryPropertyFlags preferred,
                    cml_vulkan_memory *memory);
    void (*release)(void *user, const cml_vulkan_memory *memory);
    void *user;
} cml_vulkan_allocator;

typedef struct cml_vulkan {           /* 0 and NULL choose the default */
    VkInstance instance;              /* required, of Vulkan 1.1 */
    VkPhysicalDevice physical_device; /* required */
    VkDevice device;                  /* required */
    VkQueue queue;                    /* required: of compute, the one of the frames */
    uint32_t queue_family;            /* of the queue */
    PFN_vkGetInstanceProcAddr get_instance_proc_addr; /* required */
    VkPipelineCache pipeline_cache;                   /* not created as externally synchronized */
    /* shaderFloat16, storageBuffer16BitAccess and uniformAndStorageBuffer16BitAccess are enabled */
    int has_half;
    VkSemaphore timeline; /* signalled with the frames' numbers; else cml_vulkan_completed */
    PFN_vkGetSemaphoreCounterValue get_counter_value; /* required with a timeline */
    cml_vulkan_allocator memory;                      /* else blocks of 16 MiB */
    cml_allocator allocator;
    /* Both required if cml_load_cooked or cml_build runs beside frames; the host holds the same
     * lock when it submits to the queue. */
    void (*lock)(void *user);
    void (*unlock)(void *user);
    void *lock_user;
    /* Runs `work` on another thread, which builds pipelines; it may be called four times before it
     * returns. NULL: up to four threads of the player, which end in cml_destroy. */
    void (*start)(void *user, void (*work)(void *argument), void *argument);
    void *start_user;
    int is_staged; /* uploads by copies also where device memory is visible to the host */
} cml_vulkan;

/* An image of 2 dimensions that has an input or output in level 0: a layer for each channel, of
 * VK_FORMAT_R32_SFLOAT, _SINT or _UINT as is the type; of a tensor in blocks, a layer for each
 * block, of VK_FORMAT_R32G32B32A32_... in c4 and VK_FORMAT_R16G16B16A16_SFLOAT in c4h. */
typedef struct cml_vulkan_image {
    VkImage image;        /* with VK_IMAGE_USAGE_TRANSFER_SRC_BIT or _DST_BIT */
    VkImageLayout layout; /* when it is copied: TRANSFER_SRC_OPTIMAL, _DST_OPTIMAL or GENERAL */
    VkFormat format;
    uint32_t width, height, layers;
} cml_vulkan_image;

typedef struct cml_vulkan_source { /* for cml_input.buffer; must outlive the job's frames */
    VkBuffer buffer;               /* with VK_BUFFER_USAGE_TRANSFER_SRC_BIT, or VK_NULL_HANDLE */
    VkDeviceSize bytes;
    cml_vulkan_image image; /* in place of a buffer */
} cml_vulkan_source;

/* Fills in a backend, to be passed to cml_create. Wait for the device before cml_destroy.
 * Errors: INPUT: something, or one function of a pair, is missing, Vulkan is older than 1.1, or the
 * queue cannot compute; MEMORY. */
CML_API cml_status cml_vulkan_fill(const cml_vulkan *vulkan, cml_backend *backend,
                                   cml_error *error);

/* Copies an output into an image of the host, in its commands and outside of a render pass. The
 * image is in its layout before; a use of it afterwards makes VK_ACCESS_TRANSFER_WRITE_BIT of
 * VK_PIPELINE_STAGE_TRANSFER_BIT available. Errors: INPUT: the image is of another size or format.
 */
CML_API cml_status cml_vulkan_copy_to_image(const cml_backend *backend, VkCommandBuffer commands,
                                            const cml_tensor *from, const cml_vulkan_image *to,
                                            cml_error *error);

/* States the number of the frame that is encoded next, before cml_encode. Numbers begin at 1
 * and never shrink. */
CML_API void cml_vulkan_begin(const cml_backend *backend, uint64_t number);

/* States that all frames up to this number have run, or never will. A larger number than
 * that of the last frame that has begun counts as that one, and so does the negative one that a
 * host computes for its first frames: state none then. */
CML_API void cml_vulkan_completed(const cml_backend *backend, uint64_t number);

#ifdef __cplusplus
}
#endif
#endif
