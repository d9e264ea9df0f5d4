/* Host memory, and errors. */
#include "internal.h"

#include <stdarg.h>

const char *cml_version(void) { return CML_VERSION; }

const char *cml_status_name(cml_status status) {
    static const char *const names[] = {
        "CML_OK",          "CML_PENDING",      "CML_ERROR_CORRUPT",
        "CML_ERROR_STALE", "CML_ERROR_INPUT",  "CML_ERROR_MEMORY",
        "CML_ERROR_FULL",  "CML_ERROR_DEVICE", "CML_ERROR_LIMIT",
    };
    size_t index = (size_t)status;
    return index < sizeof names / sizeof *names ? names[index] : "unknown cml_status";
}

void *cml_allocate(const cml_allocator *from, size_t bytes) {
    if (!is_whole(from)) return NULL;
    void *taken = from->allocate != NULL ? from->allocate(from->user, bytes) : malloc(bytes);
    if (taken != NULL) memset(taken, 0, bytes);
    return taken;
}

void cml_deallocate(const cml_allocator *to, void *taken, size_t bytes) {
    if (to->release != NULL)
        to->release(to->user, taken, bytes);
    else
        free(taken);
}

/* Returns zeroed memory, or NULL. */
void *cml__heap_alloc(heap *from, uint64_t count, size_t size) {
    block *b = NULL;
    if (size == 0 || count <= (SIZE_MAX - sizeof *b) / size) {
        size_t bytes = sizeof *b + (size_t)count * size;
        b = cml_allocate(&from->allocator, bytes);
        if (b != NULL) b->bytes = bytes;
    }
    if (b == NULL) {
        from->exhausted = 1;
        return NULL;
    }
    b->next = from->blocks;
    from->blocks = b;
    from->counts.host_blocks++;
    return b + 1;
}

/* Frees one allocation; quick for recent ones. */
void cml__heap_free(heap *from, const void *memory) {
    for (block **at = &from->blocks; *at != NULL; at = &(*at)->next) {
        block *b = *at;
        if ((const void *)(b + 1) != memory) continue;
        *at = b->next;
        cml_deallocate(&from->allocator, b, b->bytes);
        return;
    }
}

/* Frees all allocations. Takes a copy, because the heap itself may lie in one of them. */
void cml__heap_free_all(heap from) {
    block *next;
    for (block *b = from.blocks; b != NULL; b = next) {
        next = b->next;
        cml_deallocate(&from.allocator, b, b->bytes);
    }
}

cml_status cml__fail(cml_error *error, cml_status status, const char *format, ...) {
    va_list values;
    if (error == NULL) return status;
    error->status = status;
    va_start(values, format);
    vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
    return status;
}

cml_status cml_fail(cml_error *error, cml_status status, const char *text) {
    return cml__fail(error, status, "%s", text);
}
