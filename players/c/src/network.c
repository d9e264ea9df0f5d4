/* Networks: loading, building behind a loading screen or in frames, and unloading. */
#include "internal.h"

enum { CHUNK = 1 << 20 }; /* bytes of a constant that are made at once */

/* ------------------------------------------------------------------ the choice of a profile */

/* Returns 1 if the device has what the plan needs. Otherwise appends the first thing that it lacks
 * to `why`. */
static int fits(const device_facts *device, const file *f, const plan *p, char *why, size_t room) {
    const WGPULimits *has = &device->limits;
    const plan_head *row = p->row;
    uint64_t groups = 0, width = has->maxComputeWorkgroupsPerDimension;
    int uses_half = 0, lacks_wgsl = 0;
    for (uint32_t i = 0; i < row->steps.count; i++) {
        const kernel_row *k = &f->kernels[p->steps[i].kernel];
        groups = max_u64(groups, p->steps[i].groups);
        if (k->flags & COOKED_F16) uses_half = 1;
        if (k->wgsl.nbytes == 0) lacks_wgsl = 1;
    }
    const struct {
        const char *what;
        uint64_t needed, got;
        int is_at_most;
    } needs[] = {
        {"minStorageBufferOffsetAlignment", row->needs.storage_alignment,
         has->minStorageBufferOffsetAlignment, 1},
        {"minUniformBufferOffsetAlignment", row->needs.uniform_alignment,
         has->minUniformBufferOffsetAlignment, 1},
        {"maxStorageBufferBindingSize", row->needs.binding_bytes, has->maxStorageBufferBindingSize,
         0},
        {"maxBufferSize", row->needs.buffer_bytes, has->maxBufferSize, 0},
        {"maxComputeInvocationsPerWorkgroup", row->needs.threads,
         has->maxComputeInvocationsPerWorkgroup, 0},
        {"maxComputeWorkgroupStorageSize", row->needs.shared_bytes,
         has->maxComputeWorkgroupStorageSize, 0},
        {"maxStorageBuffersPerShaderStage", row->needs.bindings,
         has->maxStorageBuffersPerShaderStage, 0},
        {"lanes of a subgroup", row->needs.lanes, device->lanes, 0},
        {"workgroups", groups, width * width, 0},
        {"shader-f16", (uint64_t)uses_half, (uint64_t)device->has_half, 0},
        {"kernels in WGSL", f->only_wgsl && lacks_wgsl, 0, 0},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        uint64_t needed = needs[i].needed, got = needs[i].got;
        if (needs[i].is_at_most ? got <= needed : got >= needed) continue;
        size_t at = strlen(why);
        snprintf(why + at, room - at, "%s'%.*s' needs %s %llu, the device has %llu",
                 at > 0 ? "; " : "", TEXT_ARGS(p->profile), needs[i].what, ULL(needed), ULL(got));
        return 0;
    }
    return 1;
}

typedef struct choice {
    uint32_t rank; /* number of plans that were tried before */
    char why[400]; /* why those do not fit */
} choice;

/* Opens the first plan that fits; a software driver tries the plans that were made for one first.
 */
static cml_status choose_plan(const device_facts *device, file *f, plan *p, choice *chosen) {
    const block *before = f->memory->blocks;
    for (int is_second = 0; is_second < 2; is_second++) {
        for (uint32_t i = 0; i < f->plan_count; i++) {
            TRY(cml__open_plan(f, i, p));
            int is_preferred = !device->is_software || p->row->needs.software;
            if (is_preferred != is_second) {
                if (fits(device, f, p, chosen->why, sizeof chosen->why)) return CML_OK;
                chosen->rank++;
            }
            while (f->memory->blocks != before) cml__heap_free(f->memory, f->memory->blocks + 1);
        }
    }
    return cml__fail(f->error, CML_ERROR_STALE,
                     "no profile of the file fits this device: %s. Cook it for more devices, or "
                     "create the device with what cml_required_features() returns",
                     chosen->why);
}

