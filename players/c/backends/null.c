/* The backend without a device. */
#include "cml_null.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { A_SCOPE, A_BUFFER, A_PIPELINE, BINDINGS, COMMANDS } kind;

typedef struct object { /* begins every object */
    struct object *next;
    kind is;
    size_t bytes;      /* of the whole object */
    uint32_t users;    /* commands that are not run yet */
    int is_released;   /* by the player; freed without users */
    cml_scope *scope;  /* whose errors concern it */
    int is_answered;   /* the scope was OK after its creation */
    uint64_t asked_at; /* the number of polls at its creation */
} object;

struct cml_scope {
    object base;
    cml_status status;
    char text[120];
};

struct cml_buffer {
    object base;
    cml_usage usage;
    uint64_t size, copied_in; /* copied_in: the frame of the last copy to it */
    int references;           /* of the host and the player */
    int is_requested;
    uint64_t requested_at; /* the number of polls at the request */
    uint8_t *data;         /* behind the object */
};

struct cml_pipeline {
    object base;
    uint32_t tensors, params_bytes;
};

struct cml_bindings {
    object base;
    cml_pipeline *pipeline;
    cml_range ranges[CML_MOST_BINDINGS];
    uint32_t count, writes;
};

typedef enum op { WRITE, COPY, BEGIN_PASS, END_PASS, DISPATCH, BARRIER, RESOLVE } op;

typedef struct command {
    struct command *next;
    op is;
    size_t bytes; /* of the command with its data */
    cml_range from, to;
    cml_bindings *bindings;
    uint32_t offset, groups; /* of a dispatch */
    int begin, end;          /* queries */
    uint32_t count;
} command;

typedef struct commands {
    object base;
    command *first, **last;
    int is_in_pass, is_incomplete; /* is_incomplete: there was no memory for a command */
    uint8_t is_written[CML_QUERIES];
} commands;

typedef struct range_use {
    cml_range range;
    int is_write;
} range_use;

typedef struct use_list {
    range_use items[1024];
    uint32_t count;
} use_list;

typedef struct null_device {
    cml_null_options options;
    object *objects;
    uint64_t polls, frames, used, ticks;
    uint64_t queries[CML_QUERIES];
    int late_query;        /* a query that was not written yet, or -1 */
    use_list uses, before; /* since the last barrier, and before it */
    int is_behind_barrier; /* the last command was a barrier */
    cml_null_counts counts;
} null_device;

/* ------------------------------------------------------------------ rules and objects */

static void broken(const null_device *n, const char *rule) {
    n->options.on_broken_rule(n->options.user, rule);
}

#define RULE(what, text)                                                                           \
    do {                                                                                           \
        if (!(what)) broken(n, text);                                                              \
    } while (0)

/* Checks a rule without which the function cannot go on. */
#define REQUIRE(what, result, text)                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            broken(n, text);                                                                       \
            return result;                                                                         \
        }                                                                                          \
    } while (0)

static void *take(const null_device *n, size_t bytes) {
    return cml_allocate(&n->options.allocator, bytes);
}

static void give_back(const null_device *n, void *block, size_t bytes) {
    cml_deallocate(&n->options.allocator, block, bytes);
}

static void *create(null_device *n, cml_scope *scope, kind is, size_t bytes) {
    object *o = take(n, bytes);
    if (o == NULL) return NULL;
    *o = (object){.next = n->objects, .is = is, .bytes = bytes, .scope = scope};
    o->asked_at = n->polls;
    n->objects = o;
    n->counts.objects++;
    return o;
}

/* Returns 1 if a handle is that of a living object of that kind; a pointer that is none is not
 * read. */
static int is_alive(const null_device *n, const void *handle, kind is) {
    for (const object *o = n->objects; o != NULL; o = o->next)
        if ((const void *)o == handle) return o->is == is && !o->is_released;
    return 0;
}

