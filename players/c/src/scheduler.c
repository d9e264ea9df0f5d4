/* The scheduler on the device: creating it, encoding frames, and taking in their timings. */
#include "internal.h"

enum { RECEIPTS = 256 }; /* values that tell whether the frame of a readback ran */

/* ------------------------------------------------------------------ encoding */

/* Begins a pass; with a readback, one that writes its next timestamps. */
static WGPUComputePassEncoder begin_pass(cml_scheduler *s, readback *timed) {
    WGPUPassTimestampWrites writes = {.querySet = s->queries};
    WGPUComputePassDescriptor descriptor = {.nextInChain = NULL};
    if (timed != NULL && s->facts.has_timestamps) {
        uint32_t slot = (uint32_t)(timed - s->ring);
        uint32_t at = s->timestamps * (slot * (TIMED + 1) + timed->passes++);
        if (s->timestamps == 2) {
            writes.beginningOfPassWriteIndex = at;
            writes.endOfPassWriteIndex = at + 1;
        } else {
            writes.beginningOfPassWriteIndex = WGPU_QUERY_SET_INDEX_UNDEFINED;
            writes.endOfPassWriteIndex = at;
        }
        descriptor.timestampWrites = &writes;
    }
    return wgpuCommandEncoderBeginComputePass(s->encoder, &descriptor);
}

static void end_pass(WGPUComputePassEncoder pass) {
    wgpuComputePassEncoderEnd(pass);
    wgpuComputePassEncoderRelease(pass);
}

static void dispatch(cml_scheduler *s, WGPUComputePassEncoder pass, uint32_t number) {
    const slice *run = &s->work->slices[number];
    const network *n = run->job->net;
    uint32_t index = (uint32_t)(run->step - n->steps), offset = s->stride * number;
    uint32_t width = s->facts.limits.maxComputeWorkgroupsPerDimension, count = run->count;
    uint32_t words[4] = {run->first, run->first + count, width, 0};
    const plan_step_row *row = &n->p.steps[index];
    memcpy(s->range_words + offset, words, sizeof words);
    s->reported[number] = (cml_slice){.job = run->job->number,
                                      .step = index,
                                      .first = run->first,
                                      .count = count,
                                      .predicted_ms = run->ms,
                                      .op = text_of(&n->f, row->op),
                                      .title = text_of(&n->f, row->title)};
    wgpuComputePassEncoderSetPipeline(pass, n->pipelines[row->kernel]);
    wgpuComputePassEncoderSetBindGroup(pass, 0, n->groups[index], 1, &offset);
    wgpuComputePassEncoderDispatchWorkgroups(pass, count <= width ? count : width,
                                             count <= width ? 1 : (count - 1) / width + 1, 1);
}

/* Encodes the slices, one pass for each group that is timed, and the copy of the timestamps. */
static void encode_slices(cml_scheduler *s) {
    const work *w = s->work;
    uint32_t number = s->frame % RING, i = 0;
    readback *slot = &s->ring[number];
    if (w->slice_count == 0 || slot->state != READBACK_FREE) slot = NULL;
    if (slot != NULL) {
        slot->passes = 0;
        slot->frame = s->frame;
        slot->state = READBACK_COPIED;
        /* one timestamp per pass: each is timed from the end of the pass before */
        if (s->timestamps == 1 && s->facts.has_timestamps) end_pass(begin_pass(s, slot));
    }
    for (uint32_t group = 0; group < w->group_count; group++) {
        WGPUComputePassEncoder pass = begin_pass(s, slot);
        for (; i < w->ends[group]; i++) {
            dispatch(s, pass, i);
            if (slot != NULL) w->slices[i].job->slot_mask |= 1u << number;
        }
        end_pass(pass);
    }
    if (i > 0) wgpuQueueWriteBuffer(s->queue, s->ranges, 0, s->range_words, (size_t)s->stride * i);
    if (slot == NULL) return;
    if (slot->passes > 0) {
        uint32_t at = number * SLOT_BYTES, count = s->timestamps * slot->passes;
        wgpuCommandEncoderResolveQuerySet(
            s->encoder, s->queries, s->timestamps * number * (TIMED + 1), count, s->resolved, at);
        cml__copy(s, s->resolved, at, slot->buffer, 0, 8 * count);
    }
    cml__copy(s, s->resolved, RING * SLOT_BYTES + 4 * (s->frame % RECEIPTS), slot->buffer,
              SLOT_BYTES - 4, 4);
}