/* Logs the profile of a network, and why better ones were left out. */
static void log_choice(const network *n, const choice *chosen) {
    const cml_scheduler *s = n->scheduler;
    cml__log(s, CML_LOG_INFO, "the network has the profile '%.*s'", TEXT_ARGS(n->p.profile));
    if (chosen->why[0] == 0) return;
    if (s->options.adapter != NULL) {
        heap memory = {.allocator = s->options.allocator};
        device_facts adapter = cml__facts_of(s->options.adapter, NULL);
        choice best = {.rank = 0};
        file again = n->f;
        plan p;
        again.memory = &memory;
        again.error = NULL;
        int is_better =
            choose_plan(&adapter, &again, &p, &best) == CML_OK && best.rank < chosen->rank;
        cml__heap_free_all(memory);
        if (is_better) {
            cml__log(s, CML_LOG_WARNING,
                     "the adapter could run a better profile, but the device was created without "
                     "what it needs: %s. Request what cml_required_features() returns",
                     chosen->why);
            return;
        }
    }
    cml__log(s, CML_LOG_INFO, "profiles that do not fit this device: %s", chosen->why);
}

/* ------------------------------------------------------------------ requirements */

static void add_feature(cml_requirements *needs, WGPUFeatureName feature) {
    for (size_t i = 0; i < needs->feature_count; i++)
        if (needs->features[i] == feature) return;
    if (needs->feature_count < sizeof needs->features / sizeof *needs->features)
        needs->features[needs->feature_count++] = feature;
}

static uint32_t raised32(uint32_t limit, uint32_t needed, uint32_t standard) {
    if (needed <= standard) return limit;
    return limit == WGPU_LIMIT_U32_UNDEFINED || limit < needed ? needed : limit;
}

static uint64_t raised64(uint64_t limit, uint64_t needed, uint64_t standard) {
    if (needed <= standard) return limit;
    return limit == WGPU_LIMIT_U64_UNDEFINED || limit < needed ? needed : limit;
}

/* An alignment: smaller is better. */
static uint32_t lowered(uint32_t limit, uint32_t needed, uint32_t standard) {
    return needed < standard && needed < limit ? needed : limit;
}

/* Adds a plan's limits where they exceed those that WebGPU guarantees. */
static void add_limits(WGPULimits *to, const plan_head *row) {
    to->minStorageBufferOffsetAlignment =
        lowered(to->minStorageBufferOffsetAlignment, row->needs.storage_alignment, 256);
    to->minUniformBufferOffsetAlignment =
        lowered(to->minUniformBufferOffsetAlignment, row->needs.uniform_alignment, 256);
    to->maxStorageBufferBindingSize =
        raised64(to->maxStorageBufferBindingSize, row->needs.binding_bytes, (uint64_t)128 << 20);
    to->maxBufferSize = raised64(to->maxBufferSize, row->needs.buffer_bytes, (uint64_t)256 << 20);
    to->maxComputeInvocationsPerWorkgroup =
        raised32(to->maxComputeInvocationsPerWorkgroup, row->needs.threads, 256);
    if (row->needs.threads > 256) { /* a workgroup of one dimension may have as many */
        to->maxComputeWorkgroupSizeX =
            raised32(to->maxComputeWorkgroupSizeX, row->needs.threads, 256);
        to->maxComputeWorkgroupSizeY =
            raised32(to->maxComputeWorkgroupSizeY, row->needs.threads, 256);
    }
    to->maxComputeWorkgroupStorageSize =
        raised32(to->maxComputeWorkgroupStorageSize, row->needs.shared_bytes, 16384);
    to->maxStorageBuffersPerShaderStage =
        raised32(to->maxStorageBuffersPerShaderStage, row->needs.bindings, 8);
}

static cml_status add_requirements(WGPUAdapter adapter, file *f, cml_requirements *needs) {
    device_facts facts = cml__facts_of(adapter, NULL);
    choice chosen = {.rank = 0};
    plan p;
    int uses_half = 0;
    TRY(cml__open_file(f));
    TRY(cml__open_kernels(f));
    TRY(choose_plan(&facts, f, &p, &chosen));
    for (uint32_t i = 0; i < p.row->steps.count; i++)
        if (f->kernels[p.steps[i].kernel].flags & COOKED_F16) uses_half = 1;
    if (needs->limits.maxBufferSize == 0) { /* the first file: nothing is required yet */
        memset(&needs->limits, 0xFF, sizeof needs->limits);
        needs->limits.nextInChain = NULL;
    }
    add_limits(&needs->limits, p.row);
    if (facts.has_timestamps) add_feature(needs, WGPUFeatureName_TimestampQuery);
    if (uses_half) add_feature(needs, WGPUFeatureName_ShaderF16);
    if (p.row->needs.lanes > 0 && wgpuAdapterHasFeature(adapter, WGPUFeatureName_Subgroups))
        add_feature(needs, WGPUFeatureName_Subgroups);
    if (p.row->needs.lanes > 0 && wgpuAdapterHasFeature(adapter, NATIVE_SUBGROUPS))
        add_feature(needs, NATIVE_SUBGROUPS);
    snprintf(needs->profile, sizeof needs->profile, "%.*s", TEXT_ARGS(p.profile));
    return CML_OK;
}

