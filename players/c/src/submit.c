/* Jobs on the device: submitting, starting, finishing, reading and releasing them; unloading. */
#include "internal.h"

enum {
    BOUND_PER_FRAME = 32,      /* bind groups that a frame creates for a network */
    LEAST_UPLOAD = 64 << 10,   /* bytes of constants that a frame uploads at least */
    UPLOAD_PER_MS = 256 << 10, /* and for each millisecond that it may spend */
};

/* ------------------------------------------------------------------ memory of jobs */

static void drop_inputs(cml_scheduler *s, job *j) {
    for (; j->source_count > 0; j->source_count--)
        cml__drop_buffer(s, &j->sources[j->source_count - 1].buffer);
}

static void drop_result(const cml_scheduler *s, job *j) {
    if (j->result == NULL) return;
    cml__cancel_readback(s, j->result);
    j->result->used = 0;
    j->result = NULL;
}

/* Frees what jobs do not need any more, and the places of released jobs that no job takes from.
 * While a frame is open nothing is freed: the frame may be abandoned. */
void cml__reclaim_jobs(cml_scheduler *s) {
    if (s->open) return;
    EACH_JOB(s, j) {
        int is_unwanted = is_over(j) && j->released && j->consumers == 0;
        int is_queued = j->run.state == CML_STATE_QUEUED;
        if (!is_queued) drop_inputs(s, j);
        if (is_queued || has_failed(j) || is_unwanted) drop_result(s, j);
        if (is_unwanted) j->run.state = CML_STATE_GONE;
    }
}

/* ------------------------------------------------------------------ unloading */

static void end_jobs_of(cml_scheduler *s, const network *net) {
    EACH_JOB(s, j) {
        if (j->run.state == CML_STATE_GONE || j->net != net) continue;
        cml__end_job(s, j, CML_STATE_CANCELLED, "its network was unloaded");
        j->released = 1;
    }
}

static void fail_consumers_of(cml_scheduler *s, const network *net) {
    EACH_JOB(s, j) {
        int takes = 0;
        if (is_over(j)) continue;
        for (uint32_t i = 0; i < j->producer_count; i++)
            if (j->producers[i]->net == net) takes = 1;
        if (takes)
            cml__end_job(s, j, CML_STATE_FAILED, "the network whose output it takes was unloaded");
    }
}

/* Ends and drops what the scheduler has of a network that no open frame uses. */
void cml__forget_net(cml_scheduler *s, const network *net) {
    end_jobs_of(s, net);
    fail_consumers_of(s, net);
    EACH_JOB(s, j) {
        if (j->run.state == CML_STATE_GONE || j->net != net) continue;
        drop_inputs(s, j);
        drop_result(s, j);
        j->run.state = CML_STATE_GONE;
    }
    for (work *w = s->works; w < s->works + IN_FLIGHT; w++) w->slice_count = 0;
    for (uint32_t i = 0; i < s->max_slices; i++)
        s->reported[i].op = s->reported[i].title = text_from("");
}

/* Frees a network that no open frame uses, and everything that points into it. */
void cml__remove_net(cml_scheduler *s, network *net) {
    cml__forget_net(s, net);
    cml__unlink_net(s, net);
    net->handle->network = NULL;
    net->handle->next = s->unloaded;
    s->unloaded = net->handle;
    cml__free_net(net);
}

/* Frees the networks that were unloaded while a frame was open. */
void cml__remove_unloaded_nets(cml_scheduler *s) {
    network *next;
    for (network *net = s->nets; net != NULL; net = next) {
        next = net->next;
        if (net->is_unloaded) cml__remove_net(s, net);
    }
}

void cml_unload(cml_scheduler *s, cml_net *net) {
    network *n = network_of(net);
    if (n == NULL || n->is_unloaded) return;
    if (s != (n->owner != NULL ? n->owner : n->scheduler)) {
        cml__log(s, CML_LOG_ERROR,
                 "cml_unload: the network is another scheduler's: unload it there");
        return;
    }
    if (n->owner == NULL || !s->open || s->lost) {
        cml__remove_net(s, n);
        return;
    }
    end_jobs_of(s, n); /* the host's encoder may hold work of it, and may yet be abandoned */
    n->is_unloaded = 1;
}