/* Encodes the copies of finished jobs' outputs that cml_read waits for. */
static void encode_reads(cml_scheduler *s) {
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) {
        readback *r = j->run.state == CML_STATE_DONE && j->read_requested ? j->result : NULL;
        if (r == NULL || r->state != READBACK_FREE) continue;
        uint64_t bytes = wgpuBufferGetSize(r->from);
        if (r->buffer == NULL)
            r->buffer = cml__new_buffer(s, &j->net->memory, READBACK_USAGE, bytes);
        if (r->buffer == NULL) continue;
        cml__copy(s, r->from, 0, r->buffer, 0, bytes);
        r->frame = s->frame;
        r->state = READBACK_COPIED;
    }
}

const cml_report *cml_encode(cml_scheduler *s, WGPUCommandEncoder encoder, double budget_ms) {
    double start = now_of(s);
    uint32_t pending = 0;
    if (s->open || s->lost) {
        s->refusal.reason = s->lost ? CML_REASON_DEVICE_ERROR : CML_REASON_FRAME_NOT_ENDED;
        return &s->refusal;
    }
    s->encoder = encoder;
    for (uint32_t i = 0; i < RING; i++)
        if (s->ring[i].state == READBACK_PENDING) pending++;
    if (budget_ms >= 0 && !isinf(budget_ms)) s->budget_ms = budget_ms;
    cml__begin_frame(s, cml__steady_now(s), s->budget_ms, -1.0, 0,
                     pending >= s->options.max_frames_in_flight);
    encode_slices(s);
    cml__finish_jobs(s);
    encode_reads(s);
    s->work->report.cpu_ms = now_of(s) - start;
    return &s->work->report;
}

const cml_slice *cml_get_slices(const cml_scheduler *s) { return s->reported; }

/* ------------------------------------------------------------------ the end of a frame */

/* Fails the jobs that had work in a frame that was ended but never ran, and the jobs that read what
 * those wrote: their results would be wrong. */
static void fail_harmed(cml_scheduler *s, uint32_t slot) {
    for (network *n = s->nets; n != NULL; n = n->next)
        if (n->slot_mask >> slot & 1) n->state_lost = 1;
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) {
        static const char why[] = "a frame was encoded and never submitted: its result would be "
                                  "wrong. Submit every encoder, or call cml_abandon_frame()";
        if (j->run.state == CML_STATE_GONE || !(j->slot_mask >> slot & 1)) continue;
        cml__end_job(s, j, CML_STATE_FAILED, why);
        if (j->run.state != CML_STATE_DONE) continue;
        j->run.state = CML_STATE_FAILED; /* its outputs are wrong */
        memcpy(j->error, why, sizeof why);
        cml__log(s, CML_LOG_ERROR, "job %llu failed: %s", ULL(j->number), why);
    }
}

static void forget_slot(cml_scheduler *s, uint32_t slot) {
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++) j->slot_mask &= ~(1u << slot);
    for (network *n = s->nets; n != NULL; n = n->next) n->slot_mask &= ~(1u << slot);
}