cml_status cml_required_features(WGPUAdapter adapter, const void *bytes, size_t size,
                                 uint32_t flags, cml_requirements *needs, cml_error *error) {
    heap memory = {.blocks = NULL};
    int trusted = (flags & CML_TRUSTED) != 0;
    file f = {.contents = {bytes, bytes != NULL ? size : 0},
              .memory = &memory,
              .error = error,
              .only_wgsl = !IS_WGPU_NATIVE || !trusted,
              .trusted = trusted,
              .limits = cml__limits_of(NULL, trusted)};
    if (error != NULL) memset(error, 0, sizeof *error);
    cml_status status = add_requirements(adapter, &f, needs);
    cml__heap_free_all(memory);
    return status;
}

/* ------------------------------------------------------------------ loading */

/* Returns the factor of a cost key's second word, else of that word up to its last '-', else 1. */
static double factor_of(const file *f, cml_text key) {
    size_t at = 0, n = 0;
    while (at < key.length && key.data[at++] != ' ') {}
    while (at + n < key.length && key.data[at + n] != ' ') n++;
    for (int tries = 0; tries < 2; tries++) {
        cml_text word = {key.data + at, n};
        for (uint32_t i = 0; i < f->guess.factors; i++)
            if (is_same_text(text_of(f, f->factors[i].kernel), word)) return f->factors[i].times;
        while (n > 0 && key.data[at + n - 1] != '-') n--;
        if (n > 0) n--;
    }
    return 1.0;
}

static void make_steps(network *n) {
    const device_row *guess = &n->f.guess;
    for (uint32_t i = 0; i < n->step_count; i++) {
        const plan_step_row *row = &n->p.steps[i];
        cml_text key = text_of(&n->f, row->cost_key);
        double ms = fmax(row->flops / guess->flops_per_ms, row->nbytes / guess->bytes_per_ms);
        if (!n->trusted) ms = fmax(ms, 1e-5); /* an untrusted file may state no work at all */
        n->steps[i] = (step){.groups = row->groups,
                             .factor = factor_of(&n->f, key),
                             .work = ms,
                             .key = cml__key_of(key)};
    }
}

/* Allocates tables and buffers. */
static cml_status make_net(network *n) {
    cml_scheduler *s = n->scheduler;
    heap *memory = &n->memory;
    uint32_t steps = n->p.row->steps.count, params = n->p.row->params.count;
    uint64_t longest = 0;
    for (uint32_t i = 0; i < n->p.row->constants.count; i++)
        longest = max_u64(longest, n->p.constants[i].nbytes);
    n->steps = cml__heap_alloc(memory, steps, sizeof *n->steps);
    n->after = cml__heap_alloc(memory, (uint64_t)steps + 1, sizeof *n->after);
    n->groups = cml__heap_alloc(memory, steps, sizeof *n->groups);
    n->pipelines = cml__heap_alloc(memory, n->f.kernel_count, sizeof *n->pipelines);
    n->layouts = cml__heap_alloc(memory, n->f.kernel_count, sizeof *n->layouts);
    n->staging = cml__heap_alloc(memory, min_u64(longest, CHUNK), 1);
    if (memory->exhausted)
        return cml__fail(n->f.error, CML_ERROR_MEMORY, "no memory for its tables");
    n->step_count = steps;
    n->exclusive = n;
    make_steps(n);
    if (params > s->facts.limits.maxBufferSize)
        return cml__fail(n->f.error, CML_ERROR_STALE, "its parameters do not fit into one buffer");
    cml__push_error_scopes(s);
    for (int i = 0; i < SPACES; i++)
        n->spaces[i] = cml__new_buffer(s, memory, TENSOR_USAGE, n->p.row->spaces[i]);
    n->uniforms = cml__new_buffer(s, memory, UNIFORM_USAGE, params);
    TRY(cml__pop_error_scopes(n));
    if (params > 0) wgpuQueueWriteBuffer(s->queue, n->uniforms, 0, n->p.params, params);
    return CML_OK;
}

