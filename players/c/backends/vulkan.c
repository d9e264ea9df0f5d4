/* The backend for Vulkan. It uses nothing of the player but the public headers, and no loader. */
#define VK_NO_PROTOTYPES
#include "cml_vulkan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#else
#include <pthread.h>
#endif

enum {
    MOST_WORKERS = 4,       /* threads that build pipelines */
    BLOCK_BYTES = 16 << 20, /* of device memory that buffers share */
    MOST_INLINE = 4096,     /* bytes that a frame writes without a staging buffer */
    MOST_GROUPS = 65535     /* of a dimension, as in WebGPU */
};

/* The functions of the device that are used. */
#define FUNCTIONS(of)                                                                              \
    of(AllocateMemory) of(FreeMemory) of(MapMemory) of(CreateBuffer) of(DestroyBuffer)             \
        of(GetBufferMemoryRequirements) of(BindBufferMemory) of(CreateShaderModule)                \
            of(DestroyShaderModule) of(CreateDescriptorSetLayout) of(DestroyDescriptorSetLayout)   \
                of(CreatePipelineLayout) of(DestroyPipelineLayout) of(CreateComputePipelines)      \
                    of(DestroyPipeline) of(CreateDescriptorPool) of(DestroyDescriptorPool)         \
                        of(AllocateDescriptorSets) of(UpdateDescriptorSets) of(CreateQueryPool)    \
                            of(DestroyQueryPool) of(CreateCommandPool) of(DestroyCommandPool)      \
                                of(AllocateCommandBuffers) of(FreeCommandBuffers) of(              \
                                    BeginCommandBuffer) of(EndCommandBuffer) of(CreateFence)       \
                                    of(DestroyFence) of(GetFenceStatus) of(WaitForFences)          \
                                        of(QueueSubmit) of(CmdPipelineBarrier) of(CmdBindPipeline) \
                                            of(CmdBindDescriptorSets) of(CmdDispatch)              \
                                                of(CmdCopyBuffer) of(CmdFillBuffer)                \
                                                    of(CmdUpdateBuffer) of(CmdCopyImageToBuffer)   \
                                                        of(CmdCopyBufferToImage)                   \
                                                            of(CmdResetQueryPool)                  \
                                                                of(CmdWriteTimestamp)              \
                                                                    of(CmdCopyQueryPoolResults)

typedef struct block { /* of device memory */
    struct block *next;
    VkDeviceMemory memory;
    uint8_t *mapped; /* NULL: not visible to the host */
    uint64_t bytes;
    uint32_t type;
    struct room *rooms; /* that are free, by offset */
} block;

typedef struct room {
    struct room *next;
    uint64_t offset, bytes;
} room;

typedef enum kind { A_BUFFER, A_PIPELINE, BINDINGS } kind;

typedef struct object { /* begins what is released once no frame uses it */
    struct object *next;
    kind is;
    uint64_t used_until; /* the number of the last frame that may use it */
} object;

struct cml_scope {
    cml_status status;
    int pending; /* uploads and pipelines */
    int is_released;
    char text[160];
};

struct cml_buffer {
    object base;
    VkBuffer handle; /* first of what cml_tensor.buffer points to */
    uint64_t size, copied_in;
    cml_usage usage;
    int is_adopted, is_own; /* is_own: memory of `from` */
    cml_vulkan_image image; /* in place of a handle, if it is adopted */
    cml_vulkan_memory memory;
    block *from;
    uint64_t block_offset, block_bytes;
    cml_scope *scope;
};

struct cml_pipeline {
    object base;
    VkDescriptorSetLayout layout;
    VkPipelineLayout pipeline_layout;
    VkPipeline pipeline;
    uint32_t tensors;
    struct cml_pipeline *next; /* in the queue, or of those that are built */
    uint32_t *code;            /* NULL once the caller knows the result */
    size_t bytes;
    cml_scope *scope;
    VkResult result;
    char label[96];
};

struct cml_bindings {
    object base;
    VkDescriptorPool pool;
    VkDescriptorSet set;
};

typedef struct upload { /* a submission of ours */
    struct upload *next;
    VkCommandBuffer commands;
    VkFence fence;
    cml_buffer *staging;
    cml_scope *scope;
} upload;

#ifdef _WIN32
typedef HANDLE thread_handle;
#else
typedef pthread_t thread_handle;
#endif

typedef struct vulkan {
    cml_vulkan host;
    cml_device_info info;
    VkPhysicalDeviceMemoryProperties memory;
    VkCommandPool pool;
    VkQueryPool queries;
    block *blocks;
    object *garbage;
    cml_buffer *staging; /* host-visible buffers for the writes of frames, by `base.next` */
    upload *uploads;
    uint64_t frame, completed;
    int end_query; /* of the open pass */
    /* Shared with the threads that build pipelines. */
#ifdef _WIN32
    SRWLOCK guard;
    CONDITION_VARIABLE idle;
#else
    pthread_mutex_t guard;
    pthread_cond_t idle;
#endif
    cml_pipeline *queue, *built;
    uint32_t busy;                       /* threads that build, the player's or the host's */
    thread_handle threads[MOST_WORKERS]; /* of the player, until destroy() */
    uint32_t thread_count;
    int is_closing;
#define DECLARE(name) PFN_vk##name name;
    FUNCTIONS(DECLARE)
#undef DECLARE
} vulkan;

/* Calls a function of the device. */
#define CALL(v, function, ...) (v)->function((v)->host.device, __VA_ARGS__)

/* ------------------------------------------------------------------ memory of the host, locks */

static void *take(const vulkan *v, size_t bytes) { return cml_allocate(&v->host.allocator, bytes); }

static void give_back(const vulkan *v, void *taken, size_t bytes) {
    cml_deallocate(&v->host.allocator, taken, bytes);
}