/* Takes in the timings of a frame, or that it never ran. */
static void take_slot(cml_scheduler *s, const readback *slot) {
    const uint8_t *data = wgpuBufferGetConstMappedRange(slot->buffer, 0, SLOT_BYTES);
    uint32_t number = (uint32_t)(slot - s->ring);
    if (data != NULL) {
        uint32_t receipt, count = slot->passes;
        memcpy(&receipt, data + SLOT_BYTES - 4, 4);
        if (receipt != slot->frame % RECEIPTS + 1) {
            fail_harmed(s, number);
            count = 0;
        } else if (count > 0 && s->timestamps == 1) {
            count--; /* the first only begins */
        }
        double tick_ms = 1e-6 * (double)wgpuQueueGetTimestampPeriod(s->queue);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t ticks[2];
            memcpy(ticks, data + 8 * s->timestamps * i, sizeof ticks);
            double ms = ticks[1] > ticks[0] ? (double)(ticks[1] - ticks[0]) * tick_ms : 0.0;
            cml__record_timing(s, slot->frame, i, ms);
        }
    }
    forget_slot(s, number);
}

uint32_t cml_end_frame(cml_scheduler *s) {
    s->measured_count = 0;
    if (!s->open || s->lost) return 0;
    for (readback *slot = s->ring; slot < s->ring + RING; slot++) cml__map_readback(s, slot);
    for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++)
        if (j->result != NULL) cml__map_readback(s, j->result);
    cml__poll_device(s);
    for (readback *slot = s->ring; slot < s->ring + RING; slot++) {
        if (slot->state == READBACK_MAPPED) take_slot(s, slot);
        if (slot->state == READBACK_MAPPED || slot->state == READBACK_LOST)
            cml__cancel_readback(slot);
    }
    cml__end_frame(s, cml__steady_now(s));
    cml__reclaim_jobs(s);
    cml__remove_unloaded_nets(s);
    return s->measured_count;
}

const cml_report *cml_get_measured(const cml_scheduler *s, uint32_t index) {
    return index < s->measured_count ? &s->measured[index] : NULL;
}

void cml_abandon_frame(cml_scheduler *s) {
    if (s->open) {
        for (readback *slot = s->ring; slot < s->ring + RING; slot++) {
            if (slot->frame != s->frame || slot->state == READBACK_FREE) continue;
            cml__cancel_readback(slot);
            forget_slot(s, (uint32_t)(slot - s->ring));
        }
        for (job *j = s->jobs; j < s->jobs + s->max_jobs; j++)
            if (j->result != NULL && j->result->frame == s->frame) cml__cancel_readback(j->result);
    }
    cml__abandon_frame(s);
    cml__reclaim_jobs(s);
    cml__remove_unloaded_nets(s);
}

void cml_device_lost(cml_scheduler *s) {
    s->lost = 1;
    while (s->live_count > 0) cml__end_job(s, s->live[0], CML_STATE_FAILED, "the device was lost");
}

cml_counts cml_get_counts(const cml_scheduler *s) {
    cml_counts sum = s->memory.counts;
    for (const network *n = s->nets; n != NULL; n = n->next) {
        sum.host_blocks += n->memory.counts.host_blocks;
        sum.buffers += n->memory.counts.buffers;
        sum.bind_groups += n->memory.counts.bind_groups;
        sum.pipelines += n->memory.counts.pipelines;
    }
    return sum;
}

/* ------------------------------------------------------------------ creating and destroying */

/* Creates the objects on the device; the scheduler's numbers are set. */
static void create_objects(cml_scheduler *s) {
    WGPUDevice device = s->options.device;
    WGPUQuerySetDescriptor queries = {.type = WGPUQueryType_Timestamp,
                                      .count = 2 * RING * (TIMED + 1)};
    WGPUBufferUsage usage = WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
    uint32_t receipts[RECEIPTS];
    s->queue = s->options.queue != NULL ? s->options.queue : wgpuDeviceGetQueue(device);
    if (s->facts.has_timestamps) {
        s->queries = wgpuDeviceCreateQuerySet(device, &queries);
        usage |= WGPUBufferUsage_QueryResolve;
    }
    s->resolved = cml__new_buffer(s, &s->memory, usage, RING * SLOT_BYTES + sizeof receipts);
    s->ranges = cml__new_buffer(s, &s->memory, UNIFORM_USAGE, (uint64_t)s->stride * s->max_slices);
    for (uint32_t i = 0; i < RECEIPTS; i++) receipts[i] = i + 1;
    wgpuQueueWriteBuffer(s->queue, s->resolved, RING * SLOT_BYTES, receipts, sizeof receipts);
    for (uint32_t i = 0; i < RING; i++)
        s->ring[i].buffer = cml__new_buffer(s, &s->memory, READBACK_USAGE, SLOT_BYTES);
}