/* Frees a network and everything of it but its handle. */
void cml__free_net(network *n) {
    int is_safe = 1;
    for (readback *r = n->results; r < n->results + MAX_RESULTS; r++) {
        if (!cml__settle_readback(n->scheduler, r)) is_safe = 0;
        cml__drop_buffer(&r->from);
    }
    for (uint32_t i = 0; i < n->step_count; i++)
        if (n->groups[i] != NULL) wgpuBindGroupRelease(n->groups[i]);
    for (uint32_t i = 0; n->step_count > 0 && i < n->f.kernel_count; i++) {
        if (n->pipelines[i] != NULL) wgpuComputePipelineRelease(n->pipelines[i]);
        if (n->layouts[i] != NULL) wgpuBindGroupLayoutRelease(n->layouts[i]);
    }
    for (int i = 0; i < SPACES; i++) cml__drop_buffer(&n->spaces[i]);
    cml__drop_buffer(&n->uniforms);
    for (int i = 0; n->scopes > 0 && i < 1000; i++) cml__poll_device(n->scheduler);
    if (is_safe && n->scopes == 0) cml__heap_free_all(n->memory);
}

static cml_status load(network *n) {
    const cml_scheduler *s = n->scheduler;
    choice chosen = {.rank = 0};
    TRY(cml__open_file(&n->f));
    TRY(cml__open_kernels(&n->f));
    TRY(choose_plan(&s->facts, &n->f, &n->p, &chosen));
    TRY(cml__open_guess(&n->f, text_from(s->facts.name)));
    TRY(make_net(n));
    log_choice(n, &chosen);
    return CML_OK;
}

cml_status cml_load(cml_scheduler *s, const void *bytes, size_t size, uint32_t flags, cml_net **net,
                    cml_error *error) {
    heap memory = {.allocator = s->options.allocator}, handle_memory = memory;
    network *n = cml__heap_alloc(&memory, 1, sizeof *n);
    cml_net *handle = cml__heap_alloc(&handle_memory, 1, sizeof *handle);
    *net = NULL;
    if (error != NULL) memset(error, 0, sizeof *error);
    if (n == NULL || handle == NULL) {
        cml__heap_free_all(memory);
        cml__heap_free_all(handle_memory);
        return cml__fail(error, CML_ERROR_MEMORY, "no memory for a network");
    }
    n->memory = memory;
    n->scheduler = s;
    n->handle = handle;
    n->trusted = (flags & CML_TRUSTED) != 0;
    n->f = (file){.contents = {bytes, bytes != NULL ? size : 0},
                  .memory = &n->memory,
                  .error = error,
                  .only_wgsl = !IS_WGPU_NATIVE || !n->trusted,
                  .trusted = n->trusted,
                  .limits = cml__limits_of(&s->options.limits, n->trusted)};
    cml_status status = load(n);
    n->f.error = NULL;
    if (status != CML_OK) {
        cml__free_net(n);
        cml__heap_free_all(handle_memory);
        return status;
    }
    handle->network = n;
    handle->memory = handle_memory;
    *net = handle;
    return CML_OK;
}

/* ------------------------------------------------------------------ building */

/* Blanks the line that enables subgroups in WGSL: wgpu-native has them and rejects the line. */
static void blank_enable_subgroups(char *code, size_t size) {
    static const char line[] = "enable subgroups;";
    size_t length = sizeof line - 1;
    for (size_t i = 0; i + length <= size; i++)
        if (memcmp(code + i, line, length) == 0) memset(code + i, ' ', length);
}

static WGPUShaderModule build_module(network *n, const kernel_row *k, const code_row *c,
                                     const void *code) {
    WGPUDevice device = n->scheduler->options.device;
    WGPUShaderSourceWGSL wgsl = {{NULL, WGPUSType_ShaderSourceWGSL}, {code, c->nbytes}};
    WGPUShaderSourceSPIRV spirv = {{NULL, WGPUSType_ShaderSourceSPIRV}, c->nbytes / 4, code};
    WGPUShaderModuleDescriptor descriptor = {.label = view_of(text_of(&n->f, k->label))};
    descriptor.nextInChain = c == &k->wgsl ? &wgsl.chain : &spirv.chain;
    if (n->trusted && k->flags & COOKED_TRUSTED)
        return wgpuDeviceCreateShaderModuleTrusted(device, &descriptor, 0);
    return wgpuDeviceCreateShaderModule(device, &descriptor);
}