static void lock(const vulkan *v) {
    if (v->host.lock != NULL) v->host.lock(v->host.lock_user);
}

static void unlock(const vulkan *v) {
    if (v->host.unlock != NULL) v->host.unlock(v->host.lock_user);
}

static void refuse(cml_scope *scope, VkResult result, const char *what) {
    if (scope == NULL || scope->status != CML_OK) return;
    int is_memory =
        result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY;
    scope->status = is_memory ? CML_ERROR_MEMORY : CML_ERROR_DEVICE;
    snprintf(scope->text, sizeof scope->text, "%s: VkResult %d", what, (int)result);
}

static void end_pending(const vulkan *v, cml_scope *scope) {
    if (scope != NULL && --scope->pending == 0 && scope->is_released)
        give_back(v, scope, sizeof *scope);
}

/* ------------------------------------------------------------------ threads */

#ifdef _WIN32
static void create_guard(vulkan *v) {
    InitializeSRWLock(&v->guard);
    InitializeConditionVariable(&v->idle);
}
static void destroy_guard(vulkan *v) { (void)v; }
static void enter(vulkan *v) { AcquireSRWLockExclusive(&v->guard); }
static void leave(vulkan *v) { ReleaseSRWLockExclusive(&v->guard); }
static void wake(vulkan *v) { WakeAllConditionVariable(&v->idle); }
static void sleep_until_woken(vulkan *v) {
    SleepConditionVariableSRW(&v->idle, &v->guard, INFINITE, 0);
}
#else
static void create_guard(vulkan *v) {
    pthread_mutex_init(&v->guard, NULL);
    pthread_cond_init(&v->idle, NULL);
}
static void destroy_guard(vulkan *v) {
    pthread_cond_destroy(&v->idle);
    pthread_mutex_destroy(&v->guard);
}
static void enter(vulkan *v) { pthread_mutex_lock(&v->guard); }
static void leave(vulkan *v) { pthread_mutex_unlock(&v->guard); }
static void wake(vulkan *v) { pthread_cond_broadcast(&v->idle); }
static void sleep_until_woken(vulkan *v) { pthread_cond_wait(&v->idle, &v->guard); }
#endif

static VkResult build_pipeline(const vulkan *v, cml_pipeline *p) {
    VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = p->bytes,
                                     .pCode = p->code};
    VkComputePipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                        .layout = p->pipeline_layout};
    VkShaderModule module = VK_NULL_HANDLE;
    VkResult result = CALL(v, CreateShaderModule, &code, NULL, &module);
    if (result != VK_SUCCESS) return result;
    info.stage = (VkPipelineShaderStageCreateInfo){
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
        .stage = VK_SHADER_STAGE_COMPUTE_BIT,
        .module = module,
        .pName = "main"};
    result = CALL(v, CreateComputePipelines, v->host.pipeline_cache, 1, &info, NULL, &p->pipeline);
    CALL(v, DestroyShaderModule, module, NULL);
    return result;
}

/* Builds pipelines until the queue is empty. The caller holds the guard. */
static void build_queue(vulkan *v) {
    while (v->queue != NULL) {
        cml_pipeline *p = v->queue;
        v->queue = p->next;
        leave(v);
        p->result = build_pipeline(v, p);
        enter(v);
        p->next = v->built;
        v->built = p;
    }
    v->busy--;
    wake(v);
}

static void work(void *argument) { /* on a thread of the host */
    enter(argument);
    build_queue(argument);
    leave(argument);
}

static void work_until_closed(vulkan *v) { /* on a thread of the player */
    enter(v);
    while (!v->is_closing) {
        build_queue(v);
        while (v->queue == NULL && !v->is_closing) sleep_until_woken(v);
        v->busy++;
    }
    leave(v);
}

#ifdef _WIN32
static DWORD WINAPI run_thread(void *argument) {
    work_until_closed(argument);
    return 0;
}
static int start_thread(vulkan *v, thread_handle *thread) {
    *thread = CreateThread(NULL, 0, run_thread, v, 0, NULL);
    return *thread != NULL;
}
static void join_thread(thread_handle thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}
#else
static void *run_thread(void *argument) {
    work_until_closed(argument);
    return NULL;
}
static int start_thread(vulkan *v, thread_handle *thread) {
    return pthread_create(thread, NULL, run_thread, v) == 0;
}
static void join_thread(thread_handle thread) { pthread_join(thread, NULL); }
#endif

static void enqueue(vulkan *v, cml_pipeline *p) {
    int is_host = v->host.start != NULL;
    enter(v);
    p->next = v->queue;
    v->queue = p;
    /* another thread, if those that are there are busy or have not begun with the last pipeline */
    int is_new =
        is_host ? v->busy < MOST_WORKERS
                : v->thread_count < MOST_WORKERS && (v->busy == v->thread_count || p->next != NULL);
    if (is_new && !is_host) {
        is_new = start_thread(v, &v->threads[v->thread_count]);
        v->thread_count += is_new ? 1 : 0;
    }
    int is_alone = !is_host && v->thread_count == 0; /* the system has no thread */
    v->busy += is_new || is_alone ? 1 : 0;
    wake(v);
    leave(v);
    if (is_new && is_host) v->host.start(v->host.start_user, work, v);
    if (is_alone) work(v);
}

/* Waits until all is built, and for the player's threads: then a host may unload its code. */
static void close_threads(vulkan *v) {
    enter(v);
    while (v->queue != NULL || v->busy > 0) sleep_until_woken(v);
    v->is_closing = 1;
    wake(v);
    leave(v);
    for (uint32_t i = 0; i < v->thread_count; i++) join_thread(v->threads[i]);
}

