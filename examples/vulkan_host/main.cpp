// A game on Vulkan that plays a network in its frames. It draws a small picture, gives it to the
// network as a VkImage, and shows the network's result from the VkBuffer in which it lies, beside a
// panel with the times of frames and the operators by cost. README.md has the commands.
//
// device.hpp is what the game has anyway, memory.hpp its allocator, which the player uses too. The
// network takes open_network() and the calls of `scheduler_` in draw_frame().
#include "cml.hpp"
#include "device.hpp"

#include "full_vert.h" // from shaders/
#include "large_frag.h"
#include "panel_frag.h"
#include "panel_vert.h"
#include "scene_frag.h"
#include "small_frag.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>

namespace {

constexpr uint32_t kFrames = 2;        // in flight
constexpr uint32_t kPanelHeight = 200; // pixels
constexpr double kFrameMs = 1000.0 / 60.0;
constexpr VkShaderStageFlags kStages = VK_SHADER_STAGE_VERTEX_BIT | VK_SHADER_STAGE_FRAGMENT_BIT;
constexpr char kUsage[] = R"(usage: vulkan_host NET.cml [OPTION ...]
  NET.cml            a cooked network that enlarges a picture [1, 3, height, width]
  --budget MS        of a frame for the network; 4
  --frames N         end after so many frames, with --screenshot not before a result is shown
  --screenshot FILE  write the last frame as PPM
  --still SECONDS    draw the scene of this time in all frames
  --memory MIB       the most device memory of game and network
  --validate         let the validation layers watch; exit code 1 if they report something)";

struct Options {
    std::string network, screenshot;
    double budget_ms = 4.0, still = -1.0;
    uint64_t frames = 0, memory_mib = 0; // 0: no limit
    bool is_validated = false;
};

struct Frame { // of which kFrames are in flight
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkFence done;
    VkSemaphore acquired; // its image of the swapchain may be drawn into
    VkDescriptorSet set;  // the scene and the result
    Buffer rectangles;    // of the panel
};

class Game {
  public:
    explicit Game(Options options) : options_(std::move(options)) {}
    ~Game() { close(); }

    void open() {
        device_.open(1024, 512 + kPanelHeight, options_.memory_mib << 20, options_.is_validated);
        open_network();
        create_passes();
        create_scene();
        create_pipelines();
        create_frames();
        create_swapchain();
    }

    void play() {
        try {
            while (!glfwWindowShouldClose(device_.window) && !is_finished_) {
                glfwPollEvents();
                draw_frame();
            }
        } catch (const DeviceLost &) {
            scheduler_->device_lost(); // a game that goes on loads its networks again
            throw;
        }
        std::printf("%llu frames, %llu results\n", static_cast<unsigned long long>(number_),
                    static_cast<unsigned long long>(results_));
    }

    // Returns the number of messages of the validation layers.
    int close() {
        device_.wait();
        job_.release();
        shown_.release();
        net_ = cml::Net();
        scheduler_.reset();
        device_.close();
        return device_.messages;
    }

  private:
    // ------------------------------------------------------------------ the network

    void open_network() {
        std::ifstream in(options_.network, std::ios::binary);
        if (!in) throw Failure("Cannot read '" + options_.network + "'.");
        bytes_.assign(std::istreambuf_iterator<char>(in), {});

        cml_vulkan vulkan{};
        vulkan.instance = device_.instance;
        vulkan.physical_device = device_.adapter;
        vulkan.device = device_.device;
        vulkan.queue = device_.queue;
        vulkan.queue_family = device_.family;
        vulkan.get_instance_proc_addr = vkGetInstanceProcAddr;
        vulkan.pipeline_cache = device_.pipeline_cache;
        vulkan.has_half = device_.has_half;
        vulkan.memory = device_.memory.callbacks();
        cml_error error;
        if (cml_vulkan_fill(&vulkan, &backend_, &error) != CML_OK) throw cml::Error(error);

        cml_options options{};
        options.backend = &backend_;
        options.frame_ms = kFrameMs;
        options.budget_ms = options_.budget_ms;
        options.max_results = 2; // the one that is shown, and the next
        scheduler_.emplace(options);
        net_ = scheduler_->load(bytes_.data(), bytes_.size(), CML_TRUSTED);

        in_ = net_.inputs().at(0);
        out_ = net_.outputs().at(0);
        in_name_ = cml::view(in_.name);
        out_name_ = cml::view(out_.name);
        for (const cml_shape &shape : {in_, out_})
            if (shape.rank != 4 || shape.extents[0] != 1 || shape.extents[1] != 3 ||
                shape.type != CML_TYPE_SCALAR || shape.layout != CML_LAYOUT_PLAIN)
                throw Failure("'" + options_.network +
                              "' must take a picture [1, 3, height, width] of floats and give one: "
                              "cook enlarge.onnx, as README.md says.");
    }

