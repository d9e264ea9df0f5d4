/* A small engine: it draws a scene, enlarges it by a network that runs inside its frames, on its
 * own device, and shows the result, without a byte of it on the host.
 *
 *     scene NET.cml PICTURE.ppm [FRAMES] [BUDGET_MS]
 *
 * The network takes a picture [1, 3, H, W] and gives one. Every frame draws the scene, also into
 * the network's input, encodes the network's slices, and draws the screen: the scene on its left,
 * the network's newest picture on its right. All of it is one command buffer. */
#include "gpu.h"

enum { WIDTH = 640, HEIGHT = 384 };

#define WHOLE_SCREEN /* a triangle that covers it */                                               \
    "@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {\n"             \
    "    return vec4f(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);\n"             \
    "}\n"

static const char *const scene_text = WHOLE_SCREEN
    "@group(0) @binding(0) var<uniform> at: vec4f;\n" /* seconds, width, height */
    "@group(0) @binding(1) var<storage, read_write> plain: array<f32>;\n"
    "fn shade(q: vec2f) -> vec3f {\n"
    "    let sky = mix(vec3f(0.9, 0.6, 0.4), vec3f(0.2, 0.4, 0.8), q.y + 0.5);\n"
    "    let ball = q - vec2f(0.35 * sin(at.x), 0.15 * abs(cos(3.0 * at.x)));\n"
    "    let r = length(ball) / 0.2;\n"
    "    if (r < 1.0) {\n"
    "        let n = vec3f(ball / 0.2, sqrt(1.0 - r * r));\n"
    "        let light = max(dot(n, normalize(vec3f(-0.5, 0.7, 0.6))), 0.0);\n"
    "        return vec3f(0.9, 0.3, 0.2) * (0.15 + light);\n"
    "    }\n"
    "    if (q.y > -0.18) { return sky; }\n"
    "    let ground = vec2f(q.x / (-0.1 - q.y) + at.x, 1.0 / (-0.1 - q.y));\n"
    "    let tile = (i32(floor(2.0 * ground.x)) + i32(floor(ground.y))) & 1;\n"
    "    return vec3f(0.25 + 0.4 * f32(tile));\n"
    "}\n"
    "@fragment fn draw(@builtin(position) p: vec4f) -> @location(0) vec4f {\n"
    "    let colour = shade((p.xy / at.yz - 0.5) * vec2f(at.y / at.z, -1.0));\n"
    "    let i = u32(p.y) * u32(at.y) + u32(p.x);\n" /* as the network wants it */
    "    for (var c = 0u; c < 3u; c++) { plain[c * u32(at.y * at.z) + i] = colour[c]; }\n"
    "    return vec4f(colour, 1.0);\n"
    "}\n";

static const char *const show_text = WHOLE_SCREEN /* the tensor is bound as it lies */
    "@group(0) @binding(0) var scene: texture_2d<f32>;\n"
    "@group(0) @binding(1) var<storage, read> picture: array<f32>;\n"
    "@group(0) @binding(2) var<uniform> at: vec4f;\n" /* the scene's, and the network's scale */
    "@fragment fn draw(@builtin(position) p: vec4f) -> @location(0) vec4f {\n"
    "    let q = p.xy / vec2f(640.0, 384.0);\n"
    "    let size_of_scene = vec2f(textureDimensions(scene));\n"
    "    if (q.x < 0.5) { return textureLoad(scene, vec2u(q * size_of_scene), 0); }\n"
    "    let t = vec2u(q * at.yz * at.w);\n"
    "    let size = vec2u(at.yz * at.w);\n"
    "    let i = t.y * size.x + t.x;\n"
    "    let plane = size.x * size.y;\n"
    "    return vec4f(picture[i], picture[i + plane], picture[i + 2u * plane], 1.0);\n"
    "}\n";

typedef struct engine {
    gpu g;
    uint32_t width, height, scale; /* of the scene, as of the network's input; of its output */
    WGPUTexture scene, screen;
    WGPUTextureView scene_view, screen_view;
    WGPUBuffer moment;  /* the uniform */
    WGPUBuffer packed;  /* the scene as the network wants it */
    WGPUBuffer picture; /* the network's newest output */
    WGPUBuffer home;    /* the screen on the host */
    WGPURenderPipeline draw_scene, draw_screen;
    WGPUBindGroup scene_group, screen_group;
} engine;

