/* Networks: loading, building behind a loading screen or in frames, and unloading. */
#include "internal.h"

enum { CHUNK = 1 << 20 }; /* bytes of a constant that are made at once */

/* ------------------------------------------------------------------ the choice of a profile */

/* Returns 1 if the device has what the plan needs. Otherwise appends what it lacks to `why`. */
static int fits(const cml_device_info *device, const file *f, const plan *p, char *why,
                size_t room) {
    const plan_head *row = p->row;
    uint64_t groups = 0, width = device->groups_per_dimension;
    int uses_half = 0, lacks_wgsl = 0, lacks_spirv = 0, is_fit = 1;
    for (uint32_t i = 0; i < row->steps.count; i++) {
        const kernel_row *k = &f->kernels[p->steps[i].kernel];
        groups = max_u64(groups, p->steps[i].groups);
        if (k->flags & COOKED_F16) uses_half = 1;
        if (k->wgsl.nbytes == 0) lacks_wgsl = 1;
        if (k->spirv.nbytes == 0) lacks_spirv = 1;
    }
    const struct {
        const char *what;
        uint64_t needed, got;
        int is_at_most;
    } needs[] = {
        {"minStorageBufferOffsetAlignment", row->needs.storage_alignment, device->storage_alignment,
         1},
        {"minUniformBufferOffsetAlignment", row->needs.uniform_alignment, device->uniform_alignment,
         1},
        {"maxStorageBufferBindingSize", row->needs.binding_bytes, device->binding_bytes, 0},
        {"maxBufferSize", row->needs.buffer_bytes, device->buffer_bytes, 0},
        {"maxComputeInvocationsPerWorkgroup", row->needs.threads, device->threads, 0},
        {"maxComputeWorkgroupStorageSize", row->needs.shared_bytes, device->shared_bytes, 0},
        {"maxStorageBuffersPerShaderStage", row->needs.bindings, device->storage_buffers, 0},
        {"lanes of a subgroup", row->needs.lanes, device->lanes, 0},
        {"workgroups", groups, width * width, 0},
        {"shader-f16", (uint64_t)uses_half, (uint64_t)device->has_half, 0},
        {"kernels in WGSL", f->only_wgsl && lacks_wgsl, 0, 0},
        {"kernels in SPIR-V", (uint64_t)lacks_spirv, (uint64_t)device->takes_wgsl, 0},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        uint64_t needed = needs[i].needed, got = needs[i].got;
        if (needs[i].is_at_most ? got <= needed : got >= needed) continue;
        size_t at = strlen(why);
        snprintf(why + at, room - at, "%s'%.*s' needs %s %llu, the device has %llu",
                 at > 0 ? "; " : "", TEXT_ARGS(p->profile), needs[i].what, ULL(needed), ULL(got));
        is_fit = 0;
    }
    return is_fit;
}

typedef struct choice {
    uint32_t rank; /* number of plans that were tried before */
    char why[400]; /* why those do not fit */
} choice;

/* Opens the first plan that fits; a software driver tries the plans made for one first. */
static cml_status choose_plan(const cml_device_info *device, file *f, plan *p, choice *chosen) {
    const block *before = f->memory->blocks;
    if (f->only_wgsl && !device->takes_wgsl)
        return cml__fail(f->error, CML_ERROR_STALE,
                         "the file is not trusted, and this device takes kernels as SPIR-V only, "
                         "which cannot be checked: pass CML_TRUSTED if the file is your own");
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
                     "create the device with the features and limits that the file needs",
                     chosen->why);
}

