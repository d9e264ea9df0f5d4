/* The scheduler on the device: creating it, encoding frames, and taking in their timings. */
#include "internal.h"

enum {
    RECEIPTS = 256,                            /* values that tell whether a frame ran */
    SCRATCH = RING * SLOT_BYTES + 4 * RECEIPTS /* where a timestamp is resolved to be written */
};
/* the least share of a pass's time that is left without the time of an empty pass */
static const double LEAST_LEFT = 0.1;

/* ------------------------------------------------------------------ encoding */

/* Begins a pass; with a readback, one that writes its next timestamps. */
static void begin_pass(cml_scheduler *s, readback *timed) {
    int begin = -1, end = -1;
    if (timed != NULL && s->info.tick_ms > 0) {
        int first = (int)(timed - s->ring) * (TIMED + LEAD) + (int)timed->passes++;
        begin = s->info.times_pass_end ? -1 : 2 * first;
        end = s->info.times_pass_end ? first : 2 * first + 1;
    }
    BACKEND(s, begin_pass, s->commands, begin, end);
}

/* Ends a pass. A pass of a readback that is timed by its end also has the driver write its
 * timestamp now: once llvmpipe has drawn anything, it runs compute work at once but queues
 * timestamps with the tiles to be drawn, so that one is written at any time during the next pass,
 * unless the driver has to wait for it. */
static void end_pass(cml_scheduler *s, const readback *timed) {
    BACKEND(s, end_pass, s->commands);
    if (timed == NULL || timed->passes == 0 || !s->info.times_pass_end) return;
    uint32_t number = (uint32_t)(timed - s->ring), query = number * (TIMED + LEAD) + timed->passes;
    cml_range scratch = {s->resolved, SCRATCH, 8};
    cml__order(s, &scratch, 0, 1);
    BACKEND(s, resolve_queries, s->commands, query - 1, 1, s->resolved, SCRATCH);
}

/* Writes the workgroups of parts of steps to where dispatches read them, and reports the slices. */
static void write_ranges(cml_scheduler *s) {
    const work *w = s->work;
    for (uint32_t i = 0; i < w->slice_count; i++) w->slices[i].job->net->parts = 0;
    for (uint32_t i = 0; i < w->slice_count; i++) {
        slice *run = &w->slices[i];
        network *n = run->job->net;
        uint32_t index = (uint32_t)(run->step - n->steps), end = run->first + run->count;
        uint32_t words[4] = {run->first, end, s->info.groups_per_dimension, 0};
        const plan_step_row *row = &n->p.steps[index];
        run->place = index;
        if (run->count < run->step->groups) {
            run->place = n->step_count + n->parts++;
            cml__write(s, n->ranges, (uint64_t)s->stride * run->place, words, sizeof words);
        }
        s->reported[i] = (cml_slice){.job = run->job->number,
                                     .step = index,
                                     .first = run->first,
                                     .count = run->count,
                                     .predicted_ms = run->ms,
                                     .op = text_of(&n->f, row->op),
                                     .title = text_of(&n->f, row->title)};
    }
}

/* Records `count` workgroups of a step; `place` is where the network's ranges have them. */
void cml__dispatch(cml_scheduler *s, const network *n, uint32_t index, uint32_t place,
                   uint32_t count) {
    uint32_t width = s->info.groups_per_dimension, offset = s->stride * place;
    const plan_step_row *row = &n->p.steps[index];
    if (s->backend.barrier != NULL) {
        cml_range ranges[CML_MOST_BINDINGS] = {{n->ranges, offset, 16}};
        for (uint32_t i = 0; i < row->bindings; i++)
            ranges[i + 1] = cml__range_of(n, &n->p.bindings[row->first_binding + i]);
        cml__order(s, ranges, row->bindings + 1 - row->writes, row->writes);
    }
    BACKEND(s, dispatch, s->commands, n->pipelines[row->kernel], n->bindings[index], offset,
            count <= width ? count : width, count <= width ? 1 : (count - 1) / width + 1);
}