/* Takes in the pipelines that threads have built since the last call. */
static void take_built(vulkan *v) {
    enter(v);
    cml_pipeline *p = v->built;
    v->built = NULL;
    leave(v);
    for (; p != NULL; p = p->next) {
        if (p->result != VK_SUCCESS) refuse(p->scope, p->result, p->label);
        end_pending(v, p->scope);
        give_back(v, p->code, p->bytes);
        p->code = NULL;
    }
}

/* ------------------------------------------------------------------ device memory */

/* Returns the first type of memory that has all of these properties; 32: none. */
static uint32_t find_type(const vulkan *v, uint32_t allowed, VkMemoryPropertyFlags wanted) {
    uint32_t i = 0;
    for (; i < v->memory.memoryTypeCount; i++)
        if (allowed >> i & 1 && (v->memory.memoryTypes[i].propertyFlags & wanted) == wanted)
            return i;
    return 32;
}

static block *add_block(vulkan *v, uint32_t type, uint64_t bytes) {
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .allocationSize = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES,
                                 .memoryTypeIndex = type};
    VkMemoryPropertyFlags flags = v->memory.memoryTypes[type].propertyFlags;
    VkMemoryPropertyFlags mappable =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    block *b = take(v, sizeof *b);
    room *all = take(v, sizeof *all);
    void *mapped = NULL;
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (b != NULL && all != NULL) result = CALL(v, AllocateMemory, &info, NULL, &b->memory);
    if (result == VK_SUCCESS && (flags & mappable) == mappable) {
        result = CALL(v, MapMemory, b->memory, 0, VK_WHOLE_SIZE, 0, &mapped);
        if (result != VK_SUCCESS) CALL(v, FreeMemory, b->memory, NULL);
    }
    if (result != VK_SUCCESS) {
        if (b != NULL) give_back(v, b, sizeof *b);
        if (all != NULL) give_back(v, all, sizeof *all);
        return NULL;
    }
    all->bytes = info.allocationSize;
    b->mapped = mapped;
    b->type = type;
    b->bytes = info.allocationSize;
    b->rooms = all;
    b->next = v->blocks;
    v->blocks = b;
    return b;
}

/* Takes a part of a free room; returns 0 if it is too small, or there is no memory for the rest. */
static int take_room(const vulkan *v, room **at, const VkMemoryRequirements *needs,
                     cml_buffer *to) {
    room *free_room = *at;
    uint64_t offset =
        (free_room->offset + needs->alignment - 1) / needs->alignment * needs->alignment;
    uint64_t end = offset + needs->size, free_end = free_room->offset + free_room->bytes;
    if (end > free_end) return 0;
    to->block_offset = free_room->offset; /* with what alignment leaves out */
    to->block_bytes = end - free_room->offset;
    to->memory.offset = offset;
    free_room->offset = end;
    free_room->bytes = free_end - end;
    if (free_room->bytes == 0) {
        *at = free_room->next;
        give_back(v, free_room, sizeof *free_room);
    }
    return 1;
}

static int take_memory(vulkan *v, const VkMemoryRequirements *needs, uint32_t type,
                       cml_buffer *to) {
    block *b = v->blocks;
    for (; b != NULL; b = b->next) {
        room **at = &b->rooms;
        if (b->type != type) continue;
        while (*at != NULL && !take_room(v, at, needs, to)) at = &(*at)->next;
        if (to->block_bytes > 0) break;
    }
    if (b == NULL) {
        b = add_block(v, type, needs->size);
        if (b == NULL || !take_room(v, &b->rooms, needs, to)) return 0;
    }
    to->from = b;
    to->memory.memory = b->memory;
    to->memory.mapped = b->mapped != NULL ? b->mapped + to->memory.offset : NULL;
    return 1;
}

static void free_block(vulkan *v, block *gone) {
    block **at = &v->blocks;
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    CALL(v, FreeMemory, gone->memory, NULL);
    for (room *next, *r = gone->rooms; r != NULL; r = next) {
        next = r->next;
        give_back(v, r, sizeof *r);
    }
    give_back(v, gone, sizeof *gone);
}

/* Returns a buffer's memory to its block; a block that is not used any more is freed. */
static void give_memory_back(vulkan *v, const cml_buffer *of) {
    block *b = of->from;
    room **at = &b->rooms, *before = NULL;
    while (*at != NULL && (*at)->offset < of->block_offset) {
        before = *at;
        at = &before->next;
    }
    if (before != NULL && before->offset + before->bytes == of->block_offset) {
        before->bytes += of->block_bytes;
    } else {
        room *added = take(v, sizeof *added);
        if (added == NULL) return; /* it is free again when the block is */
        *added = (room){*at, of->block_offset, of->block_bytes};
        *at = before = added;
    }
    room *after = before->next;
    if (after != NULL && before->offset + before->bytes == after->offset) {
        before->bytes += after->bytes;
        before->next = after->next;
        give_back(v, after, sizeof *after);
    }
    if (b->rooms->bytes == b->bytes) free_block(v, b);
}

/* ------------------------------------------------------------------ buffers */

static const VkBufferUsageFlags buffer_usages[] = {
    VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
        VK_BUFFER_USAGE_TRANSFER_DST_BIT,
    VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
    VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
    VK_BUFFER_USAGE_TRANSFER_DST_BIT,
    VK_BUFFER_USAGE_TRANSFER_SRC_BIT, /* staging */
};
enum { STAGING = CML_USAGE_READBACK + 1 };