static WGPUBindGroupLayout build_layout(WGPUDevice device, const kernel_row *k) {
    WGPUBindGroupLayoutEntry entries[66];
    for (uint32_t i = 0; i < k->tensors + 2; i++) {
        entries[i] = (WGPUBindGroupLayoutEntry){.binding = i};
        entries[i].visibility = WGPUShaderStage_Compute;
        entries[i].buffer.type =
            i < 2 ? WGPUBufferBindingType_Uniform : WGPUBufferBindingType_Storage;
    }
    entries[0].buffer.hasDynamicOffset = 1;
    entries[0].buffer.minBindingSize = 16;
    entries[1].buffer.minBindingSize = k->params_bytes;
    WGPUBindGroupLayoutDescriptor descriptor = {.entryCount = k->tensors + 2, .entries = entries};
    return wgpuDeviceCreateBindGroupLayout(device, &descriptor);
}

static cml_status build_kernel(network *n, uint32_t index) {
    WGPUDevice device = n->scheduler->options.device;
    const kernel_row *k = &n->f.kernels[index];
    const code_row *c = k->spirv.nbytes > 0 && !n->f.only_wgsl ? &k->spirv : &k->wgsl;
    void *code;
    TRY(cml__load_code(&n->f, k, c, &code));
    if (IS_WGPU_NATIVE && c == &k->wgsl && k->flags & COOKED_SUBGROUPS)
        blank_enable_subgroups(code, c->nbytes);
    cml__push_error_scopes(n->scheduler);
    n->layouts[index] = build_layout(device, k);
    WGPUPipelineLayoutDescriptor described = {.bindGroupLayoutCount = 1,
                                              .bindGroupLayouts = &n->layouts[index]};
    WGPUPipelineLayout layout = wgpuDeviceCreatePipelineLayout(device, &described);
    WGPUShaderModule module = build_module(n, k, c, code);
    WGPUComputePipelineDescriptor descriptor = {.label = view_of(text_of(&n->f, k->label)),
                                                .layout = layout};
    descriptor.compute.module = module;
    descriptor.compute.entryPoint = view_of(text_from("main"));
    if (layout != NULL && module != NULL)
        n->pipelines[index] = wgpuDeviceCreateComputePipeline(device, &descriptor);
    if (module != NULL) wgpuShaderModuleRelease(module);
    if (layout != NULL) wgpuPipelineLayoutRelease(layout);
    cml__heap_free(&n->memory, code);
    n->memory.counts.pipelines++;
    return cml__pop_error_scopes(n);
}

/* Encodes a step of an untrusted file and throws it away: what the device objects to, such as a
 * binding_row that is smaller than the kernel's array, is reported here and not in the host's
 * frame. */
static void try_step(network *n, uint32_t index) {
    WGPUComputePassDescriptor descriptor = {.nextInChain = NULL};
    WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(n->scheduler->options.device, NULL);
    WGPUComputePassEncoder pass = wgpuCommandEncoderBeginComputePass(encoder, &descriptor);
    uint32_t offset = 0;
    wgpuComputePassEncoderSetPipeline(pass, n->pipelines[n->p.steps[index].kernel]);
    wgpuComputePassEncoderSetBindGroup(pass, 0, n->groups[index], 1, &offset);
    wgpuComputePassEncoderDispatchWorkgroups(pass, 1, 1, 1);
    wgpuComputePassEncoderEnd(pass);
    wgpuComputePassEncoderRelease(pass);
    WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, NULL);
    if (commands != NULL) wgpuCommandBufferRelease(commands);
    wgpuCommandEncoderRelease(encoder);
}

static cml_status bind_step(network *n, uint32_t index) {
    const plan_step_row *of = &n->p.steps[index];
    WGPUBindGroupEntry entries[66] = {{.binding = 0, .buffer = n->scheduler->ranges, .size = 16},
                                      {.binding = 1,
                                       .buffer = n->uniforms,
                                       .offset = of->params_offset,
                                       .size = of->params_bytes}};
    for (uint32_t i = 0; i < of->bindings; i++) {
        const binding_row *at = &n->p.bindings[of->first_binding + i];
        entries[i + 2] = (WGPUBindGroupEntry){.binding = i + 2,
                                              .buffer = n->spaces[at->space],
                                              .offset = at->offset,
                                              .size = at->nbytes};
    }
    WGPUBindGroupDescriptor descriptor = {
        .layout = n->layouts[of->kernel], .entryCount = of->bindings + 2, .entries = entries};
    cml__push_error_scopes(n->scheduler);
    n->groups[index] = wgpuDeviceCreateBindGroup(n->scheduler->options.device, &descriptor);
    n->memory.counts.bind_groups++;
    if (!n->trusted && n->groups[index] != NULL) try_step(n, index);
    return cml__pop_error_scopes(n);
}

