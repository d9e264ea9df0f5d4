/* A device of Vulkan, as an engine has one already: two frames in flight, each with a command
 * buffer and a fence. Problems go to stderr. With the variable CML_VALIDATE the validation layers
 * watch; with CML_OTHER_WAY the host has an allocator and a timeline semaphore, and uploads are
 * staged. */
#ifndef CML_EXAMPLE_VULKAN_GPU_H
#define CML_EXAMPLE_VULKAN_GPU_H

#include "cml_vulkan.h"
#include "common.h"

enum { GPU_FRAMES = 2 };

typedef struct gpu {
    VkInstance instance;
    VkPhysicalDevice adapter;
    VkDevice device;
    VkQueue queue;
    VkDebugUtilsMessengerEXT messenger;
    uint32_t family;
    int errors, has_half;
    VkCommandPool pools[GPU_FRAMES];
    VkCommandBuffer commands[GPU_FRAMES];
    VkFence fences[GPU_FRAMES];
    uint64_t frame;       /* the number of the last one, from 1 */
    VkSemaphore timeline; /* signalled with the frames' numbers, or VK_NULL_HANDLE */
} gpu;

static inline int gpu_is(VkResult result, const char *what) {
    if (result == VK_SUCCESS) return 1;
    fprintf(stderr, "%s: VkResult %d\n", what, (int)result);
    return 0;
}

static VKAPI_ATTR VkBool32 VKAPI_CALL gpu_on_message(
    VkDebugUtilsMessageSeverityFlagBitsEXT severity, VkDebugUtilsMessageTypeFlagsEXT types,
    const VkDebugUtilsMessengerCallbackDataEXT *data, void *user) {
    (void)severity;
    (void)types;
    ((gpu *)user)->errors++;
    fprintf(stderr, "validation: %s\n", data->pMessage);
    return VK_FALSE;
}

static inline int gpu_create_instance(gpu *g) {
    static const char *const layers[] = {"VK_LAYER_KHRONOS_validation"};
    static const char *const extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME};
    static const VkValidationFeatureEnableEXT checks[] = {
        VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT,
        VK_VALIDATION_FEATURE_ENABLE_BEST_PRACTICES_EXT};
    VkDebugUtilsMessengerCreateInfoEXT messages = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                       VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
        .pfnUserCallback = gpu_on_message,
        .pUserData = g};
    VkValidationFeaturesEXT features = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                        .enabledValidationFeatureCount = 2,
                                        .pEnabledValidationFeatures = checks};
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                     .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &application};
    int is_validated = getenv("CML_VALIDATE") != NULL;
    if (is_validated) {
        info.pNext = &features;
        info.enabledLayerCount = info.enabledExtensionCount = 1;
        info.ppEnabledLayerNames = layers;
        info.ppEnabledExtensionNames = extensions;
    }
    if (!gpu_is(vkCreateInstance(&info, NULL, &g->instance), "no Vulkan 1.2")) return 0;
    PFN_vkCreateDebugUtilsMessengerEXT create = (PFN_vkCreateDebugUtilsMessengerEXT)(void (*)(
        void))vkGetInstanceProcAddr(g->instance, "vkCreateDebugUtilsMessengerEXT");
    if (is_validated && create != NULL) create(g->instance, &messages, NULL, &g->messenger);
    return 1;
}

/* Finds the first device with a queue for compute. Returns 0 if there is none. */
static inline int gpu_find(gpu *g) {
    VkPhysicalDevice all[8];
    uint32_t count = 0;
    vkEnumeratePhysicalDevices(g->instance, &count, NULL);
    if (count > 8) count = 8;
    vkEnumeratePhysicalDevices(g->instance, &count, all);
    for (uint32_t i = 0; i < count; i++) {
        VkQueueFamilyProperties families[16];
        uint32_t families_count = 0;
        vkGetPhysicalDeviceQueueFamilyProperties(all[i], &families_count, NULL);
        if (families_count > 16) families_count = 16;
        vkGetPhysicalDeviceQueueFamilyProperties(all[i], &families_count, families);
        for (uint32_t k = 0; k < families_count; k++) {
            if (!(families[k].queueFlags & VK_QUEUE_COMPUTE_BIT)) continue;
            g->adapter = all[i];
            g->family = k;
            return 1;
        }
    }
    fprintf(stderr, "no device of Vulkan can compute\n");
    return 0;
}