/* ------------------------------------------------------------------ within frames */

/* Builds a network whose jobs wait, as long as `ms` allow. */
void cml__prepare_net(cml_scheduler *s, network *net, double ms) {
    double most = fmin(ms * (double)UPLOAD_PER_MS, (double)COOKED_MOST_BYTES);
    uint64_t bytes = max_u64((uint64_t)most, LEAST_UPLOAD);
    cml_error error;
    net->f.error = &error;
    cml_status status = cml__build_net(net, ms, bytes, BOUND_PER_FRAME);
    net->f.error = NULL;
    if (status <= CML_PENDING) return;
    EACH_JOB(s, j)
        if (j->net == net) cml__end_job(s, j, CML_STATE_FAILED, error.text);
}

static readback *free_result(network *n) {
    const cml_options *options = &n->scheduler->options;
    for (readback *r = n->results; r < n->results + options->max_results; r++)
        if (!r->used && r->state == READBACK_FREE) return r;
    return NULL;
}

/* Starts a job if there is memory for its outputs, and copies its inputs. */
int cml__start_job(cml_scheduler *s, job *j) {
    network *n = j->net;
    readback *r = free_result(n);
    if (r == NULL) return 0;
    if (r->from == NULL) {
        r->from = cml__new_buffer(s, &n->memory, n->scope, CML_USAGE_TENSOR, n->p.outputs.bytes);
        cml_status status = BACKEND(s, poll_scope, n->scope, NULL, 0);
        if (status > CML_PENDING || r->from == NULL) {
            cml__drop_buffer(s, &r->from);
            cml__end_job(s, j, CML_STATE_FAILED, "the device has no memory for its outputs");
            return 0;
        }
    }
    if (n->state_lost) {
        cml__end_job(s, j, CML_STATE_FAILED,
                     "the variables of its network are wrong, for a frame that changed them was "
                     "never submitted: call cml_reset()");
        return 0;
    }
    r->used = 1;
    j->result = r;
    j->slot_mask |= n->slot_mask;
    for (uint32_t i = 0; i < n->p.inputs.count; i++) {
        const job_source *from = &j->sources[i];
        const tensor *to = &n->p.inputs.items[i];
        cml_buffer *space = n->spaces[to->at.space];
        cml_range source = {from->buffer, from->at, to->shape.bytes};
        if (from->producer != NULL) {
            source.buffer = from->producer->result->from;
            j->slot_mask |= from->producer->slot_mask;
        }
        if (source.buffer != NULL)
            cml__copy(s, &source, space, to->at.offset);
        else
            cml__write(s, space, to->at.offset, j->data + to->packed_at, to->shape.bytes);
    }
    return 1;
}

/* Copies a network's updated variables into place. */
void cml__copy_updates(cml_scheduler *s, const network *n) {
    for (uint32_t i = 0; i < n->p.row->updates.count; i++) {
        const binding_row *to = &n->p.updates[i].target;
        cml_range from = cml__range_of(n, &n->p.updates[i].source);
        from.bytes = min_u64(from.bytes, to->nbytes);
        cml__copy(s, &from, n->spaces[to->space], to->offset);
    }
}

/* Copies the outputs out of the network's memory. */
int cml__finish_job(cml_scheduler *s, job *j) {
    network *n = j->net;
    const plan *p = &n->p;
    for (uint32_t i = 0; i < p->outputs.count; i++) {
        const tensor *from = &p->outputs.items[i];
        cml_range range = {n->spaces[from->at.space], from->at.offset, from->shape.bytes};
        cml__copy(s, &range, j->result->from, from->packed_at);
    }
    cml__copy_updates(s, n);
    if (p->row->updates.count > 0) n->slot_mask |= j->slot_mask;
    return 1;
}

/* ------------------------------------------------------------------ submitting */