static VkResult allocate(vulkan *v, cml_buffer *b) {
    VkMemoryRequirements needs;
    VkMemoryPropertyFlags wanted = 0, preferred = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    if ((int)b->usage >= CML_USAGE_READBACK) {
        wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
        preferred = b->usage == CML_USAGE_READBACK ? VK_MEMORY_PROPERTY_HOST_CACHED_BIT : 0;
    }
    CALL(v, GetBufferMemoryRequirements, b->handle, &needs);
    if (v->host.memory.allocate != NULL) {
        const cml_vulkan_allocator *from = &v->host.memory;
        if (!from->allocate(from->user, &needs, wanted, preferred, &b->memory))
            return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    } else {
        uint32_t type = find_type(v, needs.memoryTypeBits, wanted | preferred);
        if (type == 32) type = find_type(v, needs.memoryTypeBits, wanted);
        if (type == 32 || !take_memory(v, &needs, type, b)) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    b->is_own = 1;
    return CALL(v, BindBufferMemory, b->handle, b->memory.memory, b->memory.offset);
}

static void free_buffer(vulkan *v, cml_buffer *b) {
    if (!b->is_adopted && b->handle != VK_NULL_HANDLE) CALL(v, DestroyBuffer, b->handle, NULL);
    if (b->is_own && v->host.memory.release != NULL)
        v->host.memory.release(v->host.memory.user, &b->memory);
    else if (b->is_own)
        give_memory_back(v, b);
    give_back(v, b, sizeof *b);
}

static cml_buffer *add_buffer(vulkan *v, cml_scope *scope, int usage, uint64_t bytes) {
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                               .size = bytes,
                               .usage = buffer_usages[usage]};
    cml_buffer *b = take(v, sizeof *b);
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (b != NULL) {
        b->size = bytes;
        b->usage = (cml_usage)usage;
        b->scope = scope;
        result = CALL(v, CreateBuffer, &info, NULL, &b->handle);
        if (result == VK_SUCCESS) result = allocate(v, b);
        if (result != VK_SUCCESS) free_buffer(v, b);
    }
    if (result == VK_SUCCESS) return b;
    refuse(scope, result, "no buffer");
    return NULL;
}

/* ------------------------------------------------------------------ uploads */

static void end_upload(vulkan *v, upload *u) {
    if (u->fence != VK_NULL_HANDLE) CALL(v, DestroyFence, u->fence, NULL);
    if (u->commands != NULL) CALL(v, FreeCommandBuffers, v->pool, 1, &u->commands);
    if (u->staging != NULL) free_buffer(v, u->staging);
    end_pending(v, u->scope);
    give_back(v, u, sizeof *u);
}

/* Ends the uploads that have run. */
static void poll_uploads(vulkan *v) {
    for (upload **at = &v->uploads; *at != NULL;) {
        upload *u = *at;
        VkResult result = CALL(v, GetFenceStatus, u->fence);
        if (result == VK_NOT_READY) {
            at = &u->next;
            continue;
        }
        if (result != VK_SUCCESS) refuse(u->scope, result, "an upload");
        *at = u->next;
        end_upload(v, u);
    }
}

static VkResult begin_upload(vulkan *v, upload *u) {
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                        .commandPool = v->pool,
                                        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                        .commandBufferCount = 1};
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                      .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkResult result = CALL(v, AllocateCommandBuffers, &info, &u->commands);
    if (result == VK_SUCCESS) result = CALL(v, CreateFence, &fence, NULL, &u->fence);
    if (result == VK_SUCCESS) result = v->BeginCommandBuffer(u->commands, &begin);
    return result;
}

static const VkMemoryBarrier all_memory = {
    .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
    .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
    .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                     VK_ACCESS_UNIFORM_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                     VK_ACCESS_TRANSFER_WRITE_BIT};

static void order(const vulkan *v, VkCommandBuffer commands) {
    VkPipelineStageFlags stages =
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    v->CmdPipelineBarrier(commands, stages, stages, 0, 1, &all_memory, 0, NULL, 0, NULL);
}

static VkResult submit(vulkan *v, upload *u) {
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                         .commandBufferCount = 1,
                         .pCommandBuffers = &u->commands};
    VkResult result = v->EndCommandBuffer(u->commands);
    if (result == VK_SUCCESS) result = v->QueueSubmit(v->host.queue, 1, &info, u->fence);
    return result;
}

/* Copies data into a buffer by a submission of its own; fills it with zeros if `data` is NULL. */
static void add_upload(vulkan *v, cml_buffer *to, uint64_t offset, const void *data,
                       uint64_t bytes) {
    upload *u = take(v, sizeof *u);
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (u != NULL && data != NULL) u->staging = add_buffer(v, to->scope, STAGING, bytes);
    if (u != NULL && (data == NULL || u->staging != NULL)) result = begin_upload(v, u);
    if (result == VK_SUCCESS) {
        VkBufferCopy region = {0, offset, bytes};
        order(v, u->commands);
        if (data == NULL) {
            v->CmdFillBuffer(u->commands, to->handle, offset, bytes, 0);
        } else {
            memcpy(u->staging->memory.mapped, data, (size_t)bytes);
            v->CmdCopyBuffer(u->commands, u->staging->handle, to->handle, 1, &region);
        }
        order(v, u->commands);
        result = submit(v, u);
    }
    if (result != VK_SUCCESS) {
        refuse(to->scope, result, "an upload");
        if (u != NULL) end_upload(v, u);
        return;
    }
    u->scope = to->scope;
    if (u->scope != NULL) u->scope->pending++;
    u->next = v->uploads;
    v->uploads = u;
}

/* ------------------------------------------------------------------ objects that frames use */

static void free_object(vulkan *v, object *o) {
    if (o->is == A_BUFFER) {
        free_buffer(v, (cml_buffer *)(void *)o);
    } else if (o->is == A_PIPELINE) {
        cml_pipeline *p = (cml_pipeline *)(void *)o;
        CALL(v, DestroyPipeline, p->pipeline, NULL);
        CALL(v, DestroyPipelineLayout, p->pipeline_layout, NULL);
        CALL(v, DestroyDescriptorSetLayout, p->layout, NULL);
        give_back(v, p, sizeof *p);
    } else {
        cml_bindings *b = (cml_bindings *)(void *)o;
        CALL(v, DestroyDescriptorPool, b->pool, NULL);
        give_back(v, b, sizeof *b);
    }
}

