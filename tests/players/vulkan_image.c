/* Inputs from images of the host, and outputs into them: `vulkan_image NET.cml`, of a network with
 * one input and one output in the plain layout. */
#include "vulkan_gpu.h"

#define WANT(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d: wanted " #what "\n", __LINE__);                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static gpu g;
static cml_backend backend;
static cml_scheduler *s;
static cml_net *net;
static cml_error error;

typedef struct picture { /* an image, and a mapped buffer to copy from and to */
    cml_vulkan_image image;
    VkBuffer buffer;
    cml_vulkan_memory memory, mapped;
    size_t bytes;
} picture;

static void *frame_begun(void) { return gpu_begin(&g, &backend); }

static void frame_ended(void *commands) {
    gpu_submit(&g, commands);
    cml_end_frame(s);
}

static void make(picture *p, const cml_shape *shape) {
    static const VkFormat formats[] = {VK_FORMAT_R32_SFLOAT, VK_FORMAT_R32_SINT,
                                       VK_FORMAT_R32_UINT};
    VkBufferCreateInfo buffer = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                 .size = shape->bytes,
                                 .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                          VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryRequirements needs;
    memset(p, 0, sizeof *p);
    p->bytes = (size_t)shape->bytes;
    p->image.format = formats[shape->type];
    p->image.width = shape->extents[shape->rank - 1];
    p->image.height = shape->extents[shape->rank - 2];
    p->image.layers = (uint32_t)(shape->elements / p->image.width / p->image.height);
    VkImageCreateInfo image = {.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
                               .imageType = VK_IMAGE_TYPE_2D,
                               .format = p->image.format,
                               .extent = {p->image.width, p->image.height, 1},
                               .mipLevels = 1,
                               .arrayLayers = p->image.layers,
                               .samples = VK_SAMPLE_COUNT_1_BIT,
                               .usage = VK_IMAGE_USAGE_TRANSFER_SRC_BIT |
                                        VK_IMAGE_USAGE_TRANSFER_DST_BIT |
                                        VK_IMAGE_USAGE_SAMPLED_BIT};
    WANT(vkCreateBuffer(g.device, &buffer, NULL, &p->buffer) == VK_SUCCESS);
    vkGetBufferMemoryRequirements(g.device, p->buffer, &needs);
    WANT(gpu_allocate(&g, &needs,
                      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 0,
                      &p->mapped));
    vkBindBufferMemory(g.device, p->buffer, p->mapped.memory, p->mapped.offset);
    WANT(vkCreateImage(g.device, &image, NULL, &p->image.image) == VK_SUCCESS);
    vkGetImageMemoryRequirements(g.device, p->image.image, &needs);
    WANT(gpu_allocate(&g, &needs, 0, 0, &p->memory));
    vkBindImageMemory(g.device, p->image.image, p->memory.memory, p->memory.offset);
}

static void drop(const picture *p) {
    vkDestroyImage(g.device, p->image.image, NULL);
    vkDestroyBuffer(g.device, p->buffer, NULL);
    gpu_release(&g, &p->memory);
    gpu_release(&g, &p->mapped);
}

/* Prepares the image to be copied to, then what was written to be copied from. */
static void order_image(VkCommandBuffer commands, const picture *p, int is_new) {
    VkImageMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
        .srcAccessMask = is_new ? 0 : VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = is_new ? VK_ACCESS_TRANSFER_WRITE_BIT : VK_ACCESS_TRANSFER_READ_BIT,
        .oldLayout = is_new ? VK_IMAGE_LAYOUT_UNDEFINED : VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL,
        .newLayout =
            is_new ? VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL : VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
        .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
        .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
        .image = p->image.image,
        .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, p->image.layers}};
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
                         0, 0, NULL, 0, NULL, 1, &barrier);
}

static VkBufferImageCopy whole(const picture *p) {
    return (VkBufferImageCopy){
        .imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, p->image.layers},
        .imageExtent = {p->image.width, p->image.height, 1}};
}

static void finish(cml_job job) {
    cml_state state;
    do {
        void *commands = frame_begun();
        cml_encode(s, commands, 0.3);
        frame_ended(commands);
        state = cml_get_job_info(s, job).state;
    } while (state == CML_STATE_QUEUED || state == CML_STATE_RUNNING);
    WANT(state == CML_STATE_DONE);
}

