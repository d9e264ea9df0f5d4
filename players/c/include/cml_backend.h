/* A backend: the table of functions by which the player uses a device. cml_webgpu.h fills it for
 * webgpu.h; an engine with an API of its own fills it itself. cml_null.h has one without a device,
 * which checks each call of the player against the rules below.
 *
 * Rules for all functions:
 *
 * - `user` is cml_backend.user. Handles are the backend's own; the player only compares them with
 *   NULL. A handle that a function returned is valid until the player releases it.
 * - No function but destroy() may wait for the GPU, and none may call back into the player.
 * - They are called on the thread that calls cml_encode and cml_end_frame. Those marked [any] are
 *   also called by cml_load_cooked and cml_build, on the thread of these, while another thread may
 *   be in a frame.
 * - `commands` is what the host passed to cml_encode. The player records into it between cml_encode
 *   and the return of it, and never afterwards.
 * - A function that can be refused takes an error scope. It returns a handle, or NULL if it knows
 * at once that it fails; the scope then has the reason. An error may also arrive later: the player
 *   dispatches pipelines and bindings only after poll_scope() has returned CML_OK.
 * - A released object may still be in use by commands that were recorded before: the backend frees
 *   it when these have run or have been thrown away. */
#ifndef CML_BACKEND_H
#define CML_BACKEND_H

#include "cml.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cml_buffer cml_buffer;
typedef struct cml_pipeline cml_pipeline;
typedef struct cml_bindings cml_bindings;
typedef struct cml_scope cml_scope;

/* A device's facts, which decide the profile that a network gets. */
typedef struct cml_device_info {
    char name[256];           /* cooked files guess a device's speed by its name */
    uint64_t buffer_bytes;    /* the largest buffer */
    uint64_t binding_bytes;   /* the largest range that is bound as a tensor */
    uint32_t storage_buffers; /* tensors of a kernel */
    uint32_t storage_alignment, uniform_alignment; /* of the offsets of bound ranges */
    uint32_t threads, shared_bytes;                /* of a workgroup */
    uint32_t groups_per_dimension;                 /* of a dispatch; at least 65535 */
    uint32_t lanes;                                /* of a subgroup; 0: no subgroups */
    double tick_ms;     /* milliseconds per tick of a timestamp; 0: there are no timestamps */
    int has_half;       /* kernels may compute in 16 bits */
    int takes_spirv;    /* of trusted files; WGSL is used where this is 0 */
    int takes_wgsl;     /* else files without SPIR-V do not fit */
    int is_software;    /* the device is a CPU */
    int times_pass_end; /* passes are timed by their ends: a timestamp at the begin is of no use */
} cml_device_info;

typedef enum cml_usage {
    CML_USAGE_TENSOR,   /* storage; the source and target of copies; written by the host */
    CML_USAGE_UNIFORM,  /* a uniform; written by the host */
    CML_USAGE_QUERIES,  /* the target of resolve_queries; the source and target of copies */
    CML_USAGE_READBACK, /* the target of copies; read by the host */
} cml_usage;

typedef enum cml_language { CML_LANGUAGE_WGSL, CML_LANGUAGE_SPIRV } cml_language;

/* A kernel. Its entry point is `main`, its bindings lie in group 0: binding 0 is a uniform of 16
 * bytes whose offset is given with each dispatch (the first workgroup, the end, and the number of
 * workgroups in a row, as uint32), binding 1 a uniform of `params_bytes`, and `tensors` storage
 * buffers follow. */
typedef struct cml_kernel {
    cml_text label;
    cml_language language;
    const void *code; /* valid during the call */
    size_t bytes;
    uint32_t tensors, params_bytes;
    int uses_half, uses_subgroups;
    int is_unchecked; /* the host trusts the file: the kernel needs no bounds checks */
    /* 32 bytes that identify the kernel. In hexadecimal its first four end the names of the files
     * that `cml cook --dump-kernels` writes: HLSL, Metal and others. */
    const uint8_t *digest;
} cml_kernel;