/* Encodes the slices, one pass for each group that is timed, and the copy of the timestamps. */
static void encode_slices(cml_scheduler *s, readback *slot) {
    const work *w = s->work;
    uint32_t number = s->frame % RING, i = 0, per_pass = s->info.times_pass_end ? 1 : 2;
    if (w->slice_count == 0) return;
    write_ranges(s);
    /* the first empty pass ends when all work before it has, the second shows what it costs to
     * have a timestamp written */
    int leads = s->info.times_pass_end && s->info.tick_ms > 0 ? LEAD : 0;
    for (int lead = 0; lead < leads; lead++) {
        begin_pass(s, slot);
        end_pass(s, slot);
    }
    for (uint32_t group = 0; group < w->group_count; group++) {
        begin_pass(s, slot);
        for (; i < w->ends[group]; i++) {
            const slice *run = &w->slices[i];
            const network *n = run->job->net;
            cml__dispatch(s, n, (uint32_t)(run->step - n->steps), run->place, run->count);
            run->job->slot_mask |= 1u << number;
        }
        end_pass(s, slot);
    }
    if (slot->passes > 0) {
        uint32_t count = per_pass * slot->passes;
        cml_range ticks = {s->resolved, number * SLOT_BYTES, 8 * count};
        cml__order(s, &ticks, 0, 1);
        BACKEND(s, resolve_queries, s->commands, per_pass * number * (TIMED + LEAD), count,
                s->resolved, ticks.offset);
        cml__copy(s, &ticks, slot->buffer, 0);
    }
}

/* Encodes the copy that tells that a frame with work ran. */
static void encode_receipt(cml_scheduler *s, readback *slot) {
    cml_range receipt = {s->resolved, RING * SLOT_BYTES + 4 * (s->frame % RECEIPTS), 4};
    cml__copy(s, &receipt, slot->buffer, SLOT_BYTES - 4);
    slot->frame = s->frame;
    slot->state = READBACK_COPIED;
}

/* Encodes the copies of finished jobs' outputs that cml_read waits for; returns their number. */
static uint32_t encode_reads(cml_scheduler *s) {
    uint32_t count = 0;
    EACH_JOB(s, j) {
        readback *r = j->run.state == CML_STATE_DONE && j->read_requested ? j->result : NULL;
        if (r == NULL || r->state != READBACK_FREE) continue;
        cml_range outputs = {r->from, 0, j->net->p.outputs.bytes};
        if (r->buffer == NULL)
            r->buffer = cml__new_buffer(s, &j->net->memory, j->net->scope, CML_USAGE_READBACK,
                                        outputs.bytes);
        if (r->buffer == NULL) continue;
        cml__copy(s, &outputs, r->buffer, 0);
        r->frame = s->frame;
        r->state = READBACK_COPIED;
        count++;
    }
    return count;
}

const cml_report *cml_encode(cml_scheduler *s, void *commands, double budget_ms) {
    double start = now_of(s);
    uint32_t pending = 0;
    readback *slot = &s->ring[s->frame % RING];
    if (s->open || s->lost) {
        s->refusal.reason = s->lost ? CML_REASON_DEVICE_ERROR : CML_REASON_FRAME_NOT_ENDED;
        return &s->refusal;
    }
    cml__begin_commands(s, commands);
    for (uint32_t i = 0; i < RING; i++)
        if (s->ring[i].state == READBACK_REQUESTED &&
            s->frame - s->ring[i].frame > CML_FRAMES_BEFORE_READ)
            pending++;
    if (is_equal(budget_ms, CML_BUDGET)) s->budget_ms = s->options.budget_ms;
    if (budget_ms >= 0 && !is_infinite(budget_ms)) s->budget_ms = budget_ms;
    int is_behind = pending >= s->options.max_frames_in_flight;
    if (slot->state != READBACK_FREE) is_behind = BEHIND_ALL; /* it could leave no receipt */
    cml__begin_frame(s, cml__steady_now(s), s->budget_ms, -1.0, 0, is_behind);
    slot->passes = 0;
    encode_slices(s, slot);
    cml__finish_jobs(s);
    uint32_t reads = slot->state == READBACK_FREE ? encode_reads(s) : 0;
    if (s->work->slice_count > 0 || s->work->report.finished > 0 || reads > 0)
        encode_receipt(s, slot);
    s->work->report.cpu_ms = now_of(s) - start;
    return &s->work->report;
}