/* Logs the profile of a network, and why better ones were left out. */
static void log_choice(const network *n, const choice *chosen) {
    const cml_scheduler *s = n->scheduler;
    cml__log(s, CML_LOG_INFO, "the network has the profile '%.*s'", TEXT_ARGS(n->p.profile));
    if (s->info.is_software && !n->p.row->needs.software)
        cml__log(s, CML_LOG_WARNING,
                 "the profile '%.*s' is made for hardware and many times slower on a driver that "
                 "runs shaders on the CPU: cook the network for 'software-portable' as well",
                 TEXT_ARGS(n->p.profile));
    if (chosen->why[0] == 0) return;
    cml_device_info could_be;
    memset(&could_be, 0, sizeof could_be);
    if (BACKEND(s, get_info, 1, &could_be)) {
        heap memory = {.allocator = s->options.allocator};
        choice best = {.rank = 0};
        file again = n->f;
        plan p;
        again.memory = &memory;
        again.error = NULL;
        int is_better =
            choose_plan(&could_be, &again, &p, &best) == CML_OK && best.rank < chosen->rank;
        cml__heap_free_all(memory);
        if (is_better) {
            cml__log(s, CML_LOG_WARNING,
                     "the hardware could run a better profile, but the device was created without "
                     "what it needs: %s. Create it with the features and limits that the file "
                     "needs",
                     chosen->why);
            return;
        }
    }
    cml__log(s, CML_LOG_INFO, "profiles that do not fit this device: %s", chosen->why);
}

/* ------------------------------------------------------------------ requirements */

static cml_status read_needs(const cml_device_info *info, file *f, cml_needs *needs) {
    choice chosen = {.rank = 0};
    plan p;
    TRY(cml__open_file(f));
    TRY(cml__open_kernels(f));
    TRY(choose_plan(info, f, &p, &chosen));
    const needs_row *row = &p.row->needs;
    *needs = (cml_needs){.buffer_bytes = row->buffer_bytes,
                         .binding_bytes = row->binding_bytes,
                         .storage_buffers = row->bindings,
                         .storage_alignment = row->storage_alignment,
                         .uniform_alignment = row->uniform_alignment,
                         .threads = row->threads,
                         .shared_bytes = row->shared_bytes,
                         .lanes = row->lanes};
    for (uint32_t i = 0; i < p.row->steps.count; i++)
        if (f->kernels[p.steps[i].kernel].flags & COOKED_F16) needs->uses_half = 1;
    snprintf(needs->profile, sizeof needs->profile, "%.*s", TEXT_ARGS(p.profile));
    return CML_OK;
}

cml_status cml_get_needs(const cml_device_info *info, const void *bytes, size_t size,
                         uint32_t flags, cml_needs *needs, cml_error *error) {
    heap memory = {.blocks = NULL};
    file f = cml__file_of(bytes, size, NULL, (flags & CML_TRUSTED) != 0);
    f.memory = &memory;
    f.error = error;
    f.only_wgsl = !info->takes_spirv || !f.trusted;
    if (error != NULL) memset(error, 0, sizeof *error);
    cml_status status = read_needs(info, &f, needs);
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
        if (!n->f.trusted) ms = fmax(ms, 1e-5); /* an untrusted file may state no work at all */
        n->steps[i] = (step){.groups = row->groups,
                             .factor = factor_of(&n->f, key),
                             .work = ms,
                             .key = cml__key_of(key)};
    }
}

/* Returns an error that the device has reported so far. `created`: what the last call returned. */
static cml_status refusal_of(const network *n, const void *created) {
    char text[240] = "it gives no reason";
    cml_status status = BACKEND(n->scheduler, poll_scope, n->scope, text, sizeof text);
    if (status <= CML_PENDING && created != NULL) return CML_OK;
    if (status <= CML_PENDING) status = CML_ERROR_DEVICE;
    return cml__fail(n->f.error, status, "the device refused: %s", text);
}