    // Shows a result that is there, and submits the next run on the scene.
    void update_job() {
        cml_job_info info = job_.info();
        if (info.state == CML_STATE_FAILED || info.state == CML_STATE_CANCELLED)
            throw Failure(std::string("The network's run failed: ") + info.error);
        if (info.state == CML_STATE_DONE) {
            shown_ = std::move(job_); // releases the one before
            results_++;
        }
        if (!job_)
            job_ = scheduler_->submit(net_, {cml::buffer_input(in_name_.c_str(), &scene_, 0)});
    }

    // Adds a frame's slices to the ranking.
    void rank(const cml_report &report) {
        if (report.reason == CML_REASON_DEVICE_ERROR) throw DeviceLost();
        is_building_ = report.reason == CML_REASON_PREPARING;
        const cml_slice *slices = cml_get_slices(scheduler_->get());
        for (uint32_t i = 0; i < report.slices; i++)
            costs_[std::string(cml::view(slices[i].op))] += slices[i].predicted_ms;
    }

    // ------------------------------------------------------------------ a frame

    void draw_frame() {
        Frame &frame = frames_[number_ % kFrames];
        check(vkWaitForFences(device_.device, 1, &frame.done, VK_TRUE, UINT64_MAX), "a frame");
        if (number_ >= kFrames) cml_vulkan_completed(&backend_, number_ + 1 - kFrames);
        uint32_t index;
        VkResult acquired = vkAcquireNextImageKHR(device_.device, device_.swapchain, UINT64_MAX,
                                                  frame.acquired, VK_NULL_HANDLE, &index);
        if (acquired == VK_ERROR_OUT_OF_DATE_KHR) return create_swapchain();
        check(acquired, "an image of the window");
        Screen &screen = device_.screens[index];
        number_++;
        auto now = std::chrono::steady_clock::now();
        frame_ms_ = std::chrono::duration<double, std::milli>(now - frame_begin_).count();
        frame_begin_ = now;

        VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                       .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
        check(vkResetFences(device_.device, 1, &frame.done), "a frame");
        check(vkResetCommandPool(device_.device, frame.pool, 0), "a frame");
        check(vkBeginCommandBuffer(frame.commands, &begin), "a frame");
        draw_scene(frame.commands);

        update_job();
        cml_vulkan_begin(&backend_, number_);
        rank(scheduler_->encode(frame.commands)); // 1: this frame's slices

        draw_window(frame, screen);
        is_finished_ = options_.frames > 0 && number_ >= options_.frames &&
                       (options_.screenshot.empty() || shown_);
        bool is_copied = is_finished_ && !options_.screenshot.empty();
        if (is_copied) copy_screen(frame.commands, screen.image);
        check(vkEndCommandBuffer(frame.commands), "a frame");

        VkPipelineStageFlags stage = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT;
        VkSubmitInfo submit{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                            .waitSemaphoreCount = 1,
                            .pWaitSemaphores = &frame.acquired,
                            .pWaitDstStageMask = &stage,
                            .commandBufferCount = 1,
                            .pCommandBuffers = &frame.commands,
                            .signalSemaphoreCount = 1,
                            .pSignalSemaphores = &screen.drawn};
        check(vkQueueSubmit(device_.queue, 1, &submit, frame.done), "a frame"); // 2: one submit
        uint32_t measured = scheduler_->end_frame(); // 3: times that have arrived
        for (uint32_t i = 0; i < measured; i++) {
            network_ms_.push_back(std::max(0.0, scheduler_->measured(i)->measured_ms));
            if (network_ms_.size() > 120) network_ms_.pop_front();
        }

        VkPresentInfoKHR present{.sType = VK_STRUCTURE_TYPE_PRESENT_INFO_KHR,
                                 .waitSemaphoreCount = 1,
                                 .pWaitSemaphores = &screen.drawn,
                                 .swapchainCount = 1,
                                 .pSwapchains = &device_.swapchain,
                                 .pImageIndices = &index};
        VkResult presented = vkQueuePresentKHR(device_.queue, &present);
        if (is_copied) write_screen();
        if (presented == VK_ERROR_OUT_OF_DATE_KHR || presented == VK_SUBOPTIMAL_KHR ||
            device_.is_resized)
            return create_swapchain();
        check(presented, "to show a frame");
    }