/* Returns the job of a handle; NULL if it is gone. */
job *cml__find_job(const cml_scheduler *s, cml_job handle) {
    EACH_JOB(s, j)
        if (j->number == handle && j->run.state != CML_STATE_GONE) return j;
    return NULL;
}

/* Returns 1 if both are alike but for their names. */
static int is_same_shape(const cml_shape *a, const cml_shape *b) {
    return a->type == b->type && a->layout == b->layout && a->rank == b->rank &&
           memcmp(a->extents, b->extents, sizeof a->extents) == 0;
}

static const tensor *find_tensor(const tensor_list *all, const char *name) {
    for (uint32_t i = 0; i < all->count && name != NULL; i++)
        if (is_same_text(all->items[i].shape.name, text_from(name))) return &all->items[i];
    return NULL;
}

#define WRONG(...) cml__fail(error, CML_ERROR_INPUT, __VA_ARGS__)

static cml_status accept_data(job *to, const cml_input *in, const tensor *at, cml_error *error) {
    uint64_t bytes = 4 * at->shape.elements;
    if (in->bytes != bytes)
        return WRONG("input '%s': wanted %llu bytes, got %llu", in->name, ULL(bytes),
                     ULL(in->bytes));
    cml__to_layout(&at->shape, in->data, to->data + at->packed_at);
    return CML_OK;
}

static cml_status accept_buffer(const cml_scheduler *s, job_source *to, const cml_input *in,
                                const tensor *at, cml_error *error) {
    uint64_t size = 0;
    to->buffer = BACKEND(s, adopt_buffer, in->buffer, &at->shape, &size);
    to->at = in->offset;
    if (to->buffer == NULL)
        return WRONG("input '%s' is nothing that it can be copied from", in->name);
    if (in->offset % 4 != 0 || !is_inside(in->offset, at->shape.bytes, size))
        return WRONG("input '%s': %llu bytes at %llu are not in its buffer of %llu", in->name,
                     ULL(at->shape.bytes), ULL(in->offset), ULL(size));
    return CML_OK;
}

static cml_status accept_output(cml_scheduler *s, job *to, job_source *from, const cml_input *in,
                                const tensor *at, cml_error *error) {
    job *producer = cml__find_job(s, in->job);
    if (producer == NULL || producer->released || has_failed(producer))
        return WRONG("input '%s': the job is gone, cancelled or failed, and has no outputs",
                     in->name);
    const tensor *output = find_tensor(&producer->net->p.outputs, in->output);
    if (output == NULL)
        return WRONG("input '%s': the job has no output '%s', see cml_get_output_shape", in->name,
                     in->output ? in->output : "");
    if (!is_same_shape(&output->shape, &at->shape))
        return WRONG("input '%s': the job's output '%s' is of another shape, type or layout, see "
                     "cml_get_output_shape",
                     in->name, in->output);
    if (to->producer_count == MAX_PRODUCERS)
        return WRONG("a job takes at most %d outputs of other jobs", MAX_PRODUCERS);
    to->producers[to->producer_count++] = producer;
    from->producer = producer;
    from->at = output->packed_at;
    return CML_OK;
}

static cml_status accept_input(cml_scheduler *s, job *to, const cml_input *in, cml_error *error) {
    const tensor_list *inputs = &to->net->p.inputs;
    const tensor *at = find_tensor(inputs, in->name);
    if (at == NULL) return WRONG("the network has no input '%s'", in->name ? in->name : "");
    job_source *from = &to->sources[at - inputs->items];
    int given = (in->data != NULL) + (in->buffer != NULL) + (in->job != 0);
    if (from->is_set) return WRONG("input '%s' is given twice", in->name);
    if (given > 1 || (given == 0 && at->shape.bytes > 0))
        return WRONG("input '%s' has %d sources: wanted one of data, buffer and job", in->name,
                     given);
    from->is_set = 1;
    if (in->data != NULL || at->shape.bytes == 0) return accept_data(to, in, at, error);
    if (in->buffer != NULL) return accept_buffer(s, from, in, at, error);
    return accept_output(s, to, from, in, at, error);
}

