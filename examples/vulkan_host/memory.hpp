// The game's allocator of device memory, for its own objects and, by two callbacks, for the
// player's: blocks of 32 MiB in which objects get the first free range that they fit in. A game
// with VulkanMemoryAllocator calls vmaAllocateMemory and vmaFreeMemory in the callbacks instead.
#ifndef VULKAN_HOST_MEMORY_HPP
#define VULKAN_HOST_MEMORY_HPP

#include "cml_vulkan.h"

#include <algorithm>
#include <list>
#include <map>
#include <new>

class Memory {
  public:
    // `most_bytes` is the game's budget of device memory; 0: what the device has.
    void open(VkPhysicalDevice adapter, VkDevice device, VkDeviceSize most_bytes) {
        device_ = device;
        most_ = most_bytes > 0 ? most_bytes : ~VkDeviceSize{0};
        vkGetPhysicalDeviceMemoryProperties(adapter, &types_);
    }

    void close() {
        for (Block &block : blocks_) vkFreeMemory(device_, block.memory, nullptr);
        blocks_.clear();
    }

    // Images have blocks of their own, as a device may keep them apart from buffers. Returns false
    // without memory.
    bool allocate(const VkMemoryRequirements &needs, VkMemoryPropertyFlags wanted,
                  VkMemoryPropertyFlags preferred, bool is_image, cml_vulkan_memory &memory) {
        for (VkMemoryPropertyFlags flags : {wanted | preferred, wanted}) {
            for (uint32_t type = 0; type < types_.memoryTypeCount; type++) {
                if (!(needs.memoryTypeBits >> type & 1) ||
                    (types_.memoryTypes[type].propertyFlags & flags) != flags)
                    continue;
                for (Block &block : blocks_)
                    if (block.type == type && block.is_image == is_image &&
                        take(block, needs, memory))
                        return true;
                if (add_block(std::max(needs.size, kBlockBytes), type, is_image))
                    return take(blocks_.back(), needs, memory);
            }
        }
        return false;
    }

    void release(const cml_vulkan_memory &memory) {
        Block &block = *static_cast<Block *>(memory.handle);
        auto used = block.used.find(memory.offset);
        auto range = block.free.insert(block.used.extract(used)).position;
        if (auto next = std::next(range);
            next != block.free.end() && end_of(range) == next->first) {
            range->second += next->second;
            block.free.erase(next);
        }
        if (range == block.free.begin()) return;
        if (auto before = std::prev(range); end_of(before) == range->first) {
            before->second += range->second;
            block.free.erase(range);
        }
    }

    // The callbacks by which the player takes its memory from here.
    cml_vulkan_allocator callbacks() {
        return {[](void *user, const VkMemoryRequirements *needs, VkMemoryPropertyFlags wanted,
                   VkMemoryPropertyFlags preferred, cml_vulkan_memory *memory) -> int {
                    try {
                        auto *self = static_cast<Memory *>(user);
                        return self->allocate(*needs, wanted, preferred, false, *memory);
                    } catch (const std::bad_alloc &) { // the player is written in C
                        return 0;
                    }
                },
                [](void *user, const cml_vulkan_memory *memory) {
                    static_cast<Memory *>(user)->release(*memory);
                },
                this};
    }

  private:
    using Ranges = std::map<VkDeviceSize, VkDeviceSize>; // bytes by offset

    struct Block {
        VkDeviceMemory memory;
        uint8_t *mapped; // nullptr: not visible to the host
        uint32_t type;
        bool is_image;
        Ranges free, used;
    };

    static constexpr VkDeviceSize kBlockBytes = 32 << 20;

    static VkDeviceSize end_of(Ranges::iterator range) { return range->first + range->second; }

    bool add_block(VkDeviceSize bytes, uint32_t type, bool is_image) {
        VkMemoryAllocateInfo info{.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                  .allocationSize = bytes,
                                  .memoryTypeIndex = type};
        VkDeviceMemory memory;
        void *mapped = nullptr;
        if (bytes > most_ || vkAllocateMemory(device_, &info, nullptr, &memory) != VK_SUCCESS)
            return false;
        bool is_visible =
            types_.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
        if (is_visible &&
            vkMapMemory(device_, memory, 0, VK_WHOLE_SIZE, 0, &mapped) != VK_SUCCESS) {
            vkFreeMemory(device_, memory, nullptr);
            return false;
        }
        most_ -= bytes;
        blocks_.push_back(
            {memory, static_cast<uint8_t *>(mapped), type, is_image, {{0, bytes}}, {}});
        return true;
    }

    bool take(Block &block, const VkMemoryRequirements &needs, cml_vulkan_memory &memory) {
        for (auto range = block.free.begin(); range != block.free.end(); ++range) {
            auto [offset, bytes] = *range;
            VkDeviceSize begin = (offset + needs.alignment - 1) / needs.alignment * needs.alignment;
            VkDeviceSize end = begin + needs.size;
            if (end > offset + bytes) continue;
            block.free.erase(range);
            if (begin > offset) block.free[offset] = begin - offset;
            if (end < offset + bytes) block.free[end] = offset + bytes - end;
            block.used[begin] = needs.size;
            memory = {block.memory, begin, block.mapped ? block.mapped + begin : nullptr, &block};
            return true;
        }
        return false;
    }

    VkDevice device_ = VK_NULL_HANDLE;
    VkDeviceSize most_ = 0; // bytes that further blocks may have
    VkPhysicalDeviceMemoryProperties types_{};
    std::list<Block> blocks_;
};

#endif