/* Makes the buffer of workgroups, and writes those of whole steps. */
static cml_status make_ranges(network *n) {
    cml_scheduler *s = n->scheduler;
    uint64_t bytes = (uint64_t)s->stride * n->step_count;
    uint8_t *words = cml__heap_alloc(&n->memory, bytes, 1);
    if (words == NULL) return NO_MEMORY(n->f.error, "its tables");
    for (uint32_t i = 0; i < n->step_count; i++) {
        uint32_t range[4] = {0, n->steps[i].groups, s->info.groups_per_dimension, 0};
        memcpy(words + (size_t)s->stride * i, range, sizeof range);
    }
    n->ranges = cml__new_buffer(s, &n->memory, n->scope, CML_USAGE_UNIFORM,
                                bytes + (uint64_t)s->stride * PARTS);
    cml_status status = refusal_of(n, n->ranges);
    if (status == CML_OK && bytes > 0) BACKEND(s, write_buffer, NULL, n->ranges, 0, words, bytes);
    cml__heap_free(&n->memory, words);
    return status;
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
    n->bindings = cml__heap_alloc(memory, steps, sizeof *n->bindings);
    n->pipelines = cml__heap_alloc(memory, n->f.kernel_count, sizeof *n->pipelines);
    n->staging = cml__heap_alloc(memory, min_u64(longest, CHUNK), 1);
    n->results = cml__heap_alloc(memory, s->options.max_results, sizeof *n->results);
    if (memory->exhausted) return NO_MEMORY(n->f.error, "its tables");
    n->step_count = steps;
    n->exclusive = n;
    make_steps(n);
    if (params > s->info.buffer_bytes)
        return cml__fail(n->f.error, CML_ERROR_STALE, "its parameters do not fit into one buffer");
    n->scope = s->backend.create_scope(s->backend.user);
    if (n->scope == NULL) return NO_MEMORY(n->f.error, "an error scope");
    for (int i = 0; i < SPACES; i++) {
        n->spaces[i] = cml__new_buffer(s, memory, n->scope, CML_USAGE_TENSOR, n->p.row->spaces[i]);
        TRY(refusal_of(n, n->spaces[i]));
    }
    n->uniforms = cml__new_buffer(s, memory, n->scope, CML_USAGE_UNIFORM, params);
    TRY(refusal_of(n, n->uniforms));
    if (params > 0) BACKEND(s, write_buffer, NULL, n->uniforms, 0, n->p.params, params);
    return make_ranges(n);
}

/* Frees a network and everything of it but its handle. */
void cml__free_net(network *n) {
    cml_scheduler *s = n->scheduler;
    for (uint32_t i = 0; n->results != NULL && i < s->options.max_results; i++) {
        readback *r = n->results + i;
        cml__cancel_readback(s, r);
        cml__drop_buffer(s, &r->buffer);
        cml__drop_buffer(s, &r->from);
    }
    for (uint32_t i = 0; i < n->step_count; i++)
        if (n->bindings[i] != NULL) BACKEND(s, release_bindings, n->bindings[i]);
    for (uint32_t i = 0; n->step_count > 0 && i < n->f.kernel_count; i++)
        if (n->pipelines[i] != NULL) BACKEND(s, release_pipeline, n->pipelines[i]);
    for (int i = 0; i < SPACES; i++) cml__drop_buffer(s, &n->spaces[i]);
    cml__drop_buffer(s, &n->uniforms);
    cml__drop_buffer(s, &n->ranges);
    if (n->scope != NULL) BACKEND(s, release_scope, n->scope);
    cml__heap_free_all(n->memory);
}

static cml_status load(network *n) {
    const cml_scheduler *s = n->scheduler;
    choice chosen = {.rank = 0};
    TRY(cml__open_file(&n->f));
    TRY(cml__open_kernels(&n->f));
    TRY(choose_plan(&s->info, &n->f, &n->p, &chosen));
    TRY(cml__open_guess(&n->f, text_from(s->info.name)));
    TRY(make_net(n));
    log_choice(n, &chosen);
    return CML_OK;
}