static cml_status check_submit(const cml_scheduler *s, const network *n, size_t count,
                               const cml_job_options *options, cml_error *error) {
    double priority = options->priority, deadline = options->deadline_ms;
    if (s->lost) return cml__fail(error, CML_ERROR_DEVICE, "the device was lost");
    if (n->scheduler->backend.user != s->backend.user)
        return WRONG("the network was loaded by another scheduler: load it with this one");
    if (n->owner != s && cml__is_at_work(n))
        return WRONG("the network is at work for another scheduler: end its jobs and frames first");
    if (!(deadline >= 0) || is_infinite(deadline + priority) ||
        !(priority >= 0 || is_equal(priority, CML_IDLE)))
        return WRONG("the priority or deadline is no number of 0 or more");
    if (options->slot != NULL && strlen(options->slot) >= SLOT_NAME)
        return WRONG("the slot's name has %d bytes or more", SLOT_NAME);
    if (count != n->p.inputs.count)
        return WRONG("the network has %u inputs, got %llu", n->p.inputs.count, ULL(count));
    return CML_OK;
}

/* Makes the place's room for inputs as large as the network needs; returns 0 without memory. */
static int make_room(cml_scheduler *s, job *pooled, const network *n) {
    if (pooled->room >= n->p.inputs.bytes) return 1;
    cml__heap_free(&s->memory, pooled->data);
    pooled->data = cml__heap_alloc(&s->memory, n->p.inputs.bytes, 1);
    pooled->room = pooled->data == NULL ? 0 : n->p.inputs.bytes;
    return pooled->data != NULL;
}

cml_status cml_submit(cml_scheduler *s, cml_net *net, const cml_input *inputs, size_t count,
                      const cml_job_options *options, cml_job *handle, cml_error *error) {
    static const cml_job_options standard = {0.0, 0.0, NULL};
    network *n = network_of(net);
    if (options == NULL) options = &standard;
    *handle = 0;
    if (n == NULL || n->is_unloaded) return WRONG(NO_NETWORK);
    TRY(check_submit(s, n, count, options, error));
    job *pooled = cml__find_free_job(s);
    if (pooled == NULL)
        return cml__fail(error, CML_ERROR_FULL, "there are %u jobs: release some", s->max_jobs);
    drop_inputs(s, pooled); /* of a failed job, which is forgotten */
    drop_result(s, pooled);
    if (!make_room(s, pooled, n) || !cml__adopt_net(s, n)) return NO_MEMORY(error, "a job");
    job submitted = {
        .net = n, .data = pooled->data, .room = pooled->room, .source_count = n->p.inputs.count};
    cml_status status = CML_OK;
    for (size_t i = 0; i < count && status == CML_OK; i++)
        status = accept_input(s, &submitted, inputs + i, error);
    if (status != CML_OK) {
        drop_inputs(s, &submitted);
        return status;
    }
    submitted.number = ++s->numbers;
    submitted.priority = 1.0;
    if (options->priority > 0) submitted.priority = options->priority;
    if (options->priority < 0) submitted.priority = 0.0; /* CML_IDLE */
    submitted.last_served_ms = cml__steady_now(s);
    submitted.has_deadline = options->deadline_ms > 0;
    submitted.deadline_at = submitted.last_served_ms + options->deadline_ms;
    if (options->slot != NULL) snprintf(submitted.slot, sizeof submitted.slot, "%s", options->slot);
    for (uint32_t i = 0; i < submitted.producer_count; i++) submitted.producers[i]->consumers++;
    *pooled = submitted;
    *handle = submitted.number;
    cml__enqueue(s, pooled);
    return CML_OK;
}

/* ------------------------------------------------------------------ after that */