typedef struct cml_range { /* offset and bytes are multiples of 4 */
    cml_buffer *buffer;
    uint64_t offset, bytes;
} cml_range;

enum {
    CML_QUERIES = 224,          /* timestamps that the player uses, numbered from 0 */
    CML_FRAMES_BEFORE_READ = 2, /* frames between a copy to a readback buffer and map_buffer */
    CML_MOST_BINDINGS = 66
};

struct cml_backend {
    void *user;
    int is_taken; /* 0; cml_create sets it, because a table serves one scheduler */

    /* Frees the backend; nothing is called after it. All objects have been released. It may wait
     * for uploads of its own. */
    void (*destroy)(void *user);
    /* Fills in the device's facts and returns 1. With `could_be`, what a device of the same
     * hardware could have if the host requested more, for better messages; returns 0 if unknown.
     * [any] */
    int (*get_info)(void *user, int could_be, cml_device_info *info);
    /* Lets errors and mapped buffers arrive. [any] */
    void (*poll)(void *user);

    /* An error scope collects the errors of calls that it is given to. Returns NULL without memory.
     * [any]
     */
    cml_scope *(*create_scope)(void *user);
    /* Returns CML_PENDING while an answer is outstanding; then CML_OK, or the status of the first
     * error, CML_ERROR_MEMORY or CML_ERROR_DEVICE, and its text of less than `room` bytes with an
     * end mark. A kernel may be compiled on other threads until then. [any] */
    cml_status (*poll_scope)(void *user, cml_scope *scope, char *text, size_t room);
    void (*release_scope)(void *user, cml_scope *scope);

    /* Creates a zeroed buffer; `bytes` is a multiple of 4. Readback buffers are created and
     * released in frames only. [any] */
    cml_buffer *(*create_buffer)(void *user, cml_scope *scope, cml_usage usage, uint64_t bytes);
    /* Takes a reference to what the host gives for an input, cml_input.buffer, until
     * release_buffer; sets its size. Returns NULL if it is none to copy `shape` from. */
    cml_buffer *(*adopt_buffer)(void *user, void *handle, const cml_shape *shape, uint64_t *bytes);
    /* [any] */
    void (*release_buffer)(void *user, cml_buffer *buffer);
    /* Returns what cml_tensor.buffer is to be: a handle of the host's API. */
    void *(*get_handle)(void *user, cml_buffer *buffer);
    /* Copies `data` into a buffer; offset and bytes are multiples of 4. In a frame the bytes are
     * there for what is recorded into `commands` afterwards, while commands of earlier frames still
     * read the old ones; they may be lost with the commands. With `commands` of NULL they are there
     * for all later commands. [any] */
    void (*write_buffer)(void *user, void *commands, cml_buffer *to, uint64_t offset,
                         const void *data, uint64_t bytes);

    /* Creates a compute pipeline. [any] */
    cml_pipeline *(*create_pipeline)(void *user, cml_scope *scope, const cml_kernel *kernel);
    /* [any] */
    void (*release_pipeline)(void *user, cml_pipeline *pipeline);
    /* Binds the ranges 0, 1, 2 ... of a kernel, of which it writes the last `writes`; their offsets
     * are multiples of the device's alignments, and those that it writes overlap no other. With
     * `is_tried`, for a file that is not trusted, it also reports what a dispatch with them would
     * be refused for. The pipeline may still be being compiled. [any] */
    cml_bindings *(*create_bindings)(void *user, cml_scope *scope, cml_pipeline *pipeline,
                                     const cml_range *ranges, uint32_t count, uint32_t writes,
                                     int is_tried);
    /* [any] */
    void (*release_bindings)(void *user, cml_bindings *bindings);