/* Loads a network of a file whose contents, limits, trust and checked hashes are set. */
cml_status cml__load(cml_scheduler *s, const file *opened, cml_net **net, cml_error *error) {
    heap memory = {.allocator = s->options.allocator}, handle_memory = memory;
    network *n = cml__heap_alloc(&memory, 1, sizeof *n);
    cml_net *handle = cml__heap_alloc(&handle_memory, 1, sizeof *handle);
    *net = NULL;
    if (error != NULL) memset(error, 0, sizeof *error);
    if (n == NULL || handle == NULL) {
        cml__heap_free_all(memory);
        cml__heap_free_all(handle_memory);
        return NO_MEMORY(error, "a network");
    }
    n->memory = memory;
    n->scheduler = s;
    n->handle = handle;
    n->f = (file){.contents = opened->contents,
                  .memory = &n->memory,
                  .error = error,
                  .only_wgsl = !s->info.takes_spirv || !opened->trusted,
                  .trusted = opened->trusted,
                  .limits = opened->limits};
    memcpy(n->f.hashed, opened->hashed, sizeof n->f.hashed);
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

cml_status cml_load_cooked(cml_scheduler *s, const void *bytes, size_t size, uint32_t flags,
                           cml_net **net, cml_error *error) {
    const file opened = cml__file_of(bytes, size, &s->options.limits, (flags & CML_TRUSTED) != 0);
    return cml__load(s, &opened, net, error);
}

/* ------------------------------------------------------------------ building */

static cml_status build_kernel(network *n, uint32_t index) {
    const kernel_row *k = &n->f.kernels[index];
    int is_spirv = k->spirv.nbytes > 0 && !n->f.only_wgsl;
    const code_row *c = is_spirv ? &k->spirv : &k->wgsl;
    void *code;
    TRY(cml__load_code(&n->f, k, c, &code));
    cml_kernel kernel = {.label = text_of(&n->f, k->label),
                         .language = is_spirv ? CML_LANGUAGE_SPIRV : CML_LANGUAGE_WGSL,
                         .code = code,
                         .bytes = c->nbytes,
                         .tensors = k->tensors,
                         .params_bytes = k->params_bytes,
                         .uses_half = (k->flags & COOKED_F16) != 0,
                         .uses_subgroups = (k->flags & COOKED_SUBGROUPS) != 0,
                         .is_unchecked = n->f.trusted && (k->flags & COOKED_TRUSTED) != 0,
                         .digest = k->digest};
    n->pipelines[index] = BACKEND(n->scheduler, create_pipeline, n->scope, &kernel);
    cml__heap_free(&n->memory, code);
    n->memory.counts.pipelines++;
    return refusal_of(n, n->pipelines[index]);
}

/* Returns a binding of a plan as a range of the network's buffers. */
cml_range cml__range_of(const network *n, const binding_row *at) {
    return (cml_range){n->spaces[at->space], at->offset, at->nbytes};
}

static cml_status bind_step(network *n, uint32_t index) {
    const plan_step_row *of = &n->p.steps[index];
    cml_range ranges[CML_MOST_BINDINGS] = {{n->ranges, 0, 16},
                                           {n->uniforms, of->params_offset, of->params_bytes}};
    for (uint32_t i = 0; i < of->bindings; i++)
        ranges[i + 2] = cml__range_of(n, &n->p.bindings[of->first_binding + i]);
    /* an untrusted file may bind less than the kernel's array has: that is to be an error here, and
     * not in the host's frame */
    n->bindings[index] = BACKEND(n->scheduler, create_bindings, n->scope, n->pipelines[of->kernel],
                                 ranges, of->bindings + 2, of->writes, !n->f.trusted);
    n->memory.counts.bind_groups++;
    return refusal_of(n, n->bindings[index]);
}

/* Uploads at most `bytes` of constants, until about `end`; returns 1 once all are there. */
static int upload(network *n, uint64_t bytes, double end) {
    while (n->constants_there < n->p.row->constants.count) {
        const constant_row *r = &n->p.constants[n->constants_there];
        uint64_t effort = r->matrix == UINT64_MAX ? 1 : 4; /* transformed ones take longer */
        uint64_t left = min_u64(r->nbytes - n->uploaded, CHUNK);
        uint64_t chunk = min_u64(left, bytes / effort / 4 * 4);
        if (chunk == 0) return 0;
        cml__make_bytes(&n->f, r, n->uploaded, chunk, n->staging);
        BACKEND(n->scheduler, write_buffer, NULL, n->spaces[r->space], r->offset + n->uploaded,
                n->staging, chunk);
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
    double end = now_of(n->scheduler) + fmax(ms, 0.0); /* no number: 0 */
    TRY(refusal_of(n, n));
    if (n->is_ready) return CML_OK;
    for (; n->compiled < n->step_count; n->compiled++) { /* on other threads, beside the uploads */
        uint32_t kernel = n->p.steps[n->compiled].kernel;
        if (n->pipelines[kernel] != NULL) continue;
        TRY(build_kernel(n, kernel));
        if (now_of(n->scheduler) >= end) return CML_PENDING;
    }
    if (!upload(n, bytes, end)) return CML_PENDING;
    for (; n->bound < n->step_count; n->bound++) {
        if (groups-- == 0) return CML_PENDING;
        TRY(bind_step(n, n->bound));
    }
    n->is_ready = BACKEND(n->scheduler, poll_scope, n->scope, NULL, 0) == CML_OK;
    return n->is_ready ? CML_OK : CML_PENDING;
}

cml_status cml_reset(cml_net *net, cml_error *error) {
    network *n = network_of(net);
    if (n == NULL) return cml__fail(error, CML_ERROR_INPUT, NO_NETWORK);
    const update_row *updates = n->p.updates;
    for (uint32_t i = 0; i < n->p.row->constants.count; i++) {
        const constant_row *r = &n->p.constants[i];
        int is_variable = 0;
        for (uint32_t k = 0; k < n->p.row->updates.count; k++) {
            const binding_row *to = &updates[k].target;
            if (to->space == r->space && to->offset < r->offset + r->nbytes &&
                r->offset < to->offset + to->nbytes)
                is_variable = 1;
        }
        uint8_t *bytes = is_variable ? cml__heap_alloc(&n->memory, r->nbytes, 1) : NULL;
        if (!is_variable) continue;
        if (bytes == NULL) return NO_MEMORY(error, "a variable");
        cml__make_bytes(&n->f, r, 0, r->nbytes, bytes);
        BACKEND(n->scheduler, write_buffer, NULL, n->spaces[r->space], r->offset, bytes, r->nbytes);
        cml__heap_free(&n->memory, bytes);
    }
    n->slot_mask = 0; /* frames that changed them do not matter any more */
    n->state_lost = 0;
    return CML_OK;
}

cml_status cml_build(cml_net *net, double ms, cml_error *error) {
    network *n = network_of(net);
    if (n == NULL) return cml__fail(error, CML_ERROR_INPUT, NO_NETWORK);
    n->f.error = error;
    cml_status status = cml__build_net(n, ms, UINT64_MAX, UINT32_MAX);
    n->f.error = NULL;
    n->scheduler->backend.poll(n->scheduler->backend.user);
    return status;
}

/* ------------------------------------------------------------------ questions */

static cml_status get_shape(const cml_net *net, int is_output, uint32_t index, cml_shape *shape) {
    const network *n = network_of(net);
    if (n == NULL) return CML_ERROR_INPUT;
    const plan *p = &n->p;
    const tensor_list *all = is_output ? &p->outputs : &p->inputs;
    if (index >= all->count) return CML_ERROR_INPUT;
    *shape = all->items[index].shape;
    return CML_OK;
}

cml_status cml_get_input_shape(const cml_net *net, uint32_t index, cml_shape *shape) {
    return get_shape(net, 0, index, shape);
}

cml_status cml_get_output_shape(const cml_net *net, uint32_t index, cml_shape *shape) {
    return get_shape(net, 1, index, shape);
}

cml_status cml_get_net_info(const cml_net *net, cml_net_info *info) {
    const network *n = network_of(net);
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