    // Draws the small picture into the image that the network takes.
    void draw_scene(VkCommandBuffer commands) {
        begin_pass(commands, scene_pass_, scene_framebuffer_, {in_.extents[3], in_.extents[2]});
        float seconds = static_cast<float>(options_.still >= 0 ? options_.still : glfwGetTime());
        draw(commands, scene_pipeline_, {0, 0, width_of(in_), height_of(in_)}, {seconds}, 3, 1);
        vkCmdEndRenderPass(commands);
        scene_image_.layout = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL; // by the pass
    }

    // Draws the small picture, the network's result beside it, and the panel.
    void draw_window(const Frame &frame, Screen &screen) {
        VkExtent2D extent = device_.extent;
        float width = static_cast<float>(extent.width), height = static_cast<float>(extent.height);
        float side = std::max(16.0f, std::min(width / 2, height - kPanelHeight));
        Device::change_layout(frame.commands, scene_image_,
                              VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL,
                              VK_PIPELINE_STAGE_TRANSFER_BIT, 0,
                              VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT);
        if (shown_) bind_result(frame.set);
        begin_pass(frame.commands, window_pass_, screen.framebuffer, extent);
        screen.image.layout = VK_IMAGE_LAYOUT_PRESENT_SRC_KHR; // by the pass
        vkCmdBindDescriptorSets(frame.commands, VK_PIPELINE_BIND_POINT_GRAPHICS, layout_, 0, 1,
                                &frame.set, 0, nullptr);
        draw(frame.commands, small_pipeline_, {0, 0, side, side}, {}, 3, 1);
        if (shown_)
            draw(frame.commands, large_pipeline_, {side, 0, side, side},
                 {width_of(out_), height_of(out_)}, 3, 1);

        write_panel(side + 12);
        const std::vector<Rectangle> &all = panel_.rectangles();
        std::memcpy(frame.rectangles.memory.mapped, all.data(), all.size() * sizeof all[0]);
        VkDeviceSize offset = 0;
        vkCmdBindVertexBuffers(frame.commands, 0, 1, &frame.rectangles.handle, &offset);
        draw(frame.commands, panel_pipeline_, {0, 0, width, height}, {width, height}, 4,
             static_cast<uint32_t>(all.size()));
        vkCmdEndRenderPass(frame.commands);
    }

    // Lets shaders read the result where it lies. The last frame that used the set has run.
    void bind_result(VkDescriptorSet set) {
        cml_tensor tensor = *shown_.tensor(out_name_.c_str());
        VkDescriptorBufferInfo range{*static_cast<VkBuffer *>(tensor.buffer), tensor.offset,
                                     tensor.bytes};
        VkWriteDescriptorSet write{.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                   .dstSet = set,
                                   .dstBinding = 1,
                                   .descriptorCount = 1,
                                   .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                   .pBufferInfo = &range};
        vkUpdateDescriptorSets(device_.device, 1, &write, 0, nullptr);
    }

    void begin_pass(VkCommandBuffer commands, VkRenderPass pass, VkFramebuffer framebuffer,
                    VkExtent2D extent) {
        VkClearValue dark{{{0.08f, 0.09f, 0.1f, 1.0f}}};
        VkRenderPassBeginInfo info{.sType = VK_STRUCTURE_TYPE_RENDER_PASS_BEGIN_INFO,
                                   .renderPass = pass,
                                   .framebuffer = framebuffer,
                                   .renderArea = {{0, 0}, extent},
                                   .clearValueCount = pass == window_pass_ ? 1u : 0u,
                                   .pClearValues = &dark};
        vkCmdBeginRenderPass(commands, &info, VK_SUBPASS_CONTENTS_INLINE);
    }

