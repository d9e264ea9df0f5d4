/* A small engine: it draws a scene, enlarges it by a network that runs inside its frames, on its
 * own device, and shows the result, without a byte of it on the host.
 *
 *     scene NET.cml PICTURE.ppm [FRAMES] [BUDGET_MS]
 *
 * The network takes a picture [1, 3, H, W] and gives one. In every frame: the scene, as large as
 * the network's input, the network's slices, and the screen, which shows the network's newest
 * picture on its right, the scene as it is on its left. Everything goes into one command buffer. */
#include "gpu.h"

enum { WIDTH = 640, HEIGHT = 384, MOST_FRAMES = 100000 };

static const char *const scene_text =
    "@group(0) @binding(0) var<uniform> at: vec4f;\n" /* seconds, width, height */
    "@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {\n"
    "    return vec4f(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);\n"
    "}\n"
    "@fragment fn draw(@builtin(position) p: vec4f) -> @location(0) vec4f {\n"
    "    let q = (p.xy / at.yz - 0.5) * vec2f(at.y / at.z, -1.0);\n"
    "    let sky = mix(vec3f(0.9, 0.6, 0.4), vec3f(0.2, 0.4, 0.8), q.y + 0.5);\n"
    "    let ball = q - vec2f(0.35 * sin(at.x), 0.15 * abs(cos(3.0 * at.x)));\n"
    "    let r = length(ball) / 0.2;\n"
    "    if (r < 1.0) {\n"
    "        let n = vec3f(ball / 0.2, sqrt(1.0 - r * r));\n"
    "        let light = max(dot(n, normalize(vec3f(-0.5, 0.7, 0.6))), 0.0);\n"
    "        return vec4f(vec3f(0.9, 0.3, 0.2) * (0.15 + light), 1.0);\n"
    "    }\n"
    "    if (q.y > -0.18) { return vec4f(sky, 1.0); }\n"
    "    let ground = vec2f(q.x / (-0.1 - q.y) + at.x, 1.0 / (-0.1 - q.y));\n"
    "    let tile = (i32(floor(2.0 * ground.x)) + i32(floor(ground.y))) & 1;\n"
    "    return vec4f(vec3f(0.25 + 0.4 * f32(tile)), 1.0);\n"
    "}\n";

static const char *const pack_text = /* the scene's texels as the network wants them */
    "@group(0) @binding(0) var scene: texture_2d<f32>;\n"
    "@group(0) @binding(1) var<storage, read_write> plain: array<f32>;\n"
    "@compute @workgroup_size(8, 8) fn main(@builtin(global_invocation_id) at: vec3u) {\n"
    "    let size = textureDimensions(scene);\n"
    "    if (at.x >= size.x || at.y >= size.y) { return; }\n"
    "    let texel = textureLoad(scene, at.xy, 0);\n"
    "    for (var c = 0u; c < 3u; c++) { plain[(c * size.y + at.y) * size.x + at.x] = texel[c]; }\n"
    "}\n";

static const char *const show_text = /* the tensor is bound as it lies */
    "@group(0) @binding(0) var scene: texture_2d<f32>;\n"
    "@group(0) @binding(1) var<storage, read> picture: array<f32>;\n"
    "@group(0) @binding(2) var<uniform> at: vec4f;\n" /* the picture's width and height, the
                                                         screen's */
    "@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {\n"
    "    return vec4f(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);\n"
    "}\n"
    "@fragment fn draw(@builtin(position) p: vec4f) -> @location(0) vec4f {\n"
    "    let q = p.xy / at.zw;\n"
    "    if (q.x < 0.5) { return textureLoad(scene, vec2u(q * vec2f(textureDimensions(scene))), "
    "0); }\n"
    "    let t = vec2u(q * at.xy);\n"
    "    let size = vec2u(at.xy);\n"
    "    let i = t.y * size.x + t.x;\n"
    "    return vec4f(picture[i], picture[i + size.x * size.y], picture[i + 2u * size.x * size.y], "
    "1.0);\n"
    "}\n";

static gpu g;

static WGPUStringView text(const char *data) { return (WGPUStringView){data, strlen(data)}; }

static WGPUShaderModule shader(const char *code) {
    WGPUShaderSourceWGSL source = {.chain.sType = WGPUSType_ShaderSourceWGSL, .code = text(code)};
    return wgpuDeviceCreateShaderModule(
        g.device, &(WGPUShaderModuleDescriptor){.nextInChain = &source.chain});
}