static void forget_uses(use_list *list, const cml_buffer *gone) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i].range.buffer != gone) list->items[kept++] = list->items[i];
    list->count = kept;
}

static void free_unused(null_device *n, object *gone) {
    object **at = &n->objects;
    if (!gone->is_released || gone->users > 0) return;
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    if (gone->is == A_BUFFER) {
        const cml_buffer *buffer = (cml_buffer *)(void *)gone;
        n->used -= buffer->size;
        forget_uses(&n->uses, buffer);
        forget_uses(&n->before, buffer);
    }
    give_back(n, gone, gone->bytes);
}

static void release_object(null_device *n, void *handle, kind is) {
    object *o = handle;
    REQUIRE(is_alive(n, handle, is), , "an object is released twice, or is none");
    o->is_released = 1;
    n->counts.objects--;
    free_unused(n, o);
}

static void refuse(cml_scope *scope, cml_status status, const char *text) {
    if (scope == NULL || scope->status != CML_OK) return;
    scope->status = status;
    snprintf(scope->text, sizeof scope->text, "%s", text);
}

/* ------------------------------------------------------------------ the device and scopes */

static void free_commands(const null_device *n, const commands *list) {
    for (command *next, *c = list->first; c != NULL; c = next) {
        next = c->next;
        give_back(n, c, c->bytes);
    }
}

static void destroy(void *user) {
    null_device *n = user;
    RULE(n->counts.objects == 0, "the backend is destroyed before its objects");
    for (object *next, *o = n->objects; o != NULL; o = next) {
        next = o->next;
        if (o->is == COMMANDS) free_commands(n, (commands *)(void *)o);
        give_back(n, o, o->bytes);
    }
    give_back(n, n, sizeof *n);
}

static int get_info(void *user, int could_be, cml_device_info *info) {
    const null_device *n = user;
    if (could_be) return 0;
    *info = n->options.info;
    return 1;
}

static void poll(void *user) { ((null_device *)user)->polls++; }

static cml_scope *create_scope(void *user) {
    return create(user, NULL, A_SCOPE, sizeof(cml_scope));
}

static cml_status poll_scope(void *user, cml_scope *scope, char *text, size_t room) {
    null_device *n = user;
    int is_pending = 0;
    REQUIRE(is_alive(n, scope, A_SCOPE), CML_ERROR_DEVICE,
            "a scope is polled that is released, or is none");
    if (scope->status != CML_OK) {
        if (room > 0) snprintf(text, room, "%s", scope->text);
        return scope->status;
    }
    for (const object *o = n->objects; o != NULL; o = o->next)
        if (o->scope == scope && n->polls - o->asked_at < n->options.answer_after) is_pending = 1;
    if (is_pending) return CML_PENDING;
    for (object *o = n->objects; o != NULL; o = o->next)
        if (o->scope == scope) o->is_answered = 1;
    return CML_OK;
}

static void release_scope(void *user, cml_scope *scope) {
    null_device *n = user;
    for (object *o = n->objects; o != NULL; o = o->next)
        if (o->scope == scope) o->scope = NULL;
    release_object(n, scope, A_SCOPE);
}

/* ------------------------------------------------------------------ buffers */

static int is_range(const null_device *n, const cml_range *r) {
    REQUIRE(is_alive(n, r->buffer, A_BUFFER), 0, "a buffer is used that is released, or is none");
    RULE(r->offset % 4 == 0 && r->bytes % 4 == 0, "an offset or size is no multiple of 4");
    if (r->bytes > 0 && r->offset <= r->buffer->size && r->bytes <= r->buffer->size - r->offset)
        return 1;
    broken(n, "a range is empty, or not inside its buffer");
    return 0;
}

static cml_buffer *add_buffer(null_device *n, cml_scope *scope, cml_usage usage, uint64_t bytes) {
    cml_buffer *b = NULL;
    if (n->options.memory == 0 || n->used + bytes <= n->options.memory)
        b = create(n, scope, A_BUFFER, sizeof *b + (size_t)bytes);
    if (b == NULL) {
        refuse(scope, CML_ERROR_MEMORY, "the null device has no memory");
        return NULL;
    }
    b->usage = usage;
    b->size = bytes;
    b->references = 1;
    b->data = (uint8_t *)(b + 1);
    n->used += bytes;
    return b;
}