static void read_back(cml_job job, const char *name, void *data, size_t bytes) {
    while (cml_read(s, job, name, data, bytes, &error) == CML_PENDING) {
        void *commands = frame_begun();
        cml_encode(s, commands, 0.0);
        frame_ended(commands);
    }
}

static void fill(const picture *p, const void *data) { /* the engine draws its image */
    VkCommandBuffer commands = frame_begun();
    VkBufferImageCopy region = whole(p);
    memcpy(p->mapped.mapped, data, p->bytes);
    order_image(commands, p, 1);
    vkCmdCopyBufferToImage(commands, p->buffer, p->image.image,
                           VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, 1, &region);
    order_image(commands, p, 0);
    frame_ended(commands);
}

/* The output in the image is that of the job, to the bit. */
static void check_output(cml_job job, const char *name, const picture *to, const void *expected) {
    VkBufferImageCopy region = whole(to);
    cml_vulkan_image wrong = to->image;
    cml_tensor tensor;
    WANT(cml_get_tensor(s, job, name, &tensor) == CML_OK);
    VkCommandBuffer commands = frame_begun();
    order_image(commands, to, 1);
    wrong.format = VK_FORMAT_R8G8B8A8_UNORM;
    WANT(cml_vulkan_copy_to_image(&backend, commands, &tensor, &wrong, &error) == CML_ERROR_INPUT);
    WANT(cml_vulkan_copy_to_image(&backend, commands, &tensor, &to->image, &error) == CML_OK);
    order_image(commands, to, 0);
    vkCmdCopyImageToBuffer(commands, to->image.image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
                           to->buffer, 1, &region);
    frame_ended(commands);
    gpu_wait_idle(&g, &backend);
    WANT(memcmp(to->mapped.mapped, expected, to->bytes) == 0);
}

int main(int argc, char **argv) {
    picture in, out;
    cml_shape from, to;
    cml_job plain, drawn;
    char input_name[64], output_name[64];
    size_t size = 0;
    void *bytes = read_whole(argv[argc - 1], &size);
    WANT(bytes != NULL && gpu_open(&g, bytes, size));
    WANT(gpu_fill(&g, &backend, &error) == CML_OK);
    WANT(load_network(&backend, bytes, size, &s, &net));
    WANT(cml_get_input_shape(net, 0, &from) == CML_OK);
    WANT(cml_get_output_shape(net, 0, &to) == CML_OK);
    copy_text(input_name, sizeof input_name, from.name);
    copy_text(output_name, sizeof output_name, to.name);
    float *data = malloc((size_t)from.bytes);
    void *expected = malloc((size_t)to.bytes), *found = malloc((size_t)to.bytes);
    for (size_t i = 0; i < from.elements; i++) data[i] = (float)(i * 7 % 64) / 64.0f;
    make(&in, &from);
    make(&out, &to);
    in.image.layout = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL;
    out.image.layout = VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL;
    fill(&in, data);

    cml_input input = {.name = input_name, .data = data, .bytes = in.bytes};
    WANT(cml_submit(s, net, &input, 1, NULL, &plain, &error) == CML_OK);
    cml_vulkan_source source = {.image = in.image};
    input = (cml_input){.name = input_name, .buffer = &source};
    WANT(cml_submit(s, net, &input, 1, NULL, &drawn, &error) == CML_OK);
    finish(plain);
    finish(drawn);
    read_back(plain, output_name, expected, out.bytes);
    read_back(drawn, output_name, found, out.bytes);
    WANT(memcmp(expected, found, out.bytes) == 0);
    check_output(drawn, output_name, &out, expected);

    /* images that do not have the input */
    cml_job none;
    input.offset = 4;
    WANT(cml_submit(s, net, &input, 1, NULL, &none, &error) == CML_ERROR_INPUT);
    input.offset = 0;
    source.image.layers++;
    WANT(cml_submit(s, net, &input, 1, NULL, &none, &error) == CML_ERROR_INPUT);
    WANT(strstr(error.text, "is nothing that it can be copied from") != NULL);
    source = (cml_vulkan_source){.buffer = VK_NULL_HANDLE};
    WANT(cml_submit(s, net, &input, 1, NULL, &none, &error) == CML_ERROR_INPUT);

    gpu_wait_idle(&g, &backend);
    cml_unload(s, net);
    cml_destroy(s);
    drop(&in);
    drop(&out);
    gpu_close(&g);
    free(data);
    free(expected);
    free(found);
    free(bytes);
    printf("the same bits\n");
    return g.errors > 0;
}