static void release_object(void *user, object *o) {
    vulkan *v = user;
    lock(v);
    o->used_until = v->frame;
    o->next = v->garbage;
    v->garbage = o;
    unlock(v);
}

/* Takes in that the frames up to this number have run, as far as they have begun. */
static void complete_frames(vulkan *v, uint64_t number) {
    if (number > v->frame) number = v->frame;
    if (number > v->completed) v->completed = number;
}

static void poll(void *user) {
    vulkan *v = user;
    uint64_t value = 0;
    lock(v);
    if (v->host.timeline != VK_NULL_HANDLE &&
        v->host.get_counter_value(v->host.device, v->host.timeline, &value) == VK_SUCCESS)
        complete_frames(v, value);
    poll_uploads(v);
    take_built(v);
    for (object **at = &v->garbage; *at != NULL;) {
        object *o = *at;
        int is_built = o->is != A_PIPELINE || ((cml_pipeline *)(void *)o)->code == NULL;
        if (o->used_until > v->completed || v->uploads != NULL || !is_built) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        free_object(v, o);
    }
    unlock(v);
}

static int get_info(void *user, int could_be, cml_device_info *info) {
    const vulkan *v = user;
    if (could_be) return 0;
    *info = v->info;
    return 1;
}

static void destroy(void *user) {
    vulkan *v = user;
    cml_allocator allocator = v->host.allocator;
    close_threads(v);
    take_built(v);
    for (upload *next, *u = v->uploads; u != NULL; u = next) {
        next = u->next;
        CALL(v, WaitForFences, 1, &u->fence, VK_TRUE, UINT64_MAX);
        end_upload(v, u);
    }
    for (object *next, *o = v->garbage; o != NULL; o = next) {
        next = o->next;
        free_object(v, o);
    }
    for (cml_buffer *next, *b = v->staging; b != NULL; b = next) {
        next = (cml_buffer *)(void *)b->base.next;
        free_buffer(v, b);
    }
    while (v->blocks != NULL) free_block(v, v->blocks); /* that lack a room, for want of memory */
    if (v->pool != VK_NULL_HANDLE) CALL(v, DestroyCommandPool, v->pool, NULL);
    if (v->queries != VK_NULL_HANDLE) CALL(v, DestroyQueryPool, v->queries, NULL);
    destroy_guard(v);
    cml_deallocate(&allocator, v, sizeof *v);
}

/* ------------------------------------------------------------------ scopes and buffers */

static cml_scope *create_scope(void *user) { return take(user, sizeof(cml_scope)); }

static cml_status poll_scope(void *user, cml_scope *scope, char *text, size_t size) {
    vulkan *v = user;
    lock(v);
    poll_uploads(v);
    take_built(v);
    cml_status status = scope->status;
    if (status == CML_OK && scope->pending > 0) status = CML_PENDING;
    unlock(v);
    if (status > CML_PENDING && size > 0) snprintf(text, size, "%s", scope->text);
    return status;
}

static void release_scope(void *user, cml_scope *scope) {
    vulkan *v = user;
    lock(v);
    scope->is_released = 1;
    if (scope->pending == 0) give_back(v, scope, sizeof *scope);
    unlock(v);
}

static int is_direct(const vulkan *v, const cml_buffer *b) {
    return b->memory.mapped != NULL && (!v->host.is_staged || b->usage == CML_USAGE_READBACK);
}

static cml_buffer *create_buffer(void *user, cml_scope *scope, cml_usage usage, uint64_t bytes) {
    vulkan *v = user;
    lock(v);
    cml_buffer *b = add_buffer(v, scope, (int)usage, bytes);
    if (b != NULL && is_direct(v, b))
        memset(b->memory.mapped, 0, (size_t)bytes);
    else if (b != NULL)
        add_upload(v, b, 0, NULL, bytes);
    unlock(v);
    return b;
}

/* Returns 1 if the image has room for the tensor and no more, in a format of its numbers. */
static int is_image_of(const cml_vulkan_image *image, const cml_shape *shape) {
    static const VkFormat plain[] = {VK_FORMAT_R32_SFLOAT, VK_FORMAT_R32_SINT, VK_FORMAT_R32_UINT};
    static const VkFormat blocks[] = {VK_FORMAT_R32G32B32A32_SFLOAT, VK_FORMAT_R32G32B32A32_SINT,
                                      VK_FORMAT_R32G32B32A32_UINT};
    VkFormat format = shape->layout == CML_LAYOUT_PLAIN ? plain[shape->type]
                      : shape->layout == CML_LAYOUT_C4  ? blocks[shape->type]
                                                        : VK_FORMAT_R16G16B16A16_SFLOAT;
    uint64_t layers = 1;
    if (shape->rank < (shape->layout == CML_LAYOUT_PLAIN ? 2 : 4) || image->image == VK_NULL_HANDLE)
        return 0;
    for (uint32_t i = 0; i + 2 < shape->rank; i++) {
        int is_block = i == 1 && shape->layout != CML_LAYOUT_PLAIN;
        layers *= is_block ? (shape->extents[i] + 3) / 4 : shape->extents[i];
    }
    return image->format == format && image->width == shape->extents[shape->rank - 1] &&
           image->height == shape->extents[shape->rank - 2] && image->layers == layers;
}

static VkBufferImageCopy region_of(const cml_vulkan_image *image, uint64_t offset) {
    return (VkBufferImageCopy){.bufferOffset = offset,
                               .imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, image->layers},
                               .imageExtent = {image->width, image->height, 1}};
}