cml_status cml_create(const cml_options *options, cml_scheduler **created, cml_error *error) {
    heap memory = {.allocator = options->allocator};
    *created = NULL;
    if (options->device == NULL) return cml__fail(error, CML_ERROR_INPUT, "options.device is NULL");
    cml_scheduler *s = cml__heap_alloc(&memory, 1, sizeof *s);
    if (s == NULL) return cml__fail(error, CML_ERROR_MEMORY, "no memory for a scheduler");
    s->memory = memory;
    s->options = *options;
    s->policy = options->policy;
    s->max_groups = TIMED;
    s->refusal.measured_ms = -1;
    s->model.over_share = options->over_share > 0 ? options->over_share : 0.01;
    s->frame_ms = options->frame_ms > 0 ? options->frame_ms : 1000.0 / 60;
    s->max_jobs = options->max_jobs ? options->max_jobs : 64;
    s->max_slices = options->max_slices ? options->max_slices : 256;
    if (options->max_frames_in_flight == 0) s->options.max_frames_in_flight = 4;
    if (options->now_ms == NULL) s->options.now_ms = cml__machine_ms;
    s->prepare = cml__prepare_net;
    s->start = cml__start_job;
    s->finish = cml__finish_job;
    s->facts = cml__facts_of(options->adapter, options->device);
    s->wall_clock = !s->facts.has_timestamps;
    s->granule = options->granule;
    if (s->granule == 0) s->granule = s->facts.is_software ? cml__processors() : 1;
    s->timestamps = s->facts.is_software ? 1 : 2; /* one takes 20 to 50 us on a software driver */
    s->stride = (uint32_t)max_u64(s->facts.limits.minUniformBufferOffsetAlignment, 16);
    s->reported = cml__heap_alloc(&s->memory, s->max_slices, sizeof *s->reported);
    s->range_words = cml__heap_alloc(&s->memory, s->max_slices, s->stride);
    if (!cml__init_core(s)) {
        cml__heap_free_all(s->memory);
        return cml__fail(error, CML_ERROR_MEMORY, "no memory for a scheduler and its jobs");
    }
    create_objects(s);
    if (s->wall_clock)
        cml__log(s, CML_LOG_WARNING,
                 "the device was created without timestamp-query: budgets are kept by watching for "
                 "late frames. Request what cml_required_features() returns");
    *created = s;
    return CML_OK;
}

void cml_destroy(cml_scheduler *s) {
    int is_safe = 1;
    if (s == NULL) return;
    cml_abandon_frame(s);
    while (s->nets != NULL) cml__remove_net(s, s->nets);
    for (cml_net *next, *net = s->unloaded; net != NULL; net = next) {
        next = net->next;
        cml__heap_free_all(net->memory);
    }
    for (uint32_t i = 0; i < RING; i++)
        if (!cml__settle_readback(s, &s->ring[i])) is_safe = 0;
    cml__drop_buffer(&s->resolved);
    cml__drop_buffer(&s->ranges);
    if (s->queries != NULL) wgpuQuerySetRelease(s->queries);
    if (s->options.queue == NULL) wgpuQueueRelease(s->queue);
    if (is_safe) cml__heap_free_all(s->memory);
}
