/* A Vulkan layer that writes to the folder CML_CAPTURE, numbered in order of creation:
   NUMBER.spv       every shader module
   NUMBER.pipeline  every compute pipeline: the number of its module, the count of its specialization
                    constants, the bytes of their data (uint32), for each constant its id, offset and
                    size (uint32), then the data
   dispatches       a line for every recorded dispatch: the number of its pipeline, and x, y, z
   benchmarks/hardware/capture.py builds it and enables it. One device, one thread that records. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static VkDevice current;

#define MOST 65536
static uint64_t modules[MOST], pipelines[MOST];
static uint32_t module_count, pipeline_count, bound;

static uint32_t find(const uint64_t *handles, uint32_t count, uint64_t handle) {
    while (count > 0 && handles[count - 1] != handle) { count--; }
    return count - 1;
}

static FILE *open_file(const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("CML_CAPTURE"), name);
    return fopen(path, mode);
}

static VkResult create_module(VkDevice device, const VkShaderModuleCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkShaderModule *module) {
    char name[32];
    snprintf(name, sizeof name, "%06u.spv", module_count);
    FILE *file = open_file(name, "wb");
    if (file) {
        fwrite(info->pCode, 1, info->codeSize, file);
        fclose(file);
    }
    PFN_vkCreateShaderModule create =
        (PFN_vkCreateShaderModule)next_device(device, "vkCreateShaderModule");
    VkResult result = create(device, info, allocator, module);
    if (module_count < MOST) { modules[module_count++] = (uint64_t)*module; }
    return result;
}

static void write_pipeline(const VkComputePipelineCreateInfo *info) {
    char name[32];
    snprintf(name, sizeof name, "%06u.pipeline", pipeline_count);
    FILE *file = open_file(name, "wb");
    if (!file) { return; }
    const VkSpecializationInfo *constants = info->stage.pSpecializationInfo;
    uint32_t count = constants ? constants->mapEntryCount : 0;
    uint32_t head[] = {find(modules, module_count, (uint64_t)info->stage.module), count,
                       constants ? (uint32_t)constants->dataSize : 0};
    fwrite(head, sizeof head, 1, file);
    for (uint32_t i = 0; i < count; i++) {
        const VkSpecializationMapEntry *entry = &constants->pMapEntries[i];
        uint32_t words[] = {entry->constantID, entry->offset, (uint32_t)entry->size};
        fwrite(words, sizeof words, 1, file);
    }
    if (constants) { fwrite(constants->pData, 1, constants->dataSize, file); }
    fclose(file);
}

static VkResult create_pipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                 const VkComputePipelineCreateInfo *infos,
                                 const VkAllocationCallbacks *allocator, VkPipeline *made) {
    PFN_vkCreateComputePipelines create =
        (PFN_vkCreateComputePipelines)next_device(device, "vkCreateComputePipelines");
    VkResult result = create(device, cache, count, infos, allocator, made);
    for (uint32_t i = 0; i < count && pipeline_count < MOST; i++) {
        write_pipeline(&infos[i]);
        pipelines[pipeline_count++] = (uint64_t)made[i];
    }
    return result;
}

static void bind_pipeline(VkCommandBuffer commands, VkPipelineBindPoint point, VkPipeline pipeline) {
    bound = find(pipelines, pipeline_count, (uint64_t)pipeline);
    ((PFN_vkCmdBindPipeline)next_device(current, "vkCmdBindPipeline"))(commands, point, pipeline);
}

static void dispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
    FILE *file = open_file("dispatches", "a");
    if (file) {
        fprintf(file, "%u %u %u %u\n", bound, x, y, z);
        fclose(file);
    }
    ((PFN_vkCmdDispatch)next_device(current, "vkCmdDispatch"))(commands, x, y, z);
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
    VkResult result = create(physical, info, allocator, device);
    current = *device;
    return result;
}

static PFN_vkVoidFunction own(const char *name) {
    if (!strcmp(name, "vkCreateShaderModule")) { return (PFN_vkVoidFunction)create_module; }
    if (!strcmp(name, "vkCreateComputePipelines")) { return (PFN_vkVoidFunction)create_pipelines; }
    if (!strcmp(name, "vkCmdBindPipeline")) { return (PFN_vkVoidFunction)bind_pipeline; }
    if (!strcmp(name, "vkCmdDispatch")) { return (PFN_vkVoidFunction)dispatch; }
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