const cml_slice *cml_get_slices(const cml_scheduler *s) { return s->reported; }

/* ------------------------------------------------------------------ the end of a frame */

/* Takes back the copies of outputs that a frame made: a later frame copies them again. */
static void cancel_reads(cml_scheduler *s, uint64_t frame) {
    EACH_JOB(s, j)
        if (j->result != NULL && j->result->frame == frame) cml__cancel_readback(s, j->result);
}

/* Fails the jobs that had work in a frame that was ended but never ran, and the jobs that read what
 * those wrote: their results would be wrong. */
static void fail_harmed(cml_scheduler *s, uint32_t slot) {
    EACH_NET(s, n)
        if (n->slot_mask >> slot & 1) n->state_lost = 1;
    EACH_JOB(s, j) {
        static const char why[] = "a frame was encoded and never submitted: its result would be "
                                  "wrong. Submit every encoder, or call cml_abandon_frame()";
        if (j->run.state == CML_STATE_GONE || !(j->slot_mask >> slot & 1)) continue;
        cml__end_job(s, j, CML_STATE_FAILED, why);
        if (j->run.state != CML_STATE_DONE) continue;
        j->run.state = CML_STATE_FAILED; /* its outputs are wrong */
        memcpy(j->error, why, sizeof why);
        cml__log(s, CML_LOG_ERROR, "job %llu failed: %s", ULL(j->number), why);
    }
    cancel_reads(s, s->ring[slot].frame);
}

static void forget_slot(cml_scheduler *s, uint32_t slot) {
    EACH_JOB(s, j) j->slot_mask &= ~(1u << slot);
    EACH_NET(s, n) n->slot_mask &= ~(1u << slot);
}

/* Returns the milliseconds between two timestamps. */
static double spent_ms(const cml_scheduler *s, const uint8_t *timestamps) {
    uint64_t ticks[2];
    memcpy(ticks, timestamps, sizeof ticks);
    return ticks[1] > ticks[0] ? (double)(ticks[1] - ticks[0]) * s->info.tick_ms : 0.0;
}

/* Returns the ticks to which a browser has rounded all of these timestamps; 0: it has not. */
static uint64_t unit_of(const uint8_t *data, uint32_t count) {
    static const uint64_t units[] = {100000, 65536};
    for (size_t k = 0; k < sizeof units / sizeof *units && count > 0; k++) {
        uint32_t i = 0;
        for (uint64_t tick = 0; i < count; i++) {
            memcpy(&tick, data + (size_t)8 * i, sizeof tick);
            if (tick % units[k] != 0) break;
        }
        if (i == count) return units[k];
    }
    return 0;
}

/* Takes in the timings of a frame, or that it never ran. */
static void take_slot(cml_scheduler *s, const readback *slot, const uint8_t *data) {
    uint32_t number = (uint32_t)(slot - s->ring), receipt, count = slot->passes;
    int by_ends = s->info.times_pass_end;
    double empty_ms = 0.0;
    memcpy(&receipt, data + SLOT_BYTES - 4, 4);
    if (receipt != slot->frame % RECEIPTS + 1) {
        fail_harmed(s, number);
        count = 0;
    } else if (count > 0 && by_ends) {
        count -= LEAD;
        s->empty_ms[s->empty_count++ % EMPTY] = spent_ms(s, data);
        empty_ms = cml__median(s->empty_ms, s->empty_count < EMPTY ? s->empty_count : EMPTY);
        data += 8 * (LEAD - 1);
    }
    uint64_t unit = unit_of(data, by_ends ? count + 1 : 2 * count);
    for (uint32_t i = 0; i < count; i++) {
        double ms = spent_ms(s, data + (by_ends ? 8 : 16) * i);
        /* a pass as short as an empty one has some time left, and a time below the clock's
         * resolution counts as a quarter of it: 0 would be no time */
        ms = fmax(LEAST_LEFT * ms, ms - empty_ms);
        cml__record_timing(s, slot->frame, i, fmax(ms, (double)unit / 4 * s->info.tick_ms));
    }
}