static cml_buffer *adopt_buffer(void *user, void *handle, const cml_shape *shape, uint64_t *bytes) {
    const vulkan *v = user;
    const cml_vulkan_source *given = handle;
    int is_buffer = given->buffer != VK_NULL_HANDLE;
    if (!is_buffer && !is_image_of(&given->image, shape)) return NULL;
    cml_buffer *b = take(v, sizeof *b);
    if (b == NULL) return NULL;
    b->handle = given->buffer;
    b->image = given->image;
    b->size = *bytes = is_buffer ? given->bytes : shape->bytes;
    b->is_adopted = 1;
    return b;
}

static void release_buffer(void *user, cml_buffer *buffer) {
    buffer->scope = NULL; /* another thread may free the buffer once it is released */
    release_object(user, &buffer->base);
}

static void *get_handle(void *user, cml_buffer *buffer) {
    (void)user;
    return &buffer->handle;
}

/* Returns a staging buffer that no frame uses; NULL without memory. */
static cml_buffer *find_staging(vulkan *v, uint64_t bytes) {
    cml_buffer *b = v->staging;
    while (b != NULL && (b->size < bytes || b->base.used_until > v->completed))
        b = (cml_buffer *)(void *)b->base.next;
    if (b == NULL) {
        b = add_buffer(v, NULL, STAGING, bytes);
        if (b == NULL) return NULL;
        b->base.next = (object *)(void *)v->staging;
        v->staging = b;
    }
    b->base.used_until = v->frame;
    return b;
}

static void write_in_frame(vulkan *v, VkCommandBuffer commands, cml_buffer *to, uint64_t offset,
                           const void *data, uint64_t bytes) {
    cml_buffer *staging = bytes > MOST_INLINE ? find_staging(v, bytes) : NULL;
    if (staging != NULL) {
        VkBufferCopy region = {0, offset, bytes};
        memcpy(staging->memory.mapped, data, (size_t)bytes);
        v->CmdCopyBuffer(commands, staging->handle, to->handle, 1, &region);
        return;
    }
    for (uint64_t done = 0; done < bytes; done += 65536) {
        uint64_t part = bytes - done < 65536 ? bytes - done : 65536;
        v->CmdUpdateBuffer(commands, to->handle, offset + done, part, (const uint8_t *)data + done);
    }
}

static void write_buffer(void *user, void *commands, cml_buffer *to, uint64_t offset,
                         const void *data, uint64_t bytes) {
    vulkan *v = user;
    lock(v);
    if (commands != NULL)
        write_in_frame(v, commands, to, offset, data, bytes);
    else if (is_direct(v, to))
        memcpy((uint8_t *)to->memory.mapped + offset, data, (size_t)bytes);
    else
        add_upload(v, to, offset, data, bytes);
    unlock(v);
}

/* ------------------------------------------------------------------ kernels */

static VkResult build_layouts(const vulkan *v, const cml_kernel *kernel, cml_pipeline *p) {
    VkDescriptorSetLayoutBinding bindings[CML_MOST_BINDINGS];
    for (uint32_t i = 0; i < kernel->tensors + 2; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){
            .binding = i,
            .descriptorType = i == 0   ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC
                              : i == 1 ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
                                       : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            .descriptorCount = 1,
            .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    VkDescriptorSetLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        .bindingCount = kernel->tensors + 2,
        .pBindings = bindings};
    VkPipelineLayoutCreateInfo pipeline = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                           .setLayoutCount = 1,
                                           .pSetLayouts = &p->layout};
    VkResult result = CALL(v, CreateDescriptorSetLayout, &layout, NULL, &p->layout);
    if (result != VK_SUCCESS) return result;
    return CALL(v, CreatePipelineLayout, &pipeline, NULL, &p->pipeline_layout);
}

/* States an unknown source language: validation layers before 2023 refuse that of Slang. */
static void hide_language(uint32_t *code, size_t words) {
    enum { HEADER = 5, OP_SOURCE = 3 };
    for (size_t at = HEADER; at < words && code[at] >> 16 > 0; at += code[at] >> 16)
        if ((code[at] & 0xFFFF) == OP_SOURCE && at + 1 < words) code[at + 1] = 0;
}

static cml_pipeline *create_pipeline(void *user, cml_scope *scope, const cml_kernel *kernel) {
    vulkan *v = user;
    cml_pipeline *p = take(v, sizeof *p);
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (p != NULL) {
        p->base.is = A_PIPELINE;
        p->tensors = kernel->tensors;
        p->scope = scope;
        p->bytes = kernel->bytes;
        snprintf(p->label, sizeof p->label, "kernel '%.*s'",
                 (int)(kernel->label.length < 80 ? kernel->label.length : 80), kernel->label.data);
        result = build_layouts(v, kernel, p);
    }
    uint32_t *code = result == VK_SUCCESS ? take(v, kernel->bytes) : NULL;
    if (code == NULL) {
        refuse(scope, result == VK_SUCCESS ? VK_ERROR_OUT_OF_HOST_MEMORY : result, "no pipeline");
        if (p != NULL) free_object(v, &p->base);
        return NULL;
    }
    memcpy(code, kernel->code, kernel->bytes);
    hide_language(code, kernel->bytes / sizeof *code);
    p->code = code;
    lock(v);
    scope->pending++;
    unlock(v);
    enqueue(v, p);
    return p;
}

static void release_pipeline(void *user, cml_pipeline *pipeline) {
    release_object(user, &pipeline->base);
}

