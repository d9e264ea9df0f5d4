// What a game on Vulkan has already: a window, a device, memory, a swapchain and short ways to
// create objects. Nothing here is about networks.
#ifndef VULKAN_HOST_DEVICE_HPP
#define VULKAN_HOST_DEVICE_HPP

#include "memory.hpp"
#include "panel.hpp"

#include <vulkan/vulkan.h>

#include <GLFW/glfw3.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct Failure : std::runtime_error { // a problem, in sentences
    using std::runtime_error::runtime_error;
};

struct DeviceLost : Failure {
    DeviceLost()
        : Failure("The graphics device is lost, as when its driver is restarted. Start the game "
                  "again.") {}
};

inline void check(VkResult result, const char *what) {
    if (result >= 0) return; // success, or a state such as VK_SUBOPTIMAL_KHR
    if (result == VK_ERROR_DEVICE_LOST) throw DeviceLost();
    std::string text = std::string("Vulkan refuses ") + what;
    if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY)
        throw Failure(text + ": no memory is left. Close other programs, or raise --memory.");
    throw Failure(text + ": VkResult " + std::to_string(result) + ".");
}

// Destroys what was created, in reverse.
class Undo {
  public:
    ~Undo() { run(); }
    void add(std::function<void()> step) { steps_.push_back(std::move(step)); }
    void run() {
        for (; !steps_.empty(); steps_.pop_back()) steps_.back()();
    }

  private:
    std::vector<std::function<void()>> steps_;
};

struct Buffer {
    VkBuffer handle;
    cml_vulkan_memory memory;
};

struct Image {
    VkImage handle;
    VkImageLayout layout;
    uint32_t layers;
};

struct Screen { // an image of the swapchain
    Image image;
    VkFramebuffer framebuffer;
    VkSemaphore drawn;
};

struct Device {
    GLFWwindow *window = nullptr;
    VkInstance instance = VK_NULL_HANDLE;
    VkSurfaceKHR surface = VK_NULL_HANDLE;
    VkPhysicalDevice adapter = VK_NULL_HANDLE;
    VkDevice device = VK_NULL_HANDLE;
    VkQueue queue = VK_NULL_HANDLE; // draws, computes and shows
    uint32_t family = 0;
    bool has_half = false; // kernels may compute in 16 bits
    VkPipelineCache pipeline_cache = VK_NULL_HANDLE;
    Memory memory;
    VkSurfaceFormatKHR format{};
    VkSwapchainKHR swapchain = VK_NULL_HANDLE;
    VkExtent2D extent{}; // of the window
    std::vector<Screen> screens;
    bool is_resized = false;
    int messages = 0; // of the validation layers
    Undo undo, swapchain_undo;