static cml_buffer *create_buffer(void *user, cml_scope *scope, cml_usage usage, uint64_t bytes) {
    null_device *n = user;
    RULE(is_alive(n, scope, A_SCOPE), "a buffer is created without a scope");
    RULE(bytes > 0 && bytes % 4 == 0, "a buffer's size is no multiple of 4");
    RULE(usage <= CML_USAGE_READBACK, "a buffer has an unknown usage");
    if (bytes > n->options.info.buffer_bytes) {
        refuse(scope, CML_ERROR_DEVICE, "a buffer is larger than buffer_bytes");
        return NULL;
    }
    return add_buffer(n, scope, usage, bytes);
}

static cml_buffer *adopt_buffer(void *user, void *handle, const cml_shape *shape, uint64_t *bytes) {
    null_device *n = user;
    cml_buffer *b = handle;
    (void)shape;
    if (!is_alive(n, handle, A_BUFFER)) return NULL;
    b->references++;
    *bytes = b->size;
    return b;
}

static void release_buffer(void *user, cml_buffer *buffer) {
    null_device *n = user;
    if (is_alive(n, buffer, A_BUFFER) && --buffer->references > 0) return;
    release_object(n, buffer, A_BUFFER);
}

static void *get_handle(void *user, cml_buffer *buffer) {
    const null_device *n = user;
    RULE(is_alive(n, buffer, A_BUFFER), "the handle of a released buffer is requested");
    return buffer;
}

/* ------------------------------------------------------------------ recording */

static void use(object *o) { o->users++; }

static command *record(const null_device *n, void *to, op is, size_t data_bytes) {
    commands *list = to;
    REQUIRE(is_alive(n, to, COMMANDS), NULL,
            "commands are recorded that were submitted, discarded, or are none");
    int is_within = is == DISPATCH || is == END_PASS;
    if (is != BARRIER && list->is_in_pass != is_within) {
        broken(n, is_within ? "a dispatch or the end of a pass is outside of a pass"
                            : "a copy, a write or a pass is within a pass");
        return NULL;
    }
    if (is == BEGIN_PASS || is == END_PASS) list->is_in_pass = is == BEGIN_PASS;
    size_t bytes = sizeof(command) + data_bytes;
    command *c = take(n, bytes);
    if (c == NULL) {
        list->is_incomplete = 1;
        return NULL;
    }
    c->is = is;
    c->bytes = bytes;
    *list->last = c;
    list->last = &c->next;
    return c;
}

static void write_buffer(void *user, void *to_commands, cml_buffer *to, uint64_t offset,
                         const void *data, uint64_t bytes) {
    null_device *n = user;
    cml_range range = {to, offset, bytes};
    if (!is_range(n, &range)) return;
    RULE(to->usage != CML_USAGE_READBACK, "a readback buffer is written");
    n->counts.writes++;
    if (to_commands == NULL) {
        memcpy(to->data + offset, data, (size_t)bytes);
        return;
    }
    command *c = record(n, to_commands, WRITE, (size_t)bytes);
    if (c == NULL) return;
    c->to = range;
    memcpy(c + 1, data, (size_t)bytes);
    use(&to->base);
}

static void copy_buffer(void *user, void *to_commands, const cml_range *from, cml_buffer *to,
                        uint64_t offset) {
    null_device *n = user;
    cml_range target = {to, offset, from->bytes};
    if (!is_range(n, from) || !is_range(n, &target)) return;
    RULE(from->buffer != to, "a buffer is copied to itself");
    RULE(from->buffer->usage == CML_USAGE_TENSOR || from->buffer->usage == CML_USAGE_QUERIES,
         "a copy's source is no tensor");
    RULE(to->usage != CML_USAGE_UNIFORM, "a copy's target is a uniform");
    RULE(!to->is_requested, "a copy's target is mapped, or its mapping was requested");
    command *c = record(n, to_commands, COPY, 0);
    if (c == NULL) return;
    c->from = *from;
    c->to = target;
    to->copied_in = n->frames;
    n->counts.copies++;
    use(&from->buffer->base);
    use(&to->base);
}