/* Makes and uploads at most `bytes` of constants, until about `end`; returns 1 once all are there.
 */
static int upload(network *n, uint64_t bytes, double end) {
    while (n->constants_there < n->p.row->constants.count) {
        const constant_row *r = &n->p.constants[n->constants_there];
        uint64_t effort = r->matrix == UINT64_MAX ? 1 : 4; /* transformed ones take longer */
        uint64_t left = min_u64(r->nbytes - n->uploaded, CHUNK);
        uint64_t chunk = min_u64(left, bytes / effort / 4 * 4);
        if (chunk == 0) return 0;
        cml__make_bytes(&n->f, r, n->uploaded, chunk, n->staging);
        wgpuQueueWriteBuffer(n->scheduler->queue, n->spaces[r->space], r->offset + n->uploaded,
                             n->staging, (size_t)chunk);
        n->uploaded += chunk;
        bytes -= chunk * effort;
        if (n->uploaded == r->nbytes) {
            n->constants_there++;
            n->uploaded = 0;
        }
        if (now_of(n->scheduler) >= end && n->constants_there < n->p.row->constants.count) return 0;
    }
    if (n->staging != NULL) cml__heap_free(&n->memory, n->staging);
    n->staging = NULL;
    return 1;
}

/* Builds for about `ms`, but at least one step of the work, with at most `bytes` of constants and
 * `groups` bind groups. */
cml_status cml__build_net(network *n, double ms, uint64_t bytes, uint32_t groups) {
    double end = now_of(n->scheduler) + ms;
    TRY(cml__refusal_of(n));
    if (n->is_ready) return CML_OK;
    if (!upload(n, bytes, end)) return CML_PENDING;
    for (; n->bound < n->step_count; n->bound++) {
        uint32_t kernel = n->p.steps[n->bound].kernel;
        if (n->layouts[kernel] == NULL) {
            TRY(build_kernel(n, kernel));
            if (now_of(n->scheduler) >= end) return CML_PENDING;
        }
        if (n->pipelines[kernel] == NULL || groups-- == 0) return CML_PENDING;
        TRY(bind_step(n, n->bound));
    }
    n->is_ready = n->scopes == 0;
    return n->is_ready ? CML_OK : CML_PENDING;
}

cml_status cml_build(cml_net *net, double ms, cml_error *error) {
    network *n = net->network;
    if (n == NULL) return cml__fail(error, CML_ERROR_INPUT, "the network is unloaded");
    n->f.error = error;
    cml_status status = cml__build_net(n, ms, UINT64_MAX, UINT32_MAX);
    n->f.error = NULL;
    cml__poll_device(n->scheduler);
    return status;
}

/* ------------------------------------------------------------------ questions */

static cml_status get_shape(const tensor_list *all, uint32_t index, cml_shape *shape) {
    if (index >= all->count) return CML_ERROR_INPUT;
    *shape = all->items[index].shape;
    return CML_OK;
}

cml_status cml_get_input_shape(const cml_net *net, uint32_t index, cml_shape *shape) {
    const network *n = net->network;
    return n != NULL ? get_shape(&n->p.inputs, index, shape) : CML_ERROR_INPUT;
}

cml_status cml_get_output_shape(const cml_net *net, uint32_t index, cml_shape *shape) {
    const network *n = net->network;
    return n != NULL ? get_shape(&n->p.outputs, index, shape) : CML_ERROR_INPUT;
}

cml_status cml_get_net_info(const cml_net *net, cml_net_info *info) {
    const network *n = net->network;
    if (n == NULL) return CML_ERROR_INPUT;
    const plan_head *p = n->p.row;
    *info = (cml_net_info){.profile = n->p.profile,
                           .steps = p->steps.count,
                           .arena_bytes = p->spaces[ARENA],
                           .weights_bytes = p->spaces[WEIGHTS],
                           .own_bytes = p->spaces[OWN],
                           .flops = p->flops,
                           .gas = (double)p->gas};
    return CML_OK;
}