/* ------------------------------------------------------------------ objects of the engine */

static WGPUStringView text(const char *data) { return (WGPUStringView){data, strlen(data)}; }

static WGPUShaderModule create_shader(const engine *e, const char *code) {
    WGPUShaderSourceWGSL source = {.chain.sType = WGPUSType_ShaderSourceWGSL, .code = text(code)};
    WGPUShaderModuleDescriptor descriptor = {.nextInChain = &source.chain};
    return wgpuDeviceCreateShaderModule(e->g.device, &descriptor);
}

static WGPURenderPipeline create_drawing(const engine *e, const char *code) {
    WGPUShaderModule module = create_shader(e, code);
    WGPUColorTargetState target = {.format = WGPUTextureFormat_RGBA8Unorm,
                                   .writeMask = WGPUColorWriteMask_All};
    WGPUFragmentState fragment = {
        .module = module, .entryPoint = text("draw"), .targetCount = 1, .targets = &target};
    WGPURenderPipelineDescriptor descriptor = {
        .vertex = {.module = module, .entryPoint = text("corner")},
        .primitive.topology = WGPUPrimitiveTopology_TriangleList,
        .multisample = {.count = 1, .mask = 0xFFFFFFFF},
        .fragment = &fragment};
    WGPURenderPipeline pipeline = wgpuDeviceCreateRenderPipeline(e->g.device, &descriptor);
    wgpuShaderModuleRelease(module);
    return pipeline;
}

static WGPUBuffer create_buffer(const engine *e, uint64_t bytes, WGPUBufferUsage usage) {
    WGPUBufferDescriptor descriptor = {.size = bytes, .usage = usage};
    return wgpuDeviceCreateBuffer(e->g.device, &descriptor);
}

static WGPUTexture create_texture(const engine *e, uint32_t width, uint32_t height) {
    WGPUTextureDescriptor descriptor = {.usage = WGPUTextureUsage_RenderAttachment |
                                                 WGPUTextureUsage_TextureBinding |
                                                 WGPUTextureUsage_CopySrc,
                                        .dimension = WGPUTextureDimension_2D,
                                        .size = {width, height, 1},
                                        .format = WGPUTextureFormat_RGBA8Unorm,
                                        .mipLevelCount = 1,
                                        .sampleCount = 1};
    return wgpuDeviceCreateTexture(e->g.device, &descriptor);
}

static WGPUBindGroup create_group(const engine *e, WGPUBindGroupLayout layout, size_t count,
                                  WGPUBindGroupEntry const *entries) {
    WGPUBindGroupDescriptor descriptor = {
        .layout = layout, .entryCount = count, .entries = entries};
    WGPUBindGroup group = wgpuDeviceCreateBindGroup(e->g.device, &descriptor);
    wgpuBindGroupLayoutRelease(layout);
    return group;
}

static void create_engine(engine *e, const cml_shape *in, const cml_shape *out) {
    WGPUBufferUsage uniform = WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst;
    WGPUBufferUsage storage =
        WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
    e->width = in->extents[3];
    e->height = in->extents[2];
    e->scale = out->extents[3] / e->width;
    e->scene = create_texture(e, e->width, e->height);
    e->screen = create_texture(e, WIDTH, HEIGHT);
    e->scene_view = wgpuTextureCreateView(e->scene, NULL);
    e->screen_view = wgpuTextureCreateView(e->screen, NULL);
    e->moment = create_buffer(e, 16, uniform);
    e->packed = create_buffer(e, in->bytes, storage);
    e->picture = create_buffer(e, out->bytes, storage);
    e->home =
        create_buffer(e, 4 * WIDTH * HEIGHT, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
    e->draw_scene = create_drawing(e, scene_text);
    e->draw_screen = create_drawing(e, show_text);
    WGPUBindGroupEntry of_scene[] = {{.binding = 0, .buffer = e->moment, .size = 16},
                                     {.binding = 1, .buffer = e->packed, .size = in->bytes}};
    WGPUBindGroupEntry of_screen[] = {{.binding = 0, .textureView = e->scene_view},
                                      {.binding = 1, .buffer = e->picture, .size = out->bytes},
                                      {.binding = 2, .buffer = e->moment, .size = 16}};
    e->scene_group =
        create_group(e, wgpuRenderPipelineGetBindGroupLayout(e->draw_scene, 0), 2, of_scene);
    e->screen_group =
        create_group(e, wgpuRenderPipelineGetBindGroupLayout(e->draw_screen, 0), 3, of_screen);
}

static void destroy_engine(engine *e) {
    WGPUBuffer buffers[] = {e->moment, e->packed, e->picture, e->home};
    wgpuBindGroupRelease(e->scene_group);
    wgpuBindGroupRelease(e->screen_group);
    wgpuRenderPipelineRelease(e->draw_scene);
    wgpuRenderPipelineRelease(e->draw_screen);
    wgpuTextureViewRelease(e->scene_view);
    wgpuTextureViewRelease(e->screen_view);
    wgpuTextureRelease(e->scene);
    wgpuTextureRelease(e->screen);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) wgpuBufferRelease(buffers[i]);
}