static void barrier(void *user, void *to_commands) {
    null_device *n = user;
    if (record(n, to_commands, BARRIER, 0) != NULL) n->counts.barriers++;
}

static void mark_query(const null_device *n, commands *list, int query) {
    if (query < 0) return;
    REQUIRE(query < CML_QUERIES && n->options.info.tick_ms > 0, , "a timestamp has no such query");
    RULE(!list->is_written[query], "two passes write the same query");
    list->is_written[query] = 1;
}

static void begin_pass(void *user, void *to_commands, int begin_query, int end_query) {
    null_device *n = user;
    commands *list = to_commands;
    command *c = record(n, to_commands, BEGIN_PASS, 0);
    if (c == NULL) return;
    c->begin = begin_query;
    c->end = end_query;
    mark_query(n, list, begin_query);
    mark_query(n, list, end_query);
}

static void end_pass(void *user, void *to_commands) { record(user, to_commands, END_PASS, 0); }

static void resolve_queries(void *user, void *to_commands, uint32_t first, uint32_t count,
                            cml_buffer *to, uint64_t offset) {
    null_device *n = user;
    const commands *list = to_commands;
    cml_range target = {to, offset, 8 * (uint64_t)count};
    if (!is_range(n, &target)) return;
    RULE(offset % 256 == 0, "timestamps are resolved to no multiple of 256");
    RULE(to->usage == CML_USAGE_QUERIES, "timestamps are resolved to another buffer");
    REQUIRE(first < CML_QUERIES && count <= CML_QUERIES - first, ,
            "queries are resolved that there are not");
    command *c = record(n, to_commands, RESOLVE, 0);
    if (c == NULL) return;
    for (uint32_t i = first; i < first + count; i++)
        RULE(list->is_written[i] || list->is_incomplete,
             "a query is resolved that no pass has written");
    c->to = target;
    c->begin = (int)first;
    c->count = count;
    use(&to->base);
}

/* ------------------------------------------------------------------ kernels */

static cml_pipeline *create_pipeline(void *user, cml_scope *scope, const cml_kernel *kernel) {
    null_device *n = user;
    const cml_device_info *info = &n->options.info;
    RULE(is_alive(n, scope, A_SCOPE), "a pipeline is created without a scope");
    RULE(kernel->code != NULL && kernel->bytes > 0, "a kernel has no code");
    RULE(kernel->language == CML_LANGUAGE_SPIRV ? info->takes_spirv : info->takes_wgsl,
         "a kernel is in a language that the device does not take");
    RULE(!kernel->uses_half || info->has_half, "a kernel uses 16 bits, which the device lacks");
    RULE(!kernel->uses_subgroups || info->lanes > 0, "a kernel uses subgroups, which it lacks");
    RULE(kernel->tensors <= info->storage_buffers, "a kernel has too many tensors");
    cml_pipeline *p = create(n, scope, A_PIPELINE, sizeof *p);
    if (p == NULL) {
        refuse(scope, CML_ERROR_MEMORY, "no memory for a pipeline");
        return NULL;
    }
    p->tensors = kernel->tensors;
    p->params_bytes = kernel->params_bytes;
    return p;
}

static void release_pipeline(void *user, cml_pipeline *pipeline) {
    release_object(user, pipeline, A_PIPELINE);
}