/* Takes in the frames that have run. */
void cml__take_slots(cml_scheduler *s) {
    EACH_SLOT(s, slot) {
        const uint8_t *data = NULL;
        cml_status status = CML_PENDING;
        if (slot->state == READBACK_REQUESTED) status = cml__poll_readback(s, slot, &data);
        if (status == CML_PENDING) continue;
        if (status == CML_OK) take_slot(s, slot, data);
        if (status == CML_OK) forget_slot(s, (uint32_t)(slot - s->ring));
        cml__cancel_readback(s, slot);
    }
}

uint32_t cml_end_frame(cml_scheduler *s) {
    s->measured_count = 0;
    if (!s->open || s->lost) return 0;
    uint32_t age = CML_FRAMES_BEFORE_READ;
    EACH_JOB(s, j) {
        if (j->result == NULL || j->result->state != READBACK_COPIED) continue;
        cml__map_readback(s, j->result, s->frames_before_read);
        age = s->frames_before_read; /* outputs wait for what tells that their frames ran */
    }
    EACH_SLOT(s, slot) cml__map_readback(s, slot, age);
    s->backend.poll(s->backend.user);
    cml__take_slots(s);
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
        EACH_SLOT(s, slot) {
            if (slot->frame != s->frame || slot->state == READBACK_FREE) continue;
            cml__cancel_readback(s, slot);
            forget_slot(s, (uint32_t)(slot - s->ring));
        }
        cancel_reads(s, s->frame);
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
    EACH_NET(s, n) {
        sum.host_blocks += n->memory.counts.host_blocks;
        sum.buffers += n->memory.counts.buffers;
        sum.bind_groups += n->memory.counts.bind_groups;
        sum.pipelines += n->memory.counts.pipelines;
    }
    return sum;
}

/* ------------------------------------------------------------------ creating and destroying */

/* Creates the objects on the device; the scheduler's numbers are set. */
static cml_status create_objects(cml_scheduler *s, cml_error *error) {
    heap *memory = &s->memory;
    uint32_t receipts[RECEIPTS];
    char text[240] = "no memory";
    int is_there = 1;
    s->scope = s->backend.create_scope(s->backend.user);
    if (s->scope == NULL) return NO_MEMORY(error, "an error scope");
    s->resolved = cml__new_buffer(s, memory, s->scope, CML_USAGE_QUERIES, SCRATCH + 8);
    for (uint32_t i = 0; i < RING; i++) {
        s->ring[i].buffer = cml__new_buffer(s, memory, s->scope, CML_USAGE_READBACK, SLOT_BYTES);
        if (s->ring[i].buffer == NULL) is_there = 0;
    }
    cml_status status = BACKEND(s, poll_scope, s->scope, text, sizeof text);
    if (!is_there || s->resolved == NULL || status > CML_PENDING)
        return cml__fail(error, status > CML_PENDING ? status : CML_ERROR_MEMORY,
                         "the device has no buffers for a scheduler: %s", text);
    for (uint32_t i = 0; i < RECEIPTS; i++) receipts[i] = i + 1;
    BACKEND(s, write_buffer, NULL, s->resolved, RING * SLOT_BYTES, receipts, sizeof receipts);
    return CML_OK;
}

static void destroy_objects(cml_scheduler *s) {
    for (uint32_t i = 0; i < RING; i++) {
        cml__cancel_readback(s, &s->ring[i]);
        cml__drop_buffer(s, &s->ring[i].buffer);
    }
    cml__drop_buffer(s, &s->resolved);
    if (s->scope != NULL) BACKEND(s, release_scope, s->scope);
    s->backend.destroy(s->backend.user);
    cml__heap_free_all(s->memory);
}