static VkResult build_bindings(const vulkan *v, const cml_pipeline *pipeline,
                               const cml_range *ranges, cml_bindings *to) {
    VkDescriptorPoolSize sizes[] = {
        {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC, 1},
        {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, 1},
        {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, pipeline->tensors},
    };
    VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = 1,
                                       .poolSizeCount = 3,
                                       .pPoolSizes = sizes};
    VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                        .descriptorSetCount = 1,
                                        .pSetLayouts = &pipeline->layout};
    VkWriteDescriptorSet writes[CML_MOST_BINDINGS];
    VkDescriptorBufferInfo buffers[CML_MOST_BINDINGS];
    VkResult result = CALL(v, CreateDescriptorPool, &pool, NULL, &to->pool);
    if (result != VK_SUCCESS) return result;
    info.descriptorPool = to->pool;
    result = CALL(v, AllocateDescriptorSets, &info, &to->set);
    if (result != VK_SUCCESS) return result;
    for (uint32_t i = 0; i < pipeline->tensors + 2; i++) {
        buffers[i] =
            (VkDescriptorBufferInfo){ranges[i].buffer->handle, ranges[i].offset, ranges[i].bytes};
        writes[i] = (VkWriteDescriptorSet){
            .sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
            .dstSet = to->set,
            .dstBinding = i,
            .descriptorCount = 1,
            .descriptorType = i < 2 ? sizes[i].type : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            .pBufferInfo = &buffers[i]};
    }
    CALL(v, UpdateDescriptorSets, pipeline->tensors + 2, writes, 0, NULL);
    return VK_SUCCESS;
}

static cml_bindings *create_bindings(void *user, cml_scope *scope, cml_pipeline *pipeline,
                                     const cml_range *ranges, uint32_t count, uint32_t writes,
                                     int is_tried) {
    vulkan *v = user;
    cml_bindings *b = take(v, sizeof *b);
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    (void)count;
    (void)writes;
    (void)is_tried; /* files that are not trusted are refused */
    if (b != NULL) {
        b->base.is = BINDINGS;
        result = build_bindings(v, pipeline, ranges, b);
        if (result == VK_SUCCESS) return b;
        free_object(v, &b->base);
    }
    refuse(scope, result, "no descriptor set");
    return NULL;
}

static void release_bindings(void *user, cml_bindings *bindings) {
    release_object(user, &bindings->base);
}

/* ------------------------------------------------------------------ commands */

/* Timestamps are taken when all commands before have ended. */
static void write_timestamp(const vulkan *v, VkCommandBuffer commands, int query) {
    if (query < 0) return;
    v->CmdResetQueryPool(commands, v->queries, (uint32_t)query, 1);
    v->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, v->queries,
                         (uint32_t)query);
}

static void begin_pass(void *user, void *commands, int begin_query, int end_query) {
    write_timestamp(user, commands, begin_query);
    ((vulkan *)user)->end_query = end_query;
}

static void end_pass(void *user, void *commands) {
    write_timestamp(user, commands, ((const vulkan *)user)->end_query);
}

static void dispatch(void *user, void *commands, cml_pipeline *pipeline, cml_bindings *bindings,
                     uint32_t offset, uint32_t x, uint32_t y) {
    const vulkan *v = user;
    v->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline);
    v->CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline_layout, 0,
                             1, &bindings->set, 1, &offset);
    v->CmdDispatch(commands, x, y, 1);
}

static void barrier(void *user, void *commands) { order(user, commands); }

static void copy_buffer(void *user, void *commands, const cml_range *from, cml_buffer *to,
                        uint64_t offset) {
    static const VkMemoryBarrier for_host = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                             .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                             .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    const vulkan *v = user;
    const cml_buffer *source = from->buffer;
    VkBufferCopy region = {from->offset, offset, from->bytes};
    VkBufferImageCopy texels = region_of(&source->image, offset);
    if (source->handle != VK_NULL_HANDLE)
        v->CmdCopyBuffer(commands, source->handle, to->handle, 1, &region);
    else
        v->CmdCopyImageToBuffer(commands, source->image.image, source->image.layout, to->handle, 1,
                                &texels);
    if (to->usage != CML_USAGE_READBACK) return;
    to->copied_in = v->frame;
    v->CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0,
                          1, &for_host, 0, NULL, 0, NULL);
}

static void resolve_queries(void *user, void *commands, uint32_t first, uint32_t count,
                            cml_buffer *to, uint64_t offset) {
    const vulkan *v = user;
    v->CmdCopyQueryPoolResults(commands, v->queries, first, count, to->handle, offset, 8,
                               VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
}

/* ------------------------------------------------------------------ readbacks */

static void map_buffer(void *user, cml_buffer *buffer) {
    (void)user;
    (void)buffer; /* it stays mapped */
}

static void unmap_buffer(void *user, cml_buffer *buffer) { map_buffer(user, buffer); }

static cml_status poll_mapped(void *user, cml_buffer *buffer, const void **data) {
    const vulkan *v = user;
    if (buffer->copied_in > v->completed) return CML_PENDING;
    *data = buffer->memory.mapped;
    return CML_OK;
}

/* ------------------------------------------------------------------ the table */

static const cml_backend functions = {CML_BACKEND_FUNCTIONS, .barrier = barrier};

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Fills in the device's facts; returns 0 if Vulkan is older than 1.1, or the queue cannot compute.
 */
static int read_info(vulkan *v) {
    VkPhysicalDeviceSubgroupProperties lanes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
    VkPhysicalDeviceMaintenance3Properties sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, .pNext = &lanes};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                       .pNext = &sizes};
    VkQueueFamilyProperties families[32];
    uint32_t count = 0;