static inline int gpu_create_device(gpu *g) {
    float priority = 1.0f;
    VkPhysicalDeviceVulkan12Features newer = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features half = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &newer};
    VkPhysicalDeviceFeatures2 has = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                     .pNext = &half};
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueFamilyIndex = g->family,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &has, /* an engine requests what it needs */
                               .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &queue};
    vkGetPhysicalDeviceFeatures2(g->adapter, &has);
    has.features.robustBufferAccess = VK_FALSE;
    g->has_half = newer.shaderFloat16 && half.storageBuffer16BitAccess &&
                  half.uniformAndStorageBuffer16BitAccess;
    if (!gpu_is(vkCreateDevice(g->adapter, &info, NULL, &g->device), "no device")) return 0;
    vkGetDeviceQueue(g->device, g->family, 0, &g->queue);
    return 1;
}

/* Opens a device that suits cooked files. Returns 0 if there is none. */
static inline int gpu_open(gpu *g, const void *bytes, size_t size) {
    VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO,
                               .flags = VK_FENCE_CREATE_SIGNALED_BIT};
    memset(g, 0, sizeof *g);
    (void)bytes;
    (void)size;
    if (!gpu_create_instance(g) || !gpu_find(g) || !gpu_create_device(g)) return 0;
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
                                    .queueFamilyIndex = g->family};
    VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                            .commandBufferCount = 1};
    if (getenv("CML_OTHER_WAY") != NULL) {
        VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                          .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
        VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                      .pNext = &type};
        if (!gpu_is(vkCreateSemaphore(g->device, &info, NULL, &g->timeline), "no timeline"))
            return 0;
    }
    for (int i = 0; i < GPU_FRAMES; i++) {
        if (!gpu_is(vkCreateCommandPool(g->device, &pool, NULL, &g->pools[i]), "no command pool"))
            return 0;
        commands.commandPool = g->pools[i];
        vkAllocateCommandBuffers(g->device, &commands, &g->commands[i]);
        vkCreateFence(g->device, &fence, NULL, &g->fences[i]);
    }
    return 1;
}

/* Allocates a buffer's memory; an engine calls its own allocator here. */
static inline int gpu_allocate(void *user, const VkMemoryRequirements *requirements,
                               VkMemoryPropertyFlags wanted, VkMemoryPropertyFlags preferred,
                               cml_vulkan_memory *memory) {
    const gpu *g = (const gpu *)user;
    VkPhysicalDeviceMemoryProperties has;
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .allocationSize = requirements->size + (1 << 20)};
    uint32_t type = 0;
    (void)preferred;
    vkGetPhysicalDeviceMemoryProperties(g->adapter, &has);
    while (type < has.memoryTypeCount && (!(requirements->memoryTypeBits >> type & 1) ||
                                          (has.memoryTypes[type].propertyFlags & wanted) != wanted))
        type++;
    info.memoryTypeIndex = type;
    if (type == has.memoryTypeCount ||
        vkAllocateMemory(g->device, &info, NULL, &memory->memory) != VK_SUCCESS)
        return 0;
    memory->offset = 1 << 20; /* a multiple of all alignments */
    if (wanted & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)
        vkMapMemory(g->device, memory->memory, memory->offset, VK_WHOLE_SIZE, 0, &memory->mapped);
    return 1;
}

static inline void gpu_release(void *user, const cml_vulkan_memory *memory) {
    vkFreeMemory(((const gpu *)user)->device, memory->memory, NULL);
}