cml_job_info cml_get_job_info(cml_scheduler *s, cml_job handle) {
    job *j = cml__find_job(s, handle);
    if (j == NULL) return (cml_job_info){.state = CML_STATE_GONE, .error = ""};
    cml_job_info info = {.state = j->run.state, .paused = j->paused, .error = j->error};
    if (j->run.state == CML_STATE_DONE) info.progress = 1.0;
    if (is_over(j)) return info;
    double left = cml__remaining_ms(s, j);
    if (left + j->run.given_ms > 0) info.progress = j->run.given_ms / (left + j->run.given_ms);
    info.eta_ms = cml__eta_ms(s, j);
    return info;
}

void cml_cancel(cml_scheduler *s, cml_job handle) {
    job *j = cml__find_job(s, handle);
    if (j != NULL) cml__end_job(s, j, CML_STATE_CANCELLED, "cancelled by the host");
}

void cml_pause(cml_scheduler *s, cml_job handle, int paused) {
    job *j = cml__find_job(s, handle);
    if (j != NULL && !is_over(j)) j->paused = paused != 0;
}

void cml_release(cml_scheduler *s, cml_job handle) {
    job *j = cml__find_job(s, handle);
    if (j == NULL) return;
    cml__end_job(s, j, CML_STATE_CANCELLED, "released by the host");
    j->released = 1;
    cml__reclaim_jobs(s);
}

/* Returns 1 if the job has not ended and will have an output of this name. */
static int is_coming(const job *j, const char *output) {
    return j != NULL && !is_over(j) && find_tensor(&j->net->p.outputs, output) != NULL;
}

/* Returns the output of a job that is done; NULL otherwise. */
static const tensor *find_output(const job *j, const char *name) {
    if (j == NULL || j->run.state != CML_STATE_DONE || j->released || j->result == NULL)
        return NULL;
    return find_tensor(&j->net->p.outputs, name);
}

cml_status cml_get_tensor(cml_scheduler *s, cml_job handle, const char *output,
                          cml_tensor *result) {
    const job *j = cml__find_job(s, handle);
    if (is_coming(j, output)) return CML_PENDING;
    const tensor *from = find_output(j, output);
    if (from == NULL) return CML_ERROR_INPUT;
    *result = (cml_tensor){.buffer = BACKEND(s, get_handle, j->result->from),
                           .offset = from->packed_at,
                           .bytes = from->shape.bytes,
                           .shape = from->shape};
    return CML_OK;
}

/* Finds an output of a job that is on its way to the host, and requests it. Returns CML_PENDING
 * until it has arrived, and all frames that made it have run. */
cml_status cml__find_read(const cml_scheduler *s, job *j, const char *output, const tensor **found,
                          const uint8_t **data, cml_error *error) {
    int waits = is_coming(j, output);
    const tensor *from = waits ? find_tensor(&j->net->p.outputs, output) : find_output(j, output);
    *found = from;
    if (from == NULL)
        return WRONG("no output '%s': %s", output ? output : "",
                     j != NULL && j->error[0] ? j->error : "see cml_get_output_shape");
    j->read_requested = 1; /* a frame copies the outputs */
    if (waits) return CML_PENDING;
    const readback *r = j->result, *slot = &s->ring[r->frame % RING];
    int has_run = slot->state == READBACK_FREE || slot->frame != r->frame;
    cml_status status = CML_PENDING;
    if (r->state == READBACK_REQUESTED && has_run) status = cml__poll_readback(s, r, data);
    if (status > CML_PENDING || (status == CML_PENDING && s->lost)) /* no frame will copy it */
        return cml__fail(error, CML_ERROR_DEVICE, "the readback failed: the device is lost");
    if (status == CML_OK) *data += from->packed_at;
    return status;
}

cml_status cml_read(cml_scheduler *s, cml_job handle, const char *output, void *data, size_t bytes,
                    cml_error *error) {
    const tensor *from = NULL;
    const uint8_t *stored = NULL;
    cml_status status = cml__find_read(s, cml__find_job(s, handle), output, &from, &stored, error);
    if (from != NULL && bytes != 4 * from->shape.elements)
        return WRONG("output '%s': wanted %llu bytes, got %llu", output,
                     ULL(4 * from->shape.elements), ULL(bytes));
    if (status == CML_OK) cml__from_layout(&from->shape, stored, data);
    return status;
}
