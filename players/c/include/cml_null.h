/* A backend without a device, for tests: it computes nothing, keeps buffers in host memory, runs
 * copies and timestamps in the order of submission, and checks each call against the rules of
 * cml_backend.h: lifetimes, order, ranges, alignments, usages and barriers. Use it from one thread.
 * cml_null_begin and cml_null_submit, or cml_null_discard, are the host's part of a frame. */
#ifndef CML_NULL_H
#define CML_NULL_H

#include "cml_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cml_null_options {
    cml_device_info info; /* buffer_bytes 0: a device of WebGPU's guaranteed limits */
    cml_allocator allocator;
    void (*on_broken_rule)(void *user, const char *rule); /* required */
    void *user;
    uint32_t answer_after; /* calls of poll() before scopes and mapped buffers are answered */
    uint64_t memory;       /* bytes of all buffers that the device has; 0: any number */
    int is_late; /* as llvmpipe that has drawn, it times passes by their ends, and writes a
                    timestamp that is not resolved at once at the end of the next pass */
} cml_null_options;

typedef struct cml_null_counts {
    uint64_t objects; /* that are not released */
    uint64_t dispatches, copies, writes, barriers;
    uint64_t needless; /* barriers that the next command did not need */
} cml_null_counts;

/* Errors: INPUT: on_broken_rule is NULL; MEMORY. */
CML_API cml_status cml_null_fill(const cml_null_options *options, cml_backend *backend,
                                 cml_error *error);

/* Begins the commands of a frame; NULL without memory. */
CML_API void *cml_null_begin(const cml_backend *backend);
/* Runs the commands, or throws them away, as it does with those that it had no memory for. */
CML_API void cml_null_submit(const cml_backend *backend, void *commands);
CML_API void cml_null_discard(const cml_backend *backend, void *commands);

/* Creates a buffer of the host, for cml_input.buffer; NULL without memory. */
CML_API void *cml_null_create_buffer(const cml_backend *backend, uint64_t bytes);
CML_API void cml_null_release_buffer(const cml_backend *backend, void *buffer);

CML_API cml_null_counts cml_null_get_counts(const cml_backend *backend);

#ifdef __cplusplus
}
#endif
#endif