    void open(int width, int height, VkDeviceSize most_bytes, bool is_validated) {
        open_window(width, height);
        create_instance(is_validated);
        check(glfwCreateWindowSurface(instance, window, nullptr, &surface), "the window");
        undo.add([this] { vkDestroySurfaceKHR(instance, surface, nullptr); });
        choose_adapter();
        choose_format();
        create_device();
        memory.open(adapter, device, most_bytes);
        undo.add([this] { memory.close(); });
        VkPipelineCacheCreateInfo cache{.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
        pipeline_cache = create(vkCreatePipelineCache, vkDestroyPipelineCache, cache, undo);
    }

    void wait() const {
        if (device != VK_NULL_HANDLE) vkDeviceWaitIdle(device);
    }

    void close() {
        swapchain_undo.run();
        undo.run();
    }

    // ------------------------------------------------------------------ objects

    // Creates an object, which `owner` destroys.
    template <typename Info, typename Handle>
    Handle create(VkResult(VKAPI_PTR *make)(VkDevice, const Info *, const VkAllocationCallbacks *,
                                            Handle *),
                  void(VKAPI_PTR *destroy)(VkDevice, Handle, const VkAllocationCallbacks *),
                  const Info &info, Undo &owner) {
        Handle handle;
        check(make(device, &info, nullptr, &handle), "an object of the game");
        owner.add([=, this] { destroy(device, handle, nullptr); });
        return handle;
    }

    // Creates a buffer that the host writes or reads.
    Buffer create_buffer(VkDeviceSize bytes, VkBufferUsageFlags usage, Undo &owner) {
        VkBufferCreateInfo info{
            .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = usage};
        VkMemoryPropertyFlags wanted =
            VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
        VkBuffer handle = create(vkCreateBuffer, vkDestroyBuffer, info, owner);
        VkMemoryRequirements needs;
        vkGetBufferMemoryRequirements(device, handle, &needs);
        cml_vulkan_memory range = allocate(needs, wanted, false, owner);
        check(vkBindBufferMemory(device, handle, range.memory, range.offset), "a buffer");
        return {handle, range};
    }

    Image create_image(VkFormat format_of_texels, VkExtent2D size, uint32_t layers,
                       VkImageUsageFlags usage) {
        VkImageCreateInfo info{.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
                               .imageType = VK_IMAGE_TYPE_2D,
                               .format = format_of_texels,
                               .extent = {size.width, size.height, 1},
                               .mipLevels = 1,
                               .arrayLayers = layers,
                               .samples = VK_SAMPLE_COUNT_1_BIT,
                               .usage = usage};
        VkImage handle = create(vkCreateImage, vkDestroyImage, info, undo);
        VkMemoryRequirements needs;
        vkGetImageMemoryRequirements(device, handle, &needs);
        cml_vulkan_memory range = allocate(needs, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, true, undo);
        check(vkBindImageMemory(device, handle, range.memory, range.offset), "an image");
        return {handle, VK_IMAGE_LAYOUT_UNDEFINED, layers};
    }

    VkImageView create_view(VkImage image, VkImageViewType type, VkFormat format_of_texels,
                            uint32_t layer, uint32_t layers, Undo &owner) {
        VkImageViewCreateInfo info{
            .sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
            .image = image,
            .viewType = type,
            .format = format_of_texels,
            .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, layer, layers}};
        return create(vkCreateImageView, vkDestroyImageView, info, owner);
    }

    VkFramebuffer create_framebuffer(VkRenderPass pass, const std::vector<VkImageView> &views,
                                     VkExtent2D size, Undo &owner) {
        VkFramebufferCreateInfo info{.sType = VK_STRUCTURE_TYPE_FRAMEBUFFER_CREATE_INFO,
                                     .renderPass = pass,
                                     .attachmentCount = static_cast<uint32_t>(views.size()),
                                     .pAttachments = views.data(),
                                     .width = size.width,
                                     .height = size.height,
                                     .layers = 1};
        return create(vkCreateFramebuffer, vkDestroyFramebuffer, info, owner);
    }

    // Creates a pass that draws into `count` images, between what the dependencies order.
    VkRenderPass create_pass(VkFormat format_of_texels, uint32_t count, VkAttachmentLoadOp load,
                             VkImageLayout after, const VkSubpassDependency &first,
                             const VkSubpassDependency &last) {
        std::vector<VkAttachmentDescription> attachments;
        std::vector<VkAttachmentReference> references;
        for (uint32_t i = 0; i < count; i++) {
            attachments.push_back({.format = format_of_texels,
                                   .samples = VK_SAMPLE_COUNT_1_BIT,
                                   .loadOp = load,
                                   .storeOp = VK_ATTACHMENT_STORE_OP_STORE,
                                   .stencilLoadOp = VK_ATTACHMENT_LOAD_OP_DONT_CARE,
                                   .stencilStoreOp = VK_ATTACHMENT_STORE_OP_DONT_CARE,
                                   .finalLayout = after});
            references.push_back({i, VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL});
        }
        VkSubpassDescription subpass{.colorAttachmentCount = count,
                                     .pColorAttachments = references.data()};
        VkSubpassDependency dependencies[] = {first, last};
        VkRenderPassCreateInfo info{.sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO,
                                    .attachmentCount = count,
                                    .pAttachments = attachments.data(),
                                    .subpassCount = 1,
                                    .pSubpasses = &subpass,
                                    .dependencyCount = 2,
                                    .pDependencies = dependencies};
        return create(vkCreateRenderPass, vkDestroyRenderPass, info, undo);
    }

