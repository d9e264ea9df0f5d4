/* A Vulkan layer that writes every shader module to CML_CAPTURE/NUMBER.spv, in order of creation.
   benchmarks/hardware/capture.py builds it and enables it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static unsigned number;

static VkResult create_module(VkDevice device, const VkShaderModuleCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkShaderModule *module) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%06u.spv", getenv("CML_CAPTURE"),
             __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
    FILE *file = fopen(path, "wb");
    if (file) {
        fwrite(info->pCode, 1, info->codeSize, file);
        fclose(file);
    }
    PFN_vkCreateShaderModule create =
        (PFN_vkCreateShaderModule)next_device(device, "vkCreateShaderModule");
    return create(device, info, allocator, module);
}

static VkResult create_instance(const VkInstanceCreateInfo *info,
                                const VkAllocationCallbacks *allocator, VkInstance *instance) {
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO ||
           link->function != VK_LAYER_LINK_INFO) {
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    }
    next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)next_instance(NULL, "vkCreateInstance");
    return create(info, allocator, instance);
}

static VkResult create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkDevice *device) {
    VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO ||
           link->function != VK_LAYER_LINK_INFO) {
        link = (VkLayerDeviceCreateInfo *)link->pNext;
    }
    PFN_vkGetInstanceProcAddr instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    PFN_vkCreateDevice create = (PFN_vkCreateDevice)instance(NULL, "vkCreateDevice");
    return create(physical, info, allocator, device);
}

static PFN_vkVoidFunction own(const char *name) {
    if (!strcmp(name, "vkCreateShaderModule")) { return (PFN_vkVoidFunction)create_module; }
    return NULL;
}

static PFN_vkVoidFunction get_device(VkDevice device, const char *name) {
    PFN_vkVoidFunction function = own(name);
    return function ? function : next_device(device, name);
}

static PFN_vkVoidFunction get_instance(VkInstance instance, const char *name) {
    if (!strcmp(name, "vkCreateInstance")) { return (PFN_vkVoidFunction)create_instance; }
    if (!strcmp(name, "vkCreateDevice")) { return (PFN_vkVoidFunction)create_device; }
    if (!strcmp(name, "vkGetDeviceProcAddr")) { return (PFN_vkVoidFunction)get_device; }
    PFN_vkVoidFunction function = own(name);
    return function ? function : next_instance(instance, name);
}

VkResult vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version) {
    version->loaderLayerInterfaceVersion = 2;
    version->pfnGetInstanceProcAddr = get_instance;
    version->pfnGetDeviceProcAddr = get_device;
    version->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