static WGPURenderPipeline drawing(const char *code) {
    WGPUShaderModule module = shader(code);
    WGPUColorTargetState target = {.format = WGPUTextureFormat_RGBA8Unorm,
                                   .writeMask = WGPUColorWriteMask_All};
    WGPUFragmentState fragment = {
        .module = module, .entryPoint = text("draw"), .targetCount = 1, .targets = &target};
    WGPURenderPipelineDescriptor wanted = {
        .vertex = {.module = module, .entryPoint = text("corner")},
        .primitive.topology = WGPUPrimitiveTopology_TriangleList,
        .multisample = {.count = 1, .mask = 0xFFFFFFFF},
        .fragment = &fragment};
    WGPURenderPipeline made = wgpuDeviceCreateRenderPipeline(g.device, &wanted);
    wgpuShaderModuleRelease(module);
    return made;
}

static WGPUBuffer buffer(uint64_t bytes, WGPUBufferUsage usage) {
    return wgpuDeviceCreateBuffer(g.device, &(WGPUBufferDescriptor){.size = bytes, .usage = usage});
}

static WGPUTexture texture(uint32_t width, uint32_t height) {
    WGPUTextureUsage usage = WGPUTextureUsage_RenderAttachment | WGPUTextureUsage_TextureBinding |
                             WGPUTextureUsage_CopySrc;
    return wgpuDeviceCreateTexture(g.device,
                                   &(WGPUTextureDescriptor){.usage = usage,
                                                            .dimension = WGPUTextureDimension_2D,
                                                            .size = {width, height, 1},
                                                            .format = WGPUTextureFormat_RGBA8Unorm,
                                                            .mipLevelCount = 1,
                                                            .sampleCount = 1});
}

static WGPUBindGroup bound(WGPUBindGroupLayout layout, size_t count,
                           WGPUBindGroupEntry const *entries) {
    WGPUBindGroupDescriptor wanted = {.layout = layout, .entryCount = count, .entries = entries};
    WGPUBindGroup made = wgpuDeviceCreateBindGroup(g.device, &wanted);
    wgpuBindGroupLayoutRelease(layout);
    return made;
}

static void draw(WGPUCommandEncoder encoder, WGPUTextureView into, WGPURenderPipeline pipeline,
                 WGPUBindGroup with) {
    WGPURenderPassColorAttachment target = {.view = into,
                                            .depthSlice = WGPU_DEPTH_SLICE_UNDEFINED,
                                            .loadOp = WGPULoadOp_Clear,
                                            .storeOp = WGPUStoreOp_Store};
    WGPURenderPassEncoder pass = wgpuCommandEncoderBeginRenderPass(
        encoder,
        &(WGPURenderPassDescriptor){.colorAttachmentCount = 1, .colorAttachments = &target});
    wgpuRenderPassEncoderSetPipeline(pass, pipeline);
    wgpuRenderPassEncoderSetBindGroup(pass, 0, with, 0, NULL);
    wgpuRenderPassEncoderDraw(pass, 3, 1, 0, 0);
    wgpuRenderPassEncoderEnd(pass);
    wgpuRenderPassEncoderRelease(pass);
}

static void mapped(WGPUMapAsyncStatus status, WGPUStringView message, void *done, void *unused) {
    (void)message;
    (void)unused;
    *(int *)done = status == WGPUMapAsyncStatus_Success ? 1 : -1;
}

static int write_picture(WGPUBuffer from, const char *path) {
    FILE *out = fopen(path, "wb");
    int done = 0;
    const uint8_t *texels;
    if (out == NULL) return 0;
    wgpuBufferMapAsync(from, WGPUMapMode_Read, 0, 4 * WIDTH * HEIGHT,
                       (WGPUBufferMapCallbackInfo){.mode = WGPUCallbackMode_AllowProcessEvents,
                                                   .callback = mapped,
                                                   .userdata1 = &done});
    while (done == 0) gpu_wait(&g);
    texels = done > 0 ? wgpuBufferGetConstMappedRange(from, 0, 4 * WIDTH * HEIGHT) : NULL;
    fprintf(out, "P6\n%d %d\n255\n", WIDTH, HEIGHT);
    for (size_t i = 0; texels != NULL && i < (size_t)WIDTH * HEIGHT; i++)
        fwrite(texels + 4 * i, 1, 3, out);
    fclose(out);
    wgpuBufferUnmap(from);
    return texels != NULL;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *name, double *values, size_t count) {
    if (count == 0) return;
    qsort(values, count, sizeof *values, by_size);
    printf("%-28s %8.3f %8.3f %8.3f %8.3f\n", name, values[count / 2], values[count * 95 / 100],
           values[count * 99 / 100], values[count - 1]);
}

