/* Loaded before Vulkan, it loses the host's device at the sixth submit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <vulkan/vulkan.h>

VkResult vkQueueSubmit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    static int calls;
    PFN_vkQueueSubmit next;
    *(void **)&next = dlsym(RTLD_NEXT, "vkQueueSubmit");
    return ++calls == 6 ? VK_ERROR_DEVICE_LOST : next(queue, count, infos, fence);
}