    // Creates a pipeline of two shaders for strips of triangles, of the panel's rectangles if so.
    template <std::size_t V, std::size_t F>
    VkPipeline create_pipeline(VkPipelineLayout layout, VkRenderPass pass, uint32_t attachments,
                               const uint32_t (&vertex)[V], const uint32_t (&fragment)[F],
                               bool has_rectangles = false) {
        Undo modules;
        auto stage = [&](VkShaderStageFlagBits which, const uint32_t *code, std::size_t bytes) {
            VkShaderModuleCreateInfo info{.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                          .codeSize = bytes,
                                          .pCode = code};
            return VkPipelineShaderStageCreateInfo{
                .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                .stage = which,
                .module = create(vkCreateShaderModule, vkDestroyShaderModule, info, modules),
                .pName = "main"};
        };
        VkPipelineShaderStageCreateInfo stages[] = {
            stage(VK_SHADER_STAGE_VERTEX_BIT, vertex, sizeof vertex),
            stage(VK_SHADER_STAGE_FRAGMENT_BIT, fragment, sizeof fragment)};
        VkVertexInputBindingDescription rectangles{0, sizeof(Rectangle),
                                                   VK_VERTEX_INPUT_RATE_INSTANCE};
        VkVertexInputAttributeDescription attributes[] = {
            {0, 0, VK_FORMAT_R32G32B32A32_SFLOAT, offsetof(Rectangle, x)},
            {1, 0, VK_FORMAT_R32G32_UINT, offsetof(Rectangle, colour)}};
        VkPipelineVertexInputStateCreateInfo input{
            .sType = VK_STRUCTURE_TYPE_PIPELINE_VERTEX_INPUT_STATE_CREATE_INFO,
            .vertexBindingDescriptionCount = has_rectangles ? 1u : 0u,
            .pVertexBindingDescriptions = &rectangles,
            .vertexAttributeDescriptionCount = has_rectangles ? 2u : 0u,
            .pVertexAttributeDescriptions = attributes};
        VkPipelineInputAssemblyStateCreateInfo assembly{
            .sType = VK_STRUCTURE_TYPE_PIPELINE_INPUT_ASSEMBLY_STATE_CREATE_INFO,
            .topology = VK_PRIMITIVE_TOPOLOGY_TRIANGLE_STRIP};
        VkPipelineViewportStateCreateInfo viewport{
            .sType = VK_STRUCTURE_TYPE_PIPELINE_VIEWPORT_STATE_CREATE_INFO,
            .viewportCount = 1,
            .scissorCount = 1};
        VkPipelineRasterizationStateCreateInfo raster{
            .sType = VK_STRUCTURE_TYPE_PIPELINE_RASTERIZATION_STATE_CREATE_INFO, .lineWidth = 1.0f};
        VkPipelineMultisampleStateCreateInfo samples{
            .sType = VK_STRUCTURE_TYPE_PIPELINE_MULTISAMPLE_STATE_CREATE_INFO,
            .rasterizationSamples = VK_SAMPLE_COUNT_1_BIT};
        std::vector<VkPipelineColorBlendAttachmentState> masks(attachments,
                                                               {.colorWriteMask = 0xf});
        VkPipelineColorBlendStateCreateInfo blend{
            .sType = VK_STRUCTURE_TYPE_PIPELINE_COLOR_BLEND_STATE_CREATE_INFO,
            .attachmentCount = attachments,
            .pAttachments = masks.data()};
        VkDynamicState changing[] = {VK_DYNAMIC_STATE_VIEWPORT, VK_DYNAMIC_STATE_SCISSOR};
        VkPipelineDynamicStateCreateInfo dynamic{
            .sType = VK_STRUCTURE_TYPE_PIPELINE_DYNAMIC_STATE_CREATE_INFO,
            .dynamicStateCount = 2,
            .pDynamicStates = changing};
        VkGraphicsPipelineCreateInfo info{.sType = VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_CREATE_INFO,
                                          .stageCount = 2,
                                          .pStages = stages,
                                          .pVertexInputState = &input,
                                          .pInputAssemblyState = &assembly,
                                          .pViewportState = &viewport,
                                          .pRasterizationState = &raster,
                                          .pMultisampleState = &samples,
                                          .pColorBlendState = &blend,
                                          .pDynamicState = &dynamic,
                                          .layout = layout,
                                          .renderPass = pass};
        VkPipeline pipeline;
        check(vkCreateGraphicsPipelines(device, pipeline_cache, 1, &info, nullptr, &pipeline),
              "a pipeline of the game");
        undo.add([=, this] { vkDestroyPipeline(device, pipeline, nullptr); });
        return pipeline;
    }