    void draw(VkCommandBuffer commands, VkPipeline pipeline, VkViewport where,
              std::array<float, 4> constants, uint32_t vertices, uint32_t instances) {
        VkRect2D scissor{{static_cast<int32_t>(where.x), static_cast<int32_t>(where.y)},
                         {static_cast<uint32_t>(where.width), static_cast<uint32_t>(where.height)}};
        where.maxDepth = 1.0f;
        vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_GRAPHICS, pipeline);
        vkCmdSetViewport(commands, 0, 1, &where);
        vkCmdSetScissor(commands, 0, 1, &scissor);
        vkCmdPushConstants(commands, layout_, kStages, 0, sizeof constants, constants.data());
        vkCmdDraw(commands, vertices, instances, 0, 0);
    }

    // ------------------------------------------------------------------ the panel

    void write_panel(float top) {
        constexpr float left = 16, right = 400, longest = 240, graph = 50; // pixels
        double budget_ms = options_.budget_ms,
               last_ms = network_ms_.empty() ? 0 : network_ms_.back();
        panel_.clear();
        panel_.text(left, top, Panel::kWhite, "frame   %6.2f of %5.2f ms", frame_ms_, kFrameMs);
        panel_.text(left, top + 22, Panel::kBlue, "network %6.2f of %5.2f ms", last_ms, budget_ms);
        if (is_building_)
            panel_.text(left, top + 44, Panel::kGrey, "building kernels");
        else
            panel_.text(left, top + 44, Panel::kGrey, "results %u   next %3.0f%%",
                        static_cast<unsigned>(results_), 100 * job_.info().progress);

        // The network's time in the last frames; the line is its budget.
        float bottom = top + 170, x = left;
        for (double ms : network_ms_) {
            float height = std::min(2 * graph, static_cast<float>(ms / budget_ms) * graph);
            panel_.bar(x, bottom - height, 2, height,
                       ms > budget_ms ? Panel::kOrange : Panel::kBlue);
            x += 3;
        }
        panel_.bar(left, bottom - graph, 360, 1, Panel::kWhite);

        // The operators by the time that the scheduler expects of their slices.
        std::vector<std::pair<double, std::string>> ranking;
        double total_ms = 0;
        for (const auto &[op, ms] : costs_) {
            ranking.push_back({ms, op});
            total_ms += ms;
        }
        std::sort(ranking.rbegin(), ranking.rend());
        panel_.text(right, top, Panel::kWhite, "operators by cost");
        float y = top + 22;
        for (const auto &[ms, op] : ranking) {
            if (y > bottom) break;
            double share = ms / total_ms;
            panel_.bar(right, y, static_cast<float>(share) * longest, 15, Panel::kBlue);
            panel_.text(right + longest + 12, y, Panel::kWhite, "%5.1f%% %.20s", 100 * share,
                        op.c_str());
            y += 22;
        }
    }

    // ------------------------------------------------------------------ the screenshot

    void copy_screen(VkCommandBuffer commands, Image &image) {
        constexpr VkPipelineStageFlags transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
        VkExtent2D extent = device_.extent;
        screenshot_ =
            device_.create_buffer(VkDeviceSize{4} * extent.width * extent.height,
                                  VK_BUFFER_USAGE_TRANSFER_DST_BIT, device_.swapchain_undo);
        VkBufferImageCopy region{.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1},
                                 .imageExtent = {extent.width, extent.height, 1}};
        VkMemoryBarrier for_host{.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                 .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                 .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
        Device::change_layout(commands, image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, transfer, 0,
                              transfer, VK_ACCESS_TRANSFER_READ_BIT);
        vkCmdCopyImageToBuffer(commands, image.handle, image.layout, screenshot_.handle, 1,
                               &region);
        Device::change_layout(commands, image, VK_IMAGE_LAYOUT_PRESENT_SRC_KHR, transfer, 0,
                              VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, 0);
        vkCmdPipelineBarrier(commands, transfer, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &for_host, 0,
                             nullptr, 0, nullptr);
    }

    void write_screen() {
        check(vkDeviceWaitIdle(device_.device), "the screenshot");
        const auto *texels = static_cast<const uint8_t *>(screenshot_.memory.mapped);
        std::size_t red = device_.format.format == VK_FORMAT_B8G8R8A8_UNORM ? 2 : 0;
        std::size_t bytes = std::size_t{4} * device_.extent.width * device_.extent.height;
        std::ofstream out(options_.screenshot, std::ios::binary);
        out << "P6\n" << device_.extent.width << " " << device_.extent.height << "\n255\n";
        for (std::size_t i = 0; i < bytes; i += 4)
            for (std::size_t channel : {red, std::size_t{1}, 2 - red})
                out.put(static_cast<char>(texels[i + channel]));
        if (!out.flush()) throw Failure("Cannot write '" + options_.screenshot + "'.");
    }

    // ------------------------------------------------------------------ objects of the game

    // Creates the two passes, whose dependencies order the game's drawing and the player's copies.
    void create_passes() {
        constexpr VkPipelineStageFlags output = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
                                       fragment = VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT,
                                       transfer = VK_PIPELINE_STAGE_TRANSFER_BIT;
        constexpr VkAccessFlags drawn = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT;
        constexpr uint32_t outside = VK_SUBPASS_EXTERNAL;
        // The scene: the last frame has shown it, and a run's start copies it.
        scene_pass_ = device_.create_pass(
            VK_FORMAT_R32_SFLOAT, 3, VK_ATTACHMENT_LOAD_OP_DONT_CARE,
            VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, {outside, 0, fragment, output, 0, drawn, 0},
            {0, outside, output, transfer, drawn, VK_ACCESS_TRANSFER_READ_BIT, 0});
        // The window: the result was written by a copy. Once it is released, its memory is copied
        // to again, which must wait until it has been read.
        window_pass_ = device_.create_pass(
            device_.format.format, 1, VK_ATTACHMENT_LOAD_OP_CLEAR, VK_IMAGE_LAYOUT_PRESENT_SRC_KHR,
            {outside, 0, transfer | output, fragment | output, VK_ACCESS_TRANSFER_WRITE_BIT,
             VK_ACCESS_SHADER_READ_BIT | drawn, 0},
            {0, outside, fragment | output, transfer, drawn, VK_ACCESS_TRANSFER_READ_BIT, 0});
    }

    // Creates the image that the scene is drawn into and the network takes: a layer for a channel.
    void create_scene() {
        constexpr VkFormat format = VK_FORMAT_R32_SFLOAT;
        VkExtent2D extent{in_.extents[3], in_.extents[2]};
        scene_image_ =
            device_.create_image(format, extent, 3,
                                 VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT | VK_IMAGE_USAGE_SAMPLED_BIT |
                                     VK_IMAGE_USAGE_TRANSFER_SRC_BIT);
        std::vector<VkImageView> layers;
        for (uint32_t layer = 0; layer < 3; layer++)
            layers.push_back(device_.create_view(scene_image_.handle, VK_IMAGE_VIEW_TYPE_2D, format,
                                                 layer, 1, device_.undo));
        scene_framebuffer_ = device_.create_framebuffer(scene_pass_, layers, extent, device_.undo);
        scene_view_ = device_.create_view(scene_image_.handle, VK_IMAGE_VIEW_TYPE_2D_ARRAY, format,
                                          0, 3, device_.undo);
        scene_.image = {scene_image_.handle,
                        VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
                        format,
                        extent.width,
                        extent.height,
                        3};
    }

    void create_pipelines() {
        VkSamplerCreateInfo sampler{.sType = VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO};
        sampler_ = device_.create(vkCreateSampler, vkDestroySampler, sampler, device_.undo);
        VkDescriptorSetLayoutBinding bindings[] = {
            {0, VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER, 1, VK_SHADER_STAGE_FRAGMENT_BIT,
             nullptr},
            {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_FRAGMENT_BIT, nullptr}};
        VkDescriptorSetLayoutCreateInfo set{.sType =
                                                VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                            .bindingCount = 2,
                                            .pBindings = bindings};
        set_layout_ = device_.create(vkCreateDescriptorSetLayout, vkDestroyDescriptorSetLayout, set,
                                     device_.undo);
        VkPushConstantRange constants{kStages, 0, 16};
        VkPipelineLayoutCreateInfo layout{.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                          .setLayoutCount = 1,
                                          .pSetLayouts = &set_layout_,
                                          .pushConstantRangeCount = 1,
                                          .pPushConstantRanges = &constants};
        layout_ =
            device_.create(vkCreatePipelineLayout, vkDestroyPipelineLayout, layout, device_.undo);
        scene_pipeline_ = device_.create_pipeline(layout_, scene_pass_, 3, full_vert, scene_frag);
        small_pipeline_ = device_.create_pipeline(layout_, window_pass_, 1, full_vert, small_frag);
        large_pipeline_ = device_.create_pipeline(layout_, window_pass_, 1, full_vert, large_frag);
        panel_pipeline_ =
            device_.create_pipeline(layout_, window_pass_, 1, panel_vert, panel_frag, true);
    }

    void create_frames() {
        VkDescriptorPoolSize sizes[] = {{VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER, kFrames},
                                        {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kFrames}};
        VkDescriptorPoolCreateInfo sets{.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                        .maxSets = kFrames,
                                        .poolSizeCount = 2,
                                        .pPoolSizes = sizes};
        Undo &undo = device_.undo;
        VkDescriptorSetAllocateInfo set{
            .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
            .descriptorPool =
                device_.create(vkCreateDescriptorPool, vkDestroyDescriptorPool, sets, undo),
            .descriptorSetCount = 1,
            .pSetLayouts = &set_layout_};
        VkCommandPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                     .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
                                     .queueFamilyIndex = device_.family};
        VkFenceCreateInfo fence{.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO,
                                .flags = VK_FENCE_CREATE_SIGNALED_BIT};
        VkSemaphoreCreateInfo semaphore{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
        for (Frame &frame : frames_) {
            frame.pool = device_.create(vkCreateCommandPool, vkDestroyCommandPool, pool, undo);
            frame.done = device_.create(vkCreateFence, vkDestroyFence, fence, undo);
            frame.acquired = device_.create(vkCreateSemaphore, vkDestroySemaphore, semaphore, undo);
            frame.rectangles = device_.create_buffer(Panel::kMost * sizeof(Rectangle),
                                                     VK_BUFFER_USAGE_VERTEX_BUFFER_BIT, undo);
            VkCommandBufferAllocateInfo commands{.sType =
                                                     VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                 .commandPool = frame.pool,
                                                 .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                 .commandBufferCount = 1};
            check(vkAllocateCommandBuffers(device_.device, &commands, &frame.commands), "a frame");
            check(vkAllocateDescriptorSets(device_.device, &set, &frame.set), "a frame");
            VkDescriptorImageInfo scene{sampler_, scene_view_,
                                        VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL};
            VkWriteDescriptorSet write{.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                       .dstSet = frame.set,
                                       .dstBinding = 0,
                                       .descriptorCount = 1,
                                       .descriptorType = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER,
                                       .pImageInfo = &scene};
            vkUpdateDescriptorSets(device_.device, 1, &write, 0, nullptr);
        }
    }

    void create_swapchain() {
        device_.create_swapchain(window_pass_, !options_.screenshot.empty());
    }

    static float height_of(const cml_shape &shape) { return static_cast<float>(shape.extents[2]); }
    static float width_of(const cml_shape &shape) { return static_cast<float>(shape.extents[3]); }

    Options options_;
    Device device_;
    VkRenderPass scene_pass_, window_pass_;
    Image scene_image_;
    VkImageView scene_view_;
    VkFramebuffer scene_framebuffer_;
    VkSampler sampler_;
    VkDescriptorSetLayout set_layout_;
    VkPipelineLayout layout_;
    VkPipeline scene_pipeline_, small_pipeline_, large_pipeline_, panel_pipeline_;
    std::array<Frame, kFrames> frames_;
    uint64_t number_ = 0; // of the last frame, from 1
    bool is_finished_ = false;
    Buffer screenshot_;

    std::vector<char> bytes_; // of the cooked file, which are read until the network is built
    cml_backend backend_;
    std::optional<cml::Scheduler> scheduler_;
    cml::Net net_;
    cml_shape in_, out_;
    std::string in_name_, out_name_;
    cml_vulkan_source scene_{}; // the input of each run
    cml::Job job_, shown_;      // the run under way, and the one whose result is shown
    uint64_t results_ = 0;
    bool is_building_ = false;

    Panel panel_;
    std::chrono::steady_clock::time_point frame_begin_ = std::chrono::steady_clock::now();
    double frame_ms_ = 0;
    std::deque<double> network_ms_;       // of the last frames that are measured
    std::map<std::string, double> costs_; // milliseconds by operator
};

Options read_options(int count, char **words) {
    Options options;
    for (int i = 1; i < count; i++) {
        std::string word = words[i];
        if (word == "--validate") {
            options.is_validated = true;
        } else if (word.compare(0, 2, "--") != 0 && options.network.empty()) {
            options.network = word;
        } else {
            if (++i == count) throw Failure(kUsage);
            const char *value = words[i];
            if (word == "--frames")
                options.frames = std::strtoull(value, nullptr, 10);
            else if (word == "--screenshot")
                options.screenshot = value;
            else if (word == "--budget")
                options.budget_ms = std::atof(value);
            else if (word == "--still")
                options.still = std::atof(value);
            else if (word == "--memory")
                options.memory_mib = std::strtoull(value, nullptr, 10);
            else
                throw Failure(kUsage);
        }
    }
    if (options.network.empty() || !(options.budget_ms > 0)) throw Failure(kUsage);
    return options;
}

} // namespace

int main(int count, char **words) {
    try {
        Game game(read_options(count, words));
        game.open();
        game.play();
        return game.close() == 0 ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