/* Describes the device to the player. */
static inline cml_vulkan gpu_described(const gpu *g) {
    cml_vulkan vulkan;
    memset(&vulkan, 0, sizeof vulkan);
    vulkan.instance = g->instance;
    vulkan.physical_device = g->adapter;
    vulkan.device = g->device;
    vulkan.queue = g->queue;
    vulkan.queue_family = g->family;
    vulkan.get_instance_proc_addr = vkGetInstanceProcAddr;
    vulkan.has_half = g->has_half;
    if (g->timeline == VK_NULL_HANDLE) return vulkan;
    vulkan.timeline = g->timeline;
    vulkan.get_counter_value = vkGetSemaphoreCounterValue;
    vulkan.memory.allocate = gpu_allocate;
    vulkan.memory.release = gpu_release;
    vulkan.memory.user = (void *)g;
    vulkan.is_staged = 1;
    return vulkan;
}

/* Fills in the table of functions by which the player uses the device. */
static inline cml_status gpu_fill(const gpu *g, cml_backend *backend, cml_error *error) {
    cml_vulkan vulkan = gpu_described(g);
    return cml_vulkan_fill(&vulkan, backend, error);
}

/* Begins the commands of a frame, once the frame that had them before has run. */
static inline void *gpu_begin(gpu *g, const cml_backend *backend) {
    VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                     .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    uint64_t slot = ++g->frame % GPU_FRAMES;
    vkWaitForFences(g->device, 1, &g->fences[slot], VK_TRUE, UINT64_MAX);
    vkResetFences(g->device, 1, &g->fences[slot]);
    if (g->frame > GPU_FRAMES && g->timeline == VK_NULL_HANDLE)
        cml_vulkan_completed(backend, g->frame - GPU_FRAMES);
    vkResetCommandPool(g->device, g->pools[slot], 0);
    vkBeginCommandBuffer(g->commands[slot], &info);
    cml_vulkan_begin(backend, g->frame);
    return g->commands[slot];
}

static inline void gpu_submit_buffers(gpu *g, VkCommandBuffer buffer, uint32_t count) {
    VkTimelineSemaphoreSubmitInfo number = {.sType =
                                                VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .signalSemaphoreValueCount = 1,
                                            .pSignalSemaphoreValues = &g->frame};
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                         .commandBufferCount = count,
                         .pCommandBuffers = &buffer};
    if (g->timeline != VK_NULL_HANDLE) {
        info.pNext = &number;
        info.signalSemaphoreCount = 1;
        info.pSignalSemaphores = &g->timeline;
    }
    vkEndCommandBuffer(buffer);
    gpu_is(vkQueueSubmit(g->queue, 1, &info, g->fences[g->frame % GPU_FRAMES]), "a submit");
}

/* Submits a frame's commands: the one submit of a frame, the engine's own. */
static inline void gpu_submit(gpu *g, void *commands) {
    gpu_submit_buffers(g, (VkCommandBuffer)commands, 1);
}

/* Throws a frame's commands away: a submit of nothing signals its fence. */
static inline void gpu_discard(gpu *g, void *commands) {
    gpu_submit_buffers(g, (VkCommandBuffer)commands, 0);
}

/* An engine waits for the display here. */
static inline void gpu_wait(const gpu *g) { (void)g; }

static inline void gpu_wait_idle(gpu *g, const cml_backend *backend) {
    vkDeviceWaitIdle(g->device);
    cml_vulkan_completed(backend, g->frame);
}

static inline void gpu_close(gpu *g) {
    PFN_vkDestroyDebugUtilsMessengerEXT destroy = (PFN_vkDestroyDebugUtilsMessengerEXT)(void (*)(
        void))vkGetInstanceProcAddr(g->instance, "vkDestroyDebugUtilsMessengerEXT");
    vkDestroySemaphore(g->device, g->timeline, NULL);
    for (int i = 0; i < GPU_FRAMES; i++) {
        vkDestroyFence(g->device, g->fences[i], NULL);
        vkDestroyCommandPool(g->device, g->pools[i], NULL);
    }
    vkDestroyDevice(g->device, NULL);
    if (g->messenger != VK_NULL_HANDLE && destroy != NULL) destroy(g->instance, g->messenger, NULL);
    vkDestroyInstance(g->instance, NULL);
}

#endif
