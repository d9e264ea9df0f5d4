/* Plays cooked networks (docs/cooked.md) inside the frames of a renderer, within a budget of GPU
 * milliseconds: on the renderer's own WebGPU device, in C99, with nothing else.
 * docs/ship_it.md has the ten lines that do it, and threads, device lost, memory, Dawn. */
#ifndef CML_H
#define CML_H

#include <stddef.h>
#include <stdint.h>

#ifndef CML_CORE_ONLY /* without a device: cml_check, and the scheduler's decisions */
#ifdef CML_DAWN
#include <webgpu/webgpu.h>
#else
#include "webgpu.h"
#include "wgpu.h"
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cml_status {
    CML_OK = 0,
    CML_PENDING,       /* not yet: ask again in a later frame */
    CML_ERROR_CORRUPT, /* no cooked file, or a damaged one */
    CML_ERROR_STALE,   /* none of its profiles fits this device, or this player is too old for it */
    CML_ERROR_INPUT,   /* the caller's mistake: an unknown name, a wrong size, a wrong time */
    CML_ERROR_MEMORY,  /* the allocator or the device has no more */
    CML_ERROR_FULL,    /* as many jobs as options.max_jobs are there: release some */
    CML_ERROR_DEVICE,  /* the device refused something, or is lost */
    CML_ERROR_LIMIT    /* the file takes more, unpacked, than cml_limits allow */
} cml_status;

typedef struct cml_error {
    cml_status status;
    char text[480]; /* a line for people: what, wanted against got, what to do */
} cml_error;

typedef struct cml_text { const char *data; size_t length; } cml_text; /* UTF-8, no end mark */

/* float32, int32, uint32; docs/cooked.md has the layouts */
typedef enum cml_type { CML_SCALAR, CML_INTEGER, CML_LOGICAL } cml_type;
typedef enum cml_layout { CML_PLAIN, CML_C4, CML_C4H } cml_layout;

typedef struct cml_shape { /* an input or output of a network */
    cml_text name;
    cml_type type;
    cml_layout layout;
    uint32_t rank, extents[8];
    uint64_t elements, bytes; /* bytes on the device, in that layout */
} cml_shape;

typedef struct cml_allocator { /* where the host's memory comes from; NULL: the C library */
    void *(*take)(void *user, size_t bytes); /* aligned as malloc does; NULL where there is none */
    void (*give_back)(void *user, void *block, size_t bytes);
    void *user;
} cml_allocator;

/* What a file may take when it is unpacked: a small file can state much. It is refused before
 * anything is unpacked. 0: the default; of a trusted file no limit. */
typedef struct cml_limits {
    uint64_t code_bytes;   /* of all kernels: 64 MiB */
    uint64_t device_bytes; /* of a plan's buffers: 2 GiB */
    uint32_t kernels;      /* 4096 */
    uint32_t steps;        /* of a plan: 16384 */
} cml_limits;

/* Returns CML_OK if the bytes are a cooked file without damage that cml_load takes untrusted: all
 * is looked at, no device is needed. limits: NULL for the defaults. */
cml_status cml_check(const void *bytes, size_t size, const cml_limits *limits,
                     const cml_allocator *allocator, cml_error *error);

typedef struct cml_scheduler cml_scheduler;
typedef struct cml_net cml_net;
typedef uint64_t cml_job; /* a handle; 0 is none */

typedef enum cml_policy { CML_LEAST_LAXITY, CML_FAIR_SHARE, CML_BY_PRIORITY } cml_policy;

typedef enum cml_reason { /* why a frame stops */
    CML_NOTHING_TO_DO, CML_BUDGET, CML_WAITING_FOR_GPU, CML_PREPARING, CML_ALL_WAITING,
    CML_FRAME_NOT_ENDED, CML_DEVICE_ERROR
} cml_reason;

typedef struct cml_report { /* what a frame ran */
    uint64_t frame;
    double now_ms, budget_ms, aim_ms, predicted_ms;
    double measured_ms; /* below 0 until it is known, some frames later */
    double cpu_ms;      /* of cml_encode */
    cml_reason reason;
    uint32_t slices, finished; /* parts of steps, and jobs that ended */
} cml_report;

typedef struct cml_slice { /* workgroups [first, first + count) of a step */
    cml_job job;
    uint32_t step, first, count;
    double predicted_ms;
    cml_text op, title;
} cml_slice;

typedef enum cml_state {
    CML_GONE, CML_QUEUED, CML_RUNNING, CML_DONE, CML_CANCELLED, CML_FAILED
} cml_state;

/* what was made so far: none of it changes in steady state */
typedef struct cml_counts { uint64_t host_blocks, buffers, bind_groups, pipelines; } cml_counts;

#ifndef CML_CORE_ONLY
typedef struct cml_options { /* what is 0 or NULL is chosen */
    WGPUDevice device;
    WGPUAdapter adapter;   /* whose device it is: tells what to expect of it */
    WGPUQueue queue;       /* the device's own */
    WGPUInstance instance; /* with Dawn: whose events are processed by cml_end_frame */
    cml_allocator allocator;
    double (*now_ms)(void *user); /* a steady clock */
    void *now_user;
    double frame_ms;   /* the frame time that the game wants: 1000 / 60 */
    double over_share; /* the part of frames that may exceed their budget: 0.01 */
    cml_policy policy;
    uint32_t max_jobs;             /* 64 */
    uint32_t max_slices;           /* of a frame: 256 */
    uint32_t max_frames_in_flight; /* 4; no new work while so many frames' timings are awaited */
    cml_limits limits; /* of the files to load */
    uint32_t granule; /* workgroups that run at once: 1, or the processors of a software driver */
} cml_options;