static int overlap(const cml_range *a, const cml_range *b) {
    return a->buffer == b->buffer && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static void check_range(const null_device *n, const cml_bindings *b, uint32_t i) {
    const cml_device_info *info = &n->options.info;
    const cml_range *r = &b->ranges[i];
    uint32_t alignment = i < 2 ? info->uniform_alignment : info->storage_alignment;
    if (!is_range(n, r)) return;
    RULE(r->offset % alignment == 0, "a binding is not at a multiple of the device's alignment");
    RULE(r->buffer->usage == (i < 2 ? CML_USAGE_UNIFORM : CML_USAGE_TENSOR),
         "a binding is to a buffer of another usage");
    RULE(i != 0 || r->bytes == 16, "binding 0 has not 16 bytes");
    RULE(i != 1 || r->bytes == b->pipeline->params_bytes, "binding 1 is not of the kernel's size");
    RULE(r->bytes <= info->binding_bytes, "a binding is larger than binding_bytes");
}

/* Returns 1 if a range that the kernel writes overlaps another one. */
static int is_bound_twice(const cml_bindings *b) {
    for (uint32_t i = b->count - b->writes; i < b->count; i++)
        for (uint32_t k = 2; k < i; k++)
            if (overlap(&b->ranges[i], &b->ranges[k])) return 1;
    return 0;
}

static cml_bindings *create_bindings(void *user, cml_scope *scope, cml_pipeline *pipeline,
                                     const cml_range *ranges, uint32_t count, uint32_t writes,
                                     int is_tried) {
    null_device *n = user;
    RULE(is_alive(n, scope, A_SCOPE), "bindings are created without a scope");
    REQUIRE(is_alive(n, pipeline, A_PIPELINE) && count == pipeline->tensors + 2 && writes > 0 &&
                writes <= pipeline->tensors,
            NULL, "bindings have no pipeline, or another number of ranges");
    cml_bindings *b = create(n, scope, BINDINGS, sizeof *b);
    if (b == NULL) {
        refuse(scope, CML_ERROR_MEMORY, "no memory for bindings");
        return NULL;
    }
    b->pipeline = pipeline;
    b->count = count;
    b->writes = writes;
    memcpy(b->ranges, ranges, count * sizeof *ranges);
    for (uint32_t i = 0; i < count; i++) check_range(n, b, i);
    if (!is_bound_twice(b)) return b;
    RULE(is_tried, "a range that a kernel writes is bound twice");
    refuse(scope, CML_ERROR_DEVICE, "a range that a kernel writes is bound twice");
    return b;
}

static void release_bindings(void *user, cml_bindings *bindings) {
    release_object(user, bindings, BINDINGS);
}

static void dispatch(void *user, void *to_commands, cml_pipeline *pipeline, cml_bindings *bindings,
                     uint32_t offset, uint32_t x, uint32_t y) {
    null_device *n = user;
    const cml_device_info *info = &n->options.info;
    REQUIRE(is_alive(n, pipeline, A_PIPELINE) && is_alive(n, bindings, BINDINGS) &&
                bindings->pipeline == pipeline,
            , "a dispatch has bindings of another pipeline, or one of both is released");
    RULE(pipeline->base.is_answered && bindings->base.is_answered,
         "a dispatch uses what poll_scope has not returned CML_OK for");
    RULE(offset % info->uniform_alignment == 0 && offset % 16 == 0,
         "a dispatch's offset is no multiple of uniform_alignment");
    RULE(x > 0 && y > 0 && x <= info->groups_per_dimension && y <= info->groups_per_dimension,
         "a dispatch has no workgroups, or too many");
    command *c = record(n, to_commands, DISPATCH, 0);
    if (c == NULL) return;
    c->bindings = bindings;
    c->offset = offset;
    c->groups = x * y;
    n->counts.dispatches++;
    use(&bindings->base);
    for (uint32_t i = 0; i < bindings->count; i++) {
        cml_range range = bindings->ranges[i];
        if (i == 0) range.offset = offset;
        if (is_range(n, &range)) use(&range.buffer->base);
    }
}

/* ------------------------------------------------------------------ readbacks */

static void map_buffer(void *user, cml_buffer *buffer) {
    null_device *n = user;
    REQUIRE(is_alive(n, buffer, A_BUFFER) && buffer->usage == CML_USAGE_READBACK &&
                !buffer->is_requested,
            , "a buffer is mapped that is no readback buffer, or is mapped already");
    RULE(n->frames - buffer->copied_in >= CML_FRAMES_BEFORE_READ,
         "a buffer is mapped before CML_FRAMES_BEFORE_READ frames have passed");
    buffer->is_requested = 1;
    buffer->requested_at = n->polls;
}

static cml_status poll_mapped(void *user, cml_buffer *buffer, const void **data) {
    const null_device *n = user;
    REQUIRE(is_alive(n, buffer, A_BUFFER) && buffer->is_requested, CML_ERROR_DEVICE,
            "a buffer is read that is not mapped");
    if (n->polls - buffer->requested_at < n->options.answer_after) return CML_PENDING;
    *data = buffer->data;
    return CML_OK;
}

static void unmap_buffer(void *user, cml_buffer *buffer) {
    const null_device *n = user;
    if (is_alive(n, buffer, A_BUFFER) && buffer->is_requested)
        buffer->is_requested = 0;
    else
        broken(n, "a buffer is unmapped that is not mapped");
}

/* ------------------------------------------------------------------ running */

static int depends(const use_list *list, const cml_range *range, int is_write) {
    for (const range_use *u = list->items; u < list->items + list->count; u++)
        if ((u->is_write || is_write) && overlap(&u->range, range)) return 1;
    return 0;
}

/* Beyond the room of the list, dependencies are not checked. */
static void add_use(use_list *list, const cml_range *range, int is_write) {
    if (list->count < sizeof list->items / sizeof *list->items)
        list->items[list->count++] = (range_use){*range, is_write};
}

/* Checks that no command since the last barrier is in the way. */
static void run_uses(null_device *n, const cml_range *ranges, uint32_t count, uint32_t writes) {
    int is_needed = 0;
    for (uint32_t i = 0; i < count; i++) {
        int is_write = i >= count - writes;
        RULE(!depends(&n->uses, ranges + i, is_write),
             "a command depends on an earlier one without a barrier between them");
        if (depends(&n->before, ranges + i, is_write)) is_needed = 1;
    }
    if (n->is_behind_barrier && !is_needed) n->counts.needless++;
    n->is_behind_barrier = 0;
    for (uint32_t i = 0; i < count; i++) add_use(&n->uses, ranges + i, i >= count - writes);
}

static void run_barrier(null_device *n) {
    n->before = n->uses;
    n->uses.count = 0;
    n->is_behind_barrier = 1;
}

static void run_dispatch(null_device *n, const command *c) {
    cml_range ranges[CML_MOST_BINDINGS];
    memcpy(ranges, c->bindings->ranges, sizeof ranges);
    ranges[0].offset = c->offset;
    run_uses(n, ranges, c->bindings->count, c->bindings->writes);
    n->ticks += 1000 + 100 * (uint64_t)c->groups;
}

static void write_late_query(null_device *n) {
    if (n->late_query >= 0) n->queries[n->late_query] = n->ticks;
    n->late_query = -1;
}

static void run(null_device *n, const command *c, int *end_query) {
    cml_range ranges[2] = {c->from, c->to};
    switch (c->is) {
    case WRITE:
        run_uses(n, &c->to, 1, 1);
        memcpy(c->to.buffer->data + c->to.offset, c + 1, (size_t)c->to.bytes);
        break;
    case COPY:
        run_uses(n, ranges, 2, 1);
        memcpy(c->to.buffer->data + c->to.offset, c->from.buffer->data + c->from.offset,
               (size_t)c->to.bytes);
        break;
    case RESOLVE:
        run_uses(n, &c->to, 1, 1);
        write_late_query(n);
        memcpy(c->to.buffer->data + c->to.offset, n->queries + c->begin, 8 * c->count);
        break;
    case BEGIN_PASS:
        if (c->begin >= 0 && c->begin < CML_QUERIES) n->queries[c->begin] = n->ticks;
        *end_query = c->end;
        break;
    case END_PASS:
        write_late_query(n);
        if (*end_query < CML_QUERIES) n->late_query = *end_query;
        if (!n->options.is_late) write_late_query(n);
        break;
    case DISPATCH:
        run_dispatch(n, c);
        break;
    case BARRIER:
        run_barrier(n);
        break;
    }
}

static void end_use(null_device *n, object *o) {
    o->users--;
    free_unused(n, o);
}

static void end_command(null_device *n, command *c) {
    if (c->bindings != NULL)
        for (uint32_t i = 0; i < c->bindings->count; i++)
            end_use(n, &c->bindings->ranges[i].buffer->base);
    if (c->bindings != NULL) end_use(n, &c->bindings->base);
    if (c->from.buffer != NULL) end_use(n, &c->from.buffer->base);
    if (c->to.buffer != NULL) end_use(n, &c->to.buffer->base);
    give_back(n, c, c->bytes);
}

static void end_commands(null_device *n, commands *list, int is_run) {
    int end_query = -1;
    REQUIRE(is_alive(n, list, COMMANDS), , "commands are submitted twice, or are none");
    RULE(!list->is_in_pass, "commands end within a pass");
    for (command *next, *c = list->first; c != NULL; c = next) {
        next = c->next;
        if (is_run && !list->is_incomplete) run(n, c, &end_query);
        end_command(n, c);
    }
    release_object(n, list, COMMANDS);
}

/* ------------------------------------------------------------------ the table */

static const cml_backend functions = {CML_BACKEND_FUNCTIONS, .barrier = barrier};

cml_status cml_null_fill(const cml_null_options *options, cml_backend *backend, cml_error *error) {
    static const cml_device_info guaranteed = {.name = "null device",
                                               .buffer_bytes = 256 << 20,
                                               .binding_bytes = 128 << 20,
                                               .storage_buffers = 8,
                                               .storage_alignment = 256,
                                               .uniform_alignment = 256,
                                               .threads = 256,
                                               .shared_bytes = 16384,
                                               .groups_per_dimension = 65535,
                                               .tick_ms = 1e-6,
                                               .takes_spirv = 1,
                                               .takes_wgsl = 1};
    null_device described = {.options = *options, .late_query = -1};
    if (options->on_broken_rule == NULL)
        return cml_fail(error, CML_ERROR_INPUT, "on_broken_rule of cml_null_options is NULL");
    null_device *n = take(&described, sizeof *n);
    if (n == NULL) return cml_fail(error, CML_ERROR_MEMORY, "no memory for a backend");
    *n = described;
    if (n->options.info.buffer_bytes == 0) n->options.info = guaranteed;
    if (n->options.is_late) n->options.info.times_pass_end = 1;
    *backend = functions;
    backend->user = n;
    return CML_OK;
}

void *cml_null_begin(const cml_backend *backend) {
    null_device *n = backend->user;
    commands *list = create(n, NULL, COMMANDS, sizeof *list);
    if (list == NULL) return NULL;
    list->last = &list->first;
    n->frames++;
    return list;
}

void cml_null_submit(const cml_backend *backend, void *list) {
    end_commands(backend->user, list, 1);
}

void cml_null_discard(const cml_backend *backend, void *list) {
    end_commands(backend->user, list, 0);
}

void *cml_null_create_buffer(const cml_backend *backend, uint64_t bytes) {
    return add_buffer(backend->user, NULL, CML_USAGE_TENSOR, bytes);
}

void cml_null_release_buffer(const cml_backend *backend, void *buffer) {
    release_buffer(backend->user, buffer);
}

cml_null_counts cml_null_get_counts(const cml_backend *backend) {
    return ((const null_device *)backend->user)->counts;
}
