/* What frames record by the backend: copies and writes, the barriers between commands that depend
 * on each other, and readbacks. */
#include "internal.h"

/* ------------------------------------------------------------------ barriers */

void cml__begin_commands(cml_scheduler *s, void *commands) {
    s->commands = commands;
    s->use_count = 0;
    s->is_ordered = 0;
}

static int overlap(const cml_range *a, const cml_range *b) {
    return a->buffer == b->buffer && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static int conflicts(const cml_scheduler *s, const cml_range *range, int is_write) {
    for (const buffer_use *a = s->uses; a < s->uses + s->use_count; a++)
        if ((a->is_write || is_write) && overlap(&a->range, range)) return 1;
    return 0;
}

/* Puts a barrier before the next command if it depends on one since the last barrier. It reads the
 * first ranges and writes the others. */
void cml__order(cml_scheduler *s, const cml_range *ranges, uint32_t reads, uint32_t writes) {
    uint32_t count = reads + writes;
    if (s->backend.barrier == NULL) return;
    int is_needed = !s->is_ordered || s->use_count + count > MAX_USES;
    for (uint32_t i = 0; i < count && !is_needed; i++)
        is_needed = conflicts(s, ranges + i, i >= reads);
    if (is_needed) {
        BACKEND(s, barrier, s->commands);
        s->use_count = 0;
        s->is_ordered = 1;
    }
    for (uint32_t i = 0; i < count; i++)
        s->uses[s->use_count++] = (buffer_use){ranges[i], i >= reads};
}

void cml__copy(cml_scheduler *s, const cml_range *from, cml_buffer *to, uint64_t offset) {
    const cml_range ranges[2] = {*from, {to, offset, from->bytes}};
    if (from->bytes == 0) return;
    cml__order(s, ranges, 1, 1);
    BACKEND(s, copy_buffer, s->commands, from, to, offset);
}

/* Writes to a buffer within a frame. */
void cml__write(cml_scheduler *s, cml_buffer *to, uint64_t offset, const void *data,
                uint64_t bytes) {
    const cml_range range = {to, offset, bytes};
    if (bytes == 0) return;
    cml__order(s, &range, 0, 1);
    BACKEND(s, write_buffer, s->commands, to, offset, data, bytes);
}

/* ------------------------------------------------------------------ buffers */

cml_buffer *cml__new_buffer(cml_scheduler *s, heap *of, cml_scope *scope, cml_usage usage,
                            uint64_t bytes) {
    of->counts.buffers++;
    return BACKEND(s, create_buffer, scope, usage, bytes < 256 ? 256 : (bytes + 3) / 4 * 4);
}

void cml__drop_buffer(cml_scheduler *s, cml_buffer **buffer) {
    if (*buffer != NULL) BACKEND(s, release_buffer, *buffer);
    *buffer = NULL;
}

/* Requests the content once the frame that copies is that old. */
void cml__map_readback(const cml_scheduler *s, readback *r, uint32_t frames) {
    if (r->state != READBACK_COPIED || s->frame - r->frame < frames) return;
    r->state = READBACK_REQUESTED;
    BACKEND(s, map_buffer, r->buffer);
}

cml_status cml__poll_readback(const cml_scheduler *s, const readback *r, const uint8_t **data) {
    const void *mapped = NULL;
    cml_status status = BACKEND(s, poll_mapped, r->buffer, &mapped);
    *data = mapped;
    return status;
}

void cml__cancel_readback(const cml_scheduler *s, readback *r) {
    if (r->state == READBACK_REQUESTED) BACKEND(s, unmap_buffer, r->buffer);
    r->state = READBACK_FREE;
}