/* ------------------------------------------------------------------ passes of a frame */

static void encode_drawing(WGPUCommandEncoder encoder, WGPUTextureView into,
                           WGPURenderPipeline pipeline, WGPUBindGroup group) {
    WGPURenderPassColorAttachment target = {.view = into,
                                            .depthSlice = WGPU_DEPTH_SLICE_UNDEFINED,
                                            .loadOp = WGPULoadOp_Clear,
                                            .storeOp = WGPUStoreOp_Store};
    WGPURenderPassDescriptor descriptor = {.colorAttachmentCount = 1, .colorAttachments = &target};
    WGPURenderPassEncoder pass = wgpuCommandEncoderBeginRenderPass(encoder, &descriptor);
    wgpuRenderPassEncoderSetPipeline(pass, pipeline);
    wgpuRenderPassEncoderSetBindGroup(pass, 0, group, 0, NULL);
    wgpuRenderPassEncoderDraw(pass, 3, 1, 0, 0);
    wgpuRenderPassEncoderEnd(pass);
    wgpuRenderPassEncoderRelease(pass);
}

static void encode_scene(const engine *e, WGPUCommandEncoder encoder, long frame) {
    float moment[4] = {(float)frame / 60, (float)e->width, (float)e->height, (float)e->scale};
    wgpuQueueWriteBuffer(e->g.queue, e->moment, 0, moment, sizeof moment);
    encode_drawing(encoder, e->scene_view, e->draw_scene, e->scene_group);
}

static void encode_screen_copy(const engine *e, WGPUCommandEncoder encoder) {
    WGPUTexelCopyTextureInfo from = {.texture = e->screen};
    WGPUTexelCopyBufferInfo to = {.layout = {.bytesPerRow = 4 * WIDTH, .rowsPerImage = HEIGHT},
                                  .buffer = e->home};
    WGPUExtent3D size = {WIDTH, HEIGHT, 1};
    wgpuCommandEncoderCopyTextureToBuffer(encoder, &from, &to, &size);
}

/* ------------------------------------------------------------------ what is printed and written */

static void on_mapped(WGPUMapAsyncStatus status, WGPUStringView message, void *done, void *unused) {
    (void)message;
    (void)unused;
    *(int *)done = status == WGPUMapAsyncStatus_Success ? 1 : -1;
}

static int write_picture(engine *e, const char *path) {
    FILE *out = fopen(path, "wb");
    int done = 0;
    WGPUBufferMapCallbackInfo callback = {
        .mode = WGPUCallbackMode_AllowProcessEvents, .callback = on_mapped, .userdata1 = &done};
    if (out == NULL) return 0;
    wgpuBufferMapAsync(e->home, WGPUMapMode_Read, 0, 4 * WIDTH * HEIGHT, callback);
    while (done == 0) gpu_wait(&e->g);
    if (done > 0) {
        const uint8_t *texels = wgpuBufferGetConstMappedRange(e->home, 0, 4 * WIDTH * HEIGHT);
        fprintf(out, "P6\n%d %d\n255\n", WIDTH, HEIGHT);
        for (size_t i = 0; i < (size_t)WIDTH * HEIGHT; i++) fwrite(texels + 4 * i, 1, 3, out);
        wgpuBufferUnmap(e->home);
    }
    fclose(out);
    return done > 0;
}