static int refuse(const cml_error *error) {
    fprintf(stderr, "%s\n", error->text);
    return 1;
}

int main(int argc, char **argv) {
    static double networks_ms[MOST_FRAMES], cpu_ms[MOST_FRAMES];
    long frames = argc > 3 ? atol(argv[3]) : 300, runs = 0, over = 0;
    double budget = argc > 4 ? atof(argv[4]) : 4.0;
    size_t measured = 0, encoded = 0, size = 0;
    void *bytes = argc > 2 ? read_whole(argv[1], &size) : NULL;
    cml_scheduler *scheduler;
    cml_net *net;
    cml_error error;
    cml_job job = 0, shown = 0;
    cml_shape in, out;
    if (bytes == NULL || frames < 1 || frames > MOST_FRAMES) {
        fprintf(stderr, "usage: scene NET.cml PICTURE.ppm [FRAMES] [BUDGET_MS]\n");
        return 2;
    }
    if (!gpu_open(&g, bytes, size, CML_TRUSTED)) return 3;

    /* the network, behind the loading screen */
    cml_options options = {
        .device = g.device, .adapter = g.adapter, .queue = g.queue, .instance = g.instance};
    if (cml_create(&options, &scheduler, &error) != CML_OK) return refuse(&error);
    if (cml_load(scheduler, bytes, size, CML_TRUSTED, &net, &error) != CML_OK)
        return refuse(&error);
    for (cml_status status = CML_PENDING; status != CML_OK;) {
        status = cml_build(net, 10.0, &error);
        if (status > CML_PENDING) return refuse(&error);
    }
    free(bytes);
    if (cml_get_input_shape(net, 0, &in) != CML_OK ||
        cml_get_output_shape(net, 0, &out) != CML_OK || in.rank != 4 || out.rank != 4 ||
        in.extents[1] != 3 || out.extents[1] != 3) {
        fprintf(stderr, "wanted a network of a picture [1, 3, H, W] that gives one\n");
        return 1;
    }

    /* the engine's own things */
    uint32_t width = in.extents[3], height = in.extents[2];
    float sizes[4] = {(float)out.extents[3], (float)out.extents[2], WIDTH, HEIGHT};
    WGPUBufferUsage storage =
        WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
    WGPUBufferUsage uniform = WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst;
    WGPUBuffer moment = buffer(16, uniform), screen_size = buffer(16, uniform);
    WGPUBuffer packed = buffer(in.bytes, storage), picture = buffer(out.bytes, storage);
    WGPUBuffer home = buffer(4 * WIDTH * HEIGHT, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
    WGPUTexture scene = texture(width, height), screen = texture(WIDTH, HEIGHT);
    WGPUTextureView scene_view = wgpuTextureCreateView(scene, NULL),
                    view = wgpuTextureCreateView(screen, NULL);
    WGPURenderPipeline draw_scene = drawing(scene_text), draw_screen = drawing(show_text);
    WGPUShaderModule module = shader(pack_text);
    WGPUComputePipeline pack = wgpuDeviceCreateComputePipeline(
        g.device, &(WGPUComputePipelineDescriptor){
                      .compute = {.module = module, .entryPoint = text("main")}});
    WGPUBindGroup with_moment =
        bound(wgpuRenderPipelineGetBindGroupLayout(draw_scene, 0), 1,
              &(WGPUBindGroupEntry){.binding = 0, .buffer = moment, .size = 16});
    WGPUBindGroup with_scene =
        bound(wgpuComputePipelineGetBindGroupLayout(pack, 0), 2,
              (WGPUBindGroupEntry[]){{.binding = 0, .textureView = scene_view},
                                     {.binding = 1, .buffer = packed, .size = in.bytes}});
    WGPUBindGroup with_picture =
        bound(wgpuRenderPipelineGetBindGroupLayout(draw_screen, 0), 3,
              (WGPUBindGroupEntry[]){{.binding = 0, .textureView = scene_view},
                                     {.binding = 1, .buffer = picture, .size = out.bytes},
                                     {.binding = 2, .buffer = screen_size, .size = 16}});
    wgpuQueueWriteBuffer(g.queue, screen_size, 0, sizes, sizeof sizes);

    for (long frame = 0; frame < frames || shown == 0; frame++) {
        WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(g.device, NULL);
        float now[4] = {(float)frame / 60, (float)width, (float)height, 0};
        char name[64];
        cml_tensor tensor;
        cml_job_info info = cml_get_job_info(scheduler, job);
        wgpuQueueWriteBuffer(g.queue, moment, 0, now, sizeof now);
        draw(encoder, scene_view, draw_scene, with_moment);
        if (info.state == CML_STATE_FAILED || frame > 100 * frames) {
            fprintf(stderr, "the network's job failed: %s\n", info.error);
            return 1;
        }
        if (info.state != CML_STATE_QUEUED &&
            info.state != CML_STATE_RUNNING) { /* its next picture is this frame's */
            WGPUComputePassEncoder pass = wgpuCommandEncoderBeginComputePass(encoder, NULL);
            wgpuComputePassEncoderSetPipeline(pass, pack);
            wgpuComputePassEncoderSetBindGroup(pass, 0, with_scene, 0, NULL);
            wgpuComputePassEncoderDispatchWorkgroups(pass, (width + 7) / 8, (height + 7) / 8, 1);
            wgpuComputePassEncoderEnd(pass);
            wgpuComputePassEncoderRelease(pass);
            if (job != 0) cml_release(scheduler, job);
            snprintf(name, sizeof name, "%.*s", (int)in.name.length, in.name.data);
            if (cml_submit(scheduler, net, &(cml_input){.name = name, .buffer = packed}, 1, NULL,
                           &job, &error) != CML_OK)
                return refuse(&error);
        }
        const cml_report *report = cml_encode(scheduler, encoder, budget);
        if (report->slices > 0 && encoded < MOST_FRAMES) cpu_ms[encoded++] = report->cpu_ms;
        snprintf(name, sizeof name, "%.*s", (int)out.name.length, out.name.data);
        if (report->finished > 0 && cml_get_tensor(scheduler, job, name, &tensor) == CML_OK) {
            wgpuCommandEncoderCopyBufferToBuffer(encoder, tensor.buffer, tensor.offset, picture, 0,
                                                 tensor.bytes);
            shown = job;
            runs++;
        }
        draw(encoder, view, draw_screen, with_picture);
        if (frame + 1 >= frames)
            wgpuCommandEncoderCopyTextureToBuffer(
                encoder, &(WGPUTexelCopyTextureInfo){.texture = screen},
                &(WGPUTexelCopyBufferInfo){
                    .layout = {.bytesPerRow = 4 * WIDTH, .rowsPerImage = HEIGHT}, .buffer = home},
                &(WGPUExtent3D){WIDTH, HEIGHT, 1});
        WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, NULL);
        wgpuQueueSubmit(g.queue, 1, &commands); /* one submit, yours */
        wgpuCommandBufferRelease(commands);
        wgpuCommandEncoderRelease(encoder);
        gpu_wait(&g); /* as one waits for the display */
        for (uint32_t i = 0, count = cml_end_frame(scheduler); i < count && measured < MOST_FRAMES;
             i++) {
            const cml_report *full = cml_get_measured(scheduler, i);
            if (full->finished > 0) continue;
            over += full->measured_ms > full->budget_ms;
            networks_ms[measured++] = full->measured_ms;
        }
    }
    printf("ms per frame                      P50      P95      P99      max\n");
    print_row("networks", networks_ms, measured);
    print_row("CPU of cml_encode", cpu_ms, encoded);
    printf("%zu full frames, %ld over the budget of %g ms; %ld pictures in %ld frames\n", measured,
           over, budget, runs, frames);
    int written = write_picture(home, argv[2]);
    cml_unload(scheduler, net);
    cml_destroy(scheduler);

    wgpuBindGroupRelease(with_moment), wgpuBindGroupRelease(with_scene),
        wgpuBindGroupRelease(with_picture);
    wgpuRenderPipelineRelease(draw_scene), wgpuRenderPipelineRelease(draw_screen),
        wgpuComputePipelineRelease(pack);
    wgpuShaderModuleRelease(module);
    wgpuTextureViewRelease(scene_view), wgpuTextureViewRelease(view), wgpuTextureRelease(scene),
        wgpuTextureRelease(screen);
    wgpuBufferRelease(moment), wgpuBufferRelease(screen_size), wgpuBufferRelease(packed),
        wgpuBufferRelease(picture);
    wgpuBufferRelease(home);
    gpu_close(&g);
    return written && g.errors == 0 ? 0 : 1;
}