    // Orders the uses of an image, and gives it another layout.
    static void change_layout(VkCommandBuffer commands, Image &image, VkImageLayout to,
                              VkPipelineStageFlags before, VkAccessFlags written,
                              VkPipelineStageFlags after, VkAccessFlags used) {
        VkImageMemoryBarrier barrier{
            .sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
            .srcAccessMask = written,
            .dstAccessMask = used,
            .oldLayout = image.layout,
            .newLayout = to,
            .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
            .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
            .image = image.handle,
            .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, image.layers}};
        vkCmdPipelineBarrier(commands, before, after, 0, 0, nullptr, 0, nullptr, 1, &barrier);
        image.layout = to;
    }

    // Creates the swapchain for the window's size, again where that has changed. Waits while the
    // window is minimised.
    void create_swapchain(VkRenderPass pass, bool is_copied) {
        check(vkDeviceWaitIdle(device), "the window");
        is_resized = false;
        VkSurfaceCapabilitiesKHR has{};
        for (int width = 0, height = 0; !glfwWindowShouldClose(window); glfwWaitEvents()) {
            glfwGetFramebufferSize(window, &width, &height);
            check(vkGetPhysicalDeviceSurfaceCapabilitiesKHR(adapter, surface, &has), "the window");
            extent = has.currentExtent;
            if (extent.width == UINT32_MAX)
                extent = {static_cast<uint32_t>(width), static_cast<uint32_t>(height)};
            if (extent.width > 0 && extent.height > 0) break;
        }
        if (glfwWindowShouldClose(window)) return;
        VkImageUsageFlags usage = VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT;
        if (is_copied) usage |= VK_IMAGE_USAGE_TRANSFER_SRC_BIT;
        if ((has.supportedUsageFlags & usage) != usage)
            throw Failure("This window cannot be copied: leave --screenshot out.");
        uint32_t count = std::max(has.minImageCount + 1, 3u);
        if (has.maxImageCount > 0) count = std::min(count, has.maxImageCount);
        swapchain_undo.run();
        VkSwapchainCreateInfoKHR info{.sType = VK_STRUCTURE_TYPE_SWAPCHAIN_CREATE_INFO_KHR,
                                      .surface = surface,
                                      .minImageCount = count,
                                      .imageFormat = format.format,
                                      .imageColorSpace = format.colorSpace,
                                      .imageExtent = extent,
                                      .imageArrayLayers = 1,
                                      .imageUsage = usage,
                                      .preTransform = has.currentTransform,
                                      .compositeAlpha = VK_COMPOSITE_ALPHA_OPAQUE_BIT_KHR,
                                      .presentMode = VK_PRESENT_MODE_FIFO_KHR,
                                      .clipped = VK_TRUE};
        swapchain = create(vkCreateSwapchainKHR, vkDestroySwapchainKHR, info, swapchain_undo);
        check(vkGetSwapchainImagesKHR(device, swapchain, &count, nullptr), "the window");
        std::vector<VkImage> images(count);
        check(vkGetSwapchainImagesKHR(device, swapchain, &count, images.data()), "the window");
        screens.clear();
        for (VkImage image : images) {
            VkSemaphoreCreateInfo semaphore{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
            VkImageView view =
                create_view(image, VK_IMAGE_VIEW_TYPE_2D, format.format, 0, 1, swapchain_undo);
            screens.push_back(
                {{image, VK_IMAGE_LAYOUT_PRESENT_SRC_KHR, 1},
                 create_framebuffer(pass, {view}, extent, swapchain_undo),
                 create(vkCreateSemaphore, vkDestroySemaphore, semaphore, swapchain_undo)});
        }
    }

  private:
    cml_vulkan_memory allocate(const VkMemoryRequirements &needs, VkMemoryPropertyFlags wanted,
                               bool is_image, Undo &owner) {
        cml_vulkan_memory range;
        if (!memory.allocate(needs, wanted, 0, is_image, range))
            check(VK_ERROR_OUT_OF_DEVICE_MEMORY, "an object of the game");
        owner.add([=, this] { memory.release(range); });
        return range;
    }

    // ------------------------------------------------------------------ window and device

    void open_window(int width, int height) {
        static std::string problem;
        glfwSetErrorCallback([](int, const char *text) { problem = text; });
        if (!glfwInit()) throw Failure("No window can be opened: " + problem);
        undo.add([] { glfwTerminate(); });
        if (!glfwVulkanSupported())
            throw Failure("There is no Vulkan: install the driver of your graphics card.");
        glfwWindowHint(GLFW_CLIENT_API, GLFW_NO_API);
        window = glfwCreateWindow(width, height, "vulkan_host", nullptr, nullptr);
        if (window == nullptr) throw Failure("No window can be opened: " + problem);
        glfwSetWindowUserPointer(window, this);
        glfwSetFramebufferSizeCallback(window, [](GLFWwindow *resized, int, int) {
            static_cast<Device *>(glfwGetWindowUserPointer(resized))->is_resized = true;
        });
    }

    static VKAPI_ATTR VkBool32 VKAPI_CALL
    on_message(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
               const VkDebugUtilsMessengerCallbackDataEXT *data, void *user) {
        static_cast<Device *>(user)->messages++;
        std::fprintf(stderr, "validation: %s\n", data->pMessage);
        return VK_FALSE;
    }

    void create_instance(bool is_validated) {
        const char *layer = "VK_LAYER_KHRONOS_validation";
        VkValidationFeatureEnableEXT checks[] = {
            VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT,
            VK_VALIDATION_FEATURE_ENABLE_BEST_PRACTICES_EXT};
        VkValidationFeaturesEXT features{.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                         .enabledValidationFeatureCount = 2,
                                         .pEnabledValidationFeatures = checks};
        uint32_t count = 0;
        const char **required = glfwGetRequiredInstanceExtensions(&count);
        if (required == nullptr) throw Failure("The driver of Vulkan opens no windows here.");
        std::vector<const char *> extensions(required, required + count);
        if (is_validated) extensions.push_back(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
        VkApplicationInfo application{.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                      .apiVersion = VK_API_VERSION_1_2};
        VkInstanceCreateInfo info{.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                  .pNext = is_validated ? &features : nullptr,
                                  .pApplicationInfo = &application,
                                  .enabledLayerCount = is_validated ? 1u : 0u,
                                  .ppEnabledLayerNames = &layer,
                                  .enabledExtensionCount = static_cast<uint32_t>(extensions.size()),
                                  .ppEnabledExtensionNames = extensions.data()};
        VkResult result = vkCreateInstance(&info, nullptr, &instance);
        if (result == VK_ERROR_LAYER_NOT_PRESENT)
            throw Failure("The validation layers are not installed. On Debian: apt-get install "
                          "vulkan-validationlayers.");
        check(result, "an instance of Vulkan 1.2");
        undo.add([this] { vkDestroyInstance(instance, nullptr); });
        if (is_validated) report_messages();
    }

    void report_messages() {
        VkDebugUtilsMessengerCreateInfoEXT info{
            .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
            .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                               VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
            .pfnUserCallback = on_message,
            .pUserData = this};
        auto begin = reinterpret_cast<PFN_vkCreateDebugUtilsMessengerEXT>(
            vkGetInstanceProcAddr(instance, "vkCreateDebugUtilsMessengerEXT"));
        auto end = reinterpret_cast<PFN_vkDestroyDebugUtilsMessengerEXT>(
            vkGetInstanceProcAddr(instance, "vkDestroyDebugUtilsMessengerEXT"));
        VkDebugUtilsMessengerEXT messenger;
        check(begin(instance, &info, nullptr, &messenger), "the validation layers");
        undo.add([=, this] { end(instance, messenger, nullptr); });
    }

    // Takes the first device with a queue that draws, computes and shows.
    void choose_adapter() {
        uint32_t count = 0;
        check(vkEnumeratePhysicalDevices(instance, &count, nullptr), "the list of devices");
        std::vector<VkPhysicalDevice> adapters(count);
        check(vkEnumeratePhysicalDevices(instance, &count, adapters.data()), "the list of devices");
        for (VkPhysicalDevice one : adapters) {
            VkPhysicalDeviceProperties properties;
            vkGetPhysicalDeviceProperties(one, &properties);
            if (properties.apiVersion < VK_API_VERSION_1_2) continue;
            vkGetPhysicalDeviceQueueFamilyProperties(one, &count, nullptr);
            std::vector<VkQueueFamilyProperties> families(count);
            vkGetPhysicalDeviceQueueFamilyProperties(one, &count, families.data());
            for (family = 0; family < count; family++) {
                VkQueueFlags needed = VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT;
                VkBool32 shows = VK_FALSE;
                check(vkGetPhysicalDeviceSurfaceSupportKHR(one, family, surface, &shows),
                      "the window");
                adapter = one;
                if ((families[family].queueFlags & needed) == needed && shows) return;
            }
        }
        throw Failure("No device of Vulkan 1.2 draws, computes and shows windows: install the "
                      "current driver of your graphics card.");
    }

    void choose_format() {
        uint32_t count = 0;
        check(vkGetPhysicalDeviceSurfaceFormatsKHR(adapter, surface, &count, nullptr),
              "the window's formats");
        std::vector<VkSurfaceFormatKHR> formats(count);
        check(vkGetPhysicalDeviceSurfaceFormatsKHR(adapter, surface, &count, formats.data()),
              "the window's formats");
        for (VkSurfaceFormatKHR one : formats) {
            format = one;
            if (one.format == VK_FORMAT_B8G8R8A8_UNORM || one.format == VK_FORMAT_R8G8B8A8_UNORM)
                return;
        }
        throw Failure("The window has no format with 8 bits for each channel.");
    }

    void create_device() {
        float priority = 1.0f;
        VkDeviceQueueCreateInfo queues{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                       .queueFamilyIndex = family,
                                       .queueCount = 1,
                                       .pQueuePriorities = &priority};
        VkPhysicalDeviceVulkan12Features newer{
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
        VkPhysicalDeviceVulkan11Features half{
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &newer};
        VkPhysicalDeviceFeatures2 has{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                      .pNext = &half};
        vkGetPhysicalDeviceFeatures2(adapter, &has);
        has_half = newer.shaderFloat16 && half.storageBuffer16BitAccess &&
                   half.uniformAndStorageBuffer16BitAccess;
        newer = {.sType = newer.sType, .shaderFloat16 = has_half};
        half = {.sType = half.sType,
                .pNext = &newer,
                .storageBuffer16BitAccess = has_half,
                .uniformAndStorageBuffer16BitAccess = has_half};
        const char *extension = VK_KHR_SWAPCHAIN_EXTENSION_NAME;
        VkDeviceCreateInfo info{.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                .pNext = &half,
                                .queueCreateInfoCount = 1,
                                .pQueueCreateInfos = &queues,
                                .enabledExtensionCount = 1,
                                .ppEnabledExtensionNames = &extension};
        check(vkCreateDevice(adapter, &info, nullptr, &device), "a device");
        undo.add([this] { vkDestroyDevice(std::exchange(device, VK_NULL_HANDLE), nullptr); });
        vkGetDeviceQueue(device, family, 0, &queue);
    }
};

#endif