/* ------------------------------------------------------------------ the frames */

static int play(engine *e, cml_scheduler *scheduler, cml_net *net, const cml_shape *in,
                const cml_shape *out, long frames, double budget_ms) {
    char input_name[64], output_name[64];
    cml_input input = {.name = input_name, .buffer = e->packed};
    cml_error error;
    cml_job job = 0;
    long pictures = 0;
    copy_text(input_name, sizeof input_name, in->name);
    copy_text(output_name, sizeof output_name, out->name);
    for (long frame = 0; frame < frames || pictures == 0; frame++) {
        WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(e->g.device, NULL);
        cml_job_info info = cml_get_job_info(scheduler, job);
        if (info.state == CML_STATE_FAILED || frame > 100 * frames) {
            fprintf(stderr, "the network's job failed: %s\n", info.error);
            return 1;
        }
        encode_scene(e, encoder, frame);
        if (info.state != CML_STATE_QUEUED && info.state != CML_STATE_RUNNING) {
            /* this frame is the network's next picture */
            cml_release(scheduler, job);
            if (cml_submit(scheduler, net, &input, 1, NULL, &job, &error) != CML_OK) {
                print_error(&error);
                return 1;
            }
        }
        const cml_report *report = cml_encode(scheduler, encoder, budget_ms);
        cml_tensor tensor;
        if (report->finished > 0 &&
            cml_get_tensor(scheduler, job, output_name, &tensor) == CML_OK) {
            wgpuCommandEncoderCopyBufferToBuffer(encoder, tensor.buffer, tensor.offset, e->picture,
                                                 0, tensor.bytes);
            pictures++;
        }
        encode_drawing(encoder, e->screen_view, e->draw_screen, e->screen_group);
        if (frame + 1 >= frames) encode_screen_copy(e, encoder);
        gpu_submit(&e->g, encoder);
        gpu_wait(&e->g); /* as one waits for the display */
        cml_end_frame(scheduler);
    }
    printf("%ld pictures in %ld frames\n", pictures, frames);
    return 0;
}

static int is_picture(const cml_shape *shape) { return shape->rank == 4 && shape->extents[1] == 3; }

int main(int argc, char **argv) {
    long frames = argc > 3 ? atol(argv[3]) : 300;
    double budget_ms = argc > 4 ? atof(argv[4]) : 4.0;
    size_t size = 0;
    void *bytes = argc > 2 ? read_whole(argv[1], &size) : NULL;
    engine e;
    cml_scheduler *scheduler;
    cml_net *net;
    cml_backend backend;
    cml_error error;
    cml_shape in, out;
    if (argc < 3 || frames < 1) {
        fprintf(stderr, "usage: scene NET.cml PICTURE.ppm [FRAMES] [BUDGET_MS]\n");
        return 2;
    }
    if (bytes == NULL) return 2;
    if (!gpu_open(&e.g, bytes, size)) return 3;
    if (gpu_fill(&e.g, &backend, &error) != CML_OK ||
        !load_network(&backend, bytes, size, &scheduler, &net))
        return 1;
    free(bytes);
    if (cml_get_input_shape(net, 0, &in) != CML_OK || !is_picture(&in) ||
        cml_get_output_shape(net, 0, &out) != CML_OK || !is_picture(&out) ||
        out.extents[3] % in.extents[3] != 0 ||
        out.extents[2] != out.extents[3] / in.extents[3] * in.extents[2]) {
        fprintf(stderr, "the network must take a picture [1, 3, H, W] and give one of n H, n W\n");
        return 1;
    }
    create_engine(&e, &in, &out);
    int code = play(&e, scheduler, net, &in, &out, frames, budget_ms);
    if (code == 0 && !write_picture(&e, argv[2])) code = 1;
    cml_unload(scheduler, net);
    cml_destroy(scheduler);
    destroy_engine(&e);
    gpu_close(&e.g);
    return code == 0 && e.g.errors == 0 ? 0 : 1;
}