#define LOAD(name)                                                                                 \
    PFN_vk##name name =                                                                            \
        (PFN_vk##name)(void (*)(void))v->host.get_instance_proc_addr(v->host.instance, "vk" #name)
    LOAD(GetPhysicalDeviceProperties2);
    LOAD(GetPhysicalDeviceQueueFamilyProperties);
    LOAD(GetPhysicalDeviceMemoryProperties);
    LOAD(GetDeviceProcAddr);
#undef LOAD
    if (!GetPhysicalDeviceProperties2 || !GetPhysicalDeviceQueueFamilyProperties ||
        !GetPhysicalDeviceMemoryProperties || !GetDeviceProcAddr)
        return 0;
    GetPhysicalDeviceMemoryProperties(v->host.physical_device, &v->memory);
    GetPhysicalDeviceQueueFamilyProperties(v->host.physical_device, &count, NULL);
    count = min_u32(count, sizeof families / sizeof *families);
    GetPhysicalDeviceQueueFamilyProperties(v->host.physical_device, &count, families);
    GetPhysicalDeviceProperties2(v->host.physical_device, &all);
    const VkPhysicalDeviceProperties *has = &all.properties;
    if (has->apiVersion < VK_API_VERSION_1_1 || v->host.queue_family >= count ||
        !(families[v->host.queue_family].queueFlags & VK_QUEUE_COMPUTE_BIT))
        return 0;
    const VkPhysicalDeviceLimits *limits = &has->limits;
    v->info = (cml_device_info){
        .buffer_bytes = sizes.maxMemoryAllocationSize,
        .binding_bytes = limits->maxStorageBufferRange,
        .storage_buffers = min_u32(limits->maxPerStageDescriptorStorageBuffers, 64),
        .storage_alignment = (uint32_t)limits->minStorageBufferOffsetAlignment,
        .uniform_alignment = (uint32_t)limits->minUniformBufferOffsetAlignment,
        .threads = limits->maxComputeWorkGroupInvocations,
        .shared_bytes = limits->maxComputeSharedMemorySize,
        .groups_per_dimension = min_u32(MOST_GROUPS, min_u32(limits->maxComputeWorkGroupCount[0],
                                                             limits->maxComputeWorkGroupCount[1])),
        .has_half = v->host.has_half,
        .takes_spirv = 1,
        .is_software = has->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU,
    };
    VkSubgroupFeatureFlags needed = VK_SUBGROUP_FEATURE_BASIC_BIT |
                                    VK_SUBGROUP_FEATURE_SHUFFLE_BIT |
                                    VK_SUBGROUP_FEATURE_ARITHMETIC_BIT;
    if (lanes.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT &&
        (lanes.supportedOperations & needed) == needed)
        v->info.lanes = lanes.subgroupSize;
    v->info.times_pass_end = v->info.is_software;
    if (families[v->host.queue_family].timestampValidBits > 0)
        v->info.tick_ms = 1e-6 * (double)limits->timestampPeriod;
    snprintf(v->info.name, sizeof v->info.name, "%s", has->deviceName);
    int is_there = 1;
#define LOAD(name)                                                                                 \
    v->name = (PFN_vk##name)(void (*)(void))GetDeviceProcAddr(v->host.device, "vk" #name);         \
    if (v->name == NULL) is_there = 0;
    FUNCTIONS(LOAD)
#undef LOAD
    return is_there;
}

cml_status cml_vulkan_fill(const cml_vulkan *host, cml_backend *backend, cml_error *error) {
    VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                     .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                     .queryCount = CML_QUERIES};
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
                                    .queueFamilyIndex = host->queue_family};
    if (host->instance == NULL || host->physical_device == NULL || host->device == NULL ||
        host->queue == NULL || host->get_instance_proc_addr == NULL)
        return cml_fail(error, CML_ERROR_INPUT,
                        "instance, physical_device, device, queue and get_instance_proc_addr of "
                        "cml_vulkan are required");
    if (host->timeline != VK_NULL_HANDLE && host->get_counter_value == NULL)
        return cml_fail(error, CML_ERROR_INPUT, "a timeline needs get_counter_value of cml_vulkan");
    if ((host->lock == NULL) != (host->unlock == NULL) ||
        (host->memory.allocate == NULL) != (host->memory.release == NULL) ||
        (host->allocator.allocate == NULL) != (host->allocator.release == NULL))
        return cml_fail(error, CML_ERROR_INPUT,
                        "lock and unlock of cml_vulkan, and both functions of memory and of "
                        "allocator, are given together or not at all");
    vulkan described = {.host = *host};
    vulkan *v = take(&described, sizeof *v);
    if (v == NULL) return cml_fail(error, CML_ERROR_MEMORY, "no memory for a backend");
    *v = described;
    create_guard(v);
    if (!read_info(v)) {
        destroy(v);
        return cml_fail(
            error, CML_ERROR_INPUT,
            "the device has no Vulkan 1.1, or no such queue family for compute: create it "
            "with VkApplicationInfo.apiVersion of 1.1 or newer");
    }
    VkResult result = v->CreateCommandPool(host->device, &pool, NULL, &v->pool);
    if (result == VK_SUCCESS && v->info.tick_ms > 0)
        result = v->CreateQueryPool(host->device, &queries, NULL, &v->queries);
    if (result != VK_SUCCESS) {
        destroy(v);
        return cml_fail(error, CML_ERROR_MEMORY, "the device has no memory for a backend");
    }
    *backend = functions;
    backend->user = v;
    return CML_OK;
}

cml_status cml_vulkan_copy_to_image(const cml_backend *backend, VkCommandBuffer commands,
                                    const cml_tensor *from, const cml_vulkan_image *to,
                                    cml_error *error) {
    const vulkan *v = backend->user;
    VkBufferImageCopy texels = region_of(to, from->offset);
    if (!is_image_of(to, &from->shape))
        return cml_fail(error, CML_ERROR_INPUT,
                        "the image is of another size or format than the output: see "
                        "cml_vulkan_image in cml_vulkan.h");
    order(v, commands);
    v->CmdCopyBufferToImage(commands, *(VkBuffer *)from->buffer, to->image, to->layout, 1, &texels);
    return CML_OK;
}

void cml_vulkan_begin(const cml_backend *backend, uint64_t number) {
    vulkan *v = backend->user;
    lock(v);
    if (number == 0) number = 1; /* 0: no frame has begun */
    if (number > v->frame) v->frame = number;
    unlock(v);
}

void cml_vulkan_completed(const cml_backend *backend, uint64_t number) {
    vulkan *v = backend->user;
    lock(v);
    complete_frames(v, number);
    unlock(v);
}