    /* Begins and ends a pass of dispatches. The timestamps of its begin and end are written to
     * these queries; below 0: none. */
    void (*begin_pass)(void *user, void *commands, int begin_query, int end_query);
    void (*end_pass)(void *user, void *commands);
    /* Records a dispatch of `x` times `y` workgroups, within a pass. `offset` is that of binding 0,
     * a multiple of uniform_alignment. */
    void (*dispatch)(void *user, void *commands, cml_pipeline *pipeline, cml_bindings *bindings,
                     uint32_t offset, uint32_t x, uint32_t y);
    /* Copies a range of a buffer to another one, outside of passes; offsets and bytes are
     * multiples of 4. */
    void (*copy_buffer)(void *user, void *commands, const cml_range *from, cml_buffer *to,
                        uint64_t offset);
    /* Makes what was recorded before, in this and in earlier frames, visible to what follows: its
     * writes by shaders, copies and the host, and its reads, before later writes. The player calls
     * it between commands that depend on each other, and not between others, also within a pass.
     * NULL for an API that orders them itself. */
    void (*barrier)(void *user, void *commands);
    /* Copies timestamps that passes of these commands wrote, as uint64 ticks, into a buffer, at a
     * multiple of 256. NULL without timestamps. */
    void (*resolve_queries)(void *user, void *commands, uint32_t first, uint32_t count,
                            cml_buffer *to, uint64_t offset);

    /* Requests the content of a readback buffer, CML_FRAMES_BEFORE_READ frames or more after the
     * copy into it. */
    void (*map_buffer)(void *user, cml_buffer *buffer);
    /* Returns CML_PENDING; then CML_OK and the content, valid until unmap_buffer; or
     * CML_ERROR_DEVICE. */
    cml_status (*poll_mapped)(void *user, cml_buffer *buffer, const void **data);
    /* Takes a request back, whether it is answered or not; copies into the buffer may follow. */
    void (*unmap_buffer)(void *user, cml_buffer *buffer);
};

/* The functions of a table that have the names of its members: all but `barrier`. */
#define CML_BACKEND_FUNCTIONS                                                                      \
    .destroy = destroy, .get_info = get_info, .poll = poll, .create_scope = create_scope,          \
    .poll_scope = poll_scope, .release_scope = release_scope, .create_buffer = create_buffer,      \
    .adopt_buffer = adopt_buffer, .release_buffer = release_buffer, .get_handle = get_handle,      \
    .write_buffer = write_buffer, .create_pipeline = create_pipeline,                              \
    .release_pipeline = release_pipeline, .create_bindings = create_bindings,                      \
    .release_bindings = release_bindings, .begin_pass = begin_pass, .end_pass = end_pass,          \
    .dispatch = dispatch, .copy_buffer = copy_buffer, .resolve_queries = resolve_queries,          \
    .map_buffer = map_buffer, .poll_mapped = poll_mapped, .unmap_buffer = unmap_buffer

/* Host memory for a backend: zeroed, or NULL if there is none left. */
CML_API void *cml_allocate(const cml_allocator *allocator, size_t bytes);
CML_API void cml_deallocate(const cml_allocator *allocator, void *block, size_t bytes);

/* Fills in an error, which may be NULL; returns its status. */
CML_API cml_status cml_fail(cml_error *error, cml_status status, const char *text);

/* What the best profile of a cooked file needs of a device that it fits. */
typedef struct cml_needs {
    char profile[64];
    uint64_t buffer_bytes, binding_bytes;
    uint32_t storage_buffers, storage_alignment, uniform_alignment, threads, shared_bytes, lanes;
    int uses_half;
} cml_needs;

/* Chooses a profile for a device that is still to be created: `info` is what it could have.
 * Errors: STALE: none fits; CORRUPT; LIMIT: of an untrusted file; MEMORY. */
CML_API cml_status cml_get_needs(const cml_device_info *info, const void *bytes, size_t size,
                                 uint32_t flags, cml_needs *needs, cml_error *error);

#ifdef __cplusplus
}
#endif
#endif