cml_status cml_create(const cml_options *options, cml_scheduler **scheduler, cml_error *error);
/* Blocks until nothing of the device points into it. Networks must have been unloaded before. */
void cml_destroy(cml_scheduler *scheduler);

enum { CML_TRUSTED = 1 }; /* a file of your own: no run-time checks, 2-3 times as fast */

/* A network of a cooked file. The bytes must stay where they are until cml_build says CML_OK. Any
 * thread may load and build a network that no other thread uses yet. */
cml_status cml_load(cml_scheduler *scheduler, const void *bytes, size_t size, uint32_t flags,
                    cml_net **net, cml_error *error);
/* Upload, build pipelines and bind for about so long: behind a loading screen. CML_OK once all is
 * there, else CML_PENDING. A job's network is built by cml_encode too, a little in every frame. */
cml_status cml_build(cml_net *net, double ms, cml_error *error);
/* Its jobs are cancelled and released; tensors and texts of theirs are gone, and so is `net`, as
 * after free(). Jobs that wait for an output of its jobs fail. */
void cml_unload(cml_scheduler *scheduler, cml_net *net);

/* The shape of an input or output; CML_ERROR_INPUT where there are no more. */
cml_status cml_input_shape(const cml_net *net, uint32_t index, cml_shape *shape);
cml_status cml_output_shape(const cml_net *net, uint32_t index, cml_shape *shape);

typedef struct cml_net_info {
    cml_text profile;
    uint32_t steps;
    uint64_t arena_bytes, weights_bytes, own_bytes;
    double flops, gas;
} cml_net_info;
cml_net_info cml_info(const cml_net *net);

typedef struct cml_tensor { /* a range of a buffer, to bind or to copy from */
    WGPUBuffer buffer;
    uint64_t offset, bytes;
    cml_shape shape;
} cml_tensor;

typedef struct cml_input { /* one of: data of the host, a range of a buffer, another job's output */
    const char *name;
    const void *data; /* plain, 4 bytes an element; copied by cml_submit */
    size_t bytes;
    WGPUBuffer buffer; /* in the network's layout; copied when the job starts */
    uint64_t offset;
    cml_job job; /* waits for it */
    const char *output;
} cml_input;

#define CML_IDLE (-1.0) /* a priority: only what all others leave of a frame */

typedef struct cml_job_options {
    double priority;    /* 0: 1. Its share against other jobs */
    double deadline_ms; /* from now; 0: none */
    const char *slot;   /* a job that waits with the same slot is cancelled in favour of this one */
} cml_job_options;

/* Run the network on these inputs (all of its own, each once), in parts, as the budget allows. */
cml_status cml_submit(cml_scheduler *scheduler, cml_net *net, const cml_input *inputs, size_t count,
                      const cml_job_options *options, cml_job *job, cml_error *error);

typedef struct cml_job_info {
    cml_state state;
    int paused;
    double progress;   /* 0 to 1, by predicted time */
    double eta_ms;     /* to its end if nothing else is submitted */
    const char *error; /* of one that failed */
} cml_job_info;
cml_job_info cml_job_state(cml_scheduler *scheduler, cml_job job);
void cml_cancel(cml_scheduler *scheduler, cml_job job);
void cml_pause(cml_scheduler *scheduler, cml_job job, int paused);
/* Its outputs, and the handle, are not needed any more; what waits for them still has them. */
void cml_release(cml_scheduler *scheduler, cml_job job);
/* An output on the device, until cml_release. */
cml_status cml_tensor_of(cml_scheduler *scheduler, cml_job job, const char *output,
                         cml_tensor *tensor);
/* An output on the host, plain; CML_PENDING until it has arrived, some frames later. */
cml_status cml_read(cml_scheduler *scheduler, cml_job job, const char *output, void *data,
                    size_t bytes, cml_error *error);

/* Append this frame's slices to the host's encoder; never waits. The report: until the next. */
const cml_report *cml_encode(cml_scheduler *scheduler, WGPUCommandEncoder encoder,
                             double budget_ms);
const cml_slice *cml_slices(const cml_scheduler *scheduler); /* of that report */
/* After the host's submit: learns from the timings that have arrived, never waits. The number of
 * frames that are now measured; cml_measured has their reports until the next call. */
uint32_t cml_end_frame(cml_scheduler *scheduler);
const cml_report *cml_measured(const cml_scheduler *scheduler, uint32_t index);
/* Instead of the submit and cml_end_frame where the encoder is thrown away. */
void cml_abandon_frame(cml_scheduler *scheduler);
/* The host's device was lost: every job fails. Then unload, destroy, and begin anew. */
void cml_device_lost(cml_scheduler *scheduler);

cml_counts cml_made(const cml_scheduler *scheduler);
#endif /* CML_CORE_ONLY */

#ifdef __cplusplus
}
#endif
#endif