/* Returns what is wrong with the options, or NULL. */
static const char *find_problem(const cml_options *options) {
    const cml_backend *b = options->backend;
    if (!b->get_info || !b->poll || !b->create_scope || !b->poll_scope || !b->release_scope ||
        !b->create_buffer || !b->adopt_buffer || !b->release_buffer || !b->get_handle ||
        !b->write_buffer || !b->create_pipeline || !b->release_pipeline || !b->create_bindings ||
        !b->release_bindings || !b->begin_pass || !b->end_pass || !b->dispatch || !b->copy_buffer ||
        !b->map_buffer || !b->poll_mapped || !b->unmap_buffer || !b->destroy)
        return "backend lacks functions: wanted a table that is filled in, as by cml_webgpu_fill()";
    if (!is_whole(&options->allocator))
        return "allocator has one function: wanted both, or none for the C library";
    if (!(options->frame_ms >= 0) || is_infinite(options->frame_ms))
        return "frame_ms: wanted a positive number, or 0 for the default";
    if (!(options->budget_ms >= 0) || is_infinite(options->budget_ms))
        return "budget_ms: wanted a positive number, or 0 for the default";
    if (!(options->over_share >= 0 && options->over_share < 1))
        return "over_share: wanted a positive number below 1, or 0 for the default";
    if ((unsigned)options->policy > CML_POLICY_BY_PRIORITY)
        return "policy: wanted one of cml_policy";
    return NULL;
}

cml_status cml_create(const cml_options *options, cml_scheduler **created, cml_error *error) {
    heap memory = {.allocator = options->allocator};
    *created = NULL;
    if (options->backend == NULL)
        return cml__fail(error, CML_ERROR_INPUT, "options.backend is NULL");
    if (options->backend->is_taken)
        return cml__fail(error, CML_ERROR_INPUT,
                         "options.backend was given to an earlier cml_create, whose scheduler "
                         "destroys it: fill in a table for each scheduler");
    options->backend->is_taken = 1;
    const char *problem = find_problem(options);
    if (problem != NULL) {
        if (options->backend->destroy != NULL) options->backend->destroy(options->backend->user);
        return cml__fail(error, CML_ERROR_INPUT, "options.%s", problem);
    }
    cml_scheduler *s = cml__heap_alloc(&memory, 1, sizeof *s);
    if (s == NULL) {
        options->backend->destroy(options->backend->user);
        return NO_MEMORY(error, "a scheduler");
    }
    s->memory = memory;
    s->options = *options;
    s->backend = *options->backend;
    s->policy = options->policy;
    s->max_groups = TIMED;
    s->refusal.measured_ms = -1;
    s->model.over_share = options->over_share > 0 ? options->over_share : 0.01;
    s->frame_ms = options->frame_ms > 0 ? options->frame_ms : 1000.0 / 60;
    if (!(options->budget_ms > 0)) s->options.budget_ms = 4.0;
    s->budget_ms = s->options.budget_ms;
    s->max_jobs = options->max_jobs ? options->max_jobs : 64;
    s->max_slices = options->max_slices ? options->max_slices : 256;
    if (options->max_frames_in_flight == 0) s->options.max_frames_in_flight = 4;
    if (options->now_ms == NULL) s->options.now_ms = cml__machine_ms;
    if (options->max_results == 0) s->options.max_results = 8;
    s->frames_before_read = CML_FRAMES_BEFORE_READ;
    s->prepare = cml__prepare_net;
    s->start = cml__start_job;
    s->finish = cml__finish_job;
    BACKEND(s, get_info, 0, &s->info);
    if (s->backend.resolve_queries == NULL) s->info.tick_ms = 0.0;
    s->wall_clock = !(s->info.tick_ms > 0);
    s->granule = options->granule;
    if (s->granule == 0) s->granule = s->info.is_software ? cml__processors() : 1;
    s->stride = (uint32_t)max_u64(s->info.uniform_alignment, 16);
    s->reported = cml__heap_alloc(&s->memory, s->max_slices, sizeof *s->reported);
    cml_status status =
        cml__init_core(s) ? create_objects(s, error) : NO_MEMORY(error, "a scheduler and its jobs");
    if (status != CML_OK) {
        destroy_objects(s);
        return status;
    }
    if (s->wall_clock)
        cml__log(s, CML_LOG_WARNING,
                 "the device was created without timestamps (timestamp-query): budgets are kept by "
                 "watching for late frames");
    *created = s;
    return CML_OK;
}

void cml_destroy(cml_scheduler *s) {
    if (s == NULL) return;
    cml_abandon_frame(s);
    while (s->nets != NULL) cml__remove_net(s, s->nets);
    for (cml_net *next, *net = s->unloaded; net != NULL; net = next) {
        next = net->next;
        cml__heap_free_all(net->memory);
    }
    destroy_objects(s);
}
